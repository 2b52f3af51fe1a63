//! The floors of the house: each room imports only rooms of its own floor or below.

use super::Finding;
use super::source::Source;

/// The rooms, from the ground up. `lib` is `src/lib.rs`, and what it re-exports.
pub(crate) const FLOORS: [&[&str]; 8] = [
    &["heap", "sync", "error", "layout", "debug_log"],
    &["backend"],
    &["device", "stream", "event"],
    &["pool"],
    &["resource", "adaptor", "host"],
    &["container", "transfer", "interop"],
    &["manager"],
    &["lib"],
];

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

/// Imports of a room on a higher floor, and rooms and paths that are not of the table. Modules of
/// tests may import what they need.
pub(crate) fn check(source: &Source, findings: &mut Vec<Finding>) {
    let Some(inside) = source.path.strip_prefix("src/") else { return };
    let modules = modules(inside);
    let own = modules.first().copied().unwrap_or("lib");
    let Some(own_floor) = floor(own) else {
        findings.push(source.finding(1, format!("the room `{own}` has no floor")));
        return;
    };
    if source.is_tests() {
        return;
    }
    for name in source.names() {
        if name.last.in_tests {
            continue;
        }
        let Some(target) = room(&name.segments, modules.len() + name.last.depth) else { continue };
        let path = name.segments.join("::");
        let text = match floor(target) {
            Some(floor) if floor <= own_floor => continue,
            Some(floor) => {
                format!("`{own}` (floor {own_floor}) imports `{path}` of a higher floor ({floor})")
            }
            None if own == "lib" => continue,
            None => format!("`{path}` goes through the front door; name the room it lives in"),
        };
        findings.push(source.finding(name.last.line, text));
    }
}

/// The modules that a file of `src` is, the outermost first; none for `lib.rs`.
fn modules(inside: &str) -> Vec<&str> {
    let mut modules: Vec<&str> = inside.trim_end_matches(".rs").split('/').collect();
    if matches!(modules.last(), Some(&"mod" | &"lib")) {
        modules.pop();
    }
    modules
}

/// The room that a path leads to, if it leaves by way of the crate's root. `depth` is how many
/// modules below the root it stands.
fn room<'a>(segments: &[&'a str], depth: usize) -> Option<&'a str> {
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
