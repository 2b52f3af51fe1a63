//! What is exported, against the lists that have to name it: so what a new thing forgets is red.

use super::Finding;
use anyhow::{Context as _, Result};
use std::path::Path;

/// Where resources and adaptors are exported.
const EXPORTS: [&str; 4] = [
    "crates/core/src/resource/mod.rs",
    "crates/mr/src/adaptor/mod.rs",
    "crates/mr/src/lib.rs",
    "crates/nccl/src/lib.rs",
];

/// What names each of them: a file, or a folder of which one file does.
const LISTS: [&str; 3] = ["tests/family", "docs/guide/resources.md", "CHANGELOG.md"];

/// Where the pool tells its events, and where they are documented.
const EVENTS: (&str, &str) = ("crates/pool/src", "src/debug_log/mod.rs");

pub(super) fn complete(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let lists = LISTS.map(|list| texts(&root.join(list)).map(|texts| (list, texts)));
    let lists: Vec<_> = lists.into_iter().collect::<Result<_>>()?;
    for export in EXPORTS {
        let text = std::fs::read_to_string(root.join(export)).context(export)?;
        for name in exported(&text) {
            for (list, texts) in &lists {
                if !texts.iter().any(|text| names(text, name)) {
                    let text = format!("`{name}` is not in {list}");
                    findings.push(Finding { path: export.into(), line: 1, text });
                }
            }
        }
    }
    let documented = std::fs::read_to_string(root.join(EVENTS.1)).context(EVENTS.1)?;
    for text in texts(&root.join(EVENTS.0))? {
        for message in messages(&text) {
            if !documented.contains(&format!("`{message}`")) {
                let text = format!("the event `{message}` is not in the table");
                findings.push(Finding { path: EVENTS.1.into(), line: 1, text });
            }
        }
    }
    Ok(findings)
}

/// The text of a file, or of each file of a folder.
fn texts(path: &Path) -> Result<Vec<String>> {
    let read =
        |path: &Path| std::fs::read_to_string(path).with_context(|| path.display().to_string());
    if path.is_file() {
        return Ok(vec![read(path)?]);
    }
    let mut texts = Vec::new();
    for entry in path.read_dir().with_context(|| path.display().to_string())? {
        let path = entry?.path();
        if path.is_file() {
            texts.push(read(&path)?);
        }
    }
    Ok(texts)
}

/// The resources and adaptors that a file re-exports.
fn exported(text: &str) -> impl Iterator<Item = &str> {
    let shown = text.split("for_models!").next().unwrap_or_default();
    let uses = shown.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next());
    let words = uses.flat_map(|list| list.split(|c: char| !(c.is_alphanumeric() || c == '_')));
    let is_one = |word: &&str| {
        let ends = word.ends_with("Resource") || word.ends_with("Adaptor");
        // The traits.
        ends && !["DeviceResource", "LocalDeviceResource"].contains(word)
    };
    words.filter(is_one)
}

fn names(text: &str, name: &str) -> bool {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == name)
}

/// The messages of `emit!`, which end each of its calls.
fn messages(text: &str) -> impl Iterator<Item = &str> {
    let calls = text.split("emit!(self").skip(1).filter_map(|rest| rest.split(");").next());
    calls.filter_map(|call| call.rsplit('"').nth(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_is_exported() {
        let text = "mod a;\npub use a::{OneAdaptor, OneOptions};\npub(crate) use b::TwoResource;\n\
            pub use c::ThreeResource;\npub use d::{DeviceResource, Other};\n\
            for_models! { pub use e::FourResource; }\n";
        assert_eq!(exported(text).collect::<Vec<_>>(), ["OneAdaptor", "ThreeResource"]);
    }

    #[test]
    fn a_longer_name_is_another_one() {
        assert!(names("see `OneAdaptor`.", "OneAdaptor"));
        assert!(!names("see `OneAdaptors`.", "OneAdaptor"));
    }

    #[test]
    fn finds_the_messages_of_events() {
        let text = "emit!(self, { stream = 1, how = \"x\" }, \"pool grew\");\nf();\n\
            emit!(self, { bytes }, \"gave memory back\");\n";
        assert_eq!(messages(text).collect::<Vec<_>>(), ["pool grew", "gave memory back"]);
    }
}
