//! Whether the header that is committed is that of the source.

use std::path::Path;

#[test]
fn the_header_is_that_of_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_root_or_default(root);
    let bindings =
        cbindgen::Builder::new().with_crate(root).with_config(config).generate().unwrap();
    let mut text = Vec::new();
    bindings.write(&mut text);
    let text = String::from_utf8(text).unwrap();
    let path = root.join("include/aquifer.h");
    if std::env::var_os("AQUIFER_BLESS").is_some_and(|value| !value.is_empty()) {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == text,
        "capi/include/aquifer.h is not that of the source: AQUIFER_BLESS=1 cargo test -p aquifer-capi --test header"
    );
}
