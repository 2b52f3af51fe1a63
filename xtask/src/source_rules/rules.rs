//! The rules that look at one file at a time, but for that of the layers.

use super::Finding;
use super::source::{Kind, Source};

/// The crate of locks and atomics, the only one of ours that names them or loom.
const SYNC: &str = "crates/sync";

/// Modules that locks, atomics and channels come from.
const LOCK_MODULES: [[&str; 2]; 4] =
    [["std", "sync"], ["core", "sync"], ["alloc", "sync"], ["std", "thread_local"]];

/// Crates of locks, queues and channels; `crossbeam` stands for its parts, too.
const LOCK_CRATES: [&str; 4] = ["parking_lot", "parking_lot_core", "lock_api", "loom"];

/// Guards for tests: to panic is what they are for.
const FAILS_TESTS: &str = "crates/core/src/device/checked.rs";

const MACROS: [&str; 4] = ["panic", "todo", "unimplemented", "unreachable"];

const EVENTS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "event"];

const METHODS: [&str; 4] = ["unwrap", "expect", "unwrap_err", "expect_err"];

const LONGEST_FILE: usize = 800;

/// What ships is read more often than a test is.
const LONGEST_FILE_OF_SRC: usize = 600;

const LIMITED: [&str; 6] =
    ["tests", "loom_tests", "benches", "replay/benches", "replay/src", "replay/tests"];

/// In our libraries, locks, atomics, channels and thread locals are named in `crates/sync` alone, tests included.
pub(crate) fn locks_through_sync(source: &Source, findings: &mut Vec<Finding>) {
    if !source.is_of_libraries() || source.is_in(SYNC) {
        return;
    }
    for name in source.names() {
        let module = LOCK_MODULES.iter().any(|module| name.segments.starts_with(module));
        let library = name.segments.len() > 1
            && (LOCK_CRATES.contains(&name.segments[0])
                || name.segments[0].starts_with("crossbeam"));
        if module || library {
            let text = format!("`{}` is named outside {SYNC}", name.segments.join("::"));
            findings.push(source.finding(name.last.line, text));
        }
    }
    // The macro is in the prelude; a file that imports `sync`'s means that one.
    let through_sync = source.names().iter().any(|name| {
        let through = [&["crate", "sync"][..], &["aquifer_sync"]];
        through.iter().any(|path| name.segments.starts_with(path))
            && name.segments.ends_with(&["thread_local"])
    });
    for two in source.tokens.windows(2) {
        let [word, next] = two else { continue };
        let Kind::Ident(named) = &word.kind else { continue };
        let imported = ["use", "crate"].contains(&named.as_str())
            && matches!(&next.kind, Kind::Ident(library)
                if LOCK_CRATES.contains(&library.as_str()) || library.starts_with("crossbeam"));
        let local = named == "thread_local" && !through_sync && next.is_punct('!');
        // `use parking_lot::Mutex` is a path of two, found above.
        if local || (imported && !followed_by_path(source, next.line, &next.kind)) {
            let what = if local { "thread_local!" } else { "a crate of locks" };
            findings.push(source.finding(word.line, format!("{what} is named outside {SYNC}")));
        }
    }
}

/// Whether the identifier on `line` is the start of a longer path.
fn followed_by_path(source: &Source, line: usize, kind: &Kind) -> bool {
    source.tokens.windows(3).any(|three| {
        three[0].line == line
            && three[0].kind == *kind
            && three[1].is_punct(':')
            && three[2].is_punct(':')
    })
}

/// The cfg of the models is named in `sync` and in the models alone: what ships is what they check.
pub(crate) fn loom_through_sync(source: &Source, findings: &mut Vec<Finding>) {
    let allowed = source.is_in(SYNC) || source.is_in("loom_tests") || source.is_in("xtask");
    if allowed {
        return;
    }
    for token in source.tokens.iter().filter(|token| token.is("aquifer_loom")) {
        let text = format!("the cfg aquifer_loom is named outside {SYNC} and loom_tests");
        findings.push(source.finding(token.line, text));
    }
    for attribute in source.attributes() {
        let cfg = attribute.first().is_some_and(|word| word.is("cfg") || word.is("cfg_attr"));
        if cfg && let Some(token) = attribute.iter().find(|token| token.is("loom")) {
            findings.push(source.finding(token.line, "the cfg `loom` belongs to other crates"));
        }
    }
}

/// Events are told through `debug_log`, which cuts levels, stops a subscriber's panic and waits for
/// locks: the macros of `tracing` do none of it.
pub(crate) fn events_through_debug_log(source: &Source, findings: &mut Vec<Finding>) {
    if !source.is_of_libraries()
        || source.is_in("src/debug_log")
        || source.is_in("crates/events")
        || source.is_tests()
    {
        return;
    }
    for name in source.names() {
        if let ["tracing", event] = name.segments[..]
            && EVENTS.contains(&event)
        {
            let text = format!("`tracing::{event}` is named outside src/debug_log");
            findings.push(source.finding(name.last.line, text));
        }
    }
}

/// Nothing in a `src` that ships panics on purpose, outside modules and files of tests, and the one file
/// whose purpose is to fail the tests of users.
pub(crate) fn no_panics(source: &Source, findings: &mut Vec<Finding>) {
    if !(source.is_of_libraries() || source.is_in("replay/src"))
        || source.is_tests()
        || source.path == FAILS_TESTS
    {
        return;
    }
    for (at, token) in source.tokens.iter().enumerate() {
        let Kind::Ident(word) = &token.kind else { continue };
        if token.in_tests {
            continue;
        }
        let next = source.tokens.get(at + 1);
        let after = |steps: usize, punct| {
            at.checked_sub(steps).is_some_and(|at| source.tokens[at].is_punct(punct))
        };
        if MACROS.contains(&word.as_str()) && next.is_some_and(|next| next.is_punct('!')) {
            findings.push(source.finding(token.line, format!("`{word}!`: nothing panics")));
        }
        let called = after(1, '.') && next.is_some_and(|next| next.kind == Kind::Open('('));
        // `map(Option::unwrap)`
        let named = after(1, ':') && after(2, ':');
        if METHODS.contains(&word.as_str()) && (called || named) {
            findings.push(source.finding(token.line, format!("`{word}`: nothing panics")));
        }
    }
}

/// No file is longer than one can keep in mind.
pub(crate) fn short_files(source: &Source, findings: &mut Vec<Finding>) {
    if !(source.is_of_libraries() || LIMITED.iter().any(|folder| source.is_in(folder))) {
        return;
    }
    let short = source.is_of_libraries() && !source.is_tests();
    let most = if short { LONGEST_FILE_OF_SRC } else { LONGEST_FILE };
    if source.lines > most {
        let text = format!("{} lines, {most} at most", source.lines);
        findings.push(source.finding(source.lines, text));
    }
}

/// No test is switched off. One that cannot run here says so when it runs.
pub(crate) fn nothing_ignored(source: &Source, findings: &mut Vec<Finding>) {
    for attribute in source.attributes() {
        let [first, rest @ ..] = attribute else { continue };
        let conditional = first.is("cfg_attr") && rest.iter().any(|token| token.is("ignore"));
        if first.is("ignore") || conditional {
            findings.push(source.finding(first.line, "a test is ignored"));
        }
    }
}

/// No example in the documentation is switched off; `no_run` and `compile_fail` still compile.
pub(crate) fn no_ignored_doctest(source: &Source, findings: &mut Vec<Finding>) {
    for attribute in source.attributes() {
        let [doc, equals, text] = attribute else { continue };
        let Kind::Literal(text_of) = &text.kind else { continue };
        if !doc.is("doc") || !equals.is_punct('=') {
            continue;
        }
        let fenced = |fence: &str| {
            let words = fence.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-');
            fence.starts_with(|c: char| c.is_alphabetic())
                && words.into_iter().any(|w| w == "ignore")
        };
        if text_of.split("```").skip(1).filter_map(|rest| rest.split("\\n").next()).any(fenced) {
            findings.push(source.finding(text.line, "an example in the documentation is ignored"));
        }
    }
}

/// An example that must not compile says so in the paragraph before it: a reader sees no other sign of it.
pub(crate) fn said_not_to_compile(source: &Source, findings: &mut Vec<Finding>) {
    let lines: Vec<(usize, &str)> = source
        .attributes()
        .filter_map(|attribute| match attribute {
            [doc, equals, text] if doc.is("doc") && equals.is_punct('=') => match &text.kind {
                Kind::Literal(literal) => Some((text.line, literal.trim_matches(['"', ' ']))),
                _ => None,
            },
            _ => None,
        })
        .collect();
    for (at, (line, text)) in lines.iter().enumerate() {
        if !text.starts_with("```compile_fail") {
            continue;
        }
        let above = lines[..at].iter().rev().skip_while(|(_, text)| text.is_empty());
        let paragraph = above.take_while(|(_, text)| !text.is_empty() && !text.starts_with("```"));
        if !paragraph.into_iter().any(|(_, text)| text.contains("not compile")) {
            let text = "an example that must not compile does not say so in the text before it";
            findings.push(source.finding(*line, text));
        }
    }
}
