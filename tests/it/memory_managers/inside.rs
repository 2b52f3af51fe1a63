//! What the code of a manager asks for while it is called, and where it is called.

use super::Asked;
use crate::support;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::{
    CudaResource, Device, DeviceLayout, DeviceVec, ErrorKind, PinnedAlloc, Result, Stream,
    device::MemoryInfo,
    nbep7::{
        DeferCleanup, HostAllocFlags, HostOnly, MemoryManager, MemoryPointer, PendingDeallocations,
        PinnedMemory, ResourceMemoryManager, memory_manager, set_memory_manager,
    },
    pinned::{PinnedPool, PinnedResource},
};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// What one of the manager's calls does beside its work.
type Beside = Arc<Mutex<Option<Box<dyn FnMut() + Send>>>>;

/// The driver's memory. `beside` runs when memory is asked for, when page-locked memory is freed, and when cleanup is
/// deferred no more.
struct Curious {
    inner: HostOnly<ResourceMemoryManager>,
    asked: Asked,
    beside: Beside,
}

impl std::fmt::Debug for Curious {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Curious").finish_non_exhaustive()
    }
}

fn run(beside: &Beside) {
    let taken = beside.lock().unwrap().take();
    if let Some(mut taken) = taken {
        taken();
        beside.lock().unwrap().get_or_insert(taken);
    }
}

// SAFETY: all memory is the inner manager's.
unsafe impl MemoryManager for Curious {
    fn memalloc(&self, stream: &Stream, layout: DeviceLayout) -> Result<MemoryPointer> {
        run(&self.beside);
        self.inner.memalloc(stream, layout)
    }

    fn memhostalloc(&self, bytes: usize, flags: HostAllocFlags) -> Result<PinnedMemory> {
        self.asked.note("memhostalloc");
        run(&self.beside);
        let inner = self.inner.memhostalloc(bytes, flags)?;
        let memory = NonNull::slice_from_raw_parts(inner.pointer(), inner.bytes());
        let beside = self.beside.clone();
        Ok(PinnedMemory::new(memory, move || {
            run(&beside);
            drop(inner);
        }))
    }

    unsafe fn mempin(&self, memory: NonNull<[u8]>, mapped: bool) -> Result<PinnedMemory> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.mempin(memory, mapped) }
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.inner.memory_info()
    }

    fn reset(&self) -> Result<()> {
        self.inner.reset()
    }

    fn defer_cleanup(&self) -> DeferCleanup {
        let beside = self.beside.clone();
        DeferCleanup::new(move || run(&beside))
    }
}

/// A device whose manager is `Curious`, what that was asked, and what it does beside.
fn curious() -> (Device, Asked, Beside) {
    let (asked, beside) = (Asked::default(), Beside::default());
    let its = (asked.clone(), beside.clone());
    set_memory_manager(move |device| {
        let resource = ResourceMemoryManager::new(CudaResource::new(device));
        let (inner, (asked, beside)) = (HostOnly::new(device, resource)?, its.clone());
        Ok(Curious { inner, asked, beside })
    })
    .unwrap();
    (Device::detect_or_simulate().unwrap(), asked, beside)
}

const SIMULATED: [(&str, &str); 1] = [("AQUIFER_BACKEND", "sim")];

#[test]
fn the_default_pinned_pool_is_the_managers_also_where_its_own_call_was_first() {
    let name = "the_default_pinned_pool_is_the_managers_also_where_its_own_call_was_first";
    if !support::in_own_process_with(module_path!(), name, &SIMULATED) {
        return;
    }
    let (device, asked, beside) = curious();
    let stream = device.new_stream().unwrap();
    let seen = asked.clone();
    *beside.lock().unwrap() = Some(Box::new(move || {
        let mut staging: AllocVec<u8, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
        assert!(staging.try_reserve(100).is_err());
        seen.note(format!("refused: {:?}", aquifer::pinned::last_error().unwrap().kind()));
    }));
    drop(DeviceVec::<u8>::zeroed(&stream, 10).unwrap());
    assert_eq!(asked.count("refused: Reentered"), 1);
    *beside.lock().unwrap() = None;
    let mut pinned: AllocVec<u8, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
    pinned.extend_from_slice(b"the process's");
    assert_eq!(asked.count("memhostalloc"), 1);
}

#[test]
fn a_finalizer_uses_the_pool_whose_slab_it_frees() {
    let name = "a_finalizer_uses_the_pool_whose_slab_it_frees";
    if !support::in_own_process_with(module_path!(), name, &SIMULATED) {
        return;
    }
    let (device, asked, beside) = curious();
    let _manager = memory_manager(&device).unwrap();
    let upstream = PinnedResource::new(&device).unwrap();
    let pool = PinnedPool::builder(upstream).maximum_size(2 << 20).build().unwrap();
    let mut block: AllocVec<u8, _> = AllocVec::new_in(pool.clone());
    block.try_reserve(1 << 20).unwrap();
    drop(block);
    let (its, seen) = (pool.clone(), asked.clone());
    *beside.lock().unwrap() = Some(Box::new(move || {
        let mut block: AllocVec<u8, _> = AllocVec::new_in(its.clone());
        seen.note(format!("had room: {}", block.try_reserve(1 << 20).is_ok()));
        its.trim().unwrap();
    }));
    // A thread that wants the room meanwhile has it in the end.
    std::thread::scope(|threads| {
        threads.spawn(|| pool.trim().unwrap());
        let mut block: AllocVec<u8, _> = AllocVec::new_in(pool.clone());
        block.try_reserve(2 << 20).unwrap();
    });
    pool.trim().unwrap();
    *beside.lock().unwrap() = None;
    assert!(asked.count("had room: ") > 0);
    assert_eq!(pool.statistics().reserved, 0);
}

#[test]
fn a_manager_does_not_wait_for_the_slab_that_it_is_asked_for() {
    let name = "a_manager_does_not_wait_for_the_slab_that_it_is_asked_for";
    if !support::in_own_process_with(module_path!(), name, &SIMULATED) {
        return;
    }
    let (device, asked, beside) = curious();
    let _manager = memory_manager(&device).unwrap();
    let upstream = PinnedResource::new(&device).unwrap();
    let pool = PinnedPool::builder(upstream).maximum_size(2 << 20).build().unwrap();
    let (its, seen) = (pool.clone(), asked.clone());
    *beside.lock().unwrap() = Some(Box::new(move || {
        let mut block: AllocVec<u8, _> = AllocVec::new_in(its.clone());
        seen.note(format!("had room: {}", block.try_reserve(2 << 20).is_ok()));
    }));
    let mut block: AllocVec<u8, _> = AllocVec::new_in(pool);
    block.try_reserve(2 << 20).unwrap();
    *beside.lock().unwrap() = None;
    assert_eq!((asked.count("had room: false"), asked.count("memhostalloc")), (1, 1));
}

#[test]
fn the_end_of_deferred_cleanup_is_a_call_of_the_manager() {
    let name = "the_end_of_deferred_cleanup_is_a_call_of_the_manager";
    if !support::in_own_process_with(module_path!(), name, &SIMULATED) {
        return;
    }
    let (device, asked, beside) = curious();
    let manager = memory_manager(&device).unwrap().unwrap();
    let (stream, seen) = (device.new_stream().unwrap(), asked.clone());
    *beside.lock().unwrap() = Some(Box::new(move || {
        let refused = DeviceVec::<u8>::zeroed(&stream, 10).unwrap_err();
        seen.note(format!("refused: {:?}", refused.kind()));
    }));
    drop(manager.defer_cleanup());
    assert_eq!(asked.count("refused: Reentered"), 1);
    *beside.lock().unwrap() = None;
}

#[test]
fn a_panic_while_a_manager_is_made_is_an_error() {
    let name = "a_panic_while_a_manager_is_made_is_an_error";
    if !support::in_own_process_with(module_path!(), name, &SIMULATED) {
        return;
    }
    set_memory_manager(|_| -> Result<Curious> { panic!("not made") }).unwrap();
    let device = Device::detect_or_simulate().unwrap();
    let refused = DeviceVec::<u8>::zeroed(&device.new_stream().unwrap(), 10).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("not made"), "{refused}");
}

#[cfg(unix)]
#[test]
fn the_child_of_a_fork_has_no_manager() {
    let name = "the_child_of_a_fork_has_no_manager";
    if !support::in_own_process_with(module_path!(), name, &SIMULATED) {
        return;
    }
    let (device, asked, _) = curious();
    let manager = memory_manager(&device).unwrap().unwrap();
    let memhostalloc = || manager.memhostalloc(10, HostAllocFlags::new());
    drop(memhostalloc().unwrap());
    let (pending, parents) = (PendingDeallocations::new(1, 100), asked.clone());
    pending.push(10, move || parents.note("the parent's"));
    // SAFETY: the child runs what is below, and never returns.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = |kind| u8::from(kind == ErrorKind::Forked);
        let none = |_: &Device| -> Result<Curious> { panic!("not made") };
        let good = forked(memory_manager(&device).unwrap_err().kind())
            + forked(set_memory_manager(none).unwrap_err().kind())
            + forked(memhostalloc().unwrap_err().kind())
            + forked(manager.reset().unwrap_err().kind());
        drop((pending.defer_cleanup(), manager.defer_cleanup()));
        pending.push(1000, || ());
        pending.clear();
        let good = good + u8::from(asked.count("the parent's") == 0);
        // SAFETY: ends the child, and nothing of the parent's.
        unsafe { libc::_exit(i32::from(good)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child above.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 5, "{status}");
}
