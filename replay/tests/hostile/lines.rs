//! What a line, a header or a value is said to be, and where.

use super::{ALLOCATE, EVENTS, FREE, HEADER, error, file, lines, out, replay, served};
use std::path::Path;

/// In whatever names a line: behind empty lines it is the line's own number.
#[test]
fn lines_behind_empty_ones_are_named_rightly() {
    let trace = out("empty_lines.json");
    let arguments = ["--trace", trace.to_str().unwrap(), "--resource", "cuda"];
    for end in ["\n", "\r\n"] {
        let of = |text: &str| text.replace('\n', end);
        let text = of(&format!("{HEADER}{ALLOCATE}\n\n{}", FREE.replace(",100,", ",2,")));
        let said = error(&replay(&file("empty_lines.csv", text), &[]));
        assert!(said.contains("empty_lines.csv:5: 0x1000 is freed with 2 bytes"), "{said}");
        let text = of(&format!("{HEADER}\n\n{ALLOCATE}\n{ALLOCATE}"));
        let said = error(&replay(&file("empty_lines.csv", text), &[]));
        assert!(
            said.contains(":6: 0x1000 is allocated again, without a free since line 4"),
            "{said}"
        );
        let text = of(&format!("{HEADER}{ALLOCATE}\n\n1,00:00:00.2,fry,0x1000,100,16\n"));
        let said = error(&replay(&file("empty_lines.csv", text), &[]));
        assert!(said.contains("empty_lines.csv:5: column Action"), "{said}");
        let text = of(&format!("{EVENTS}\n\nAlloc,0,0x1000,0,many,,,,1.0,,,\n"));
        let said = error(&replay(&file("empty_lines.csv", text), &[]));
        assert!(said.contains("empty_lines.csv:4: column Size (bytes)"), "{said}");
        let text = of(&format!("\n\n{}", HEADER.replace("Size", "Bytes")));
        for format in ["rmm", "auto"] {
            let log = file("empty_lines.csv", &text);
            let said = error(&replay(&log, &["--format", format]));
            assert!(said.contains("empty_lines.csv:3: no column Size"), "{said}");
        }
        let latin = [of(&format!("{HEADER}\n\n")).as_bytes(), b"\xff\n"].concat();
        let said = error(&replay(&file("empty_lines.csv", latin), &[]));
        assert!(
            said.contains("empty_lines.csv:4: not a line of a CSV") && !said.contains("line 2"),
            "{said}"
        );
        // A refusal in the report, and an allocation in the trace.
        let text = of(&format!(
            "{HEADER}\n{ALLOCATE}\n\n{}",
            ALLOCATE.replace("0x1000,100", "0x2000,9999999999999")
        ));
        let output = replay(&file("empty_lines.csv", text), &arguments);
        let report = String::from_utf8(output.stdout).unwrap();
        assert!(report.contains("\n  line 6: "), "{report}");
        let trace = std::fs::read_to_string(&trace).unwrap();
        assert!(trace.contains("\"line\":3}") && trace.contains("\"line\":6}"), "{trace}");
    }
}

/// What has a comma behind it was not cut off: only the last cell can be, or cells that lack.
#[test]
fn a_last_line_that_is_wrong_is_told_from_one_that_is_cut() {
    const T: &str = "00:00:00.000001";
    for (line, words) in [
        (String::from("1,xx,allocate,0x2000,256,0"), "column Time: expected a time"),
        (
            format!("1,{T},allocate,0x1000,1GB,0"),
            "column Size: expected a size in bytes, found \"1GB\"",
        ),
        (format!("1,{T},fry,0x1000"), "column Action: expected"),
        (format!("1,{T},allocate,0x1000,256,0,7"), "7 cells, and the header has 6"),
    ] {
        for arguments in [&[][..], &["--lenient"]] {
            let said = error(&lines("wrong_last.csv", &format!("{ALLOCATE}{line}"), arguments));
            assert!(said.contains(&format!("wrong_last.csv:3: {words}")), "{line}: {said}");
        }
    }
    let events = |line: &str| file("cut_last.events.csv", format!("{EVENTS}{line}"));
    for log in [
        file("cut_last.csv", format!("{HEADER}1,{T},allocate,0x1000,256,")),
        file("cut_last.csv", format!("{HEADER}1,{T},allocate,0x1000,25")),
        file("cut_last.csv", format!("Stream,{},More\n0,1,{T},allocate,0x1000,256", &HEADER[..32])),
        events("Alloc,0,0x200000,0,10"),
        events("Alloc,0,0x200000,0,4096,1,1,1,1.0,1.1,0.1"),
        events("Alloc,1"),
    ] {
        let said = error(&replay(&log, &[]));
        assert!(said.contains(":2: the last line is cut off"), "{said}");
        let all = served(&replay(&log, &["--lenient", "--json"]));
        let report = &all["report"];
        assert_eq!((&report["operations"], &report["problems"]), (&0.into(), &1.into()));
        // A stream that the line alone has is none of the log's.
        assert_eq!(report["streams"], 0);
    }
    // Also where the line would be another device's.
    let log = events("Alloc,0,0x1000,0,4,,,,1.0,,,a.rs:1\nAlloc,1,0x2000,0,4");
    let said = error(&replay(&log, &[]));
    assert!(said.contains(":3: the last line is cut off"), "{said}");
}

#[test]
fn nothing_is_allocated_at_null() {
    // {"device_traces": [[{"action": "alloc", "addr": 0, "size": 255}]]}
    let mut pickle = b"\x80\x04}\x8c\x0ddevice_traces]]}(".to_vec();
    pickle.extend(b"\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x00\x8c\x04sizeK\xffuaas.");
    let both = format!("{ALLOCATE}{FREE}");
    let both = both.replace("0x1000", "0x0").replace(",100,", ",255,");
    for (log, place) in [
        (file("null.csv", format!("{HEADER}{both}")), "null.csv:2"),
        (file("null.csv", format!("{HEADER}{}", both.replace("0x0", "(nil)"))), "null.csv:2"),
        (
            file("null.events.csv", format!("{EVENTS}Alloc,0,0,0,255,,,,1.0,,,\n")),
            "null.events.csv:2",
        ),
        (file("null.pickle", pickle), "null.pickle: record 1"),
    ] {
        let said = error(&replay(&log, &[]));
        let words = format!("{place}: 255 bytes are allocated at 0x0, where there is no memory");
        assert!(said.contains(&words), "{said}");
        let all = served(&replay(&log, &["--lenient", "--json"]));
        let report = &all["report"];
        assert_eq!((&report["operations"], &report["leaks"]), (&0.into(), &0.into()));
        assert_eq!(report["problems"], 1);
    }
    // No bytes have no address.
    served(&lines("null.csv", &both.replace(",255,", ",0,"), &["--json"]));
}

/// A format that was asked, and is not the file's.
#[test]
fn formats_that_are_not_the_files() {
    let pickle = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs/snapshot.pickle");
    for format in ["rmm", "events"] {
        let said = error(&replay(&pickle, &["--format", format]));
        let words = format!(
            "the file is a pickle, as PyTorch's snapshots are, and --format {format} reads a CSV"
        );
        assert!(said.contains(&words) && said.contains("leave --format out"), "{said}");
    }
    for (name, text) in [("text.csv", HEADER), ("text.events.csv", EVENTS), ("text", "\nHello\n")] {
        let said = error(&replay(&file(name, text), &["--format", "torch"]));
        let start = text.trim();
        let words = format!("not a pickle: it begins with {:?}", &start[..start.len().min(80)]);
        assert!(said.contains(words.trim_end_matches('"')), "{said}");
        assert!(said.contains("; leave --format torch out"), "{said}");
    }
    // One that is cut off is a pickle.
    let bytes = std::fs::read(&pickle).unwrap();
    let said =
        error(&replay(&file("half.pickle", &bytes[..bytes.len() / 2]), &["--format", "torch"]));
    assert!(said.contains("not a whole pickle: the file ends within it"), "{said}");
}

#[test]
fn headers_that_lack_a_column_or_come_late() {
    for (header, column) in [
        ("Size,Pointer,Stream,Action", "Thread"),
        ("Time,Action,Pointer,Size,Stream", "Thread"),
        (&EVENTS.trim_end().replace("Event Type,", ""), "Event Type"),
        (&EVENTS.trim_end().replace("Stream,", ""), "Stream"),
    ] {
        let said = error(&replay(&file("lacks.csv", format!("{header}\n")), &[]));
        assert!(
            said.contains(&format!("lacks.csv:1: no column {column}: expected the header")),
            "{said}"
        );
    }
    let said = error(&replay(&file("lacks.csv", "Size,Pointer,Name\n"), &[]));
    assert!(said.contains("no format is known that starts with \"Size,Pointer,Name\""), "{said}");
    for start in ["\n", "\r\n\r\n", "  \n\t\n", "\u{feff}", "\u{feff}\n"] {
        for text in
            [format!("{HEADER}{ALLOCATE}"), format!("{EVENTS}Alloc,0,0x1000,0,100,,,,,,,\n")]
        {
            let all =
                served(&replay(&file("late.header.csv", format!("{start}{text}")), &["--json"]));
            assert_eq!(all["report"]["peak_live"], 100, "{start:?}");
        }
    }
}

#[test]
fn numbers_with_signs_are_refused() {
    for (from, to, words) in [
        (
            "0x1000",
            "0x+1000",
            "column Pointer: expected an address, in decimal or as 0x.., or (nil), found \"0x+1000\"",
        ),
        ("0x1000", "+4096", "column Pointer"),
        (",100,", ",+100,", "column Size: expected a size in bytes, found \"+100\""),
        ("00:00:00.1", "+00:00:00.1", "column Time"),
        ("00:00:00.1", "00:00:+00.1", "column Time"),
    ] {
        let said = error(&lines("signs.csv", &ALLOCATE.replace(from, to), &[]));
        assert!(said.contains(words), "{to}: {said}");
    }
    let said =
        error(&replay(&file("signs.events.csv", format!("{EVENTS}Alloc,+0,1,0,4,,,,,,,\n")), &[]));
    assert!(said.contains("column Device ID: expected a device's number"), "{said}");
    served(&lines("signs.csv", &ALLOCATE.replace("0x1000", "4096"), &["--json"]));
}

#[test]
fn what_a_snapshot_has_instead_is_named() {
    for (pickle, words) in [
        (
            &b"\x80\x04K\x05."[..],
            "the snapshot: expected a dict with `device_traces`, found an int",
        ),
        (
            b"\x80\x04}\x8c\x0ddevice_traces]]K\x05aas.",
            "record 1 (device_traces[0][0]): expected a dict, found an int",
        ),
        (b"\x80\x04}\x8c\x0ddevice_traces]]K\x05\x85aas.", "expected a dict, found a tuple"),
        (b"\x80\x04}\x8c\x0ddevice_traces]])aas.", "expected a dict, found a tuple"),
        (b"\x80\x04}\x8c\x0ddevice_traces]]]aas.", "expected a dict, found a list"),
        (
            b"\x80\x04}\x8c\x0ddevice_traces]]}\x8c\x06actionK\x05saas.",
            "['action']): expected a string, found an int",
        ),
    ] {
        let said = error(&replay(&file("instead.pickle", pickle), &[]));
        assert!(said.contains(words), "{said}");
    }
    // A tuple of traces is as good as a list.
    let tuple = b"\x80\x04}\x8c\x0ddevice_traces)\x85s.";
    assert_eq!(served(&replay(&file("tuple.pickle", tuple), &["--json"]))["empty"], true);
}
