//! One range of memory for all, which never grows.

use super::log::Log;
use super::{Call, KIB, MIB, Recorder, allocate, disjoint, free, refused, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceLayout, DeviceResource, ErrorKind, PoolResource, mr::ArenaResource,
};
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use tracing::Level;

fn arena(device: &Device, bytes: usize) -> ArenaResource {
    ArenaResource::builder(CudaResource::new(device)).arena_size(bytes).build().unwrap()
}

#[test]
fn sizes_that_make_no_arena_are_errors() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(64 << 20));
    for size in [0, 256, MIB - 256, MIB + 1, MIB + 255, usize::MAX] {
        let built = ArenaResource::builder(CudaResource::new(&device)).arena_size(size).build();
        refused(built, ErrorKind::InvalidArgument, &format!("an arena of {size} bytes"));
    }
    let built = ArenaResource::builder(CudaResource::new(&device)).arena_size(65 << 20).build();
    refused(built, ErrorKind::OutOfMemory, "bytes");
    assert_eq!(simulator.live_bytes(), 0);
    // RMM's 90 per cent.
    let most = (64 << 20) / 10 * 9 / 256 * 256;
    assert_eq!(arena(&device, most).statistics().reserved, most);
}

#[test]
fn half_of_what_is_free_unless_said_otherwise() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(64 << 20));
    let first = ArenaResource::new(CudaResource::new(&device)).unwrap();
    assert_eq!((first.statistics().reserved, simulator.live_bytes()), (32 << 20, 32 << 20));
    let second = ArenaResource::new(CudaResource::new(&device)).unwrap();
    assert_eq!(second.statistics().reserved, 16 << 20);
    drop((first, second));
    assert_eq!(simulator.live_bytes(), 0);

    let (device, _) = support::simulated(SimConfig::default().capacity(MIB));
    let built = ArenaResource::new(CudaResource::new(&device));
    refused(built, ErrorKind::OutOfMemory, "no arena");
}

#[test]
fn upstream_is_asked_once_and_gets_it_back_at_the_end() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let upstream = Recorder::new(&device);
    let arena = ArenaResource::builder(upstream.clone()).arena_size(4 * MIB).build().unwrap();
    assert_eq!(upstream.calls(), [Call::Asked { bytes: 4 * MIB, alignment: 256 }]);
    for bytes in [1, 256, 256 * KIB, MIB, 3 * MIB, 4 * MIB] {
        let block = allocate(&arena, &stream, bytes).unwrap();
        free(&arena, &stream, block);
    }
    refused(allocate(&arena, &stream, 4 * MIB + 1), ErrorKind::OutOfMemory, "4194305 bytes");
    for bytes in [1 << 50, usize::MAX / 2, usize::MAX / 2 - 255] {
        let layout = DeviceLayout::with_alignment(bytes, 1).unwrap();
        refused(arena.allocate(&stream, layout), ErrorKind::OutOfMemory, "bytes");
    }
    assert!(upstream.calls().is_empty());
    drop(arena);
    assert_eq!(upstream.calls(), [Call::Freed { bytes: 4 * MIB }]);
}

#[test]
fn four_mebibytes_are_four_blocks_of_one_and_whole_again_after() {
    let device = support::device();
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let arena = arena(&device, 4 * MIB);
    let mut held: Vec<_> = (0..4).map(|_| allocate(&arena, &stream, MIB).unwrap()).collect();
    disjoint(&held);
    refused(allocate(&arena, &stream, 1), ErrorKind::OutOfMemory, "4194304 bytes of them in use");
    refused(allocate(&arena, &other, MIB), ErrorKind::OutOfMemory, "1048576 bytes");

    // Freed on another stream than it was allocated on, through another handle.
    free(&arena.clone(), &other, held.remove(2));
    let again = allocate(&arena, &stream, MIB).unwrap();
    held.push(again);
    disjoint(&held);
    held.into_iter().for_each(|block| free(&arena, &other, block));
    let whole = allocate(&arena, &stream, 4 * MIB).unwrap();
    free(&arena, &stream, whole);
    assert_eq!(arena.statistics().live, 0);
}

#[test]
fn alignments_are_kept_and_no_bytes_are_an_empty_block() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let arena = arena(&device, 16 * MIB);
    let mut held = Vec::new();
    for power in (9..=21).rev().chain(9..=21) {
        let layout = DeviceLayout::with_alignment(100, 1 << power).unwrap();
        let block = arena.allocate(&stream, layout).unwrap();
        assert!(block.address().is_multiple_of(1 << power), "{block:?} for {layout:?}");
        held.push(block);
    }
    disjoint(&held);
    let empty = allocate(&arena, &stream, 0).unwrap();
    assert!(empty.is_empty());
    held.push(empty);
    held.into_iter().for_each(|block| free(&arena, &stream, block));
    assert_eq!(arena.statistics().live, 0);
}

#[test]
fn four_threads_with_streams_of_their_own_leave_it_whole() {
    let device = support::device();
    let arena = arena(&device, 16 * MIB);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (arena, device) = (arena.clone(), device.clone());
            scope.spawn(move || {
                let stream = device.new_stream().unwrap();
                let mut held = Vec::new();
                for step in 0..300 {
                    let bytes = 1 + (step * 7919 + thread * 104_729) % (128 * KIB);
                    held.push(allocate(&arena, &stream, bytes).unwrap());
                    if held.len() > 16 {
                        free(&arena, &stream, held.swap_remove(step % 16));
                    }
                }
                disjoint(&held);
                held.into_iter().for_each(|block| free(&arena, &stream, block));
            });
        }
    });
    let stream = device.new_stream().unwrap();
    assert_eq!(arena.statistics().live, 0);
    let whole = allocate(&arena, &stream, 16 * MIB).unwrap();
    assert_eq!(arena.statistics().live, 16 * MIB);
    free(&arena, &stream, whole);
}

#[test]
fn the_whole_arena_is_there_whatever_another_thread_keeps_ready() {
    let device = support::device();
    let arena = arena(&device, 4 * MIB);
    let (kept, taken) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream = device.new_stream().unwrap();
            for _ in 0..4 {
                let held: Vec<_> =
                    (0..8).map(|_| allocate(&arena, &stream, 64 * KIB).unwrap()).collect();
                held.into_iter().for_each(|block| free(&arena, &stream, block));
            }
            let ready = arena.statistics().cached;
            kept.wait();
            taken.wait();
            assert!(ready > 0, "nothing was kept ready");
        });
        kept.wait();
        let stream = device.new_stream().unwrap();
        let whole = allocate(&arena, &stream, 4 * MIB);
        taken.wait();
        free(&arena, &stream, whole.unwrap());
    });
    assert_eq!((arena.statistics().live, arena.statistics().growths), (0, 1));
}

#[test]
fn a_capture_is_refused_what_it_would_have_to_wait_for() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let (arena, pool) = (arena(&device, MIB), PoolResource::new(CudaResource::new(&device)));
    let pool = pool.unwrap();
    let captured = stream.capture(&pool, |stream| {
        refused(allocate(&arena, stream, 100), ErrorKind::Capture, "capture");
        Ok(())
    });
    captured.unwrap();
    let block = allocate(&arena, &stream, MIB).unwrap();
    free(&arena, &stream, block);
}

/// A file of this test's own, which is not there.
fn file(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("aquifer-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

#[test]
fn each_failure_for_memory_adds_a_report_to_the_file() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let path = file("arena-report");
    let builder = ArenaResource::builder(CudaResource::new(&device)).arena_size(4 * MIB);
    let arena = builder.dump_on_failure(&path).build().unwrap();
    let mut held: Vec<_> = (0..4).map(|_| allocate(&arena, &stream, MIB).unwrap()).collect();
    assert!(!path.exists(), "nothing has failed");
    // Two free mebibytes that are no neighbours.
    held.sort_by_key(|block| block.address());
    free(&arena, &stream, held.remove(2));
    free(&arena, &stream, held.remove(0));
    refused(allocate(&arena, &stream, 2 * MIB), ErrorKind::OutOfMemory, "2097152 bytes");
    let report = std::fs::read_to_string(&path).unwrap();
    for line in [
        "out of memory: allocating 2097152 bytes",
        "request: 2097152 bytes, aligned to 256, on ",
        "reserved: 4194304\n",
        "live: 2097152 in 2 blocks\n",
        "total free: 2097152\n",
        "largest free: 1048576\n",
        "fragmentation: 50.00 %\n",
    ] {
        assert!(report.contains(line), "{line:?} is not in {report}");
    }
    refused(allocate(&arena.clone(), &stream, 8 * MIB), ErrorKind::OutOfMemory, "8388608 bytes");
    let both = std::fs::read_to_string(&path).unwrap();
    assert!(both.starts_with(&report) && both.matches("fragmentation: ").count() == 2, "{both}");
    held.into_iter().for_each(|block| free(&arena, &stream, block));
    std::fs::remove_file(&path).unwrap();

    if !support::on_gpu() {
        let elsewhere = support::device().new_stream().unwrap();
        refused(allocate(&arena, &elsewhere, 1), ErrorKind::WrongDevice, "stream");
        assert!(!path.exists(), "that was not for memory");
    }
}

#[test]
fn a_report_that_cannot_be_written_hides_nothing() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let path = file("no-directory").join("report");
    let builder = ArenaResource::builder(CudaResource::new(&device)).arena_size(MIB);
    let arena = builder.dump_on_failure(&path).build().unwrap();
    let (result, log) = Log::of(|| allocate(&arena, &stream, 2 * MIB));
    refused(result, ErrorKind::OutOfMemory, "2097152 bytes");
    assert_eq!(log.count(Level::WARN, "report was not written"), 1, "{:?}", log.lines());
}

#[test]
fn handles_are_one_arena() {
    let device = support::device();
    let (one, other) = (arena(&device, MIB), arena(&device, MIB));
    assert!(one == one.clone() && one != other);
    let erased = |arena: &ArenaResource| Arc::new(arena.clone()) as Arc<dyn DeviceResource>;
    assert!(*erased(&one) == *erased(&one.clone()) && *erased(&one) != *erased(&other));
}

/// RMM's small, medium and large requests of its whole default arena.
#[test]
fn small_medium_and_large_are_served_side_by_side() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let arena = ArenaResource::new(CudaResource::new(&device)).unwrap();
    let third = arena.statistics().free / 3 / 256 * 256;
    let held = [256, 64 * MIB, third, third].map(|bytes| allocate(&arena, &stream, bytes).unwrap());
    disjoint(&held);
    held.into_iter().for_each(|block| free(&arena, &stream, block));
    assert_eq!(arena.statistics().live, 0);
}

/// What a thread that is gone had ready went to another stream meanwhile, and is in one piece after.
#[test]
fn a_block_is_freed_after_what_lay_beside_it_went_to_another_stream() {
    let device = support::device();
    let (one, two) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let arena = arena(&device, 4 * MIB);
    let kept = std::thread::scope(|scope| {
        let of_thread = scope.spawn(|| {
            let mut held: Vec<_> = (0..8).map(|_| allocate(&arena, &one, 1000).unwrap()).collect();
            let kept = held.swap_remove(3);
            held.into_iter().for_each(|block| free(&arena, &one, block));
            kept
        });
        of_thread.join().unwrap()
    });
    // All but what is kept, which the other stream has to gather.
    let rest = allocate(&arena, &two, 3 * MIB).unwrap();
    two.wait_for(&one).unwrap();
    free(&arena, &two, kept);
    free(&arena, &two, rest);
    let whole = allocate(&arena, &one, 4 * MIB).unwrap();
    free(&arena, &one, whole);
}
