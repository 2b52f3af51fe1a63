//! Logs of what is allocated: their rows, their order, and that nothing is lost.

use crate::{log as said, support};
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, ErrorKind, PoolResource,
    Stream,
    mr::{HostAccessible, LogFormat, LoggingAdaptor},
    pinned::PinnedResource,
};
use std::collections::HashSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, OnceLock};
use support::layout;
use tracing_subscriber::layer::SubscriberExt;

const RMM_HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";
const EVENTS_HEADER: &str = "Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,\
                             Total Memory,Current Allocs,Start,End,Elapsed,Location";

/// More than any device has.
const TOO_MUCH: usize = 1 << 46;

/// A file of the test's own, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("aquifer-{}-{name}.csv", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Text that the test can read while the log has it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn pair<R: DeviceResource>(resource: &R, stream: &Stream, bytes: usize) {
    let block = resource.allocate(stream, layout(bytes)).unwrap();
    // SAFETY: allocated above on this stream; nothing uses it.
    unsafe { resource.deallocate(stream, block) };
}

/// The fields of the rows after the header, which is checked. No field of these tests is quoted.
fn rows<'a>(text: &'a str, header: &str) -> Vec<Vec<&'a str>> {
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(header));
    let columns = header.split(',').count();
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == columns), "{text}");
    assert!(text.ends_with('\n'));
    rows
}

/// As RMM's replay benchmark reads a pointer.
fn pointer(field: &str) -> u64 {
    u64::from_str_radix(field.strip_prefix("0x").unwrap(), 16).unwrap()
}

/// Checks that no address is allocated while it is, and gives how many were allocated.
fn check_order(rows: &[Vec<&str>], action: usize, address: usize, names: [&str; 2]) -> usize {
    let mut live = HashSet::new();
    let mut allocated = 0;
    for row in rows {
        let pointer = pointer(row[address]);
        if row[action] == names[0] {
            assert!(live.insert(pointer), "{row:?} is allocated already");
            allocated += 1;
        } else {
            assert_eq!(row[action], names[1]);
            assert!(live.remove(&pointer), "{row:?} was not allocated");
        }
    }
    assert!(live.is_empty());
    allocated
}

#[test]
fn rmm_rows_stand_in_order_under_the_header() {
    let device = support::device();
    let scratch = Scratch::new("rmm");
    let (own, legacy) = (device.new_stream().unwrap(), device.default_stream());
    let logged = LoggingAdaptor::new(CudaResource::new(&device), &scratch.0).unwrap();
    let first = logged.allocate(&own, layout(1000)).unwrap();
    let second = logged.allocate(&legacy, layout(4096)).unwrap();
    let empty = logged.allocate(&own, layout(0)).unwrap();
    let addresses = [first.address(), second.address()];
    let error = logged.allocate(&own, layout(TOO_MUCH)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    // SAFETY: allocated above on these streams; nothing uses them.
    unsafe {
        logged.deallocate(&own, first);
        logged.deallocate(&legacy, second);
        logged.deallocate(&own, empty);
    }
    logged.flush().unwrap();
    let text = scratch.text();
    let rows = rows(&text, RMM_HEADER);
    let own = own.id().to_string();
    let expected = [
        ("allocate", addresses[0], 1000, own.as_str()),
        ("allocate", addresses[1], 4096, "0"),
        ("allocate failure", 0, TOO_MUCH, &own),
        ("free", addresses[0], 1000, &own),
        ("free", addresses[1], 4096, "0"),
    ];
    assert_eq!(rows.len(), expected.len(), "{text}");
    let thread = rows[0][0];
    assert!(thread.parse::<u64>().unwrap() > 0);
    let mut last = "";
    for (row, (action, address, bytes, stream)) in rows.iter().zip(expected) {
        assert_eq!((row[0], row[2], row[5]), (thread, action, stream));
        assert_eq!((pointer(row[3]), row[4].parse()), (address, Ok(bytes)));
        let form: String =
            row[1].chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(form, "00:00:00.000000");
        // But for the moment after midnight.
        assert!(row[1] >= last || row[1].starts_with("00:"), "{text}");
        last = row[1];
    }
}

#[test]
fn event_rows_say_how_long_and_what_is_left() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let shared = Shared::default();
    let logged = LoggingAdaptor::builder(CudaResource::new(&device))
        .writer(Box::new(shared.clone()))
        .format(LogFormat::Events)
        .build()
        .unwrap();
    let blocks = [1000, 4096].map(|bytes| logged.allocate(&stream, layout(bytes)).unwrap());
    logged.allocate(&stream, layout(TOO_MUCH)).unwrap_err();
    let addresses = blocks.each_ref().map(|block| block.address());
    for block in blocks {
        // SAFETY: allocated above on this stream; nothing uses it.
        unsafe { logged.deallocate(&stream, block) };
    }
    logged.flush().unwrap();
    let text = shared.text();
    let rows = rows(&text, EVENTS_HEADER);
    let expected = [
        ("Alloc", addresses[0], 1000, "1"),
        ("Alloc", addresses[1], 4096, "2"),
        ("Alloc failure", 0, TOO_MUCH, "2"),
        ("Free", addresses[0], 1000, "1"),
        ("Free", addresses[1], 4096, "0"),
    ];
    assert_eq!(rows.len(), expected.len(), "{text}");
    let total = device.memory_info().unwrap().total;
    for (row, (event, address, bytes, live)) in rows.iter().zip(expected) {
        assert_eq!((row[0], row[1], row[7]), (event, "0", live));
        assert_eq!((pointer(row[2]), row[4].parse()), (address, Ok(bytes)));
        assert_eq!(row[3], stream.id().to_string());
        assert!(row[5].parse::<u64>().unwrap() <= total as u64);
        assert_eq!(row[6].parse(), Ok(total));
        let [start, end, elapsed] = [8, 9, 10].map(|at| row[at].parse::<f64>().unwrap());
        assert!(0.0 <= start && start < end && end < 600.0, "{text}");
        assert!((end - start - elapsed).abs() < 1e-8);
        assert_eq!(row[11], "");
    }
}

#[test]
fn rows_far_apart_have_the_free_memory_of_their_time() {
    const UNLOGGED: usize = 256 << 20;
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let shared = Shared::default();
    let plain = CudaResource::new(&device);
    let logged = LoggingAdaptor::builder(plain.clone())
        .writer(Box::new(shared.clone()))
        .format(LogFormat::Events)
        .build()
        .unwrap();
    pair(&logged, &stream, 1000);
    logged.flush().unwrap();
    let block = plain.allocate(&stream, layout(UNLOGGED)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(10));
    pair(&logged, &stream, 1000);
    logged.flush().unwrap();
    // SAFETY: allocated above on this stream; nothing uses it.
    unsafe { plain.deallocate(&stream, block) };
    let text = shared.text();
    let rows = rows(&text, EVENTS_HEADER);
    let free: Vec<u64> = rows.iter().map(|row| row[5].parse().unwrap()).collect();
    assert!(free[0] - free[2] > UNLOGGED as u64 / 2, "{text}");
}

#[test]
fn locations_are_the_callers_lines() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let shared = Shared::default();
    let logged = LoggingAdaptor::builder(Arc::new(CudaResource::new(&device)))
        .writer(Box::new(shared.clone()))
        .format(LogFormat::Events)
        .locations(true)
        .build()
        .unwrap();
    let (block, line) = (logged.allocate(&stream, layout(64)).unwrap(), line!());
    // SAFETY: allocated above on this stream; nothing uses it.
    unsafe { logged.deallocate(&stream, block) };
    logged.flush().unwrap();
    let text = shared.text();
    let alloc = text.lines().nth(1).unwrap();
    assert!(alloc.ends_with(&format!("logging.rs:{line}")), "{alloc}");
    let free = text.lines().nth(2).unwrap();
    assert!(free.contains("logging.rs:") && !free.ends_with(&format!(":{line}")), "{free}");
}

#[test]
fn no_address_is_handed_out_twice_in_the_file() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    for format in [LogFormat::Rmm, LogFormat::Events] {
        let shared = Shared::default();
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        let logged = LoggingAdaptor::builder(pool)
            .writer(Box::new(shared.clone()))
            .format(format)
            .capacity(256)
            .build()
            .unwrap();
        let parked = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for round in 0..3000 {
                        let block = logged.allocate(&stream, layout(1 << (8 + round % 5))).unwrap();
                        // What one thread allocated, another frees.
                        let mut parked = parked.lock().unwrap();
                        parked.push(block);
                        let chosen = round % parked.len();
                        let block = parked.swap_remove(chosen);
                        drop(parked);
                        // SAFETY: allocated on this stream; nothing uses it.
                        unsafe { logged.deallocate(&stream, block) };
                    }
                });
            }
        });
        assert!(parked.lock().unwrap().is_empty());
        // The last clone's drop writes the rest.
        drop(logged);
        let text = shared.text();
        let allocated = match format {
            LogFormat::Rmm => check_order(&rows(&text, RMM_HEADER), 2, 3, ["allocate", "free"]),
            _ => {
                let rows = rows(&text, EVENTS_HEADER);
                assert!(rows.iter().all(|row| !row[9].is_empty() && !row[10].is_empty()));
                check_order(&rows, 0, 2, ["Alloc", "Free"])
            }
        };
        assert_eq!(allocated, 6000);
    }
}

#[test]
fn a_queue_of_two_loses_nothing() {
    let device = support::device();
    for format in [LogFormat::Rmm, LogFormat::Events] {
        let shared = Shared::default();
        let logged = LoggingAdaptor::builder(CudaResource::new(&device))
            .writer(Box::new(shared.clone()))
            .format(format)
            .capacity(2)
            .build()
            .unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let stream = device.new_stream().unwrap();
                    (0..250).for_each(|_| pair(&logged, &stream, 512));
                });
            }
        });
        logged.flush().unwrap();
        assert_eq!(shared.text().lines().count(), 1 + 4 * 250 * 2);
    }
}

/// Takes some bytes, then fails; after that a write would be a mistake.
struct Failing {
    room: usize,
    failed: bool,
}

impl Write for Failing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        assert!(!self.failed, "a log with a hole");
        if self.room == 0 {
            self.failed = true;
            return Err(io::Error::other("the disk is full of tests"));
        }
        let taken = bytes.len().min(self.room);
        self.room -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Panicking;

impl Write for Panicking {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        std::panic::resume_unwind(Box::new("a panic that prints nothing"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_log_that_cannot_be_written_says_so_and_stops_nobody() {
    let name = "a_log_that_cannot_be_written_says_so_and_stops_nobody";
    if !support::in_own_process(module_path!(), name) {
        return;
    }
    let said = said::Log::default();
    // Global, since the log's own thread speaks.
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(said.clone()))
        .unwrap();
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let logged = LoggingAdaptor::builder(CudaResource::new(&device))
        .writer(Box::new(Failing { room: 100, failed: false }))
        .capacity(4)
        .build()
        .unwrap();
    for _ in 0..50 {
        pair(&logged, &stream, 256);
    }
    for _ in 0..2 {
        let error = logged.flush().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        let text = error.to_string();
        assert!(text.contains("the disk is full of tests"), "{text}");
        // 100 bytes are the header and a row or two.
        let missing: u64 =
            text.split(|c: char| !c.is_ascii_digit()).rev().find_map(|n| n.parse().ok()).unwrap();
        assert!((97..=100).contains(&missing), "{text}");
    }
    assert_eq!(said.count(tracing::Level::ERROR, "the disk is full of tests"), 1);
    drop(logged);

    let logged = LoggingAdaptor::builder(CudaResource::new(&device))
        .writer(Box::new(Panicking))
        .capacity(4)
        .build()
        .unwrap();
    (0..50).for_each(|_| pair(&logged, &stream, 256));
    let error = logged.flush().unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
}

#[test]
fn options_are_checked() {
    let device = support::device();
    let builder =
        || LoggingAdaptor::builder(CudaResource::new(&device)).writer(Box::new(io::sink()));
    for options in
        [builder().capacity(0), builder().capacity(usize::MAX), builder().locations(true)]
    {
        assert_eq!(options.build().unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let nowhere = std::env::temp_dir().join("aquifer-no-such-folder").join("log.csv");
    let error = LoggingAdaptor::new(CudaResource::new(&device), &nowhere).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("aquifer-no-such-folder"), "{error}");
}

#[test]
fn clones_are_one_adaptor_and_another_is_another() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let shared = Shared::default();
    let make = |shared: &Shared| {
        LoggingAdaptor::builder(PinnedResource::new(&device).unwrap())
            .writer(Box::new(shared.clone()))
            .build()
            .unwrap()
    };
    let (one, other) = (make(&shared), make(&Shared::default()));
    let clone = one.clone();
    assert_eq!(one, clone);
    assert_eq!(one.identity(), clone.identity());
    assert_ne!(one, other);
    assert_ne!(one.identity(), other.identity());
    assert_ne!(one.identity(), one.upstream().identity());
    assert_eq!(one.device(), &*device);
    let block = one.allocate(&stream, layout(1024)).unwrap();
    // SAFETY: the block is live, and no device work uses it.
    unsafe { one.upstream().host_pointer(&block).write(7) };
    drop(one);
    // SAFETY: of this resource by a clone; nothing uses it.
    unsafe { clone.deallocate(&stream, block) };
    drop(clone);
    assert_eq!(check_order(&rows(&shared.text(), RMM_HEADER), 2, 3, ["allocate", "free"]), 1);
}

/// One address, which whoever comes next gets while the free that gave it back has not returned.
#[derive(Debug)]
struct OneAddress {
    device: Device,
    free: Mutex<Vec<u64>>,
}

// SAFETY: hands out one address at a time; nothing of this test uses the memory that is not there.
unsafe impl DeviceResource for OneAddress {
    fn device(&self) -> &Device {
        &self.device
    }

    fn allocate(&self, _: &Stream, layout: DeviceLayout) -> aquifer::Result<DeviceBlock> {
        loop {
            if let Some(address) = self.free.lock().unwrap().pop() {
                return Ok(DeviceBlock::new(address, layout.bytes(), 0));
            }
            std::thread::yield_now();
        }
    }

    unsafe fn deallocate(&self, _: &Stream, block: DeviceBlock) {
        self.free.lock().unwrap().push(block.address());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_free_stands_before_the_allocation_that_gets_its_address() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let shared = Shared::default();
    let upstream = OneAddress { device: device.clone(), free: Mutex::new(vec![0x1000]) };
    let logged =
        LoggingAdaptor::builder(upstream).writer(Box::new(shared.clone())).build().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..20).for_each(|_| pair(&logged, &stream, 512)));
        }
    });
    drop(logged);
    let text = shared.text();
    assert_eq!(check_order(&rows(&text, RMM_HEADER), 2, 3, ["allocate", "free"]), 40);
}

const CHILD: &str = "AQUIFER_TEST_LOG_CHILD";

/// Runs one test of this file in a process of its own.
fn child(name: &str, set: &[(&str, &std::path::Path)]) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("logging::{name}"), "--nocapture", "--test-threads=1"])
        .env_remove("AQUIFER_LOG_FILE")
        .env_remove("RMM_LOG_FILE")
        .env(CHILD, "1")
        .envs(set.iter().copied())
        .output()
        .unwrap()
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

#[test]
fn the_environment_names_the_file() {
    if is_child() {
        let device = support::device();
        match LoggingAdaptor::builder(CudaResource::new(&device)).build() {
            Ok(logged) => pair(&logged, &device.new_stream().unwrap(), 768),
            Err(error) => println!("{:?}: {error}", error.kind()),
        }
        return;
    }
    let name = "the_environment_names_the_file";
    let (ours, rmms) = (Scratch::new("ours"), Scratch::new("rmms"));
    let expect = |scratch: &Scratch| {
        assert_eq!(check_order(&rows(&scratch.text(), RMM_HEADER), 2, 3, ["allocate", "free"]), 1);
    };
    assert!(child(name, &[("RMM_LOG_FILE", &rmms.0)]).status.success());
    expect(&rmms);
    std::fs::remove_file(&rmms.0).unwrap();
    let both = [("RMM_LOG_FILE", rmms.0.as_path()), ("AQUIFER_LOG_FILE", &ours.0)];
    assert!(child(name, &both).status.success());
    expect(&ours);
    assert!(!rmms.0.exists());
    let neither = String::from_utf8(child(name, &[]).stdout).unwrap();
    assert!(
        neither.contains("InvalidArgument") && neither.contains("AQUIFER_LOG_FILE"),
        "{neither}"
    );
    let nowhere = std::env::temp_dir().join("aquifer-no-such-folder").join("log.csv");
    let wrong = String::from_utf8(child(name, &[("AQUIFER_LOG_FILE", &nowhere)]).stdout).unwrap();
    assert!(wrong.contains("Environment") && wrong.contains("AQUIFER_LOG_FILE"), "{wrong}");
}

static KEPT: OnceLock<LoggingAdaptor<CudaResource>> = OnceLock::new();

#[cfg(unix)]
#[test]
fn a_process_that_ends_loses_nothing_of_a_static_log() {
    const PAIRS: usize = 3000;
    if is_child() {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let logged = LoggingAdaptor::builder(CudaResource::new(&device)).build().unwrap();
        let logged = KEPT.get_or_init(|| logged);
        (0..PAIRS).for_each(|_| pair(logged, &stream, 256));
        std::process::exit(7);
    }
    let scratch = Scratch::new("static");
    let name = "a_process_that_ends_loses_nothing_of_a_static_log";
    let output = child(name, &[("AQUIFER_LOG_FILE", &scratch.0)]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let text = scratch.text();
    assert_eq!(check_order(&rows(&text, RMM_HEADER), 2, 3, ["allocate", "free"]), PAIRS);
}

#[cfg(unix)]
#[test]
fn the_child_of_a_fork_leaves_its_parents_log_alone() {
    const FORKS: usize = 10;
    let name = "the_child_of_a_fork_leaves_its_parents_log_alone";
    if is_child() {
        return forks(FORKS);
    }
    let scratch = Scratch::new("forks");
    let output = child(name, &[("AQUIFER_LOG_FILE", &scratch.0)]);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.contains("1 passed"), "{output:?}");
    let text = scratch.text();
    // Two for each fork, and those of the thread that never stopped.
    let allocated = check_order(&rows(&text, RMM_HEADER), 2, 3, ["allocate", "free"]);
    assert!(allocated > 2 * FORKS, "{allocated}");
}

#[cfg(unix)]
fn forks(times: usize) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let logged = LoggingAdaptor::builder(CudaResource::new(&device)).build().unwrap();
    let stop = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        // The queue is in use and its thread at work whenever a child is made.
        let (begun, wait) = std::sync::mpsc::channel();
        let (logged, stream, stop) = (&logged, &stream, &stop);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                pair(logged, stream, 512);
                logged.flush().unwrap();
                let _ = begun.send(());
            }
        });
        // On a busy machine the thread would come too late to be at work.
        wait.recv().unwrap();
        let result = (0..times).try_for_each(|_| {
            let block = logged.allocate(stream, layout(1024)).unwrap();
            // SAFETY: the child runs what is below, which is what it is about, and ends itself.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: ends a child that hangs.
                unsafe { libc::alarm(20) };
                let refused = logged.allocate(stream, layout(64)).map_err(|error| error.kind());
                // SAFETY: the block is of this resource; nothing uses it.
                unsafe { logged.deallocate(stream, block) };
                let flushed = logged.flush().map_err(|error| error.kind());
                let built = LoggingAdaptor::builder(logged.upstream().clone()).build();
                let right = matches!(refused, Err(ErrorKind::Forked))
                    && flushed == Err(ErrorKind::Forked)
                    && built.is_err_and(|error| error.kind() == ErrorKind::Forked);
                // SAFETY: a copy of what the parent owns, dropped as the last clone would be.
                drop(unsafe { std::ptr::read(logged) });
                let code = if right { 0 } else { 100 };
                if support::on_gpu() {
                    // SAFETY: ends the child; the driver's own handlers are not ours to try.
                    unsafe { libc::_exit(code) };
                }
                // With the handlers that the end of a process runs.
                // SAFETY: ends the child.
                unsafe { libc::exit(code) };
            }
            let mut status = 0;
            // SAFETY: waits for the child above.
            let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            // SAFETY: of this resource on this stream; nothing uses it.
            unsafe { logged.deallocate(stream, block) };
            pair(logged, stream, 2048);
            if waited == pid && status == 0 { Ok(()) } else { Err(status) }
        });
        stop.store(true, Ordering::Relaxed);
        result
    });
    assert_eq!(result, Ok(()));
}
