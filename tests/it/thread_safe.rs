//! A resource without a lock is one that threads share, under the adaptor's.

use crate::{log, support};
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, Result,
    Stream,
    mr::{LocalDeviceResource, ThreadSafeAdaptor},
};
use log::Log;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use support::free;
use tracing::Level;

/// Counts without atomics, slowly, and calls back.
struct Local {
    shown: Option<Box<dyn Fn() + Send>>,
    upstream: CudaResource,
    live: Cell<usize>,
    called: Cell<usize>,
    back: Option<Box<dyn FnMut() + Send>>,
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(shown) = &self.shown {
            shown();
        }
        f.write_str("Local")
    }
}

impl Local {
    fn new(device: &Device) -> Self {
        let upstream = CudaResource::new(device);
        Self { upstream, live: Cell::new(0), called: Cell::new(0), back: None, shown: None }
    }

    /// Loses counts if two threads are here.
    fn count(&self, live: impl FnOnce(usize) -> usize) {
        let (before, called) = (self.live.get(), self.called.get());
        std::thread::sleep(Duration::from_micros(100));
        self.live.set(live(before));
        self.called.set(called + 1);
    }
}

// SAFETY: every block is upstream's, and goes back to it unchanged.
unsafe impl LocalDeviceResource for Local {
    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&mut self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.count(|live| live + 1);
        if let Some(back) = &mut self.back {
            back();
        }
        self.upstream.allocate(stream, layout)
    }

    unsafe fn deallocate(&mut self, stream: &Stream, block: DeviceBlock) {
        self.count(|live| live - 1);
        // SAFETY: the caller's promise.
        unsafe { self.upstream.deallocate(stream, block) }
    }
}

fn layout() -> DeviceLayout {
    DeviceLayout::new(4096).unwrap()
}

#[test]
fn threads_take_turns() {
    let device = support::device();
    let shared = ThreadSafeAdaptor::new(Local::new(&device));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let stream = device.new_stream().unwrap();
                let resource: Arc<dyn DeviceResource> = Arc::new(shared.clone());
                for value in 0..50 {
                    let vec =
                        DeviceVec::from_slice_in(&stream, &[value; 100], resource.clone()).unwrap();
                    assert_eq!(vec.to_vec().unwrap(), [value; 100]);
                }
            });
        }
    });
    let found = shared.inspect(|local| (local.live.get(), local.called.get())).unwrap();
    assert_eq!(found, (0, 400));
}

#[test]
fn handles_on_one_resource_are_equal_and_others_are_not() {
    let device = support::device();
    let shared = ThreadSafeAdaptor::new(Local::new(&device));
    let other = ThreadSafeAdaptor::new(Local::new(&device));
    assert_eq!(shared, shared.clone());
    assert_eq!(shared.identity(), shared.clone().identity());
    assert_ne!(shared, other);
    assert_ne!(shared.identity(), other.identity());
    assert_eq!(shared.device(), &*device);
}

/// What a call from inside of a call finds: the inner allocation is an error, and the free waits.
#[test]
fn a_call_from_inside_of_a_call_is_an_error_and_no_deadlock() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let shared = Arc::new_cyclic(|shared: &std::sync::Weak<ThreadSafeAdaptor<Local>>| {
        let (shared, stream) = (shared.clone(), stream.clone());
        let mut local = Local::new(&device);
        let plain = CudaResource::new(&device);
        let mut first = true;
        local.back = Some(Box::new(move || {
            let Some(shared) = shared.upgrade() else { return };
            if !std::mem::take(&mut first) {
                return;
            }
            let error = shared.allocate(&stream, layout()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Reentered, "{error}");
            assert_eq!(shared.inspect(|_| ()).unwrap_err().kind(), ErrorKind::Reentered);
            assert!(format!("{shared:?}").contains("device"));
            let block = plain.allocate(&stream, layout()).unwrap();
            // Taken back when the outer call is over.
            let (_, log) = Log::of(|| free(&*shared, &stream, block));
            assert_eq!(log.count(Level::ERROR, ""), 0, "{:?}", log.lines());
        }));
        ThreadSafeAdaptor::new(local)
    });
    let block = shared.allocate(&stream, layout()).unwrap();
    // One allocated in the open, one freed that was the upstream's.
    assert_eq!(shared.inspect(|local| (local.live.get(), local.called.get())).unwrap(), (0, 2));
    shared.inspect(|local| local.live.set(1)).unwrap();
    // The next call is as any other: on this thread, and on another.
    free(&*shared, &stream, block);
    let block = shared.allocate(&stream, layout()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| free(&*shared, &stream, block));
    });
    assert_eq!(shared.inspect(|local| (local.live.get(), local.called.get())).unwrap(), (0, 5));
}

#[test]
fn a_panic_inside_leaves_the_lock_free() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut local = Local::new(&device);
    let mut first = true;
    local.back = Some(Box::new(move || {
        if std::mem::take(&mut first) {
            std::panic::resume_unwind(Box::new("inside"));
        }
    }));
    let shared = ThreadSafeAdaptor::new(local);
    let call = std::panic::AssertUnwindSafe(|| shared.allocate(&stream, layout()));
    assert!(std::panic::catch_unwind(call).is_err());
    let block = shared.allocate(&stream, layout()).unwrap();
    free(&shared, &stream, block);
}

/// What is written out may be asked for by code that allocates, as a writer with a buffer of its own.
#[test]
fn a_call_from_inside_of_a_debug_line_is_an_error_and_no_deadlock() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let shared = Arc::new_cyclic(|shared: &std::sync::Weak<ThreadSafeAdaptor<Local>>| {
            let (shared, stream) = (shared.clone(), stream.clone());
            let mut local = Local::new(&device);
            let plain = CudaResource::new(&device);
            local.live.set(1);
            local.shown = Some(Box::new(move || {
                let Some(shared) = shared.upgrade() else { return };
                let error = shared.allocate(&stream, layout()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Reentered, "{error}");
                free(&*shared, &stream, plain.allocate(&stream, layout()).unwrap());
            }));
            ThreadSafeAdaptor::new(local)
        });
        let line = format!("{shared:?}");
        let counts = shared.inspect(|local| (local.live.get(), local.called.get())).unwrap();
        sender.send((line, counts)).unwrap();
    });
    let (line, counts) = done.recv_timeout(Duration::from_secs(20)).expect("no deadlock");
    assert_eq!((line.contains("Local"), counts), (true, (0, 1)), "{line}");
}
