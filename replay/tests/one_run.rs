//! The report, the curves, the trace and the picture are of one and the same run.

use aquifer_replay::engine::{Replayed, replay};
use aquifer_replay::plan::Plan;
use aquifer_replay::read::read;
use aquifer_replay::stack::{Options, Resource};
use aquifer_replay::{picture, trace};
use bytesize::ByteSize;
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

const RESOURCES: [Resource; 6] = [
    Resource::Pool,
    Resource::Binning,
    Resource::Arena,
    Resource::Cuda,
    Resource::Async,
    Resource::Managed,
];

/// A log of 1500 operations: four threads, each with a stream of its own, blocks of 64 KiB to 4 MiB,
/// and frees by any thread.
fn drawn(name: &str, seed: u64) -> Plan {
    let mut text = String::from("Thread,Time,Action,Pointer,Size,Stream\n");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut below = |most: u64| random.u64(..most);
    let mut live: Vec<(u64, u64)> = Vec::new();
    for at in 0..1500_u64 {
        let thread = below(4);
        let free = live.len() > 100 || (!live.is_empty() && below(100) < 55);
        let (action, (address, size)) = if free {
            ("free", live.swap_remove(below(live.len() as u64) as usize))
        } else {
            let least = 1 << (16 + below(6));
            live.push(((at + 1) << 23, least + below(least)));
            ("allocate", live[live.len() - 1])
        };
        let stream = thread + 16;
        // Writing to a string does not fail.
        let _ = writeln!(text, "{thread},00:00:00.0,{action},{address:#x},{size},{stream}");
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    Plan::new(&read(&path, None, None).unwrap())
}

fn replayed(plan: &Plan, resource: Resource) -> Replayed {
    let options = Options { resource, capacity: Some(4 << 30), ..Options::default() };
    replay(plan, &options, &|_| {}).unwrap()
}

fn most(values: &[u64]) -> u64 {
    values.iter().copied().max().unwrap()
}

/// The counters of a name in a trace: their largest value.
fn most_of(trace: &Value, name: &str) -> u64 {
    let events = trace["traceEvents"].as_array().unwrap();
    let counters = events.iter().filter(|event| event["ph"] == "C" && event["name"] == name);
    counters.map(|counter| counter["args"]["bytes"].as_u64().unwrap()).max().unwrap()
}

/// A pool that was asked for its statistics on the way took 55,190,272 bytes for the log of seed 78,
/// and 55,040,768 where it was not.
#[test]
fn trace_picture_and_report_are_of_one_run() {
    for seed in [1, 4, 78] {
        let plan = drawn("one_run.csv", seed);
        for resource in RESOURCES {
            let case = format!("seed {seed}, {resource:?}");
            let all = replayed(&plan, resource);
            let Replayed { report, observation } = &all;
            assert_eq!(report.failures, [], "{case}");
            assert_eq!(observation.placed.len(), report.served, "{case}");
            assert_eq!(most(&observation.live), report.peak_live, "{case}");
            assert_eq!(most(&observation.reserved), report.peak_reserved, "{case}");
            let mut text = Vec::new();
            trace::write(&plan, &all, &mut text).unwrap();
            let traced: Value = serde_json::from_slice(&text).unwrap();
            let again: Value =
                serde_json::from_str(&serde_json::to_string(report).unwrap()).unwrap();
            assert_eq!(traced["otherData"], again, "{case}");
            assert_eq!(most_of(&traced, "live"), report.peak_live, "{case}");
            assert_eq!(most_of(&traced, "reserved"), report.peak_reserved, "{case}");
            let drawn = picture::draw(&plan, &all);
            let [live, reserved] = [report.peak_live, report.peak_reserved].map(ByteSize::b);
            let words = format!("peak live {live}, peak reserved {reserved}");
            assert!(drawn.contains(&words), "{case}: {words}");
        }
    }
}

#[test]
fn the_same_log_gives_the_same_report() {
    let plan = drawn("same.csv", 78);
    for resource in RESOURCES {
        let figures = || {
            let Replayed { mut report, observation } = replayed(&plan, resource);
            (report.wall_ns, report.ns_per_operation) = (0, 0.0);
            (serde_json::to_value(report).unwrap(), observation.live, observation.reserved)
        };
        let first = figures();
        assert_eq!(first, figures(), "{resource:?}");
        assert_eq!(first, figures(), "{resource:?}");
    }
}

/// A log of many operations on three streams: small and large blocks, and one free in five on another
/// stream. The pool asks now and then which streams are past their work.
fn mixed(name: &str, threads: u64) -> Plan {
    const SIZES: [u64; 8] = [1, 100, 256, 1000, 4096, 65536, 1 << 20, 3 << 20];
    let mut random = fastrand::Rng::with_seed(1);
    let mut below = |most: u64| random.u64(..most);
    let mut text = String::from("Thread,Time,Action,Pointer,Size,Stream\n");
    let mut live: Vec<(u64, u64, u64)> = Vec::new();
    for at in 0..20_000_u64 {
        let (action, (address, size, mut stream)) = if !live.is_empty() && below(100) < 48 {
            ("free", live.swap_remove(below(live.len() as u64) as usize))
        } else {
            let size = SIZES[below(8) as usize] + below(64);
            live.push(((at + 1) << 22, size, 16 + below(3)));
            ("allocate", live[live.len() - 1])
        };
        if action == "free" && below(5) == 0 {
            stream = 16 + below(3);
        }
        let thread = below(threads);
        // Writing to a string does not fail.
        let _ = writeln!(text, "{thread},00:00:00.0,{action},{address:#x},{size},{stream}");
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    Plan::new(&read(&path, None, None).unwrap())
}

/// Run side by side, so that none has its core for itself.
#[test]
fn a_long_log_of_several_streams_gives_the_same_report() {
    for threads in [1, 4] {
        let plan = mixed("mixed.csv", threads);
        // As much as it needs, and so little that the pool looks for memory.
        let little = Some(plan.peak_live + plan.peak_live / 50);
        for (resource, capacity) in
            [(Resource::Pool, None), (Resource::Pool, little), (Resource::Binning, None)]
        {
            let options = Options { resource, capacity, ..Options::default() };
            let figures = || {
                let Replayed { mut report, observation } =
                    replay(&plan, &options, &|_| {}).unwrap();
                (report.wall_ns, report.ns_per_operation) = (0, 0.0);
                (serde_json::to_value(report).unwrap(), observation.reserved)
            };
            let first = figures();
            std::thread::scope(|scope| {
                let runs: Vec<_> = (0..4).map(|_| scope.spawn(figures)).collect();
                for run in runs {
                    // Not `assert_eq`, which would print every step.
                    let same = first == run.join().unwrap();
                    assert!(same, "{threads} threads, {resource:?} of {capacity:?}");
                }
            });
        }
    }
}
