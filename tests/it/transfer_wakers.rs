//! Wakers that panic: in a poll, in the thread that asks the device, and when they are dropped.

use crate::kernels::idle_entry;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{Schedule, SimConfig, Simulator};
use aquifer::{
    Device, DeviceVec, HostArgs, Kernel, LaunchConfig, Stream, Transfer, pinned::PinnedResource,
};
use std::future::Future;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::time::{Duration, Instant};

type Pinned = AllocVec<u32, PinnedResource>;

/// A kernel ends when its gate is opened. One for each test.
static GATES: [(Mutex<bool>, Condvar); 3] = [const { (Mutex::new(false), Condvar::new()) }; 3];

static WAIT: Kernel = Kernel::new(
    "wait",
    idle_entry!("wait", number: u32),
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        let (open, opened) = &GATES[args.scalar::<u32>()? as usize];
        drop(opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
        Ok(())
    },
);

/// A stream that does nothing until this is dropped.
struct Gate(u32);

impl Gate {
    fn close(stream: &Stream, number: u32) -> Self {
        let launch = stream.launch(&WAIT).scalar(number).unwrap();
        // SAFETY: the kernel touches no memory.
        unsafe { launch.launch(LaunchConfig::for_elements(1)).unwrap() };
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

fn open() -> (Stream, Simulator) {
    let device = Device::simulated(SimConfig::default().schedule(Schedule::Background));
    let simulator = device.simulator().unwrap();
    (device.new_stream().unwrap(), simulator)
}

fn upload(stream: &Stream) -> Transfer<Pinned> {
    let mut host = AllocVec::new_in(PinnedResource::new(stream.device()).unwrap());
    host.resize(8, 7);
    stream.upload(host, DeviceVec::zeroed(stream, 8).unwrap()).unwrap()
}

/// Whether the buffers came back, if they did; `None` if the poll panicked.
fn poll(transfer: &mut Transfer<Pinned>, waker: &Waker) -> Option<Poll<bool>> {
    let poll = || Pin::new(transfer).poll(&mut Context::from_waker(waker));
    let polled = catch_unwind(AssertUnwindSafe(poll)).map_err(std::mem::forget).ok()?;
    Some(polled.map(|ended| ended.is_ok_and(came_back)))
}

fn came_back((host, device): (Pinned, DeviceVec<u32>)) -> bool {
    host[..] == [7; 8] && device.to_vec().unwrap() == [7; 8]
}

fn soon(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(10), "never: {what}");
        std::thread::yield_now();
    }
}

/// Which of a waker's functions panics, with something that panics when it is dropped.
#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    Clone,
    Drop,
    Wake,
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        resume_unwind(Box::new("thrown by what was thrown"));
    }
}

static WRONG: [Wrong; 3] = [Wrong::Clone, Wrong::Drop, Wrong::Wake];
static FUNCTIONS: RawWakerVTable = RawWakerVTable::new(
    |data| {
        panic_in(data, Wrong::Clone);
        RawWaker::new(data, &FUNCTIONS)
    },
    |data| {
        panic_in(data, Wrong::Wake);
        panic_in(data, Wrong::Drop);
    },
    |data| panic_in(data, Wrong::Wake),
    |data| panic_in(data, Wrong::Drop),
);

fn panic_in(data: *const (), function: Wrong) {
    // SAFETY: every waker's data is an element of `WRONG`.
    if unsafe { *data.cast::<Wrong>() } == function {
        resume_unwind(Box::new(Bomb));
    }
}

/// A waker of which the test drops no handle.
fn wrong(function: usize) -> ManuallyDrop<Waker> {
    let data = (&raw const WRONG[function]).cast();
    // SAFETY: the data is a static, which the functions only read.
    ManuallyDrop::new(unsafe { Waker::from_raw(RawWaker::new(data, &FUNCTIONS)) })
}

#[derive(Default)]
struct Counts(AtomicUsize);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// An executor that polls where it is woken: with a waker whose drop panics.
struct AtOnce(Mutex<Option<Transfer<Pinned>>>, AtomicUsize);

impl Wake for AtOnce {
    fn wake(self: Arc<Self>) {
        let transfer = self.0.lock().unwrap().take();
        let ended =
            transfer.is_some_and(|mut it| poll(&mut it, &wrong(1)) == Some(Poll::Ready(true)));
        self.1.store(1 + usize::from(ended), Ordering::Relaxed);
    }
}

#[test]
fn a_waker_whose_drop_panics_does_not_end_the_thread_that_polls() {
    let (stream, _) = open();
    let gate = Gate::close(&stream, 0);
    let at_once = Arc::new(AtOnce(Mutex::new(None), AtomicUsize::new(0)));
    let mut first = upload(&stream);
    assert_eq!(poll(&mut first, &Waker::from(at_once.clone())), Some(Poll::Pending));
    *at_once.0.lock().unwrap() = Some(first);
    let (mut second, counts) = (upload(&stream), Arc::new(Counts::default()));
    assert_eq!(poll(&mut second, &Waker::from(counts.clone())), Some(Poll::Pending));
    drop(gate);
    soon("the second is woken", || counts.0.load(Ordering::Relaxed) == 1);
    soon("the first ends where it is woken", || at_once.1.load(Ordering::Relaxed) == 2);
    assert_eq!(poll(&mut second, Waker::noop()), Some(Poll::Ready(true)));
}

#[test]
fn a_waker_that_panics_in_a_poll_leaves_the_transfer_its_buffers() {
    let (stream, simulator) = open();
    // Waited for, and polled again.
    let mut waited = upload(&stream);
    assert_eq!(poll(&mut waited, &wrong(0)), None);
    assert!(came_back(waited.wait().map_err(Box::new).unwrap()));
    let mut polled = upload(&stream);
    stream.synchronize().unwrap();
    assert_eq!(poll(&mut polled, &wrong(0)), None);
    assert_eq!(poll(&mut polled, Waker::noop()), Some(Poll::Ready(true)));

    // Dropped: kept until the device is past the copy.
    let gate = Gate::close(&stream, 1);
    let mut dropped = upload(&stream);
    assert_eq!(poll(&mut dropped, &wrong(0)), None);
    drop(dropped);
    stream.device().new_stream().unwrap().synchronize().unwrap();
    assert!(simulator.live_bytes() > 0 && simulator.host_blocks() > 0, "the device may read it");
    drop(gate);
    soon("the buffers are freed", || {
        stream.synchronize().unwrap();
        PinnedResource::new(stream.device()).unwrap().trim().unwrap();
        simulator.host_blocks() == 0
    });
    simulator.check().unwrap();
}

#[test]
fn a_waker_whose_drop_panics_costs_no_buffers() {
    let (stream, _) = open();
    let mut complete = upload(&stream);
    stream.synchronize().unwrap();
    assert_eq!(poll(&mut complete, &wrong(1)), Some(Poll::Ready(true)));

    let gate = Gate::close(&stream, 2);
    let mut transfer = upload(&stream);
    assert_eq!(poll(&mut transfer, &wrong(1)), Some(Poll::Pending));
    assert_eq!(poll(&mut transfer, &wrong(2)), Some(Poll::Pending), "drops the other waker");
    assert_eq!(poll(&mut transfer, &wrong(1)), Some(Poll::Pending));
    drop(gate);
    assert!(came_back(transfer.wait().map_err(Box::new).unwrap()));
}
