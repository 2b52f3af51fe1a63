//! The one list of steps.

use crate::report::Verdict;
use crate::{Place, bench, cargo, examples, faults, house, loom, msrv, nightly, soak};
use anyhow::{Result, bail};

/// One step of `cargo xtask ci`. An error of `run` is a failure of the step.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: fn(&Place) -> Result<Verdict>,
}

const fn step(name: &'static str, about: &'static str, run: fn(&Place) -> Result<Verdict>) -> Step {
    Step { name, about, run }
}

/// Every step, in the order in which they run: the quick ones first.
pub(crate) const STEPS: &[Step] = &[
    step("format", "rustfmt on the whole workspace", cargo::format),
    step("house", "the rules of the source that no compiler checks", house::step),
    step("msrv", "Cargo.toml, README and compiler agree on the Rust version", msrv::step),
    step("clippy", "clippy on every target, warnings denied", cargo::clippy),
    step("clippy-minimal", "the same without default features", cargo::clippy_minimal),
    step("test", "unit and integration tests of the workspace", cargo::test),
    step("test-minimal", "the same without default features", cargo::test_minimal),
    step(
        "log-levels",
        "the tests of the debug log at each level that features cut at",
        cargo::log_levels,
    ),
    step("doctest", "the examples in the documentation", cargo::doctest),
    step("examples", "build every example and run it on the simulated device", examples::step),
    step("bench", "the benches of rows on the simulated device, small counts", bench::step),
    step("doc", "rustdoc of the public items, warnings denied", cargo::doc),
    step("loom", "loom's models of the concurrent core", loom::step),
    step("loom-faults", "every fault compiled in must be found by its model", faults::step),
    step("soak", "a hundred thousand random programs on the pool", soak::step),
    step("soak-faults", "faults compiled in that the soak must find", soak::faults),
    step("std-allocator", "the standard library's Allocator, on a nightly", nightly::std_allocator),
    step("asan", "the tests under AddressSanitizer, on a nightly", nightly::asan),
    step("miri", "the unit tests under Miri, where it is installed", nightly::miri),
    step("tsan", "the tests under ThreadSanitizer, where rust-src is installed", nightly::tsan),
    step("package", "cargo publish --dry-run", cargo::package),
];

/// The steps that `only` names, in the order of [`STEPS`]; all where it names none.
pub(crate) fn choose(only: &[String]) -> Result<Vec<&'static Step>> {
    if let Some(unknown) = only.iter().find(|name| STEPS.iter().all(|step| step.name != **name)) {
        let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        bail!("there is no step `{unknown}`; the steps are {}", known.join(", "));
    }
    let wanted = |step: &&Step| only.is_empty() || only.iter().any(|name| name == step.name);
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
    fn chooses_all_some_or_complains() {
        assert_eq!(choose(&[]).unwrap().len(), STEPS.len());
        let two = choose(&["doc".into(), "format".into()]).unwrap();
        assert_eq!(two.iter().map(|step| step.name).collect::<Vec<_>>(), ["format", "doc"]);
        assert!(choose(&["fromat".into()]).err().unwrap().to_string().contains("fromat"));
    }
}
