//! What of a CSV is not read, or not as a line, is told.

use super::{ALLOCATE, EVENTS, FREE, HEADER, error, file, replay, served};
use serde_json::Value;
use std::process::Output;

/// What is served, with standard error.
#[track_caller]
fn served_with(output: &Output) -> (Value, String) {
    (served(output), String::from_utf8(output.stderr.clone()).unwrap())
}

/// The warnings of a report: the part, the name, the number and the bytes of each.
fn warnings(all: &Value) -> Vec<(&str, &Value, u64, u64)> {
    let warnings = all["report"]["warnings"].as_array().unwrap();
    let of = |warning: &'_ Value| (warning["number"].as_u64(), warning["bytes"].as_u64());
    warnings
        .iter()
        .map(|warning| {
            let (number, bytes) = of(warning);
            let part = warning["part"].as_str().unwrap();
            (part, &warning["name"], number.unwrap(), bytes.unwrap())
        })
        .collect()
}

#[test]
fn a_column_that_is_not_read_is_named() {
    let text = format!("Device,{},Device\n7,{},8\n", HEADER.trim_end(), ALLOCATE.trim_end());
    let (all, said) = served_with(&replay(&file("unread_column.csv", text), &["--json"]));
    assert_eq!(warnings(&all), [("column", &"Device".into(), 2, 0)]);
    assert!(
        said.contains("unread_column.csv: warning: 2 columns \"Device\" are not read"),
        "{said}"
    );
    // Of many ten are named.
    let more: String = (0..30).map(|at| format!(",c{at:02}")).collect();
    let text = format!("{}{more}\n", EVENTS.trim_end());
    let (all, said) = served_with(&replay(&file("unread_columns.csv", text), &["--json"]));
    assert_eq!(warnings(&all).len(), 11);
    assert_eq!(warnings(&all)[10], ("column", &Value::Null, 20, 0));
    assert!(said.contains("warning: 20 columns … are not read"), "{said}");
}

/// A quote that is opened and not closed makes one cell of all that follows.
#[test]
fn lines_that_a_quote_joins_are_told() {
    let quoted = ALLOCATE.replace(",16\n", ",\"16\n");
    for (name, text, line, number) in [
        ("joined.csv", format!("{HEADER}{ALLOCATE}{FREE}{quoted}{}", FREE.repeat(50)), 4, 51),
        (
            "joined.events.csv",
            format!("{EVENTS}Alloc,0,0x1000,0,4,,,,1.0,,,\"a\n{}", "Free,0,0x1000,0,4,,,,1.0,,,\n"),
            2,
            2,
        ),
    ] {
        let (all, said) = served_with(&replay(&file(name, text), &["--json"]));
        assert_eq!(warnings(&all), [("joined_lines", &Value::Null, number, 0)]);
        assert_eq!(all["report"]["warnings"][0]["line"], line);
        let words = format!("{name}:{line}: warning: {number} line ends inside quotes");
        assert!(said.contains(&words), "{said}");
    }
}

/// It is in the report, as well.
#[test]
fn a_last_line_without_an_end_is_in_the_report() {
    let log = file("unended_report.csv", format!("{HEADER}{ALLOCATE}{}", FREE.trim_end()));
    let (all, _) = served_with(&replay(&log, &["--json"]));
    assert_eq!(warnings(&all), [("unended", &Value::Null, 1, 0)]);
    let report = String::from_utf8(replay(&log, &[]).stdout).unwrap();
    assert!(report.contains("\nwarning             line 3: the last line has no end"), "{report}");
}

/// Two logs one behind the other: the second's header is no line.
#[test]
fn a_header_in_the_middle_is_an_error() {
    for (header, line) in [
        (HEADER, format!("{ALLOCATE}{FREE}")),
        (EVENTS, String::from("Alloc,0,0x1000,0,4,,,,1.0,,,\nFree,0,0x1000,0,4,,,,1.0,,,\n")),
    ] {
        let log = file("two_logs.csv", format!("{header}{line}{header}{line}"));
        let said = error(&replay(&log, &["--lenient"]));
        assert!(said.contains("two_logs.csv:4: column "), "{said}");
    }
}

#[test]
fn a_line_of_commas_alone_is_no_empty_one() {
    for (header, commas) in [(HEADER, ",,,,,\n"), (EVENTS, ",,,,,,,,,,,\n"), (HEADER, "\"\",\n")] {
        let log = file("commas.csv", format!("{header}\n{commas}"));
        let said = error(&replay(&log, &["--lenient"]));
        assert!(said.contains("commas.csv:3: column "), "{said}");
    }
}

#[test]
fn what_other_devices_allocate_is_told_with_its_bytes() {
    let line = |device: u8, action: &str, size: u64| {
        format!("{action},{device},0x1000,0,{size},,,,1.0,,,\n")
    };
    let text = [
        EVENTS.to_owned(),
        line(0, "Alloc", 256),
        line(1, "Alloc", 1 << 30),
        line(1, "Free", 1 << 30),
        line(2, "Alloc", 1 << 20),
        line(1, "Alloc failure", 1 << 40),
    ]
    .concat();
    let log = file("other_devices.events.csv", text);
    let (all, said) = served_with(&replay(&log, &["--json"]));
    let bytes = (1 << 30) + (1 << 20);
    assert_eq!(warnings(&all), [("other_devices", &"0".into(), 4, bytes)]);
    let words =
        "warning: device 0: 4 events of other devices left out, with 1.0 GiB (1074790400 B)";
    assert!(said.contains(words), "{said}");
    let (all, _) = served_with(&replay(&log, &["--json", "--log-device", "2"]));
    assert_eq!(warnings(&all), [("other_devices", &"2".into(), 4, (1 << 30) + 256)]);
}

/// NBEP 7's column Current Allocs tells of allocations that no line has.
#[test]
fn a_log_that_began_in_the_middle_is_told_by_its_column() {
    let line = |device: u64, action: &str, address: u64, live: i64| {
        format!("{action},{device},{address:#x},0,4,,,{live},1.0,,,\n")
    };
    let alloc = |address, live| line(0, "Alloc", address, live);
    for (text, before) in [
        // 40 before the first line, one of which is freed.
        ([alloc(0x1000, 41), alloc(0x2000, 42), line(0, "Free", 0x1000, 41)].concat(), 40),
        ([alloc(0x1000, 1), alloc(0x2000, 2)].concat(), 0),
        // Two threads whose lines are out of order.
        ([alloc(0x1000, 2), alloc(0x2000, 1)].concat(), 0),
        // Logs that count all devices in one, and logs that do not.
        ([alloc(0x1000, 1), line(1, "Alloc", 0x1000, 2), alloc(0x2000, 3)].concat(), 0),
        ([alloc(0x1000, 1), line(1, "Alloc", 0x1000, 1), alloc(0x2000, 2)].concat(), 0),
        // The device that is replayed is the second, or the other frees what was live before.
        ([line(1, "Alloc", 0x1000, 1), line(1, "Alloc", 0x2000, 2), alloc(0x3000, 3)].concat(), 0),
        ([line(1, "Free", 0x1000, 0), alloc(0x3000, 1)].concat(), 0),
        // No number, and frees of what went past the log.
        (["Alloc,0,0x1000,0,4,,,many,1.0,,,\n".into(), alloc(0x2000, -3)].concat(), 0),
    ] {
        let log = file("middle.events.csv", format!("{EVENTS}{text}"));
        let (all, said) = served_with(&replay(&log, &["--json", "--log-device", "0"]));
        let told: Vec<u64> = warnings(&all)
            .into_iter()
            .filter(|(part, ..)| *part == "untold_before")
            .map(|(_, _, number, _)| number)
            .collect();
        assert_eq!(told, Vec::from_iter((before > 0).then_some(before)), "{text}");
        let words = "warning: 40 allocations were live before the first line";
        assert_eq!(said.contains(words), before > 0, "{said}");
    }
}

/// `--lenient` goes on, and the report has the bytes that it left out.
#[test]
fn what_lenient_leaves_out_is_told_with_its_bytes() {
    let free = |at: u64| format!("1,00:00:00.1,free,{:#x},1073741824,16\n", (at + 1) << 40);
    let frees: String = (0..40).map(free).collect();
    let text = format!(
        "{HEADER}{ALLOCATE}{FREE}{frees}{}{}{ALLOCATE}{ALLOCATE}{}",
        ALLOCATE.replace("0x1000", "0x0"),
        FREE.replace("0x1000", "0x0"),
        FREE.replace(",100,", ",37,")
    );
    let log = file("lenient_bytes.csv", text);
    error(&replay(&log, &[]));
    let (all, said) = served_with(&replay(&log, &["--lenient", "--json"]));
    let null = Value::Null;
    let expected = [
        ("frees_alone", &null, 40, 40 << 30),
        ("allocated_twice", &null, 1, 100),
        ("freed_other_size", &null, 1, 63),
        ("at_null", &null, 1, 100),
        ("empty", &null, 1, 100),
    ];
    assert_eq!(warnings(&all), expected);
    for words in [
        "warning: 40 frees of 40.0 GiB (42949672960 B) without an allocation left out",
        "warning: 1 allocation of 100 B without a free was freed where the address is allocated again",
        "warning: 1 free has another size than the allocation, which is freed: 63 B of difference",
        "warning: 1 allocation of 100 B at 0x0 left out",
        "warning: 1 event of 100 B left out, for no bytes or at 0x0",
    ] {
        assert!(said.contains(words), "{words} is not in\n{said}");
    }
    let report = String::from_utf8(replay(&log, &["--lenient"]).stdout).unwrap();
    assert!(report.contains("\nwarning             40 frees of 40.0 GiB"), "{report}");
    // What has no bytes is passed over, and in the report alone.
    let text = format!("{HEADER}{ALLOCATE}{}", FREE.replace("0x1000,100", "0x0,0"));
    let output = replay(&file("no_bytes.csv", text), &[]);
    assert_eq!(output.stderr, b"");
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(report.contains("\npassed over         1 event of 0 B left out"), "{report}");
}

#[test]
fn failures_of_a_log_have_their_bytes() {
    let failure = ALLOCATE.replace("allocate,0x1000,100", "allocate failure,0x0,1099511627776");
    let log = file("failed_bytes.csv", format!("{HEADER}{failure}{ALLOCATE}{failure}"));
    let all = served(&replay(&log, &["--json"]));
    let report = &all["report"];
    assert_eq!(
        (&report["failures_of_log"], &report["failed_bytes_of_log"]),
        (&2.into(), &(2_u64 << 40).into())
    );
    let report = String::from_utf8(replay(&log, &[]).stdout).unwrap();
    assert!(
        report.contains("\nfailures of the log 2 of 2.0 TiB (2199023255552 B), not replayed"),
        "{report}"
    );
}
