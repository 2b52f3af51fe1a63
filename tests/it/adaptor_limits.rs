//! Adaptors that refuse, ask for more, or try again: limiting, aligned, failure callback.

use crate::{log, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, Error, ErrorKind,
    PoolResource, Result, Stream,
    mr::{AlignedAdaptor, FailureCallbackAdaptor, LimitingAdaptor},
    pinned::PinnedResource,
};
use log::Log;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;
use support::{free, layout};

const KIB: usize = 1024;

/// The driver's memory, with what was asked and freed, and faults to order.
#[derive(Debug)]
struct Scripted {
    memory: CudaResource,
    asked: Mutex<Vec<DeviceLayout>>,
    freed: Mutex<Vec<(u64, usize)>>,
    /// These requests fail from here on, one after the other.
    failures: Mutex<Vec<ErrorKind>>,
    /// Bytes that each block has beyond those asked.
    surplus: AtomicUsize,
    /// Bytes that each address is moved by.
    shift: AtomicUsize,
    /// How long a free takes after the memory has gone back.
    slow_free: Duration,
}

impl Scripted {
    fn new(device: &Device) -> Arc<Self> {
        Self::slow(device, Duration::ZERO)
    }

    fn slow(device: &Device, slow_free: Duration) -> Arc<Self> {
        Arc::new(Self {
            memory: CudaResource::new(device),
            asked: Mutex::default(),
            freed: Mutex::default(),
            failures: Mutex::default(),
            surplus: AtomicUsize::new(0),
            shift: AtomicUsize::new(0),
            slow_free,
        })
    }

    fn asked(&self) -> Vec<(usize, usize)> {
        self.asked.lock().unwrap().iter().map(|asked| (asked.bytes(), asked.alignment())).collect()
    }

    fn fail(&self, kinds: &[ErrorKind]) {
        *self.failures.lock().unwrap() = kinds.iter().rev().copied().collect();
    }
}

// SAFETY: blocks are the driver's, of at least the bytes asked; a moved address is the fault that
// these tests order, and nobody works on such a block.
unsafe impl DeviceResource for Scripted {
    fn device(&self) -> &Device {
        self.memory.device()
    }

    fn allocate(&self, stream: &Stream, asked: DeviceLayout) -> Result<DeviceBlock> {
        self.asked.lock().unwrap().push(asked);
        if let Some(kind) = self.failures.lock().unwrap().pop() {
            return Err(Error::new(kind, "ordered by the test"));
        }
        let bytes = asked.bytes() + self.surplus.load(Ordering::Relaxed);
        let more = DeviceLayout::with_alignment(bytes, asked.alignment())?;
        let block = self.memory.allocate(stream, more)?;
        let address = block.address() + self.shift.load(Ordering::Relaxed) as u64;
        Ok(DeviceBlock::new(address, block.bytes(), block.token()))
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        self.freed.lock().unwrap().push((block.address(), block.bytes()));
        // SAFETY: the block is the driver's; the driver's resource finds it by its token.
        unsafe { self.memory.deallocate(stream, block) }
        std::thread::sleep(self.slow_free);
    }
}

#[test]
fn a_limit_counts_rounded_bytes_exactly() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let limited = LimitingAdaptor::new(CudaResource::new(&device), 10 * KIB);
    let refused = limited.allocate(&stream, layout(10 * KIB + 1)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    for named in
        ["allocating 10241 bytes", "limit of 10240 bytes, with 0 bytes allocated", "(ask for less"]
    {
        assert!(refused.to_string().contains(named), "{refused}");
    }
    let one = limited.allocate(&stream, layout(4 * KIB)).unwrap();
    assert_eq!((limited.allocated(), limited.remaining()), (4 * KIB, 6 * KIB));
    let two = limited.allocate(&stream, layout(4 * KIB)).unwrap();
    assert_eq!((limited.allocated(), limited.remaining()), (8 * KIB, 2 * KIB));
    let refused = limited.allocate(&stream, layout(6 * KIB)).unwrap_err();
    assert!(refused.to_string().contains("with 8192 bytes allocated (free"), "{refused}");
    assert_eq!(limited.allocated(), 8 * KIB, "a refusal counts nothing");
    free(&limited, &stream, one);
    assert_eq!(limited.allocated(), 4 * KIB);
    let three = limited.allocate(&stream, layout(6 * KIB)).unwrap();
    assert_eq!((limited.allocated(), limited.remaining()), (10 * KIB, 0));
    let nothing = limited.allocate(&stream, layout(0)).unwrap();
    assert_eq!(limited.allocated(), limited.limit());
    let refused = limited.allocate(&stream, layout(1)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    for block in [two, three, nothing] {
        free(&limited, &stream, block);
    }
    let byte = limited.allocate(&stream, layout(1)).unwrap();
    assert_eq!(limited.allocated(), 256, "a byte counts as the alignment");
    free(&limited, &stream, byte);
    assert_eq!(limited.allocated(), 0);
}

#[test]
fn a_limit_names_a_stream_of_another_device_before_it_is_full() {
    let (device, _) = support::simulated(SimConfig::default());
    let (other, _) = support::simulated(SimConfig::default());
    let limited = LimitingAdaptor::new(CudaResource::new(&device), KIB);
    let refused = limited.allocate(&other.new_stream().unwrap(), layout(2 * KIB)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WrongDevice);
    assert_eq!(limited.allocated(), 0);
}

#[test]
fn a_block_that_a_limit_never_handed_out_does_not_wrap_its_count() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let limited = LimitingAdaptor::new(CudaResource::new(&device), KIB);
    let foreign = limited.upstream().allocate(&stream, layout(KIB)).unwrap();
    free(&limited, &stream, foreign);
    assert_eq!((limited.allocated(), limited.remaining()), (0, KIB));
    let block = limited.allocate(&stream, layout(1)).unwrap();
    assert_eq!(limited.allocated(), 256);
    free(&limited, &stream, block);
}

#[test]
fn a_limit_below_a_limit_refuses_and_the_one_above_takes_it_back() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let inner = LimitingAdaptor::new(CudaResource::new(&device), 2 * KIB);
    let outer = LimitingAdaptor::new(inner.clone(), 5 * KIB);
    let refused = outer.allocate(&stream, layout(4 * KIB)).unwrap_err();
    assert!(refused.to_string().contains("limit of 2048"), "{refused}");
    assert_eq!((outer.allocated(), inner.allocated()), (0, 0));
    let block = outer.allocate(&stream, layout(2 * KIB)).unwrap();
    assert_eq!((outer.allocated(), outer.upstream().allocated()), (2 * KIB, 2 * KIB));
    free(&outer, &stream, block);
    assert_eq!((outer.allocated(), inner.allocated()), (0, 0));
}

#[test]
fn a_limit_never_wraps_and_is_not_asked_upstream_what_it_refuses() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let upstream = Scripted::new(&device);
    for alignment in [1, 256, 1 << 63] {
        let limit = isize::MAX as usize - 1;
        let limited = LimitingAdaptor::with_alignment(upstream.clone(), limit, alignment).unwrap();
        let most = DeviceLayout::with_alignment(isize::MAX as usize, 1).unwrap();
        let refused = limited.allocate(&stream, most).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{alignment}");
        assert_eq!((limited.allocated(), upstream.asked().len()), (0, 0), "{alignment}");
    }
    // A sum past the address space is refused, though the limit is the address space.
    let limited = LimitingAdaptor::with_alignment(upstream.clone(), usize::MAX, 1 << 63).unwrap();
    let block = limited.allocate(&stream, layout(1)).unwrap();
    assert_eq!(limited.allocated(), 1 << 63);
    assert_eq!(
        limited.allocate(&stream, layout(1)).unwrap_err().kind(),
        ErrorKind::OutOfMemory,
        "twice 2^63"
    );
    free(&limited, &stream, block);
    assert_eq!(limited.allocated(), 0);
    for alignment in [0, 3, 768] {
        let error = LimitingAdaptor::with_alignment(upstream.clone(), 1, alignment).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn what_upstream_refuses_or_adds_is_accounted_for() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let upstream = Scripted::new(&device);
    let limited = LimitingAdaptor::new(upstream.clone(), 4 * KIB);
    upstream.fail(&[ErrorKind::Driver]);
    assert_eq!(limited.allocate(&stream, layout(KIB)).unwrap_err().kind(), ErrorKind::Driver);
    assert_eq!(limited.allocated(), 0, "rolled back");

    upstream.surplus.store(KIB, Ordering::Relaxed);
    let block = limited.allocate(&stream, layout(KIB)).unwrap();
    assert_eq!((block.bytes(), limited.allocated()), (2 * KIB, 2 * KIB));
    let refused = limited.allocate(&stream, layout(2 * KIB)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    for named in [
        "allocating 2048 bytes (upstream gave 3072 bytes)",
        "4096 bytes, with 2048 bytes allocated",
    ] {
        assert!(refused.to_string().contains(named), "{refused}");
    }
    assert_eq!(limited.allocated(), 2 * KIB);
    assert_eq!(upstream.freed.lock().unwrap().len(), 1, "the block that was too large went back");
    free(&limited, &stream, block);
    assert_eq!(limited.allocated(), 0);
}

#[test]
fn threads_that_each_hold_one_of_as_many_units_are_never_refused() {
    const THREADS: usize = 8;
    let device = support::device();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let limited = LimitingAdaptor::new(pool, THREADS * 256);
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let stream = device.new_stream().unwrap();
                barrier.wait();
                for round in 0..2000 {
                    let block = limited.allocate(&stream, layout(200)).unwrap_or_else(|error| {
                        panic!("a unit is free in round {round}: {error}");
                    });
                    assert!(limited.allocated() <= limited.limit());
                    free(&limited, &stream, block);
                }
            });
        }
    });
    assert_eq!(limited.allocated(), 0);
}

#[test]
fn threads_that_race_for_less_than_they_want_never_pass_the_limit() {
    const THREADS: usize = 6;
    const UNITS: usize = 4;
    let device = support::device();
    let limited = LimitingAdaptor::new(CudaResource::new(&device), UNITS * 256);
    let (held, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let over = AtomicBool::new(false);
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (limited, held, refused, over) = (&limited, &held, &refused, &over);
            let (device, barrier) = (&device, &barrier);
            scope.spawn(move || {
                let stream = device.new_stream().unwrap();
                let units = 1 + thread % 3;
                barrier.wait();
                for _ in 0..300 {
                    match limited.allocate(&stream, layout(units * 256)) {
                        Ok(block) => {
                            let now = held.fetch_add(units, Ordering::SeqCst) + units;
                            if now > UNITS || limited.allocated() > limited.limit() {
                                over.store(true, Ordering::SeqCst);
                            }
                            std::thread::yield_now();
                            held.fetch_sub(units, Ordering::SeqCst);
                            free(limited, &stream, block);
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
                            refused.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
    });
    assert!(!over.load(Ordering::SeqCst), "more was handed out than the limit");
    assert_eq!(limited.allocated(), 0, "{} refusals left nothing behind", refused.into_inner());
}

/// A limiter that adds first and takes back what was too much fails this.
#[test]
fn a_request_that_never_fits_takes_nothing_from_one_that_does() {
    let device = support::unfollowed();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let limited = LimitingAdaptor::new(pool, 512);
    let done = AtomicBool::new(false);
    let refused = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let stream = device.new_stream().unwrap();
                while !done.load(Ordering::Relaxed) {
                    assert!(limited.allocate(&stream, layout(1024)).is_err());
                }
            });
        }
        let stream = device.new_stream().unwrap();
        let mut refused = 0;
        for _ in 0..300_000 {
            match limited.allocate(&stream, layout(512)) {
                Ok(block) => free(&limited, &stream, block),
                Err(_) => refused += 1,
            }
        }
        done.store(true, Ordering::Relaxed);
        refused
    });
    assert_eq!((refused, limited.allocated()), (0, 0));
}

#[test]
fn of_two_that_race_for_the_last_unit_one_gets_it() {
    let device = support::device();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let limited = LimitingAdaptor::new(pool, 256);
    let (barrier, served) = (Barrier::new(2), AtomicUsize::new(0));
    const ROUNDS: usize = 1000;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let stream = device.new_stream().unwrap();
                for _ in 0..ROUNDS {
                    barrier.wait();
                    let block = limited.allocate(&stream, layout(256)).ok();
                    served.fetch_add(usize::from(block.is_some()), Ordering::Relaxed);
                    // Nobody frees before both have asked.
                    barrier.wait();
                    if let Some(block) = block {
                        free(&limited, &stream, block);
                    }
                }
            });
        }
    });
    assert_eq!(served.into_inner(), ROUNDS, "exactly one of each race");
}

#[test]
fn alignments_are_asked_from_the_threshold_on() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let upstream = Scripted::new(&device);
    for alignment in [0, 255, 768] {
        let error = AlignedAdaptor::new(upstream.clone(), alignment, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{alignment}");
    }
    for alignment in [32, 64, 128, 256] {
        let aligned = AlignedAdaptor::new(upstream.clone(), alignment, 0).unwrap();
        assert_eq!(aligned.alignment(), 256);
        let block = aligned.allocate(&stream, layout(5)).unwrap();
        assert_eq!(upstream.asked().pop(), Some((5, 256)));
        assert!(block.address().is_multiple_of(256));
        free(&aligned, &stream, block);
    }
    let aligned = AlignedAdaptor::new(upstream.clone(), 4096, 65_536).unwrap();
    assert_eq!((aligned.alignment(), aligned.threshold_bytes()), (4096, 65_536));
    let ask = |bytes, alignment| {
        let wanted = DeviceLayout::with_alignment(bytes, alignment).unwrap();
        let block = aligned.allocate(&stream, wanted).unwrap();
        let asked = upstream.asked().pop().unwrap();
        assert_eq!(asked.0, bytes, "no byte more is asked");
        assert!(block.address().is_multiple_of(asked.1 as u64));
        let known = (block.address(), block.bytes());
        free(&aligned, &stream, block);
        assert_eq!(upstream.freed.lock().unwrap().pop(), Some(known), "it goes back as it came");
        asked.1
    };
    assert_eq!(ask(3, 256), 256);
    assert_eq!(ask(65_528, 1), 1, "below the threshold nothing is touched");
    assert_eq!(ask(65_535, 512), 512);
    for bytes in [65_536, 69_376, 73_728, 77_800] {
        assert_eq!(ask(bytes, 256), 4096);
        assert_eq!(ask(bytes, 8192), 8192, "a larger alignment of one call is kept");
    }
    let most = DeviceLayout::with_alignment(isize::MAX as usize - 1, 1).unwrap();
    let error = aligned.allocate(&stream, most).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "rounding does not wrap");
}

#[test]
fn a_pool_below_keeps_the_alignment() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let aligned = AlignedAdaptor::new(pool, 4096, 0).unwrap();
    let blocks: Vec<_> = (1..40)
        .map(|nth| aligned.allocate(&stream, layout(nth * 100)).unwrap())
        .inspect(|block| assert!(block.address().is_multiple_of(4096), "{block:?}"))
        .collect();
    for block in blocks {
        free(&aligned, &stream, block);
    }
}

#[test]
fn a_block_that_is_misaligned_goes_back() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let upstream = Scripted::new(&device);
    upstream.shift.store(256, Ordering::Relaxed);
    let aligned = AlignedAdaptor::new(upstream.clone(), 4096, KIB).unwrap();
    let error = aligned.allocate(&stream, layout(KIB)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("4096"), "{error}");
    assert_eq!(upstream.freed.lock().unwrap().len(), 1);
    let small = aligned.allocate(&stream, layout(KIB - 1)).unwrap();
    free(&aligned, &stream, small);
}

/// Upstream frees at once and returns late: meanwhile another thread gets the same address.
#[test]
fn an_address_that_is_handed_out_before_its_free_returns_is_no_trouble() {
    let device = support::device();
    let upstream = Scripted::slow(&device, Duration::from_millis(100));
    let limited = LimitingAdaptor::new(upstream.clone(), 8 * KIB);
    let aligned = AlignedAdaptor::new(limited.clone(), 4096, 0).unwrap();
    std::thread::scope(|scope| {
        for bytes in [0, 256, 256, 8 * KIB - 512] {
            let (aligned, device) = (&aligned, &device);
            scope.spawn(move || {
                let stream = device.new_stream().unwrap();
                for _ in 0..2 {
                    let block = aligned.allocate(&stream, layout(bytes)).unwrap();
                    free(aligned, &stream, block);
                }
            });
        }
    });
    assert_eq!(limited.allocated(), 0);
    assert_eq!(upstream.freed.lock().unwrap().len(), 8);
}

#[test]
fn a_callback_is_asked_until_it_has_enough() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let upstream = Scripted::new(&device);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let seen_there = seen.clone();
    let adaptor = FailureCallbackAdaptor::new(upstream.clone(), move |failure| {
        let asked = (failure.layout().bytes(), failure.layout().alignment());
        seen_there.lock().unwrap().push((asked, failure.error().kind(), failure.attempt()));
        failure.attempt() < 2
    });
    assert_eq!(adaptor.max_retries(), 16);

    // Retried once, then the error is the caller's.
    upstream.fail(&[ErrorKind::OutOfMemory; 3]);
    let wanted = DeviceLayout::with_alignment(1000, 512).unwrap();
    let error = adaptor.allocate(&stream, wanted).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let oom = ErrorKind::OutOfMemory;
    assert_eq!(*seen.lock().unwrap(), [((1000, 512), oom, 1), ((1000, 512), oom, 2)]);
    assert_eq!(upstream.asked(), [(1000, 512); 2], "the alignment is passed on");

    // The third failure is left: retried, served, and counted from 1 again.
    seen.lock().unwrap().clear();
    let block = adaptor.allocate(&stream, wanted).unwrap();
    assert_eq!(*seen.lock().unwrap(), [((1000, 512), oom, 1)]);
    let known = (block.address(), block.bytes());
    free(&adaptor, &stream, block);
    assert_eq!(*upstream.freed.lock().unwrap(), [known]);
}

#[test]
fn only_the_errors_asked_for_reach_the_callback() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let upstream = Scripted::new(&device);
    let count = Arc::new(AtomicUsize::new(0));
    let counting = |yes| {
        let count = count.clone();
        move |_: &aquifer::mr::Failure<'_>| {
            count.fetch_add(1, Ordering::Relaxed);
            yes
        }
    };
    let by_default = FailureCallbackAdaptor::new(upstream.clone(), counting(true));
    upstream.fail(&[ErrorKind::Driver]);
    let error = by_default.allocate(&stream, layout(1)).unwrap_err();
    assert_eq!((error.kind(), count.load(Ordering::Relaxed)), (ErrorKind::Driver, 0));

    let options = FailureCallbackAdaptor::builder(upstream.clone());
    let driver = options.for_kind(ErrorKind::Driver).build(counting(false)).unwrap();
    upstream.fail(&[ErrorKind::Driver, ErrorKind::OutOfMemory]);
    assert_eq!(driver.allocate(&stream, layout(1)).unwrap_err().kind(), ErrorKind::Driver);
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert_eq!(driver.allocate(&stream, layout(1)).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(count.load(Ordering::Relaxed), 1);

    let options = FailureCallbackAdaptor::builder(upstream.clone());
    let any = options.for_errors(|_| true).build(counting(true)).unwrap();
    upstream.fail(&[ErrorKind::Driver, ErrorKind::OutOfMemory, ErrorKind::Unsupported]);
    let block = any.allocate(&stream, layout(1)).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 4);
    free(&any, &stream, block);
}

#[test]
fn a_callback_that_never_gives_up_is_given_up_on() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let upstream = Scripted::new(&device);
    upstream.fail(&[ErrorKind::OutOfMemory; 100]);
    let stubborn = FailureCallbackAdaptor::new(upstream.clone(), |_| true);
    assert!(stubborn.allocate(&stream, layout(1)).is_err());
    assert_eq!(upstream.asked().len(), 17, "once, and 16 times again");
    let options = FailureCallbackAdaptor::builder(upstream.clone());
    let twice = options.max_retries(2).build(|_| true).unwrap();
    assert!(twice.allocate(&stream, layout(1)).is_err());
    assert_eq!(upstream.asked().len(), 20);
    let none = FailureCallbackAdaptor::builder(upstream).max_retries(0).build(|_| true);
    assert_eq!(none.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// The callback frees memory of the pool that refused, above it and below it.
#[test]
fn a_callback_may_free_memory_of_the_same_pool() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let spare: Arc<Mutex<Vec<DeviceVec<u8>>>> = Arc::default();
    let from_spare = || {
        let spare = spare.clone();
        move |_: &aquifer::mr::Failure<'_>| {
            let vec = spare.lock().unwrap().pop();
            vec.is_some()
        }
    };
    let limited = LimitingAdaptor::new(CudaResource::new(&device), 64 * KIB);
    let below = FailureCallbackAdaptor::new(limited.clone(), from_spare());
    let pool = PoolResource::new(below).unwrap();
    let above: Arc<dyn DeviceResource> =
        Arc::new(FailureCallbackAdaptor::new(pool.clone(), from_spare()));
    for _ in 0..4 {
        let vec = DeviceVec::zeroed_in(&stream, 16 * KIB, above.clone()).unwrap();
        spare.lock().unwrap().push(vec);
    }
    assert_eq!(limited.allocated(), 64 * KIB);
    let _vec = DeviceVec::<u8>::zeroed_in(&stream, 16 * KIB, above).unwrap();
    assert!(spare.lock().unwrap().len() < 4, "memory was freed for it");
}

#[test]
fn a_panic_of_the_callback_is_logged_and_the_error_stays() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let upstream = Scripted::new(&device);
    upstream.fail(&[ErrorKind::OutOfMemory]);
    let adaptor = FailureCallbackAdaptor::new(upstream, |_| panic!("ordered by the test"));
    let (result, log) = Log::of(|| adaptor.allocate(&stream, layout(10)));
    assert_eq!(result.unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(log.count(tracing::Level::ERROR, "panicked"), 1, "{:?}", log.lines());
    let block = adaptor.allocate(&stream, layout(10)).unwrap();
    free(&adaptor, &stream, block);
}

#[test]
fn clones_stand_for_each_other_and_others_do_not() {
    let device = support::device();
    let cuda = || CudaResource::new(&device);
    fn check<R: DeviceResource + Clone + PartialEq + 'static>(one: R, other: R) {
        assert!(one == one.clone() && one != other, "{one:?}");
        let erased = |resource: &R| Arc::new(resource.clone()) as Arc<dyn DeviceResource>;
        assert_eq!(*erased(&one), *erased(&one));
        assert_ne!(*erased(&one), *erased(&other));
    }
    check(LimitingAdaptor::new(cuda(), 1), LimitingAdaptor::new(cuda(), 1));
    let aligned = || AlignedAdaptor::new(cuda(), 256, 0).unwrap();
    check(aligned(), aligned());
    let callback = || FailureCallbackAdaptor::new(cuda(), |_| false);
    check(callback(), callback());
}

#[test]
fn memory_that_the_host_reaches_is_reached_through_the_upstream_of_adaptors() {
    use aquifer::mr::HostAccessible;
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pinned = PinnedResource::new(&device).unwrap();
    let limited = LimitingAdaptor::new(pinned, KIB);
    let aligned = AlignedAdaptor::new(limited, 512, 0).unwrap();
    let adaptor = FailureCallbackAdaptor::new(aligned, |_| false);
    let block = adaptor.allocate(&stream, layout(4)).unwrap();
    let pinned = adaptor.upstream().upstream().upstream();
    let pointer = pinned.host_pointer(&block).cast::<u32>();
    // SAFETY: four bytes of the host's, aligned, and no device work touches them.
    unsafe {
        pointer.write(7);
        assert_eq!(pointer.read(), 7);
    }
    free(&adaptor, &stream, block);
}
