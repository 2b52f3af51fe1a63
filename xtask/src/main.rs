//! `cargo xtask`: everything that checks this repository, in one program.
//!
//! `cargo xtask ci` is what the README, `.ci/run` and the GitHub workflow call. The steps are listed
//! in one place, [`steps::STEPS`].

mod bench;
mod cargo;
mod examples;
mod faults;
mod figures;
mod house;
mod loom;
mod msrv;
mod nightly;
mod process;
mod report;
mod rows;
mod soak;
mod steps;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Checks the crate aquifer")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every step, or those of --only; the exit code is 1 if any failed.
    Ci {
        /// The steps to run, separated by commas (`cargo xtask list` names them).
        #[arg(long, value_delimiter = ',', value_name = "STEP")]
        only: Vec<String>,
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
    /// Run loom's models as they ship, or with one fault compiled in, which has to be found.
    Loom {
        /// A fault of loom_tests/faults.csv.
        #[arg(long, value_name = "NAME")]
        fault: Option<String>,
    },
    /// Run the long soak of the pool as it ships, or with one fault compiled in, which has to be
    /// found.
    Soak {
        /// A fault of tests/soak/faults.csv.
        #[arg(long, value_name = "NAME")]
        fault: Option<String>,
    },
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
        Task::Ci { only } => Ok(report::run(&place, &steps::choose(&only)?)),
        Task::List => {
            for step in steps::STEPS {
                println!("{:16} {}", step.name, step.about);
            }
            Ok(ExitCode::SUCCESS)
        }
        Task::Figures { rows, into } => {
            for file in figures::draw(&place, &rows, &into)? {
                println!("{}", file.display());
            }
            Ok(ExitCode::SUCCESS)
        }
        Task::Loom { fault: None } => Ok(report::run(&place, &steps::choose(&["loom".into()])?)),
        Task::Loom { fault: Some(name) } => {
            let note = faults::run(&place, Some(&name))?;
            println!("{note}");
            Ok(ExitCode::SUCCESS)
        }
        Task::Soak { fault: None } => Ok(report::run(&place, &steps::choose(&["soak".into()])?)),
        Task::Soak { fault: Some(name) } => {
            soak::run(&place, Some(&name))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
