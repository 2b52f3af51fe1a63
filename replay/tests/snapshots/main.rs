//! Snapshots of PyTorch whose history does not have all: what was live before it is replayed first, and
//! what is left out is told with its bytes.

mod pickle;

use pickle::pickle;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const GIB: u64 = 1 << 30;

fn file(name: &str, snapshot: &Value) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, pickle(snapshot)).unwrap();
    path
}

fn replay(name: &str, snapshot: &Value, arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_aquifer-replay");
    Command::new(program).arg(file(name, snapshot)).args(arguments).output().unwrap()
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// The JSON of a snapshot that is served as a whole, and standard error.
#[track_caller]
fn served(name: &str, snapshot: &Value, arguments: &[&str]) -> (Value, String) {
    let output = replay(name, snapshot, &[arguments, &["--json"]].concat());
    let (stdout, stderr) = said(&output);
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    (serde_json::from_str(&stdout).unwrap(), stderr)
}

/// A record of a history.
fn record(action: &str, address: u64, size: u64) -> Value {
    json!({"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1_000_000, "frames": []})
}

/// A segment of one block, of which all is asked.
fn segment(device: u64, address: u64, size: u64, state: &str) -> Value {
    let active = if state == "inactive" { 0 } else { size };
    json!({
        "device": device, "address": address, "total_size": size, "allocated_size": active,
        "active_size": active, "requested_size": active, "stream": 0, "segment_type": "large",
        "segment_pool_id": ["tuple", 0, 0], "is_expandable": false, "frames": [],
        "blocks": [{
            "address": address, "size": size, "requested_size": size, "state": state, "frames": [],
        }],
    })
}

/// 40 blocks of 1 GiB that no record has, and a history whose own peak is 2 GiB.
fn forty_before(settings: Value) -> Value {
    let before = (1..=40).map(|at| segment(0, at * 2 * GIB, GIB, "active_allocated"));
    let own = [100, 102].map(|at| segment(0, at * GIB, GIB, "inactive"));
    let trace: Vec<Value> = [100, 102]
        .iter()
        .map(|at| record("alloc", at * GIB, GIB))
        .chain([100, 102].iter().map(|at| record("free_completed", at * GIB, GIB)))
        .collect();
    json!({
        "segments": before.chain(own).collect::<Vec<_>>(), "device_traces": [trace],
        "allocator_settings": settings,
    })
}

#[test]
fn what_was_live_before_the_history_is_replayed_first() {
    let snapshot = forty_before(json!({"expandable_segments": false}));
    let (all, stderr) = served("before.pickle", &snapshot, &["--resource", "cuda"]);
    assert_eq!(all["report"]["peak_live"], 42 * GIB);
    assert_eq!((&all["report"]["operations"], &all["report"]["leaks"]), (&44.into(), &40.into()));
    let words =
        "warning: 40 allocations of 40.0 GiB (42949672960 B) were live before the first record";
    assert!(stderr.contains(words), "{stderr}");
    let (all, _) = served("before.pickle", &snapshot, &["--bisect", "--resource", "cuda"]);
    assert_eq!(all["bisection"]["capacity"], 42 * GIB);
}

/// The warnings of a report: the part, the name, the number and the bytes of each. Notes are none.
fn warnings(all: &Value) -> Vec<(&str, &Value, u64, u64)> {
    let warnings = all["report"]["warnings"].as_array().unwrap();
    let part = |warning: &'_ Value| warning["part"].as_str().unwrap().to_owned();
    let number = |value: &Value| value.as_u64().unwrap();
    warnings
        .iter()
        .filter(|warning| part(warning) != "passed_over")
        .map(|warning| {
            let name = warning["part"].as_str().unwrap();
            (name, &warning["name"], number(&warning["number"]), number(&warning["bytes"]))
        })
        .collect()
}

const NONE: Value = Value::Null;

/// A snapshot of one device.
fn snapshot(segments: Vec<Value>, trace: Vec<Value>) -> Value {
    json!({"segments": segments, "device_traces": [trace], "allocator_settings": {}})
}

#[test]
fn a_history_that_overflowed_is_told() {
    for (settings, kept) in [
        (json!({"trace_alloc_overflowed": true, "trace_alloc_max_entries": 4}), 4),
        (json!({"trace_alloc_overflowed": true}), 0),
        (json!({"trace_alloc_overflowed": 1}), 0),
    ] {
        let snapshot = forty_before(settings);
        let (all, stderr) = served("overflowed.pickle", &snapshot, &["--resource", "cuda"]);
        assert_eq!(all["report"]["peak_live"], 42 * GIB);
        let before = ("live_before", &NONE, 40, 40 * GIB);
        assert_eq!(warnings(&all), [("overflowed", &NONE, kept, 0), before]);
        let of = if kept == 4 { " of 4 records" } else { "" };
        let words = format!("warning: the history{of} overflowed: its first records are lost");
        assert!(stderr.contains(&words), "{stderr}");
    }
    let whole =
        forty_before(json!({"trace_alloc_overflowed": false, "trace_alloc_max_entries": 9}));
    assert_eq!(warnings(&served("overflowed.pickle", &whole, &[]).0).len(), 1);
    // It may stand beside the settings.
    let mut beside = forty_before(json!({}));
    beside["trace_alloc_overflowed"] = true.into();
    let (all, _) = served("overflowed.pickle", &beside, &[]);
    assert_eq!(warnings(&all)[0].0, "overflowed");
}

/// Of what was freed in the history the record of the free has the size.
#[test]
fn what_the_history_frees_was_live_before_it() {
    let trace = vec![
        record("free_completed", 0x1000, 3000),
        // The address serves again, and that is live at the snapshot.
        record("alloc", 0x1000, 100),
        record("alloc", 0x9000, 4000),
        record("free_completed", 0x9000, 4000),
    ];
    let segments = vec![
        segment(0, 0x1000, 100, "active_allocated"),
        segment(0, 0x5000, 2000, "active_allocated"),
    ];
    let snapshot = snapshot(segments, trace);
    let (all, stderr) = served("freed.pickle", &snapshot, &["--resource", "cuda"]);
    assert_eq!(warnings(&all), [("live_before", &NONE, 2, 5000)]);
    let report = &all["report"];
    assert_eq!((&report["operations"], &report["leaks"]), (&6.into(), &2.into()));
    assert_eq!((&report["peak_live"], &report["leaked_bytes"]), (&6100.into(), &2100.into()));
    assert!(stderr.contains("2 allocations of 4.9 KiB (5000 B) were live before"), "{stderr}");
}

/// A block has what was asked, and not what the allocator rounded it to.
#[test]
fn a_block_that_a_record_has_is_counted_once() {
    let mut rounded = segment(0, 0x1000, 4096, "active_allocated");
    rounded["blocks"][0]["requested_size"] = 3000.into();
    let mut other = segment(0, 0x9000, 4096, "active_allocated");
    other["blocks"][0]["requested_size"] = 500.into();
    let mut before = segment(0, 0x20000, 4096, "active_allocated");
    before["blocks"][0]["requested_size"] = 7.into();
    let trace = vec![record("alloc", 0x1000, 3000), record("alloc", 0x9000, 600)];
    let snapshot = snapshot(vec![rounded, other, before], trace);
    let (all, _) = served("once.pickle", &snapshot, &["--resource", "cuda"]);
    assert_eq!(all["report"]["peak_live"], 3607);
    let expected = [("live_before", &NONE, 1, 7), ("other_size", &NONE, 1, 500)];
    assert_eq!(warnings(&all), expected);
}

/// Where no history was recorded for a while, the state at the end is another than the records say.
#[test]
fn what_was_not_recorded_is_told() {
    let trace = vec![
        record("alloc", 0x1000, 1000),
        record("free_completed", 0x1000, 1000),
        record("alloc", 0x5000, 1000),
        record("alloc", 0x9000, 77),
        record("alloc", 0xb000, 50),
    ];
    let segments = vec![
        segment(0, 0x1000, 400, "active_allocated"),
        // In the middle of what the records leave live.
        segment(0, 0x5200, 256, "active_allocated"),
        segment(0, 0xb000, 50, "active_allocated"),
    ];
    let snapshot = snapshot(segments, trace);
    let (all, stderr) = served("paused.pickle", &snapshot, &["--resource", "cuda"]);
    let expected = [("live_after", &NONE, 2, 656), ("not_in_segments", &NONE, 1, 77)];
    assert_eq!(warnings(&all), expected);
    let report = &all["report"];
    // 1000 + 77 + 50 with 400, or in the end 400 + 256 + 77 + 50.
    assert_eq!((&report["peak_live"], &report["leaked_bytes"]), (&1127.into(), &783.into()));
    assert_eq!((&report["operations"], &report["problems"]), (&8.into(), &0.into()));
    for words in [
        "2 allocations of 656 B are live at the snapshot where the history has other memory",
        "1 allocation of 77 B that the history leaves live is in no segment",
    ] {
        assert!(stderr.contains(words), "{stderr}");
    }
}

/// What was freed twice was not live before, and no segment has it.
#[test]
fn a_free_that_no_state_explains_is_an_error() {
    for (first, second) in [(0x1000, 0x1000), (0x1100, 0x1000)] {
        let trace = vec![
            record("alloc", first, 1000),
            record("free_completed", first, 1000),
            record("free_completed", second, 1000),
        ];
        let snapshot = snapshot(vec![], trace);
        let output = replay("twice.pickle", &snapshot, &[]);
        let (_, stderr) = said(&output);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let words = "record 3: 0x1000 is freed while it is not allocated";
        assert!(stderr.contains(words), "{stderr}");
        let (all, _) = served("twice.pickle", &snapshot, &["--lenient"]);
        assert_eq!(warnings(&all), [("frees_alone", &NONE, 1, 1000)]);
    }
    // Of two frees of one memory before, one is explained.
    let twice = vec![record("free_completed", 0x1000, 5), record("free_completed", 0x1000, 5)];
    let (all, _) = served("twice.pickle", &snapshot(vec![], twice), &["--lenient"]);
    let expected = [("live_before", &NONE, 1, 5), ("frees_alone", &NONE, 1, 5)];
    assert_eq!(warnings(&all), expected);
}

#[test]
fn an_unknown_action_is_told_and_passed_over() {
    let mut trace = vec![
        record("defragment", 0x9000, 100),
        record("alloc", 0x1000, 1000),
        record("workspace_snapshot", 0, 5 * GIB),
        record("defragment", 0x9000, 156),
        json!({"action": "ponder"}),
        record("free_completed", 0x1000, 1000),
    ];
    let (all, stderr) = served("unknown.pickle", &snapshot(vec![], trace.clone()), &[]);
    assert_eq!((&all["report"]["operations"], &all["report"]["leaks"]), (&2.into(), &0.into()));
    let expected = [
        ("unknown_action", &"defragment".into(), 2, 256),
        ("unknown_action", &"ponder".into(), 1, 0),
        ("unknown_action", &"workspace_snapshot".into(), 1, 5 * GIB),
    ];
    assert_eq!(warnings(&all), expected);
    let words = "warning: 2 records of 256 B of the unknown action \"defragment\" left out";
    assert!(stderr.contains(words), "{stderr}");
    // Of many names ten are told, and of all the number and the bytes.
    trace.extend((0..100).map(|at| record(&format!("unknown{at:03}"), 0, 10)));
    let (all, stderr) = served("unknown.pickle", &snapshot(vec![], trace), &[]);
    let told = warnings(&all);
    assert_eq!((told.len(), told[10]), (11, ("unknown_action", &NONE, 93, 930)));
    assert!(stderr.contains("93 records of 930 B of the unknown action … left out"), "{stderr}");
}

/// Records that PyTorch is known to write beside memory's own are in the report alone.
#[test]
fn what_is_passed_over_is_in_the_report() {
    let trace = vec![
        record("segment_alloc", 0x1000, 2 << 20),
        record("alloc", 0x1000, 1000),
        record("free_requested", 0x1000, 1000),
        record("free_completed", 0x1000, 1000),
        record("segment_free", 0x1000, 2 << 20),
        record("snapshot", 0, 0),
        record("annotate", 0x1000, 0),
    ];
    let snapshot = snapshot(vec![], trace);
    let output = replay("passed_over.pickle", &snapshot, &[]);
    let (stdout, stderr) = said(&output);
    assert_eq!(stderr, "");
    for words in [
        "passed over         1 record of 1000 B of \"free_requested\"\n",
        "passed over         1 record of 2.0 MiB (2097152 B) of \"segment_alloc\"\n",
        "passed over         1 record of 0 B of \"snapshot\"\n",
    ] {
        assert!(stdout.contains(words), "{words} is not in\n{stdout}");
    }
    let (all, _) = served("passed_over.pickle", &snapshot, &[]);
    assert_eq!(all["report"]["warnings"].as_array().unwrap().len(), 5);
}

#[test]
fn page_locked_memory_is_told_with_its_bytes() {
    let records = vec![
        record("alloc", 0x1000, 3 * GIB),
        record("free_completed", 0x1000, 3 * GIB),
        record("alloc", 0x9000, GIB),
    ];
    let blocks = segment(0, 0x9000, GIB, "active_allocated");
    for (traces, segments) in [
        (json!(records), json!([blocks])),
        // A list a device, and segments without blocks.
        (json!([records]), json!([{"address": 0x9000, "active_size": GIB, "total_size": 4 * GIB}])),
    ] {
        let mut snapshot = snapshot(vec![], vec![record("alloc", 0x1000, 5)]);
        snapshot["host_traces"] = traces;
        snapshot["host_segments"] = segments;
        let (all, stderr) = served("host.pickle", &snapshot, &[]);
        assert_eq!(all["report"]["peak_live"], 5);
        let mut told = warnings(&all);
        told.sort_unstable_by_key(|warning| warning.0);
        let expected = [
            ("host_live", &NONE, 1, GIB),
            ("host_records", &NONE, 3, 4 * GIB),
            ("not_in_segments", &NONE, 1, 5),
        ];
        assert_eq!(told, expected);
        for words in [
            "3 records of page-locked memory left out, with 4.0 GiB (4294967296 B) allocated",
            "1 block of 1.0 GiB (1073741824 B) in use of page-locked memory left out",
        ] {
            assert!(stderr.contains(words), "{words} is not in\n{stderr}");
        }
    }
    // Nothing was recorded.
    let mut snapshot = snapshot(vec![], vec![]);
    snapshot["host_traces"] = json!([[]]);
    snapshot["host_segments"] = json!([segment(0, 0x1000, GIB, "inactive")]);
    assert_eq!(warnings(&served("host.pickle", &snapshot, &[]).0), []);
}

#[test]
fn a_key_that_is_not_known_is_told() {
    let mut snapshot = snapshot(vec![], vec![]);
    snapshot["nvlink_segments"] = json!({"peers": [
        segment(0, 0x1000, GIB, "active_allocated"), segment(0, 0x1000, GIB, "inactive"),
    ]});
    snapshot["version"] = 3.into();
    snapshot["external_annotations"] = json!([{"stage": "START", "name": "step"}]);
    let (all, stderr) = served("key.pickle", &snapshot, &[]);
    let expected = [
        ("unknown_key", &"nvlink_segments".into(), 1, GIB),
        ("unknown_key", &"version".into(), 0, 0),
    ];
    assert_eq!(warnings(&all), expected);
    let words = "the snapshot's \"nvlink_segments\" is not read: 1 entry of 1.0 GiB (1073741824 B)";
    assert!(stderr.contains(words), "{stderr}");
}

/// Two snapshots one behind the other, as a program writes that appends to its file.
#[test]
fn what_is_behind_a_snapshot_is_told() {
    let one = pickle(&snapshot(vec![], vec![]));
    for (behind, bytes) in [(&one[..], one.len() as u64), (b"\0\0\0", 0), (b"\0\n", 2)] {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("behind.pickle");
        std::fs::write(&path, [&one[..], behind].concat()).unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_aquifer-replay"));
        let output = program.arg(path).arg("--json").output().unwrap();
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        let expected = (bytes > 0).then_some(("behind_snapshot", &NONE, 1, bytes));
        assert_eq!(warnings(&all), Vec::from_iter(expected), "{output:?}");
    }
}

/// What only code would make is not made, and is told.
#[test]
fn objects_instead_of_records_are_told() {
    let start = b"\x80\x02}(X\x0d\x00\x00\x00device_traces](](eeX\x08\x00\x00\x00segments](eX\x0b\x00\x00\x00host_traces";
    let object = b"ccollections\ndeque\n)R";
    for (value, part, name) in [
        (object.to_vec(), "unknown_key", "host_traces"),
        ([&b"]("[..], object, b"e"].concat(), "host_records", ""),
        // A key that is a number, and 2 GiB under it.
        (
            b"](eK\x05}(X\x04\x00\x00\x00size\x8a\x05\x00\x00\x00\x80\x00u".to_vec(),
            "unknown_key",
            "a key that is no string",
        ),
    ] {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("objects.pickle");
        std::fs::write(&path, [&start[..], &value, b"u."].concat()).unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_aquifer-replay"));
        let output = program.arg(path).arg("--json").output().unwrap();
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        let told = warnings(&all);
        assert_eq!((told.len(), told[0].0, told[0].2), (1, part, 1), "{output:?}");
        assert_eq!(told[0].1.as_str().unwrap_or_default(), name);
    }
}

#[test]
fn other_devices_are_told_with_their_bytes() {
    let segments = vec![
        segment(0, 0x1000, 7, "active_allocated"),
        segment(1, 0x1000, 5, "active_allocated"),
        segment(2, 0x1000, 4 * GIB, "active_allocated"),
        segment(3, 0x1000, GIB, "inactive"),
    ];
    let snapshot = json!({"segments": segments, "device_traces": [
        [record("user_defined", 0, 0)],
        [record("alloc", 0x9000, 11), record("free_completed", 0x9000, 11)],
        [],
    ]});
    let elsewhere = |name: &str, arguments: &[&str], expected: &[(&str, &str, u64, u64)]| {
        let (all, stderr) = served(name, &snapshot, arguments);
        let told = warnings(&all);
        let words = |(part, name, number, bytes): &(&str, &Value, u64, u64)| {
            let name = name.as_str().unwrap_or_default().to_owned();
            ((*part).to_owned(), name, *number, *bytes)
        };
        let own = |(part, name, number, bytes): &(&str, &str, u64, u64)| {
            ((*part).to_owned(), (*name).to_owned(), *number, *bytes)
        };
        let told: Vec<_> = told.iter().map(words).collect();
        assert_eq!(told, expected.iter().map(own).collect::<Vec<_>>(), "{stderr}");
        all
    };
    // The first that has records of memory, and not of names.
    let all = elsewhere(
        "devices.pickle",
        &[],
        &[
            ("live_before", "", 1, 5),
            ("live_on_other_devices", "", 2, 4 * GIB + 7),
            ("other_devices", "1", 1, 0),
        ],
    );
    assert_eq!(all["report"]["peak_live"], 16);
    // One whose trace is empty, and one that has none and nothing live.
    let expected = [
        ("live_before", "", 1, 4 * GIB),
        ("no_history", "", 0, 0),
        ("live_on_other_devices", "", 2, 12),
        ("other_devices", "2", 3, 11),
    ];
    let all = elsewhere("device2.pickle", &["--log-device", "2"], &expected);
    assert_eq!(all["report"]["peak_live"], 4 * GIB);
    let output = replay("device3.pickle", &snapshot, &["--log-device", "3"]);
    let (_, stderr) = said(&output);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for words in
        ["3 allocations of 4.0 GiB (4294967308 B)", "is empty, so --log-device does nothing"]
    {
        assert!(stderr.contains(words), "{stderr}");
    }
    let output = replay("devices.pickle", &snapshot, &["--log-device", "4"]);
    assert!(said(&output).1.contains("no events of device 4"), "{output:?}");
}

/// Of a snapshot that recorded no history, what is live is replayed.
#[test]
fn a_snapshot_without_a_history_has_what_is_live() {
    let segments = vec![
        segment(0, 0x1000, 7, "inactive"),
        segment(1, 0x1000, GIB, "active_allocated"),
        segment(1, 4 * GIB, GIB, "active_allocated"),
    ];
    let snapshot = json!({"segments": segments, "device_traces": [[], []]});
    let (all, stderr) = served("state.pickle", &snapshot, &["--bisect"]);
    assert_eq!(all["bisection"]["peak_live"], 2 * GIB);
    assert_eq!(warnings(&all), [("live_before", &NONE, 2, 2 * GIB), ("no_history", &NONE, 0, 0)]);
    assert!(stderr.contains("the history has no record of memory"), "{stderr}");
    let without = json!({"device_traces": [[
        record("free_completed", 0x1000, GIB), record("alloc", 0x1000, 5),
    ]]});
    let (all, stderr) = served("no_segments.pickle", &without, &[]);
    assert_eq!(warnings(&all), [("live_before", &NONE, 1, GIB), ("no_segments", &NONE, 0, 0)]);
    assert!(stderr.contains("the snapshot has no `segments`"), "{stderr}");
}

#[test]
fn private_pools_and_expandable_segments_are_told() {
    let mut graph = segment(0, 0x100000, 5000, "active_allocated");
    graph["segment_pool_id"] = json!(["tuple", 0, 3]);
    graph["blocks"].as_array_mut().unwrap().push(json!({
        "address": 0x200000, "size": GIB, "requested_size": 0, "state": "inactive",
    }));
    let mut own = record("alloc", 0x100000, 5000);
    own["pool_id"] = json!(["tuple", 0, 3]);
    let mut common = record("alloc", 0x5000, 9);
    common["pool_id"] = json!(["tuple", 0, 0]);
    let mut free = record("free_completed", 0x900000, 40);
    free["pool_id"] = json!(["tuple", 1, 0]);
    let trace = vec![
        own,
        common,
        record("segment_map", 0x5000, 2 << 20),
        record("segment_unmap", 0x5000, 1 << 20),
        free,
    ];
    let segments = vec![graph, segment(0, 0x5000, 9, "active_allocated")];
    let (all, stderr) = served("private.pickle", &snapshot(segments, trace), &[]);
    assert_eq!(all["report"]["peak_live"], 5049);
    let expected = [
        ("live_before", &NONE, 1, 40),
        ("expandable", &NONE, 2, 3 << 20),
        ("private_records", &NONE, 2, 5000),
        ("private_live", &NONE, 1, 5000),
        ("private_free", &NONE, 1, GIB),
    ];
    assert_eq!(warnings(&all), expected);
    for words in [
        "2 records of 3.0 MiB (3145728 B) that map and unmap expandable segments left out",
        "2 records of private pools, as graphs have them, with 4.9 KiB (5000 B) allocated",
        "1 block of 1.0 GiB (1073741824 B) is free in private pools, for these alone",
    ] {
        assert!(stderr.contains(words), "{words} is not in\n{stderr}");
    }
}

#[test]
fn blocks_of_every_state_are_told() {
    let segments = vec![
        segment(0, 0x1000, 100, "active_pending_free"),
        segment(0, 0x2000, 200, "active_awaiting_free"),
        segment(0, 0x3000, 400, "inactive"),
        segment(0, 0x4000, 800, "hibernating"),
    ];
    let trace = vec![record("alloc", 0x1000, 100), record("free_requested", 0x1000, 100)];
    let (all, stderr) = served("states.pickle", &snapshot(segments, trace), &[]);
    assert_eq!((&all["report"]["peak_live"], &all["report"]["leaks"]), (&300.into(), &2.into()));
    let expected = [
        ("live_before", &NONE, 1, 200),
        ("unknown_state", &"hibernating".into(), 1, 800),
        ("pending_free", &NONE, 2, 300),
        // Its segment has the bytes as in use.
        ("segments_disagree", &NONE, 1, 800),
    ];
    assert_eq!(warnings(&all), expected);
    let words = "2 blocks of 300 B waited at the snapshot for another stream";
    assert!(stderr.contains(words), "{stderr}");
}

/// As the first versions wrote them: blocks without an address, and with a history.
#[test]
fn blocks_of_older_versions_are_read() {
    let block = |size: u64, asked: Option<u64>, state: &str| {
        let mut block = json!({"size": size, "state": state});
        if let Some(asked) = asked {
            block["history"] = json!([{"addr": 0, "real_size": asked}]);
        }
        block
    };
    let blocks = json!([
        block(0x1000, None, "inactive"),
        block(0x1000, Some(3000), "active_allocated"),
        block(0x1000, None, "active_allocated"),
    ]);
    let segment = json!({"address": 0x10000, "total_size": 0x3000, "blocks": blocks});
    // The second block's address is the one that a record has.
    let trace = vec![record("alloc", 0x11000, 3000)];
    let (all, _) = served("older.pickle", &snapshot(vec![segment], trace), &["--resource", "cuda"]);
    assert_eq!(all["report"]["peak_live"], 3000 + 0x1000);
    assert_eq!(warnings(&all), [("live_before", &NONE, 1, 0x1000)]);
}

#[test]
fn segments_without_blocks_are_told() {
    let whole = |address: u64, active: u64| json!({"device": 0, "address": address, "total_size": 9 * GIB, "active_size": active});
    let mut disagrees = segment(0, 0x1000, 100, "active_allocated");
    disagrees["active_size"] = 356.into();
    let segments =
        vec![whole(100 * GIB, 2 * GIB), whole(200 * GIB, 3 * GIB), whole(300 * GIB, 0), disagrees];
    let trace = vec![record("alloc", 200 * GIB, 50), record("free_completed", 200 * GIB, 50)];
    let (all, stderr) = served("whole.pickle", &snapshot(segments, trace), &["--resource", "cuda"]);
    assert_eq!(all["report"]["peak_live"], 2 * GIB + 150);
    let expected = [
        ("live_before", &NONE, 2, 2 * GIB + 100),
        // The history has records in the second, so it is not one allocation.
        ("segments_disagree", &NONE, 1, 3 * GIB),
        ("no_blocks", &NONE, 2, 5 * GIB),
        ("segments_disagree", &NONE, 1, 256),
    ];
    assert_eq!(warnings(&all), expected);
    assert!(
        stderr.contains("1 segment has more or less bytes in use than the blocks: 256 B"),
        "{stderr}"
    );
}

#[test]
fn segments_that_are_wrong_are_named() {
    let trace = vec![record("alloc", 0x1000, 5)];
    let two = |segment: Value| json!({"segments": [segment], "device_traces": [trace, []]});
    let block =
        |block: Value| json!({"device": 0, "address": 0x1000, "total_size": 5, "blocks": [block]});
    for (snapshot, words) in [
        (
            json!({"segments": 5, "device_traces": []}),
            "['segments']: expected a list of segments, found an int",
        ),
        (two(json!([])), "segments[0]: expected a dict, found a list"),
        (
            two(json!({"address": 5})),
            "segments[0]['device']: expected a device's number, an int, found nothing",
        ),
        (
            two(json!({"device": 0, "blocks": 7})),
            "segments[0]['blocks']: expected a list of blocks, found an int",
        ),
        (two(block(json!("a"))), "segments[0]['blocks'][0]: expected a dict, found a string"),
        (
            two(block(json!({"size": 5}))),
            "segments[0]['blocks'][0]['state']: expected a string, found nothing",
        ),
        (
            two(block(json!({"state": "inactive"}))),
            "['size']: expected a size in bytes, an int, found nothing",
        ),
        (
            two(json!({"device": 0, "blocks": [{"size": 5, "state": "inactive"}]})),
            "segments[0]['address']: expected an address, an int, found nothing",
        ),
    ] {
        let output = replay("wrong.pickle", &snapshot, &[]);
        let (_, stderr) = said(&output);
        assert_eq!(output.status.code(), Some(1), "{words}: {stderr}");
        assert!(stderr.contains(words), "{words} is not in\n{stderr}");
    }
}

/// What has no record is not given the number of one.
#[test]
fn what_was_live_before_is_named_so() {
    let name = "named.pickle";
    let segments = vec![
        segment(0, 0x1000, GIB, "active_allocated"),
        segment(0, 0x1000 + GIB, GIB, "active_allocated"),
        segment(0, 0x1000 + 2 * GIB, 1000, "active_allocated"),
    ];
    let trace = vec![record("alloc", 8 * GIB, 5), record("free_completed", 0x1000 + 2 * GIB, 1000)];
    let snapshot = snapshot(segments, trace);
    let path = |ending: &str| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{ending}"));
        path.to_str().unwrap().to_owned()
    };
    let arguments = [
        "--capacity",
        "1GiB",
        "--resource",
        "cuda",
        "--trace",
        &path("json"),
        "--picture",
        &path("svg"),
    ];
    let output = replay(name, &snapshot, &arguments);
    let (stdout, _) = said(&output);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        stdout.contains("\n  before the first record: allocating 1073741824 bytes"),
        "{stdout}"
    );
    // It was live once more when it was freed.
    assert!(stdout.contains("\n  after the last record: allocating 1000 bytes"), "{stdout}");
    let trace = std::fs::read_to_string(path("json")).unwrap();
    assert!(trace.contains("\"record\":\"before the first record\""), "{trace}");
    let picture = std::fs::read_to_string(path("svg")).unwrap();
    assert!(picture.contains("on stream 0, before the first record"), "{picture}");
    // No device has so much.
    let segments = vec![segment(0, 0x1000, 1 << 43, "active_allocated")];
    let output = replay(name, &self::snapshot(segments, vec![]), &["--bisect"]);
    let words =
        "named.pickle: before the first record: 8796093022208 bytes were asked, more than any";
    assert!(said(&output).1.contains(words), "{output:?}");
}

/// A list that many name is read once: time has a bound in the file's length.
#[test]
fn what_is_shared_many_times_takes_no_longer() {
    let mut pickle = b"\x80\x02}(X\x08\x00\x00\x00segments](".to_vec();
    // One segment of 5000 blocks, named 5000 times; 9000 traces, all of one list.
    pickle.extend(b"}q\x01(X\x07\x00\x00\x00addressK\x05X\x06\x00\x00\x00blocks](");
    pickle.extend(
        b"}q\x02(X\x04\x00\x00\x00sizeK\x05X\x05\x00\x00\x00stateX\x08\x00\x00\x00inactiveu",
    );
    pickle.extend(b"h\x02".repeat(5000));
    pickle.extend(b"eu");
    pickle.extend(b"h\x01".repeat(5000));
    pickle.extend(b"eX\x0d\x00\x00\x00device_traces](](}q\x03(X\x06\x00\x00\x00actionX\x08\x00\x00\x00annotateu");
    pickle.extend(b"h\x03".repeat(100_000));
    pickle.extend(b"eq\x04");
    let shared_traces = pickle.len();
    pickle.extend(b"eu.");
    let path = |name: &str, pickle: &[u8]| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, pickle).unwrap();
        path
    };
    let run = |path: PathBuf| {
        let start = std::time::Instant::now();
        let output = Command::new(env!("CARGO_BIN_EXE_aquifer-replay")).arg(path).output().unwrap();
        assert!(start.elapsed() < std::time::Duration::from_secs(30));
        said(&output)
    };
    let (_, stderr) = run(path("shared_segments.pickle", &pickle));
    let words = "segments[1]['blocks']: expected blocks of its own, found those of another segment";
    assert!(stderr.contains(words), "{stderr}");
    pickle.truncate(shared_traces);
    pickle.extend(b"h\x04".repeat(9_000));
    pickle.extend(b"eX\x08\x00\x00\x00segments](eu.");
    let (stdout, stderr) = run(path("shared_traces.pickle", &pickle));
    assert!(stderr.contains("900009000 events of other devices left out"), "{stdout}{stderr}");
}
