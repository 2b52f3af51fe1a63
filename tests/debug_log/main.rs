//! What pools tell `tracing`, what a subscriber may do meanwhile, and the log file.

mod double_frees;
#[cfg(feature = "debug-log")]
mod file;
#[path = "../support/kernels.rs"]
mod kernels;
#[path = "../support/log.rs"]
mod log;
#[path = "../support/mod.rs"]
mod support;

use crate::kernels::add_one;
use aquifer::ipc::IpcExport;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, PoolResource,
    Stream,
    mr::{
        AsyncResource, CallbackResource, Handles, MissPolicy, MissStep, TracedAdaptor,
        VirtualResource,
    },
};
use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, OnceLock};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

const MIB: usize = 1 << 20;

/// What is compiled in.
fn cut() -> LevelFilter {
    let levels = [
        (cfg!(feature = "log-level-off"), LevelFilter::OFF),
        (cfg!(feature = "log-level-error"), LevelFilter::ERROR),
        (cfg!(feature = "log-level-warn"), LevelFilter::WARN),
        (cfg!(feature = "log-level-info"), LevelFilter::INFO),
        (cfg!(feature = "log-level-debug"), LevelFilter::DEBUG),
    ];
    levels.iter().find(|(on, _)| *on).map_or(LevelFilter::TRACE, |(_, level)| *level)
}

fn is_in(level: Level) -> bool {
    level <= cut()
}

#[derive(Debug, Default)]
struct Told {
    target: String,
    fields: BTreeMap<String, String>,
}

impl Told {
    fn message(&self) -> &str {
        &self.fields["message"]
    }

    fn number(&self, field: &str) -> u64 {
        self.fields[field].parse().unwrap()
    }
}

impl Visit for Told {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name().into(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.fields.insert(field.name().into(), format!("{value:?}"));
    }
}

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<(Level, Told)>>>);

impl<S: Subscriber> Layer<S> for Heard {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut told = Told { target: metadata.target().into(), ..Told::default() };
        event.record(&mut told);
        self.0.lock().unwrap().push((*metadata.level(), told));
    }
}

impl Heard {
    /// What `body` said of pools on this thread, where it was compiled in.
    fn of<R>(body: impl FnOnce() -> R) -> (R, Vec<(Level, Told)>) {
        log::keep_wanted();
        let heard = Self::default();
        let subscriber = tracing_subscriber::registry().with(heard.clone());
        let result = tracing::subscriber::with_default(subscriber, body);
        let mut told = std::mem::take(&mut *heard.0.lock().unwrap());
        told.retain(|(_, told)| told.target.starts_with("aquifer"));
        assert!(told.iter().all(|(level, _)| is_in(*level)), "{told:?}");
        (result, told)
    }
}

/// The one event with this message, if its level is compiled in.
#[track_caller]
fn one<'a>(told: &'a [(Level, Told)], level: Level, message: &str) -> Option<&'a Told> {
    let mut found = told.iter().filter(|(_, told)| told.message() == message);
    if !is_in(level) {
        assert!(found.next().is_none(), "{told:?}");
        return None;
    }
    let Some((of, event)) = found.next() else { panic!("no `{message}`: {told:?}") };
    assert_eq!(*of, level);
    assert!(found.next().is_none(), "{told:?}");
    let targets = ["aquifer::pool", "aquifer::driver_pool", "aquifer::ipc"];
    assert!(targets.contains(&event.target.as_str()));
    Some(event)
}

fn take<R: DeviceResource>(resource: &R, stream: &Stream, bytes: usize) -> DeviceBlock {
    resource.allocate(stream, DeviceLayout::new(bytes).unwrap()).unwrap()
}

fn give<R: DeviceResource>(resource: &R, stream: &Stream, block: DeviceBlock) {
    // SAFETY: the tests give no work to blocks, and each back to where it came from, once.
    unsafe { resource.deallocate(stream, block) };
}

fn pool_of(
    device: &aquifer::Device,
    steps: &[MissStep],
    maximum: usize,
) -> PoolResource<CudaResource> {
    PoolResource::builder(CudaResource::new(device))
        .handles(Handles::Off)
        .growth_step(MIB)
        .maximum_size(maximum)
        .miss_policy(MissPolicy::new(steps.iter().copied()))
        .build()
        .unwrap()
}

#[test]
fn a_pool_tells_of_its_life() {
    let device = support::unfollowed();
    let stream = device.new_stream().unwrap();
    let ((), told) = Heard::of(|| {
        let pool = pool_of(&device, &[MissStep::GrowToMaximum], 4 * MIB);
        let block = take(&pool, &stream, 1000);
        give(&pool, &stream, block);
        assert_eq!(pool.wait_and_trim(0).unwrap(), MIB);
        let _ = take(&pool, &stream, 2 * MIB);
        let refused = pool.allocate(&stream, DeviceLayout::new(8 * MIB).unwrap()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    });
    let grown: Vec<_> = told.iter().filter(|(_, told)| told.message() == "pool grew").collect();
    assert_eq!(grown.len(), if is_in(Level::DEBUG) { 2 } else { 0 });
    if let [(first, one), (_, two)] = grown[..] {
        assert_eq!(*first, Level::DEBUG);
        assert_eq!((one.number("asked"), one.number("bytes")), (1024, MIB as u64));
        assert_eq!((one.number("stream"), one.number("device")), (stream.id(), 0));
        assert_eq!((one.number("reserved"), two.number("reserved")), (MIB as u64, 2 * MIB as u64));
        assert_eq!(one.number("pool"), two.number("pool"));
        one.number("elapsed_ns");
    }
    if let Some(made) = one(&told, Level::DEBUG, "pool made") {
        assert_eq!((made.number("initial"), made.number("maximum")), (0, 4 * MIB as u64));
        assert_eq!(made.fields["handles"], "false");
    }
    if let Some(back) = one(&told, Level::DEBUG, "gave memory back") {
        let sizes = ["blocks", "bytes", "reserved"].map(|field| back.number(field));
        assert_eq!(sizes, [1, MIB as u64, 0]);
    }
    if let Some(refused) = one(&told, Level::WARN, "out of memory") {
        let sizes = ["asked", "reserved", "live", "maximum"].map(|field| refused.number(field));
        assert_eq!(sizes, [8, 2, 2, 4].map(|mib| mib * MIB as u64));
        assert_eq!(refused.fields["steps"], "[GrowToMaximum]");
    }
    if let Some(end) = one(&told, Level::DEBUG, "pool ended") {
        assert_eq!((end.number("bytes"), end.number("leaked")), (0, 2 * MIB as u64));
    }
}

/// The messages that are errors.
fn errors(told: &[(Level, Told)]) -> Vec<&str> {
    let is_error = |(level, _): &&(Level, Told)| *level == Level::ERROR;
    told.iter().filter(is_error).map(|(_, told)| told.message()).collect()
}

#[test]
fn a_pool_that_ends_without_memory_in_a_capture_leaks_nothing() {
    // The pool ends after the capture, on whichever thread asks for memory first, and tells its subscriber.
    if !support::in_own_process(
        module_path!(),
        "a_pool_that_ends_without_memory_in_a_capture_leaks_nothing",
    ) {
        return;
    }
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, &[MissStep::GrowToMaximum], MIB);
    let block = take(&pool, &stream, 1000);
    give(&pool, &stream, block);
    assert_eq!(pool.wait_and_trim(0).unwrap(), MIB);
    simulator.start_capture(&stream).unwrap();
    let ((), told) = Heard::of(|| drop(pool));
    assert_eq!(errors(&told), [""; 0], "{told:?}");
    assert!(simulator.stop_capture(&stream));
}

#[test]
fn a_report_is_no_leak_of_the_pools_that_end_after_it() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let plain = CudaResource::new(&device);
    // SAFETY: wrong on purpose: it is read before it is written.
    let nothing = unsafe { DeviceVec::<u8>::uninit_in(&stream, 16, plain) }.unwrap();
    let pool = pool_of(&device, &[MissStep::GrowToMaximum], MIB);
    let block = take(&pool, &stream, 1000);
    give(&pool, &stream, block);
    assert!(nothing.to_vec().is_err());
    let ((), told) = Heard::of(|| drop(pool));
    assert_eq!(errors(&told), [""; 0], "{told:?}");
    let ((), told) = Heard::of(|| drop(nothing));
    assert_eq!(errors(&told), [""; 0], "{told:?}");
    assert_eq!(simulator.take_reports().len(), 1);
}

#[test]
fn memory_that_changes_streams_is_told() {
    let device = support::unfollowed();
    let (first, second) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    for (step, message) in [
        (MissStep::Wait, "took a block of another stream"),
        (MissStep::Gather, "gathered free memory"),
    ] {
        let pool = pool_of(&device, &[step, MissStep::GrowToMaximum], MIB);
        let block = take(&pool, &first, MIB);
        give(&pool, &first, block);
        let (block, told) = Heard::of(|| take(&pool, &second, MIB));
        let told = one(&told, Level::DEBUG, message);
        if let Some(told) = told {
            assert_eq!(told.number("stream"), second.id());
        }
        match (step, told) {
            (MissStep::Wait, Some(told)) => {
                assert_eq!((told.number("from"), told.number("bytes")), (first.id(), MIB as u64));
                // A GPU may be past it already.
                assert!(["waited", "ordered", "complete"].contains(&told.fields["how"].as_str()));
            }
            (_, Some(told)) => assert_eq!(told.number("asked"), MIB as u64),
            (_, None) => assert!(!is_in(Level::DEBUG)),
        }
        give(&pool, &second, block);
    }
}

#[test]
fn memory_that_is_mapped_is_told() {
    let device = support::unfollowed();
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
    let (block, told) = Heard::of(|| take(&pool, &stream, 3 * MIB));
    if let Some(told) = one(&told, Level::DEBUG, "mapped memory") {
        assert_eq!((told.number("asked"), told.number("moved")), (3 * MIB as u64, 0));
        assert_eq!((told.number("new"), told.number("reserved")), (4 << 20, 4 << 20));
    }
    give(&pool, &stream, block);
    let (given, told) = Heard::of(|| pool.wait_and_trim(0).unwrap());
    assert_eq!(given, 4 << 20);
    if let Some(told) = one(&told, Level::DEBUG, "gave memory back") {
        let numbers = ["blocks", "bytes", "reserved"].map(|name| told.number(name));
        assert_eq!(numbers, [2, 4 << 20, 0]);
    }
}

#[test]
fn memory_of_other_processes_is_told() {
    let (device, _) = support::simulated(aquifer::sim::SimConfig::default());
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::<u8>::zeroed_in(&stream, 100, CudaResource::new(&device)).unwrap();
    let handle = vec.slice(10..).unwrap().ipc_handle().unwrap();
    let ((), told) = Heard::of(|| {
        // SAFETY: the vector outlives it, and nothing writes.
        drop(unsafe { handle.open::<u8>(&stream) }.unwrap());
    });
    for message in ["opened memory of another process", "closed memory of another process"] {
        let Some(event) = one(&told, Level::DEBUG, message) else { continue };
        assert_eq!(event.target, "aquifer::ipc");
        let process = u64::from(std::process::id());
        assert_eq!((event.number("bytes"), event.number("process")), (90, process));
    }
}

#[test]
fn driver_pools_and_refused_captures_are_told() {
    let device = support::unfollowed();
    let stream = device.new_stream().unwrap();
    let ((), told) = Heard::of(|| {
        let pool = AsyncResource::builder(&device).initial_size(MIB).build().unwrap();
        pool.trim(4096).unwrap();
    });
    if let Some(made) = one(&told, Level::DEBUG, "driver pool made") {
        assert_eq!(made.number("initial"), MIB as u64);
        let trimmed = one(&told, Level::DEBUG, "driver pool trimmed").unwrap();
        assert_eq!(trimmed.number("keep"), 4096);
        assert_eq!(trimmed.number("handle"), made.number("handle"));
    }
    let (declared, other) =
        (pool_of(&device, &[MissStep::Grow], MIB), pool_of(&device, &[MissStep::Grow], MIB));
    let (_, told) = Heard::of(|| {
        stream
            .capture(&declared, |stream| {
                let refused = other.allocate(stream, DeviceLayout::new(64)?).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Capture);
                Ok::<(), aquifer::Error>(())
            })
            .map(drop)
            .unwrap();
    });
    if let Some(refused) = one(&told, Level::WARN, "refused a stream in capture") {
        assert_eq!(refused.number("asked"), 64);
    }
}

#[test]
fn a_driver_that_is_gone_is_an_error_in_the_log() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, &[MissStep::GrowToMaximum], MIB);
    simulator.lose_context();
    let (error, told) =
        Heard::of(|| pool.allocate(&stream, DeviceLayout::new(64).unwrap()).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::ContextLost);
    if let Some(lost) = one(&told, Level::ERROR, "device lost") {
        let upstream = &lost.fields["error"];
        assert!(error.to_string().ends_with(&format!(": {upstream}")), "{error}; {upstream}");
    }
}

/// What a hostile subscriber has: the pools and a stream.
type Outer = PoolResource<PoolResource<TracedAdaptor<CudaResource>>>;
static POOLS: OnceLock<(Outer, Stream)> = OnceLock::new();

/// Takes from the pool that tells, so much that the pool has to do more than give what is there.
struct Takes(Arc<Mutex<usize>>);

impl<S: Subscriber> Layer<S> for Takes {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if !event.metadata().target().starts_with("aquifer") {
            return;
        }
        let Some((pool, stream)) = POOLS.get() else { return };
        for bytes in [256, 3 * MIB, 256 * MIB] {
            if let Ok(block) = pool.allocate(stream, DeviceLayout::new(bytes).unwrap()) {
                give(pool, stream, block);
            }
        }
        let _ = pool.wait_and_trim(0);
        assert!(pool.statistics().reserved <= 32 * MIB);
        *self.0.lock().unwrap() += 1;
    }
}

const CHILD: &str = "AQUIFER_TEST_DEBUG_LOG_CHILD";

/// Runs one test of this file in a process of its own.
fn child(name: &str, set: &[(&str, &std::path::Path)]) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env_remove("AQUIFER_DEBUG_LOG_FILE")
        .env_remove("RMM_DEBUG_LOG_FILE")
        .env(CHILD, "1")
        .envs(set.iter().copied())
        .output()
        .unwrap()
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Ends a child that hangs.
fn hurry() {
    #[cfg(unix)]
    // SAFETY: a timer of this process, which the test started for itself.
    unsafe {
        libc::alarm(60);
    }
}

#[test]
fn a_subscriber_may_allocate_from_the_pool_that_tells() {
    let name = "a_subscriber_may_allocate_from_the_pool_that_tells";
    if !is_child() {
        let output = child(name, &[]);
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && out.contains("1 passed"), "{output:?}");
        return;
    }
    hurry();
    let device = support::unfollowed();
    let stream = device.new_stream().unwrap();
    let inner = PoolResource::builder(TracedAdaptor::new(CudaResource::new(&device)))
        .growth_step(MIB)
        .build()
        .unwrap();
    let all = MissPolicy::new([
        MissStep::Wait,
        MissStep::GrowToMaximum,
        MissStep::Gather,
        MissStep::Trim,
    ]);
    let outer = PoolResource::builder(inner)
        .growth_step(MIB)
        .maximum_size(32 * MIB)
        .miss_policy(all)
        .build()
        .unwrap();
    POOLS.set((outer.clone(), device.new_stream().unwrap())).unwrap();
    let calls = Arc::new(Mutex::new(0));
    // For the whole process: such a one is called again from inside of its own calls.
    let subscriber = tracing_subscriber::registry().with(Takes(calls.clone()));
    tracing::subscriber::set_global_default(subscriber).unwrap();
    for bytes in [1000, 3 * MIB, 20 * MIB, 31 * MIB, 24 * MIB, 32 * MIB, 64 * MIB] {
        if let Ok(block) = outer.allocate(&stream, DeviceLayout::new(bytes).unwrap()) {
            assert_eq!(outer.statistics().live, block.bytes());
            give(&outer, &stream, block);
        }
    }
    outer.wait_and_trim(0).unwrap();
    let statistics = outer.statistics();
    assert_eq!((statistics.live, statistics.reserved), (0, 0));
    let calls = *calls.lock().unwrap();
    assert!(if is_in(Level::DEBUG) { calls > 10 } else { calls <= 1 }, "{calls} calls");
}

/// A pool whose upstream has something to say while the pool trims, grows or ends.
type Troubled = PoolResource<CallbackResource>;
static TROUBLED: OnceLock<(Troubled, Stream)> = OnceLock::new();

struct TakesFromTroubled(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber> Layer<S> for TakesFromTroubled {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some((pool, stream)) = TROUBLED.get() else { return };
        if let Ok(block) = pool.allocate(stream, DeviceLayout::new(3 * MIB).unwrap()) {
            give(pool, stream, block);
        }
        let _ = pool.wait_and_trim(usize::MAX);
        let mut told = Told::default();
        event.record(&mut told);
        self.0.lock().unwrap().push(told.message().to_owned());
    }
}

#[test]
fn what_an_upstream_tells_waits_for_the_locks_of_the_pool() {
    let name = "what_an_upstream_tells_waits_for_the_locks_of_the_pool";
    if !is_child() {
        let output = child(name, &[]);
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && out.contains("1 passed"), "{output:?}");
        return;
    }
    hurry();
    // Of its own, to have reports of.
    let device = aquifer::Device::simulated(SimConfig::default());
    let (stream, upstream) = (device.new_stream().unwrap(), CudaResource::new(&device));
    let allocate = move |stream: &Stream, layout| upstream.allocate(stream, layout);
    // SAFETY: the blocks are a resource's that keeps the contract; none goes back.
    let troubled =
        unsafe { CallbackResource::new(&device, allocate, |_, _| panic!("a callback fails")) };
    let pool = PoolResource::builder(troubled).growth_step(MIB).build().unwrap();
    TROUBLED.set((pool.clone(), device.new_stream().unwrap())).unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let subscriber = tracing_subscriber::registry().with(TakesFromTroubled(told.clone()));
    tracing::subscriber::set_global_default(subscriber).unwrap();
    give(&pool, &stream, take(&pool, &stream, MIB));
    pool.wait_and_trim(0).unwrap();
    // SAFETY: read by the device alone, which reports it when the trim waits for it.
    let nothing = unsafe { DeviceVec::<u32>::uninit_in(&stream, MIB / 4, Arc::new(pool.clone())) };
    let mut nothing = nothing.unwrap();
    add_one(&stream, &mut nothing).unwrap();
    drop(nothing);
    let _ = pool.wait_and_trim(0);
    let told = told.lock().unwrap();
    for part in ["leaked device memory: a callback panicked", "simulated device: "] {
        let count = told.iter().filter(|message| message.contains(part)).count();
        assert_eq!(count > 0, is_in(Level::ERROR), "{part}: {told:?}");
    }
}

type Traced = PoolResource<TracedAdaptor<CudaResource>>;
static TRACED: OnceLock<(Traced, Stream)> = OnceLock::new();

/// Takes from the pool when it is asked whether it wants an event.
struct TakesWhenAsked(Arc<Mutex<[usize; 2]>>);

impl<S: Subscriber> Layer<S> for TakesWhenAsked {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        if let Some((pool, stream)) = TRACED.get()
            && metadata.target().starts_with("aquifer")
        {
            give(pool, stream, take(pool, stream, 3 * MIB));
            let _ = pool.wait_and_trim(usize::MAX);
            self.0.lock().unwrap()[0] += 1;
        }
        true
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.0.lock().unwrap()[1] += usize::from(event.metadata().target() == "aquifer::memory");
    }
}

#[test]
fn no_subscriber_is_asked_under_the_locks_of_a_pool() {
    let name = "no_subscriber_is_asked_under_the_locks_of_a_pool";
    if !is_child() {
        let output = child(name, &[]);
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && out.contains("1 passed"), "{output:?}");
        return;
    }
    hurry();
    let device = support::unfollowed();
    let stream = device.new_stream().unwrap();
    let upstream = TracedAdaptor::new(CudaResource::new(&device));
    let pool = PoolResource::builder(upstream).growth_step(MIB).build().unwrap();
    TRACED.set((pool.clone(), device.new_stream().unwrap())).unwrap();
    let counts = Arc::new(Mutex::new([0; 2]));
    let subscriber = tracing_subscriber::registry().with(TakesWhenAsked(counts.clone()));
    tracing::subscriber::set_global_default(subscriber).unwrap();
    for bytes in [1000, 8 * MIB] {
        give(&pool, &stream, take(&pool, &stream, bytes));
    }
    pool.wait_and_trim(0).unwrap();
    let [asked, told] = *counts.lock().unwrap();
    assert_eq!(asked > 0, is_in(Level::DEBUG));
    assert_eq!(told >= 4, is_in(Level::TRACE), "{told}");
}

struct Panics;

impl<S: Subscriber> Layer<S> for Panics {
    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        panic!("a subscriber fails");
    }
}

#[test]
fn a_subscriber_that_panics_costs_no_memory() {
    let device = support::unfollowed();
    let (first, second) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let subscriber = tracing_subscriber::registry().with(Panics);
    tracing::subscriber::with_default(subscriber, || {
        let steps = [MissStep::Wait, MissStep::GrowToMaximum, MissStep::Gather, MissStep::Trim];
        let pool = pool_of(&device, &steps, 4 * MIB);
        for bytes in [1000, MIB, 3 * MIB] {
            for stream in [&first, &second] {
                let block = take(&pool, stream, bytes);
                let refused = pool.allocate(stream, DeviceLayout::new(8 * MIB).unwrap());
                assert_eq!(refused.unwrap_err().kind(), ErrorKind::OutOfMemory);
                let statistics = pool.statistics();
                assert_eq!((statistics.live, statistics.live_blocks), (block.bytes(), 1));
                give(&pool, stream, block);
            }
        }
        assert_eq!(pool.statistics().live, 0);
        pool.wait_and_trim(0).unwrap();
        assert_eq!(pool.statistics().reserved, 0);
        // Ends with a block in use: an error in the log, from inside of a destructor.
        let _ = take(&pool, &first, 1000);
        drop(pool);
    });
}
