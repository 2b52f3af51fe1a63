//! Transfers that own their buffers: what comes back, when, and what becomes of those that are
//! dropped, forgotten or failed.

use crate::kernels::idle_entry;
use crate::support;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{Schedule, SimConfig, Simulator};
use aquifer::{
    CudaResource, Device, DeviceVec, ErrorKind, HostArgs, Kernel, LaunchConfig, PinnedAlloc,
    PoolResource, Result, Stream, Transfer,
    mr::{AsyncResource, with_device_resource},
    pinned::{HostBuffer, PinnedResource, Registered},
};
use fastrand::Rng;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

type Pinned = AllocVec<u32, PinnedResource>;

fn pinned(device: &Device, values: &[u32]) -> Pinned {
    let mut vec = AllocVec::new_in(PinnedResource::new(device).unwrap());
    vec.extend_from_slice(values);
    vec
}

fn uninit(stream: &Stream, length: usize) -> DeviceVec<u32> {
    // SAFETY: every test writes it before it reads it.
    unsafe { DeviceVec::uninit(stream, length) }.unwrap()
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread; one that nobody wakes is a failure, not a hang.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    let started = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park_timeout(Duration::from_secs(30));
        assert!(started.elapsed() < Duration::from_secs(30), "nobody woke the future");
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// Calls the crate, as a program goes on to do, until a condition holds.
fn later(stream: &Stream, what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        let _ = stream.synchronize();
        assert!(started.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::yield_now();
    }
}

/// Kernels that end when the test lets them, one gate for each test that needs one.
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

/// A stream that does nothing until the gate is opened, or dropped.
struct Gate(u32);

impl Gate {
    fn close(stream: &Stream, number: u32) -> Self {
        let launch = stream.launch(&WAIT).scalar(number).unwrap();
        // SAFETY: it has no memory to touch.
        unsafe { launch.launch(LaunchConfig::for_elements(1)) }.unwrap();
        Self(number)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let (open, opened) = &GATES[self.0 as usize];
        *open.lock().unwrap() = true;
        opened.notify_all();
    }
}

fn background() -> (Device, Simulator) {
    support::simulated(SimConfig::default().schedule(Schedule::Background))
}

/// Up from one buffer, down into another of the same kind.
fn there_and_back<B>(stream: &Stream, make: impl Fn(&[u32]) -> B)
where
    B: HostBuffer<Item = u32> + std::ops::Deref<Target = [u32]>,
{
    let values: Vec<u32> = (0..5000).collect();
    let upload = stream.upload(make(&values), uninit(stream, values.len())).unwrap();
    let (host, device) = upload.wait().unwrap();
    assert_eq!(&*host, values, "unchanged");
    let (host, _) = stream.download(device, make(&[0; 5000])).unwrap().wait().unwrap();
    assert_eq!(&*host, values);
}

#[test]
fn every_kind_of_host_buffer_goes_there_and_back() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    there_and_back(&stream, |values| pinned(&device, values));
    there_and_back(&stream, |values| {
        let mut vec = AllocVec::new_in(PinnedAlloc);
        vec.extend_from_slice(values);
        vec
    });
    there_and_back(&stream, <[u32]>::to_vec);
    there_and_back(&stream, |values| Box::<[u32]>::from(values));
    there_and_back(&stream, |values| Registered::new(&device, values.to_vec()).unwrap());
}

#[test]
fn a_transfer_can_be_polled_until_it_is_complete() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let upload = stream.upload(pinned(&device, &[7; 100]), uninit(&stream, 100)).unwrap();
    while !upload.is_complete().unwrap() {
        std::hint::spin_loop();
    }
    assert_eq!(upload.wait().unwrap().1.to_vec().unwrap(), [7; 100]);
}

#[test]
fn a_transfer_can_be_awaited() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let host = block_on(async {
        let upload = stream.upload(pinned(&device, &[1, 2, 3]), uninit(&stream, 3))?;
        let (mut host, device) = upload.await?;
        host.fill(0);
        let (host, _) = stream.download(device, host)?.await?;
        Ok::<_, aquifer::Error>(host)
    });
    assert_eq!(&host.unwrap()[..], [1, 2, 3]);
}

#[test]
fn a_future_that_gave_its_answer_gives_an_error_after_it() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut upload = stream.upload(vec![1_u32], uninit(&stream, 1)).unwrap();
    block_on(&mut upload).unwrap();
    assert!(upload.is_complete().unwrap());
    assert!(format!("{upload:?}").contains("Transfer"));
    let error = block_on(&mut upload).unwrap_err();
    assert_eq!(error.error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(upload.wait().unwrap_err().error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn buffers_of_a_transfer_dropped_early_are_freed_by_later_calls() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let resource = PinnedResource::new(&device).unwrap();
    for elsewhere in [false, true] {
        for _ in 0..40 {
            let upload = stream.upload(pinned(&device, &[3; 64]), uninit(&stream, 64)).unwrap();
            if elsewhere {
                std::thread::spawn(move || drop(upload)).join().unwrap();
            } else {
                drop(upload);
            }
        }
        later(&stream, "memory of the device is freed", || simulator.live_bytes() == 0);
        later(&stream, "memory of the host is freed", || {
            resource.trim().unwrap();
            simulator.host_blocks() == 0
        });
    }
    simulator.check().unwrap();
}

#[test]
fn a_forgotten_transfer_leaks_its_buffers_and_nothing_else() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let resource = Arc::new(AsyncResource::new(&device).unwrap());
    for _ in 0..3 {
        let host = pinned(&device, &[0; 64]);
        let filled = DeviceVec::from_slice_in(&stream, &[9_u32; 64], resource.clone()).unwrap();
        std::mem::forget(stream.download(filled, host).unwrap());
        // Whoever gets memory now gets other memory than what the device still writes.
        let other = pinned(&device, &[5; 64]);
        let vec = DeviceVec::from_slice_in(&stream, &other, resource.clone()).unwrap();
        assert_eq!(vec.to_vec().unwrap(), [5; 64]);
        assert_eq!(&other[..], [5; 64]);
    }
    drop(resource);
    PinnedResource::new(&device).unwrap().trim().unwrap();
    assert_eq!((simulator.live_blocks(), simulator.host_blocks()), (3, 3));
    simulator.check().unwrap();
}

#[test]
fn a_transfer_outlives_its_stream_and_its_device() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let upload = stream.upload(pinned(&device, &[4; 10]), uninit(&stream, 10)).unwrap();
    drop(stream);
    drop(device);
    let (_, vec) = upload.wait().unwrap();
    assert_eq!(vec.to_vec().unwrap(), [4; 10]);
}

#[test]
fn a_transfer_on_another_stream_than_home_is_in_order_with_both() {
    let device = support::device();
    let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut vec = uninit(&home, 1000);
    vec.fill(1).unwrap();
    let (host, mut vec) = other.download(vec, pinned(&device, &[0; 1000])).unwrap().wait().unwrap();
    assert_eq!(&host[..], [1; 1000]);
    vec.fill(2).unwrap();
    let upload = other.upload(pinned(&device, &[3; 1000]), vec).unwrap();
    let (_, vec) = upload.wait().unwrap();
    assert_eq!(vec.to_vec().unwrap(), [3; 1000]);
}

fn refused<B: HostBuffer>(
    begun: Result<Transfer<B>, aquifer::transfer::TransferError<B>>,
    kind: ErrorKind,
) -> (B, DeviceVec<B::Item>) {
    let failed = begun.expect_err("it should be refused");
    assert_eq!(failed.error.kind(), kind, "{failed}");
    assert!(format!("{failed:?}").ends_with("; the error has both buffers"));
    *failed.buffers.expect("the buffers come back")
}

#[test]
fn buffers_of_two_lengths_are_given_back() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let kind = ErrorKind::LengthMismatch;
    let (host, vec) = refused(stream.upload(vec![1_u32; 3], uninit(&stream, 4)), kind);
    let (host, vec) = refused(stream.download(vec, host), kind);
    assert_eq!((host.len(), vec.len()), (3, 4));
    refused(stream.upload(Vec::new(), vec), kind);
}

#[test]
fn a_stream_of_another_device_gives_the_buffers_back() {
    let device = support::device();
    let (other, simulator) = support::simulated(SimConfig::default());
    let (stream, foreign) = (device.new_stream().unwrap(), other.new_stream().unwrap());
    for length in [3, 0] {
        let vec = DeviceVec::<u32>::zeroed(&stream, length).unwrap();
        let kind = ErrorKind::WrongDevice;
        let (host, vec) = refused(foreign.upload(vec![1_u32; length], vec), kind);
        let (_, vec) = refused(foreign.download(vec, host), kind);
        assert_eq!(vec.to_vec().unwrap(), vec![0; length], "usable as before");
    }
    simulator.check().unwrap();
}

#[test]
fn a_stream_in_capture_gives_the_buffers_back_and_keeps_its_graph() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    for length in [3, 0] {
        let vec = DeviceVec::<u32>::zeroed(&stream, length).unwrap();
        simulator.start_capture(&stream).unwrap();
        let host = pinned(&device, &[1, 2, 3][..length]);
        let (host, vec) = refused(stream.upload(host, vec), ErrorKind::Capture);
        let (host, vec) = refused(stream.download(vec, host), ErrorKind::Capture);
        assert!(simulator.stop_capture(&stream), "nothing invalidated it");
        let (_, vec) = stream.upload(host, vec).unwrap().wait().unwrap();
        assert_eq!(vec.to_vec().unwrap(), [1, 2, 3][..length]);
    }
    simulator.check().unwrap();
}

#[test]
fn empty_transfers_end() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let empty = DeviceVec::<u32>::new(&stream).unwrap();
    let (host, empty) = stream.upload(Vec::new(), empty).unwrap().wait().unwrap();
    let (host, _) = block_on(stream.download(empty, host).unwrap()).unwrap();
    assert!(host.is_empty());
    assert!(DeviceVec::from_vec(&stream, Vec::<u32>::new()).unwrap().is_empty());
}

#[test]
fn a_driver_call_that_fails_gives_the_buffers_back() {
    let both = ["cuEventRecord", "cuStreamWaitEvent", "cuEventCreate"];
    let upload = both.iter().chain(&["cuMemcpyHtoDAsync"]).map(|call| (false, *call));
    let download = both.iter().chain(&["cuMemcpyDtoHAsync"]).map(|call| (true, *call));
    for (down, call) in upload.chain(download) {
        // Every call of that name, until there is none left to fail.
        for nth in 1.. {
            let (device, simulator) = support::simulated(SimConfig::default());
            let (stream, home) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let vec = DeviceVec::from_slice(&home, &[5_u32; 16]).unwrap();
            let host = pinned(&device, &[5; 16]);
            simulator.fail_call(call, nth, 999).unwrap();
            let begun = if down { stream.download(vec, host) } else { stream.upload(host, vec) };
            let Err(failed) = begun else {
                assert!(nth > 1, "{call} was never called");
                break;
            };
            let driver = failed.error.driver().unwrap();
            assert_eq!((driver.call(), driver.code()), (call, 999));
            assert_eq!(failed.error.kind(), ErrorKind::Driver);
            let (host, vec) = *failed.buffers.expect("the buffers come back");
            assert_eq!(&host[..], [5; 16]);
            assert_eq!(vec.to_vec().unwrap(), [5; 16]);
            let (host, vec) = stream.upload(host, vec).unwrap().wait().unwrap();
            drop((host, vec));
            assert_eq!(simulator.live_bytes(), 0, "nothing leaks");
            simulator.check().unwrap();
        }
    }
}

#[test]
fn an_upload_to_a_new_vector_that_fails_gives_the_host_buffer_back() {
    for call in [
        // Not out of memory, after which what other tests have deferred is freed and the call is made again.
        "cuMemAlloc",
        "cuEventCreate",
        "cuMemcpyHtoDAsync",
        "cuEventRecord",
    ] {
        let (device, simulator) = support::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let host = pinned(&device, &[7; 4]);
        simulator.fail_call(call, 1, 999).unwrap();
        let plain = CudaResource::new(&device);
        let begun = with_device_resource(plain, || stream.upload_new(host));
        let (host, vec) = refused(begun, ErrorKind::Driver);
        assert_eq!((&host[..], vec.len()), (&[7; 4][..], 0), "{call}");
        assert_eq!((vec.stream(), vec.to_vec().unwrap()), (&stream, vec![]));
        drop(vec);
        let (host, vec) = stream.upload_new(host).unwrap().wait().unwrap();
        assert_eq!(vec.to_vec().unwrap(), host[..]);
        drop((host, vec));
        assert_eq!(simulator.live_bytes(), 0, "nothing leaks");
        simulator.check().unwrap();
    }
}

/// What the pool gave in the capture was another vector's. Safe code must not read it.
#[test]
fn an_upload_that_a_capture_refuses_shows_no_memory_of_others() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    drop(DeviceVec::from_slice_in(&stream, &[9_u32; 16], pool.clone()).unwrap());
    let mut kept = None;
    let captured = stream.capture(&pool, |stream| {
        let upload = || stream.upload_new(vec![1_u32; 16]);
        kept = Some(refused(with_device_resource(pool.clone(), upload), ErrorKind::Capture));
        Ok(())
    });
    captured.unwrap();
    let (host, mut vec) = kept.unwrap();
    assert_eq!((host, vec.len(), vec.to_vec().unwrap()), (vec![1; 16], 0, vec![]));
    vec.resize(16, 2).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [2; 16]);
}

#[test]
fn elements_without_a_size_are_refused_and_make_no_vector() {
    let stream = support::device().new_stream().unwrap();
    let failed = stream.upload_new(vec![(); 3]).expect_err("no vector has such elements");
    assert_eq!((failed.error.kind(), failed.buffers.is_none()), (ErrorKind::InvalidArgument, true));
}

#[test]
fn a_lost_context_gives_the_buffers_back_with_its_error() {
    for down in [false, true] {
        let (device, simulator) = support::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let (host, vec) = (pinned(&device, &[1; 8]), DeviceVec::<u32>::zeroed(&stream, 8).unwrap());
        let begun = if down { stream.download(vec, host) } else { stream.upload(host, vec) };
        let transfer = begun.unwrap();
        simulator.lose_context();
        assert_eq!(transfer.is_complete().unwrap_err().kind(), ErrorKind::ContextLost);
        let failed = transfer.wait().unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::ContextLost);
        let (host, vec) = *failed.buffers.expect("a device that has stopped writes nothing");
        assert_eq!(&host[..], [1; 8], "what it was before");
        let again = stream.upload(host, vec).unwrap_err();
        assert_eq!(again.error.kind(), ErrorKind::ContextLost);
        assert!(again.buffers.is_some());
    }
}

#[test]
fn many_transfers_in_flight_end_with_the_right_contents() {
    for seed in 0..if support::on_gpu() { 3 } else { 30 } {
        let device = support::seeded(seed);
        let mut random = Rng::with_seed(seed);
        let mut random = |below: usize| random.usize(..below);
        let streams: Vec<_> = (0..4).map(|_| device.new_stream().unwrap()).collect();
        let mut uploads = Vec::new();
        for index in 0..24_u32 {
            let home = &streams[random(4)];
            let length = random(3000);
            let values: Vec<u32> = (0..length as u32).map(|value| value ^ index << 16).collect();
            let on = &streams[random(4)];
            let upload = on.upload(pinned(&device, &values), uninit(home, length)).unwrap();
            uploads.push((values, upload));
        }
        let mut downloads = Vec::new();
        while !uploads.is_empty() {
            let (values, upload) = uploads.swap_remove(random(uploads.len()));
            match random(4) {
                0 => drop(upload),
                1 => std::mem::forget(upload),
                _ => {
                    let (mut host, vec) = upload.wait().unwrap();
                    host.fill(0);
                    let on = &streams[random(4)];
                    downloads.push((values, on.download(vec, host).unwrap()));
                }
            }
        }
        for (values, download) in downloads {
            assert_eq!(&block_on(download).unwrap().0[..], values, "seed {seed}");
        }
    }
}

#[test]
fn from_vec_frees_the_host_buffer_when_the_copy_is_complete() {
    let (device, simulator) = background();
    let stream = device.new_stream().unwrap();
    let gate = Gate::close(&stream, 0);
    let vec = DeviceVec::from_vec(&stream, pinned(&device, &[8; 500])).unwrap();
    let resource = PinnedResource::new(&device).unwrap();
    assert_eq!(simulator.host_blocks(), 1, "the device has not read it yet");
    drop(gate);
    assert_eq!(vec.to_vec().unwrap(), [8; 500]);
    later(&stream, "the buffer is freed", || {
        resource.trim().unwrap();
        simulator.host_blocks() == 0
    });
    simulator.check().unwrap();
}

#[test]
fn a_future_that_is_pending_is_woken_by_an_error() {
    let (device, simulator) = background();
    let stream = device.new_stream().unwrap();
    let gate = Gate::close(&stream, 1);
    let mut upload = stream.upload(pinned(&device, &[1; 8]), uninit(&stream, 8)).unwrap();
    assert!(!upload.is_complete().unwrap());
    assert!(poll_once(&mut upload, Waker::noop()).is_pending());
    let waiting = std::thread::spawn(move || block_on(upload).map_err(Box::new));
    simulator.lose_context();
    drop(gate);
    let failed = waiting.join().unwrap().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::ContextLost);
    assert!(failed.buffers.is_some());
}

#[test]
fn a_future_dropped_while_pending_leaves_its_buffers_to_later_calls() {
    let (device, simulator) = background();
    let stream = device.new_stream().unwrap();
    let gate = Gate::close(&stream, 2);
    let mut upload = stream.upload(pinned(&device, &[1; 8]), uninit(&stream, 8)).unwrap();
    for _ in 0..3 {
        assert!(poll_once(&mut upload, Waker::noop()).is_pending());
    }
    drop(upload);
    assert!(simulator.live_bytes() > 0 && simulator.host_blocks() > 0);
    drop(gate);
    later(&stream, "its buffers are freed", || simulator.live_bytes() == 0);
    simulator.check().unwrap();
}

struct Panics(AtomicUsize);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("a waker that panics, on purpose");
    }
}

#[test]
fn a_waker_that_panics_does_not_leave_the_others_asleep() {
    let (device, _) = background();
    let stream = device.new_stream().unwrap();
    let gate = Gate::close(&stream, 3);
    let wrong = Arc::new(Panics(AtomicUsize::new(0)));
    let mut first = stream.upload(pinned(&device, &[1; 8]), uninit(&stream, 8)).unwrap();
    assert!(poll_once(&mut first, &Waker::from(wrong.clone())).is_pending());
    let second = stream.upload(pinned(&device, &[2; 8]), uninit(&stream, 8)).unwrap();
    let waiting = std::thread::spawn(move || block_on(second).map_err(Box::new));
    drop(gate);
    assert_eq!(waiting.join().unwrap().unwrap().1.to_vec().unwrap(), [2; 8]);
    later(&stream, "the first was woken too", || wrong.0.load(Ordering::Relaxed) == 1);
}
