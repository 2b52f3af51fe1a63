//! What must not compile, with the compiler's own words: those for the default features, since they
//! list what else would do.

#![cfg(feature = "cuda")]

#[test]
fn misuse_that_compile_fail_catches() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/compile_fail/*.rs");
}
