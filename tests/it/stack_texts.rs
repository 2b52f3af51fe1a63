//! The texts of stacks: what they mean, and where they are wrong.

use aquifer::{
    Error, ErrorKind,
    mr::{StackText, StackTextError},
};
use proptest::prelude::*;
use std::error::Error as _;

fn read(text: &str) -> StackText {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn failed(text: &str) -> Error {
    match text.parse::<StackText>() {
        Ok(read) => panic!("`{text}` is read as `{read}`"),
        Err(error) => error,
    }
}

fn place(error: &Error) -> &StackTextError {
    error.source().and_then(|source| source.downcast_ref()).expect("a place in the text")
}

#[test]
fn texts_have_one_canonical_form() {
    for (text, canonical) in [
        ("cuda", "cuda"),
        (" cuda ( ) ", "cuda"),
        ("pool", "pool(cuda)"),
        ("pool(pool)", "pool(pool(cuda))"),
        ("pool(max=80%)", "pool(cuda, maximum_size=80%)"),
        ("pool(max=1MiB,cuda\n,initial=0)", "pool(cuda, initial_size=0, maximum_size=1MiB)"),
        ("pool(cuda|limiting(1024))|statistics", "pool(cuda | limiting(1KiB)) | statistics"),
        (
            "arena(pool(cuda, max=2GiB) | tracking, arena_size=1GiB)",
            "arena(pool(cuda, maximum_size=2GiB) | tracking, arena_size=1GiB)",
        ),
        ("cuda | limiting(limit=0.5KiB)", "cuda | limiting(512)"),
        ("cuda | limiting(12.5000%)", "cuda | limiting(12.5%)"),
        ("cuda | limiting(alignment=1B, 00.000001%)", "cuda | limiting(0.000001%, alignment=1)"),
        ("cuda | aligned(4KiB, 64KiB)", "cuda | aligned(4KiB, 64KiB)"),
        ("cuda | aligned(threshold_bytes=64KiB, alignment=4096)", "cuda | aligned(4KiB, 64KiB)"),
        (
            "cuda | checked(poison=221) | checked(poison=off)",
            "cuda | checked(poison=0xdd) | checked(poison=off)",
        ),
        ("managed(oversubscribe=on) | prefetch", "managed(oversubscribe=true) | prefetch"),
        ("cuda | logging(cuda)", "cuda | logging(cuda)"),
        ("cuda | logging(\"plain.csv\")", "cuda | logging(plain.csv)"),
        (r"cuda | logging(C:\logs\a.csv)", r"cuda | logging(C:\logs\a.csv)"),
        (r#"cuda|logging("a \"b\", (c) \\ d=1|")"#, r#"cuda | logging("a \"b\", (c) \\ d=1|")"#),
        ("cuda | logging | traced", "cuda | logging | traced"),
        ("cuda | limiting(1.5GB)", "cuda | limiting(1500000000)"),
        ("cuda | limiting(18446744073709551615)", "cuda | limiting(18446744073709551615)"),
        ("cuda | limiting(\"1GiB\")", "cuda | limiting(1GiB)"),
    ] {
        let text = read(text);
        assert_eq!(text.to_string(), canonical);
        assert_eq!(read(canonical), text);
        assert_eq!(format!("{text:?}"), format!("StackText({canonical})"));
    }
    assert_ne!(read("pool(cuda)"), read("cuda"));
    assert_ne!(read("cuda | limiting(1)"), read("cuda | limiting(2)"));
    assert_ne!(read("cuda | statistics | tracking"), read("cuda | tracking | statistics"));
    assert_eq!(read("pool(max=1GiB)"), read("pool(cuda, maximum_size=1024MiB)").clone());
}

/// Wrong texts, the column, a part of the problem and a part of the advice.
const WRONG: &[(&str, usize, &str, &str)] = &[
    // Names.
    (
        "",
        1,
        "the text ends here, where the name of a resource was expected",
        "`cuda`, `virtual`, `async`",
    ),
    ("  \n", 4, "the text ends here", "the resources are"),
    ("pol(cuda)", 1, "\"pol\" is no resource", "did you mean `pool`?"),
    ("CUDA", 1, "\"CUDA\" is no resource", "did you mean `cuda`?"),
    ("fixed-size(cuda)", 1, "is no resource", "did you mean `fixed_size`?"),
    ("pool(cudda)", 6, "\"cudda\" is no resource", "did you mean `cuda`?"),
    ("cuda | statistic", 8, "\"statistic\" is no adaptor", "did you mean `statistics`?"),
    ("cuda |", 7, "the text ends here, where the name of an adaptor was expected", "`aligned`"),
    ("cuda || tracking", 7, "`|` stands here", "the adaptors are"),
    ("| cuda", 1, "`|` stands here, where the name of a resource", "the resources are"),
    (
        "cuda | pool",
        8,
        "the resource `pool` stands where an adaptor was",
        "around what stands before the bar: pool(...)",
    ),
    ("pool(cuda) | cuda", 14, "the resource `cuda` stands where an adaptor", "write it innermost"),
    ("statistics(cuda)", 1, "the adaptor `statistics` stands where a resource", "... | statistics"),
    ("pool(limiting(cuda, 1))", 6, "the adaptor `limiting` stands where", "... | limiting"),
    ("ünïcödé | statistics", 1, "\"ünïcödé\" is no resource", ""),
    ("cuda | ünïcödé | nothing", 8, "\"ünïcödé\" is no adaptor", ""),
    ("cuda tracking", 6, "\"tracking\" stands here, where `|` or the end", "after a `|`"),
    ("cuda)", 5, "`)` stands here, where `|` or the end was expected", ""),
    ("pool=cuda", 5, "`=` stands here, where `|` or the end was expected", ""),
    ("\"cuda\"", 1, "the text \"cuda\" stands here, where the name of a resource", ""),
    // Parentheses.
    ("pool(cuda", 5, "the parenthesis that begins here does not end", "end it with a `)`"),
    ("pool(", 5, "the parenthesis that begins here does not end", ""),
    ("pool(pool(cuda)", 5, "the parenthesis that begins here does not end", ""),
    ("pool(cuda,", 5, "the parenthesis that begins here does not end", ""),
    (
        "pool(cuda,)",
        11,
        "`)` stands here, where an option of `pool` was expected",
        "initial_size or initial",
    ),
    ("pool(,cuda)", 6, "`,` stands here, where an option of `pool` was expected", ""),
    ("pool((cuda))", 6, "`(` stands here, where an option of `pool` was expected", ""),
    ("pool(=1)", 6, "`=` stands here, where an option of `pool` was expected", ""),
    ("pool(max=1 GiB)", 12, "\"GiB\" stands here, where `,` or `)` was expected", "as 1GiB"),
    // Upstreams.
    ("cuda(cuda)", 6, "`cuda` is given the upstream `cuda`, and takes none", "leave `cuda` out"),
    ("async(pool(cuda))", 7, "`async` is given the upstream `pool`", "leave `pool` out"),
    (
        "cuda | limiting(pool(cuda), 1GiB)",
        17,
        "`limiting` is given the upstream `pool`",
        "pool... | limiting",
    ),
    (
        "cuda | logging(pool(cuda))",
        16,
        "`logging` is given the upstream `pool`",
        "pool... | logging",
    ),
    ("cuda | tracking(cuda)", 17, "`tracking` is given the upstream `cuda`", "cuda... | tracking"),
    (
        "pool(cuda, managed)",
        12,
        "`pool` has its upstream, and \"managed\" has no name of an option",
        "maximum_size or max",
    ),
    // Options.
    ("pool(cuda, maxx=1GiB)", 12, "`pool` has no option \"maxx\"", "did you mean `max`?"),
    (
        "pool(cuda, initialsize=1GiB)",
        12,
        "no option \"initialsize\"",
        "did you mean `initial_size`?",
    ),
    ("cuda(max=1)", 6, "`cuda` has no option \"max\"", "`cuda` has no options"),
    (
        "pool(max=1MiB, max=1MiB)",
        16,
        "maximum_size of `pool` is given twice",
        "leave one of them out",
    ),
    ("pool(max=1MiB, maximum_size=1MiB)", 16, "maximum_size of `pool` is given twice", ""),
    ("cuda | limiting(1, limit=2)", 20, "limit of `limiting` is given twice", ""),
    (
        "cuda | limiting(1, 2)",
        20,
        "\"2\" is one value too many for `limiting`",
        "limit, the name of which may be left out",
    ),
    ("pool(1GiB)", 6, "\"1GiB\" has no name of an option of `pool`", "initial_size or initial"),
    ("pool(max)", 6, "the option `max` of `pool` has no value", "write max= and"),
    (
        "managed(oversubscribe)",
        9,
        "the option `oversubscribe` of `managed` has no value",
        "write oversubscribe= and",
    ),
    ("pool(max=)", 10, "`)` stands here, where a value of maximum_size was expected", ""),
    ("pool(max=,initial=1)", 10, "`,` stands here, where a value of maximum_size was expected", ""),
    ("pool(max==1)", 10, "`=` stands here, where a value of maximum_size was expected", ""),
    ("pool(max=", 10, "the text ends here, where a value of maximum_size was expected", ""),
    ("cuda | limiting", 8, "`limiting` is given no limit", "limiting(64MiB)"),
    ("cuda | aligned()", 8, "`aligned` is given no alignment", "aligned(64MiB)"),
    ("cuda | logging(\"\")", 16, "the value of path is empty", ""),
    ("cuda | logging(a=b)", 16, "`logging` has no option \"a\"", ""),
    // Texts in quotes.
    ("cuda | logging(\"a.csv)", 16, "the quote that begins here does not end", ""),
    ("cuda | logging(\"a\\", 16, "the quote that begins here does not end", ""),
    (r#"cuda | logging("ä\n")"#, 18, "a backslash in quotes", "two backslashes"),
    // Sizes.
    (
        "pool(initial=1e99GiB)",
        14,
        "initial_size: \"1e99GiB\" has the unit \"e99GiB\", which is none",
        "without sign or exponent",
    ),
    ("pool(initial=1e9)", 14, "has the unit \"e9\"", ""),
    ("pool(initial=-1GiB)", 14, "initial_size: \"-1GiB\" is no size", "without sign"),
    ("pool(initial=+1GiB)", 14, "\"+1GiB\" is no size", ""),
    ("pool(initial=NaN)", 14, "\"NaN\" is no size", "80%"),
    ("pool(initial=inf)", 14, "\"inf\" is no size", ""),
    ("pool(initial=GiB)", 14, "\"GiB\" is no size", ""),
    ("pool(initial=.5GiB)", 14, "\".5GiB\" is no size", ""),
    ("pool(initial=1.GiB)", 14, "\"1.GiB\" is no size", ""),
    ("pool(initial=1..5GiB)", 14, "\"1..5GiB\" is no size", ""),
    ("pool(initial=1.5.5GiB)", 14, "has the unit \".5GiB\"", ""),
    ("pool(initial=1_000)", 14, "has the unit \"_000\"", ""),
    ("pool(initial=0x10)", 14, "has the unit \"x10\"", ""),
    ("pool(initial=1gib)", 14, "has the unit \"gib\", which is none", "did you mean `GiB`?"),
    ("pool(initial=1GIB)", 14, "has the unit \"GIB\"", "did you mean `GiB`?"),
    ("pool(initial=1PiB)", 14, "has the unit \"PiB\"", ""),
    ("pool(initial=1g)", 14, "has the unit \"g\"", "did you mean `GiB`?"),
    ("pool(initial=1M)", 14, "has the unit \"M\"", "did you mean `MiB`?"),
    ("pool(cuda, max 1MiB)", 12, "the option `max` of `pool` has no value", "max= and a value"),
    ("pool(cuda max=1MiB)", 11, "where `,` or `)` was expected", "separate arguments by commas"),
    ("pool(initial=١GiB)", 14, "\"١GiB\" is no size", ""),
    (
        "pool(initial=18446744073709551616)",
        14,
        "is more than an address space holds",
        "ask for less",
    ),
    ("pool(initial=16777216TiB)", 14, "is more than an address space holds", ""),
    (
        "pool(initial=99999999999999999999999999999999999999999999GiB)",
        14,
        "is more than an address space",
        "",
    ),
    ("pool(initial=0.1GiB)", 14, "\"0.1GiB\" is no whole number of bytes", "smaller unit"),
    ("pool(initial=1.5)", 14, "\"1.5\" is no whole number of bytes", ""),
    (
        "pool(initial=0.3333333333333333333333333333333333333333333GiB)",
        14,
        "is no whole number of bytes",
        "",
    ),
    // Parts of memory.
    ("pool(max=101%)", 10, "\"101%\" is more than the device's memory", "100% at most"),
    ("pool(max=100.000001%)", 10, "is more than the device's memory", ""),
    (
        "pool(max=99999999999999999999999999999999999999999999%)",
        10,
        "is more than the device's memory",
        "",
    ),
    ("pool(max=1.0000001%)", 10, "has too many digits", "six digits"),
    ("pool(max=-1%)", 10, "\"-1%\" is no part of the device's memory", "0% to 100%"),
    ("pool(max=%)", 10, "\"%\" is no part of the device's memory", ""),
    ("pool(max=80 %)", 13, "\"%\" stands here", ""),
    ("pool(max=80%%)", 10, "\"80%%\" is no part", ""),
    ("pool(max=1GiB%)", 10, "\"1GiB%\" is no part", ""),
    ("pool(alignment=80%)", 16, "\"80%\" is no size of this option", "4096"),
    ("pinned_pool(max=80%)", 17, "\"80%\" is no size of this option", ""),
    // Other values.
    ("pool(magazine_entries=-1)", 23, "magazine_entries: \"-1\" is no number", "digits"),
    ("pool(magazine_entries=8.0)", 23, "\"8.0\" is no number", ""),
    ("pool(magazine_entries=99999999999999999999)", 23, "is too large a number", ""),
    ("managed(oversubscribe=yes)", 23, "\"yes\" is no switch", "true or false"),
    ("pool(miss_policy=RMM)", 18, "\"RMM\" is none of this option's values", "`default` or `rmm`"),
    ("cuda | checked(poison=256)", 23, "\"256\" is no byte", "0xdd"),
    ("cuda | checked(poison=0x)", 23, "\"0x\" is no byte", ""),
    ("cuda | checked(poison=+1)", 23, "\"+1\" is no byte", ""),
];

#[test]
fn wrong_texts_are_errors_at_their_columns() {
    for (text, column, problem, advice) in WRONG {
        let error = failed(text);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let wrong = place(&error);
        assert_eq!(wrong.column(), *column, "{error}");
        assert!(wrong.problem().contains(problem), "{problem}: {error}");
        let given = error.advice().expect("each says what to do");
        assert!(given.contains(advice), "{advice}: {error}");
        assert!(error.to_string().contains(wrong.problem()), "{error}");
        assert_eq!(format!("{wrong:?}"), wrong.to_string());
    }
}

#[test]
fn carets_stand_below_the_place() {
    for (text, lines) in [
        ("pool(cuda, maxx=1GiB)", "    pool(cuda, maxx=1GiB)\n               ^^^^"),
        ("pool(cuda", "    pool(cuda\n        ^"),
        ("cuda |", "    cuda |\n          ^"),
        ("pool(cuda,\n\tmaxx=1,\n\tmax=2)", "     maxx=1,\n     ^^^^"),
        ("cuda | ä\u{1b}[31m(", "    cuda | ä [31m(\n           ^^^^^^"),
    ] {
        let error = failed(text);
        let shown = place(&error).to_string();
        assert!(shown.ends_with(lines), "{shown}");
        assert!(error.to_string().contains(lines));
    }
    // Of a long line the part around the place.
    let long = format!("cuda | logging(\"{}\") | nothing | {}", "a".repeat(100), "b".repeat(100));
    let error = failed(&long);
    let shown = place(&error).to_string();
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines[1], format!("    ...{}\") | nothing | {}...", "a".repeat(35), "b".repeat(22)));
    assert_eq!(lines[2], format!("    {}^^^^^^^", " ".repeat(43)));
    assert_eq!(place(&error).column(), 122);
}

#[test]
fn hostile_texts_are_errors() {
    let deep = |levels: usize| "pool(".repeat(levels) + "cuda" + &")".repeat(levels);
    assert_eq!(read(&deep(4)).to_string(), deep(4));
    for (text, column) in [
        (deep(5), 21),
        (deep(100_000), 21),
        ("pool(".repeat(4), 20),
        ("pool(".repeat(200_000), 21),
        (format!("pool(pool{})", " | traced".repeat(30)), 9 + 29 * 9 + 4),
        (format!("cuda{}", " | traced".repeat(32)), 4 + 31 * 9 + 4),
        (format!("cuda{}", " | traced".repeat(100_000)), 4 + 31 * 9 + 4),
        ("(".repeat(1 << 20), 1),
        (format!("cuda{}|", " ".repeat(1 << 20)), (1 << 20) + 1),
        ("ä".repeat(1 << 20), (1 << 19) + 1),
        (format!("cuda | logging({})", "a".repeat(4097)), 16),
        ("a".repeat(1 << 20), 1),
        ("\"".repeat((1 << 20) - 1), 1),
        ("\\".repeat(1 << 20), 1),
    ] {
        let error = failed(&text);
        assert_eq!(place(&error).column(), column, "{error}");
        assert!(error.to_string().len() < 1000, "{error}");
    }
    read(&format!("cuda | logging({})", "a".repeat(4096)));
    read(&format!("cuda{}", " | traced".repeat(31)));
    read(&format!("pool{}", " | traced".repeat(30)));
    let error = failed(&format!("cuda{} | pool", " | traced".repeat(31)));
    assert!(place(&error).problem().contains("stands where an adaptor"), "{error}");
    read(&format!("cuda{}", " ".repeat((1 << 20) - 4)));
}

/// A canonical text of an option, and one that is written otherwise.
fn option(
    name: &'static str,
    values: &'static [(&'static str, &'static str)],
) -> BoxedStrategy<[String; 2]> {
    prop::sample::select(values)
        .prop_map(move |(canonical, other)| {
            let text = |value| {
                if name.is_empty() { String::from(value) } else { format!("{name}={value}") }
            };
            [text(canonical), text(other)]
        })
        .boxed()
}

const SIZES: &[(&str, &str)] =
    &[("0", "0KiB"), ("1KiB", "1024"), ("1MiB", "1.0MiB"), ("1536MiB", "1.5GiB"), ("1000", "1KB")];
const PARTS: &[(&str, &str)] =
    &[("80%", "\"80.0%\""), ("0%", "00%"), ("12.5%", "12.500%"), ("1GiB", "1024MiB")];
const NUMBERS: &[(&str, &str)] = &[("8", "08"), ("0", "\"0\"")];
const SWITCHES: &[(&str, &str)] = &[("true", "on"), ("false", "off")];
const PATHS: &[(&str, &str)] = &[
    ("a.csv", "\"a.csv\""),
    ("\"a b\"", " \"a b\" "),
    ("\"ä|\\\"\\\\\"", "\"ä|\\\"\\\\\""),
    ("cuda", "cuda"),
];

/// Each option is there or not.
fn options(all: Vec<BoxedStrategy<[String; 2]>>) -> impl Strategy<Value = Vec<[String; 2]>> {
    let each: Vec<_> = all.into_iter().map(prop::option::of).collect();
    each.prop_map(|options| options.into_iter().flatten().collect())
}

fn joined(name: &str, inner: Option<&str>, options: &[String], gap: &str) -> String {
    let all: Vec<_> = inner.into_iter().chain(options.iter().map(String::as_str)).collect();
    match all.is_empty() {
        true => name.into(),
        false => format!("{name}{}({})", gap.trim_start(), all.join(&format!(",{gap}"))),
    }
}

fn named(
    name: &'static str,
    options_of: Vec<BoxedStrategy<[String; 2]>>,
) -> BoxedStrategy<[String; 2]> {
    options(options_of)
        .prop_map(move |options| {
            let of =
                |which: usize| options.iter().map(|pair| pair[which].clone()).collect::<Vec<_>>();
            let mut others = of(1);
            // By their names, in any order.
            if !["aligned", "limiting", "logging"].contains(&name) {
                others.reverse();
            }
            [joined(name, None, &of(0), " "), joined(name, None, &others, "\n")]
        })
        .boxed()
}

fn adaptor() -> impl Strategy<Value = [String; 2]> {
    prop_oneof![
        option("", PARTS).prop_map(|[canonical, other]| [
            format!("limiting({canonical})"),
            format!("limiting( limit = {other} )"),
        ]),
        (option("", SIZES), option("", SIZES)).prop_map(|(first, second)| [
            format!("aligned({}, {})", first[0], second[0]),
            format!("aligned(threshold_bytes={},alignment={})", second[1], first[1]),
        ]),
        named(
            "logging",
            vec![
                option("", PATHS),
                option("format", &[("rmm", "rmm"), ("events", "\"events\"")]),
                option("capacity", NUMBERS),
                option("locations", SWITCHES),
            ]
        ),
        named(
            "checked",
            vec![
                option("require_same_stream", SWITCHES),
                option("poison", &[("0xdd", "221"), ("off", "off"), ("0x00", "0x0")]),
            ]
        ),
        named("tracking", vec![option("capture_backtraces", SWITCHES)]),
        prop::sample::select(&["prefetch", "statistics", "thread_safe", "traced"][..])
            .prop_map(|name| [name.into(), format!("{name} ( ) ")]),
    ]
}

fn source() -> impl Strategy<Value = [String; 2]> {
    prop_oneof![
        Just(["cuda".into(), " cuda()".into()]),
        Just(["async_default".into(), "async_default\t".into()]),
        named(
            "async",
            vec![
                option("initial_size", SIZES),
                option("release_threshold", PARTS),
                option("reuse_opportunistic", SWITCHES),
                option("managed", SWITCHES),
            ]
        ),
        named("managed", vec![option("oversubscribe", SWITCHES)]),
        named("system", vec![option("headroom", PARTS)]),
        named("pinned", vec![option("portable", SWITCHES), option("mapped", SWITCHES)]),
        named("pinned_pool", vec![option("growth_step", SIZES), option("portable", SWITCHES)]),
    ]
}

fn stack() -> impl Strategy<Value = [String; 2]> {
    let adaptors = || prop::collection::vec(adaptor(), 0..3);
    let piped = |([mut canonical, mut other], adaptors): ([String; 2], Vec<[String; 2]>)| {
        for adaptor in adaptors {
            canonical += &format!(" | {}", adaptor[0]);
            other += &format!("|{}", adaptor[1]);
        }
        [canonical, other]
    };
    (source(), adaptors()).prop_map(piped).prop_recursive(4, 4, 1, move |inner| {
        let around = prop::sample::select(
            &[
                ("pool", "maximum_size"),
                ("fixed_size", "block_size"),
                ("arena", "arena_size"),
                ("binning", ""),
            ][..],
        );
        (around, inner, prop::option::of(option("", SIZES)), adaptors())
            .prop_map(move |((name, size), inner, value, adaptors)| {
                let options = |which: usize| -> Vec<String> {
                    let value = value.as_ref().filter(|_| !size.is_empty());
                    value.map(|value| format!("{size}={}", value[which])).into_iter().collect()
                };
                let canonical = joined(name, Some(&inner[0]), &options(0), " ");
                let mut other = options(1);
                other.push(inner[1].clone());
                let other = joined(name, None, &other, "  ");
                piped(([canonical, other], adaptors))
            })
            .boxed()
    })
}

proptest! {
    #[test]
    fn what_is_read_prints_and_reads_the_same([canonical, other] in stack()) {
        let text = read(&other);
        prop_assert_eq!(text.to_string(), canonical.clone());
        prop_assert_eq!(&read(&canonical), &text);
        prop_assert_eq!(read(&text.to_string()).to_string(), text.to_string());
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "[a-z0-9%.=(),|\"\\\\ äGiB]{0,60}") {
        match text.parse::<StackText>() {
            Ok(read) => prop_assert_eq!(read.to_string().parse::<StackText>().unwrap(), read),
            Err(error) => {
                let column = place(&error).column();
                prop_assert!((1..=text.chars().count() + 1).contains(&column));
            }
        }
    }

    #[test]
    fn a_fault_in_a_right_text_is_found_where_it_is(
        [text, _] in stack(),
        at in any::<prop::sample::Index>(),
        fault in prop::sample::select(&["(", ")", ",", "|", "=", "\"", "?", "ß"][..]),
    ) {
        let places: Vec<_> = text.char_indices().map(|(at, _)| at).collect();
        let mut wrong = text.clone();
        wrong.insert_str(places[at.index(places.len())], fault);
        match wrong.parse::<StackText>() {
            Ok(read) => prop_assert_eq!(read.to_string().parse::<StackText>().unwrap(), read),
            Err(error) => {
                let column = place(&error).column();
                prop_assert!((1..=wrong.chars().count() + 1).contains(&column), "{}", error);
            }
        }
    }
}
