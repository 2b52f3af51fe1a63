//! What must compile, and what must not, with the compiler's own words: those for the default features, since they
//! list what else would do.

#![cfg(feature = "cuda")]

#[test]
fn misuse_that_compile_fail_catches() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/compile_fail/*.rs");
}

#[test]
fn code_that_has_to_go_on_compiling() {
    trybuild::TestCases::new().pass("tests/compile_pass/*.rs");
}
