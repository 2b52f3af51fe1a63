//! Graphs that share memory: what one capture has freed serves the next ones, and launches come one after the other.

use crate::{kernels, support};
use aquifer::mr::{GraphPool, VirtualResource};
use aquifer::sim::{SimConfig, Violation};
use aquifer::{
    CudaResource, Device, DeviceVec, ErrorKind, PoolResource, Result, Stream, stream::Graph,
};
use kernels::{add_one, copy, kind};
use std::sync::Barrier;
use std::time::Duration;

const MIB: usize = 1 << 20;
/// Elements of a vector of 64 KiB.
const WORDS: usize = 1 << 14;
const BYTES: usize = 4 * WORDS;

type Pool = PoolResource<CudaResource>;
type Words = DeviceVec<u32>;

fn pool_of(device: &Device, bytes: usize) -> Pool {
    let builder = PoolResource::builder(CudaResource::new(device));
    builder.initial_size(bytes).maximum_size(bytes).build().unwrap()
}

fn words(stream: &Stream, pool: &Pool, value: u32, count: usize) -> Result<Words> {
    let mut vec = DeviceVec::zeroed_in(stream, count, pool.clone())?;
    vec.fill(value)?;
    Ok(vec)
}

fn launch(graph: &Graph, stream: &Stream) {
    try_launch(graph, stream).unwrap();
}

fn try_launch(graph: &Graph, stream: &Stream) -> Result<()> {
    // SAFETY: these tests keep what was recorded, and order its other uses after the launch.
    unsafe { graph.launch(stream) }
}

fn all(vec: &Words) -> u32 {
    let values = vec.to_vec().unwrap();
    assert!(values.iter().all(|value| *value == values[0]), "torn: {:?}", &values[..4]);
    values[0]
}

/// `out = value + 1`, by way of scratch memory of so many words.
fn plus_one(
    stream: &Stream,
    graph_pool: &GraphPool<CudaResource>,
    (out, value, count): (&mut Words, u32, usize),
) -> Graph {
    let pool = graph_pool.pool();
    let captured = stream.capture_in(graph_pool, |stream| {
        let mut scratch = words(stream, pool, value, count)?;
        add_one(stream, &mut scratch)?;
        let part = scratch.slice(..out.len())?;
        copy(stream, &part, &mut out.slice_mut(..)?)
    });
    captured.unwrap().0
}

#[test]
fn sixteen_captures_hold_the_scratch_memory_of_one() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, 4 * MIB);
    let mut out = words(&stream, &pool, 0, 64).unwrap();
    let live = pool.statistics().live;
    let alone: Vec<Graph> = (0..3)
        .map(|_| {
            let own = pool.graph_pool().unwrap();
            plus_one(&stream, &own, (&mut out, 1, WORDS))
        })
        .collect();
    assert_eq!(pool.statistics().held, 3 * BYTES, "each in a graph pool of its own");
    drop(alone);
    assert_eq!((pool.statistics().held, pool.statistics().live), (0, live));

    let graph_pool = pool.graph_pool().unwrap();
    let graphs: Vec<Graph> =
        (0..16).map(|value| plus_one(&stream, &graph_pool, (&mut out, value, WORDS))).collect();
    let held = (graph_pool.held(), graph_pool.free(), graph_pool.graphs());
    assert_eq!(held, (BYTES, BYTES, 16));
    assert_eq!(pool.statistics().held, BYTES);
    assert!(graphs.iter().all(|graph| graph.held() == BYTES));
    for round in 0..3 {
        for (value, graph) in graphs.iter().enumerate() {
            launch(graph, &stream);
            assert_eq!(all(&out) as usize, value + 1, "round {round}");
        }
    }
    // Any order, and none in between is read.
    for value in [3, 9, 0, 15, 4] {
        launch(&graphs[value], &stream);
    }
    assert_eq!(all(&out), 5);
    // The memory goes with the last one.
    let mut graphs = graphs;
    let last = graphs.swap_remove(7);
    drop(graphs);
    assert_eq!((graph_pool.held(), graph_pool.graphs()), (BYTES, 1));
    launch(&last, &stream);
    drop(graph_pool);
    assert_eq!(pool.statistics().held, BYTES);
    assert_eq!(all(&out), 8);
    drop(last);
    assert_eq!((pool.statistics().held, pool.statistics().live), (0, live));
}

#[test]
fn what_a_capture_frees_serves_itself() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, 4 * MIB);
    let mut out = words(&stream, &pool, 0, WORDS).unwrap();
    let (graph, ()) = stream
        .capture(&pool, |stream| {
            // Sixteen layers, each from the one before.
            let mut layer = words(stream, &pool, 1, WORDS)?;
            for _ in 0..15 {
                let mut next = words(stream, &pool, 0, WORDS)?;
                copy(stream, &layer, &mut next)?;
                add_one(stream, &mut next)?;
                layer = next;
            }
            out.copy_from(&layer)
        })
        .unwrap();
    assert_eq!((graph.held(), pool.statistics().held), (2 * BYTES, 2 * BYTES));
    for _ in 0..3 {
        launch(&graph, &stream);
        assert_eq!(all(&out), 16);
    }
}

#[test]
fn graphs_of_other_sizes_cut_the_same_memory() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    for smallest_first in [false, true] {
        let pool = pool_of(&device, 16 * MIB);
        let graph_pool = pool.graph_pool().unwrap();
        let mut out = words(&stream, &pool, 0, 64).unwrap();
        let mut sizes: Vec<usize> = (1..=8).map(|part| part * WORDS).collect();
        if !smallest_first {
            sizes.reverse();
        }
        let graphs: Vec<Graph> = sizes
            .iter()
            .map(|count| plus_one(&stream, &graph_pool, (&mut out, *count as u32, *count)))
            .collect();
        if !smallest_first {
            assert_eq!(graph_pool.held(), 8 * BYTES);
        }
        // Smaller ones first cannot be known to grow: but no more than all of them alone.
        assert!(graph_pool.held() <= 36 * BYTES);
        for (graph, count) in graphs.iter().zip(&sizes) {
            launch(graph, &stream);
            assert_eq!(all(&out) as usize, count + 1);
        }
    }
}

#[test]
fn launches_on_other_streams_come_one_after_the_other() {
    for seed in 0..20 {
        let (device, simulator) = support::simulated(SimConfig::default().seed(seed));
        let streams: Vec<Stream> = (0..3).map(|_| device.new_stream().unwrap()).collect();
        let pool = pool_of(&device, 4 * MIB);
        let graph_pool = pool.graph_pool().unwrap();
        let mut outs: Vec<Words> =
            streams.iter().map(|stream| words(stream, &pool, 0, 64).unwrap()).collect();
        let graphs: Vec<Graph> = streams
            .iter()
            .zip(&mut outs)
            .enumerate()
            .map(|(value, (stream, out))| plus_one(stream, &graph_pool, (out, value as u32, WORDS)))
            .collect();
        assert_eq!(graph_pool.held(), BYTES, "captures on several streams share as well");
        for _ in 0..3 {
            for (graph, stream) in graphs.iter().zip(&streams) {
                launch(graph, stream);
            }
        }
        let waits = simulator.call_count("cuStreamWaitEvent");
        // On one stream nothing waits for anything.
        for graph in &graphs {
            launch(graph, &streams[2]);
        }
        // But for the first launch there, which comes after what was before the captures.
        assert_eq!(simulator.call_count("cuStreamWaitEvent"), waits + 2);
        streams.iter().for_each(|stream| streams[0].wait_for(stream).unwrap());
        for (value, out) in outs.iter_mut().enumerate() {
            out.set_stream(&streams[0]).unwrap();
            assert_eq!(all(out) as usize, value + 1);
        }
        simulator.check().unwrap();
    }
}

#[test]
fn launches_from_several_threads_come_one_after_the_other() {
    for seed in 0..5 {
        let (device, simulator) = support::simulated(SimConfig::default().seed(seed));
        let pool = pool_of(&device, 4 * MIB);
        let graph_pool = pool.graph_pool().unwrap();
        let start = Barrier::new(4);
        std::thread::scope(|threads| {
            for value in 0..4 {
                let (device, pool, graph_pool, start) = (&device, &pool, &graph_pool, &start);
                threads.spawn(move || {
                    let stream = device.new_stream().unwrap();
                    let mut out = words(&stream, pool, 0, 64).unwrap();
                    let graph = plus_one(&stream, graph_pool, (&mut out, value, WORDS));
                    start.wait();
                    for _ in 0..10 {
                        launch(&graph, &stream);
                        assert_eq!(all(&out), value + 1);
                    }
                });
            }
        });
        assert!(graph_pool.held() <= 4 * BYTES);
        simulator.check().unwrap();
    }
}

#[test]
fn a_launch_waits_for_a_short_capture_of_its_stream() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, 4 * MIB);
    let graph_pool = pool.graph_pool().unwrap();
    let mut out = words(&stream, &pool, 0, 64).unwrap();
    let graph = plus_one(&stream, &graph_pool, (&mut out, 1, WORDS));
    let (mut launches, mut refused) = (0, 0);
    for _ in 0..20 {
        let inside = Barrier::new(2);
        std::thread::scope(|threads| {
            let launched = threads.spawn(|| {
                inside.wait();
                try_launch(&graph, &stream)
            });
            let (again, ()) = stream
                .capture_in(&graph_pool, |stream| {
                    inside.wait();
                    std::thread::sleep(Duration::from_micros(300));
                    words(stream, &pool, 7, WORDS).map(drop)
                })
                .unwrap();
            match launched.join().unwrap() {
                Ok(()) => launches += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Capture, "{error}");
                    refused += 1;
                }
            }
            drop(again);
        });
    }
    // A busy machine may keep a capture for longer than a call waits.
    assert!(launches > refused, "{launches} launches, {refused} refused");
    assert_eq!(all(&out), 2);
}

#[cfg(unix)]
#[test]
fn a_child_of_a_fork_uses_no_graph_pool() {
    if !support::in_own_process(module_path!(), "a_child_of_a_fork_uses_no_graph_pool") {
        return;
    }
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, 4 * MIB);
    let graph_pool = pool.graph_pool().unwrap();
    let mut out = words(&stream, &pool, 0, 64).unwrap();
    let graph = plus_one(&stream, &graph_pool, (&mut out, 1, WORDS));
    let mut child = None;
    let captured = stream.capture_in(&graph_pool, |stream| {
        let scratch = words(stream, &pool, 7, WORDS)?;
        // SAFETY: the child calls the crate on the one thread that it has, and leaves by `_exit`.
        child = Some(unsafe { libc::fork() });
        drop(scratch);
        Ok(())
    });
    match child.unwrap() {
        0 => {
            let counts = (graph_pool.held(), graph.held(), graph_pool.graphs());
            let kinds = [
                kind(captured),
                kind(try_launch(&graph, &stream)),
                kind(pool.graph_pool().map(drop)),
            ];
            drop((graph, graph_pool));
            let fails = counts != (0, 0, 0) || kinds != [ErrorKind::Forked; 3];
            // SAFETY: ends the child without the destructors of the parent's objects.
            unsafe { libc::_exit(i32::from(fails)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child made above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0);
        }
    }
    drop(captured.unwrap());
    launch(&graph, &stream);
    assert_eq!((all(&out), graph_pool.held()), (2, BYTES));
    simulator.check().unwrap();
}

#[test]
fn what_a_capture_leaves_over_is_not_written_over() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, 4 * MIB);
    let graph_pool = pool.graph_pool().unwrap();
    let mut out = words(&stream, &pool, 0, 64).unwrap();
    let first = plus_one(&stream, &graph_pool, (&mut out, 6, WORDS));
    let (second, left) =
        stream.capture_in(&graph_pool, |stream| words(stream, &pool, 9, 1024)).unwrap();
    launch(&second, &stream);
    assert_eq!(all(&left), 9);
    let refused = try_launch(&first, &stream).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(refused.to_string().contains("would write over 4096 bytes"), "{refused}");
    assert!(refused.advice().unwrap().contains("make them before the captures"), "{refused:?}");
    assert_eq!((all(&left), all(&out)), (9, 0), "nothing ran");
    // Its own graph may write it, and without it the first may run.
    launch(&second, &stream);
    drop(second);
    assert_eq!(kind(try_launch(&first, &stream)), ErrorKind::InvalidArgument);
    drop(left);
    launch(&first, &stream);
    assert_eq!(all(&out), 7);
    // What was there before a capture is not in its way.
    let (_third, kept) =
        stream.capture_in(&graph_pool, |stream| words(stream, &pool, 3, 1024)).unwrap();
    let fourth = plus_one(&stream, &graph_pool, (&mut out, 20, WORDS));
    launch(&fourth, &stream);
    assert_eq!(all(&out), 21);
    drop((first, fourth, kept));
}

#[test]
fn what_a_capture_leaves_over_comes_after_launches_and_before_later_ones() {
    for seed in 0..20 {
        let (device, simulator) = support::simulated(SimConfig::default().seed(seed));
        let (a, b, c) = (device.new_stream(), device.new_stream(), device.new_stream());
        let (a, b, c) = (a.unwrap(), b.unwrap(), c.unwrap());
        let pool = pool_of(&device, 4 * MIB);
        let graph_pool = pool.graph_pool().unwrap();
        let mut out = words(&a, &pool, 0, 64).unwrap();
        let first = plus_one(&a, &graph_pool, (&mut out, 6, WORDS));
        launch(&first, &b);
        // It is written without a launch of its graph, while the first may still run.
        let capture = || a.capture_in(&graph_pool, |a| words(a, &pool, 9, 1024)).unwrap();
        let (second, mut left) = capture();
        left.fill(3).unwrap();
        assert_eq!(all(&left), 3, "seed {seed}");
        left.set_stream(&c).unwrap();
        left.fill(4).unwrap();
        drop(left);
        // Elsewhere than all of that.
        launch(&first, &b);
        b.synchronize().unwrap();
        drop(second);
        // The same where the graph that runs is gone before the capture ends.
        let gone = plus_one(&a, &graph_pool, (&mut out, 8, WORDS));
        let mut gone = Some(gone);
        let (last, mut left) = a
            .capture_in(&graph_pool, |a| {
                let vec = words(a, &pool, 9, 1024)?;
                let gone = gone.take().unwrap();
                launch(&gone, &b);
                Ok(vec)
            })
            .unwrap();
        left.fill(6).unwrap();
        assert_eq!(all(&left), 6, "seed {seed}");
        drop((last, left));
        launch(&first, &b);
        b.synchronize().unwrap();
        // The same of a capture that fails.
        let mut left = None;
        launch(&first, &b);
        let failed = a.capture_in(&graph_pool, |a| {
            left = Some(words(a, &pool, 9, 1024)?);
            Err::<(), _>(aquifer::Error::new(ErrorKind::InvalidArgument, "mine"))
        });
        assert_eq!(kind(failed), ErrorKind::InvalidArgument);
        let mut left = left.unwrap();
        left.fill(5).unwrap();
        assert_eq!(all(&left), 5, "seed {seed}");
        drop(left);
        launch(&first, &c);
        out.set_stream(&c).unwrap();
        assert_eq!(all(&out), 7);
        simulator.check().unwrap();
    }
}

#[test]
fn a_launch_behind_a_vector_whose_stream_is_in_capture_is_refused() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = pool_of(&device, 4 * MIB);
    let graph_pool = pool.graph_pool().unwrap();
    let mut out = words(&a, &pool, 0, 64).unwrap();
    let first = plus_one(&a, &graph_pool, (&mut out, 6, WORDS));
    let (second, mut left) = a.capture_in(&graph_pool, |a| words(a, &pool, 9, 1024)).unwrap();
    left.fill(3).unwrap();
    drop(left);
    let (_third, refused) = a.capture(&pool, |_| Ok(kind(try_launch(&first, &b)))).unwrap();
    assert_eq!(refused, ErrorKind::Capture);
    launch(&first, &b);
    a.wait_for(&b).unwrap();
    assert_eq!(all(&out), 7);
    drop(second);
    simulator.check().unwrap();
}

#[test]
fn a_vector_of_one_graph_that_another_one_frees_is_no_scratch_memory() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, 4 * MIB);
    let graph_pool = pool.graph_pool().unwrap();
    let mut out = words(&stream, &pool, 0, WORDS).unwrap();
    let (first, vec) =
        stream.capture_in(&graph_pool, |stream| words(stream, &pool, 4, WORDS)).unwrap();
    let (second, ()) = stream
        .capture_in(&graph_pool, |stream| {
            copy(stream, &vec, &mut out)?;
            drop(vec);
            Ok(())
        })
        .unwrap();
    // It reads what the first has written, so no third may write there in between.
    let mut third_out = words(&stream, &pool, 0, 64).unwrap();
    let third = plus_one(&stream, &graph_pool, (&mut third_out, 50, WORDS));
    assert_eq!(graph_pool.held(), 2 * BYTES);
    for graph in [&first, &third, &second] {
        launch(graph, &stream);
    }
    assert_eq!((all(&out), all(&third_out)), (4, 51));
    drop((first, second));
    assert_eq!(graph_pool.held(), BYTES);
    launch(&third, &stream);
    assert_eq!(all(&third_out), 51);
}

#[test]
fn memory_of_before_the_capture_is_not_another_streams_at_once() {
    // The chunk was freed on `a` behind a long kernel. A graph of `b` in the same graph pool has to come after it.
    for seed in 0..30 {
        let (device, simulator) = support::simulated(SimConfig::default().seed(seed));
        let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let pool = pool_of(&device, 4 * MIB);
        let graph_pool = pool.graph_pool().unwrap();
        let mut out = words(&b, &pool, 0, 64).unwrap();
        let mut busy = words(&a, &pool, 1, WORDS).unwrap();
        for _ in 0..5 {
            add_one(&a, &mut busy).unwrap();
        }
        drop(busy);
        // It takes the memory that `a` has just freed, and never runs.
        let (never, ()) =
            a.capture_in(&graph_pool, |stream| words(stream, &pool, 1, WORDS).map(drop)).unwrap();
        let graph = plus_one(&b, &graph_pool, (&mut out, 2, WORDS));
        launch(&graph, &b);
        assert_eq!(all(&out), 3);
        drop((never, graph));
        assert_eq!(pool.statistics().held, 0);
        let whole = words(&b, &pool, 5, (4 * MIB - 4096) / 4);
        drop((whole, out));
        simulator.check().unwrap();
    }
}

#[test]
fn captures_that_fail_leave_the_graph_pool_whole() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, 4 * MIB);
    let graph_pool = pool.graph_pool().unwrap();
    let mut out = words(&stream, &pool, 0, 64).unwrap();
    let graph = plus_one(&stream, &graph_pool, (&mut out, 2, WORDS));
    let mut left = None;
    for _ in 0..3 {
        let failed = stream.capture_in(&graph_pool, |stream| {
            left = Some(words(stream, &pool, 1, 64)?);
            let _more = words(stream, &pool, 1, 2 * WORDS)?;
            Err::<(), _>(aquifer::Error::new(ErrorKind::InvalidArgument, "mine"))
        });
        assert_eq!(kind(failed), ErrorKind::InvalidArgument);
        assert_eq!(graph_pool.graphs(), 1);
        // What it has left is a vector of the user's, where the first graph works.
        assert_eq!(kind(try_launch(&graph, &stream)), ErrorKind::InvalidArgument);
        left = None;
        launch(&graph, &stream);
        assert_eq!(all(&out), 3);
    }
    assert_eq!(graph_pool.held(), BYTES);
    let elsewhere = support::simulated(SimConfig::default()).0.new_stream().unwrap();
    assert_eq!(kind(elsewhere.capture_in(&graph_pool, |_| Ok(()))), ErrorKind::WrongDevice);
    drop((graph, left));
    assert_eq!((graph_pool.held(), pool.statistics().live), (0, 256));
}

#[test]
fn a_graph_pool_uses_the_pools_last_memory() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, MIB);
    let graph_pool = pool.graph_pool().unwrap();
    let body = |stream: &Stream| words(stream, &pool, 1, MIB / 4).map(drop);
    let (first, ()) = stream.capture_in(&graph_pool, body).unwrap();
    let (second, ()) = stream.capture_in(&graph_pool, body).unwrap();
    assert_eq!(kind(stream.capture(&pool, body)), ErrorKind::OutOfMemory);
    assert_eq!(kind(words(&stream, &pool, 1, 1)), ErrorKind::OutOfMemory);
    drop((first, second));
    words(&stream, &pool, 1, MIB / 4).unwrap();
}

#[test]
fn a_launch_that_fails_keeps_the_order() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = pool_of(&device, 4 * MIB);
    let graph_pool = pool.graph_pool().unwrap();
    let mut out = words(&a, &pool, 0, 64).unwrap();
    let first = plus_one(&a, &graph_pool, (&mut out, 1, WORDS));
    let mut other = words(&b, &pool, 0, 64).unwrap();
    let second = plus_one(&b, &graph_pool, (&mut other, 2, WORDS));
    launch(&first, &a);
    simulator.fail_call("cuGraphLaunch", 1, 999).unwrap();
    assert_eq!(kind(try_launch(&second, &b)), ErrorKind::Driver);
    launch(&second, &b);
    // The event behind a launch fails: the next launch elsewhere records another one.
    simulator.fail_call("cuEventRecord", 1, 999).unwrap();
    launch(&first, &a);
    launch(&second, &b);
    simulator.fail_call("cuEventRecord", 1, 999).unwrap();
    launch(&first, &a);
    simulator.fail_call("cuEventRecord", 1, 999).unwrap();
    assert_eq!(
        kind(try_launch(&second, &b)),
        ErrorKind::Driver,
        "it may not come before the first"
    );
    launch(&second, &b);
    assert_eq!((all(&out), all(&other)), (2, 3));
    simulator.check().unwrap();
}

#[test]
fn a_capture_on_the_stream_of_the_last_launch_refuses_one_elsewhere_at_most() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = pool_of(&device, 4 * MIB);
    let graph_pool = pool.graph_pool().unwrap();
    let mut out = words(&a, &pool, 0, 64).unwrap();
    let graph = plus_one(&a, &graph_pool, (&mut out, 1, WORDS));
    launch(&graph, &a);
    let (_other, ()) = a
        .capture(&pool, |_| {
            launch(&graph, &b);
            assert!(!b.is_capturing()?, "it has not joined");
            Ok(())
        })
        .unwrap();
    a.wait_for(&b).unwrap();
    assert_eq!(all(&out), 2);
    simulator.check().unwrap();
}

/// Memory of another pool is not the graph's. Its next owner may be as large as what was there.
#[test]
fn a_launch_over_the_next_owner_of_another_pools_memory_is_reported() {
    let device = Device::simulated(SimConfig::default());
    let simulator = device.simulator().unwrap();
    let stream = device.new_stream().unwrap();
    let (pool, other) = (pool_of(&device, 4 * MIB), pool_of(&device, 4 * MIB));
    // So that the other pool serves the stream in capture from what it has freed.
    drop(words(&stream, &other, 1, WORDS).unwrap());
    let (graph, ()) =
        stream.capture(&pool, |stream| words(stream, &other, 2, WORDS).map(drop)).unwrap();
    assert_eq!(graph.held(), 0);
    let next = words(&stream, &other, 7, WORDS).unwrap();
    launch(&graph, &stream);
    let reports = simulator.take_reports();
    assert!(reports.iter().any(|it| it.kind() == Violation::UseAfterFree), "{reports:?}");
    drop(next);
}

#[test]
fn a_graph_of_what_has_moved_in_place_is_not_reported() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
    let mut vec = DeviceVec::<u32>::zeroed_in(&stream, MIB, pool.clone()).unwrap();
    let (graph, ()) = stream.capture(&pool, |stream| add_one(stream, &mut vec)).unwrap();
    launch(&graph, &stream);
    vec.resize(2 * MIB, 5).unwrap();
    launch(&graph, &stream);
    assert_eq!((vec.get(0).unwrap(), vec.get(2 * MIB - 1).unwrap()), (2, 5));
    simulator.check().unwrap();
}

/// Without the order of launches the simulated device reports it: two graphs in one memory on two streams.
#[test]
fn graphs_in_one_memory_that_run_at_the_same_time_are_reported() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = pool_of(&device, 4 * MIB);
    let mut scratch = words(&a, &pool, 0, WORDS).unwrap();
    a.synchronize().unwrap();
    let (first, ()) = a.capture(&pool, |stream| add_one(stream, &mut scratch)).unwrap();
    let (second, ()) = a.capture(&pool, |stream| add_one(stream, &mut scratch)).unwrap();
    launch(&first, &a);
    launch(&second, &b);
    let report = simulator.take_reports().pop().expect("a report");
    assert_eq!(report.kind(), Violation::UnorderedAccess, "{report}");
}

#[test]
fn there_are_graph_pools_without_end_one_after_the_other() {
    let device = support::device();
    let pool = pool_of(&device, MIB);
    for _ in 0..70_000 {
        drop(pool.graph_pool().unwrap());
    }
}
