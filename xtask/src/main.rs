//! `cargo xtask`: everything that checks this repository, in one program.
//!
//! `cargo xtask test` runs what a user would, and `cargo xtask ci` all the rest; `.ci/run` and the
//! GitHub workflow call both. The steps are listed in one place, [`steps::STEPS`].

mod bench;
mod candle;
mod cargo;
mod commits;
mod environment;
mod examples;
mod faults;
mod faulty;
mod figures;
mod install_capi;
mod loom;
mod msrv;
mod mutants;
mod nightly;
mod nvidia;
mod process;
mod programs;
mod pypi;
mod python;
mod report;
mod rows;
mod soak;
mod source_rules;
mod steps;
mod thrust;
mod tree;
mod wheel;

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use steps::RunBy;

#[derive(Parser)]
#[command(about = "Checks the crate aquifer")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every test: of units, integration and documentation, loom's models, short soaks. The exit
    /// code is 1 if any failed.
    Test {
        #[command(flatten)]
        steps: Only,
    },
    /// Run every check that `test` does not; the exit code is 1 if any failed.
    Ci {
        #[command(flatten)]
        steps: Only,
    },
    /// List the steps.
    List,
    /// Draw the figures of random allocations from rows of the pool's bench and its peers.
    Figures {
        /// Files of rows.
        #[arg(required = true, value_name = "CSV")]
        rows: Vec<PathBuf>,
        /// The folder for the figures, in the repository unless absolute.
        #[arg(long, default_value = "benches/figures", value_name = "FOLDER")]
        into: PathBuf,
    },
    /// The copy with faults, and the patches of loom_tests/faults that make it.
    Faults {
        #[command(subcommand)]
        task: FaultsTask,
    },
    /// Run loom's models as they ship, or with one fault, which has to be found.
    Loom {
        /// A fault of loom_tests/faults.csv.
        #[arg(long, value_name = "NAME")]
        fault: Option<String>,
    },
    /// Small faults in the source, each of which a test has to find.
    Mutants {
        #[command(subcommand)]
        task: mutants::Task,
    },
    /// Build the C library, and install it with its headers and its files for pkg-config and CMake.
    InstallCapi {
        /// The folder, such as /usr/local, that gets `include` and `lib`.
        prefix: PathBuf,
        /// The profile of cargo that builds it.
        #[arg(long, default_value = "capi", value_name = "PROFILE")]
        profile: String,
    },
    /// Build the wheel of the Python package for Linux with glibc 2.28 and later, and check it.
    Wheel(wheel::Arguments),
    /// Look for the programs on which pools hold most over what is in use.
    Adversary(soak::Adversary),
    /// Run the long soaks as they ship, or with one fault, which has to be found.
    Soak {
        /// A fault of the faults.csv of a soak, such as tests/soak.
        #[arg(long, value_name = "NAME")]
        fault: Option<String>,
    },
}

#[derive(Args)]
struct Only {
    /// The steps to run, of either command, separated by commas (`cargo xtask list` names them).
    #[arg(long, value_delimiter = ',', value_name = "STEP")]
    only: Vec<String>,
}

#[derive(Subcommand)]
enum FaultsTask {
    /// Apply the patches to a copy, to be edited there.
    Apply,
    /// Write the patches anew from the copy, for which nothing else may have changed meanwhile.
    Save,
}

/// Where the steps run.
pub(crate) struct Place {
    /// The repository's root.
    pub(crate) root: PathBuf,
    /// Cargo's target directory, absolute.
    pub(crate) target: PathBuf,
}

impl Place {
    fn find() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask lies in no repository")?
            .to_path_buf();
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(named) => root.join(named),
            None => root.join("target"),
        };
        Ok(Self { root, target })
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let place = Place::find()?;
    match arguments.command {
        Task::Test { steps } => run_steps(&place, RunBy::Test, &steps.only),
        Task::Ci { steps } => run_steps(&place, RunBy::Ci, &steps.only),
        Task::List => {
            for step in steps::STEPS {
                let command = match step.command {
                    RunBy::Test => "test",
                    RunBy::Ci => "ci",
                };
                println!("{command:4} {:16} {}", step.name, step.about);
            }
            Ok(ExitCode::SUCCESS)
        }
        Task::Figures { rows, into } => {
            for file in figures::draw(&place, &rows, &into)? {
                println!("{}", file.display());
            }
            Ok(ExitCode::SUCCESS)
        }
        Task::Faults { task: FaultsTask::Apply } => {
            println!("{}", faulty::Faulty::copy(&place)?.root().display());
            Ok(ExitCode::SUCCESS)
        }
        Task::Faults { task: FaultsTask::Save } => {
            println!("{} patches", faulty::save(&place)?);
            Ok(ExitCode::SUCCESS)
        }
        Task::Loom { fault: None } => run_steps(&place, RunBy::Test, &["loom".into()]),
        Task::Loom { fault: Some(name) } => {
            let note = faults::run(&place, Some(&name))?;
            println!("{note}");
            Ok(ExitCode::SUCCESS)
        }
        Task::Mutants { task } => {
            println!("{}", mutants::run(&place, &task)?);
            Ok(ExitCode::SUCCESS)
        }
        Task::InstallCapi { prefix, profile } => {
            for file in install_capi::install(&place, &prefix, &profile)? {
                println!("{}", file.display());
            }
            Ok(ExitCode::SUCCESS)
        }
        Task::Wheel(asked) => {
            for file in wheel::run(&place, &asked)? {
                println!("{}", file.display());
            }
            Ok(ExitCode::SUCCESS)
        }
        Task::Adversary(asked) => {
            soak::adversary(&place, &asked)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Soak { fault: None } => run_steps(&place, RunBy::Ci, &["soak".into()]),
        Task::Soak { fault: Some(name) } => {
            soak::run(&place, Some(&name))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn run_steps(place: &Place, command: RunBy, only: &[String]) -> Result<ExitCode> {
    Ok(report::run(place, &steps::choose(command, only)?))
}
