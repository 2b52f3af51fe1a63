//! The child of a fork: each resource refuses, its frees leak, and no inherited lock is taken.

use super::{KIB, MIB, allocate, free, support};
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, ErrorKind, Stream,
    mr::{
        ArenaResource, AsyncResource, BinningResource, FixedSizeResource, HostAccessible,
        ManagedAlloc, ManagedResource, OnStream, SystemResource,
    },
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Forks that are made under busy locks; each must be answered.
const FORKS: usize = 20;

/// What is aligned further than the driver aligns.
#[derive(Clone, Copy, Debug)]
#[repr(align(4096))]
struct Far(u64);

type Resources = Vec<(&'static str, Arc<dyn DeviceResource>)>;

#[test]
fn a_child_gets_nothing_and_does_not_hang() {
    if support::in_own_process(module_path!(), "a_child_gets_nothing_and_does_not_hang") {
        forks();
    }
}

fn all(device: &Device) -> (Resources, ManagedAlloc) {
    let plain = CudaResource::new(device);
    let managed = ManagedResource::new(device).unwrap();
    let host = managed.allocator().unwrap();
    let arena = ArenaResource::builder(plain.clone()).arena_size(64 * MIB);
    let resources: Resources = vec![
        ("plain", Arc::new(plain.clone())),
        ("managed", Arc::new(managed)),
        ("managed for the host", Arc::new(host.clone())),
        ("a driver pool", Arc::new(AsyncResource::new(device).unwrap())),
        ("ordinary", Arc::new(SystemResource::builder(device).headroom(0).build().unwrap())),
        ("fixed", Arc::new(FixedSizeResource::new(plain.clone()).unwrap())),
        ("bins", Arc::new(BinningResource::new(plain).unwrap())),
        ("arena", Arc::new(arena.build().unwrap())),
    ];
    (resources, host)
}

fn forks() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(8 << 30));
    let (resources, host) = all(&device);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Whoever forks finds locks taken, with nobody to release them.
        let mut threads = Vec::new();
        for _ in 0..2 {
            threads.push(scope.spawn(|| {
                let stream = device.new_stream().unwrap();
                while !stop.load(Ordering::Relaxed) {
                    for (_, resource) in &resources {
                        let far = DeviceLayout::with_alignment(100 * KIB, 4096).unwrap();
                        let block = resource.allocate(&stream, far).unwrap();
                        free(resource, &stream, block);
                    }
                }
            }));
        }
        // The map of far blocks, and nothing else.
        threads.push(scope.spawn(|| {
            let stream = device.new_stream().unwrap();
            let far = DeviceLayout::with_alignment(100, 4096).unwrap();
            let block = host.allocate(&stream, far).unwrap();
            let pointer = host.host_pointer(&block);
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the block lives, and is not freed by what is made of it here.
                let again = unsafe { host.block_at(pointer, far) };
                assert_eq!(again, block);
            }
            free(&host, &stream, block);
        }));
        let failed = (0..FORKS).map(|_| fork(&device, &resources, &host)).find(|code| *code != 0);
        stop.store(true, Ordering::Relaxed);
        // The end of a scope waits for no thread's destructors, which give back what it kept.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(failed, None, "a step of the child went wrong, or a signal ended it");
    });
    drop((resources, host));
    device.synchronize().unwrap();
    simulator.check().unwrap();
    assert_eq!(simulator.live_bytes(), 0, "the parent lost something");
}

/// The code with which the child ended; negative for a signal.
fn fork(device: &Device, resources: &Resources, host: &ManagedAlloc) -> i32 {
    let stream = device.new_stream().unwrap();
    let held: Vec<_> =
        resources.iter().map(|(_, of)| allocate(of, &stream, 300).unwrap()).collect();
    let mut far = AllocVec::new_in(OnStream::new(host.clone(), &stream).unwrap());
    far.extend([Far(1), Far(2)]);
    // SAFETY: the child runs what is below, which is what it is about, and never returns.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends a child that hangs.
        unsafe { libc::alarm(20) };
        let body = std::panic::AssertUnwindSafe(|| in_child(resources, &stream, &held, far));
        let code = std::panic::catch_unwind(body).unwrap_or(200);
        // SAFETY: ends the child, and nothing of the parent's.
        unsafe { libc::_exit(code) };
    }
    assert!(child > 0, "no child");
    let mut status = 0;
    // SAFETY: waits for the child above.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    assert_eq!(far.iter().map(|far| far.0).sum::<u64>(), 3);
    drop(far);
    for ((_, resource), block) in resources.iter().zip(held) {
        free(resource, &stream, block);
    }
    if libc::WIFSIGNALED(status) { -libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}

/// The number of the first step that goes wrong; 0 if none does.
fn in_child(
    resources: &Resources,
    stream: &Stream,
    held: &[DeviceBlock],
    mut far: AllocVec<Far, OnStream<ManagedAlloc>>,
) -> i32 {
    let is_forked = |error: aquifer::Error| error.kind() == ErrorKind::Forked;
    let device = stream.device();
    let plain = || CudaResource::new(device);
    let steps = [
        ManagedResource::new(device).is_err_and(is_forked),
        AsyncResource::new(device).is_err_and(is_forked),
        AsyncResource::default_pool(device).is_err_and(is_forked),
        FixedSizeResource::new(plain()).is_err_and(is_forked),
        BinningResource::new(plain()).is_err_and(is_forked),
        ArenaResource::new(plain()).is_err_and(is_forked),
        ArenaResource::builder(plain()).arena_size(MIB).build().is_err_and(is_forked),
        far.try_reserve(10).is_err(),
    ];
    if let Some(wrong) = steps.iter().position(|right| !right) {
        return 1 + wrong as i32;
    }
    for (number, ((_, resource), block)) in resources.iter().zip(held).enumerate() {
        for bytes in [1, 300, 100 * KIB, MIB] {
            if !allocate(resource, stream, bytes).is_err_and(is_forked) {
                return 50 + number as i32;
            }
        }
        let _ = (format!("{resource:?}"), resource.identity());
        free(resource, stream, DeviceBlock::new(block.address(), block.bytes(), block.token()));
    }
    // Grown in place, or not; then it leaks.
    far.truncate(1);
    far.shrink_to_fit();
    drop(far);
    0
}
