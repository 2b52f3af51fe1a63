//! Graphs of declared captures: a warm launch is one call, and none in the child of a fork.

use super::*;
use aquifer::stream::Graph;
use aquifer::{PoolResource, Stream};

/// A graph that has a vector of its own, which goes with it.
fn capture(stream: &Stream, pool: &PoolResource) -> aquifer::Result<Graph> {
    let captured = stream.capture(pool, |stream| {
        let mut vec = DeviceVec::<u32>::zeroed_in(stream, 100, pool.clone())?;
        vec.fill(1)
    });
    captured.map(|(graph, ())| graph)
}

#[test]
fn a_warm_launch_is_one_call_if_the_handle_was_not_exposed() {
    let name = "graphs::a_warm_launch_is_one_call_if_the_handle_was_not_exposed";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let (graph, ()) = stream.capture(&pool, |_| Ok(())).unwrap();
        driver.take();
        // SAFETY: an empty graph.
        let launch = |graph: &Graph| unsafe { graph.launch(&other).unwrap() };
        launch(&graph);
        assert_eq!(driver.names(), ["cuStreamWaitEvent", "cuGraphLaunch"]);
        launch(&graph);
        assert_eq!(driver.names(), ["cuGraphLaunch"]);
        driver.take();
        let second = other.capture(&pool, |other| {
            let begin = driver.names();
            assert_eq!(begin[begin.len() - 2..], ["cuEventRecord", "cuStreamBeginCapture_v2"]);
            // SAFETY: as above.
            let refused = unsafe { graph.launch(other) }.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Capture);
            assert_eq!(driver.names(), [""; 0], "the driver would have invalidated the capture");
            Ok(())
        });
        second.unwrap();
        // cudarc may begin a capture on a stream whose handle it has.
        assert!(other.cuda_stream().is_ok());
        driver.take();
        launch(&graph);
        assert_eq!(driver.names(), ["cuStreamIsCapturing", "cuGraphLaunch"]);
        drop(graph);
        assert_eq!(driver.names(), ["cuGraphExecDestroy"]);
    });
}

#[test]
fn a_forked_child_drops_a_graph_without_a_call() {
    let name = "graphs::a_forked_child_drops_a_graph_without_a_call";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let graph = capture(&stream, &pool).unwrap();
        let mut child = -1;
        // The fork is inside of a capture, which the child can neither end nor give up.
        let captured = other.capture(&pool, |_| {
            driver.take();
            // SAFETY: the child makes no call of the driver, and ends without destructors.
            child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child > 0 {
                let mut status = -1;
                // SAFETY: waits for our own child.
                unsafe { libc::waitpid(child, &mut status, 0) };
                assert_eq!(status, 0);
                assert_eq!(driver.take(), [""; 0], "a call of the driver's in the child");
            }
            Ok(())
        });
        if child == 0 {
            let forked = |result: aquifer::Result<()>| {
                result.is_err_and(|error| error.kind() == ErrorKind::Forked)
            };
            // SAFETY: refused.
            let launched = forked(unsafe { graph.launch(&stream) });
            let others = forked(capture(&stream, &pool).map(drop)) && forked(captured.map(drop));
            drop(graph);
            // SAFETY: ends this process without any destructor.
            unsafe { libc::_exit(i32::from(!(launched && others))) };
        }
        // The parent's are whole.
        captured.unwrap();
        // SAFETY: its memory goes with the graph.
        unsafe { graph.launch(&stream).unwrap() };
        driver.take();
        drop(graph);
        assert_eq!(driver.names(), ["cuGraphExecDestroy"]);
    });
}
