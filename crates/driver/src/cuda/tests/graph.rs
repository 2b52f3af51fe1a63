//! Captures and graphs: the calls, and the errors of invalidated captures.

use super::*;
use crate::stream::capture::Recording;
use crate::sync::Arc;
use crate::sync::trusted::Mutex;
use crate::{CaptureStatus, RawGraph};
use crate::{Device, Stream, stream::Graph};

/// The names of the calls since the last look, without those that only look.
fn names(log: &child::Log) -> Vec<String> {
    let name = |line: String| line.split(' ').next().unwrap_or_default().to_owned();
    log.changes().into_iter().map(name).collect()
}

#[test]
fn a_capture_becomes_a_graph_that_launches() {
    alone("graph::a_capture_becomes_a_graph_that_launches", Installed::StandIn, &[], |log| {
        let driver = open();
        let stream = driver.stream_create().unwrap();
        let raw = stream.raw;
        stand_on_second();
        log.take();
        driver.stream_begin_capture(raw).unwrap();
        let begin = log.changes().remove(1);
        assert!(begin.starts_with("cuStreamBeginCapture_v2 ctx=0x1000"), "{begin}");
        assert!(begin.ends_with(" mode=2"), "relaxed: {begin}");
        assert_eq!(driver.capture_status(raw).unwrap(), CaptureStatus::Active);
        assert_eq!(driver.capture_status(RawStream(0)).unwrap(), CaptureStatus::None);
        assert_eq!(driver.stream_begin_capture(raw).unwrap_err().code(), 401);
        let legacy = driver.stream_begin_capture(RawStream(0)).unwrap_err();
        assert_eq!((legacy.code(), legacy.kind()), (900, ErrorKind::Capture));
        let before = alive();
        log.take();
        let graph = driver.stream_end_capture(raw).unwrap();
        let push = "cuCtxPushCurrent_v2";
        let calls = ["cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphDestroy"]
            .map(String::from);
        let seen = names(log);
        assert_eq!((&*seen[0], &seen[1..4], &*seen[4]), (push, &calls[..], "cuCtxPopCurrent_v2"));
        assert_eq!(alive(), before + 1, "the template is gone");
        assert_eq!(driver.capture_status(raw).unwrap(), CaptureStatus::None);
        // SAFETY: an empty graph, launched and destroyed by this thread alone.
        unsafe {
            driver.graph_launch(graph, raw).unwrap();
            driver.graph_launch(graph, raw).unwrap();
            driver.graph_destroy(graph).unwrap();
            assert_eq!(driver.graph_launch(graph, raw).unwrap_err().code(), 400);
            assert_eq!(driver.graph_destroy(graph).unwrap_err().code(), 400);
        }
        assert_eq!(alive(), before);
        assert_eq!(now(), SECOND);
        driver.stream_destroy(raw, stream.keep);
    });
}

#[test]
fn a_lost_capture_is_an_error_and_over() {
    alone("graph::a_lost_capture_is_an_error_and_over", Installed::StandIn, &[], |log| {
        let driver = open();
        let stream = driver.stream_create().unwrap();
        let raw = stream.raw;
        let before = alive();
        assert_eq!(driver.stream_end_capture(raw).unwrap_err().code(), 401);
        assert_eq!(driver.stream_abandon_capture(raw).unwrap_err().code(), 401);
        for give_up in [false, true] {
            driver.stream_begin_capture(raw).unwrap();
            assert_eq!(driver.stream_synchronize(raw).unwrap_err().code(), 900);
            assert_eq!(driver.capture_status(raw).unwrap(), CaptureStatus::Invalidated);
            log.take();
            if give_up {
                driver.stream_abandon_capture(raw).unwrap();
            } else {
                let error = driver.stream_end_capture(raw).unwrap_err();
                assert_eq!((error.call(), error.code()), ("cuStreamEndCapture", 901));
                assert_eq!(error.kind(), ErrorKind::Capture);
            }
            assert!(!names(log).iter().any(|call| call.starts_with("cuGraph")));
            assert_eq!(driver.capture_status(raw).unwrap(), CaptureStatus::None);
            driver.stream_synchronize(raw).unwrap();
        }
        // One that is whole is thrown away without becoming executable.
        driver.stream_begin_capture(raw).unwrap();
        log.take();
        driver.stream_abandon_capture(raw).unwrap();
        let calls = names(log);
        assert!(calls.contains(&"cuGraphDestroy".to_owned()), "{calls:?}");
        assert!(!calls.contains(&"cuGraphInstantiateWithFlags".to_owned()), "{calls:?}");
        for code in [2, 801, 4242] {
            driver.stream_begin_capture(raw).unwrap();
            fail("cuGraphInstantiateWithFlags", 1, code);
            let error = driver.stream_end_capture(raw).unwrap_err();
            assert_eq!((error.call(), error.code()), ("cuGraphInstantiateWithFlags", code));
            assert_eq!(driver.capture_status(raw).unwrap(), CaptureStatus::None);
        }
        assert_eq!(alive(), before, "no template is left");
        fail("cuGraphLaunch", 1, 719);
        // SAFETY: there is no such graph, which the stand-in says.
        let launch = || unsafe { driver.graph_launch(RawGraph(0xdead), raw) }.unwrap_err();
        assert_eq!((launch().code(), launch().code()), (719, 400));
        driver.stream_destroy(raw, stream.keep);
    });
}

#[test]
fn a_driver_without_graphs_says_so() {
    alone("graph::a_driver_without_graphs_says_so", Installed::Old, &[], |_| {
        let library = Library::get().unwrap();
        let mut graph = 0;
        // SAFETY: the function is not there.
        let ended = unsafe { library.stream_end_capture(0x50, &raw mut graph) }.unwrap_err();
        // SAFETY: as above.
        let begun = unsafe { library.stream_begin_capture(0x50, 2) }.unwrap_err();
        for error in [ended, begun] {
            assert_eq!(error.kind(), ErrorKind::MissingSymbol);
            let error = Error::driver_call("capturing", error);
            assert!(print(&error).contains("install a newer CUDA driver"));
        }
    });
}

/// An attachment that notes, when it is released, on how many streams its graph was launched.
#[derive(Clone, Default)]
struct Noted(Arc<Mutex<Option<usize>>>);

impl Noted {
    fn attach_to(&self, graph: &mut Graph) {
        let noted = self.clone();
        graph.attach(Box::new(move |launched_on| *noted.0.lock() = Some(launched_on.len())));
    }
}

fn begun(stream: &Stream) -> crate::error::Result<Recording> {
    let mut recording = Recording::acquire(stream)?;
    recording.begin()?;
    Ok(recording)
}

#[test]
fn a_warm_launch_is_one_call_if_the_handle_was_not_exposed() {
    let name = "graph::a_warm_launch_is_one_call_if_the_handle_was_not_exposed";
    alone(name, Installed::StandIn, &[], |log| {
        let device = Device::open(0).unwrap();
        let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        log.take();
        let calls = |log| {
            let mut calls = names(log);
            calls.retain(|call| !call.starts_with("cuCtx"));
            calls
        };
        let mut recording = begun(&stream).unwrap();
        let begin = calls(log);
        assert_eq!(begin[begin.len() - 2..], ["cuEventRecord", "cuStreamBeginCapture_v2"]);
        let mut graph = recording.finish().unwrap();
        let noted = Noted::default();
        noted.attach_to(&mut graph);
        log.take();
        // SAFETY: an empty graph.
        let launch = |graph: &Graph| unsafe { graph.launch(&other).unwrap() };
        launch(&graph);
        assert_eq!(calls(log), ["cuStreamWaitEvent", "cuGraphLaunch"]);
        launch(&graph);
        assert_eq!(calls(log), ["cuGraphLaunch"]);
        let recording = begun(&other).unwrap();
        log.take();
        // SAFETY: as above.
        let refused = unsafe { graph.launch(&other) }.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Capture);
        assert!(calls(log).is_empty(), "the driver would have invalidated the capture");
        drop(recording);
        // cudarc may begin a capture on a stream whose handle it has.
        assert!(other.cuda_stream().is_ok());
        log.take();
        launch(&graph);
        assert_eq!(calls(log), ["cuStreamIsCapturing", "cuGraphLaunch"]);
        drop(graph);
        assert_eq!(calls(log), ["cuGraphExecDestroy"]);
        assert_eq!(*noted.0.lock(), Some(1));
    });
}

#[test]
fn a_forked_child_drops_a_graph_without_a_call() {
    alone("graph::a_forked_child_drops_a_graph_without_a_call", Installed::StandIn, &[], |log| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let mut graph = begun(&stream).unwrap().finish().unwrap();
        let mut open = begun(&device.new_stream().unwrap()).unwrap();
        let noted = Noted::default();
        noted.attach_to(&mut graph);
        // SAFETY: an empty graph.
        unsafe { graph.launch(&stream).unwrap() };
        log.take();
        // SAFETY: the child runs the code below, starts no thread, and leaves through `_exit`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let forked = |result: Result<(), Error>| {
                result.is_err_and(|error| error.kind() == ErrorKind::Forked)
            };
            // SAFETY: refused.
            let launched = forked(unsafe { graph.launch(&stream) });
            let others = forked(begun(&stream).map(drop)) && forked(open.finish().map(drop));
            drop((graph, open));
            let kept = noted.0.lock().is_none();
            // SAFETY: ends the child alone.
            unsafe { libc::_exit(i32::from(!(launched && others && kept))) };
        }
        let mut status = 0;
        // SAFETY: waits for the child above.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
        assert_eq!(log.take(), Vec::<String>::new(), "calls that reached the driver");
        drop(graph);
        assert_eq!(*noted.0.lock(), Some(1), "the parent's is whole");
    });
}
