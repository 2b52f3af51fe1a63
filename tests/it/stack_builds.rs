//! Stacks that were built by their texts: what they serve, what they tell, what they give back.

use crate::support;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceResource, DeviceVec, Error, ErrorKind, Stream,
    mr::{ResourceStack, StackText, StackTextError},
};
use std::error::Error as _;
use std::path::PathBuf;
use std::sync::Arc;
use support::{free, layout};

const MIB: usize = 1 << 20;

fn build(device: &Device, text: &str) -> ResourceStack {
    let text: StackText = text.parse().unwrap_or_else(|error| panic!("{error}"));
    text.build(device).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn failed(device: &Device, text: &str) -> Error {
    let read: StackText = text.parse().unwrap_or_else(|error| panic!("{error}"));
    match read.build(device) {
        Ok(stack) => panic!("{text} is {stack:?}"),
        Err(error) => error,
    }
}

fn allocate(resource: &dyn DeviceResource, stream: &Stream, bytes: usize) -> DeviceBlock {
    resource.allocate(stream, layout(bytes)).unwrap()
}

/// A folder of this test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("aquifer stack {} {name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A path inside as a value of a text.
    fn value(&self, name: &str) -> String {
        let path = self.0.join(name).to_str().unwrap().replace('\\', "\\\\");
        format!("\"{path}\"")
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_pool_under_a_limit_with_statistics_and_a_log() {
    if !support::in_own_process(module_path!(), "a_pool_under_a_limit_with_statistics_and_a_log") {
        return;
    }
    // The log is a relative path.
    let folder = Folder::new("whole");
    std::env::set_current_dir(&folder.0).unwrap();
    let text: StackText =
        "pool(cuda, initial=1GiB, max=80%) | limiting(40GiB) | statistics | logging(file)"
            .parse()
            .unwrap();
    assert_eq!(
        text.to_string(),
        "pool(cuda, initial_size=1GiB, maximum_size=80%) | limiting(40GiB) | statistics | logging(file)"
    );
    let config = SimConfig::default().capacity(64 << 30).without_poison();
    let device = match support::on_gpu() {
        true => Device::open(0).unwrap(),
        false => support::simulated(config).0,
    };
    let live_bytes = || device.simulator().map(|simulator| simulator.live_bytes());
    let stream = device.new_stream().unwrap();
    let stack = text.build(&device).unwrap();
    assert_eq!(stack.text(), Some(&text));
    assert_eq!(stack.device(), &device);
    assert!(live_bytes().is_none_or(|bytes| bytes == 1 << 30));
    let total = device.memory_info().unwrap().total;
    assert_eq!(stack.pool().unwrap().maximum_size(), Some(total * 4 / 5 / 256 * 256));
    assert_eq!(stack.limiting().unwrap().limit(), 40 << 30);

    let vec = DeviceVec::from_slice_in(&stream, &[7_u32; 64], stack.clone()).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [7; 64]);
    let counters = stack.counters().unwrap();
    assert_eq!((counters.bytes.current, counters.allocations.total), (256, 1));
    let of_pool = stack.pool_statistics().unwrap();
    assert_eq!((of_pool.live, of_pool.reserved), (256, 1 << 30));
    assert!(of_pool.largest_free > 512 * MIB);
    let refused = DeviceVec::<u8>::zeroed_in(&stream, 41 << 30, stack.clone()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    assert!(refused.to_string().contains("under a limit of 42949672960 bytes"), "{refused}");
    drop(vec);
    assert_eq!(stack.counters().unwrap().bytes.current, 0);

    stack.flush().unwrap();
    let rows = folder.text("file");
    let actions = ["allocate,", "allocate failure,", "free,"];
    let rows: Vec<_> = rows.lines().skip(1).collect();
    assert_eq!(rows.len(), actions.len(), "{rows:?}");
    assert!(rows.iter().zip(actions).all(|(row, action)| row.contains(action)), "{rows:?}");

    assert_eq!(stack.wait_and_trim(0).unwrap(), 1 << 30);
    assert!(live_bytes().is_none_or(|bytes| bytes == 0));
}

#[test]
fn each_resource_and_adaptor_serves() {
    let device = support::device();
    let folder = Folder::new("each");
    let log = folder.value("log.csv");
    for text in [
        "cuda",
        "virtual",
        "pool(virtual, max=64MiB)",
        "async",
        "async(initial=1MiB, release_threshold=2MiB, reuse_follow_event_dependencies=false, \
         reuse_opportunistic=off, reuse_internal_dependencies=on, managed=false)",
        "async_default",
        "managed",
        "managed(oversubscribe=true)",
        "system",
        "system(headroom=10%)",
        "pinned",
        "pinned(portable=false, mapped=true, write_combined=false)",
        "pinned_pool",
        "pinned_pool(initial=1MiB, max=8MiB, growth_step=1MiB, quarantine_bytes=1MiB, wait_for_device=on, \
         magazine_entries=4, magazine_bytes=1MiB, portable=true, mapped=true, write_combined=true)",
        "pool",
        "pool(cuda, initial=1MiB, max=64MiB, soft_limit=8MiB, growth_step=1MiB, alignment=512, \
         miss_policy=rmm, magazine_entries=2, magazine_bytes=1MiB)",
        "pool(managed)",
        "pool(pinned)",
        "pool(async)",
        "fixed_size",
        "fixed_size(cuda, block_size=64KiB, blocks_per_chunk=4, initial_blocks=4)",
        "binning",
        "binning(pool, min_exponent=8, max_exponent=12)",
        "arena(cuda, arena_size=8MiB)",
        "arena(pool(cuda), arena_size=8MiB)",
        "cuda | aligned(64KiB)",
        "cuda | aligned(64KiB, 1MiB)",
        "cuda | checked(require_same_stream=true, poison=off)",
        "cuda | checked(poison=0xee)",
        "cuda | limiting(1GiB, alignment=1)",
        "cuda | limiting(50%)",
        "managed | prefetch",
        "cuda | statistics",
        "pool | thread_safe",
        "cuda | traced",
        "cuda | tracking(capture_backtraces=true)",
        &format!("cuda | logging({log}, format=events, capacity=1024, locations=true)"),
        "pool(pool(cuda | limiting(1GiB)) | statistics, growth_step=4MiB) | tracking | thread_safe",
    ] {
        let stack = match text.parse::<StackText>().unwrap().build(&device) {
            Err(error) if support::on_gpu() && error.kind() == ErrorKind::Unsupported => continue,
            built => built.unwrap_or_else(|error| panic!("{text}: {error}")),
        };
        let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let vec = DeviceVec::from_slice_in(&a, &[1_u32; 5000], stack.clone()).unwrap();
        assert_eq!(vec.to_vec().unwrap(), [1; 5000], "{text}");
        let block = allocate(&stack, &b, 20_000);
        drop(vec);
        free(&stack, &b, block);
        let empty = allocate(&stack, &a, 0);
        free(&stack, &a, empty);
        if let Some(tracking) = stack.tracking() {
            assert!(tracking.outstanding().is_empty());
        }
        if let Some(checked) = stack.checked() {
            assert_eq!(checked.misuses(), 0);
        }
        stack.flush().unwrap();
        device.synchronize().unwrap();
        stack.wait_and_trim(0).unwrap_or_else(|error| panic!("{text}: {error}"));
        if let Some(of_pool) = stack.pool_statistics() {
            assert_eq!(of_pool.live, 0, "{text}");
        }
        if let Some(counters) = stack.counters() {
            assert_eq!(counters.bytes.current, 0);
        }
    }
    let rows = folder.text("log.csv");
    assert!(rows.starts_with("Event Type,"), "{rows}");
    assert!(rows.lines().nth(1).unwrap().contains("stack_builds.rs:"), "{rows}");
}

#[test]
fn options_reach_the_builders() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let pool = |options: &str| build(&device, &format!("pool(cuda, {options})"));
    let stack = pool("initial=3MiB, max=64MiB, soft_limit=5MiB, release_threshold=32MiB");
    assert_eq!(stack.pool_statistics().unwrap().reserved, 3 * MIB);
    assert_eq!(stack.pool().unwrap().maximum_size(), Some(64 * MIB));
    assert_eq!(stack.pool().unwrap().soft_limit(), Some(5 * MIB));
    assert_eq!(stack.pool().unwrap().release_threshold(), Some(32 * MIB));
    drop(stack);

    let stream = device.new_stream().unwrap();
    let stack = pool("growth_step=7MiB, alignment=4KiB");
    let block = allocate(&stack, &stream, 1);
    assert_eq!(stack.pool_statistics().unwrap().reserved, 7 * MIB);
    assert_eq!(stack.pool_statistics().unwrap().live, 4096);
    free(&stack, &stream, block);
    drop(stack);

    let stack =
        build(&device, "fixed_size(block_size=64KiB, blocks_per_chunk=4, initial_blocks=8)");
    assert_eq!(stack.pool_statistics().unwrap().reserved, 512 << 10);
    let held: Vec<_> = (0..9).map(|_| allocate(&stack, &stream, 1)).collect();
    assert_eq!(held[0].bytes(), 64 << 10);
    assert_eq!(stack.pool_statistics().unwrap().reserved, (512 + 256) << 10);
    held.into_iter().for_each(|block| free(&stack, &stream, block));
    drop(stack);

    let stack = build(&device, "binning(cuda, min_exponent=9, max_exponent=10)");
    for (asked, got) in [(1, 512), (513, 1024), (1025, 1025)] {
        let block = allocate(&stack, &stream, asked);
        assert_eq!(block.bytes(), got);
        free(&stack, &stream, block);
    }
    drop(stack);
    let stack = build(&device, "binning");
    let block = allocate(&stack, &stream, 1);
    assert_eq!(block.bytes(), 256 << 10);
    free(&stack, &stream, block);
    drop(stack);

    let stack = build(&device, "cuda | aligned(1MiB, 64KiB)");
    let small = allocate(&stack, &stream, 100);
    let large = allocate(&stack, &stream, 64 << 10);
    assert!(large.address().is_multiple_of(1 << 20));
    free(&stack, &stream, small);
    free(&stack, &stream, large);

    let stack = build(&device, "cuda | limiting(1000, alignment=1)");
    let block = allocate(&stack, &stream, 999);
    assert_eq!(stack.limiting().unwrap().remaining(), 1);
    free(&stack, &stream, block);

    let stack = build(&device, "cuda | checked(require_same_stream=true, poison=off)");
    let other = device.new_stream().unwrap();
    let block = allocate(&stack, &stream, 1);
    free(&stack, &other, block);
    assert_eq!(stack.checked().unwrap().misuses(), 1);

    let fills =
        || simulator.calls().iter().filter(|(call, _)| call.starts_with("cuMemset")).count();
    assert_eq!(fills(), 0);
    let stack = build(&device, "cuda | checked(poison=0xee)");
    let block = allocate(&stack, &stream, 1);
    free(&stack, &stream, block);
    assert_eq!(fills(), 1);

    let stack = build(&device, "cuda | tracking(capture_backtraces=true)");
    let block = allocate(&stack, &stream, 1);
    assert!(stack.tracking().unwrap().report().contains("stack_builds.rs"));
    free(&stack, &stream, block);

    // What a builder refuses was given to it.
    for (text, column, problem) in [
        ("pool(max=1000)", 1, "the maximum size of a pool, 1000 bytes"),
        ("pool(initial=1000)", 1, "the initial size of a pool, 1000 bytes"),
        ("pool(growth_step=0)", 1, "to grow by 0 bytes"),
        ("pool(alignment=3)", 1, "to align to 3 bytes"),
        ("pool(magazine_entries=9)", 1, "to keep 9 blocks of a size"),
        ("pool(pool(max=1KiB), initial=1000)", 1, "the initial size of a pool, 1000 bytes"),
        ("pool(pool(cuda, max=1000), initial=1KiB)", 6, "the maximum size of a pool, 1000 bytes"),
        ("async(initial=2MiB, release_threshold=1MiB)", 1, "and to keep 1048576 bytes"),
        ("pinned_pool(max=1000)", 1, "a maximum size of 1000 bytes"),
        ("pinned_pool(initial=8KiB, max=4KiB)", 1, "an initial size of 8192 bytes"),
        ("pinned_pool(growth_step=0)", 1, "a growth step of 0 bytes"),
        ("pinned_pool(magazine_entries=9)", 1, "9 blocks of a size"),
        ("fixed_size(block_size=100)", 1, "blocks of 100 bytes"),
        ("fixed_size(blocks_per_chunk=0)", 1, "chunks of no blocks"),
        ("binning(min_exponent=7)", 1, "bins of 2^7 to 2^22 bytes"),
        ("binning(max_exponent=99999999999)", 1, "bins of 2^18 to 2^4294967295 bytes"),
        ("arena(arena_size=1KiB)", 1, "an arena of 1024 bytes"),
        ("  cuda | aligned(100)", 10, "an alignment of 100 bytes"),
        ("cuda | limiting(9, alignment=3)", 8, "multiples of 3 bytes"),
        ("cuda | logging(x, capacity=0)", 8, "to hold 0 records"),
        ("cuda | logging(x, locations=true)", 8, "in RMM's format"),
    ] {
        let error = failed(&device, text);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let wrong = error.source().and_then(|source| source.downcast_ref::<StackTextError>());
        let wrong = wrong.expect("a place in the text");
        assert_eq!(wrong.column(), column, "{error}");
        assert!(wrong.problem().contains(problem), "{problem}: {error}");
        assert!(error.to_string().starts_with("making `"), "{error}");
        assert!(error.advice().is_some());
    }
    drop(stack);
    device.synchronize().unwrap();
    assert_eq!(simulator.live_bytes(), 0, "nothing of a stack that was not built");

    // What is asked of the driver.
    let error = failed(&device, "pool(initial=1TiB)");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("making `pool`, at column 1"), "{error}");
    let bare = SimConfig::default().without_managed_memory().without_pageable_memory_access();
    let (bare, _) = support::simulated(bare.without_memory_pools());
    for text in ["managed", "system", "async", "async_default"] {
        assert_eq!(failed(&bare, text).kind(), ErrorKind::Unsupported, "{text}");
    }
    let (unmapped, _) = support::simulated(SimConfig::default().without_host_mapping());
    assert_eq!(failed(&unmapped, "pinned(mapped=true)").kind(), ErrorKind::Unsupported);
}

#[test]
fn parts_of_memory_are_rounded_down() {
    let (device, _) = support::simulated(SimConfig::default().capacity(1000 * 256 + 255));
    let limit = |part: &str| {
        build(&device, &format!("cuda | limiting({part})")).limiting().unwrap().limit()
    };
    assert_eq!(limit("100%"), 256_000);
    assert_eq!(limit("50%"), 128_000);
    assert_eq!(limit("0.1%"), 256);
    assert_eq!(limit("0.000001%"), 0);
    assert_eq!(limit("33.333333%"), 256 * 333);
    let maximum = |text| build(&device, text).pool().unwrap().maximum_size();
    assert_eq!(maximum("pool(max=50%)"), Some(128_000));
    assert_eq!(maximum("pool(max=50%, alignment=4KiB)"), Some(31 * 4096));
    // As the builder has it.
    assert_eq!(failed(&device, "pool(max=0%)").kind(), ErrorKind::InvalidArgument);
    assert_eq!(failed(&device, "pool(max=50%, alignment=3)").kind(), ErrorKind::InvalidArgument);
}

#[test]
fn each_pool_gives_memory_back_from_the_outermost_inwards() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    for (text, counts) in [
        ("pool", true),
        ("pool(pool(pool)) | statistics", true),
        ("binning(pool) | tracking", true),
        ("binning", true),
        ("fixed_size(pool | limiting(2GiB))", true),
        // Those of the simulated device keep nothing.
        ("async", false),
        ("async_default", false),
        ("pinned_pool", true),
        ("pool(pinned)", false),
        ("pool(virtual)", true),
        ("cuda", false),
        ("managed | prefetch", false),
    ] {
        let stack = build(&device, text);
        let held = [100, 5000, MIB, 3 * MIB]
            .map(|bytes| stack.allocate(&stream, layout(bytes.min(MIB))).unwrap());
        for block in held {
            free(&stack, &stream, block);
        }
        stream.synchronize().unwrap();
        let before = simulator.live_bytes();
        let given = stack.wait_and_trim(0).unwrap();
        assert_eq!(given > 0, counts, "{text}: {given} bytes");
        assert!(before == 0 || simulator.live_bytes() <= before, "{text}");
        assert_eq!(stack.wait_and_trim(0).unwrap(), 0, "{text}");
        drop(stack);
        device.synchronize().unwrap();
    }
    // The bytes of the innermost are not counted twice, and those that are to be kept stay.
    let stack = build(&device, "pool(pool(cuda, growth_step=8MiB), growth_step=2MiB)");
    let block = allocate(&stack, &stream, MIB);
    free(&stack, &stream, block);
    assert_eq!(stack.wait_and_trim(8 * MIB).unwrap(), 0);
    assert_eq!(
        stack.wait_and_trim(2 * MIB).unwrap(),
        0,
        "the inner pool has one block, part of which is in use"
    );
    assert_eq!(stack.pool_statistics().unwrap().reserved, 2 * MIB);
    assert_eq!(stack.wait_and_trim(0).unwrap(), 8 * MIB);

    // Nothing goes back while a stream of the pool is in capture.
    let stack = build(&device, "pool(pool(cuda), growth_step=4MiB)");
    let block = allocate(&stack, &stream, MIB);
    free(&stack, &stream, block);
    let pool = stack.pool().unwrap().clone();
    let (_graph, trimmed) = stream.capture(&pool, |_| Ok(stack.wait_and_trim(0))).unwrap();
    assert_eq!(trimmed.unwrap_err().kind(), ErrorKind::Capture);
    assert!(stack.wait_and_trim(0).unwrap() > 0);
}

#[test]
fn a_stack_is_its_outermost_resource() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let stack = build(&device, "pool(cuda) | statistics | tracking | limiting(1GiB)");
    assert_eq!(stack.identity(), stack.resource().identity());
    assert_eq!(stack.identity(), stack.limiting().unwrap().identity());
    assert_eq!(stack, stack.clone());
    assert_ne!(stack, build(&device, "pool(cuda) | statistics | tracking | limiting(1GiB)"));
    assert!(format!("{stack:?}").contains("pool(cuda) | statistics | tracking | limiting(1GiB)"));
    // A block of one handle goes back by another, and by the resource.
    let block = allocate(&stack, &stream, 1000);
    free(&stack.clone(), &stream, block);
    let block = allocate(&**stack.resource(), &stream, 1000);
    free(&stack, &stream, block);
    let block = allocate(&stack, &stream, 1000);
    let resource = stack.resource().clone();
    free(&*resource, &stream, block);
    assert_eq!(stack.counters().unwrap().allocations.total, 3);
    assert_eq!(stack.counters().unwrap().bytes.current, 0);
    // A container keeps the outermost resource itself.
    let before = Arc::strong_count(stack.resource());
    let vec = DeviceVec::<u8>::zeroed_in(&stream, 100, stack.clone()).unwrap();
    assert_eq!(Arc::strong_count(stack.resource()), before + 1);
    // Plain memory is the driver's own, and a pool's is not.
    let plain = build(&device, "cuda");
    assert_eq!(
        *plain.resource().clone(),
        *(Arc::new(CudaResource::new(&device)) as Arc<dyn DeviceResource>)
    );
    for text in ["cuda", "async", "pool", "cuda | statistics", "async | prefetch"] {
        let stack = build(&device, text);
        let block = allocate(&stack, &stream, 1000);
        assert_eq!(stack.frees_with_driver(&block), stack.resource().frees_with_driver(&block));
        assert_eq!(stack.frees_with_driver(&block), text.starts_with("async"), "{text}");
        free(&stack, &stream, block);
    }
    // What is not there.
    assert!(plain.counters().is_none() && plain.statistics().is_none());
    assert!(plain.tracking().is_none() && plain.limiting().is_none() && plain.checked().is_none());
    assert!(plain.pool().is_none() && plain.pool_statistics().is_none());
    // The vector outlives the stack.
    drop((stack, resource));
    assert_eq!(vec.to_vec().unwrap(), [0; 100]);
}

#[test]
fn of_two_the_outer_one_is_meant() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let stack = build(
        &device,
        "pool(fixed_size(cuda | statistics, block_size=8MiB), growth_step=8MiB) | statistics | limiting(1GiB) | limiting(1MiB)",
    );
    let block = allocate(&stack, &stream, 1024);
    assert_eq!(stack.counters().unwrap().bytes.current, 1024);
    assert_eq!(stack.limiting().unwrap().limit(), MIB);
    assert_eq!(stack.pool_statistics().unwrap().reserved, 8 * MIB);
    free(&stack, &stream, block);
}

#[test]
fn a_stack_as_high_as_a_text_may_have_serves_on_a_small_thread() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let pools = "pool(".repeat(4) + "cuda" + &")".repeat(4);
    let adaptors = " | tracking | statistics | limiting(16GiB)".repeat(9);
    for text in [pools.clone(), pools + &adaptors] {
        let device = device.clone();
        let run = move || {
            let stack = build(&device, &text);
            let stream = device.new_stream().unwrap();
            let vec = DeviceVec::<u8>::zeroed_in(&stream, 3 * MIB, stack.clone()).unwrap();
            drop(vec);
            assert!(stack.wait_and_trim(0).unwrap() > 0);
            let refused = DeviceVec::<u8>::zeroed_in(&stream, 8 << 30, stack).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
        };
        std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().unwrap();
    }
    device.synchronize().unwrap();
    assert_eq!(simulator.live_bytes(), 0);
}

#[test]
fn a_capture_is_declared_to_the_pool_of_a_stack() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let stack = build(&device, "pool(cuda) | limiting(1GiB) | statistics");
    let pool = stack.pool().unwrap();
    let (graph, vec) = stream
        .capture(pool, |stream| DeviceVec::<u32>::zeroed_in(stream, 1000, stack.clone()))
        .unwrap();
    // SAFETY: nothing else uses the vector, which lives until the graph has run.
    unsafe { graph.launch(&stream).unwrap() };
    assert_eq!(vec.to_vec().unwrap(), [0; 1000]);
    drop((vec, graph));
}

#[test]
fn logs_are_written_when_they_are_flushed_and_named_by_the_environment() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let folder = Folder::new("logs");
    let [outer, inner] = ["outer, (1).csv", "inner.csv"].map(|name| folder.value(name));
    let stack =
        build(&device, &format!("pool(cuda | logging({inner})) | logging({outer}, format=events)"));
    let block = allocate(&stack, &stream, 1000);
    stack.flush().unwrap();
    assert_eq!(folder.text("outer, (1).csv").lines().count(), 2);
    assert_eq!(folder.text("inner.csv").lines().count(), 2);
    free(&stack, &stream, block);
    // Two logs of one file.
    let error = failed(&device, &format!("cuda | logging({inner})"));
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().starts_with("making `logging`, at column 8"), "{error}");
    // An arena's report.
    let report = folder.value("report");
    let arena = build(&device, &format!("arena(arena_size=1MiB, dump_on_failure={report})"));
    arena.allocate(&stream, layout(2 * MIB)).unwrap_err();
    assert!(folder.text("report").starts_with("out of memory"));
}

#[test]
fn the_environment_has_a_text() {
    if !support::in_own_process(module_path!(), "the_environment_has_a_text") {
        return;
    }
    // SAFETY: the only thread of the process that reads or writes the environment.
    let set = |value: &std::ffi::OsStr| unsafe { std::env::set_var(StackText::VARIABLE, value) };
    // SAFETY: as above.
    unsafe { std::env::remove_var(StackText::VARIABLE) };
    assert_eq!(StackText::from_env().unwrap(), None);
    set("".as_ref());
    assert_eq!(StackText::from_env().unwrap(), None);
    set("pool(max=50%) | statistics".as_ref());
    assert_eq!(StackText::from_env().unwrap(), Some("pool(max=50%)|statistics".parse().unwrap()));
    set("pool(max=50%) | nothing".as_ref());
    let error = StackText::from_env().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Environment);
    assert!(error.to_string().starts_with("AQUIFER_STACK: column 17 of a stack's text"), "{error}");
    let wrong = error.source().and_then(|source| source.downcast_ref::<StackTextError>());
    assert_eq!(wrong.unwrap().column(), 17);
    set(" ".as_ref());
    assert_eq!(StackText::from_env().unwrap_err().kind(), ErrorKind::Environment);
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        set(std::ffi::OsStr::from_bytes(b"pool\xff"));
        let error = StackText::from_env().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Environment);
        assert!(error.to_string().contains("no Unicode text"), "{error}");
    }
}
