//! The tables of the documentation, and parts of memory.

use super::names::{DEFAULT_UPSTREAM, Given, LAYERS, LayerKind, Make, Place, ValueKind};
use super::value::Value;

/// The row of a name in the tables of `StackText`.
fn row(kind: &LayerKind) -> &'static str {
    let start = format!("/// | `{}` |", kind.name);
    let rows = include_str!("text.rs").lines().filter(|line| line.starts_with(&start));
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), 1, "rows of {}", kind.name);
    rows[0]
}

#[test]
fn the_documentation_has_each_name_and_each_option() {
    for kind in &LAYERS {
        let row = row(kind);
        for option in kind.options {
            let name = match option.short {
                Some(short) => format!("`{}` (or `{short}`)", option.name),
                None => format!("`{}`", option.name),
            };
            assert!(row.contains(&name), "{name} of {row}");
            if option.given == Given::Always {
                let always = format!("{name}: {}, always given", of(option.value));
                assert!(row.contains(&always), "{always} of {row}");
            } else if let ValueKind::Name([first @ .., last]) = option.value {
                let first: Vec<_> = first.iter().map(|value| format!("`{value}`")).collect();
                let values = format!("{} or `{last}`", first.join(", "));
                assert!(row.contains(&format!("{name}: {values}")), "{name} of {row}");
            } else {
                // The options before the next colon have the same values.
                let after = &row[row.find(&name).unwrap()..];
                let values = after.split_once(": ").unwrap().1;
                assert!(values.starts_with(of(option.value)), "{name} of {row}");
            }
        }
        // No option more: quoted words of a row are names, short forms and values.
        let cells: Vec<_> = row.split('|').collect();
        let last = cells[cells.len() - 2];
        let words = last.split('`').skip(1).step_by(2);
        let values = ["auto", "on", "off", "0xdd", "221", "rmm", "events", "default"];
        let is_value = |word: &str| values.contains(&word);
        for word in words.filter(|word| !is_value(word)) {
            assert!(kind.option(word).is_some() || word == "pinned", "{word} of {row}");
        }
        if kind.place != Place::Adaptor {
            assert_eq!(cells[3].trim() == "yes", kind.place == Place::Around, "{row}");
        }
    }
}

fn of(value: ValueKind) -> &'static str {
    match value {
        ValueKind::Size => "size",
        ValueKind::Memory => "memory",
        ValueKind::Number => "number",
        ValueKind::Switch => "switch",
        ValueKind::Path => "path",
        ValueKind::Fill => "`off`",
        ValueKind::Name(_) => "`",
    }
}

#[test]
fn each_option_is_read_as_the_value_that_it_has() {
    // What the macro `set` is given: `size: initial_size, maximum_size;`.
    let source = include_str!("build.rs").replace(['\n', ' '], "");
    for kind in &LAYERS {
        for option in kind.options {
            let readers: &[_] = match option.value {
                ValueKind::Size => &["size"],
                ValueKind::Memory => &["size", "wide"],
                ValueKind::Number => &["number", "exponent"],
                ValueKind::Switch => &["switch"],
                ValueKind::Name(_) => &["policy", "format", "handles"],
                ValueKind::Fill => &["fill"],
                ValueKind::Path => &["path"],
            };
            let is_read = readers.iter().any(|reader| {
                let alone = format!("options.{reader}(\"{}\")", option.name);
                let mark = format!("{reader}:");
                let mut lists = source.split(&mark).skip(1);
                let in_list = |list: &str| {
                    let names = list.split(';').next().unwrap_or_default();
                    names.split(',').any(|name| name == option.name)
                };
                source.contains(&alone) || lists.any(in_list)
            });
            assert!(is_read, "{} of {}", option.name, kind.name);
        }
    }
}

#[test]
fn names_are_found_once() {
    assert_eq!(DEFAULT_UPSTREAM.0.make, Make::Source(DEFAULT_UPSTREAM.1));
    for (index, kind) in LAYERS.iter().enumerate() {
        assert_eq!(LayerKind::named(kind.name), Some(kind));
        assert!(LAYERS[index + 1..].iter().all(|other| other.name != kind.name));
        assert!(kind.place != Place::Around || kind.by_place().next().is_none());
        for (at, option) in kind.options.iter().enumerate() {
            assert_eq!(kind.option(option.name), Some(at));
            assert!(option.short.is_none_or(|short| kind.option(short) == Some(at)));
        }
    }
}

#[test]
fn a_part_of_any_memory_fits() {
    let part = |text| match Value::read(ValueKind::Memory, text) {
        Ok(Value::Part(part)) => part,
        other => panic!("{text}: {other:?}"),
    };
    for (text, total, alignment, bytes) in [
        ("100%", u64::MAX, 256, usize::MAX - 255),
        ("100%", 0, 256, 0),
        ("50%", 1000, 256, 256),
        ("50%", 1000, 1, 500),
        ("33.333333%", 1_000_000_000, 1, 333_333_330),
        ("0.000001%", 100_000_000, 1, 1),
        ("0.000001%", 99_999_999, 1, 0),
    ] {
        assert_eq!(part(text).of(total, alignment), bytes, "{text} of {total}");
    }
}
