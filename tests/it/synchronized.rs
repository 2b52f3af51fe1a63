//! Waits for streams and events that block no thread.

use crate::kernels::{add_one, idle_entry};
use crate::support;
use aquifer::sim::Report;
use aquifer::sim::{Schedule, SimConfig, Violation};
use aquifer::{
    CudaResource, Device, DeviceVec, ErrorKind, HostArgs, Kernel, LaunchConfig, PoolResource,
    Result, Stream, stream::Synchronized,
};
use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

static GATES: [(Mutex<bool>, Condvar); 4] = [const { (Mutex::new(false), Condvar::new()) }; 4];

static WAIT: Kernel = Kernel::new(
    "wait",
    idle_entry!("wait", number: u32),
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        let (open, opened) = &GATES[args.scalar::<u32>()? as usize];
        drop(opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
        Ok(())
    },
);

/// Work that ends when its gate is opened, on a stream of a device that runs work by itself.
fn busy(number: u32) -> (Device, Stream) {
    let device = Device::simulated(SimConfig::default().schedule(Schedule::Background));
    let stream = device.new_stream().unwrap();
    let launch = stream.launch(&WAIT).scalar(number).unwrap();
    // SAFETY: the kernel touches no memory.
    unsafe { launch.launch(LaunchConfig::for_elements(1)).unwrap() };
    (device, stream)
}

fn open(number: usize) {
    let (open, opened) = &GATES[number];
    *open.lock().unwrap() = true;
    opened.notify_all();
}

#[derive(Default)]
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counting {
    fn soon_called(&self) {
        let started = Instant::now();
        while self.0.load(Ordering::Relaxed) == 0 {
            assert!(started.elapsed() < Duration::from_secs(10), "the task is never woken");
            std::thread::yield_now();
        }
    }
}

fn poll(future: &mut Synchronized, waker: &Arc<Counting>) -> Poll<Result<()>> {
    let waker = Waker::from(waker.clone());
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

/// Polls when it is woken.
fn block_on<F: Future>(future: F) -> F::Output {
    let counting = Arc::new(Counting::default());
    let waker = Waker::from(counting.clone());
    let mut future = pin!(future);
    let mut seen = 0;
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        let started = Instant::now();
        while counting.0.load(Ordering::Relaxed) == seen {
            assert!(started.elapsed() < Duration::from_secs(60), "the task is never woken");
            std::thread::yield_now();
        }
        seen = counting.0.load(Ordering::Relaxed);
    }
}

#[test]
fn a_stream_is_idle_when_it_has_done_all_that_it_was_given() {
    let (device, stream) = busy(3);
    let other = device.new_stream().unwrap();
    assert!(!stream.is_idle().unwrap(), "the kernel waits for its gate");
    assert!(other.is_idle().unwrap() && device.default_stream().is_idle().unwrap());
    open(3);
    let started = Instant::now();
    while !stream.is_idle().unwrap() {
        assert!(started.elapsed() < Duration::from_secs(10), "the kernel never ends");
        std::thread::yield_now();
    }

    // A capture is not lost over the question, of the stream or of the default one.
    let simulator = device.simulator().unwrap();
    let asked = simulator.call_count("cuStreamQuery");
    simulator.start_capture(&stream).unwrap();
    assert!(!stream.is_idle().unwrap() && !device.default_stream().is_idle().unwrap());
    assert_eq!(simulator.call_count("cuStreamQuery"), asked);
    assert!(other.is_idle().unwrap());
    assert!(simulator.stop_capture(&stream), "whole");

    simulator.fail_call("cuStreamQuery", 1, 999).unwrap();
    let error = other.is_idle().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Driver);
    assert!(error.to_string().contains("has work to do"), "{error}");
}

#[test]
fn a_wait_can_go_where_a_task_goes() {
    fn is_sent_unpinned<F: Future + Send + Sync + Unpin + 'static>(_: &F) {}
    let stream = support::device().new_stream().unwrap();
    is_sent_unpinned(&stream.synchronize_async());
    is_sent_unpinned(&stream.record().unwrap().into_future());
}

#[test]
fn the_newest_waker_is_called_when_the_stream_is_done() {
    let (device, stream) = busy(0);
    let event = stream.record().unwrap();
    let mut waits = [stream.synchronize_async(), event.into_future()];
    let (older, newer) = (Arc::new(Counting::default()), [(); 2].map(|()| Arc::default()));
    for (wait, newer) in waits.iter_mut().zip(&newer) {
        assert!(poll(wait, &older).is_pending());
        assert!(poll(wait, newer).is_pending());
    }
    open(0);
    for (wait, newer) in waits.iter_mut().zip(&newer) {
        newer.soon_called();
        for _ in 0..2 {
            assert!(matches!(poll(wait, newer), Poll::Ready(Ok(()))), "repeated");
        }
    }
    assert_eq!(older.0.load(Ordering::Relaxed), 0, "replaced");
    device.simulator().unwrap().check().unwrap();
}

#[test]
fn a_wait_covers_what_came_before_it_alone() {
    let device = support::device();
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 1000).unwrap();
    vec.fill(7).unwrap();
    let waits: Vec<_> = (0..100).map(|_| stream.synchronize_async()).collect();
    other.wait_for(&stream).unwrap();
    block_on(async {
        for wait in waits {
            wait.await.unwrap();
        }
        other.record().unwrap().await.unwrap();
    });
    assert_eq!(vec.to_vec().unwrap(), [7; 1000]);
}

#[test]
fn a_wait_may_be_dropped_or_forgotten() {
    let (device, stream) = busy(1);
    let counting = Arc::new(Counting::default());
    let (mut dropped, mut forgotten) = (stream.synchronize_async(), stream.synchronize_async());
    assert!(poll(&mut dropped, &counting).is_pending());
    assert!(poll(&mut forgotten, &counting).is_pending());
    drop(dropped);
    std::mem::forget(forgotten);
    drop(stream.synchronize_async());
    open(1);
    stream.synchronize().unwrap();
    device.simulator().unwrap().check().unwrap();
}

#[test]
fn a_wait_in_a_capture_is_an_error_and_the_graph_is_not_disturbed() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 4).unwrap();
    let (graph, (own, elsewhere, event)) = stream
        .capture(&pool, |stream| {
            let own = stream.synchronize_async();
            let elsewhere = std::thread::scope(|scope| {
                scope.spawn(|| stream.synchronize_async()).join().unwrap()
            });
            vec.fill(3)?;
            Ok((own, elsewhere, stream.record()?.into_future()))
        })
        .unwrap();
    for wait in [own, elsewhere, event] {
        assert_eq!(block_on(wait).unwrap_err().kind(), ErrorKind::Capture);
    }
    // SAFETY: nothing else uses the vector meanwhile.
    unsafe { graph.launch(&stream).unwrap() };
    block_on(stream.synchronize_async()).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [3; 4]);
}

#[test]
fn a_wait_carries_what_the_simulated_device_saw() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let plain = CudaResource::new(&device);
    // SAFETY: wrong on purpose: the vector is read before it is written.
    let mut vec = unsafe { DeviceVec::<u32>::uninit_in(&stream, 4, plain) }.unwrap();
    add_one(&stream, &mut vec).unwrap();
    let event = stream.record().unwrap();
    for ended in [block_on(stream.synchronize_async()), block_on(event.into_future())] {
        let error = ended.unwrap_err();
        let report = Report::of(&error).expect("a report");
        assert_eq!(report.kind(), Violation::UninitializedRead, "{error}");
    }
    assert_eq!(simulator.take_reports().len(), 1);
    block_on(stream.synchronize_async()).unwrap();
    simulator.lose_context();
    let lost = block_on(stream.synchronize_async()).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::ContextLost, "{lost}");
}

#[test]
fn a_thousand_streams_are_waited_for_in_one_task() {
    let device = support::device();
    let streams: Vec<_> = (0..1000).map(|_| device.new_stream().unwrap()).collect();
    let vecs: Vec<_> =
        streams.iter().map(|stream| DeviceVec::from_slice(stream, &[1_u8; 64]).unwrap()).collect();
    let waits: Vec<_> = streams.iter().map(Stream::synchronize_async).collect();
    block_on(async {
        for wait in waits {
            wait.await.unwrap();
        }
    });
    drop(vecs);
}
