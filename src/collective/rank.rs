//! One rank of a communicator, its lock and its end.
//!
//! | state | calls | next |
//! | --- | --- | --- |
//! | joined | go to NCCL, under the lock: a communicator is named in one call at a time | lost, gone |
//! | lost, with its reason | are that error | gone |
//!
//! The lock is held over calls that may wait for other ranks on the host, since NCCL takes no second call meanwhile.
//! Several ranks are locked in the order of their addresses.

use crate::device::Device;
use crate::driver::{
    CollectiveError, CollectiveResult, DeviceRange, RawCommunicator, is_forked_child, not_forked,
};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::stream::Stream;
use crate::sync::trusted::{Backoff, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a wait sleeps between two questions once it has asked for a while.
const ROUND: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub(super) struct Rank {
    pub(super) stream: Stream,
    pub(super) number: usize,
    pub(super) ranks: usize,
    pub(super) timeout: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) enum State {
    Joined(RawCommunicator),
    Lost(Error),
}

impl State {
    pub(super) fn joined(&self) -> Result<RawCommunicator> {
        match self {
            Self::Joined(raw) => Ok(*raw),
            Self::Lost(error) => Err(error.clone()),
        }
    }
}

impl Rank {
    pub(super) fn new(
        stream: Stream,
        number: usize,
        ranks: usize,
        timeout: Duration,
        raw: RawCommunicator,
    ) -> Self {
        Self { stream, number, ranks, timeout, state: Mutex::new(State::Joined(raw)) }
    }

    pub(super) fn device(&self) -> &Device {
        self.stream.device()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Calls NCCL with the communicator, which is aborted if it is of no use after that.
    pub(super) fn call<R>(
        &self,
        wanted: &str,
        call: impl FnOnce(RawCommunicator) -> CollectiveResult<R>,
    ) -> Result<R> {
        // In the child of a fork the lock may be held for good.
        not_forked("a communicator")?;
        let state = self.lock();
        let called = call(state.joined()?);
        drop(state);
        called.map_err(|error| self.fail(error, wanted))
    }

    /// The error of a call, which aborts the communicator if it is fatal.
    pub(super) fn fail(&self, error: CollectiveError, wanted: &str) -> Error {
        let is_fatal = error.is_fatal();
        let error = error.into_error(format_args!(
            "{wanted} as rank {} of {} on {}",
            self.number, self.ranks, self.stream
        ));
        if is_fatal { self.abort(error) } else { error }
    }

    /// Aborts the communicator for `error`, unless it is lost already: returns why it is.
    pub(super) fn abort(&self, error: Error) -> Error {
        if is_forked_child() {
            return error;
        }
        let mut state = self.lock();
        let raw = match &*state {
            State::Lost(first) => return first.clone(),
            State::Joined(raw) => *raw,
        };
        *state = State::Lost(error.clone());
        drop(state);
        crate::debug_log::event!(warn, rank = self.number, ranks = self.ranks, %error, "communicator aborted");
        // SAFETY: taken out of the state above, so no other call has it or gets it.
        let _ = unsafe { self.device().driver().communicator_abort(raw) };
        error
    }

    /// The error of a communicator that another rank, or a time, has made useless.
    pub(super) fn check(&self) -> Result<()> {
        let driver = self.device().driver();
        // SAFETY: the lock keeps the communicator, which is joined.
        self.call("looking at a communicator", |raw| unsafe { driver.communicator_check(raw) })
    }

    /// Waits until the stream has passed `event`. Then the communicator is asked; if it is lost, or the time over, it is
    /// aborted.
    pub(super) fn wait(&self, event: &Event, timeout: Duration) -> Result<()> {
        let (begun, backoff) = (Instant::now(), Backoff::new());
        loop {
            let is_complete = event.is_complete()?;
            self.check()?;
            if is_complete {
                return Ok(());
            }
            if begun.elapsed() >= timeout {
                let what = format!(
                    "rank {} of {} on {} waited {timeout:?} for its collectives",
                    self.number, self.ranks, self.stream
                );
                return Err(self.abort(lost(what)));
            }
            match backoff.is_completed() {
                true => std::thread::sleep(ROUND),
                false => backoff.snooze(),
            }
        }
    }

    /// Registers a range, where the communicator is not lost.
    pub(super) fn register(&self, range: DeviceRange) -> Result<Option<u64>> {
        let driver = self.device().driver();
        let state = self.lock();
        let Ok(raw) = state.joined() else { return Ok(None) };
        // SAFETY: the lock keeps the communicator; the caller's range is memory until `deregister`.
        let registered = unsafe { driver.communicator_register(raw, range) };
        drop(state);
        registered.map(Some).map_err(|error| self.fail(error, "registering memory"))
    }

    /// Takes a registration back, which a lost communicator has not any more.
    ///
    /// # Safety
    ///
    /// `handle` came from [`register`](Self::register), is given once, and the work on its range has run.
    pub(super) unsafe fn deregister(&self, handle: u64) {
        let driver = self.device().driver();
        let state = self.lock();
        let Ok(raw) = state.joined() else { return };
        // SAFETY: the lock keeps the communicator; the caller's promise.
        let taken_back = unsafe { driver.communicator_deregister(raw, handle) };
        drop(state);
        if let Err(error) = taken_back {
            let rank = self.number;
            crate::debug_log::event!(error, rank, %error, "memory could not be deregistered");
        }
    }
}

/// The error of a rank that did not come.
pub(super) fn lost(what: String) -> Error {
    Error::new(ErrorKind::CommunicatorLost, what).with_advice(
        "see what became of the other ranks, and make a new communicator of those that are left",
    )
}

impl Drop for Rank {
    fn drop(&mut self) {
        if is_forked_child() {
            return;
        }
        let State::Joined(raw) = *self.lock() else { return };
        // Not while a panic unwinds: the other ranks may wait for a call that will not come.
        let passed = !std::thread::panicking()
            && self.stream.record().is_ok_and(|event| self.wait(&event, self.timeout).is_ok());
        // `wait` aborts what it gives up.
        if matches!(*self.lock(), State::Lost(_)) {
            return;
        }
        let driver = self.device().driver();
        // SAFETY: this is the last handle, and the communicator is not lost.
        let ended = unsafe {
            match passed {
                true => driver.communicator_destroy(raw),
                false => driver.communicator_abort(raw),
            }
        };
        if let Err(error) = ended {
            let rank = self.number;
            crate::debug_log::event!(error, rank, %error, "a communicator did not end");
        }
    }
}
