//! Graphs on a simulated device, where each launch runs the work that containers gave a stream in capture.

use super::*;
use crate::DeviceVec;
use crate::driver::{HostArgs, Kernel, LaunchConfig};
use crate::error::Error;
use crate::sim::{SimConfig, Simulator, Violation};
use crate::stream::capture::Recording;
use crate::sync::Arc;

const TEXT: &str =
    ".version 6.4\n.target sm_50\n.address_size 64\n.entry add_one(.param .u64 data) { ret; }";

static ADD_ONE: Kernel =
    Kernel::new("add_one", TEXT, |_: &LaunchConfig, mut args: HostArgs<'_>| {
        args.in_out::<u32>()?.iter_mut().for_each(|value| *value += 1);
        Ok(())
    });

fn add_one(stream: &Stream, data: &mut DeviceVec<u32>) {
    let launch = stream.launch(&ADD_ONE).in_out(data).unwrap();
    // SAFETY: the kernel touches its argument alone.
    unsafe { launch.launch(LaunchConfig::for_elements(1)).unwrap() };
}

impl Graph {
    /// The streams that it was launched on, each named once.
    fn launched_on(&self) -> Vec<Stream> {
        self.launched.lock().clone()
    }
}

fn device() -> (Device, Simulator) {
    let device = Device::simulated(SimConfig::default());
    let simulator = device.simulator().unwrap();
    (device, simulator)
}

fn begun(stream: &Stream) -> Result<Recording> {
    let mut recording = Recording::acquire(stream)?;
    recording.begin()?;
    Ok(recording)
}

fn captured(stream: &Stream, body: impl FnOnce()) -> Graph {
    let mut recording = begun(stream).unwrap();
    body();
    recording.finish().unwrap()
}

fn launch(graph: &Graph, stream: &Stream) -> Result<()> {
    // SAFETY: these tests keep what was captured alive, or want to be told that they did not.
    unsafe { graph.launch(stream) }
}

/// Tells on which streams a graph was launched, when it is gone.
fn told(graph: &mut Graph, simulator: &Simulator) -> Arc<Mutex<Option<Vec<u64>>>> {
    let streams = Arc::new(Mutex::new(None));
    let (simulator, told) = (simulator.clone(), streams.clone());
    graph.attach(Box::new(move |launched_on| {
        assert_eq!(simulator.call_count("cuGraphExecDestroy"), 1, "the graph goes first");
        *told.lock() = Some(launched_on.iter().map(Stream::id).collect());
    }));
    streams
}

#[test]
fn vectors_at_home_are_captured() {
    let (device, simulator) = device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::from_slice(&stream, &[7; 100]).unwrap();
    let mut copy = DeviceVec::<u32>::zeroed(&stream, 100).unwrap();
    let graph = captured(&stream, || {
        add_one(&stream, &mut vec);
        copy.copy_from(&vec).unwrap();
        vec.slice_mut(50..).unwrap().fill(40).unwrap();
    });
    assert_eq!((vec.to_vec().unwrap(), copy.get(0).unwrap()), (vec![7; 100], 0), "nothing ran");
    for launches in 1..=4 {
        launch(&graph, &stream).unwrap();
        let expected = [[7 + launches; 50], [40; 50]].concat();
        assert_eq!(vec.to_vec().unwrap(), expected);
    }
    assert_eq!((copy.get(0).unwrap(), copy.get(99).unwrap()), (11, 41));
    drop((vec, copy, graph));
    stream.synchronize().unwrap();
    simulator.check().unwrap();
}

#[test]
fn the_first_launch_of_each_stream_comes_after_what_was_before_the_capture() {
    let (device, simulator) = device();
    let (stream, a, b) = (device.new_stream(), device.new_stream(), device.new_stream());
    let (stream, a, b) = (stream.unwrap(), a.unwrap(), b.unwrap());
    let joined = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 100).unwrap();
    // The last thing that it was given is the joined stream's, and no use at home has waited for it.
    add_one(&joined, &mut vec);
    let graph = captured(&stream, || {
        joined.wait_for(&stream).unwrap();
        add_one(&stream, &mut vec);
    });
    let waits = simulator.call_count("cuStreamWaitEvent");
    for stream in [&a, &a, &b, &a, &b] {
        launch(&graph, stream).unwrap();
    }
    assert_eq!(simulator.call_count("cuStreamWaitEvent"), waits + 4, "two streams took part");
    stream.wait_for(&b).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [6; 100]);
    simulator.check().unwrap();
}

#[test]
fn what_it_keeps_is_given_back_when_it_is_gone() {
    let (device, simulator) = device();
    let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut graph = captured(&a, || {});
    let streams = told(&mut graph, &simulator);
    assert_eq!(graph.launched_on(), []);
    for stream in [&b, &a, &b, &a] {
        launch(&graph, stream).unwrap();
    }
    assert_eq!(graph.launched_on(), [b.clone(), a.clone()]);
    assert_eq!(*streams.lock(), None);
    drop(graph);
    assert_eq!(*streams.lock(), Some(vec![b.id(), a.id()]));

    // Whatever the driver says to the end of it, and where there never was a launch.
    let (device, simulator) = self::device();
    let mut graph = captured(&device.new_stream().unwrap(), || {});
    let streams = told(&mut graph, &simulator);
    simulator.fail_call("cuGraphExecDestroy", 1, 999).unwrap();
    drop(graph);
    assert_eq!(*streams.lock(), Some(Vec::new()));
}

#[test]
fn captures_that_cannot_be_are_refused_and_disturb_nothing() {
    let (device, simulator) = device();
    let stream = device.new_stream().unwrap();
    let kind = |result: Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(begun(&device.default_stream()).map(drop)), ErrorKind::Capture);
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 10).unwrap();
    let empty = captured(&stream, || {});
    let graph = captured(&stream, || {
        assert_eq!(kind(begun(&stream).map(drop)), ErrorKind::Capture, "one inside another");
        assert_eq!(kind(launch(&empty, &stream)), ErrorKind::Capture);
        add_one(&stream, &mut vec);
        assert_eq!(kind(vec.copy_from_slice(&[0; 10])), ErrorKind::Capture, "host memory");
    });
    launch(&graph, &stream).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1; 10]);
    let other = Device::simulated(SimConfig::default());
    let error = launch(&graph, &other.new_stream().unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongDevice);
    // Elsewhere than where it was captured, the default stream too.
    device.default_stream().wait_for(&stream).unwrap();
    launch(&graph, &device.default_stream()).unwrap();
    stream.wait_for(&device.default_stream()).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [2; 10]);
    simulator.check().unwrap();
}

#[test]
fn what_would_cost_a_capture_is_refused_and_disturbs_nothing() {
    let (device, simulator) = device();
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 10).unwrap();
    let mut elsewhere = DeviceVec::<u32>::zeroed(&other, 10).unwrap();
    let kind = |result: Result<()>| result.unwrap_err().kind();
    let mut inside = None;
    let graph = captured(&stream, || {
        let event = stream.record().unwrap();
        for refused in [
            stream.synchronize(),
            device.synchronize(),
            event.is_complete().map(drop),
            event.synchronize(),
            device.per_thread_stream().unwrap().wait(&event),
            stream.launch(&ADD_ONE).in_out(&mut elsewhere).map(drop),
        ] {
            assert_eq!(kind(refused), ErrorKind::Capture);
        }
        add_one(&stream, &mut vec);
        inside = Some(event);
    });
    launch(&graph, &stream).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1; 10]);
    let inside = inside.unwrap();
    assert_eq!(kind(other.wait(&inside)), ErrorKind::Capture, "its capture is over");
    assert_eq!(kind(inside.synchronize()), ErrorKind::Capture);
    assert_eq!(elsewhere.to_vec().unwrap(), [0; 10]);
    simulator.check().unwrap();
}

#[test]
fn a_lost_capture_is_an_error_and_the_stream_works_on() {
    let (device, simulator) = device();
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 10).unwrap();
    let mut lost = |spoil: &dyn Fn(&mut DeviceVec<u32>), advice: &str| {
        let mut recording = begun(&stream).unwrap();
        spoil(&mut vec);
        let error = recording.finish().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Capture, "{error}");
        assert!(error.to_string().contains(advice), "{error}");
        assert!(!stream.is_capturing().unwrap() && !other.is_capturing().unwrap());
        vec.fill(3).unwrap();
        assert_eq!(vec.to_vec().unwrap(), [3; 10]);
    };
    // As a library would that was told of no capture.
    let wait = |_: &mut DeviceVec<u32>| drop(device.driver().stream_synchronize(stream.raw()));
    lost(&wait, "look for a call");
    // Used on another stream and not at home again: that one is not waited for.
    lost(&|vec| add_one(&other, vec), "make the capturing stream wait");
    simulator.check().unwrap();
    assert_eq!(simulator.call_count("cuGraphInstantiate"), 0);
}

#[test]
fn a_driver_that_fails_leaves_no_stream_in_capture() {
    let (device, simulator) = device();
    let stream = device.new_stream().unwrap();
    for call in ["cuStreamEndCapture", "cuGraphInstantiate"] {
        let mut recording = begun(&stream).unwrap();
        simulator.fail_call(call, 1, 2).unwrap();
        let error = recording.finish().unwrap_err();
        assert_eq!((error.kind(), error.driver().unwrap().call()), (ErrorKind::OutOfMemory, call));
        assert!(!stream.is_capturing().unwrap(), "{call}");
    }
    simulator.fail_call("cuStreamBeginCapture", 1, 2).unwrap();
    assert_eq!(begun(&stream).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert!(!stream.is_capturing().unwrap());
    let graph = captured(&stream, || {});
    simulator.fail_call("cuGraphLaunch", 1, 2).unwrap();
    assert_eq!(launch(&graph, &stream).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(graph.launched_on(), std::slice::from_ref(&stream), "it may have been launched");
    simulator.fail_call("cuStreamWaitEvent", 1, 2).unwrap();
    let other = device.new_stream().unwrap();
    assert_eq!(launch(&graph, &other).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(graph.launched_on(), [stream], "not ordered, and not launched");
}

#[test]
fn a_capture_is_given_up_when_its_closure_fails() {
    let (device, simulator) = device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 10).unwrap();
    for lost in [false, true] {
        let recording = begun(&stream).unwrap();
        add_one(&stream, &mut vec);
        if lost {
            assert!(device.driver().stream_synchronize(stream.raw()).is_err());
        }
        drop(recording);
        assert!(!stream.is_capturing().unwrap());
        assert_eq!(vec.to_vec().unwrap(), [0; 10]);
    }
    assert_eq!(simulator.call_count("cuGraphInstantiate"), 0);
    simulator.check().unwrap();
}

#[test]
fn memory_that_died_is_reported_at_the_launch() {
    let (device, simulator) = device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 10).unwrap();
    let graph = captured(&stream, || add_one(&stream, &mut vec));
    launch(&graph, &stream).unwrap();
    let address = vec.as_device_ptr();
    drop(vec);
    stream.synchronize().unwrap();
    simulator.check().unwrap();
    launch(&graph, &stream).unwrap();
    assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::Simulation);
    let report = simulator.take_reports().remove(0);
    assert_eq!((report.kind(), report.range().0), (Violation::UseAfterFree, address));
    assert!(report.operation().contains("add_one in graph"), "{report}");
}

#[test]
fn a_launch_does_not_make_others_wait() {
    let (device, simulator) = device();
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 10).unwrap();
    let graph = captured(&stream, || add_one(&stream, &mut vec));
    launch(&graph, &other).unwrap();
    // Home does not know of the launch: this is what the contract asks of the caller.
    vec.fill(5).unwrap();
    let report = simulator.take_reports().remove(0);
    assert_eq!(report.kind(), Violation::UnorderedAccess);
    stream.wait_for(&other).unwrap();
    vec.fill(6).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [6; 10]);
    simulator.check().unwrap();
}

#[test]
fn a_vector_lent_inside_forks_and_use_at_home_joins() {
    let (device, simulator) = device();
    let (stream, branch) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut one = DeviceVec::<u32>::zeroed(&stream, 10).unwrap();
    let mut two = DeviceVec::<u32>::zeroed(&stream, 10).unwrap();
    let graph = captured(&stream, || {
        add_one(&branch, &mut one);
        assert!(branch.is_capturing().unwrap());
        add_one(&stream, &mut two);
        one.copy_from(&two).unwrap();
        add_one(&stream, &mut one);
    });
    assert!(!branch.is_capturing().unwrap());
    for _ in 0..3 {
        launch(&graph, &stream).unwrap();
    }
    assert_eq!((one.to_vec().unwrap(), two.to_vec().unwrap()), (vec![4; 10], vec![3; 10]));
    simulator.check().unwrap();
}

#[test]
fn one_graph_is_launched_from_many_threads() {
    let (device, simulator) = device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 10).unwrap();
    let graph = captured(&stream, || add_one(&stream, &mut vec));
    let streams: Vec<_> = (0..4).map(|_| device.new_stream().unwrap()).collect();
    std::thread::scope(|threads| {
        for stream in &streams {
            threads.spawn(|| {
                for _ in 0..25 {
                    launch(&graph, stream).unwrap();
                }
            });
        }
    });
    for other in &streams {
        stream.wait_for(other).unwrap();
    }
    assert_eq!(vec.to_vec().unwrap(), [100; 10]);
    let mut ids: Vec<_> = graph.launched_on().iter().map(Stream::id).collect();
    ids.sort_unstable();
    assert_eq!(ids, streams.iter().map(Stream::id).collect::<Vec<_>>());
    simulator.check().unwrap();
}

#[test]
fn a_lost_device_launches_nothing_and_lets_go() {
    let (device, simulator) = device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 10).unwrap();
    let mut graph = captured(&stream, || add_one(&stream, &mut vec));
    let streams = told(&mut graph, &simulator);
    launch(&graph, &stream).unwrap();
    simulator.lose_context();
    let lost = |error: Error| error.kind() == ErrorKind::ContextLost;
    assert!(launch(&graph, &stream).is_err_and(lost));
    assert!(begun(&stream).is_err_and(lost));
    drop(graph);
    assert_eq!(*streams.lock(), Some(vec![stream.id()]));
}

#[test]
fn the_end_of_a_capture_waits_for_a_launch_that_waits_for_a_second_only() {
    let (device, _) = device();
    let stream = device.new_stream().unwrap();
    let order = LaunchOrder::default();
    // As a launch on a queue that is full has it.
    let turn = order.last.lock();
    std::thread::scope(|threads| {
        let ended = threads.spawn(|| order.end_body(&stream, true, || unreachable!("no turn")));
        let error = ended.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Capture);
        assert!(error.to_string().contains("waits for its device"), "{error}");
    });
    drop(turn);
    order.end_body(&stream, true, || true).unwrap();
}
