//! Graphs, whose captured operations run at every launch, in the launching stream's order, and are
//! checked there like other work.

use super::*;
use crate::state::Random;
use crate::state::lock_state;
use aquifer_driver::{CaptureStatus, RawGraph};

impl Fixture {
    pub(super) fn capture(
        &self,
        stream: RawStream,
        body: impl FnOnce(),
    ) -> Result<RawGraph, DriverError> {
        self.driver.stream_begin_capture(stream)?;
        body();
        self.driver.stream_end_capture(stream)
    }

    pub(super) fn replay(&self, graph: RawGraph, stream: RawStream) {
        self.try_replay(graph, stream).unwrap();
    }

    pub(super) fn try_replay(&self, graph: RawGraph, stream: RawStream) -> Result<(), DriverError> {
        // SAFETY: the simulated device checks the graph's accesses.
        unsafe { self.driver.graph_launch(graph, stream) }
    }

    fn destroy(&self, graph: RawGraph) -> Result<(), DriverError> {
        // SAFETY: the simulated device checks the handle.
        unsafe { self.driver.graph_destroy(graph) }
    }

    /// Streams that the device knows, its own included.
    fn streams(&self) -> usize {
        lock_state().devices.get(&self.driver.context_id()).map_or(0, |device| device.streams.len())
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |chunk: &[u8]| bytemuck::pod_read_unaligned(chunk);
    bytes.chunks_exact(4).map(word).collect()
}

#[test]
fn a_wait_beside_another_threads_launch_is_reported() {
    let fixture = fixture();
    let (stream, other, event) = (fixture.stream(), fixture.stream(), fixture.event());
    fixture.driver.event_record(event, other).unwrap();
    let wait = |on| fixture.driver.stream_wait_event(on, event).unwrap();
    let elsewhere = |on| std::thread::scope(|threads| threads.spawn(|| wait(on)).join().unwrap());
    let under_way = fixture.sim.context.begin_launch(stream);
    wait(stream);
    elsewhere(other);
    fixture.clean();
    elsewhere(stream);
    fixture.saw(Violation::LostWait);
    drop(under_way);
    elsewhere(stream);
    fixture.clean();
}

#[test]
fn a_launched_graph_runs_every_time() {
    let fixture = fixture();
    let (captured, stream) = (fixture.stream(), fixture.stream());
    let (block, copy) = (fixture.alloc(64), fixture.alloc(64));
    let graph = fixture
        .capture(captured, || {
            fixture.launch(&INCREMENT, &[buffer(block, 64, Access::ReadWrite)], captured);
            fixture.copy(copy, block, 64, captured);
            fixture.fill(block + 60, 4, 0, captured);
        })
        .unwrap();
    fixture.fill(block, 64, 0, stream);
    fixture.sync(captured).unwrap();
    assert_eq!(fixture.download(block, 64, stream), [0; 64], "a capture runs nothing");
    for launches in 1..=5_u32 {
        fixture.replay(graph, stream);
        if launches % 2 == 1 {
            continue;
        }
        let expected = [&[launches; 15][..], &[1]].concat();
        assert_eq!(words(&fixture.download(copy, 64, stream)), expected);
        assert_eq!(words(&fixture.download(block, 64, stream))[15], 0);
    }
    assert_eq!(fixture.sim.call_count("cuGraphLaunch"), 5);
    fixture.destroy(graph).unwrap();
    fixture.clean();
}

#[test]
fn copies_of_page_locked_memory_are_made_at_every_launch() {
    let fixture = fixture();
    let (stream, block) = (fixture.stream(), fixture.alloc(16));
    let (source, target) = (fixture.pinned(16), fixture.pinned(16));
    let graph = fixture
        .capture(stream, || {
            // SAFETY: page-locked memory that lives to the end of the test.
            unsafe {
                fixture
                    .driver
                    .copy_to_device(
                        RawCopy { target: block, source: source.as_ptr(), bytes: 16 },
                        stream,
                    )
                    .unwrap();
                fixture
                    .driver
                    .copy_to_host(
                        RawCopy { target: target.as_ptr(), source: block, bytes: 16 },
                        stream,
                    )
                    .unwrap();
            }
        })
        .unwrap();
    for value in [1_u8, 2] {
        // SAFETY: the device is done with it, and the block has 16 bytes.
        unsafe { source.as_ptr().write_bytes(value, 16) };
        fixture.replay(graph, stream);
        fixture.sync(stream).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { std::slice::from_raw_parts(target.as_ptr(), 16) }, [value; 16]);
    }
    fixture.clean();
    fixture.replay(graph, stream);
    // SAFETY: on purpose too early: the copy that was launched has not run.
    unsafe { source.as_ptr().write_bytes(9, 16) };
    let _ = fixture.sync(stream);
    let report = fixture.saw(Violation::HostWroteDuringCopy);
    assert!(report.operation().contains("in graph"), "{report}");
    // SAFETY: nothing that was queued uses it any more.
    unsafe { fixture.driver.host_free(source).unwrap() };
    fixture.replay(graph, stream);
    let _ = fixture.sync(stream);
    assert_eq!(fixture.saw(Violation::UseAfterFree).range().0, source.as_ptr() as u64);
}

/// Captures 1, then 2 and 3 in parallel, then 4.
fn diamond(fixture: &Fixture, stream: RawStream, branch: RawStream) -> RawGraph {
    fixture
        .capture(stream, || {
            fixture.note(1, stream);
            fixture.order(stream, branch);
            fixture.note(2, branch);
            fixture.note(3, stream);
            fixture.order(branch, stream);
            fixture.note(4, stream);
        })
        .unwrap()
}

#[test]
fn branches_run_beside_each_other_and_join() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let fixture = Fixture::new(SimConfig::default().seed(seed));
        let (stream, branch) = (fixture.stream(), fixture.stream());
        let graph = diamond(&fixture, stream, branch);
        fixture.note(0, stream);
        fixture.replay(graph, stream);
        fixture.replay(graph, stream);
        fixture.note(5, stream);
        fixture.clean();
        let notes = notes(fixture.run);
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
        let fixture = fixture();
        let (stream, branch, block) = (fixture.stream(), fixture.stream(), fixture.alloc(64));
        let graph = fixture
            .capture(stream, || {
                fixture.order(stream, branch);
                fixture.fill(block, 64, 1, branch);
                if ordered {
                    fixture.order(branch, stream);
                }
                fixture.fill(block, 64, 2, stream);
                fixture.order(branch, stream);
            })
            .unwrap();
        fixture.clean();
        fixture.replay(graph, stream);
        if ordered {
            fixture.clean();
        } else {
            let _ = fixture.sync(stream);
            let report = fixture.saw(Violation::UnorderedAccess);
            assert!(report.operation().contains("in graph"), "{report}");
            assert!(report.conflicts_with().unwrap().contains("in graph"), "{report}");
        }
    }
}

#[test]
fn a_replay_is_work_of_the_launching_stream() {
    let fixture = fixture();
    let (captured, a, b) = (fixture.stream(), fixture.stream(), fixture.stream());
    let branch = fixture.stream();
    let block = fixture.alloc(64);
    let graph = fixture
        .capture(captured, || {
            fixture.order(captured, branch);
            fixture.launch(&INCREMENT, &[buffer(block, 64, Access::ReadWrite)], branch);
            fixture.order(branch, captured);
        })
        .unwrap();
    fixture.fill(block, 64, 0, a);
    fixture.replay(graph, a);
    fixture.fill(block, 64, 0, a);
    fixture.clean();
    // Ordered by events, before and after.
    fixture.order(a, b);
    fixture.replay(graph, b);
    fixture.order(b, a);
    fixture.fill(block, 64, 0, a);
    fixture.clean();
    // Not ordered after the write that it reads.
    fixture.fill(block, 64, 0, a);
    fixture.replay(graph, b);
    let report = fixture.saw(Violation::UnorderedAccess);
    assert_eq!(report.conflicts_with().unwrap(), format!("cuMemsetAsync on stream {}", a.0));
    assert!(report.operation().starts_with("cuLaunchKernel of increment in graph"), "{report}");
    assert!(report.operation().ends_with(&format!("on stream {}", b.0)), "{report}");
    fixture.clean();
    // Nor is the work after it.
    fixture.replay(graph, b);
    fixture.fill(block, 64, 0, a);
    let report = fixture.saw(Violation::UnorderedAccess);
    assert!(report.conflicts_with().unwrap().contains("in graph"), "{report}");
}

#[test]
fn launches_of_one_graph_follow_each_other() {
    for seed in 0..20 {
        let fixture = Fixture::new(SimConfig::default().seed(seed));
        let (a, b, block) = (fixture.stream(), fixture.stream(), fixture.alloc(64));
        fixture.fill(block, 64, 0, a);
        let graph = fixture
            .capture(a, || {
                fixture.launch(&INCREMENT, &[buffer(block, 64, Access::ReadWrite)], a);
            })
            .unwrap();
        fixture.replay(graph, a);
        // The driver's manual: behind all former launches of the same graph, on any stream.
        fixture.replay(graph, b);
        let bytes = fixture.download(block, 64, b);
        assert_eq!(words(&bytes), [2; 16]);
        fixture.clean();
    }
}

#[test]
fn memory_that_is_gone_is_reported() {
    let fixture = fixture();
    let (stream, pool) = (fixture.stream(), fixture.pool());
    let plain = fixture.alloc(64);
    let pooled = fixture.driver.mem_alloc_async(pool, 64, stream).unwrap();
    let graph = fixture
        .capture(stream, || {
            fixture.fill(plain, 64, 1, stream);
            fixture.copy(plain, pooled, 64, stream);
        })
        .unwrap();
    fixture.fill(pooled, 64, 3, stream);
    fixture.replay(graph, stream);
    fixture.clean();
    // SAFETY: freed in stream order, and used by the graph after: on purpose.
    unsafe { fixture.driver.mem_free_async(pooled, stream).unwrap() };
    fixture.replay(graph, stream);
    let report = fixture.saw(Violation::UseAfterFree);
    assert_eq!(report.range(), (pooled, 64));
    assert!(report.operation().starts_with("cuMemcpyDtoDAsync in graph"), "{report}");
    fixture.clean();
    // SAFETY: as above; the host has seen the last launch complete.
    unsafe { fixture.driver.mem_free(plain).unwrap() };
    fixture.try_replay(graph, stream).unwrap();
    assert_eq!(fixture.sim.take_reports().len(), 3, "each operation on gone memory is told");
    fixture.clean();
}

#[test]
fn a_graph_on_no_memory_at_all_does_not_run_in_part() {
    let fixture = fixture();
    let (stream, block) = (fixture.stream(), fixture.alloc(64));
    let graph = fixture
        .capture(stream, || {
            fixture.note(1, stream);
            fixture.fill(block + 32, 64, 1, stream);
        })
        .unwrap();
    let error = fixture.try_replay(graph, stream).unwrap_err();
    assert_eq!((error.code(), error.kind()), (1, ErrorKind::Simulation));
    assert_eq!(fixture.saw(Violation::UnmappedAddress).range(), (block + 32, 64));
    fixture.clean();
    assert!(notes(fixture.run).is_empty());
}

#[test]
fn captures_end_as_on_a_gpu() {
    // The codes were seen on an H200 with driver 580.
    let fixture = fixture();
    let (stream, branch, legacy) =
        (fixture.stream(), fixture.stream(), fixture.driver.legacy_stream());
    let begin = |stream| fixture.driver.stream_begin_capture(stream);
    let end = |stream| fixture.driver.stream_end_capture(stream);
    let code = |result: Result<RawGraph, DriverError>| result.unwrap_err().code();
    let status = |stream| fixture.driver.capture_status(stream).unwrap();
    assert_eq!(begin(legacy).unwrap_err().code(), 900);
    assert_eq!(code(end(stream)), 401);
    begin(stream).unwrap();
    assert_eq!(begin(stream).unwrap_err().code(), 401);
    fixture.destroy(end(stream).unwrap()).unwrap();
    // A fork without work needs no join; one with work does.
    begin(stream).unwrap();
    fixture.order(stream, branch);
    end(stream).unwrap();
    begin(stream).unwrap();
    fixture.order(stream, branch);
    fixture.note(1, branch);
    assert_eq!(code(end(stream)), 904);
    assert_eq!((status(stream), status(branch)), (CaptureStatus::None, CaptureStatus::None));
    // Work after the join is not joined.
    begin(stream).unwrap();
    fixture.order(stream, branch);
    fixture.order(branch, stream);
    fixture.note(1, branch);
    assert_eq!(code(end(stream)), 904);
    // Ended on a stream that joined: invalidated, and not ended.
    begin(stream).unwrap();
    fixture.order(stream, branch);
    assert_eq!(code(end(branch)), 903);
    assert_eq!(status(stream), CaptureStatus::Invalidated);
    assert_eq!(code(end(stream)), 901);
    assert_eq!((status(stream), status(branch)), (CaptureStatus::None, CaptureStatus::None));
    // Invalidated by a synchronisation.
    begin(stream).unwrap();
    assert_eq!(fixture.sync(stream).unwrap_err().code(), 900);
    assert_eq!(code(end(stream)), 901);
    fixture.note(2, stream);
    fixture.clean();
    assert_eq!(notes(fixture.run), [2]);
    // A graph launch cannot be captured.
    let graph = fixture.capture(stream, || {}).unwrap();
    begin(stream).unwrap();
    assert_eq!(fixture.try_replay(graph, stream).unwrap_err().code(), 900);
    assert_eq!(code(end(stream)), 901);
    fixture.replay(graph, stream);
    fixture.clean();
}

#[test]
fn no_stream_joins_an_invalidated_capture() {
    let fixture = fixture();
    let (stream, other, event) = (fixture.stream(), fixture.stream(), fixture.event());
    fixture.driver.stream_begin_capture(stream).unwrap();
    fixture.driver.event_record(event, stream).unwrap();
    let _ = fixture.sync(stream);
    assert_eq!(fixture.driver.stream_wait_event(other, event).unwrap_err().code(), 1);
    assert_eq!(fixture.driver.capture_status(other).unwrap(), CaptureStatus::None);
    fixture.driver.stream_abandon_capture(stream).unwrap();
}

#[test]
fn two_captures_do_not_become_one() {
    let fixture = fixture();
    let (one, two, event) = (fixture.stream(), fixture.stream(), fixture.event());
    for stream in [one, two] {
        fixture.driver.stream_begin_capture(stream).unwrap();
    }
    fixture.driver.event_record(event, two).unwrap();
    assert_eq!(fixture.driver.stream_wait_event(one, event).unwrap_err().code(), 902);
    for stream in [one, two] {
        assert_eq!(fixture.driver.stream_end_capture(stream).unwrap_err().code(), 901);
    }
}

#[test]
fn a_stream_that_joined_may_go_before_the_capture_ends() {
    for joined in [true, false] {
        let fixture = fixture();
        let (stream, branch, block) = (fixture.stream(), fixture.stream(), fixture.alloc(4));
        fixture.fill(block, 4, 0, stream);
        fixture.driver.stream_begin_capture(stream).unwrap();
        fixture.order(stream, branch);
        fixture.launch(&INCREMENT, &[buffer(block, 4, Access::ReadWrite)], branch);
        if joined {
            fixture.order(branch, stream);
        }
        fixture.driver.stream_destroy(branch, None);
        assert_eq!(fixture.driver.capture_status(stream).unwrap(), CaptureStatus::Active);
        match fixture.driver.stream_end_capture(stream) {
            Ok(graph) => {
                fixture.replay(graph, stream);
                fixture.replay(graph, stream);
                assert!(joined && words(&fixture.download(block, 4, stream)) == [2]);
            }
            Err(error) => assert!(!joined && error.code() == 904),
        }
        fixture.clean();
    }
}

#[test]
fn a_capture_can_be_abandoned() {
    let fixture = fixture();
    let stream = fixture.stream();
    let abandon = || fixture.driver.stream_abandon_capture(stream);
    assert_eq!(abandon().unwrap_err().code(), 401);
    for lost in [false, true] {
        fixture.driver.stream_begin_capture(stream).unwrap();
        fixture.note(1, stream);
        if lost {
            let _ = fixture.sync(stream);
        }
        abandon().unwrap();
        assert_eq!(fixture.driver.capture_status(stream).unwrap(), CaptureStatus::None);
    }
    fixture.clean();
    assert!(notes(fixture.run).is_empty());
    assert_eq!(fixture.sim.call_count("cuGraphInstantiate"), 0);
}

#[test]
fn failures_leave_no_state_behind() {
    let fixture = fixture();
    let (stream, branch) = (fixture.stream(), fixture.stream());
    let before = fixture.streams();
    fixture.sim.fail_call("cuGraphInstantiate", 1, 2).unwrap();
    fixture.driver.stream_begin_capture(stream).unwrap();
    fixture.order(stream, branch);
    fixture.note(1, branch);
    fixture.order(branch, stream);
    let error = fixture.driver.stream_end_capture(stream).unwrap_err();
    assert_eq!((error.call(), error.code()), ("cuGraphInstantiate", 2));
    assert_eq!(fixture.driver.capture_status(stream).unwrap(), CaptureStatus::None);
    assert_eq!(fixture.streams(), before);
    let graph = diamond(&fixture, stream, branch);
    for call in ["cuGraphLaunch", "cuGraphExecDestroy"] {
        fixture.sim.fail_call(call, 1, 1).unwrap();
    }
    assert_eq!(fixture.try_replay(graph, stream).unwrap_err().code(), 1);
    assert_eq!(fixture.destroy(graph).unwrap_err().code(), 1);
    fixture.clean();
    assert!(notes(fixture.run).is_empty());
    fixture.destroy(graph).unwrap();
    assert_eq!(fixture.try_replay(graph, stream).unwrap_err().code(), 400);
    assert_eq!(fixture.destroy(graph).unwrap_err().code(), 400);
    fixture.clean();
}

#[test]
fn a_destroyed_graph_finishes_and_leaves_no_stream() {
    let fixture = fixture();
    let (stream, branch) = (fixture.stream(), fixture.stream());
    let before = fixture.streams();
    for _ in 0..10 {
        let graph = diamond(&fixture, stream, branch);
        fixture.replay(graph, stream);
        fixture.destroy(graph).unwrap();
    }
    fixture.sync(stream).unwrap();
    assert_eq!(notes(fixture.run).len(), 40);
    assert_eq!(fixture.streams(), before, "one branch for each graph, gone with it");
    fixture.clean();
}

#[test]
fn a_graph_belongs_to_its_device() {
    let (one, two) = (fixture(), fixture());
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
    two.sim.lose_context();
    assert_eq!(one.try_replay(graph, a).unwrap_err().code(), 709);
    drop(two);
    assert_eq!(one.try_replay(graph, a).unwrap_err().code(), 709);
    one.clean();
}

#[test]
fn a_lost_context_launches_nothing() {
    let fixture = fixture();
    let (stream, branch) = (fixture.stream(), fixture.stream());
    let graph = diamond(&fixture, stream, branch);
    fixture.replay(graph, stream);
    fixture.sim.lose_context();
    assert_eq!(fixture.try_replay(graph, stream).unwrap_err().code(), 709);
    assert_eq!(fixture.destroy(graph).unwrap_err().code(), 709);
    assert_eq!(fixture.driver.stream_begin_capture(stream).unwrap_err().code(), 709);
    assert!(notes(fixture.run).is_empty());
}

#[test]
fn random_graphs_do_what_their_calls_would_have_done() {
    for seed in 0..60 {
        let fixture = Fixture::new(SimConfig::default().seed(seed));
        let mut random = Random::new(seed);
        let streams = [fixture.stream(), fixture.stream(), fixture.stream()];
        let blocks: Vec<_> = (0..4).map(|_| fixture.alloc(64)).collect();
        let mut steps = Vec::new();
        let graph = fixture.capture(streams[0], || {
            fixture.order(streams[0], streams[1]);
            fixture.order(streams[0], streams[2]);
            let mut last = [0_usize; 4];
            for _ in 0..30 {
                let (on, from, to) = (random.below(3), random.below(4), random.below(4));
                for index in [from, to] {
                    if last[index] != on {
                        fixture.order(streams[last[index]], streams[on]);
                        last[index] = on;
                    }
                }
                if from == to {
                    let argument = buffer(blocks[to], 64, Access::ReadWrite);
                    fixture.launch(&INCREMENT, &[argument], streams[on]);
                } else {
                    fixture.copy(blocks[to], blocks[from], 64, streams[on]);
                }
                steps.push((from, to));
            }
            fixture.order(streams[1], streams[0]);
            fixture.order(streams[2], streams[0]);
        });
        let (graph, launching) = (graph.unwrap(), fixture.stream());
        let mut model = [[0_u32; 16], [1; 16], [2; 16], [3; 16]];
        for (block, words) in blocks.iter().zip(&model) {
            fixture.upload(*block, bytemuck::cast_slice(words), launching);
        }
        for _ in 0..3 {
            fixture.replay(graph, launching);
            for &(from, to) in &steps {
                if from == to {
                    model[to].iter_mut().for_each(|value| *value += 1);
                } else {
                    model[to] = model[from];
                }
            }
        }
        for (block, words) in blocks.iter().zip(&model) {
            let bytes = fixture.download(*block, 64, launching);
            assert_eq!(bytes, bytemuck::cast_slice::<u32, u8>(words), "seed {seed}");
        }
        fixture.clean();
    }
}
