//! The layers of `crates/core`: each module imports only modules of its own layer or below.

use super::Finding;
use super::source::{Source, Token};

/// The crate whose modules have layers. The others are small, and what crates import their Cargo.toml says.
const FOLDER: &str = "crates/core/src/";

/// The modules at the crate's root, the lowest layer first. The first layer is crates below, by the names that the root
/// gives them. `lib` is `lib.rs`, and what it re-exports.
pub(crate) const LAYERS: [&[&str]; 7] = [
    &["debug_log", "driver", "error", "heap", "impls", "layout", "pool", "sim", "sync"],
    &["device", "stream", "event", "split"],
    &["resource", "pinned"],
    &["order", "sleep"],
    &["container"],
    &["transfer", "interop"],
    &["inside", "lib"],
];

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

/// Finds imports of a module of a higher layer, and modules and paths that are not in the table.
/// Modules of tests may import what they need.
pub(crate) fn check(source: &Source, findings: &mut Vec<Finding>) {
    let Some(inside) = source.path.strip_prefix(FOLDER) else { return };
    let modules = modules(inside);
    let own = modules.first().copied().unwrap_or("lib");
    let Some(own_layer) = layer(own) else {
        findings.push(source.finding(1, format!("the module `{own}` has no layer")));
        return;
    };
    if source.is_tests() {
        return;
    }
    for name in source.names() {
        if name.last.in_tests {
            continue;
        }
        let Some(target) = root_module(&name.segments, modules.len() + name.last.depth) else {
            continue;
        };
        let path = name.segments.join("::");
        let text = match layer(target) {
            Some(layer) if layer <= own_layer => continue,
            // The macros that other crates expand name there what these may name: an item of this file.
            Some(_)
                if target == "inside" && source.tokens.iter().any(|it| it.is("macro_export")) =>
            {
                continue;
            }
            Some(layer) => {
                format!("`{own}` (layer {own_layer}) imports `{path}` of a higher layer ({layer})")
            }
            None if own == "lib" || exports_macro(source, target) => continue,
            None => format!(
                "`{path}` goes through the crate's root; name the module that the item lives in"
            ),
        };
        findings.push(source.finding(name.last.line, text));
    }
}

/// Whether a file has a macro that `#[macro_export]` puts at the crate's root.
fn exports_macro(source: &Source, name: &str) -> bool {
    let is_rules =
        |three: &[Token]| three[0].is("macro_rules") && three[1].is_punct('!') && three[2].is(name);
    source.tokens.windows(3).any(is_rules)
}

/// The module path of a file of a crate, without `crate`: nothing for `lib.rs`.
pub(super) fn modules(inside: &str) -> Vec<&str> {
    let mut modules: Vec<&str> = inside.trim_end_matches(".rs").split('/').collect();
    if matches!(modules.last(), Some(&"mod" | &"lib")) {
        modules.pop();
    }
    modules
}

/// The module at the crate's root that a path leads to, if the path goes by way of the root. `depth`
/// is how many modules below the root it stands.
fn root_module<'a>(segments: &[&'a str], depth: usize) -> Option<&'a str> {
    let rest = match segments {
        ["crate", rest @ ..] => rest,
        _ => {
            let path = segments.strip_prefix(&["self"]).unwrap_or(segments);
            let up = path.iter().take_while(|segment| **segment == "super").count();
            if up == 0 || up < depth {
                return None;
            }
            &path[up..]
        }
    };
    rest.first().copied()
}
