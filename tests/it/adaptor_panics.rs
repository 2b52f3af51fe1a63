//! Adaptors among people who misbehave: callbacks that recurse, subscribers and upstreams that panic.

use crate::support;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, ErrorKind, PoolResource,
    Result, Stream,
    mr::{
        AlignedAdaptor, ArenaResource, AsyncResource, BinningResource, CheckedAdaptor,
        FailureCallbackAdaptor, FixedSizeResource, LimitingAdaptor, LocalDeviceResource, LogFormat,
        LoggingAdaptor, ManagedResource, PrefetchAdaptor, SystemResource, ThreadSafeAdaptor,
        TracedAdaptor, TrackingAdaptor,
    },
    pinned::PinnedResource,
};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use support::{free, layout};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

const KIB: usize = 1024;

fn copy(of: &DeviceBlock) -> DeviceBlock {
    DeviceBlock::new(of.address(), of.bytes(), of.token())
}

/// Panics as often as it is spoken to, without a word to the terminal.
struct Loud(Arc<AtomicUsize>);

impl<S: tracing::Subscriber> Layer<S> for Loud {
    fn on_event(&self, _: &tracing::Event<'_>, _: Context<'_, S>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        resume_unwind(Box::new("a subscriber that panics"));
    }
}

/// Runs `body` under a subscriber that panics; gives how often it was spoken to.
fn under_a_loud_one(body: impl FnOnce()) -> usize {
    let spoken = Arc::new(AtomicUsize::new(0));
    let subscriber = tracing_subscriber::registry().with(Loud(spoken.clone()));
    tracing::subscriber::with_default(subscriber, body);
    spoken.load(Ordering::Relaxed)
}

/// A bound for a single allocation is none if the callback's own allocations call it again.
#[test]
fn a_callback_that_allocates_from_its_own_adaptor_does_not_recurse() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let limited = LimitingAdaptor::new(CudaResource::new(&device), KIB);
    let own: Arc<OnceLock<FailureCallbackAdaptor<LimitingAdaptor<CudaResource>>>> = Arc::default();
    let (calls, deepest, now) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let counts = Arc::new((calls, deepest, now));
    let (inner, of_callback, on) = (own.clone(), counts.clone(), stream.clone());
    let options = FailureCallbackAdaptor::builder(limited).max_retries(2);
    let adaptor = options
        .build(move |failure| {
            let (calls, deepest, now) = &*of_callback;
            let depth = now.fetch_add(1, Ordering::Relaxed) + 1;
            deepest.fetch_max(depth, Ordering::Relaxed);
            // A stack that overflows would take the tests with it.
            if calls.fetch_add(1, Ordering::Relaxed) < 1000 {
                let result = inner.get().unwrap().allocate(&on, failure.layout());
                assert_eq!(result.unwrap_err().kind(), ErrorKind::OutOfMemory);
            }
            now.fetch_sub(1, Ordering::Relaxed);
            true
        })
        .unwrap();
    assert!(own.set(adaptor.clone()).is_ok());
    let error = adaptor.allocate(&stream, layout(2 * KIB)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let (calls, deepest, _) = &*counts;
    assert_eq!((calls.load(Ordering::Relaxed), deepest.load(Ordering::Relaxed)), (2, 1));
    // The next allocation of this thread has its callback again.
    adaptor.allocate(&stream, layout(2 * KIB)).unwrap_err();
    assert_eq!(calls.load(Ordering::Relaxed), 4);
}

/// Two that call each other are as one that calls itself; one that calls another is not.
#[test]
fn callbacks_of_two_adaptors_do_not_recurse_through_each_other() {
    type Patient = FailureCallbackAdaptor<LimitingAdaptor<CudaResource>>;
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let both: Arc<OnceLock<[Patient; 2]>> = Arc::default();
    let calls = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let make = |of: usize| {
        let (both, calls, on) = (both.clone(), calls.clone(), stream.clone());
        let limited = LimitingAdaptor::new(CudaResource::new(&device), KIB);
        let options = FailureCallbackAdaptor::builder(limited).max_retries(1);
        options
            .build(move |failure| {
                if calls[of].fetch_add(1, Ordering::Relaxed) < 1000 {
                    let other = &both.get().unwrap()[1 - of];
                    other.allocate(&on, failure.layout()).unwrap_err();
                }
                true
            })
            .unwrap()
    };
    assert!(both.set([make(0), make(1)]).is_ok());
    both.get().unwrap()[0].allocate(&stream, layout(2 * KIB)).unwrap_err();
    assert_eq!(calls.each_ref().map(|calls| calls.load(Ordering::Relaxed)), [1, 1]);
}

/// What it throws panics when it is dropped.
#[test]
fn what_a_callback_throws_is_not_dropped_on_the_caller() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            resume_unwind(Box::new("thrown by what was thrown"));
        }
    }
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let limited = LimitingAdaptor::new(CudaResource::new(&device), 0);
    let adaptor = FailureCallbackAdaptor::new(limited, |_| resume_unwind(Box::new(Bomb)));
    let result = catch_unwind(AssertUnwindSafe(|| adaptor.allocate(&stream, layout(1))));
    assert_eq!(result.unwrap().unwrap_err().kind(), ErrorKind::OutOfMemory);
}

/// Callbacks below every resource of this crate that grows, which free into it and take from it.
#[test]
fn a_callback_below_a_resource_may_use_that_resource() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    type Erased = Arc<dyn DeviceResource>;
    type Below = FailureCallbackAdaptor<LimitingAdaptor<CudaResource>>;
    type Maker = fn(Below) -> Erased;
    type Kept = Option<(Erased, Vec<DeviceBlock>)>;
    let makers: [(&str, Maker); 3] = [
        ("pool", |below| Arc::new(PoolResource::new(below).unwrap())),
        ("fixed size", |below| {
            let options = FixedSizeResource::builder(below).block_size(64 * KIB);
            Arc::new(options.blocks_per_chunk(1).build().unwrap())
        }),
        ("binning", |below| Arc::new(BinningResource::new(below).unwrap())),
    ];
    for (name, make) in makers {
        let slot: Arc<Mutex<Kept>> = Arc::default();
        let called = Arc::new(AtomicBool::new(false));
        let (inside, of_callback, on) = (slot.clone(), called.clone(), stream.clone());
        let limited = LimitingAdaptor::new(CudaResource::new(&device), 80 << 20);
        let below = FailureCallbackAdaptor::new(limited, move |_| {
            of_callback.store(true, Ordering::Relaxed);
            let Some((resource, blocks)) = &mut *inside.lock().unwrap() else { return false };
            let Some(block) = blocks.pop() else { return false };
            free(&**resource, &on, block);
            if let Ok(block) = resource.allocate(&on, layout(KIB)) {
                free(&**resource, &on, block);
            }
            false
        });
        let resource = make(below);
        let (done, finished) = std::sync::mpsc::channel();
        let (from, on) = (resource.clone(), stream.clone());
        std::thread::spawn(move || {
            let mut own = Vec::new();
            while own.len() < 10_000 {
                match from.allocate(&on, layout(64 * KIB)) {
                    Ok(block) if own.len() < 4 => {
                        own.push(copy(&block));
                        let mut slot = slot.lock().unwrap();
                        let (_, blocks) = slot.get_or_insert_with(|| (from.clone(), Vec::new()));
                        blocks.push(block);
                    }
                    Ok(block) => own.push(block),
                    Err(_) => break,
                }
            }
            let taken = own.len();
            let left = slot.lock().unwrap().take().map_or(Vec::new(), |(_, blocks)| blocks);
            let mine = own.split_off(4.min(own.len()));
            for block in left.into_iter().chain(mine) {
                free(&*from, &on, block);
            }
            let _ = done.send(taken);
        });
        let taken = finished.recv_timeout(std::time::Duration::from_secs(60));
        assert!(taken.is_ok_and(|taken| taken > 4), "{name}: a deadlock, or nothing to free");
        assert!(called.load(Ordering::Relaxed), "{name}");
    }
}

/// Panics in each call, against its contract.
#[derive(Debug)]
struct Broken(CudaResource);

// SAFETY: hands out nothing.
unsafe impl DeviceResource for Broken {
    fn device(&self) -> &Device {
        self.0.device()
    }

    fn allocate(&self, _: &Stream, _: DeviceLayout) -> Result<DeviceBlock> {
        resume_unwind(Box::new("broken"))
    }

    unsafe fn deallocate(&self, _: &Stream, _: DeviceBlock) {}
}

#[test]
fn an_upstream_that_panics_takes_nothing_of_the_limit() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let limited = LimitingAdaptor::new(Broken(CudaResource::new(&device)), 4 * KIB);
    for _ in 0..3 {
        let call = AssertUnwindSafe(|| limited.allocate(&stream, layout(3 * KIB)));
        assert!(catch_unwind(call).is_err());
        assert_eq!((limited.allocated(), limited.remaining()), (0, 4 * KIB));
    }
}

#[test]
fn a_subscriber_that_panics_costs_no_block() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let limited = LimitingAdaptor::new(CudaResource::new(&device), 64 * KIB);

    let traced = TracedAdaptor::new(limited.clone());
    let spoken = under_a_loud_one(|| {
        let block = traced.allocate(&stream, layout(KIB)).unwrap();
        free(&traced, &stream, block);
        traced.allocate(&stream, layout(65 * KIB)).unwrap_err();
    });
    assert_eq!((spoken, limited.allocated()), (3, 0), "traced");

    let tracking = TrackingAdaptor::new(limited.clone());
    let spoken = under_a_loud_one(|| {
        let block = tracking.allocate(&stream, layout(KIB)).unwrap();
        free(&tracking, &stream, DeviceBlock::new(block.address(), 1, block.token()));
        let block = limited.allocate(&stream, layout(KIB)).unwrap();
        free(&tracking, &stream, block);
        let block = tracking.allocate(&stream, layout(KIB)).unwrap();
        tracking.log_outstanding();
        let kept = copy(&block);
        drop(tracking);
        free(&limited, &stream, kept);
    });
    // The size, the unknown block, the report when asked for, and the last.
    assert_eq!((spoken, limited.allocated()), (4, 0), "tracking");

    let checked = CheckedAdaptor::new(limited.clone());
    let told = CheckedAdaptor::builder(limited.clone())
        .on_misuse(|_| resume_unwind(Box::new("told")))
        .build();
    let spoken = under_a_loud_one(|| {
        for checked in [&checked, &told] {
            let block = checked.allocate(&stream, layout(KIB)).unwrap();
            let again = copy(&block);
            free(checked, &stream, block);
            free(checked, &stream, again);
        }
    });
    assert_eq!((spoken, limited.allocated()), (2, 0), "checked");
    assert_eq!((checked.misuses(), told.misuses()), (1, 1));

    let patient = FailureCallbackAdaptor::new(limited, |_| resume_unwind(Box::new("no")));
    let spoken = under_a_loud_one(|| {
        let error = patient.allocate(&stream, layout(65 * KIB)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    });
    assert_eq!(spoken, 1, "failure callback");
}

/// Frees the blocks of its own adaptor that are spare, from inside of each call.
#[derive(Debug)]
struct Reentrant {
    memory: LimitingAdaptor<CudaResource>,
    back: Arc<OnceLock<ThreadSafeAdaptor<Reentrant>>>,
    spare: Arc<Mutex<Vec<DeviceBlock>>>,
    panics: Arc<AtomicBool>,
}

impl Reentrant {
    fn free_one(&self, stream: &Stream) {
        let block = self.spare.lock().unwrap().pop();
        if let (Some(back), Some(block)) = (self.back.get(), block) {
            free(back, stream, block);
        }
    }
}

// SAFETY: blocks are the driver's own.
unsafe impl LocalDeviceResource for Reentrant {
    fn device(&self) -> &Device {
        self.memory.device()
    }

    fn allocate(&mut self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.free_one(stream);
        if self.panics.load(Ordering::Relaxed) {
            resume_unwind(Box::new("inside"));
        }
        self.memory.allocate(stream, layout)
    }

    unsafe fn deallocate(&mut self, stream: &Stream, block: DeviceBlock) {
        self.free_one(stream);
        // SAFETY: the caller's promise.
        unsafe { self.memory.deallocate(stream, block) }
    }
}

#[test]
fn what_is_freed_inside_of_a_locked_call_goes_back_after_it() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let memory = LimitingAdaptor::new(CudaResource::new(&device), 16 * KIB);
    let (back, spare) = (Arc::new(OnceLock::new()), Arc::<Mutex<Vec<DeviceBlock>>>::default());
    let panics = Arc::new(AtomicBool::new(false));
    let shared = ThreadSafeAdaptor::new(Reentrant {
        memory: memory.clone(),
        back: back.clone(),
        spare: spare.clone(),
        panics: panics.clone(),
    });
    assert!(back.set(shared.clone()).is_ok());
    let take = |count: usize| {
        let blocks: Vec<_> =
            (0..count).map(|_| shared.allocate(&stream, layout(KIB)).unwrap()).collect();
        spare.lock().unwrap().extend(blocks);
        assert_eq!(memory.allocated(), count * KIB);
    };
    // Of three, one is freed by the call, and the others by the frees that follow.
    take(3);
    let block = shared.allocate(&stream, layout(KIB)).unwrap();
    assert_eq!(memory.allocated(), KIB);
    free(&shared, &stream, block);
    // By a look, and on the way of a panic.
    take(2);
    let block = spare.lock().unwrap().pop().unwrap();
    shared.inspect(|_| free(&shared, &stream, block)).unwrap();
    assert_eq!(memory.allocated(), 0);
    take(1);
    panics.store(true, Ordering::Relaxed);
    let call = AssertUnwindSafe(|| shared.allocate(&stream, layout(KIB)));
    assert!(catch_unwind(call).is_err());
    assert_eq!(memory.allocated(), 0);
}

/// An empty block of an upstream that gives all of them one address.
#[derive(Debug)]
struct OneEmpty(CudaResource);

// SAFETY: blocks are the driver's, and an empty one has no memory.
unsafe impl DeviceResource for OneEmpty {
    fn device(&self) -> &Device {
        self.0.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        match layout.bytes() {
            0 => Ok(DeviceBlock::new(256, 0, 0)),
            _ => self.0.allocate(stream, layout),
        }
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        if !block.is_empty() {
            // SAFETY: the caller's promise.
            unsafe { self.0.deallocate(stream, block) }
        }
    }
}

#[test]
fn no_memory_has_no_alignment_to_miss() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pages = AlignedAdaptor::new(OneEmpty(CudaResource::new(&device)), 4 * KIB, 0).unwrap();
    let block = pages.allocate(&stream, layout(0)).unwrap();
    assert!(block.is_empty());
    free(&pages, &stream, block);
}

/// Every adaptor that can stand over any resource; those of the log write to a sink.
fn stack(upstream: Arc<dyn DeviceResource>) -> Vec<(&'static str, Arc<dyn DeviceResource>)> {
    let logged = |format| {
        let options = LoggingAdaptor::builder(upstream.clone()).writer(Box::new(std::io::sink()));
        options.format(format).build().unwrap()
    };
    let checked = CheckedAdaptor::builder(upstream.clone()).poison(Some(0xAB)).build();
    vec![
        ("aligned", Arc::new(AlignedAdaptor::new(upstream.clone(), 4 * KIB, 0).unwrap())),
        ("limiting", Arc::new(LimitingAdaptor::new(upstream.clone(), 1 << 20))),
        ("tracking", Arc::new(TrackingAdaptor::new(upstream.clone()))),
        ("logging", Arc::new(logged(LogFormat::Rmm))),
        ("logging events", Arc::new(logged(LogFormat::Events))),
        ("failure callback", Arc::new(FailureCallbackAdaptor::new(upstream.clone(), |_| true))),
        ("prefetch", Arc::new(PrefetchAdaptor::new(upstream.clone()))),
        ("checked", Arc::new(checked)),
        ("traced", Arc::new(TracedAdaptor::new(upstream))),
    ]
}

/// With a pool below, whose blocks are there without a driver call; a capture that is not declared.
#[test]
fn no_adaptor_disturbs_a_capture_or_leaves_anything_in_it() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let managed = ManagedResource::new(&device).unwrap();
    let pool = PoolResource::builder(managed).initial_size(1 << 20).build().unwrap();
    for (name, adaptor) in stack(Arc::new(pool.clone())) {
        let warm = adaptor.allocate(&stream, layout(KIB)).unwrap();
        free(&*adaptor, &stream, warm);
        stream.synchronize().unwrap();
        let calls =
            || ["cuMemsetAsync", "cuMemPrefetchAsync"].map(|call| simulator.call_count(call));
        let before = calls();
        simulator.start_capture(&stream).unwrap();
        let block = adaptor.allocate(&stream, layout(KIB));
        let block = block.unwrap_or_else(|error| panic!("{name}: {error}"));
        free(&*adaptor, &stream, block);
        assert!(simulator.stop_capture(&stream), "{name}");
        assert_eq!(calls(), before, "{name}");
    }
    simulator.check().unwrap();
}

#[test]
fn a_lost_device_is_an_error_through_each_adaptor_and_costs_no_count() {
    for index in 0..9 {
        let (device, simulator) = support::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let below = LimitingAdaptor::new(CudaResource::new(&device), 1 << 20);
        let (name, adaptor) = stack(Arc::new(below.clone())).swap_remove(index);
        let block = adaptor.allocate(&stream, layout(KIB)).unwrap();
        simulator.lose_context();
        for _ in 0..3 {
            let error = adaptor.allocate(&stream, layout(KIB)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ContextLost, "{name}");
            assert_eq!(below.allocated(), block.bytes(), "{name}");
        }
        free(&*adaptor, &stream, block);
        assert_eq!(below.allocated(), 0, "{name}");
        assert!(!format!("{adaptor:?}").is_empty());
    }
}

/// Blocks change hands between threads and addresses come again at once: nothing of it is a misuse,
/// and nothing is left.
#[test]
fn books_of_many_threads_see_no_misuse_where_there_is_none() {
    const ROUNDS: usize = 3000;
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let checked = CheckedAdaptor::builder(TrackingAdaptor::new(pool)).poison(None).build();
    let parked: Mutex<Vec<DeviceBlock>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let block = checked.allocate(&stream, layout(256 << (round % 3))).unwrap();
                    let mut parked = parked.lock().unwrap();
                    parked.push(block);
                    let chosen = round % parked.len();
                    let block = parked.swap_remove(chosen);
                    drop(parked);
                    free(&checked, &stream, block);
                }
            });
        }
    });
    assert!(parked.into_inner().unwrap().is_empty());
    let tracking = checked.upstream();
    let odd = [tracking.unknown_frees(), tracking.wrong_size_frees(), tracking.bypassing_frees()];
    assert_eq!((checked.misuses(), odd, tracking.allocated_bytes()), (0, [0; 3], 0));
}

/// The fill is work on the block like any other, so each resource has to wait for it.
#[test]
fn poison_is_in_order_over_each_resource() {
    let (device, simulator) = support::simulated(SimConfig::default().seed(7));
    let streams = [(); 2].map(|()| device.new_stream().unwrap());
    let cuda = || CudaResource::new(&device);
    let upstreams: Vec<(&str, Arc<dyn DeviceResource>)> = vec![
        ("cuda", Arc::new(cuda())),
        ("managed", Arc::new(ManagedResource::new(&device).unwrap())),
        ("pinned", Arc::new(PinnedResource::new(&device).unwrap())),
        ("system", Arc::new(SystemResource::new(&device).unwrap())),
        ("async", Arc::new(AsyncResource::new(&device).unwrap())),
        ("pool", Arc::new(PoolResource::new(cuda()).unwrap())),
        ("fixed size", Arc::new(FixedSizeResource::new(cuda()).unwrap())),
        ("binning", Arc::new(BinningResource::new(cuda()).unwrap())),
        ("arena", Arc::new(ArenaResource::new(cuda()).unwrap())),
    ];
    for (name, upstream) in upstreams {
        let filled = simulator.call_count("cuMemsetAsync");
        let checked = CheckedAdaptor::builder(upstream).poison(Some(0xAB)).build();
        for round in 0..40 {
            let stream = &streams[round % 2];
            let blocks = [300, 4000, 70_000].map(|bytes| {
                checked.allocate(stream, layout(bytes)).unwrap_or_else(|e| panic!("{name}: {e}"))
            });
            for block in blocks {
                free(&checked, stream, block);
            }
        }
        assert_eq!(checked.misuses(), 0, "{name}");
        assert_eq!(simulator.call_count("cuMemsetAsync") - filled, 120, "{name}");
        drop(checked);
        simulator.check().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    device.synchronize().unwrap();
    simulator.check().unwrap();
}
