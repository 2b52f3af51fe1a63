//! Captures and graphs, with their calls and the errors of invalidated captures.

use super::*;
use crate::{CaptureStatus, RawGraph};

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
