//! Views of memory that a manager hands out, and their finalizers.

use super::Asked;
use crate::log::Log;
use crate::support;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, DeviceResource, DeviceVec, ErrorKind, PoolResource,
    mr::Handles,
    nbep7::{
        DeviceMemoryManager, HostOnly, MemoryManager, MemoryPointer, PendingDeallocations,
        PinnedMemory, ResourceMemoryManager,
    },
};
use std::ptr::NonNull;
use tracing::Level;

#[test]
fn a_view_keeps_the_memory_and_the_last_one_frees_it_where_it_is_dropped() {
    let (device, _) = support::simulated(SimConfig::default());
    let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let asked = Asked::default();
    let its = asked.clone();
    let whole = MemoryPointer::new(&home, 4096, 100, move |stream| {
        its.note(format!("freed on {} by {:?}", stream.id(), std::thread::current().name()));
    });
    let half = whole.slice(50..100).unwrap();
    let quarter = half.slice(25..50).unwrap();
    assert_eq!((quarter.address(), quarter.bytes()), (4096 + 75, 25));
    assert_eq!(half.slice(50..50).unwrap().bytes(), 0);
    for (start, end) in [(0, 51), (60, 60), (50, 40), (usize::MAX - 1, usize::MAX)] {
        assert_eq!(half.slice(start..end).unwrap_err().kind(), ErrorKind::OutOfBounds);
    }
    // SAFETY: there is no memory.
    unsafe { whole.free_on(&other) };
    drop(half);
    assert_eq!(asked.count("freed"), 0);
    let thread = std::thread::Builder::new().name("last".into());
    thread.spawn(move || drop(quarter)).unwrap().join().unwrap();
    assert_eq!(asked.count(&format!("freed on {} by Some(\"last\")", other.id())), 1);
}

#[test]
fn unused_memory_is_freed_on_another_stream_once_that_waits_for_the_former_user() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    for waits in [true, false] {
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap().into_shared();
        let manager = ResourceMemoryManager::new(pool.clone());
        let mut former = DeviceVec::<u32>::zeroed_in(&home, 1000, pool.clone()).unwrap();
        former.fill(7).unwrap();
        let place = former.as_device_ptr();
        drop(former);
        let unused = manager.memalloc(&home, support::layout(4000)).unwrap();
        assert_eq!(unused.address(), place);
        if waits {
            other.wait_for(&home).unwrap();
        }
        // SAFETY: it waits for the stream that was named. Without that, the simulated device tells what is wrong.
        unsafe { unused.free_on(&other) };
        let next = DeviceVec::<u32>::zeroed_in(&other, 1000, pool.clone()).unwrap();
        assert_eq!(next.as_device_ptr(), place);
        assert_eq!(simulator.take_reports().is_empty(), waits);
        drop(next);
        device.synchronize().unwrap();
        simulator.take_reports();
    }
}

#[test]
fn a_view_of_memory_past_the_last_address_does_not_panic() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let whole = MemoryPointer::new(&stream, u64::MAX - 10, 80, |_| {});
    assert_eq!(whole.slice(40..80).unwrap().bytes(), 40);
}

#[test]
fn a_finalizer_that_panics_leaks_and_says_so() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let ((), log) = Log::of(|| {
        drop(MemoryPointer::new(&stream, 4096, 10, |_| panic!("at the end")));
        let memory = NonNull::slice_from_raw_parts(NonNull::dangling(), 10);
        drop(PinnedMemory::new(memory, || panic!("at the end")));
        let pending = PendingDeallocations::new(1, 100);
        pending.push(1, || panic!("at the end"));
        let asked = Asked::default();
        let its = asked.clone();
        pending.push(1, move || its.note("the others run"));
        assert_eq!(asked.count("the others run"), 1);
    });
    assert_eq!(log.count(Level::ERROR, "panicked"), 3, "{:?}", log.lines());
}

#[test]
fn what_waits_runs_once_whatever_pushes_clears_and_ends() {
    let pending = PendingDeallocations::new(3, 1000);
    let asked = Asked::default();
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for turn in 0..1000 {
                    let its = asked.clone();
                    let scope = (turn % 7 == 0).then(|| pending.defer_cleanup());
                    let again = pending.clone();
                    // A deallocation may push another.
                    pending.push(10, move || {
                        let more = its.clone();
                        its.note("done");
                        again.push(1, move || more.note("done"));
                    });
                    if turn % 50 == 0 {
                        pending.clear();
                    }
                    drop(scope);
                }
            });
        }
    });
    pending.clear();
    pending.clear();
    assert_eq!((asked.count("done"), pending.len(), pending.bytes()), (8000, 0, 0));
}

#[test]
fn a_pinned_view_keeps_the_memory() {
    let asked = Asked::default();
    let its = asked.clone();
    let mut bytes = [0_u8; 64];
    let memory = NonNull::from(&mut bytes[..]);
    let whole = PinnedMemory::new(memory, move || its.note("unlocked"));
    let part = whole.slice(16..32).unwrap();
    assert_eq!(part.pointer().addr().get(), memory.cast::<u8>().addr().get() + 16);
    assert_eq!(whole.slice(60..65).unwrap_err().kind(), ErrorKind::OutOfBounds);
    drop(whole);
    assert_eq!(asked.count("unlocked"), 0);
    drop(part);
    assert_eq!(asked.count("unlocked"), 1);
}

#[test]
fn a_managers_memory_has_a_handle_for_other_processes() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::builder(CudaResource::new(&device)).handles(Handles::Off);
    let pool = pool.build().unwrap();
    let manager = HostOnly::new(&device, ResourceMemoryManager::new(pool)).unwrap();
    let whole = manager.memalloc(&stream, support::layout(4096)).unwrap();
    let part = whole.slice(1024..2048).unwrap();
    let [first, second] = [&whole, &part].map(|memory| manager.ipc_handle(memory).unwrap());
    assert_eq!((first.size_in_bytes(), second.size_in_bytes()), (4096, 1024));
    assert_eq!(second.offset(), first.offset() + 1024, "with its offset in the pool's chunk");
    // SAFETY: the manager's memory is alive, and nothing uses it.
    let opened = unsafe { second.open::<u8>(&stream) }.unwrap();
    assert_eq!(opened.len(), 1024);
    drop(opened);
    let empty = manager.ipc_handle(&whole.slice(0..0).unwrap()).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn deallocations_that_wait_run_when_nobody_can_ask_for_them() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let ran = Arc::new(AtomicUsize::new(0));
    let pending = PendingDeallocations::new(10, 1000);
    for _ in 0..3 {
        let ran = ran.clone();
        pending.push(1, move || _ = ran.fetch_add(1, Ordering::Relaxed));
    }
    let other = pending.clone();
    drop(pending);
    assert_eq!((other.len(), ran.load(Ordering::Relaxed)), (3, 0));
    drop(other);
    assert_eq!(ran.load(Ordering::Relaxed), 3);
}
