//! What a tracking adaptor notes of who called: written down by anybody, and left alone in a child.

use crate::support;
use aquifer::{
    Device, DeviceBlock, DeviceLayout, DeviceResource, Stream,
    mr::{CallStack, CallbackResource, TrackingAdaptor},
};
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Over memory that nobody uses: addresses that are counted.
fn tracking(device: &Device) -> TrackingAdaptor<CallbackResource> {
    let next = AtomicU64::new(1 << 20);
    // SAFETY: the blocks do not overlap, and no test uses their memory, which is nowhere.
    let upstream = unsafe {
        CallbackResource::new(
            device,
            move |_, layout| {
                let address = next.fetch_add(1 << 20, Ordering::Relaxed);
                Ok(DeviceBlock::new(address, layout.bytes(), 0))
            },
            |_, _| (),
        )
    };
    TrackingAdaptor::builder(upstream).capture_backtraces(true).build()
}

fn pair(tracking: &TrackingAdaptor<CallbackResource>, stream: &Stream) -> CallStack {
    let block = tracking.allocate(stream, DeviceLayout::new(256).unwrap()).unwrap();
    let stack = tracking.outstanding()[0].backtrace().unwrap().clone();
    // SAFETY: allocated above; nothing uses it.
    unsafe { tracking.deallocate(stream, block) };
    stack
}

fn a_stack() -> CallStack {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    pair(&tracking(&device), &stream)
}

/// Writes another stack whenever it is written to.
struct Another {
    stack: CallStack,
    text: String,
}

impl Write for Another {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        assert!(self.stack.to_string().contains("a_stack"));
        self.text.push_str(part);
        Ok(())
    }
}

struct Panics;

impl Write for Panics {
    fn write_str(&mut self, _: &str) -> fmt::Result {
        panic!("nobody writes here");
    }
}

/// Waits for another thread that writes a stack.
struct Waits(CallStack);

impl Write for Waits {
    fn write_str(&mut self, _: &str) -> fmt::Result {
        let stack = self.0.clone();
        thread::spawn(move || stack.to_string()).join().unwrap();
        Ok(())
    }
}

#[test]
fn a_stack_is_written_to_whoever_writes_another() {
    let stack = a_stack();
    let mut another = Another { stack: stack.clone(), text: String::new() };
    write!(another, "{stack}").unwrap();
    assert_eq!(another.text, stack.to_string());
}

#[test]
fn a_stack_is_written_to_whoever_waits_for_another_thread() {
    let stack = a_stack();
    write!(Waits(stack.clone()), "{stack}").unwrap();
}

#[test]
fn whoever_panics_at_a_stack_spoils_no_other() {
    let stack = a_stack();
    let failed = catch_unwind(AssertUnwindSafe(|| write!(Panics, "{stack}")));
    assert!(failed.is_err());
    let texts = [(); 2].map(|()| thread::spawn(|| a_stack().to_string()).join().unwrap());
    assert!(texts.iter().all(|text| text.contains("a_stack")), "{texts:?}");
    assert!(stack.to_string().contains("a_stack"));
}

/// The child has the list as it was in the middle of the other thread's call.
#[cfg(unix)]
#[test]
fn the_child_of_a_fork_drops_its_adaptor_and_nothing_in_it() {
    let name = "the_child_of_a_fork_drops_its_adaptor_and_nothing_in_it";
    if !support::in_own_process(module_path!(), name) {
        return;
    }
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let done = AtomicBool::new(false);
    let adaptor = Box::into_raw(Box::new(tracking(&device)));
    // SAFETY: freed below, when nobody has it any more.
    let shared = unsafe { &*adaptor };
    let failed = thread::scope(|scope| {
        scope.spawn(|| {
            let layout = DeviceLayout::new(256).unwrap();
            while !done.load(Ordering::Relaxed) {
                let blocks = [(); 40].map(|()| shared.allocate(&stream, layout).unwrap());
                for block in blocks {
                    // SAFETY: allocated above; nothing uses it.
                    unsafe { shared.deallocate(&stream, block) };
                }
            }
        });
        let forks = (0..300).filter(|_| {
            // SAFETY: the child runs what is below, and ends without other destructors.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: a timer of this process, whose only thread this is; then it ends.
                unsafe {
                    libc::alarm(10);
                    drop(Box::from_raw(adaptor));
                    libc::_exit(0);
                }
            }
            let mut status = 0;
            // SAFETY: a child of this process, and a place for its status.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            child < 0 || status != 0
        });
        let failed = forks.count();
        done.store(true, Ordering::Relaxed);
        failed
    });
    assert_eq!(failed, 0, "children that died");
    // SAFETY: from `Box::into_raw`; the thread that had it is gone.
    drop(unsafe { Box::from_raw(adaptor) });
}
