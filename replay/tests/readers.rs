//! Every format is read into the same events, and what is wrong in one is named with its place.

use aquifer_replay::event::{Action, BEFORE, Event, Log, StreamKind};
use aquifer_replay::plan::{Plan, Problem, What};
use aquifer_replay::read::{Format, ReadError, read};
use aquifer_replay::warning::Part;
use std::path::PathBuf;

fn log(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/logs").join(name)
}

fn events(name: &str) -> Log {
    read(&log(name), None, None).unwrap()
}

fn names(log: &Log) -> Vec<&str> {
    log.streams.iter().map(|stream| stream.name.as_str()).collect()
}

#[test]
fn rmm() {
    let log = events("two_streams.rmm.csv");
    assert_eq!(log.events.len(), 8);
    assert_eq!(log.threads, ["140001"]);
    // `0`, `default` and `legacy` are one stream; a handle is one in hex and in decimal. The name is
    // the first spelling.
    assert_eq!(names(&log), ["0", "0x557e194cb810", "94000000000016"]);
    assert_eq!(log.streams[0].kind, StreamKind::Default);
    assert_eq!(log.streams[1].kind, StreamKind::Other);
    assert_eq!(
        log.events[1],
        Event {
            index: 1,
            line: 3,
            thread: 0,
            time: Some(1000),
            action: Action::Allocate,
            address: 0x7f00_0000_0400,
            size: Some(2000),
            stream: 1,
        }
    );
    let failure = log.events[4];
    assert_eq!(
        (failure.action, failure.address, failure.size),
        (Action::Failure, 0, Some(1 << 40))
    );
    assert_eq!(
        log.events.iter().map(|event| event.stream).collect::<Vec<_>>(),
        [0, 1, 0, 2, 0, 1, 0, 0]
    );
    let plan = Plan::new(&log);
    assert_eq!((plan.steps.len(), plan.slots, plan.failures), (7, 4, 1));
    assert_eq!((plan.peak_live, plan.leaks), (3500, 1));
    assert_eq!(plan.problems, []);
}

#[test]
fn rmm_on_threads_past_midnight() {
    let log = events("threads.rmm.csv");
    assert_eq!(log.threads, ["11", "22", "33"]);
    assert_eq!(names(&log), ["per-thread of thread 11", "per-thread of thread 22", "default"]);
    assert_eq!(log.streams[0].kind, StreamKind::PerThread);
    let times: Vec<_> = log.events.iter().map(|event| event.time.unwrap() / 1_000_000).collect();
    assert_eq!(times, [0, 50, 100, 200, 250, 300, 350, 400]);
    let plan = Plan::new(&log);
    assert_eq!((plan.peak_live, plan.leaks, plan.slots), (3 << 20, 0, 4));
}

/// As aquifer's own logging adaptor writes it.
#[test]
fn failures_in_nbep_7s_columns() {
    let log = events("failure.events.csv");
    let actions: Vec<_> = log.events.iter().map(|event| event.action).collect();
    assert_eq!(actions, [Action::Allocate, Action::Failure, Action::Free]);
    assert_eq!((log.events[1].address, log.events[1].size), (0, Some(1 << 40)));
    let plan = Plan::new(&log);
    assert_eq!((plan.steps.len(), plan.failures, plan.peak_live), (2, 1, 4096));
    assert_eq!(plan.problems, []);
}

#[test]
fn nbep_7() {
    let log = events("two_devices.events.csv");
    assert_eq!((log.events.len(), log.device, log.other_devices), (4, Some(0), 1));
    assert_eq!(names(&log), ["0", "0x5581"]);
    assert_eq!(log.events[1].time, Some(500_000_000));
    assert_eq!(log.events[1].line, 4);
    let plan = Plan::new(&log);
    assert_eq!((plan.peak_live, plan.leaks), (12288, 0));
    let other = read(&self::log("two_devices.events.csv"), None, Some(1)).unwrap();
    assert_eq!((other.events.len(), other.events[0].size, other.other_devices), (1, Some(9999), 4));
    let none = read(&self::log("two_devices.events.csv"), None, Some(2)).unwrap_err();
    assert!(matches!(none, ReadError::NoDevice { device: 2, .. }), "{none}");
}

#[test]
fn torch_snapshots() {
    let log = events("snapshot.pickle");
    assert_eq!((log.device, log.other_devices, log.line_word), (Some(1), 1, "record"));
    let actions: Vec<_> = log.events.iter().map(|event| event.action).collect();
    use Action::{Allocate, Failure, Free};
    assert_eq!(actions, [Allocate, Allocate, Free, Allocate, Failure, Free]);
    assert_eq!(log.events.iter().map(|event| event.line).collect::<Vec<_>>(), [2, 3, 5, 6, 7, 9]);
    assert_eq!(log.events[1].time, Some(10_000));
    assert_eq!(names(&log), ["0", "21889"]);
    let plan = Plan::new(&log);
    assert_eq!((plan.peak_live, plan.leaks, plan.failures), ((3 << 19) + 512, 1, 1));
}

/// One that began in the middle of its program: what was live before is at the front.
#[test]
fn torch_snapshots_that_began_in_the_middle() {
    let log = events("before.pickle");
    use Action::{Allocate, Free};
    let found: Vec<_> =
        log.events.iter().map(|e| (e.line, e.action, e.address, e.size.unwrap())).collect();
    let [a, b, c, d] = [0, 1 << 20, 2 << 20, 0x1000_0000].map(|offset| 0x7f2a_0000_0000 + offset);
    assert_eq!(
        found,
        [
            (BEFORE, Allocate, a, 1_000_000),
            (BEFORE, Allocate, b, 700_000),
            (BEFORE, Allocate, d, 2 << 20),
            (2, Free, b, 700_000),
            (3, Allocate, c, 1 << 20),
        ]
    );
    assert!(log.events.iter().enumerate().all(|(at, event)| event.index == at));
    let times: Vec<_> = log.events.iter().map(|event| event.time).collect();
    assert_eq!(times, [Some(0), Some(0), Some(0), Some(0), Some(9000)]);
    assert_eq!(log.streams[log.events[2].stream].name, "21889");
    let plan = Plan::new(&log);
    assert_eq!((plan.peak_live, plan.leaks, plan.problems.len()), (4_145_728, 3, 0));
    let told: Vec<_> = plan.warnings.iter().map(|w| (w.part, w.number, w.bytes)).collect();
    assert_eq!(
        told,
        [
            (Part::Overflowed, 6, 0),
            (Part::LiveBefore, 3, 3_797_152),
            (Part::UnknownAction, 1, 512),
            (Part::Expandable, 1, 2 << 20),
            (Part::PassedOver, 2, 1_748_576),
            (Part::PendingFree, 1, 1 << 20),
            (Part::PrivateLive, 1, 2 << 20),
            (Part::PrivateFree, 1, 2 << 20),
            (Part::LiveOnOtherDevices, 1, 2 << 20),
            (Part::OtherDevices, 1, 2 << 20),
            (Part::HostLive, 1, 4096),
            (Part::HostRecords, 1, 4096),
        ]
    );
}

/// What RMM 26.10's and PyTorch 2.11's own adaptors wrote on a GPU, cut to their first few hundred
/// records and their failures, the snapshot's frames to three each. The sums were taken from the
/// files with Python's `csv` and `pickle`.
#[test]
fn logs_that_the_others_wrote() {
    let rmm = Plan::new(&events("rmm-26.10.csv"));
    assert_eq!((rmm.peak_live, rmm.leaks, rmm.failures), (60_561_549, 22, 4));
    assert_eq!(rmm.problems, []);
    let torch = Plan::new(&events("torch-2.11.pickle"));
    assert_eq!((torch.peak_live, torch.leaks, torch.failures), (100_200_452, 60, 1));
    assert_eq!(torch.problems, []);
}

#[test]
fn a_wrong_cell_is_named() {
    let error = read(&log("wrong_size.rmm.csv"), None, None).unwrap_err();
    assert!(matches!(error, ReadError::Cell { line: 3, column: "Size", .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.ends_with(
            "wrong_size.rmm.csv:3: column Size: expected a size in bytes, found \"many\""
        ),
        "{text}"
    );
}

#[test]
fn a_wrong_record_is_named() {
    let error = read(&log("not_a_snapshot.pickle"), None, None).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "snapshot.pickle: record 2 (device_traces[0][1]['size']): expected a size in bytes, an \
             int, found a string"
        ),
        "{error}"
    );
    let error = read(&log("threads.rmm.csv"), Some(Format::Torch), None).unwrap_err();
    assert!(matches!(error, ReadError::NoPickle { .. }), "{error}");
    let error = read(&log("snapshot.pickle"), Some(Format::Rmm), None).unwrap_err();
    assert!(matches!(error, ReadError::IsPickle { asked: "rmm", .. }), "{error}");
}

#[test]
fn a_file_of_another_kind_is_refused() {
    let error = read(&log("snapshot.py"), None, None).unwrap_err();
    assert!(matches!(error, ReadError::Unknown { .. }), "{error}");
    let error = read(&log("threads.rmm.csv"), Some(Format::Events), None).unwrap_err();
    assert!(matches!(error, ReadError::Header { column: "Event Type", .. }), "{error}");
    let error = read(&log("absent.csv"), None, None).unwrap_err();
    assert!(matches!(error, ReadError::Open { .. }), "{error}");
}

/// The number of a line is that of its start, whatever empty lines are before it, blank ones or ends in
/// its own quotes.
#[test]
fn lines_have_the_numbers_that_an_editor_shows() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("numbers.csv");
    let text = "\n\nThread,Time,Action,Pointer,Size,Stream\n\
                1,00:00:00.1,allocate,0x1000,1,16\n\n\n\
                1,00:00:00.1,allocate,0x2000,1,\"a\n\nb\n\"\n\n \n\
                1,00:00:00.1,allocate,0x3000,1,16\n\n\n\n\
                1,00:00:00.1,allocate,0x4000,1,16";
    for text in [String::from(text), text.replace('\n', "\r\n"), format!("{text}\n\n")] {
        std::fs::write(&path, &text).unwrap();
        let log = read(&path, None, None).unwrap();
        let lines: Vec<u64> = log.events.iter().map(|event| event.line).collect();
        assert_eq!(lines, [4, 7, 13, 17], "{text:?}");
        assert_eq!(log.unended, (!text.ends_with('\n')).then_some(17), "{text:?}");
    }
}

#[test]
fn what_cannot_have_happened_is_told_with_its_line() {
    let plan = Plan::new(&events("impossible.rmm.csv"));
    assert_eq!(
        plan.problems,
        [
            Problem::AllocatedTwice { line: 3, address: 0x1000, before: 2 },
            Problem::FreedUnknown { line: 4, address: 0x2000 },
        ]
    );
    let words: Vec<_> = plan.problems.iter().map(|problem| problem.in_words("line")).collect();
    assert_eq!(
        words,
        [
            "0x1000 is allocated again, without a free since line 2",
            "0x2000 is freed while it is not allocated",
        ]
    );
    assert_eq!(plan.problems.iter().map(Problem::line).collect::<Vec<_>>(), [3, 4]);
    let record = plan.problems[0].in_words("record");
    assert_eq!(record, "0x1000 is allocated again, without a free since record 2");
    // The lost free is made up for.
    let what: Vec<_> = plan.steps.iter().map(|step| step.what).collect();
    assert_eq!(
        what,
        [
            What::Allocate { slot: 0, size: 1000 },
            What::Free { slot: 0 },
            What::Allocate { slot: 1, size: 3000 },
            What::Free { slot: 1 },
        ]
    );
    assert_eq!((plan.peak_live, plan.leaks), (3000, 0));
}
