#![cfg(aquifer_loom)]
//! A stream's gate: calls of several threads against captures, the event from before a capture
//! that others wait for instead, and a stream that gets another handle. Time does not pass in a model: who has patience
//! waits for good.

mod harness;

use aquifer::models::{Entered, Gate, GateOwner, Owning, Patience, Refused};
use harness::model;
use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread::ThreadId;
use std::sync::Arc;

/// The thread of a capture.
#[derive(Debug)]
struct Owner(ThreadId);

impl GateOwner for Owner {
    fn is_here(&self) -> bool {
        self.0 == loom::thread::current().id()
    }
}

/// The driver's handle of a stream.
type Handle = usize;

/// A stream of a driver whose captures are not synchronised inside.
struct Stream {
    gate: Gate<Owner, Handle>,
    /// Of another stream.
    second: Gate<Owner, Handle>,
    driver: Mutex<Driver>,
    /// What the capture noted of the stream before it began, while it has the stream.
    before: Mutex<Option<usize>>,
    calls: AtomicUsize,
    /// A capture has begun.
    began: Flag,
    /// A capture was tried, and is over.
    tried: Flag,
    /// A thread waited for the stream, and goes on.
    waited: Flag,
}

/// Set once. Its `wait` sleeps, so a flag that is never set is a deadlock in the model.
#[derive(Default)]
struct Flag {
    set: Mutex<bool>,
    changed: Condvar,
}

impl Flag {
    fn set(&self) {
        *self.set.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let mut set = self.set.lock().unwrap();
        while !*set {
            set = self.changed.wait(set).unwrap();
        }
    }
}

#[derive(Default)]
struct Driver {
    /// The stream's, of which the former ones are destroyed.
    handle: Handle,
    capturing: bool,
    /// Calls that were given to the stream to run.
    given: usize,
    ordered: bool,
}

impl Stream {
    fn new() -> Self {
        let driver = Mutex::new(Driver { ordered: true, ..Driver::default() });
        Self {
            gate: Gate::new(Handle::default()),
            second: Gate::new(Handle::default()),
            driver,
            before: Mutex::new(None),
            calls: AtomicUsize::new(0),
            began: Flag::default(),
            tried: Flag::default(),
            waited: Flag::default(),
        }
    }

    fn driver(&self) -> MutexGuard<'_, Driver> {
        self.driver.lock().unwrap()
    }

    /// Asks, gives work and records: each is a call of its own.
    fn give_work(&self, handle: Handle) {
        for _ in 0..2 {
            let mut driver = self.driver();
            assert_eq!(driver.handle, handle, "a call names a stream that was destroyed");
            assert!(!driver.capturing, "capture race: a call of a second thread");
            assert!(driver.ordered, "capture race: a call before the streams are in order");
            driver.given += 1;
        }
        self.calls.fetch_add(1, Relaxed);
    }

    /// Names the stream where no capture sees it.
    fn name_in_no_call(&self) {
        self.gate.with_handle(|handle| {
            assert_eq!(
                self.driver().handle,
                handle,
                "a stream that was destroyed is named in no call"
            );
        });
    }

    fn call(&self) {
        if let Ok(entered) = self.gate.begin_call(&Patience::none()) {
            self.give_work(entered.handle);
            self.gate.end_call(false);
        }
    }

    /// A call that waits for captures.
    fn call_at_last(&self) {
        let entered = self.gate.begin_call(&Patience::new());
        self.give_work(entered.expect("each capture ends").handle);
        self.gate.end_call(false);
    }

    fn capture_twice(&self) {
        self.capture();
        self.capture();
    }

    /// A call that becomes one of a capture, which takes the stream in.
    fn join(&self) {
        let Ok(Entered { handle, .. }) = self.gate.begin_call(&Patience::none()) else { return };
        self.give_work(handle);
        self.gate.end_call(false);
        let owner = Arc::new(Owner(loom::thread::current().id()));
        let closed = self.gate.close_and_wait(&owner, &Patience::new());
        let Ok(handle) = closed else { return };
        let Ok(own) = self.gate.begin_call(&Patience::none()) else {
            panic!("an owner is refused")
        };
        assert!(own.owner.is_some() && own.handle == handle, "the owner's call is another's");
        self.give_work(handle);
        self.gate.open();
    }

    /// A capture of one stream that the other one joins.
    fn capture_and_join(&self, gates: [&Gate<Owner, Handle>; 2]) {
        let owner = Arc::new(Owner(loom::thread::current().id()));
        if gates[0].close_and_wait(&owner, &Patience::new()).is_err() {
            return;
        }
        let _owning = Owning::new();
        if gates[1].close_and_wait(&owner, &Patience::new()).is_ok() {
            gates[1].open();
        }
        gates[0].open();
    }

    fn capture_and_join_second(&self) {
        self.capture_and_join([&self.gate, &self.second]);
    }

    fn capture_second_and_join(&self) {
        self.capture_and_join([&self.second, &self.gate]);
    }

    /// The stream's owner destroys it: from here on it has another handle.
    fn detach(&self) {
        let _ = self.gate.alone(&Patience::none(), |handle| {
            self.driver().handle = handle + 1;
            ((), handle + 1)
        });
    }

    fn capture(&self) {
        self.capture_with(|| ());
    }

    /// One after the other: who waits for the first one meets the second.
    fn capture_before_the_last(&self) {
        let owner = Arc::new(Owner(loom::thread::current().id()));
        if self.gate.close_and_wait(&owner, &Patience::none()).is_ok() {
            self.captured(|| ());
        }
        self.capture();
    }

    /// A capture whose body waits for a thread that waits for the stream.
    fn capture_until_waited(&self) {
        self.capture_with(|| {
            self.began.set();
            self.waited.wait();
        });
    }

    fn capture_with(&self, body: impl FnOnce()) {
        let owner = Arc::new(Owner(loom::thread::current().id()));
        match self.gate.close_and_wait(&owner, &Patience::none()) {
            Ok(_) => self.captured(body),
            Err(Refused::Owned(other)) => assert!(!other.is_here(), "refused for itself"),
            Err(Refused::CallWaits) => assert!(self.gate.owner().is_none(), "it stays closed"),
        }
        self.tried.set();
    }

    /// A call that waits for the device, which does something when a capture was tried.
    fn wait_for_a_capture(&self) {
        if self.gate.begin_call(&Patience::none()).is_err() {
            return;
        }
        self.gate.mark_blocking();
        self.tried.wait();
        self.gate.end_call(true);
    }

    /// The same from the beginning of the call.
    fn wait_for_a_capture_in_a_blocking_call(&self) {
        if self.gate.begin_blocking_call(&Patience::none()).is_err() {
            return;
        }
        self.tried.wait();
        self.gate.end_call(true);
    }

    /// A call that waits for the device, after a capture on another thread.
    fn wait_after_captures(&self) {
        let entered = self.gate.begin_blocking_call(&Patience::new());
        self.give_work(entered.expect("each capture ends").handle);
        self.gate.end_call(true);
    }

    /// The same, of a call that ends when the last capture was tried.
    fn wait_between_captures(&self) {
        let entered = self.gate.begin_blocking_call(&Patience::new());
        assert!(entered.is_ok(), "each capture ends");
        self.tried.wait();
        self.gate.end_call(true);
    }

    fn captured(&self, body: impl FnOnce()) {
        let given = self.driver().given;
        *self.before.lock().unwrap() = Some(given);
        self.gate.set_published();
        {
            let mut driver = self.driver();
            (driver.capturing, driver.ordered) = (true, false);
        }
        body();
        self.driver().capturing = false;
        self.driver().ordered = true;
        self.gate.open();
        *self.before.lock().unwrap() = None;
    }

    /// Names the stream as a capture does, without being its owner.
    fn alone(&self) {
        let _ = self.gate.alone(&Patience::none(), |handle| {
            self.driver().capturing = true;
            self.driver().capturing = false;
            ((), handle)
        });
    }

    /// A call whose thread is inside of another one.
    fn call_inside(&self) {
        if self.gate.begin_call(&Patience::none()).is_err() {
            return;
        }
        self.call();
        self.gate.end_call(false);
    }

    /// Waits for all that the stream was given, which is noted where a capture has it.
    fn wait(&self) {
        let given = 2 * self.calls.load(Relaxed);
        loop {
            if self.gate.begin_call(&Patience::none()).is_ok() {
                assert!(!self.driver().capturing, "capture race: a call of a second thread");
                return self.gate.end_call(false);
            }
            let before = *self.before.lock().unwrap();
            if let Some(before) = before {
                assert!(before >= given, "lost order: a call is not covered");
                return;
            }
            self.gate.wait_open_or_published();
        }
    }
}

fn wait_and_tell(stream: &Stream) {
    stream.wait();
    stream.waited.set();
}

/// Asks without a call, during a capture that it knows of.
fn ask_and_tell(stream: &Stream) {
    stream.began.wait();
    assert!(!stream.gate.is_open(), "a capture unseen: the gate looks open");
    stream.waited.set();
}

fn end(stream: &Stream) {
    assert!(stream.gate.owner().is_none(), "the gate is open");
    assert!(stream.gate.is_open(), "the gate looks closed");
    stream.call();
    let driver = stream.driver();
    assert_eq!(driver.given, 2 * stream.calls.load(Relaxed), "a call was not whole");
}

#[test]
fn a_call_and_a_capture() {
    model("a_call_and_a_capture", 20, Stream::new, &[Stream::call, Stream::capture], end);
}

#[test]
fn two_calls_and_a_capture() {
    let roles = [Stream::call, Stream::call, Stream::capture];
    model("two_calls_and_a_capture", 500, Stream::new, &roles, end);
}

#[test]
fn two_captures_and_a_call() {
    let roles = [Stream::capture, Stream::capture, Stream::call];
    model("two_captures_and_a_call", 500, Stream::new, &roles, end);
}

#[test]
fn a_capture_does_not_wait_for_a_call_that_waits_for_it() {
    let name = "a_capture_does_not_wait_for_a_call_that_waits_for_it";
    model(name, 10, Stream::new, &[Stream::wait_for_a_capture, Stream::capture], end);
}

#[test]
fn a_wait_beside_a_capture_after_a_call() {
    let roles = [Stream::wait, Stream::capture, Stream::call];
    model("a_wait_beside_a_capture_after_a_call", 500, Stream::new, &roles, end);
}

#[test]
fn a_capture_that_waits_for_a_thread_that_waits_for_its_stream() {
    let name = "a_capture_that_waits_for_a_thread_that_waits_for_its_stream";
    model(name, 10, Stream::new, &[wait_and_tell, Stream::capture_until_waited], end);
}

#[test]
fn a_capture_that_another_thread_knows_of() {
    let name = "a_capture_that_another_thread_knows_of";
    model(name, 10, Stream::new, &[ask_and_tell, Stream::capture_until_waited], end);
}

#[test]
fn a_capture_does_not_wait_for_a_blocking_call_that_waits_for_it() {
    let name = "a_capture_does_not_wait_for_a_blocking_call_that_waits_for_it";
    let roles = [Stream::wait_for_a_capture_in_a_blocking_call, Stream::capture];
    model(name, 10, Stream::new, &roles, end);
}

#[test]
fn a_call_that_waits_for_captures() {
    let roles = [Stream::call_at_last, Stream::capture_twice];
    model("a_call_that_waits_for_captures", 100, Stream::new, &roles, end);
}

#[test]
fn two_calls_that_wait_for_a_capture() {
    let roles = [Stream::call_at_last, Stream::wait_after_captures, Stream::capture];
    model("two_calls_that_wait_for_a_capture", 500, Stream::new, &roles, end);
}

#[test]
fn a_call_that_waits_between_two_captures() {
    let roles = [Stream::wait_between_captures, Stream::capture_before_the_last];
    model("a_call_that_waits_between_two_captures", 20, Stream::new, &roles, end);
}

#[test]
fn a_stream_that_joins_a_capture_while_it_is_detached() {
    let roles = [Stream::join, Stream::detach];
    model("a_stream_that_joins_a_capture_while_it_is_detached", 20, Stream::new, &roles, end);
}

#[test]
fn a_stream_that_is_named_in_no_call_while_it_is_detached() {
    let roles = [Stream::name_in_no_call, Stream::detach, Stream::capture];
    let name = "a_stream_that_is_named_in_no_call_while_it_is_detached";
    model(name, 100, Stream::new, &roles, end);
}

#[test]
fn a_call_beside_a_stream_that_joins_and_is_detached() {
    let roles = [Stream::join, Stream::detach, Stream::call_at_last];
    model("a_call_beside_a_stream_that_joins_and_is_detached", 500, Stream::new, &roles, end);
}

#[test]
fn two_captures_that_want_each_others_streams() {
    let roles = [Stream::capture_and_join_second, Stream::capture_second_and_join];
    model("two_captures_that_want_each_others_streams", 20, Stream::new, &roles, end);
}

#[test]
fn a_thread_that_is_alone_and_calls() {
    let roles = [Stream::alone, Stream::call, Stream::alone];
    model("a_thread_that_is_alone_and_calls", 100, Stream::new, &roles, end);
}

#[test]
fn a_thread_that_is_alone_and_a_capture() {
    let roles = [Stream::alone, Stream::capture, Stream::call];
    model("a_thread_that_is_alone_and_a_capture", 500, Stream::new, &roles, end);
}

#[test]
fn a_call_inside_of_a_call_does_not_wait_for_a_thread_that_is_to_be_alone() {
    let name = "a_call_inside_of_a_call_does_not_wait_for_a_thread_that_is_to_be_alone";
    model(name, 20, Stream::new, &[Stream::call_inside, Stream::alone], end);
}
