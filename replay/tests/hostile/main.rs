//! Logs that are wrong, huge or meant to harm: an error that says where, in bounded time and memory.

mod lines;
mod unread;

use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

fn out(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn file(name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = out(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn replay(log: &Path, arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_aquifer-replay");
    Command::new(program).arg(log).args(arguments).output().unwrap()
}

/// The log of these lines, which have no header.
fn lines(name: &str, lines: &str, arguments: &[&str]) -> Output {
    replay(&file(name, format!("{HEADER}{lines}")), arguments)
}

/// What standard error says of a log that ends with an error, and not with a signal or a panic.
#[track_caller]
fn error(output: &Output) -> String {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let last = stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: ") && !stderr.contains("panicked"), "{stderr}");
    stderr
}

#[track_caller]
fn served(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_pickle_runs_nothing() {
    let victim = out("run_by_a_pickle");
    let _ = std::fs::remove_file(&victim);
    let command = format!("touch {}", victim.display());
    let mut pickle = b"\x80\x02cposix\nsystem\n".to_vec();
    pickle.extend([b'X', command.len() as u8, 0, 0, 0]);
    pickle.extend(command.as_bytes());
    pickle.extend(b"\x85R.");
    let said = error(&replay(&file("code.pickle", pickle), &[]));
    assert!(said.contains("found an object, which is not made here"), "{said}");
    assert!(!victim.exists());
}

/// PyTorch's events share the dicts of their frames, and those hold strings that are shared too.
#[test]
fn what_a_snapshot_shares_is_read() {
    // frame = {"name": "step"}; [{.., "frames": [frame]}, {.., "frames": [frame]}]
    let mut pickle = b"\x80\x04}\x94(\x8c\x0ddevice_traces\x94]\x94]\x94(".to_vec();
    for address in [1_u8, 2] {
        pickle.extend(b"}(\x8c\x06action\x8c\x05alloc\x8c\x04addrK");
        pickle.push(address);
        pickle.extend(b"\x8c\x04sizeK\x01\x8c\x06frames](");
        pickle.extend(match address {
            1 => &b"}\x94(\x8c\x04name\x94\x8c\x04step\x94u"[..],
            _ => b"h\x04",
        });
        pickle.extend(b"eu");
    }
    pickle.extend(b"eau.");
    let all = served(&replay(&file("shared.pickle", pickle), &["--json"]));
    assert_eq!(all["report"]["peak_live"], 2);
}

#[test]
fn pickles_that_blow_up() {
    let nested = [&b"\x80\x04"[..], &[b']'; 1_000_000], &[b'a'; 999_999], b"."].concat();
    error(&replay(&file("nested.pickle", nested), &[]));
    let marks = [&b"\x80\x04"[..], &[b'('; 4_000_000], b"."].concat();
    error(&replay(&file("marks.pickle", marks), &[]));
    // Ten times the one before, twenty times.
    let mut laughs = b"\x80\x04]\x94".to_vec();
    for number in 0..20 {
        laughs.extend(b"]\x94(");
        laughs.extend([b'h', number].repeat(10));
        laughs.push(b'e');
    }
    laughs.push(b'.');
    error(&replay(&file("laughs.pickle", laughs), &[]));
    let long = b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.";
    let said = error(&replay(&file("long.pickle", long), &[]));
    assert!(said.contains("byte 11: not a whole pickle: the file ends within it"), "{said}");
}

/// Seventy times its size and what the program itself takes. The worst are tuples of one, each of one byte.
#[cfg(target_os = "linux")]
#[test]
fn a_pickle_takes_seventy_times_its_size_at_most() {
    const COUNT: usize = 4_000_000;
    const ITSELF: usize = 64 << 20;
    for (name, start, code, end) in [
        ("tuples", ")", b"\x85", "."),
        ("lists", "(", b"]", "t."),
        ("dicts", "(", b"}", "t."),
        ("memo", "N", b"\x94", "."),
    ] {
        let pickle = [b"\x80\x04", start.as_bytes(), &code.repeat(COUNT), end.as_bytes()].concat();
        let kibibytes = (70 * pickle.len() + ITSELF) / 1024;
        let log = file(&format!("many_{name}.pickle"), pickle);
        let limited = format!("ulimit -v {kibibytes} && exec \"$0\" \"$@\"");
        let mut program = Command::new("sh");
        program.args(["-c", &limited, env!("CARGO_BIN_EXE_aquifer-replay")]).arg(&log);
        let said = error(&program.output().unwrap());
        assert!(said.contains("expected a dict with `device_traces`"), "{name}: {said}");
        std::fs::remove_file(log).unwrap();
    }
}

#[test]
fn sizes_whose_sum_passes_64_bits() {
    let most = u64::MAX;
    let mut text = String::new();
    for address in 1..=3 {
        writeln!(text, "1,00:00:00.0,allocate,0x{address}000,{most},0").unwrap();
    }
    for address in 1..=3 {
        writeln!(text, "1,00:00:00.0,free,0x{address}000,{most},0").unwrap();
    }
    let output = lines("most.csv", &text, &["--json", "--lenient"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all["report"]["peak_live_of_log"], most);
    assert_eq!(all["report"]["failures"].as_array().unwrap().len(), 3);
    for arguments in [&["--lenient", "--bisect"][..], &["--lenient", "--resource", "arena"]] {
        let said = error(&lines("most.csv", &text, arguments));
        let words = "most.csv:2: 18446744073709551615 bytes were asked, more than any device has";
        assert!(said.contains(words), "{said}");
    }
}

/// 1 TiB is more than a pool's block can be, and less than a device has.
#[test]
fn what_is_beyond_a_pool_is_said_to_be() {
    let of = |bytes: u64| format!("1,00:00:00.0,allocate,0x1000,{bytes},16\n");
    for (bytes, arguments, status, words) in [
        ((1 << 40) - 256, &[][..], 0, ""),
        (
            (1 << 40) - 255,
            &[],
            3,
            "hint: a block of Aquifer's pools has 1099511627520 bytes at most",
        ),
        (
            1 << 40,
            &["--resource", "binning", "--capacity", "2TiB"],
            3,
            "1099511627520 bytes at most",
        ),
        (1 << 40, &["--resource", "cuda"], 0, ""),
        (
            1 << 42,
            &["--resource", "cuda"],
            3,
            "hint: each block of a simulated device has less than 4",
        ),
        (1 << 42, &[], 3, "hint: each block of a simulated device has less than 4 TiB"),
        (1 << 39, &["--capacity", "1GiB"], 3, "hint: --bisect finds how much suffices"),
        (
            1 << 40,
            &["--bisect"],
            1,
            ":2: 1099511627776 bytes were asked, and the largest block of `pool`",
        ),
        (1 << 40, &["--resource", "arena"], 1, "the largest block of `arena` has 1099511627520"),
    ] {
        let output = lines("beyond.csv", &of(bytes), arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{bytes} {arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{bytes} {arguments:?}: {stderr}");
    }
    // Many blocks, and no room for the last.
    let text: String = (1..=17)
        .map(|at| of((1 << 42) - (1 << 20)).replace("1000", &format!("{at:x}0000000000000")))
        .collect();
    let output = lines("many_beyond.csv", &text, &["--resource", "managed"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("hint: without --capacity a simulated device has 64"), "{stderr}");
}

#[test]
fn more_threads_than_a_process_has() {
    let mut text = String::new();
    for action in ["allocate", "free"] {
        for thread in 0..3_000 {
            let address = (thread + 1) << 12;
            writeln!(text, "{thread},00:00:00.0,{action},{address:#x},256,{}", thread % 3).unwrap();
        }
    }
    let all = served(&lines("threads.csv", &text, &["--json"]));
    assert_eq!(all["report"]["threads"], 3_000);
    assert_eq!(all["report"]["served"], 3_000);
}

/// It is refused before the replay, which would take minutes.
#[test]
fn more_streams_than_a_pool_tells_apart() {
    let mut text = String::new();
    for stream in 16..16 + 66_000_u64 {
        writeln!(text, "1,00:00:00.0,allocate,{:#x},256,{stream}", stream << 12).unwrap();
    }
    for arguments in [&[][..], &["--bisect"], &["--resource", "binning"], &["--resource", "arena"]]
    {
        let said = error(&lines("streams.csv", &text, arguments));
        let words = "streams.csv:65536: the log's 65535th stream, and `";
        assert!(
            said.contains(words) && said.contains("tells 65534 apart; --resource cuda"),
            "{said}"
        );
    }
}

/// Aquifer's own log of a program whose allocation failed.
#[test]
fn events_with_a_failure() {
    let text = "Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory,\
                Current Allocs,Start,End,Elapsed,Location\n\
                Alloc,0,0x1000,0,4096,1,1,1,1.0,1.1,0.1,a.rs:1\n\
                Alloc failure,0,0x0,0,99999999999,1,1,1,1.0,1.1,0.1,a.rs:2\n\
                Free,0,0x1000,0,4096,1,1,1,1.2,1.3,0.1,\"f(\"\"a\"\", b)\"\n";
    let all = served(&replay(&file("failure.events.csv", text), &["--json"]));
    assert_eq!(
        (&all["report"]["failures_of_log"], &all["report"]["served"]),
        (&1.into(), &1.into())
    );
}

#[test]
fn lines_that_are_wrong_are_named() {
    for (name, text, words) in [
        ("negative", "1,00:00:00.0,allocate,0x1000,-5,0\n", ":2: column Size: "),
        ("beyond", "1,00:00:00.0,allocate,0x1000,18446744073709551616,0\n", ":2: column Size: "),
        ("short", "1,00:00:00.0,allocate,0x1000,5\n", "found the end of the line"),
        ("unclosed", "\"1,00:00:00.0,free,0x1000,5,0\n1,00:00:00.0,free,0x1000,5,0\n", ":2: "),
    ] {
        let said = error(&lines(&format!("{name}.csv"), text, &[]));
        assert!(said.contains(words), "{name}: {said}");
    }
    let text = [HEADER.as_bytes(), b"\xff,00:00:00.0,free,0x1000,5,0\n"].concat();
    let said = error(&replay(&file("latin.csv", text), &[]));
    assert_eq!(said.matches("invalid utf-8").count(), 1, "{said}");
    let windows = format!("{HEADER}1,00:00:00.0,allocate,0x1000,5,0\n\n\"1\",a,b,c,d,\"e\"\n")
        .replace('\n', "\r\n");
    let said = error(&replay(&file("windows.csv", windows), &[]));
    assert!(said.contains("windows.csv:4: column Time"), "{said}");
    let said = error(&replay(&out("there_is_none.csv"), &[]));
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
}

#[test]
fn files_that_are_no_logs_say_what_to_do() {
    for (name, content, words) in [
        ("empty", &b""[..], "is empty"),
        ("gzip", b"\x1f\x8b\x08\x00", "gunzip"),
        ("utf16", b"\xff\xfeT\x00h\x00", "iconv"),
        ("binary", b"\x7fELF\x00\x00", "no format is known"),
        ("blank", b"\n \r\n\n", "begins with nothing but blank lines"),
    ] {
        let said = error(&replay(&file(name, content), &[]));
        assert!(said.contains(words), "{name}: {said}");
    }
    error(&replay(Path::new(env!("CARGO_TARGET_TMPDIR")), &[]));
}

const EVENTS: &str = "Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory,\
                      Current Allocs,Start,End,Elapsed,Location\n";

#[test]
fn an_empty_log_is_said_to_be_empty() {
    // {"device_traces": [[]]}
    let pickle = b"\x80\x04}\x94(\x8c\x0ddevice_traces\x94]\x94]\x94au.";
    for (log, words) in [
        (file("header.csv", HEADER), "a header and no events"),
        (file("header.events.csv", EVENTS), "a header and no events"),
        (
            file("failed.csv", format!("{HEADER}1,00:00:00.0,allocate failure,0x0,5,0\n")),
            "nothing to replay but 1 allocation that failed when it was written",
        ),
        (
            file("zeros.csv", format!("{HEADER}1,00:00:00.0,allocate,0x0,0,0\n")),
            "nothing to replay but 1 event of no bytes",
        ),
        (
            file(
                "others.events.csv",
                format!(
                    "{EVENTS}Alloc failure,0,0x0,0,4,,,,1.0,,,\nAlloc,1,0x1000,0,4,,,,1.0,,,\n"
                ),
            ),
            "nothing to replay but 1 allocation that failed when it was written, 1 event of other \
             devices",
        ),
        (file("header.pickle", pickle), "was torch.cuda.memory._record_memory_history() called?"),
    ] {
        let output = replay(&log, &[]);
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{stdout}");
        assert!(stdout.contains(": is empty: ") && stdout.contains(words), "{stdout}");
        assert_eq!(stdout.lines().count(), 1, "{stdout}");
        let all = served(&replay(&log, &["--json"]));
        assert_eq!((&all["report"]["operations"], &all["empty"]), (&0.into(), &true.into()));
    }
    let (svg, json) = (out("nothing.svg"), out("nothing.json"));
    // Of an earlier run.
    let _ = (std::fs::remove_file(&svg), std::fs::remove_file(&json));
    let (svg, json) = (svg.to_str().unwrap(), json.to_str().unwrap());
    for arguments in [
        &["--picture", svg][..],
        &["--trace", json],
        &["--bisect"],
        &["--capacity", "1GiB"],
        &["--resource", "pool"],
        &["--backend", "sim"],
    ] {
        let said = error(&lines("header.csv", "", arguments));
        let words = format!("header.csv: is empty, so {} does nothing", arguments[0]);
        assert!(said.contains(&words), "{said}");
    }
    let said = error(&replay(&file("header.events.csv", EVENTS), &["--log-device", "0"]));
    assert!(said.contains("is empty, so --log-device does nothing"), "{said}");
    assert!(!Path::new(svg).exists() && !Path::new(json).exists());
    let all = served(&lines("one.csv", "1,00:00:00.0,allocate,0x1000,5,0\n", &["--json"]));
    assert_eq!(all["empty"], false);
}

#[test]
fn a_last_line_that_is_cut_is_borne_if_asked() {
    let whole = "1,00:00:00.0,allocate,0x1000,5,0\r\n";
    let events = "Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory,\
                  Current Allocs,Start,End,Elapsed,Location\nAlloc,0,0x1000,0,4096,,,,1.0,,,\nAl";
    let logs = [
        file("cut.csv", format!("{HEADER}{whole}1,00:00:00.0,fre")),
        file("cut_short.csv", format!("{HEADER}{whole}1,00:00:00.0,free,0x1000,5")),
        file("cut.events.csv", events),
    ];
    for log in logs {
        let said = error(&replay(&log, &[]));
        assert!(said.contains("the last line is cut off") && said.contains("--lenient"), "{said}");
        let output = replay(&log, &["--lenient", "--json"]);
        let all = served(&output);
        assert_eq!((&all["report"]["served"], &all["report"]["problems"]), (&1.into(), &1.into()));
    }
    // A last line that is whole needs no end, and one in the middle is an error as ever.
    let text = whole.trim_end();
    served(&lines("no_end.csv", text, &["--json"]));
    let said = error(&lines("middle.csv", &format!("1,00:00:00.0,fre\n{whole}"), &["--lenient"]));
    assert!(said.contains(":2: column Action"), "{said}");
}

/// XML has no control characters, and markup is text.
#[test]
fn names_with_control_characters() {
    let svg = out("control.svg");
    let text = "1,00:00:00.0,allocate,0x1000,5,\"a\u{1}<&\"\"\u{ffff}\"\n";
    let output = lines("control.csv", text, &["--picture", svg.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = std::fs::read_to_string(svg).unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    let words = "stream a\u{fffd}<&\"\u{fffd}";
    assert!(document.descendants().any(|node| node.text().map(str::trim) == Some(words)), "{text}");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn outputs_are_written_whole_or_not_at_all() {
    let folder = out("outputs");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    let log = folder.join("log.csv");
    let content = format!("{HEADER}1,00:00:00.0,allocate,0x1000,5,0\n");
    std::fs::write(&log, &content).unwrap();
    for option in ["--trace", "--picture"] {
        for path in [folder.join("none/out"), folder.clone(), log.clone()] {
            let output = replay(&log, &[option, path.to_str().unwrap()]);
            let said = error(&output);
            assert!(said.contains(path.to_str().unwrap()) && output.stdout.is_empty(), "{said}");
            assert_eq!(names(&folder), ["log.csv"]);
        }
    }
    assert_eq!(std::fs::read_to_string(&log).unwrap(), content);
    // The old one stays when the log is refused.
    let old = folder.join("old.svg");
    std::fs::write(&old, "old").unwrap();
    std::fs::write(&log, format!("{content}1,00:00:00.0,free,0x9000,5,0\n")).unwrap();
    error(&replay(&log, &["--picture", old.to_str().unwrap()]));
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "old");
    let output = replay(&log, &["--lenient", "--picture", old.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    assert!(std::fs::read_to_string(&old).unwrap().contains("<svg"));
    assert_eq!(names(&folder), ["log.csv", "old.svg"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let text = "1,00:00:00.0,allocate,0x1000,5,0\n";
    for option in ["--trace", "--picture"] {
        let said = error(&lines("full.csv", text, &[option, "/dev/full"]));
        assert!(said.contains("/dev/full: cannot be written"), "{said}");
    }
    assert_eq!(lines("full.csv", text, &["--trace", "/dev/null"]).status.code(), Some(0));
}

/// Threads write their lines late; a trace goes forwards all the same, and has what Perfetto wants.
#[test]
fn a_trace_of_times_out_of_order_goes_forwards() {
    let path = out("late.json");
    let text = "1,12:00:02.0,allocate,0x1000,5,0\n2,12:00:01.0,free,0x1000,5,0\n\
                1,12:00:03.0,allocate,0x1000,5,16\n";
    let output = lines("late.csv", text, &["--trace", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let trace: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let mut begun = std::collections::HashMap::new();
    for event in events {
        assert!(event["pid"].is_u64() && event["name"].is_string(), "{event}");
        let time = event["ts"].as_f64();
        match event["ph"].as_str().unwrap() {
            "M" => assert!(event["args"]["name"].is_string()),
            "C" => assert!(time.unwrap() >= 0.0 && event["args"]["bytes"].is_u64(), "{event}"),
            "b" => {
                assert!(event["tid"].is_u64() && event["cat"].is_string(), "{event}");
                assert!(begun.insert(event["id"].as_u64().unwrap(), time.unwrap()).is_none());
            }
            "e" => assert!(begun.remove(&event["id"].as_u64().unwrap()) <= time, "{event}"),
            phase => panic!("{phase}: {event}"),
        }
    }
    assert!(begun.is_empty(), "{begun:?}");
}

const ALLOCATE: &str = "1,00:00:00.1,allocate,0x1000,100,16\n";
const FREE: &str = "1,00:00:00.2,free,0x1000,100,16\n";

#[test]
fn sizes_and_places_that_disagree() {
    let free = FREE.replace(",100,", ",64,");
    let inside = ALLOCATE.replace("0x1000", "0x1010");
    let around = ALLOCATE.replace("0x1000", "0xff0");
    let past = ALLOCATE.replace("0x1000", "0xffffffffffffff9d");
    let last = ALLOCATE.replace("0x1000", "0xffffffffffffff9c");
    let beside = ALLOCATE.replace("0x1000", "0x1064") + &ALLOCATE.replace("0x1000", "0xf9c");
    for (name, text, words) in [
        (
            "other_size",
            free,
            ":3: 0x1000 is freed with 64 bytes, and was allocated with 100 bytes in line 2",
        ),
        (
            "inside",
            inside,
            ":3: 100 bytes at 0x1010 are allocated, and line 2 has 100 bytes at 0x1000",
        ),
        (
            "around",
            around,
            ":3: 100 bytes at 0xff0 are allocated, and line 2 has 100 bytes at 0x1000",
        ),
        (
            "past",
            past,
            ":3: 100 bytes at 0xffffffffffffff9d are allocated, and go past the last address of 64 bits",
        ),
    ] {
        let name = format!("{name}.csv");
        let said = error(&lines(&name, &format!("{ALLOCATE}{text}"), &[]));
        assert!(said.contains(words) && said.contains("--lenient goes on"), "{said}");
        let all = served(&lines(&name, &format!("{ALLOCATE}{text}"), &["--lenient", "--json"]));
        assert_eq!(all["report"]["problems"], 1, "{all}");
        // Both are live, or none is.
        let (live, leaks) = if name == "other_size.csv" { (100, 0) } else { (200, 2) };
        assert_eq!(
            (&all["report"]["peak_live"], &all["report"]["leaks"]),
            (&live.into(), &leaks.into())
        );
    }
    served(&lines("beside.csv", &format!("{ALLOCATE}{beside}{FREE}"), &["--json"]));
    served(&lines("last.csv", &last, &["--json"]));
}

#[test]
fn cells_and_columns_that_are_too_many() {
    let said = error(&lines("more.csv", &ALLOCATE.replace("16\n", "16,7,8\n"), &["--lenient"]));
    assert!(said.contains("more.csv:2: 8 cells, and the header has 6"), "{said}");
    let text = "Thread,Time,Action,Pointer,Size,size,Stream\n1,00:00:00.1,allocate,0x1,5,6,16\n";
    let said = error(&replay(&file("two_sizes.csv", text), &[]));
    assert!(said.contains("two_sizes.csv:1: two columns Size: which one is it?"), "{said}");
    // A column that is not asked for may be there, and twice; so may a location with commas.
    let text = format!("More,{},More\n7,{},8\n", HEADER.trim_end(), ALLOCATE.trim_end());
    served(&replay(&file("more_columns.csv", text), &["--json"]));
    let text = format!("{EVENTS}Alloc,0,0x1000,0,4,,,,1.0,,,f(a, b)\n");
    served(&replay(&file("commas.events.csv", text), &["--json"]));
}

#[test]
fn a_last_line_without_an_end_is_told() {
    let events = format!("{EVENTS}Alloc,0,0x1000,0,4,,,,1.0,,,a.rs:1");
    for (log, line) in [
        (file("unended.csv", format!("{HEADER}{ALLOCATE}{}", FREE.trim_end())), 3),
        (file("unended.events.csv", events), 2),
    ] {
        let output = replay(&log, &["--json"]);
        let said = String::from_utf8(output.stderr.clone()).unwrap();
        let words = format!(":{line}: warning: the last line has no end");
        assert!(said.contains(&words), "{said}");
        assert_eq!(served(&output)["report"]["problems"], 0);
    }
    let output = lines("ended.csv", &format!("{ALLOCATE}{FREE}"), &["--json"]);
    assert_eq!((served(&output)["report"]["served"].as_u64(), output.stderr.len()), (Some(1), 0));
}

/// Of a message that repeats its log, the whole of it could be in it.
#[test]
fn messages_are_short_and_have_no_control_characters() {
    let long = "9".repeat(1_000_000);
    let unclosed =
        format!("{HEADER}{}{}", ALLOCATE.replace("alloc", "\"alloc"), ALLOCATE.repeat(50_000));
    let escape = format!("\u{1b}[31m{long}\u{1b}");
    let mut action = b"\x80\x04}\x8c\x0ddevice_traces]]}\x8c\x06actionX".to_vec();
    action.extend(1_000_000_u32.to_le_bytes());
    action.extend(long.as_bytes());
    action.extend(b"saas.");
    let rmm = &["--format", "rmm"][..];
    for (log, arguments, words) in [
        (file("unclosed.csv", unclosed), &[][..], "unclosed.csv:2: column Action: expected "),
        (
            file("pointer.csv", format!("{HEADER}{}", ALLOCATE.replace("0x1000", &long))),
            &[],
            "99…\"",
        ),
        (file("header_long.csv", escape.clone()), &[], "starts with \"\\u{1b}[31m999"),
        (file("header_rmm.csv", escape), rmm, "no column Thread: expected the header"),
        (
            file("macs.csv", format!("{HEADER}{ALLOCATE}{FREE}").replace('\n', "\r")),
            &[],
            "its lines end in CR alone: make them LF first, with tr",
        ),
    ] {
        is_short(&error(&replay(&log, arguments)), words);
    }
    // An action that is not known is no error.
    let output = replay(&file("action.pickle", action), &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let warned = String::from_utf8(output.stderr).unwrap();
    for (line, words) in warned.lines().zip(["has no `segments`", "99…\" left out"]) {
        is_short(line, words);
    }
    assert_eq!(warned.lines().count(), 2, "{warned}");
}

#[track_caller]
fn is_short(said: &str, words: &str) {
    assert!(said.contains(words), "{said}");
    assert!(said.chars().count() < 800, "{} characters", said.len());
    assert!(!said.trim_end_matches('\n').contains(|c: char| c.is_control()), "{said:?}");
}

#[test]
fn columns_have_any_order() {
    let text = "Size,Action,Pointer,Stream,Thread,Time\n100,allocate,0x1000,16,1,00:00:00.1\n\
                100,free,0x1000,16,1,00:00:00.2\n";
    let all = served(&replay(&file("order.csv", text), &["--json"]));
    assert_eq!((&all["report"]["served"], &all["report"]["leaks"]), (&1.into(), &0.into()));
    let names: Vec<&str> = EVENTS.trim_end().rsplit(',').collect();
    let text = format!("{}\n,,,1.0,,,,4,0,0x1000,0,Alloc\n", names.join(","));
    let all = served(&replay(&file("order.events.csv", text), &["--json"]));
    assert_eq!(all["report"]["peak_live"], 4);
}

#[test]
fn a_free_need_not_say_how_much() {
    let allocate = "Alloc,0,0x1000,16,100,1,2,1,0.1,0.2,0.1,f.py:1\n";
    let free = "Free,0,0x1000,16,,1,2,0,0.3,0.4,0.1,\n";
    let log = file("free.events.csv", format!("{EVENTS}{allocate}{free}"));
    let all = served(&replay(&log, &["--json"]));
    let report = &all["report"];
    assert_eq!((&report["operations"], &report["leaks"]), (&2.into(), &0.into()));
    // But what, it has to; and an allocation has to say both.
    let said = error(&replay(&file("free.events.csv", format!("{EVENTS}{free}")), &[]));
    assert!(
        said.contains("free.events.csv:2: 0x1000 is freed while it is not allocated"),
        "{said}"
    );
    let text = allocate.replace(",100,", ",,");
    let said = error(&replay(&file("free.events.csv", format!("{EVENTS}{text}")), &[]));
    assert!(said.contains("free.events.csv:2: column Size (bytes): expected a size"), "{said}");
}

/// The log on standard input, from a pipe.
fn piped(content: &[u8], arguments: &[&str]) -> Output {
    use std::io::Write;
    let mut program = Command::new(env!("CARGO_BIN_EXE_aquifer-replay"));
    let pipe = std::process::Stdio::piped;
    program.arg("-").args(arguments).stdin(pipe()).stdout(pipe()).stderr(pipe());
    let mut running = program.spawn().unwrap();
    let mut stdin = running.stdin.take().unwrap();
    let (start, rest) = content.split_at(content.len().min(10));
    // In pieces, of which the first is no whole header.
    stdin.write_all(start).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    let _ = stdin.write_all(rest);
    drop(stdin);
    running.wait_with_output().unwrap()
}

#[test]
fn a_log_may_come_by_standard_input() {
    let all = served(&piped(format!("{HEADER}{ALLOCATE}{FREE}").as_bytes(), &["--json"]));
    assert_eq!(
        (&all["report"]["served"], &all["report"]["log"]),
        (&1.into(), &"standard input".into())
    );
    let said = error(&piped(format!("{HEADER}{FREE}").as_bytes(), &[]));
    assert!(
        said.starts_with("standard input:2: 0x1000 is freed while it is not allocated"),
        "{said}"
    );
    let said = error(&piped(format!("{HEADER}{ALLOCATE}1,00:0").as_bytes(), &[]));
    assert!(said.contains("standard input:3: the last line is cut off"), "{said}");
    let pickle =
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs/snapshot.pickle"));
    let all = served(&piped(&pickle.unwrap(), &["--json"]));
    assert_eq!(all["report"]["line_word"], "record");
    let said = error(&piped(b"", &[]));
    assert!(said.contains("standard input: the file is empty"), "{said}");
}
