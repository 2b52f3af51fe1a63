//! Graphs: what was captured runs at every launch, in the launching stream's order, and is checked
//! there like other work.

use super::*;
use crate::backend::sim::random::Random;
use crate::backend::sim::world::world;
use crate::backend::{CaptureStatus, RawGraph};

impl Rig {
    fn capture(&self, stream: RawStream, body: impl FnOnce()) -> Result<RawGraph, DriverError> {
        self.driver.stream_begin_capture(stream)?;
        body();
        self.driver.stream_end_capture(stream)
    }

    fn replay(&self, graph: RawGraph, stream: RawStream) {
        self.try_replay(graph, stream).unwrap();
    }

    fn try_replay(&self, graph: RawGraph, stream: RawStream) -> Result<(), DriverError> {
        // SAFETY: the simulated device checks what the graph touches.
        unsafe { self.driver.graph_launch(graph, stream) }
    }

    fn destroy(&self, graph: RawGraph) -> Result<(), DriverError> {
        // SAFETY: the simulated device knows what it destroyed.
        unsafe { self.driver.graph_destroy(graph) }
    }

    /// Streams that the device knows, its own included.
    fn streams(&self) -> usize {
        world().devices.get(&self.driver.key()).map_or(0, |device| device.streams.len())
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |chunk: &[u8]| bytemuck::pod_read_unaligned(chunk);
    bytes.chunks_exact(4).map(word).collect()
}

#[test]
fn a_launched_graph_runs_every_time() {
    let rig = rig();
    let (captured, stream) = (rig.stream(), rig.stream());
    let (block, copy) = (rig.alloc(64), rig.alloc(64));
    let graph = rig
        .capture(captured, || {
            rig.launch(&INCREMENT, &[buffer(block, 64, Access::ReadWrite)], captured);
            rig.copy(copy, block, 64, captured);
            rig.fill(block + 60, 4, 0, captured);
        })
        .unwrap();
    rig.fill(block, 64, 0, stream);
    rig.sync(captured).unwrap();
    assert_eq!(rig.download(block, 64, stream), [0; 64], "a capture runs nothing");
    for launches in 1..=5_u32 {
        rig.replay(graph, stream);
        if launches % 2 == 1 {
            continue;
        }
        let expected = [&[launches; 15][..], &[1]].concat();
        assert_eq!(words(&rig.download(copy, 64, stream)), expected);
        assert_eq!(words(&rig.download(block, 64, stream))[15], 0);
    }
    assert_eq!(rig.sim.call_count("cuGraphLaunch"), 5);
    rig.destroy(graph).unwrap();
    rig.clean();
}

#[test]
fn copies_of_page_locked_memory_are_made_at_every_launch() {
    let rig = rig();
    let (stream, block) = (rig.stream(), rig.alloc(16));
    let (source, target) = (rig.pinned(16), rig.pinned(16));
    let graph = rig
        .capture(stream, || {
            // SAFETY: page-locked memory that lives to the end of the test.
            unsafe {
                rig.driver.copy_to_device(block, source.as_ptr(), 16, stream).unwrap();
                rig.driver.copy_to_host(target.as_ptr(), block, 16, stream).unwrap();
            }
        })
        .unwrap();
    for value in [1_u8, 2] {
        // SAFETY: the device is done with it, and the block has 16 bytes.
        unsafe { source.as_ptr().write_bytes(value, 16) };
        rig.replay(graph, stream);
        rig.sync(stream).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { std::slice::from_raw_parts(target.as_ptr(), 16) }, [value; 16]);
    }
    rig.clean();
    rig.replay(graph, stream);
    // SAFETY: on purpose too early: the copy that was launched has not run.
    unsafe { source.as_ptr().write_bytes(9, 16) };
    let _ = rig.sync(stream);
    let report = rig.saw(Violation::HostWroteDuringCopy);
    assert!(report.operation().contains("in graph"), "{report}");
    // SAFETY: nothing that was queued uses it any more.
    unsafe { rig.driver.host_free(source).unwrap() };
    rig.replay(graph, stream);
    let _ = rig.sync(stream);
    assert_eq!(rig.saw(Violation::UseAfterFree).range().0, source.as_ptr() as u64);
}

/// Captures 1, then 2 and 3 beside each other, then 4.
fn diamond(rig: &Rig, stream: RawStream, branch: RawStream) -> RawGraph {
    rig.capture(stream, || {
        rig.note(1, stream);
        rig.order(stream, branch);
        rig.note(2, branch);
        rig.note(3, stream);
        rig.order(branch, stream);
        rig.note(4, stream);
    })
    .unwrap()
}

#[test]
fn branches_run_beside_each_other_and_join() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let rig = Rig::new(SimConfig::default().seed(seed));
        let (stream, branch) = (rig.stream(), rig.stream());
        let graph = diamond(&rig, stream, branch);
        rig.note(0, stream);
        rig.replay(graph, stream);
        rig.replay(graph, stream);
        rig.note(5, stream);
        rig.clean();
        let notes = notes(rig.run);
        let (first, second) = (notes[1..5].to_vec(), notes[5..9].to_vec());
        assert_eq!((notes[0], notes.len(), notes[9]), (0, 10, 5));
        for notes in [first, second] {
            assert_eq!((notes[0], notes[3]), (1, 4), "{notes:?}");
            seen.insert(notes);
        }
    }
    assert_eq!(seen.len(), 2, "both orders of the branches: {seen:?}");
}

#[test]
fn a_race_inside_of_a_graph_is_seen_when_it_is_launched() {
    for ordered in [true, false] {
        let rig = rig();
        let (stream, branch, block) = (rig.stream(), rig.stream(), rig.alloc(64));
        let graph = rig
            .capture(stream, || {
                rig.order(stream, branch);
                rig.fill(block, 64, 1, branch);
                if ordered {
                    rig.order(branch, stream);
                }
                rig.fill(block, 64, 2, stream);
                rig.order(branch, stream);
            })
            .unwrap();
        rig.clean();
        rig.replay(graph, stream);
        if ordered {
            rig.clean();
        } else {
            let _ = rig.sync(stream);
            let report = rig.saw(Violation::UnorderedAccess);
            assert!(report.operation().contains("in graph"), "{report}");
            assert!(report.conflicts_with().unwrap().contains("in graph"), "{report}");
        }
    }
}

#[test]
fn a_replay_is_work_of_the_launching_stream() {
    let rig = rig();
    let (captured, a, b) = (rig.stream(), rig.stream(), rig.stream());
    let branch = rig.stream();
    let block = rig.alloc(64);
    let graph = rig
        .capture(captured, || {
            rig.order(captured, branch);
            rig.launch(&INCREMENT, &[buffer(block, 64, Access::ReadWrite)], branch);
            rig.order(branch, captured);
        })
        .unwrap();
    rig.fill(block, 64, 0, a);
    rig.replay(graph, a);
    rig.fill(block, 64, 0, a);
    rig.clean();
    // Ordered by events, before and after.
    rig.order(a, b);
    rig.replay(graph, b);
    rig.order(b, a);
    rig.fill(block, 64, 0, a);
    rig.clean();
    // Not ordered after what it reads.
    rig.fill(block, 64, 0, a);
    rig.replay(graph, b);
    let report = rig.saw(Violation::UnorderedAccess);
    assert_eq!(report.conflicts_with().unwrap(), format!("cuMemsetAsync on stream {}", a.0));
    assert!(report.operation().starts_with("cuLaunchKernel of increment in graph"), "{report}");
    assert!(report.operation().ends_with(&format!("on stream {}", b.0)), "{report}");
    rig.clean();
    // Nor is what comes after it.
    rig.replay(graph, b);
    rig.fill(block, 64, 0, a);
    let report = rig.saw(Violation::UnorderedAccess);
    assert!(report.conflicts_with().unwrap().contains("in graph"), "{report}");
}

#[test]
fn launches_of_one_graph_follow_each_other() {
    for seed in 0..20 {
        let rig = Rig::new(SimConfig::default().seed(seed));
        let (a, b, block) = (rig.stream(), rig.stream(), rig.alloc(64));
        rig.fill(block, 64, 0, a);
        let graph = rig
            .capture(a, || {
                rig.launch(&INCREMENT, &[buffer(block, 64, Access::ReadWrite)], a);
            })
            .unwrap();
        rig.replay(graph, a);
        // The driver's manual: behind all former launches of the same graph, on any stream.
        rig.replay(graph, b);
        let bytes = rig.download(block, 64, b);
        assert_eq!(words(&bytes), [2; 16]);
        rig.clean();
    }
}

#[test]
fn memory_that_is_gone_is_reported() {
    let rig = rig();
    let (stream, pool) = (rig.stream(), rig.pool());
    let plain = rig.alloc(64);
    let pooled = rig.driver.mem_alloc_async(pool, 64, stream).unwrap();
    let graph = rig
        .capture(stream, || {
            rig.fill(plain, 64, 1, stream);
            rig.copy(plain, pooled, 64, stream);
        })
        .unwrap();
    rig.fill(pooled, 64, 3, stream);
    rig.replay(graph, stream);
    rig.clean();
    // SAFETY: freed in stream order, and used by the graph after: on purpose.
    unsafe { rig.driver.mem_free_async(pooled, stream).unwrap() };
    rig.replay(graph, stream);
    let report = rig.saw(Violation::UseAfterFree);
    assert_eq!(report.range(), (pooled, 64));
    assert!(report.operation().starts_with("cuMemcpyDtoDAsync in graph"), "{report}");
    rig.clean();
    // SAFETY: as above; the host has seen the last launch complete.
    unsafe { rig.driver.mem_free(plain).unwrap() };
    rig.try_replay(graph, stream).unwrap();
    assert_eq!(rig.sim.take_reports().len(), 3, "each operation on gone memory is told");
    rig.clean();
}

#[test]
fn a_graph_on_no_memory_at_all_does_not_run_in_part() {
    let rig = rig();
    let (stream, block) = (rig.stream(), rig.alloc(64));
    let graph = rig
        .capture(stream, || {
            rig.note(1, stream);
            rig.fill(block + 32, 64, 1, stream);
        })
        .unwrap();
    let error = rig.try_replay(graph, stream).unwrap_err();
    assert_eq!((error.code(), error.kind()), (1, ErrorKind::Simulation));
    assert_eq!(rig.saw(Violation::UnmappedAddress).range(), (block + 32, 64));
    rig.clean();
    assert!(notes(rig.run).is_empty());
}

#[test]
fn captures_end_as_on_a_gpu() {
    // The codes were seen on an H200 with driver 580.
    let rig = rig();
    let (stream, branch, legacy) = (rig.stream(), rig.stream(), rig.driver.legacy_stream());
    let begin = |stream| rig.driver.stream_begin_capture(stream);
    let end = |stream| rig.driver.stream_end_capture(stream);
    let code = |result: Result<RawGraph, DriverError>| result.unwrap_err().code();
    let status = |stream| rig.driver.capture_status(stream).unwrap();
    assert_eq!(begin(legacy).unwrap_err().code(), 900);
    assert_eq!(code(end(stream)), 401);
    begin(stream).unwrap();
    assert_eq!(begin(stream).unwrap_err().code(), 401);
    rig.destroy(end(stream).unwrap()).unwrap();
    // A fork that was given nothing needs no join; one that was does.
    begin(stream).unwrap();
    rig.order(stream, branch);
    end(stream).unwrap();
    begin(stream).unwrap();
    rig.order(stream, branch);
    rig.note(1, branch);
    assert_eq!(code(end(stream)), 904);
    assert_eq!((status(stream), status(branch)), (CaptureStatus::None, CaptureStatus::None));
    // Work after the join is not joined.
    begin(stream).unwrap();
    rig.order(stream, branch);
    rig.order(branch, stream);
    rig.note(1, branch);
    assert_eq!(code(end(stream)), 904);
    // Ended on a stream that joined: lost, and not over.
    begin(stream).unwrap();
    rig.order(stream, branch);
    assert_eq!(code(end(branch)), 903);
    assert_eq!(status(stream), CaptureStatus::Invalidated);
    assert_eq!(code(end(stream)), 901);
    assert_eq!((status(stream), status(branch)), (CaptureStatus::None, CaptureStatus::None));
    // Lost by a synchronisation.
    begin(stream).unwrap();
    assert_eq!(rig.sync(stream).unwrap_err().code(), 900);
    assert_eq!(code(end(stream)), 901);
    rig.note(2, stream);
    rig.clean();
    assert_eq!(notes(rig.run), [2]);
    // A launch is no part of a graph.
    let graph = rig.capture(stream, || {}).unwrap();
    begin(stream).unwrap();
    assert_eq!(rig.try_replay(graph, stream).unwrap_err().code(), 900);
    assert_eq!(code(end(stream)), 901);
    rig.replay(graph, stream);
    rig.clean();
}

#[test]
fn a_lost_capture_takes_nobody_in() {
    let rig = rig();
    let (stream, other, event) = (rig.stream(), rig.stream(), rig.event());
    rig.driver.stream_begin_capture(stream).unwrap();
    rig.driver.event_record(event, stream).unwrap();
    let _ = rig.sync(stream);
    assert_eq!(rig.driver.stream_wait_event(other, event).unwrap_err().code(), 1);
    assert_eq!(rig.driver.capture_status(other).unwrap(), CaptureStatus::None);
    rig.driver.stream_abandon_capture(stream).unwrap();
}

#[test]
fn two_captures_do_not_become_one() {
    let rig = rig();
    let (one, two, event) = (rig.stream(), rig.stream(), rig.event());
    for stream in [one, two] {
        rig.driver.stream_begin_capture(stream).unwrap();
    }
    rig.driver.event_record(event, two).unwrap();
    assert_eq!(rig.driver.stream_wait_event(one, event).unwrap_err().code(), 902);
    for stream in [one, two] {
        assert_eq!(rig.driver.stream_end_capture(stream).unwrap_err().code(), 901);
    }
}

#[test]
fn a_stream_that_joined_may_go_before_the_capture_ends() {
    for joined in [true, false] {
        let rig = rig();
        let (stream, branch, block) = (rig.stream(), rig.stream(), rig.alloc(4));
        rig.fill(block, 4, 0, stream);
        rig.driver.stream_begin_capture(stream).unwrap();
        rig.order(stream, branch);
        rig.launch(&INCREMENT, &[buffer(block, 4, Access::ReadWrite)], branch);
        if joined {
            rig.order(branch, stream);
        }
        rig.driver.stream_destroy(branch, None);
        assert_eq!(rig.driver.capture_status(stream).unwrap(), CaptureStatus::Active);
        match rig.driver.stream_end_capture(stream) {
            Ok(graph) => {
                rig.replay(graph, stream);
                rig.replay(graph, stream);
                assert!(joined && words(&rig.download(block, 4, stream)) == [2]);
            }
            Err(error) => assert!(!joined && error.code() == 904),
        }
        rig.clean();
    }
}

#[test]
fn a_capture_can_be_given_up() {
    let rig = rig();
    let stream = rig.stream();
    let abandon = || rig.driver.stream_abandon_capture(stream);
    assert_eq!(abandon().unwrap_err().code(), 401);
    for lost in [false, true] {
        rig.driver.stream_begin_capture(stream).unwrap();
        rig.note(1, stream);
        if lost {
            let _ = rig.sync(stream);
        }
        abandon().unwrap();
        assert_eq!(rig.driver.capture_status(stream).unwrap(), CaptureStatus::None);
    }
    rig.clean();
    assert!(notes(rig.run).is_empty());
    assert_eq!(rig.sim.call_count("cuGraphInstantiate"), 0);
}

#[test]
fn failures_leave_nothing_behind() {
    let rig = rig();
    let (stream, branch) = (rig.stream(), rig.stream());
    let before = rig.streams();
    rig.sim.fail_call("cuGraphInstantiate", 1, 2).unwrap();
    rig.driver.stream_begin_capture(stream).unwrap();
    rig.order(stream, branch);
    rig.note(1, branch);
    rig.order(branch, stream);
    let error = rig.driver.stream_end_capture(stream).unwrap_err();
    assert_eq!((error.call(), error.code()), ("cuGraphInstantiate", 2));
    assert_eq!(rig.driver.capture_status(stream).unwrap(), CaptureStatus::None);
    assert_eq!(rig.streams(), before);
    let graph = diamond(&rig, stream, branch);
    for call in ["cuGraphLaunch", "cuGraphExecDestroy"] {
        rig.sim.fail_call(call, 1, 4).unwrap();
    }
    assert_eq!(rig.try_replay(graph, stream).unwrap_err().code(), 4);
    assert_eq!(rig.destroy(graph).unwrap_err().code(), 4);
    rig.clean();
    assert!(notes(rig.run).is_empty());
    rig.destroy(graph).unwrap();
    assert_eq!(rig.try_replay(graph, stream).unwrap_err().code(), 400);
    assert_eq!(rig.destroy(graph).unwrap_err().code(), 400);
    rig.clean();
}

#[test]
fn a_destroyed_graph_finishes_and_leaves_no_stream() {
    let rig = rig();
    let (stream, branch) = (rig.stream(), rig.stream());
    let before = rig.streams();
    for _ in 0..10 {
        let graph = diamond(&rig, stream, branch);
        rig.replay(graph, stream);
        rig.destroy(graph).unwrap();
    }
    rig.sync(stream).unwrap();
    assert_eq!(notes(rig.run).len(), 40);
    assert_eq!(rig.streams(), before, "one lane for each graph, gone with it");
    rig.clean();
}

#[test]
fn a_graph_belongs_to_its_device() {
    let (one, two) = (rig(), rig());
    let (a, b) = (one.stream(), two.stream());
    let graph = one.capture(a, || one.note(1, a)).unwrap();
    assert_eq!(two.try_replay(graph, b).unwrap_err().code(), 400);
    assert_eq!(two.destroy(graph).unwrap_err().code(), 400);
    // A branch on another device runs there.
    let graph = one
        .capture(a, || {
            one.note(1, a);
            let event = one.event();
            one.driver.event_record(event, a).unwrap();
            two.driver.stream_wait_event(b, event).unwrap();
            two.note(2, b);
            let event = two.event();
            two.driver.event_record(event, b).unwrap();
            one.driver.stream_wait_event(a, event).unwrap();
            one.note(3, a);
        })
        .unwrap();
    one.replay(graph, a);
    one.sync(a).unwrap();
    assert_eq!((notes(one.run), notes(two.run)), (vec![1, 3], vec![2]));
    one.clean();
    two.clean();
    drop(two);
    assert_eq!(one.try_replay(graph, a).unwrap_err().code(), 709);
    one.clean();
}

#[test]
fn a_lost_context_launches_nothing() {
    let rig = rig();
    let (stream, branch) = (rig.stream(), rig.stream());
    let graph = diamond(&rig, stream, branch);
    rig.replay(graph, stream);
    rig.sim.lose_context();
    assert_eq!(rig.try_replay(graph, stream).unwrap_err().code(), 709);
    assert_eq!(rig.destroy(graph).unwrap_err().code(), 709);
    assert_eq!(rig.driver.stream_begin_capture(stream).unwrap_err().code(), 709);
    assert!(notes(rig.run).is_empty());
}

#[test]
fn random_graphs_do_what_their_calls_would_have_done() {
    for seed in 0..60 {
        let rig = Rig::new(SimConfig::default().seed(seed));
        let mut random = Random::new(seed);
        let streams = [rig.stream(), rig.stream(), rig.stream()];
        let blocks: Vec<_> = (0..4).map(|_| rig.alloc(64)).collect();
        let mut steps = Vec::new();
        let graph = rig.capture(streams[0], || {
            rig.order(streams[0], streams[1]);
            rig.order(streams[0], streams[2]);
            let mut last = [0_usize; 4];
            for _ in 0..30 {
                let (on, from, to) = (random.below(3), random.below(4), random.below(4));
                for index in [from, to] {
                    if last[index] != on {
                        rig.order(streams[last[index]], streams[on]);
                        last[index] = on;
                    }
                }
                if from == to {
                    let argument = buffer(blocks[to], 64, Access::ReadWrite);
                    rig.launch(&INCREMENT, &[argument], streams[on]);
                } else {
                    rig.copy(blocks[to], blocks[from], 64, streams[on]);
                }
                steps.push((from, to));
            }
            rig.order(streams[1], streams[0]);
            rig.order(streams[2], streams[0]);
        });
        let (graph, launching) = (graph.unwrap(), rig.stream());
        let mut model = [[0_u32; 16], [1; 16], [2; 16], [3; 16]];
        for (block, words) in blocks.iter().zip(&model) {
            rig.upload(*block, bytemuck::cast_slice(words), launching);
        }
        for _ in 0..3 {
            rig.replay(graph, launching);
            for &(from, to) in &steps {
                if from == to {
                    model[to].iter_mut().for_each(|value| *value += 1);
                } else {
                    model[to] = model[from];
                }
            }
        }
        for (block, words) in blocks.iter().zip(&model) {
            let bytes = rig.download(*block, 64, launching);
            assert_eq!(bytes, bytemuck::cast_slice::<u32, u8>(words), "seed {seed}");
        }
        rig.clean();
    }
}
