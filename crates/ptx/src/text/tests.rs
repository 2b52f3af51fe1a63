//! Tests of what the reader of PTX texts reads of real ones, and that no text makes it fail otherwise than by an error.

use super::*;
use proptest::prelude::*;

const RELEASE: &str = include_str!("nvcc/release.ptx");
const DEBUG: &str = include_str!("nvcc/debug.ptx");
const RELOCATABLE: &str = include_str!("nvcc/relocatable.ptx");
const DOUBLE: &str = include_str!("../../../../docs/kernels/double.ptx");
const HISTOGRAM: &str = include_str!("../../../../docs/kernels/histogram.ptx");
const HEADER: &str = ".version 6.4\n.target sm_50\n.address_size 64\n";

fn text(rest: &str) -> String {
    format!("{HEADER}{rest}")
}

/// The entry `k` of a text after the header.
#[track_caller]
fn k(rest: &str) -> PtxEntry {
    read(&text(rest), "k").unwrap_or_else(|error| panic!("{error}: {rest}"))
}

fn takes(sizes: &[usize]) -> PtxEntry {
    PtxEntry { parameters: Some(sizes.to_vec()), ..PtxEntry::default() }
}

#[test]
fn the_examples_are_read() {
    assert_eq!(read(DOUBLE, "double").unwrap(), takes(&[8, 4]));
    let histogram = read(HISTOGRAM, "histogram").unwrap();
    assert_eq!(histogram, PtxEntry { static_shared: 1024, ..takes(&[8, 8, 8]) });
}

#[test]
fn what_nvcc_writes_is_read() {
    let bounded = |bytes, sizes: &[usize]| PtxEntry {
        static_shared: bytes,
        most_threads: Some(128),
        ..takes(sizes)
    };
    for (text, name) in [(RELEASE, "release"), (DEBUG, "debug"), (RELOCATABLE, "relocatable")] {
        let entry = |entry| read(text, entry).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(entry("$odd$name"), takes(&[1, 1, 2, 2, 4, 16, 16, 1, 8]), "{name}");
        assert_eq!(entry("tex"), takes(&[8, 8]), "{name}");
        assert_eq!(entry("none"), takes(&[]), "{name}");
        assert_eq!(entry("g1"), PtxEntry { static_shared: 400, ..takes(&[8]) }, "{name}");
        let floats = entry("_ZN1n2tkIfLi64EEEvPT_S1_1P");
        assert_eq!(floats, bounded(256, &[8, 4, 40]), "{name}");
        let longs = entry("_ZN1n2tkIlLi8EEEvPT_S1_1P");
        assert_eq!(longs, bounded(64, &[8, 8, 40]), "{name}");
        // A function is no entry, and an entry in a text in quotes or in a comment is none.
        for absent in ["_Z3reci1P", "x", "vprintf", ""] {
            let Err(PtxError::NoEntry(known)) = read(text, absent) else {
                panic!("{name} {absent}")
            };
            assert!(known.iter().any(|known| known == "g1") && known.len() >= 6, "{known:?}");
        }
    }
    assert_eq!(read(RELEASE, "cl").unwrap(), takes(&[8]));
}

#[test]
fn every_way_to_declare_a_parameter_is_read() {
    for (declared, bytes) in [
        (".param .u8 p", 1),
        (".param .s16 p", 2),
        (".param .f16 p", 2),
        (".param .b32 %p", 4),
        (".param .f64 p", 8),
        (".param .b128 p", 16),
        (".param .u64 .ptr .global .align 8 p", 8),
        (".param .u64 .ptr p", 8),
        (".param .u64 .ptr .shared .align 4 p", 8),
        (".param .align 16 .b8 p[48]", 48),
        (".param.align 4.b8 p[12]", 12),
        (".param .u32 p[0x10]", 64),
        (".param .u32 p[4U]", 16),
        (".param .u32 p[010]", 32),
        (".param .u32 p[0b11]", 12),
        ("/* , */ .param // )\n .u32 p", 4),
    ] {
        assert_eq!(k(&format!(".entry k({declared}){{ret;}}")), takes(&[bytes]), "{declared}");
        let more = format!(".visible .entry k({declared}, .param .u16 q)\n{{ ret; }}");
        assert_eq!(k(&more), takes(&[bytes, 2]), "{declared}");
    }
}

/// The reader refuses nothing falsely, since it does not compare what it does not understand.
#[test]
fn a_parameter_that_is_not_known_leaves_the_entry_uncompared() {
    for declared in [
        ".param .texref p",
        ".param .v4 .f32 p",
        ".param .u32 p[2][3]",
        ".param .u32 p[2 + 1]",
        ".param .u32 p[]",
        ".param .u32 p[0]",
        ".param .u32 p[99999999999999999999]",
        ".param .u64 p[0xffffffffffffffff]",
        ".param .u32 p<4>",
        ".param .attribute(.grid, 1) .u32 p",
        ".param .e4m3x2 p",
        ".param .u32 .u32 p",
        ".reg .u32 p",
        ".u32 p",
        ".param p",
        ".param .u32",
        "p",
        "\u{e4}",
        ".param .u32 q,",
    ] {
        let found = k(&format!(".entry k(.param .u64 a, {declared}) .maxntid 7 {{ret;}}"));
        let unknown = PtxEntry { most_threads: Some(7), ..PtxEntry::default() };
        assert_eq!(found, unknown, "{declared}");
    }
}

#[test]
fn limits_of_a_block_are_read() {
    let most = |header: &str| k(&format!(".entry k(){header}{{ret;}}")).most_threads;
    assert_eq!(most(".maxntid 128, 1, 1 .minnctapersm 2"), Some(128));
    assert_eq!(most(".maxntid 8, 8"), Some(64));
    assert_eq!(most("\n.maxnreg 32\n.maxntid 96\n.pragma \"nounroll; }\";"), Some(96));
    assert_eq!(most(".maxntid x"), None);
    assert_eq!(most(".maxnctapersm 3"), None);
    let exact = |header: &str| k(&format!(".entry k(){header}{{ret;}}")).exact_threads;
    assert_eq!(exact(".reqntid 64"), Some([64, 1, 1]));
    assert_eq!(exact(".reqntid 8,8,1 .noreturn"), Some([8, 8, 1]));
    assert_eq!(exact(".explicitcluster .reqnctapercluster 2, 1, 1"), None);
    // Inside of the body it is an error of the compiler's, and nothing here.
    assert_eq!(k(".entry k { .maxntid 2; ret; }").most_threads, None);
}

#[test]
fn static_shared_memory_counts_where_the_entry_names_it() {
    let shared = |rest: &str| k(rest).static_shared;
    let (one, named) = (".shared .align 4 .b8 s[100];", "{ mov.u32 %r1, s; }");
    assert_eq!(shared(&format!("{one} .entry k {named}")), 100);
    assert_eq!(shared(&format!(".visible {one} .weak .entry k() {named}")), 100);
    assert_eq!(shared(&format!(".entry k {{ {one} st.shared.u32 [s], 0; mov.u32 %r1, s; }}")), 100);
    assert_eq!(
        shared(".entry k { { .shared .u32 a[2][3], b, c; mov.u32 %r, b; add.s32 %r, a, 1; } }"),
        28
    );
    assert_eq!(shared(".shared .v4 .f32 s[3]; .entry k { ld.shared.f32 %f, [s+4]; }"), 48);
    // Not named, in another function, of another text, of no size, no declaration at all.
    assert_eq!(shared(&format!("{one} .entry k {{ ret; }}")), 0);
    assert_eq!(shared(&format!("{one} .func f {named} .entry k {{ ret; }}")), 0);
    assert_eq!(shared(&format!(".func f {{ {one} mov.u32 %r1, s; }} .entry k {named}")), 0);
    assert_eq!(shared(&format!(".extern .shared .b8 s[]; .entry k {named}")), 0);
    assert_eq!(shared(&format!(".extern {one} .entry k {named}")), 0);
    assert_eq!(shared(".entry k { cvta.to.shared .u64 s, s; st.shared.u32 [s], 1; s: ret; }"), 0);
}

#[test]
fn a_definition_goes_before_a_declaration() {
    let declared = ".visible .entry k(.param .u64 a);\n";
    assert_eq!(k(declared), takes(&[8]));
    let both =
        format!("{declared}.visible .entry k(.param .u64 a) .maxntid 4 {{ ret; }} {declared}");
    assert_eq!(k(&both), PtxEntry { most_threads: Some(4), ..takes(&[8]) });
}

#[test]
fn a_text_that_is_no_ptx_says_why() {
    for not_ptx in [
        "",
        " \n",
        "this is no PTX",
        "// .version 6.4",
        "__global__ void k() {}",
        "{}",
        ".target sm_50",
        ". version 6.4",
        "\u{feff}.version 6.4\n.target sm_50",
        "# 1 \"k\"\n.version 6.4\n.target sm_50",
    ] {
        let refused = read(not_ptx, "k").unwrap_err();
        assert!(matches!(refused, PtxError::NotPtx(_)), "{not_ptx:?}: {refused:?}");
    }
    for (not_ptx, said) in [
        ("", "this one is empty"),
        ("// made by hand\n", "this one is empty"),
        ("\u{feff}.version 6.4\n.target sm_50", "a byte order mark: save it without"),
        ("// made by hand\n__global__ void k() {}", "this one with \"__global__ void k() {}\""),
        (&"x".repeat(1000), "xxxxxxxxxxxxxxxxxxxxxxxx\""),
    ] {
        let refused = read(not_ptx, "k").unwrap_err().to_string();
        assert!(refused.ends_with(said), "{refused}");
    }
    let whole = text(".entry k() { ret; }");
    for (malformed, why) in [
        (".version", "no number"),
        (".version sm_50", "no number"),
        (".version6.4 .target sm_50", "no number"),
        (".version 6.4", "no .target"),
        (".version 6.4\n.address_size 64", "no .target"),
        (&format!("{whole} }}"), "did not open"),
        (&format!("{whole} /* "), "ends inside of a comment"),
        (&format!("/* {whole}"), "ends inside of a comment"),
        (&format!("{whole} .func f {{"), "ends inside"),
        (&text(".entry k() { ret;"), "ends inside"),
        (&text(".entry k(.param .u64"), "ends inside"),
        (&text(".entry k()"), "ends inside"),
        (&text(".entry k() .pragma \"\" { ret; }"), "ends inside"),
        (&text(".entry k() } { ret; }"), "did not open"),
    ] {
        let error = read(malformed, "k").unwrap_err();
        assert!(matches!(error, PtxError::Malformed(_)), "{malformed}: {error:?}");
        assert!(error.to_string().contains(why), "{malformed}: {error}");
    }
}

#[test]
fn an_entry_that_is_not_there_names_those_that_are() {
    let of = |rest: &str| read(&text(rest), "k").unwrap_err().to_string();
    assert_eq!(of(""), "the PTX text has no entry");
    assert_eq!(of(".func k { ret; }"), "the PTX text has no entry");
    let two = ".entry a { ret; } .visible .entry $b(); .entry a { ret; }";
    assert_eq!(of(two), "the PTX text has the entries a, $b");
    let many: String = (0..20).map(|number| format!(".entry e{number} {{ ret; }}")).collect();
    assert_eq!(of(&many), "the PTX text has e0, e1, e2, e3, e4, e5, e6, e7, ... for entries");
    assert!(of("/* .entry k { } */ .file 1 \".entry k { }\"").contains("no entry"));
    assert!(of(".section .debug_str { .entry k }").contains("no entry"));
}

#[test]
fn the_time_is_linear_in_the_text() {
    const COUNT: usize = 20_000;
    let started = std::time::Instant::now();
    for part in [
        "(",
        "((,",
        "[",
        ",",
        "\"",
        "\"\\",
        "/",
        "/*",
        "/**/",
        "//\n",
        ".",
        ".entry ",
        ".entry a(",
        ".entry k ",
        ".entry k(",
        ".entry k() .maxntid 1,",
        ".entry k() .pragma ",
        "{",
        ".shared ",
        ".shared .b8 x[",
        ".shared .u32 a, ",
        ".shared .align ",
        "\u{e4}",
        "0.1",
        "%",
        "a b",
        ".entry k { .shared .b8 s[1]; s ",
    ] {
        let _ = read(&text(&part.repeat(COUNT)), "k");
        let _ = read(&text(&format!(".entry k({}", part.repeat(COUNT))), "k");
        let _ = read(&text(&format!(".entry k {{ {}", part.repeat(COUNT))), "k");
    }
    let names: String = (0..COUNT).map(|number| format!(".entry e{number}{{}}")).collect();
    assert!(read(&text(&names), "k").is_err());
    let shared: String = (0..COUNT).map(|number| format!(".shared .b8 s{number}[2];")).collect();
    let named: String = (0..COUNT).map(|number| format!("s{number} ")).collect();
    assert_eq!(
        k(&format!("{shared} .entry k {{ {named} {named} }}")).static_shared,
        2 * COUNT as u64
    );
    // 20 megabytes. A quadratic time would be an hour.
    assert!(started.elapsed().as_secs() < 100, "{:?}", started.elapsed());
}

/// A blank or a comment, which may stand between any two words.
fn gap() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![" ", "\n", "\t\r\n", " /* .entry k( { */ ", " // ) } \" \n", "/**/ "])
}

/// A parameter as it is written, and its bytes.
fn parameter() -> impl Strategy<Value = (Vec<String>, usize)> {
    let plain = prop::sample::select(vec![
        ("u8", 1),
        ("s16", 2),
        ("b32", 4),
        ("f32", 4),
        ("u64", 8),
        ("f64", 8),
    ]);
    let array =
        (prop::sample::select(vec![1, 2, 4, 8, 16]), 1..200_usize).prop_map(|(align, bytes)| {
            let words = [".param".into(), ".align".into(), format!("{align} "), ".b8".into()];
            (words.to_vec(), format!("[{bytes}]"), bytes)
        });
    let plain = (plain, any::<bool>()).prop_map(|((kind, bytes), pointer)| {
        let mut words = vec![".param".into(), format!(".{kind}")];
        if pointer {
            words.extend([".ptr", ".global", ".align", "8 "].map(String::from));
        }
        (words, String::new(), bytes)
    });
    let name = "[a-zA-Z_$][a-zA-Z0-9_$]{0,40}";
    (prop_oneof![plain, array], name).prop_map(|((mut words, length, bytes), name)| {
        words.push(format!(" {name}{length}"));
        (words, bytes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

    #[test]
    fn an_entry_is_read_however_it_is_spaced(
        parameters in prop::collection::vec(parameter(), 0..12),
        gaps in prop::collection::vec(gap(), 80),
        linking in prop::sample::select(vec!["", ".visible", ".weak"]),
    ) {
        let sizes: Vec<usize> = parameters.iter().map(|parameter| parameter.1).collect();
        let mut words = vec![linking.to_string(), ".entry".into(), " k".into(), "(".into()];
        for (index, (declared, _)) in parameters.iter().enumerate() {
            words.extend((index > 0).then(|| ",".to_string()));
            words.extend(declared.iter().cloned());
        }
        words.extend([")", ".maxntid", " 64", ",", "2", "{", "ret", ";", "}"].map(String::from));
        let written: String =
            words.iter().zip(gaps.iter().cycle()).flat_map(|(word, gap)| [gap, word.as_str()]).collect();
        let found = read(&text(&written), "k");
        prop_assert_eq!(found, Ok(PtxEntry { most_threads: Some(128), ..takes(&sizes) }), "{}", written);
    }

    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,300}", entry in "\\PC{0,5}") {
        let _ = read(&text, &entry);
        let _ = read(&format!("{HEADER}.entry {entry}{text}"), &entry);
    }

    #[test]
    fn no_change_of_a_real_text_makes_it_panic(
        which in prop::sample::select(vec![RELEASE, DEBUG, RELOCATABLE, HISTOGRAM]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..200_usize, "[ -~\n\u{e4}]{0,4}"), 1..6),
        entry in prop::sample::select(vec!["g1", "histogram", "none", "_ZN1n2tkIfLi64EEEvPT_S1_1P"]),
    ) {
        let mut text: Vec<char> = which.chars().collect();
        for (at, removed, added) in changes {
            if text.is_empty() {
                break;
            }
            let at = at.index(text.len());
            let end = (at + removed).min(text.len());
            text.splice(at..end, added.chars());
        }
        let _ = read(&text.into_iter().collect::<String>(), entry);
    }
}
