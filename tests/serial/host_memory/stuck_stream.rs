//! One stream whose kernel does not come to its end, beside page-locked memory that other streams use.

use super::{alone, pinned_vec, support};
use crate::kernels::SPIN;
use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::{
    CheckedDevice, DeviceVec, ErrorKind, Event, LaunchConfig, MappedAlloc, PinnedAlloc, Stream,
    pinned::{
        PinnedPool, PinnedPoolOptions, PinnedResource, last_error, reset_current_pinned_resource,
        set_current_pinned_resource,
    },
};
use std::time::{Duration, Instant};

const BYTES: usize = 64 << 10;

/// A device with a stream whose work does not come to its end: for as long as is wanted on a simulated one, for a time on a
/// GPU.
struct Stuck {
    device: CheckedDevice,
    stream: Stream,
    /// Behind the work.
    end: Event,
    /// Keeps the default pool, whose end would wait.
    _work: DeviceVec<u8>,
}

/// How long a GPU is busy.
const NANOSECONDS: u64 = 3_000_000_000;

/// Whether this test runs here. On a GPU other tests of the process give streams and the context to another library: it
/// runs in a process of its own.
fn runs_here(name: &str) -> bool {
    !support::on_gpu() || support::in_own_process(module_path!(), name)
}

impl Stuck {
    fn new() -> Self {
        Self::on(support::device())
    }

    /// And another stream with a vector, which the pool of the device does not have wait for the first.
    fn beside(bytes: usize) -> (Self, Stream, DeviceVec<u8>) {
        let device = support::device();
        let other = device.new_stream().unwrap();
        let vec = DeviceVec::zeroed(&other, bytes).unwrap();
        (Self::on(device), other, vec)
    }

    fn on(device: CheckedDevice) -> Self {
        let stream = device.new_stream().unwrap();
        let mut work = DeviceVec::zeroed(&stream, 10).unwrap();
        stream.synchronize().unwrap();
        match device.simulator() {
            Some(simulator) => simulator.stall(&stream).unwrap(),
            None => {
                let launch = stream.launch(&SPIN).scalar(NANOSECONDS).unwrap();
                // SAFETY: the kernel touches nothing.
                unsafe { launch.launch(LaunchConfig::for_elements(1)) }.unwrap();
            }
        }
        work.fill(1).unwrap();
        let end = stream.record().unwrap();
        Self { device, stream, end, _work: work }
    }

    fn pool(&self) -> PinnedPoolOptions {
        PinnedPool::builder(PinnedResource::new(&self.device).unwrap()).growth_step(4096)
    }

    /// Another library has a stream.
    fn make_foreign_stream(&self) {
        match self.device.simulator() {
            Some(simulator) => drop(simulator.create_foreign_stream().unwrap()),
            #[cfg(feature = "cuda")]
            None => drop(self.device.cuda_context().unwrap().new_stream().unwrap()),
            #[cfg(not(feature = "cuda"))]
            None => unreachable!("there is no GPU without the feature"),
        }
    }

    fn is_stuck(&self) -> bool {
        !self.end.is_complete().unwrap()
    }

    fn end(&self) {
        match self.device.simulator() {
            Some(simulator) => simulator.resume(&self.stream).unwrap(),
            None => self.stream.synchronize().unwrap(),
        }
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        self.end();
    }
}

/// Vectors that are uploaded, waited for and dropped.
fn upload_and_drop(
    allocator: impl Allocator + Clone + Send + 'static,
    stream: &Stream,
    mut target: DeviceVec<u8>,
    times: usize,
) -> DeviceVec<u8> {
    for round in 0..times {
        let mut host = AllocVec::with_capacity_in(BYTES, allocator.clone());
        host.resize(BYTES, round as u8);
        let (host, back) = stream.upload(host, target).unwrap().wait().unwrap();
        target = back;
        drop(host);
    }
    assert_eq!(target.get(BYTES - 1).unwrap(), (times - 1) as u8);
    target
}

#[test]
fn memory_whose_uses_are_all_known_comes_back_beside_it() {
    let _alone = alone();
    if !runs_here("memory_whose_uses_are_all_known_comes_back_beside_it") {
        return;
    }
    let (stuck, other, target) = Stuck::beside(BYTES);
    let pool = stuck.pool().maximum_size(8 * BYTES).magazine_bytes(BYTES).build().unwrap();
    let target = upload_and_drop(pool.clone(), &other, target, 200);
    let small = stuck.pool().quarantine_bytes(4 * BYTES).build().unwrap();
    upload_and_drop(small.clone(), &other, target, 200);
    let now = small.statistics();
    assert!(now.waiting <= 64 << 20, "{now:?}");
    assert!(stuck.is_stuck(), "nothing waited for it");
    if let Some(simulator) = stuck.device.simulator() {
        let waits = simulator.call_count("cuEventSynchronize");
        assert_eq!(waits, 200 * 2, "the transfers' own");
    }
}

/// Another library may have given it work on any memory.
#[test]
fn memory_waits_for_it_once_its_handle_was_given_away() {
    let _alone = alone();
    if !runs_here("memory_waits_for_it_once_its_handle_was_given_away") {
        return;
    }
    let stuck = Stuck::new();
    let pool = stuck.pool().initial_size(BYTES).maximum_size(BYTES).build().unwrap();
    let layout = std::alloc::Layout::from_size_align(BYTES, 1).unwrap();
    let use_all = || {
        let block = Allocator::allocate(&pool, layout)?;
        // SAFETY: a live block of the pool, which no work uses.
        unsafe { Allocator::deallocate(&pool, block.cast(), layout) };
        Ok::<(), allocator_api2::alloc::AllocError>(())
    };
    use_all().unwrap();
    use_all().unwrap();
    stuck.stream.handle();
    use_all().unwrap_err();
    stuck.end();
    pool.trim().unwrap();
    use_all().unwrap();
}

/// The program of a user: 64 MiB at a time, in the default pool.
#[test]
fn large_vectors_of_pinned_alloc_come_back_beside_it() {
    let _alone = alone();
    if !runs_here("large_vectors_of_pinned_alloc_come_back_beside_it") {
        return;
    }
    let (bytes, times) = if support::on_gpu() { (64 << 20, 40) } else { (1 << 20, 20) };
    let (stuck, other, mut target) = Stuck::beside(bytes);
    let before = set_current_pinned_resource(stuck.pool().build().unwrap());
    let mut longest = Duration::ZERO;
    for round in 0..times {
        let begun = Instant::now();
        let mut host = AllocVec::with_capacity_in(bytes, PinnedAlloc);
        // The first ones grow the pool.
        if round >= 4 {
            longest = longest.max(begun.elapsed());
        }
        host.resize(bytes, 1);
        (host, target) = other.upload(host, target).unwrap().wait().unwrap();
        drop(host);
    }
    println!("an allocation of {bytes} bytes took {longest:?} at most");
    assert!(stuck.is_stuck(), "nothing waited for it");
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    match before {
        Some(before) => drop(set_current_pinned_resource(before)),
        None => drop(reset_current_pinned_resource()),
    }
}

#[test]
fn memory_that_a_resource_takes_from_the_driver_is_not_unpinned_beside_it() {
    let _alone = alone();
    if !runs_here("memory_that_a_resource_takes_from_the_driver_is_not_unpinned_beside_it") {
        return;
    }
    let (stuck, other, target) = Stuck::beside(BYTES);
    let pinned = PinnedResource::new(&stuck.device).unwrap();
    upload_and_drop(pinned.clone(), &other, target, 20);
    assert!(stuck.is_stuck(), "to unpin would wait for it");
    if let Some(simulator) = stuck.device.simulator() {
        assert_eq!(simulator.call_count("cuMemFreeHost"), 0);
    }
    stuck.end();
    stuck.device.synchronize().unwrap();
    drop(pinned_vec(&pinned, 10));
    if let Some(simulator) = stuck.device.simulator() {
        let left = simulator.host_blocks();
        assert!(left <= 2, "what was freed went back when the device had nothing to do: {left}");
    }
}

/// The pool's allocations are refused, after so little time that none has waited for the device.
fn is_refused(pool: &PinnedPool, stuck: &Stuck) {
    let begun = Instant::now();
    let mut kept = Vec::new();
    let refused = loop {
        let mut host = AllocVec::<u8, _>::new_in(pool.clone());
        match host.try_reserve_exact(BYTES) {
            Ok(()) => kept.push(host),
            Err(_) => break last_error().unwrap(),
        }
        // Freed, it waits for the device. Without the pool's limit this would go on.
        drop(kept.pop());
    };
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    assert!(stuck.is_stuck(), "it was waited for, {:?}", begun.elapsed());
    let (text, number) = (refused.to_string(), stuck.stream.id());
    assert!(text.contains(&format!("work is under way on stream {number}")), "{text}");
    assert!(text.contains("wait_for_device(true)"), "{text}");
}

#[test]
fn memory_that_another_library_may_use_waits_and_the_pool_refuses_at_its_limit() {
    let _alone = alone();
    let stuck = Stuck::new();
    stuck.make_foreign_stream();
    is_refused(&stuck.pool().maximum_size(8 * BYTES).build().unwrap(), &stuck);
    let limited = stuck.pool().magazine_bytes(BYTES).quarantine_bytes(8 * BYTES).build().unwrap();
    is_refused(&limited, &stuck);
    assert!(limited.statistics().waiting <= 16 * BYTES, "{:?}", limited.statistics());
}

#[test]
fn memory_whose_address_was_asked_for_waits() {
    let _alone = alone();
    let stuck = Stuck::new();
    let pool = stuck.pool().maximum_size(8 * BYTES).build().unwrap();
    let mut mapped = AllocVec::<u8, _>::new_in(pool.clone());
    mapped.resize(BYTES, 1);
    MappedAlloc::device_address(&mapped).unwrap();
    drop(mapped);
    is_refused(&pool, &stuck);
}

#[test]
fn memory_of_a_stream_that_others_can_use_waits_for_that_stream() {
    let _alone = alone();
    let stuck = Stuck::new();
    stuck.stream.handle();
    is_refused(&stuck.pool().maximum_size(8 * BYTES).build().unwrap(), &stuck);
}

#[test]
fn memory_under_a_copy_that_its_caller_waits_for_is_not_handed_out() {
    let _alone = alone();
    let stuck = Stuck::new();
    let pool = stuck.pool().maximum_size(8 * BYTES).build().unwrap();
    let mut target = DeviceVec::<u8>::zeroed(&stuck.stream, BYTES).unwrap();
    let mut host = AllocVec::<u8, _>::new_in(pool.clone());
    host.resize(BYTES, 1);
    // SAFETY: dropped below, and the pool keeps the block until the copy has run.
    unsafe { target.copy_from_slice_async(&host).unwrap() };
    drop(host);
    is_refused(&pool, &stuck);
    stuck.end();
    assert_eq!(target.to_vec().unwrap(), [1; BYTES]);
}

#[test]
fn a_pool_that_is_to_wait_waits() {
    let _alone = alone();
    let stuck = Stuck::new();
    stuck.make_foreign_stream();
    let pool = stuck.pool().maximum_size(4 * BYTES).wait_for_device(true).build().unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            if stuck.device.simulator().is_some() {
                std::thread::sleep(Duration::from_millis(50));
                stuck.end();
            }
        });
        (0..100).for_each(|_| drop(pinned_vec_of_bytes(&pool)));
    });
    assert!(!stuck.is_stuck(), "it waited for the stream");
}

fn pinned_vec_of_bytes(pool: &PinnedPool) -> AllocVec<u8, PinnedPool> {
    let mut host = AllocVec::new_in(pool.clone());
    host.resize(BYTES, 1);
    host
}
