//! Declared captures: vectors made and dropped while a stream records a graph, and what becomes of
//! their memory while the graph is launched again and again.

use crate::{kernels, log, spoil, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceVec, Error, ErrorKind, PoolResource, Result, Stream, stream::Graph,
};
use kernels::{add_one, copy, kind};
use log::Log;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use tracing::Level;

const MIB: usize = 1 << 20;
/// Elements of a vector of 64 KiB.
const WORDS: usize = 1 << 14;

type Pool = PoolResource<CudaResource>;
type Words = DeviceVec<u32>;

/// A pool of so many bytes, all of them there from the start.
fn pool_of(device: &Device, bytes: usize) -> Pool {
    let builder = PoolResource::builder(CudaResource::new(device));
    builder.initial_size(bytes).maximum_size(bytes).build().unwrap()
}

fn words(stream: &Stream, pool: &Pool, value: u32) -> Result<Words> {
    let mut vec = DeviceVec::zeroed_in(stream, WORDS, Arc::new(pool.clone()))?;
    vec.fill(value)?;
    Ok(vec)
}

fn launch(graph: &Graph, stream: &Stream) {
    // SAFETY: these tests keep what was recorded, and order its other uses after the launch.
    unsafe { graph.launch(stream).unwrap() }
}

/// Takes and gives back all that the pool has free, on several streams, and writes over it.
fn churn(streams: &[Stream], pool: &Pool) {
    for (round, stream) in streams.iter().enumerate() {
        let mut taken = Vec::new();
        while let Ok(vec) = words(stream, pool, 0xdead_0000 + round as u32) {
            taken.push(vec);
            assert!(taken.len() < 10_000, "a pool without an end");
        }
        assert!(!taken.is_empty());
    }
}

/// What waits for its end is freed by whichever thread looks next, so another test's may be about to.
fn eventually(stream: &Stream, what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        stream.synchronize().unwrap();
    }
}

fn all(vec: &Words) -> u32 {
    let values = vec.to_vec().unwrap();
    assert!(values.iter().all(|value| *value == values[0]), "torn: {:?}", &values[..4]);
    values[0]
}

/// `out = from + 2`, by way of two vectors that are made and dropped on the way.
fn two_more(stream: &Stream, pool: &Pool, from: &Words, out: &mut Words) -> Result<()> {
    let mut first = words(stream, pool, 0)?;
    copy(stream, from, &mut first)?;
    add_one(stream, &mut first)?;
    let mut second = words(stream, pool, 0)?;
    second.copy_from(&first)?;
    drop(first);
    // As large as the first, whose memory it has.
    let third = words(stream, pool, 77)?;
    add_one(stream, &mut second)?;
    drop(third);
    out.copy_from(&second)
}

#[test]
fn a_warm_pool_leaves_the_capture_valid_and_the_graph_its_memory() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let others: Vec<_> = (0..3).map(|_| device.new_stream().unwrap()).collect();
    let pool = pool_of(&device, 2 * MIB);
    let mut from = words(&stream, &pool, 5).unwrap();
    let mut out = words(&stream, &pool, 0).unwrap();
    // Warm: the magazines are full, and the stream's own memory is in many pieces.
    for _ in 0..4 {
        two_more(&stream, &pool, &from, &mut out).unwrap();
    }
    assert_eq!(all(&out), 7);
    out.fill(0).unwrap();
    let live = pool.statistics().live;
    let (graph, ()) =
        stream.capture(&pool, |stream| two_more(stream, &pool, &from, &mut out)).unwrap();
    assert_eq!(all(&out), 0, "recorded, not run");
    let kept = pool.statistics();
    // The third lies where the first was.
    assert_eq!((kept.held, kept.live), (2 * WORDS * 4, live + 2 * WORDS * 4));
    for round in 0..6 {
        churn(&others, &pool);
        from.fill(10 * round).unwrap();
        let on = [&stream, &others[0], &others[1]][round as usize % 3];
        // The launch comes after the fill, the read after the launch.
        on.wait_for(&stream).unwrap();
        launch(&graph, on);
        churn(&others, &pool);
        stream.wait_for(on).unwrap();
        assert_eq!(all(&out), 10 * round + 2);
    }
    drop(graph);
    let after = pool.statistics();
    assert_eq!((after.held, after.live), (0, live));
    churn(&others, &pool);
    churn(&[stream], &pool);
    assert_eq!(all(&out), 52);
}

#[test]
fn memory_comes_back_behind_the_launches_that_are_on_their_way() {
    for seed in 0..20 {
        let device = support::seeded(seed);
        let stream = device.new_stream().unwrap();
        let elsewhere = [device.new_stream().unwrap(), device.new_stream().unwrap()];
        let pool = pool_of(&device, MIB);
        let mut out = words(&stream, &pool, 0).unwrap();
        let (graph, ()) = stream
            .capture(&pool, |stream| {
                let mut scratch = words(stream, &pool, 3)?;
                add_one(stream, &mut scratch)?;
                out.copy_from(&scratch)
            })
            .unwrap();
        for stream in &elsewhere {
            launch(&graph, stream);
        }
        drop(graph);
        // Nothing has waited on the host: the next owner on any stream comes after the launches.
        churn(std::slice::from_ref(&stream), &pool);
        churn(&elsewhere, &pool);
        assert_eq!(all(&out), 4);
    }
}

#[test]
fn a_vector_outlives_its_graph() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, MIB);
    let (graph, (mut vec, unused)) = stream
        .capture(&pool, |stream| Ok((words(stream, &pool, 6)?, words(stream, &pool, 1)?)))
        .unwrap();
    launch(&graph, &stream);
    assert_eq!(all(&vec), 6);
    drop(unused);
    let stats = pool.statistics();
    assert_eq!((stats.live_blocks, stats.held), (2, WORDS * 4));
    drop(graph);
    let stats = pool.statistics();
    assert_eq!((stats.live_blocks, stats.held), (1, 0));
    add_one(&stream, &mut vec).unwrap();
    churn(&[device.new_stream().unwrap(), stream.clone()], &pool);
    assert_eq!(all(&vec), 7);
    drop(vec);
    assert_eq!(pool.statistics().live, 0);
    let whole: DeviceVec<u8> = DeviceVec::zeroed_in(&stream, MIB, Arc::new(pool.clone())).unwrap();
    drop(whole);
}

#[test]
fn what_is_dropped_in_the_capture_is_kept_for_the_graph() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let other = device.new_stream().unwrap();
    let pool = pool_of(&device, MIB);
    let from = words(&stream, &pool, 8).unwrap();
    let mut out = words(&stream, &pool, 0).unwrap();
    let (graph, ()) = stream
        .capture(&pool, |stream| {
            // So wanted, an ordinary free of this size would stay with the thread.
            for _ in 0..3 {
                words(stream, &pool, 1)?;
            }
            out.copy_from(&from)?;
            drop(from);
            Ok(())
        })
        .unwrap();
    assert_eq!(pool.statistics().held, 2 * WORDS * 4);
    churn(&[other.clone(), stream.clone()], &pool);
    launch(&graph, &stream);
    assert_eq!(all(&out), 8);
    drop(graph);
    assert_eq!((pool.statistics().held, pool.statistics().live), (0, WORDS * 4));
    churn(&[other], &pool);
}

#[test]
fn a_vector_of_one_graph_that_is_dropped_in_another_waits_for_both() {
    for first_goes_first in [true, false] {
        let device = support::device();
        let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let c = device.new_stream().unwrap();
        let pool = pool_of(&device, MIB);
        let mut out = words(&a, &pool, 0).unwrap();
        let (first, mut vec) = a.capture(&pool, |a| words(a, &pool, 4)).unwrap();
        launch(&first, &a);
        vec.set_stream(&b).unwrap();
        out.set_stream(&b).unwrap();
        let (second, ()) = b
            .capture(&pool, |_| {
                out.copy_from(&vec)?;
                drop(vec);
                Ok(())
            })
            .unwrap();
        assert_eq!(pool.statistics().held, WORDS * 4);
        launch(&second, &b);
        // Once more where neither of them has been: only the end of the first waits for it.
        c.wait_for(&b).unwrap();
        launch(&first, &c);
        let (goes, stays) = if first_goes_first { (first, second) } else { (second, first) };
        drop(goes);
        assert_eq!(pool.statistics().held, WORDS * 4);
        drop(stays);
        assert_eq!(pool.statistics().held, 0);
        churn(&[b.clone(), a.clone()], &pool);
        assert_eq!(all(&out), 4);
    }
}

#[test]
fn a_vector_that_is_freed_elsewhere_waits_for_its_graph_and_for_its_last_use() {
    let device = support::device();
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = pool_of(&device, MIB);
    let (graph, mut vec) = stream.capture(&pool, |stream| words(stream, &pool, 4)).unwrap();
    launch(&graph, &stream);
    vec.set_stream(&other).unwrap();
    add_one(&other, &mut vec).unwrap();
    drop(vec);
    assert_eq!(pool.statistics().held, WORDS * 4);
    drop(graph);
    assert_eq!(pool.statistics().live, 0);
    churn(&[stream, other], &pool);
}

#[test]
fn a_graph_that_goes_while_its_stream_is_in_the_next_capture_gives_back_later() {
    let device = support::device();
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = pool_of(&device, MIB);
    let mut out = words(&stream, &pool, 0).unwrap();
    let graph = |out: &mut Words| {
        stream
            .capture(&pool, |stream| {
                let scratch = words(stream, &pool, 9)?;
                out.copy_from(&scratch)
            })
            .unwrap()
            .0
    };
    let first = graph(&mut out);
    launch(&first, &other);
    let (second, ()) = stream
        .capture(&pool, |stream| {
            drop(first);
            assert_eq!(pool.statistics().held, WORDS * 4, "nothing can wait for it now");
            let mut scratch = words(stream, &pool, 1)?;
            add_one(stream, &mut scratch)
        })
        .unwrap();
    assert_eq!(pool.statistics().held, WORDS * 4, "of the second, not of the first");
    launch(&second, &stream);
    // The stream that it was launched on is in capture: as long as that lasts.
    let third = graph(&mut out);
    launch(&third, &other);
    other
        .capture(&pool, |_| {
            drop(third);
            assert_eq!(pool.statistics().held, 2 * WORDS * 4);
            Ok(())
        })
        .unwrap();
    assert_eq!(pool.statistics().held, WORDS * 4);
    drop(second);
    assert_eq!(pool.statistics().live, WORDS * 4);
    churn(&[stream.clone(), other], &pool);
    assert_eq!(all(&out), 9);
}

#[test]
fn a_capture_that_fails_leaves_the_pool_whole() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, MIB);
    let mut kept = words(&stream, &pool, 1).unwrap();
    let mut left = Vec::new();
    let mine = || Error::new(ErrorKind::InvalidArgument, "mine");
    for way in 0..4 {
        let spare = words(&stream, &pool, 2).unwrap();
        let captured = catch_unwind(AssertUnwindSafe(|| {
            stream.capture(&pool, |stream| {
                let scratch = words(stream, &pool, 3)?;
                kept.copy_from(&scratch)?;
                drop((scratch, spare));
                left.push(words(stream, &pool, 4)?);
                match way {
                    0 => return Err(mine()),
                    1 => panic!("on purpose"),
                    // As a library would that was told of no capture.
                    2 => spoil::spoil(&device, stream)?,
                    // Lent to another stream that nobody waits for.
                    _ => add_one(&device.new_stream()?, &mut kept)?,
                }
                Ok(())
            })
        }));
        match captured {
            Ok(result) => {
                let error = result.expect_err("a graph");
                let expected = if way == 0 { mine().kind() } else { ErrorKind::Capture };
                assert_eq!(error.kind(), expected, "{way}: {error}");
            }
            Err(_) => assert_eq!(way, 1),
        }
        assert!(!stream.is_capturing().unwrap());
        let stats = pool.statistics();
        assert_eq!((stats.held, stats.live_blocks), (0, 2), "{way}");
        // An ordinary vector now, and never written.
        let mut vec = left.pop().unwrap();
        vec.fill(5).unwrap();
        assert_eq!(all(&vec), 5);
        drop(vec);
        churn(&[device.new_stream().unwrap(), stream.clone()], &pool);
        assert_eq!(all(&kept), 1, "{way}");
    }
    drop(kept);
    assert_eq!(pool.statistics().live, 0);
    // And the stream's magazines are open again. (What churned took from them, so they wait a while.)
    for _ in 0..40 {
        words(&stream, &pool, 1).unwrap();
    }
    assert_ne!(pool.statistics().cached, 0);
}

#[test]
fn captures_that_cannot_be_are_refused() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, MIB);
    let nothing = |_: &Stream| Ok(());
    assert_eq!(kind(device.default_stream().capture(&pool, nothing)), ErrorKind::Capture);
    let (graph, ()) = stream
        .capture(&pool, |stream| {
            assert_eq!(kind(stream.capture(&pool, nothing)), ErrorKind::Capture);
            // On the default stream too, which is no part of this one.
            assert_eq!(kind(device.default_stream().capture(&pool, nothing)), ErrorKind::Capture);
            // Another stream's capture is its own.
            let (inner, ()) = device.new_stream()?.capture(&pool, nothing)?;
            drop(inner);
            words(stream, &pool, 1).map(drop)
        })
        .unwrap();
    launch(&graph, &stream);
    stream.synchronize().unwrap();
    // The default stream serves as before.
    churn(&[device.default_stream()], &pool);
    let (elsewhere, _) = support::simulated(SimConfig::default());
    let refused = elsewhere.new_stream().unwrap().capture(&pool, nothing);
    assert_eq!(kind(refused), ErrorKind::WrongDevice);
}

/// Makes and drops vectors, and reads some back. Returns what was seen and what should have been.
fn use_on(stream: &Stream, pool: &Pool, first: Words, read: bool) -> Result<Vec<(u32, u32)>> {
    let mut vecs = vec![first];
    let mut seen = Vec::new();
    for step in 0..30 {
        let vec = words(stream, pool, step)?;
        if read && step % 10 == 0 {
            seen.push((vec.get(WORDS - 1)?, step));
        }
        vecs.push(vec);
        if step % 3 == 2 {
            vecs.swap_remove(0);
        }
    }
    Ok(seen)
}

#[test]
fn other_threads_use_the_pool_meanwhile() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    // Room enough that nobody needs what the captured stream has free: that is not stolen.
    let pool = pool_of(&device, 32 * MIB);
    let mut out = words(&stream, &pool, 0).unwrap();
    for round in 0..10 {
        let inside = Barrier::new(5);
        let graph = std::thread::scope(|threads| {
            for worker in 0..4 {
                let (stream, pool, inside, device) = (&stream, &pool, &inside, &device);
                threads.spawn(move || {
                    // Two on the stream that records, two on their own.
                    let own = (worker % 2 == 0).then(|| device.new_stream().unwrap());
                    let on = own.as_ref().unwrap_or(stream);
                    let before = words(on, pool, worker).unwrap();
                    inside.wait();
                    // Asserted when all are through: who panics early leaves the others waiting.
                    inside.wait();
                    let used = use_on(on, pool, before, own.is_some());
                    inside.wait();
                    match (own, used) {
                        (Some(_), used) => {
                            assert!(used.unwrap().iter().all(|(seen, wanted)| seen == wanted));
                        }
                        (None, used) => assert_eq!(kind(used), ErrorKind::Capture),
                    }
                });
            }
            // What they gave the stream before has to be over before it is in capture.
            inside.wait();
            let (graph, ()) = stream
                .capture(&pool, |stream| {
                    let mut scratch = words(stream, &pool, round)?;
                    inside.wait();
                    let recorded = add_one(stream, &mut scratch);
                    // What the others dropped on the stream is kept, too.
                    inside.wait();
                    recorded.and_then(|()| out.copy_from(&scratch))
                })
                .unwrap();
            graph
        });
        for _ in 0..2 {
            launch(&graph, &stream);
            assert_eq!(all(&out), round + 1);
        }
        drop(graph);
        // The threads' own ends may still give back what they kept: the figures are exact after that.
        eventually(&stream, "the memory of `out` alone", || {
            let stats = pool.statistics();
            (stats.held, stats.live) == (0, WORDS * 4)
        });
    }
}

#[test]
fn out_of_memory_in_a_capture_is_an_error_like_any_other() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let other = device.new_stream().unwrap();
    let pool = pool_of(&device, MIB);
    // All of it passes through the other stream, which is waited for on the host.
    churn(std::slice::from_ref(&other), &pool);
    let (graph, served) = stream
        .capture(&pool, |stream| {
            let mut taken = Vec::new();
            let error = loop {
                match words(stream, &pool, 1) {
                    Ok(vec) => taken.push(vec),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
            let refused = DeviceVec::<u8>::zeroed_in(stream, 2 * MIB, Arc::new(pool.clone()));
            assert_eq!(kind(refused), ErrorKind::OutOfMemory);
            Ok(taken.len())
        })
        .unwrap();
    assert_eq!(served, MIB / (WORDS * 4), "to the last byte");
    launch(&graph, &stream);
    assert_eq!(kind(words(&other, &pool, 1)), ErrorKind::OutOfMemory, "it is the graph's");
    drop(graph);
    churn(&[other, stream], &pool);
}

#[test]
fn what_others_freed_is_the_graphs_only_when_the_device_is_done_with_it() {
    for seed in 0..20 {
        let device = support::seeded(seed);
        let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let pool = pool_of(&device, MIB);
        let mut whole: DeviceVec<u32> =
            DeviceVec::zeroed_in(&other, MIB / 4, Arc::new(pool.clone())).unwrap();
        whole.fill(8).unwrap();
        drop(whole);
        let (graph, vec) = stream.capture(&pool, |stream| words(stream, &pool, 3)).unwrap();
        // Nothing else puts this behind the other stream's work.
        launch(&graph, &stream);
        assert_eq!(all(&vec), 3);
    }
}

#[test]
fn what_the_stream_freed_since_the_capture_began_is_not_the_graphs() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, MIB);
    let all = || DeviceVec::<u8>::zeroed_in(&stream, MIB, Arc::new(pool.clone()));
    let before = all().unwrap();
    let (graph, ()) = stream
        .capture(&pool, |_| {
            drop(before);
            assert_eq!(kind(all()), ErrorKind::OutOfMemory);
            Ok(())
        })
        .unwrap();
    launch(&graph, &stream);
    drop(graph);
    churn(&[stream], &pool);
}

#[test]
fn a_pool_grows_in_a_capture_beside_the_graph() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::builder(CudaResource::new(&device)).growth_step(MIB).build().unwrap();
    let mut out = words(&stream, &pool, 0).unwrap();
    let (graph, ()) = stream
        .capture(&pool, |stream| {
            let many: Vec<_> = (0..40).map(|it| words(stream, &pool, it)).collect::<Result<_>>()?;
            out.copy_from(&many[39])
        })
        .unwrap();
    assert!(pool.statistics().growths > 1);
    launch(&graph, &stream);
    assert_eq!(all(&out), 39);
    drop((graph, out));
    let reserved = pool.statistics().reserved;
    assert_eq!(pool.wait_and_trim(0).unwrap(), reserved, "every byte is free and whole");
}

#[test]
fn a_pool_over_a_pool_grows_from_it_in_a_capture() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let below = pool_of(&device, 8 * MIB);
    // Upstream has memory that it would serve this stream in order: not for a graph.
    drop(words(&stream, &below, 7).unwrap());
    let pool = PoolResource::builder(below.clone()).growth_step(MIB).build().unwrap();
    let memory = Arc::new(pool.clone());
    let vec = |value| -> Result<Words> {
        let mut vec = DeviceVec::zeroed_in(&stream, WORDS, memory.clone())?;
        vec.fill(value)?;
        Ok(vec)
    };
    let mut out = vec(0).unwrap();
    let (graph, ()) = stream
        .capture(&pool, |_| {
            let many: Vec<_> = (0..40).map(vec).collect::<Result<_>>()?;
            out.copy_from(&many[39])
        })
        .unwrap();
    for _ in 0..2 {
        launch(&graph, &stream);
        assert_eq!(all(&out), 39);
    }
    drop((graph, out));
    pool.wait_and_trim(0).unwrap();
    assert_eq!((pool.statistics().live, below.statistics().live), (0, 0));
}

#[test]
fn the_graph_keeps_the_pool() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, MIB);
    let mut out = Words::zeroed(&stream, WORDS).unwrap();
    let (graph, ()) =
        stream.capture(&pool, |stream| out.copy_from(&words(stream, &pool, 2)?)).unwrap();
    drop(pool);
    launch(&graph, &stream);
    assert_eq!(all(&out), 2);
    drop(stream);
    let ((), log) = Log::of(|| drop(graph));
    assert!(log.lines().is_empty(), "all of it goes back: {:?}", log.lines());
}

#[test]
fn an_undeclared_capture_is_noticed_where_the_pool_would_have_to_wait() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = pool_of(&device, MIB);
    let warm = words(&stream, &pool, 1).unwrap();
    let far = words(&other, &pool, 1).unwrap();
    drop(warm);
    simulator.start_capture(&stream).unwrap();
    let large = DeviceVec::<u8>::zeroed_in(&stream, 20 * WORDS * 4, Arc::new(pool.clone()));
    assert_eq!(kind(large), ErrorKind::Capture);
    // Nor does it lose its memory to another stream, which would need an event of it.
    while words(&other, &pool, 1).map(std::mem::forget).is_ok() {}
    assert!(simulator.stop_capture(&stream), "not disturbed");
    drop(far);
    churn(&[other, stream], &pool);
    simulator.check().unwrap();
}

#[test]
fn another_pool_is_not_told() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let (pool, stranger) = (pool_of(&device, MIB), pool_of(&device, MIB));
    let (graph, ()) = stream
        .capture(&pool, |stream| {
            assert_eq!(kind(words(stream, &stranger, 1)), ErrorKind::Capture);
            words(stream, &pool, 1).map(drop)
        })
        .unwrap();
    launch(&graph, &stream);
    churn(&[stream], &stranger);
}

#[test]
fn nothing_is_cached_while_a_capture_runs() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, MIB);
    for _ in 0..4 {
        words(&stream, &pool, 1).unwrap();
    }
    assert_ne!(pool.statistics().cached, 0);
    let (graph, ()) = stream
        .capture(&pool, |stream| {
            assert_eq!(pool.statistics().cached, 0, "the graph may have all of it");
            for _ in 0..4 {
                words(stream, &pool, 1)?;
            }
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    (0..4).for_each(|_| {
                        assert_eq!(kind(words(stream, &pool, 1)), ErrorKind::Capture);
                    });
                });
            });
            assert_eq!(pool.statistics().cached, 0);
            Ok(())
        })
        .unwrap();
    // Each of the capture had what the one before had left. What other threads get is theirs when it is over.
    assert_eq!(pool.statistics().held, 5 * WORDS * 4);
    drop(graph);
    for _ in 0..4 {
        words(&stream, &pool, 1).unwrap();
    }
    assert_ne!(pool.statistics().cached, 0);
}

#[test]
fn what_a_graph_was_to_write_is_not_there_before_its_launch() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, MIB);
    let (graph, vec) = stream.capture(&pool, |stream| words(stream, &pool, 1)).unwrap();
    assert_eq!(kind(vec.to_vec()), ErrorKind::Simulation, "nobody has written it");
    assert_eq!(simulator.take_reports().len(), 1);
    launch(&graph, &stream);
    assert_eq!(all(&vec), 1);
    simulator.check().unwrap();
}

#[test]
fn a_driver_that_fails_costs_the_graph_and_no_memory() {
    for call in
        ["cuEventRecord", "cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate"]
    {
        for nth in [1, 2] {
            let (device, simulator) = support::simulated(SimConfig::default());
            let stream = device.new_stream().unwrap();
            let pool = pool_of(&device, MIB);
            drop(words(&stream, &pool, 1).unwrap());
            simulator.fail_call(call, nth, 2).unwrap();
            let captured = stream.capture(&pool, |stream| words(stream, &pool, 1).map(drop));
            if nth == 1 || call == "cuEventRecord" {
                assert_eq!(kind(captured), ErrorKind::OutOfMemory, "{call}");
            } else {
                drop(captured.unwrap());
            }
            assert!(!stream.is_capturing().unwrap());
            assert_eq!((pool.statistics().held, pool.statistics().live), (0, 0), "{call}");
            churn(&[device.new_stream().unwrap(), stream], &pool);
            simulator.check().unwrap();
        }
    }
}

#[test]
fn memory_whose_launches_cannot_be_waited_for_is_leaked_and_said_so() {
    for call in ["cuEventRecord", "cuStreamWaitEvent"] {
        let (device, simulator) = support::simulated(SimConfig::default());
        let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let pool = pool_of(&device, MIB);
        let (graph, vec) = stream
            .capture(&pool, |stream| {
                let dropped = words(stream, &pool, 1)?;
                let vec = words(stream, &pool, 2)?;
                drop(dropped);
                Ok(vec)
            })
            .unwrap();
        launch(&graph, &other);
        simulator.fail_call(call, 1, 999).unwrap();
        let ((), log) = Log::of(|| drop(graph));
        assert_eq!(log.count(Level::ERROR, "leaked"), 1, "{:?}", log.lines());
        assert_eq!(log.count(Level::ERROR, "bytes=131072"), 1, "{:?}", log.lines());
        drop(vec);
        assert_eq!(pool.statistics().live, 2 * WORDS * 4, "never published");
        churn(&[stream, other], &pool);
        simulator.check().unwrap();
    }
}

#[test]
fn a_use_from_before_a_capture_is_waited_for_by_what_was_before_it() {
    let device = support::device();
    let (home, stream) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = pool_of(&device, MIB);
    let mut used = words(&home, &pool, 1).unwrap();
    let mut dropped = words(&home, &pool, 1).unwrap();
    add_one(&stream, &mut used).unwrap();
    add_one(&stream, &mut dropped).unwrap();
    let ((), log) = Log::of(|| {
        let (graph, ()) = stream
            .capture(&pool, |_| {
                used.fill(9)?;
                assert!(!home.is_capturing()?, "home stays out");
                drop(dropped);
                assert_eq!(pool.statistics().live_blocks, 1);
                assert_eq!(all(&used), 9);
                Ok(())
            })
            .unwrap();
        launch(&graph, &stream);
    });
    assert!(log.lines().is_empty(), "nothing is leaked: {:?}", log.lines());
    assert_eq!(all(&used), 9);
    drop(used);
    churn(&[home], &pool);
    assert_eq!(pool.statistics().live, 0);
}

#[test]
fn a_use_that_would_cost_its_homes_capture_is_waited_for_after_it() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = pool_of(&device, MIB);
    let mut vec = words(&home, &pool, 1).unwrap();
    add_one(&other, &mut vec).unwrap();
    let (graph, ()) = home
        .capture(&pool, |_| {
            drop(vec);
            assert_eq!(pool.statistics().live_blocks, 1, "home cannot wait for what lies outside");
            Ok(())
        })
        .unwrap();
    drop(graph);
    eventually(&home, "the vector is freed", || pool.statistics().live == 0);
    // Nor is a capture lost to what one before it was in the way of.
    let mut vec = words(&home, &pool, 1).unwrap();
    add_one(&other, &mut vec).unwrap();
    simulator.start_capture(&other).unwrap();
    drop(vec);
    let (graph, ()) = home
        .capture(&pool, |_| {
            device.new_stream()?.synchronize()?;
            assert_eq!(pool.statistics().live_blocks, 1);
            Ok(())
        })
        .unwrap();
    assert!(simulator.stop_capture(&other), "not disturbed");
    home.synchronize().unwrap();
    eventually(&home, "the vector is freed", || pool.statistics().live == 0);
    drop(graph);
    churn(&[other, home], &pool);
    simulator.check().unwrap();
}

#[test]
fn a_vector_does_not_leave_a_stream_in_capture() {
    let device = support::device();
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = pool_of(&device, MIB);
    let mut vec = words(&stream, &pool, 1).unwrap();
    let (graph, ()) = stream
        .capture(&pool, |_| {
            assert_eq!(kind(vec.set_stream(&other)), ErrorKind::Capture);
            assert!(!other.is_capturing()?);
            Ok(())
        })
        .unwrap();
    launch(&graph, &stream);
    vec.set_stream(&other).unwrap();
    assert_eq!(all(&vec), 1);
}
