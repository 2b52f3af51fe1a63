use super::*;

#[test]
fn names_are_what_compute_sanitizer_takes() {
    assert_eq!(name("aquifer pool 17, chunk").to_bytes(), b"aquifer pool 17, chunk");
    assert_eq!(name("a\0b\nc\u{e9}").to_bytes(), b"abc");
    assert_eq!(name(&"x".repeat(80)).to_bytes().len(), 49);
}
