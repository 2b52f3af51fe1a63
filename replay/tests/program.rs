//! The program from end to end, on the simulated device.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn log(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs").join(name)
}

fn replay(name: &str, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_aquifer-replay"))
        .arg(log(name))
        .args(arguments)
        .output()
        .unwrap()
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

fn out(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn a_log_that_is_served() {
    let output = replay("two_streams.rmm.csv", &[]);
    let (stdout, stderr) = said(&output);
    assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""), "{stdout}");
    for line in [
        "log                 two_streams.rmm.csv",
        "resource            pool on simulated device",
        "capacity            2.0 MiB (2097152 B), as much as the log took without a limit",
        "operations          7 operations of 1 thread on 3 streams; 4 allocations served, 1 freed on \
         another stream",
        "peak live           3.4 KiB (3500 B)",
        "peak reserved       2.0 MiB (2097152 B)",
        "upstream calls      1",
        "leaks               1 allocation, 2.9 KiB (3000 B)",
        "failures            0",
    ] {
        assert!(stdout.lines().any(|said| said == line), "{line} is not in\n{stdout}");
    }
}

#[test]
fn every_format_and_resource() {
    let names = ["threads.rmm.csv", "two_devices.events.csv", "snapshot.pickle", "before.pickle"];
    for name in names {
        for resource in ["pool", "virtual", "cuda", "async", "managed", "binning", "arena"] {
            let output = replay(name, &["--resource", resource, "--json"]);
            assert_eq!(output.status.code(), Some(0), "{name} {resource}: {output:?}");
            let all: Value = serde_json::from_slice(&output.stdout).unwrap();
            let report = &all["report"];
            assert_eq!(report["resource"], resource);
            assert_eq!(report["peak_live"], report["peak_live_of_log"]);
            assert!(report["peak_reserved"].as_u64() >= report["peak_live"].as_u64());
            assert!(report["driver_calls"].as_u64().unwrap() > 0);
            assert_eq!(report["capacity"], report["peak_reserved"], "{name} {resource}");
            assert_eq!(report["capacity_is"], "needed");
        }
    }
}

/// A pool that maps handles has one at least, also where a log needs less.
#[test]
fn a_small_log_needs_one_handle() {
    let arguments = ["--resource", "virtual", "--bisect", "--json"];
    let output = replay("two_streams.rmm.csv", &arguments);
    let (stdout, stderr) = said(&output);
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
    assert!(stdout.contains("2097152"), "{stdout}");
    let refused = replay("two_streams.rmm.csv", &["--resource", "virtual", "--capacity", "1MiB"]);
    let (_, stderr) = said(&refused);
    assert!(stderr.contains("whose handles have 2097152 bytes at least"), "{stderr}");
}

/// Nobody who replays a log of a large GPU has as much memory.
#[cfg(target_os = "linux")]
#[test]
fn a_log_of_more_than_the_host_has() {
    let name = Path::new(env!("CARGO_TARGET_TMPDIR")).join("large.csv");
    let mut text = String::from("Thread,Time,Action,Pointer,Size,Stream\n");
    // 256 GiB in blocks of which each fits, and one of 512 GiB.
    for at in 1..=8192_u64 {
        text += &format!("1,00:00:00.0,allocate,{:#x},33554432,0\n", at << 40);
    }
    text += "1,00:00:00.0,allocate,0x1,549755813888,0\n";
    std::fs::write(&name, text).unwrap();
    for resource in ["pool", "arena", "managed"] {
        for capacity in [&["--capacity", "900GiB"][..], &[]] {
            let arguments = [&["--resource", resource, "--json"], capacity].concat();
            let output = replay(name.to_str().unwrap(), &arguments);
            let all: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(all["report"]["peak_live"], 768_u64 << 30, "{resource}: {output:?}");
            assert_eq!(output.status.code(), Some(0), "{resource}");
            if capacity.is_empty() {
                assert_eq!(all["report"]["capacity"], all["report"]["peak_reserved"]);
            }
        }
    }
}

#[test]
fn what_is_refused_is_the_exit_status() {
    let output = replay("too_large.rmm.csv", &["--capacity", "1GiB"]);
    let (stdout, _) = said(&output);
    assert_eq!(output.status.code(), Some(3), "{stdout}");
    assert!(
        stdout.contains("\nfailures            1\n  line 3: allocating 2000000000 bytes"),
        "{stdout}"
    );
}

#[test]
fn impossible_lines_end_it_unless_borne() {
    let output = replay("impossible.rmm.csv", &[]);
    let (stdout, stderr) = said(&output);
    assert_eq!((output.status.code(), stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("impossible.rmm.csv:3: 0x1000 is allocated again"), "{stderr}");
    assert!(stderr.contains("impossible.rmm.csv:4: 0x2000 is freed"), "{stderr}");
    let output = replay("impossible.rmm.csv", &["--lenient"]);
    let (stdout, _) = said(&output);
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout.contains("impossible lines    2\n"), "{stdout}");
}

#[test]
fn errors_name_their_place() {
    let output = replay("wrong_size.rmm.csv", &[]);
    assert_eq!(output.status.code(), Some(1));
    let (_, stderr) = said(&output);
    assert!(stderr.starts_with("error: ") && stderr.contains(".csv:3: column Size: "), "{stderr}");
    let output = replay("two_streams.rmm.csv", &["--capacity", "much"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).1.contains("try 4GiB"));
}

#[test]
fn bisection_prints_what_it_found() {
    let output = replay("threads.rmm.csv", &["--bisect", "--step", "64KiB", "--resource", "cuda"]);
    let (stdout, stderr) = said(&output);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stdout.starts_with("least capacity      3145728 B, 1.000 times"), "{stdout}");
    assert!(stdout.contains("\ncapacity            3.0 MiB (3145728 B)\n"), "{stdout}");
}

/// What is found serves, and a step less does not: replayed again, as anybody could.
#[test]
fn what_bisection_finds_is_an_edge() {
    for resource in ["pool", "virtual", "cuda", "async", "managed", "binning", "arena"] {
        let said = |arguments: &[&str]| {
            let all = [&["--resource", resource, "--json"], arguments].concat();
            let output = replay("threads.rmm.csv", &all);
            let json = serde_json::from_slice::<Value>(&output.stdout);
            (output.status.code(), json.unwrap_or_default())
        };
        let (status, all) = said(&["--bisect", "--step", "4KiB"]);
        assert_eq!(status, Some(0), "{resource}");
        let found = &all["bisection"];
        let capacity = found["capacity"].as_u64().unwrap();
        assert!(found["tries"].as_u64().unwrap() < 60, "{resource}: {found}");
        assert_eq!(said(&["--capacity", &capacity.to_string()]).0, Some(0), "{resource}");
        let less = said(&["--capacity", &(capacity - 4096).to_string()]).0;
        // An arena is not even made with less than it takes.
        assert_ne!(less, Some(0), "{resource}: {capacity}");
    }
}

#[test]
fn a_refusal_says_where_to_look() {
    let name = Path::new(env!("CARGO_TARGET_TMPDIR")).join("refused.csv");
    let lines = "1,00:00:00.0,allocate,0x1000,5000000000,0\n\
                 1,00:00:00.0,allocate,0x200000000000,1000000000000000000,0\n";
    std::fs::write(&name, format!("Thread,Time,Action,Pointer,Size,Stream\n{lines}")).unwrap();
    let name = name.to_str().unwrap();
    // 5 GB serve; 1 EB is no block of any device.
    let output = replay(name, &["--resource", "cuda"]);
    assert_eq!(output.status.code(), Some(3));
    let (stdout, stderr) = said(&output);
    assert!(
        stdout.contains("4.7 GiB (5000000000 B), as much as was taken without a limit"),
        "{stdout}"
    );
    assert!(stdout.contains("\nfailures            1\n  line 3: "), "{stdout}");
    assert!(stderr.contains("hint: each block of a simulated device"), "{stderr}");
    // Nor does any capacity, given or found.
    let output = replay(name, &["--resource", "cuda", "--capacity", "1GiB"]);
    assert_eq!(said(&output).1, stderr);
    // To find out how much suffices for that is no use.
    for arguments in [&["--bisect"][..], &["--resource", "arena"]] {
        let output = replay(name, arguments);
        assert_eq!(output.status.code(), Some(1));
        let stderr = said(&output).1;
        let words = "refused.csv:3: 1000000000000000000 bytes were asked, more than any device has";
        assert!(stderr.contains(words), "{stderr}");
    }
}

/// A noun that is a plural, though there is one of it: `1 lines`.
fn plural_of_one(text: &str) -> Option<&str> {
    text.lines().find_map(|line| {
        let words: Vec<&str> =
            line.split([' ', '(', ')', ',', ';', ':']).filter(|word| !word.is_empty()).collect();
        let plural = |word: &str| word.ends_with('s') && !["is", "was", "less"].contains(&word);
        words.windows(2).find(|two| two[0] == "1" && plural(two[1])).map(|two| two[1])
    })
}

#[test]
fn one_of_each() {
    assert_eq!(plural_of_one("of 1 threads, 2 streams"), Some("threads"));
    let name = Path::new(env!("CARGO_TARGET_TMPDIR")).join("one_of_each.csv");
    let text = "Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory,\
                Current Allocs,Start,End,Elapsed,Location\n\
                Alloc,0,0x1000,0,1,,,,1.0,,,\n\
                Alloc,1,0x1000,0,1,,,,1.0,,,\n\
                Alloc failure,0,0x0,0,1,,,,1.0,,,\n\
                Free,0,0x2000,0,1,,,,1.0,,,\n";
    std::fs::write(&name, text).unwrap();
    let name = name.to_str().unwrap();
    for (arguments, words) in [
        (
            &["--lenient"][..],
            "1 operation of 1 thread on 1 stream; 1 allocation served, none freed",
        ),
        (&["--lenient", "--bisect"], "times the log's peak live (1 try)"),
        (&[], "1 event of other devices left out"),
        (&[], "1 line of "),
    ] {
        let (stdout, stderr) = said(&replay(name, arguments));
        let all = stdout + &stderr;
        assert!(all.contains(words), "{words} is not in\n{all}");
        assert_eq!(plural_of_one(&all), None, "{all}");
    }
    // A refusal, as well, and a record of a pickle.
    let (stdout, stderr) = said(&replay("too_large.rmm.csv", &["--capacity", "1GiB"]));
    assert_eq!(plural_of_one(&(stdout + &stderr)), None);
}

#[test]
fn options_that_do_nothing() {
    for (log, arguments, status, words) in [
        (
            "two_streams.rmm.csv",
            &["--log-device", "7"][..],
            1,
            "two_streams.rmm.csv: a log of RMM does not tell devices: leave --log-device out",
        ),
        ("two_devices.events.csv", &["--log-device", "7"], 1, "no events of device 7"),
        ("two_streams.rmm.csv", &["--gpu", "3"], 2, "does nothing without --backend cuda"),
        (
            "two_streams.rmm.csv",
            &["--gpu", "3", "--backend", "sim"],
            2,
            "does nothing without --backend cuda",
        ),
        ("two_streams.rmm.csv", &["--bisect", "--backend", "cuda"], 2, "not --backend cuda"),
        ("two_streams.rmm.csv", &["--step", "1MiB"], 2, "--bisect"),
        ("two_streams.rmm.csv", &["--bisect", "--capacity", "1GiB"], 2, "--capacity"),
        ("two_streams.rmm.csv", &["--format", "torch"], 1, "not a pickle: it begins with"),
    ] {
        let output = replay(log, arguments);
        let (stdout, stderr) = said(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {stdout}{stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
        assert_eq!(stdout, "", "{arguments:?}");
    }
}

#[test]
fn capacities_that_are_none() {
    for (text, words) in [
        ("0", "less than 256 bytes"),
        ("100", "less than 256 bytes"),
        ("99999999999GiB", "more than 1 EiB"),
        ("18446744073709551615", "more than 1 EiB"),
        ("18446744073709551616", "more than 1 EiB"),
        ("-18446744073709551616", "no number of bytes"),
        ("nan", "try 4GiB"),
        ("1e3", "try 4GiB"),
        ("1000.9B", "no whole number of bytes"),
        ("1000.9 b", "no whole number of bytes"),
        ("GiB", "try 4GiB"),
    ] {
        let output = replay("two_streams.rmm.csv", &["--capacity", text]);
        let stderr = said(&output).1;
        assert_eq!(output.status.code(), Some(2), "{text}: {stderr}");
        assert!(stderr.contains(words), "{text}: {stderr}");
    }
    for (text, bytes) in
        [("4GiB", 4_u64 << 30), ("4GB", 4_000_000_000), ("4 gib", 4 << 30), ("1.5KiB", 1536)]
    {
        let output = replay("two_streams.rmm.csv", &["--capacity", text, "--json"]);
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(all["report"]["capacity"], bytes, "{text}");
    }
}

#[test]
fn an_arena_has_a_least_and_a_most() {
    let arena = |capacity: &str| {
        replay("two_streams.rmm.csv", &["--resource", "arena", "--capacity", capacity])
    };
    for (capacity, words) in [
        ("256", "--capacity is 256 bytes, and an arena takes 1 MiB at least"),
        ("1048575", "an arena takes 1 MiB at least"),
        ("4TiB", "--capacity is 4398046511104 bytes, which an arena takes as one block"),
        ("1EiB", "each block of a simulated device has less than 4 TiB"),
    ] {
        let output = arena(capacity);
        let (stdout, stderr) = said(&output);
        assert_eq!((output.status.code(), stdout.as_str()), (Some(2), ""), "{capacity}: {stderr}");
        assert!(stderr.contains(words), "{capacity}: {stderr}");
    }
    for capacity in ["1MiB", "3TiB"] {
        assert_eq!(arena(capacity).status.code(), Some(0), "{capacity}");
    }
    // Nor is one tried that is so large.
    let name = out("large_arena.csv");
    let mut text = String::from("Thread,Time,Action,Pointer,Size,Stream\n");
    for at in 1..=5_u64 {
        text += &format!("1,00:00:00.0,allocate,{:#x},1000000000000,0\n", at << 48);
    }
    std::fs::write(&name, text).unwrap();
    let output = replay(name.to_str().unwrap(), &["--resource", "arena"]);
    let stderr = said(&output).1;
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("each block of a simulated device has less than 4 TiB"), "{stderr}");
}

#[test]
fn numbers_of_devices_that_are_none() {
    for (arguments, words) in [
        (&["--backend", "cuda", "--gpu", "-1"][..], "no number of a GPU, which are 0, 1 and so on"),
        (&["--backend", "cuda", "--gpu", "first"], "no number of a GPU"),
        (&["--log-device", "x"], "no number of a device, as the log has them; try 0"),
    ] {
        let output = replay("two_devices.events.csv", arguments);
        let stderr = said(&output).1;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
}

/// What is asked for is written, or that is an error.
#[cfg(target_os = "linux")]
#[test]
fn a_full_standard_output_is_an_error() {
    let log = log("two_streams.rmm.csv");
    for arguments in [&["--help"][..], &["-h"], &["--version"], &["--json"], &[]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_aquifer-replay"));
        let output = program.arg(&log).args(arguments).stdout(full).output().unwrap();
        let stderr = said(&output).1;
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(
            stderr.starts_with("error: standard output: cannot be written: No space left"),
            "{arguments:?}: {stderr}"
        );
    }
    let output = replay("two_streams.rmm.csv", &["--version"]);
    assert_eq!(
        said(&output),
        (format!("aquifer-replay {}\n", env!("CARGO_PKG_VERSION")), String::new())
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_trace_has_a_slice_for_each_allocation() {
    let path = out("trace.json");
    let output =
        replay("threads.rmm.csv", &["--trace", path.to_str().unwrap(), "--resource", "cuda"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let trace: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |phase: &str| events.iter().filter(|e| e["ph"] == phase).collect::<Vec<_>>();
    let (begins, ends, counters) = (of("b"), of("e"), of("C"));
    assert_eq!((begins.len(), ends.len()), (4, 4));
    // The second allocation: by thread 22, 50 ms in, for 250 ms.
    assert_eq!(begins[1]["name"], "stream per-thread of thread 22");
    assert_eq!((begins[1]["ts"].as_f64(), ends[1]["ts"].as_f64()), (Some(50e3), Some(300e3)));
    assert_eq!(
        (&begins[1]["args"]["bytes"], &begins[1]["args"]["line"]),
        (&2097152.into(), &3.into())
    );
    assert_eq!(begins[1]["id"], ends[1]["id"]);
    let live: Vec<_> = counters
        .iter()
        .filter(|counter| counter["name"] == "live")
        .map(|counter| counter["args"]["bytes"].as_u64().unwrap())
        .collect();
    assert_eq!((live.len(), live.iter().max()), (8, Some(&(3 << 20))));
    let tracks: Vec<_> = of("M").into_iter().filter(|e| e["name"] == "thread_name").collect();
    assert_eq!(tracks.len(), 3);
}

#[test]
fn a_picture_has_a_rectangle_for_each_allocation() {
    let path = out("picture.svg");
    let output = replay("two_streams.rmm.csv", &["--picture", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = std::fs::read_to_string(&path).unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    let group = |class: &str| {
        document.descendants().find(|node| node.attribute("class") == Some(class)).unwrap()
    };
    let blocks: Vec<_> =
        group("blocks").children().filter(|node| node.has_tag_name("rect")).collect();
    assert_eq!(blocks.len(), 4);
    let number = |at: usize, name| blocks[at].attribute(name).unwrap().parse::<f64>().unwrap();
    // From the first of seven operations to the third; 1000 bytes are 1024 of 2 MiB, which is less than
    // half a pixel.
    assert!((number(0, "x") - 100.0).abs() < 0.01);
    assert!((number(0, "width") - 1080.0 * 2.0 / 7.0).abs() < 0.01);
    assert_eq!(number(0, "height"), 0.5);
    assert!((number(3, "height") - 440.0 * 3072.0 / f64::from(2 << 20)).abs() < 0.01);
    assert_ne!(blocks[0].attribute("fill"), blocks[1].attribute("fill"));
    assert_eq!(blocks[0].attribute("fill"), blocks[3].attribute("fill"));
    // The last of the curves is what is live: steps that begin and end with the log.
    let live = group("curves").children().rfind(|n| n.has_tag_name("polyline")).unwrap();
    let points: Vec<&str> = live.attribute("points").unwrap().split(' ').collect();
    assert_eq!(points.len(), 14);
    assert!(points[0].starts_with("100.0,") && points[13].starts_with("1180.0,"), "{points:?}");
    let lines = group("curves").children().filter(|node| node.has_tag_name("polyline")).count();
    assert_eq!(lines, 3);
    for words in ["stream 0", "reserved", "live", "2 MiB", "operation of the log (number)"] {
        assert!(
            document.descendants().any(|node| node.text().map(str::trim) == Some(words)),
            "{words}"
        );
    }
}

/// 40,000 allocations: drawn by cells, within a bound.
#[test]
fn a_picture_of_a_long_log_stays_small() {
    let mut text = String::from("Thread,Time,Action,Pointer,Size,Stream\n");
    let mut random = fastrand::Rng::with_seed(1);
    let mut live = Vec::new();
    for at in 0..40_000_u64 {
        let (size, stream) = (random.u64(256..60_256), random.u64(..5));
        text += &format!("1,00:00:00.0,allocate,{:#x},{size},{}\n", (at + 1) << 20, stream + 16);
        live.push((at + 1, size, stream));
        if live.len() > 500 {
            let (at, size, stream) = live.swap_remove(random.usize(..live.len()));
            text += &format!("1,00:00:00.0,free,{:#x},{size},{}\n", at << 20, stream + 16);
        }
    }
    let (long, path) = (out("long.csv"), out("long.svg"));
    std::fs::write(&long, text).unwrap();
    let output = replay(long.to_str().unwrap(), &["--picture", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!((10_000..3_000_000).contains(&text.len()), "{} bytes", text.len());
    let document = roxmltree::Document::parse(&text).unwrap();
    let paths = document.descendants().filter(|node| node.has_tag_name("path")).count();
    assert_eq!(paths, 5);
}

/// Aquifer's log has `Stream::id`, and that is what the replay calls the stream.
#[test]
fn logs_of_aquifer_name_its_streams() {
    use aquifer::sim::SimConfig;
    use aquifer::{
        CudaResource, Device, DeviceVec,
        mr::{LogFormat, LoggingAdaptor},
    };
    use std::sync::Arc;
    for (format, name) in [(LogFormat::Rmm, "own.csv"), (LogFormat::Events, "own.events.csv")] {
        let device = Device::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let resource = LoggingAdaptor::builder(CudaResource::new(&device))
            .path(out(name))
            .format(format)
            .build()
            .unwrap();
        let vec = DeviceVec::<u8>::zeroed_in(&stream, 1000, Arc::new(resource.clone())).unwrap();
        drop(vec);
        resource.flush().unwrap();
        let path = out("own.json");
        let output =
            replay(out(name).to_str().unwrap(), &["--json", "--trace", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        let id = stream.id().to_string();
        assert_eq!(all["report"]["stream_names"], serde_json::json!([id]), "{name}");
        let trace = std::fs::read_to_string(&path).unwrap();
        assert!(trace.contains(&format!("\"stream {id}\"")), "{trace}");
    }
}

#[test]
fn help_teaches() {
    let output = replay("two_streams.rmm.csv", &["--help"]);
    let (stdout, _) = said(&output);
    for words in [
        "Examples:",
        "--bisect --step 1MiB",
        "_record_memory_history",
        "Exit status",
        "What is counted:",
    ] {
        assert!(stdout.contains(words), "{words} is not in\n{stdout}");
    }
}
