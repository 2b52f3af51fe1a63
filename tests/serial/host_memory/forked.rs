//! The child of a fork: allocations are errors, frees leak, nothing hangs.

use super::support;
use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::{
    Device, DeviceVec, ErrorKind, Event, MappedAlloc, PinnedAlloc, Stream, Transfer,
    mr::{ManagedAlloc, ManagedResource, OnStream, current_device_resource},
    pinned::{PinnedPool, PinnedResource, Registered, current_pinned_resource, last_error},
};
use std::alloc::Layout;
use std::sync::atomic::{AtomicBool, Ordering};

/// Forks a process are made under the busiest locks that there are; each must be answered.
const FORKS: usize = 40;

#[test]
fn a_child_allocates_nothing_frees_nothing_and_does_not_hang() {
    if support::in_own_process(
        module_path!(),
        "a_child_allocates_nothing_frees_nothing_and_does_not_hang",
    ) {
        forks();
    }
}

/// Everything that a child may hold when it comes to life.
struct Held {
    device: Device,
    pinned: PinnedResource,
    vec: AllocVec<u32, PinnedAlloc>,
    mapped: AllocVec<u32, MappedAlloc>,
    of_resource: AllocVec<u32, PinnedResource>,
    pool: PinnedPool,
    of_pool: AllocVec<u32, PinnedPool>,
    of_unfenced: AllocVec<u32, PinnedPool>,
    /// Where the host may touch it while kernels run.
    managed: Option<AllocVec<u32, OnStream<ManagedAlloc>>>,
    registered: Registered<Vec<u32>>,
    on_device: DeviceVec<u32>,
    stream: Stream,
    event: Event,
    transfer: Transfer<Vec<u32>>,
}

fn forks() {
    let device =
        if support::on_gpu() { Device::open(0) } else { Device::detect_or_simulate() }.unwrap();
    let stream = device.new_stream().unwrap();
    let pinned = PinnedResource::new(&device).unwrap();
    let pool = PinnedPool::new(pinned.clone()).unwrap();
    // SAFETY: no device work uses it.
    let unfenced = unsafe { PinnedPool::builder(pinned.clone()).unfenced() }.build().unwrap();
    let managed = ManagedResource::new(&device).and_then(|managed| managed.allocator()).ok();
    assert!(managed.is_some() || support::on_gpu(), "a simulated device has managed memory");
    let managed = managed.map(|managed| OnStream::new(managed, &stream).unwrap());
    let page = Layout::from_size_align(100, 1 << 16).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Whoever forks finds the locks of the process taken, with nobody to release them.
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let mut vec: AllocVec<u32, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
                    vec.extend(0..2000);
                    let _ = MappedAlloc::device_address(&vec);
                    drop(vec);
                    let _ = pinned.trim();
                }
            });
            scope.spawn(|| {
                while let Some(managed) = managed.as_ref().filter(|_| !stop.load(Ordering::Relaxed))
                {
                    let block = Allocator::allocate(managed, page).unwrap();
                    // SAFETY: allocated above, with this layout.
                    unsafe { Allocator::deallocate(managed, block.cast(), page) };
                }
            });
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for pool in [&pool, &unfenced] {
                        let mut vecs = [(); 20].map(|()| AllocVec::new_in(pool.clone()));
                        vecs.iter_mut().for_each(|vec| vec.extend(0..3000));
                        drop(vecs);
                        let _ = (pool.statistics(), pool.trim());
                    }
                }
            });
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let (own, default) = (device.new_stream().unwrap(), device.default_stream());
                    drop((own.record(), default.record(), own));
                    let _ = current_device_resource(&device);
                    let _ = current_pinned_resource();
                    drop(default.upload_new(vec![1_u32; 10]));
                }
            });
        }
        let failed = (0..FORKS)
            .map(|_| {
                let mut held = Held {
                    device: device.clone(),
                    pinned: pinned.clone(),
                    vec: AllocVec::new_in(PinnedAlloc),
                    mapped: AllocVec::new_in(MappedAlloc),
                    of_resource: AllocVec::new_in(pinned.clone()),
                    pool: pool.clone(),
                    of_pool: AllocVec::new_in(pool.clone()),
                    of_unfenced: AllocVec::new_in(unfenced.clone()),
                    managed: managed.clone().map(AllocVec::new_in),
                    registered: Registered::new(&device, vec![1; 100]).unwrap(),
                    on_device: DeviceVec::from_slice(&stream, &[1, 2, 3]).unwrap(),
                    stream: device.new_stream().unwrap(),
                    event: stream.record().unwrap(),
                    transfer: stream.upload_new(vec![1_u32; 10]).unwrap(),
                };
                held.vec.extend(0..1000);
                held.mapped.extend(0..1000);
                held.of_resource.extend(0..1000);
                held.of_pool.extend(0..1000);
                held.of_unfenced.extend(0..1000);
                held.managed.iter_mut().for_each(|managed| managed.extend(0..1000));
                // Ready in this thread's magazine, which the child has too.
                drop((held.of_pool.clone(), held.of_unfenced.clone()));
                fork(held)
            })
            .find(Result::is_err);
        stop.store(true, Ordering::Relaxed);
        if let Some(Err(why)) = failed {
            panic!("{why}");
        }
    });
    // The parent goes on.
    pinned.trim().unwrap();
    for pool in [&pool, &unfenced] {
        pool.trim().unwrap();
        assert_eq!(pool.statistics().reserved, 0);
    }
    stream.synchronize().unwrap();
}

fn fork(held: Held) -> Result<(), String> {
    // SAFETY: the child runs what is below, which is what it is about, and leaves through `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends a child that hangs.
        unsafe { libc::alarm(20) };
        let unwound = std::panic::AssertUnwindSafe(|| in_child(held));
        let code = std::panic::catch_unwind(unwound).unwrap_or(200);
        // SAFETY: ends the child, and nothing of the parent's.
        unsafe { libc::_exit(code) };
    }
    if child < 0 {
        return Err("no child".into());
    }
    let mut status = 0;
    // SAFETY: waits for the child above.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    drop(held);
    match () {
        () if waited != child => Err("lost the child".into()),
        () if libc::WIFSIGNALED(status) => {
            Err(format!("the child was ended by signal {}: it hung", libc::WTERMSIG(status)))
        }
        () if libc::WEXITSTATUS(status) != 0 => {
            Err(format!("step {} of the child went wrong", libc::WEXITSTATUS(status)))
        }
        () => Ok(()),
    }
}

/// The number of the first step that goes wrong; 0 if none does.
fn in_child(mut held: Held) -> i32 {
    let forked = || last_error().is_some_and(|error| error.kind() == ErrorKind::Forked);
    let is_forked = |error: aquifer::Error| error.kind() == ErrorKind::Forked;
    let layout = Layout::new::<[u64; 100]>();
    let shrunk = held.vec.len() / 2;
    let steps = [
        PinnedAlloc.allocate(layout).is_err() && forked(),
        MappedAlloc.allocate(layout).is_err() && forked(),
        Allocator::allocate(&held.pinned, layout).is_err() && forked(),
        PinnedAlloc.allocate(Layout::from_size_align(0, 8).unwrap()).is_ok(),
        held.vec.try_reserve(1_000_000).is_err() && forked(),
        held.of_resource.try_reserve(1_000_000).is_err() && forked(),
        Allocator::allocate(&held.pool, layout).is_err() && forked(),
        Allocator::allocate(&held.pool, Layout::new::<[u32; 1024]>()).is_err() && forked(),
        held.of_pool.try_reserve(1_000_000).is_err() && forked(),
        held.of_unfenced.try_reserve(1_000_000).is_err() && forked(),
        {
            held.of_pool.truncate(10);
            held.of_pool.shrink_to_fit();
            held.of_pool.iter().copied().eq(0..10)
        },
        held.managed.as_mut().is_none_or(|vec| vec.try_reserve(1_000_000).is_err() && forked()),
        held.pool.trim().is_err_and(is_forked),
        held.pool.statistics().reserved == 0,
        PinnedPool::new(held.pinned.clone()).is_err_and(is_forked),
        {
            held.vec.truncate(shrunk);
            held.vec.shrink_to_fit();
            held.vec.iter().copied().eq(0..shrunk as u32)
        },
        MappedAlloc::device_address(&held.mapped).is_err_and(is_forked),
        held.pinned.trim().is_err_and(is_forked),
        Registered::<Vec<u32>>::trim(&held.device).is_err_and(is_forked),
        PinnedResource::new(&held.device).is_err_and(is_forked),
        Registered::new(&held.device, vec![1_u8; 10]).is_err_and(|failed| {
            failed.buffer.is_some() && failed.error.kind() == ErrorKind::Forked
        }),
        // Refused before anything is looked at.
        Registered::new(&held.device, Vec::<u8>::new())
            .is_err_and(|failed| failed.error.kind() == ErrorKind::Forked),
        held.stream.detach().is_err_and(is_forked),
        // SAFETY: the default stream, which is never destroyed.
        unsafe { Stream::from_handle(&held.device, 0) }.is_err_and(is_forked),
        held.registered.iter().sum::<u32>() == 100,
        held.on_device.to_vec().is_err_and(is_forked),
        held.event.is_complete().is_err_and(is_forked),
        held.stream.record().is_err_and(is_forked),
        held.device.new_stream().is_err_and(is_forked),
        held.device.default_stream().synchronize().is_err_and(is_forked),
        held.on_device.on(&held.stream).is_err_and(is_forked),
        held.on_device.push(1).is_err_and(is_forked),
        held.transfer.is_complete().is_err_and(is_forked),
        Device::detect_or_simulate().is_err_and(is_forked),
        current_device_resource(&held.device).is_err_and(is_forked),
        current_pinned_resource().is_err_and(is_forked),
        held.stream.scope(|scope| scope.upload(&[1], &mut held.on_device)).is_err_and(is_forked),
    ];
    if let Some(wrong) = steps.iter().position(|right| !right) {
        return 1 + wrong as i32;
    }
    // All is dropped here: it leaks, and nobody is asked.
    let Held { vec, mapped, of_resource, registered, on_device, pinned, device, .. } = held;
    drop((held.of_pool, held.of_unfenced, held.pool));
    drop((held.transfer, held.event, held.stream, held.managed));
    drop((vec, mapped, of_resource));
    let given_back = registered.into_inner().is_err_and(|failed| failed.buffer.is_none());
    drop((on_device, pinned, device));
    if given_back { 0 } else { 100 }
}
