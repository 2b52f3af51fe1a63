//! The one list of steps.

use crate::report::Verdict;
use crate::{
    Place, bench, candle, cargo, commits, examples, faults, loom, msrv, mutants, nightly, nvidia,
    python, soak, source_rules, thrust,
};
use anyhow::{Result, bail};

/// One step of `cargo xtask test` or `cargo xtask ci`. An error of `run` is a failure of the step.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) command: RunBy,
    pub(crate) run: fn(&Place) -> Result<Verdict>,
}

/// The command that runs a step: `test` what tells a user that the crate works here, `ci` the rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RunBy {
    Test,
    Ci,
}

type Run = fn(&Place) -> Result<Verdict>;

const fn test(name: &'static str, about: &'static str, run: Run) -> Step {
    Step { name, about, command: RunBy::Test, run }
}

const fn ci(name: &'static str, about: &'static str, run: Run) -> Step {
    Step { name, about, command: RunBy::Ci, run }
}

/// Every step, in the order in which they run: the quick ones of each command first.
pub(crate) const STEPS: &[Step] = &[
    test("test", "unit and integration tests of the workspace, short soaks included", cargo::test),
    test("doctest", "the examples in the documentation", cargo::doctest),
    test("loom", "loom's models of the concurrent core", loom::step),
    ci("format", "rustfmt on the whole workspace", cargo::format),
    ci("source-rules", "the rules of the source that no compiler checks", source_rules::step),
    ci("commits", "the subjects of the last commits have 72 characters at most", commits::step),
    ci("msrv", "Cargo.toml, README and compiler agree on the Rust version", msrv::step),
    ci("clippy", "clippy on every target, warnings denied", cargo::clippy),
    ci("clippy-minimal", "the same without default features", cargo::clippy_minimal),
    ci("without-sim", "builds without the simulated device have nothing of it", cargo::without_sim),
    ci("test-minimal", "the tests of `test` without default features", cargo::test_minimal),
    ci("log-levels", "the debug log's tests at each level that features cut at", cargo::log_levels),
    ci(
        "examples",
        "build every example, run it on the simulated device, ask for its help",
        examples::step,
    ),
    ci("candle", "the crate beside candle compiles; a stand-in for nvcc", candle::step),
    ci("bench", "the benches of rows on the simulated device, small counts", bench::step),
    ci("doc", "rustdoc of the public items, warnings denied, and the links to it", cargo::doc),
    ci("loom-faults", "every fault must be found by its model", faults::step),
    ci("soak", "many random programs of each soak", soak::step),
    ci("soak-faults", "faults that the soaks must find", soak::faults),
    ci("mutants", "ten small faults of tests/mutants.csv that tests have to find", mutants::step),
    ci("std-allocator", "the standard library's Allocator, on a nightly", nightly::std_allocator),
    ci("asan", "the tests under AddressSanitizer, on a nightly", nightly::asan),
    ci(
        "fuzz",
        "the heap, the readers of logs and the texts of stacks, a minute and a half where cargo-fuzz is",
        nightly::fuzz,
    ),
    ci("miri", "the unit tests under Miri, where it is installed", nightly::miri),
    ci("tsan", "the tests under ThreadSanitizer, where rust-src is installed", nightly::tsan),
    ci(
        "python",
        "the Python package, installed into virtual environments and tested",
        python::step,
    ),
    ci(
        "nvidia",
        "the crate for cuda-core and cutile, which wants CUDA's headers and libclang",
        nvidia::step,
    ),
    ci("thrust", "Thrust's sort and scan over the C library, with CCCL's headers", thrust::step),
    ci("numpy", "NumPy's own tests over the Python package's handler", python::numpy),
    ci("package", "cargo publish --dry-run", cargo::package),
];

/// The steps that `only` names, in the order of [`STEPS`]; those of `command` where it names none.
pub(crate) fn choose(command: RunBy, only: &[String]) -> Result<Vec<&'static Step>> {
    if let Some(unknown) = only.iter().find(|name| STEPS.iter().all(|step| step.name != **name)) {
        let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        bail!("there is no step `{unknown}`; the steps are {}", known.join(", "));
    }
    let wanted = |step: &&Step| {
        if only.is_empty() {
            step.command == command
        } else {
            only.iter().any(|name| name == step.name)
        }
    };
    Ok(STEPS.iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(STEPS[..index].iter().all(|earlier| earlier.name != step.name));
        }
    }

    #[test]
    fn the_two_commands_share_no_step_and_leave_none_out() {
        let [test, ci] = [RunBy::Test, RunBy::Ci].map(|command| choose(command, &[]).unwrap());
        assert_eq!(test.len() + ci.len(), STEPS.len());
        assert!(test.iter().all(|step| ci.iter().all(|other| other.name != step.name)));
    }

    #[test]
    fn chooses_some_of_either_command_or_complains() {
        for command in [RunBy::Test, RunBy::Ci] {
            let two = choose(command, &["format".into(), "loom".into()]).unwrap();
            assert_eq!(two.iter().map(|step| step.name).collect::<Vec<_>>(), ["loom", "format"]);
            let unknown = choose(command, &["fromat".into()]).err().unwrap();
            assert!(unknown.to_string().contains("fromat"));
        }
    }
}
