//! One rank of a communicator, its lock and its end.
//!
//! | state | calls | next |
//! | --- | --- | --- |
//! | joined | go to NCCL, under the lock: a communicator is named in one call at a time | lost, ended |
//! | lost, with its reason | are that error | - |
//! | ended, with its last handle | there are none; registered memory is free of it | - |
//!
//! The lock is held over calls that may wait for other ranks on the host, since NCCL takes no
//! second call meanwhile. It is also held until a communicator that is aborted or ended is gone,
//! since it has registered memory until then. Several ranks are locked in the order of their
//! addresses. No event is emitted under the lock.

use crate::debug_log::{DeferEvents, defer_events, deferred_event};
use crate::device::Device;
use crate::device_calls::calls_of;
use crate::driver::{BackendKind, DeviceRange, is_forked_child, may_not_call, not_forked};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::inside::StreamInside;
use crate::inside::{Patience, StreamCall};
use crate::resource::asleep::Collectives;
use crate::stream::Stream;
use crate::sync::trusted::{Backoff, Mutex, MutexGuard};
use aquifer_collective::{CollectiveError, CollectiveResult, RawCommunicator};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// The name of the ranks' work in the error of a capture, which refuses it.
pub(super) const COLLECTIVE: &str = "a collective";

/// The time that a wait sleeps between two questions once it has asked for a while.
const ROUND: Duration = Duration::from_micros(50);

/// The most collectives by which a rank runs ahead of its device, unless one group has more.
/// A launch on a queue that is full waits without an end where another rank is lost. A
/// longer group cannot be given in parts, since NCCL wants one grouping of all ranks,
/// and a send apart from its receive waits for good.
const MOST_AHEAD: usize = 256;

/// The least number of collectives between two marks.
const PER_MARK: usize = 128;

#[derive(Debug)]
pub(super) struct Rank {
    pub(super) stream: Stream,
    pub(super) number: usize,
    pub(super) ranks: usize,
    pub(super) timeout: Duration,
    state: Mutex<RankState>,
}

#[derive(Debug)]
pub(super) struct RankState {
    membership: Membership,
    /// Collectives that the stream may not have passed.
    ahead: usize,
    /// The collectives of `ahead` since the last mark.
    unmarked: usize,
    /// Points of the stream, the oldest first.
    marks: VecDeque<Mark>,
}

/// A point of the stream, and the number of collectives between the mark before and this one.
#[derive(Debug)]
struct Mark {
    event: Event,
    collectives: usize,
}

#[derive(Debug)]
enum Membership {
    Joined(RawCommunicator),
    Lost(Error),
    Ended,
}

/// A rank that is locked. The events of its time are emitted when it is not.
pub(super) struct LockedRank<'a> {
    /// The field is the first, so that the lock is released before the events are emitted.
    state: MutexGuard<'a, RankState>,
    _held: Option<DeferEvents>,
}

impl Deref for LockedRank<'_> {
    type Target = RankState;

    #[inline]
    fn deref(&self) -> &RankState {
        &self.state
    }
}

impl DerefMut for LockedRank<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut RankState {
        &mut self.state
    }
}

impl RankState {
    pub(super) fn joined(&self) -> Result<RawCommunicator> {
        match &self.membership {
            Membership::Joined(raw) => Ok(*raw),
            Membership::Lost(error) => Err(error.clone()),
            Membership::Ended => Err(lost(String::from("the communicator has ended"))),
        }
    }

    /// Whether the device is not too far behind for so many more collectives, all of one group. A group that is longer than
    /// the limit goes where nothing is ahead.
    #[inline]
    pub(super) fn has_room(&self, more: usize) -> bool {
        self.ahead == 0 || self.ahead.saturating_add(more) <= MOST_AHEAD
    }

    /// Counts collectives that the stream was given by `call`.
    #[inline]
    pub(super) fn count(&mut self, collectives: usize, call: &StreamCall<'_>) {
        self.ahead += collectives;
        self.unmarked += collectives;
        if self.unmarked >= PER_MARK {
            // Who waits for room tries again if it fails.
            let _ = self.mark(call);
        }
    }

    /// Marks the stream behind the collectives that no mark is behind.
    fn mark(&mut self, call: &StreamCall<'_>) -> Result<()> {
        let event = call.record()?;
        self.marks.push_back(Mark { event, collectives: std::mem::take(&mut self.unmarked) });
        Ok(())
    }

    /// Marks the stream behind all its collectives. Does nothing where a mark is, since another thread
    /// was first, or the communicator was aborted.
    pub(super) fn mark_all(&mut self, call: &StreamCall<'_>) -> Result<()> {
        if self.unmarked > 0 { self.mark(call) } else { Ok(()) }
    }

    /// Counts the collectives no more that the stream has passed.
    fn forget_passed(&mut self) -> Result<()> {
        while let Some(mark) = self.marks.front()
            && mark.event.is_complete()?
        {
            self.ahead -= mark.collectives;
            self.marks.pop_front();
        }
        Ok(())
    }

    /// Stops counting all collectives, since the communicator has none any more.
    fn forget_all(&mut self) {
        self.marks.clear();
        (self.ahead, self.unmarked) = (0, 0);
    }
}

impl Collectives for Rank {
    fn are_under_way(&self) -> bool {
        // Another thread's call on this rank may wait for others, with the lock.
        match self.try_lock() {
            None => return true,
            Some(state) if state.ahead == 0 => return false,
            Some(_) => {}
        }
        let Ok(call) = self.stream.begin_blocking_call(&Patience::new()) else { return true };
        let Some(mut state) = self.try_lock() else { return true };
        // Of a stream in capture or a lost device the wait for the device tells.
        let asked = call.refuse_capture(COLLECTIVE).and_then(|()| state.mark_all(&call));
        asked.and_then(|()| state.forget_passed()).is_ok() && state.ahead > 0
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
        let membership = Membership::Joined(raw);
        let state = RankState { membership, ahead: 0, unmarked: 0, marks: VecDeque::new() };
        Self { stream, number, ranks, timeout, state: Mutex::new(state) }
    }

    pub(super) fn device(&self) -> &Device {
        self.stream.device()
    }

    #[inline]
    pub(super) fn lock(&self) -> LockedRank<'_> {
        let held = self.hold_events();
        LockedRank { state: self.state.lock(), _held: held }
    }

    pub(super) fn try_lock(&self) -> Option<LockedRank<'_>> {
        let held = self.hold_events();
        self.state.try_lock().map(|state| LockedRank { state, _held: held })
    }

    /// Holds back the events of a simulated device, which emits its findings in the call itself, since
    /// no subscriber is to run under the lock.
    #[inline]
    fn hold_events(&self) -> Option<DeferEvents> {
        (self.device().kind() == BackendKind::Simulated).then(defer_events)
    }

    /// Waits until the device is not too far behind for so many more collectives. The caller is inside of no gate and has no
    /// lock.
    #[cold]
    pub(super) fn wait_for_room(&self, more: usize) -> Result<()> {
        not_forked("a communicator")?;
        loop {
            let mut state = self.lock();
            state.forget_passed()?;
            if state.has_room(more) {
                return Ok(());
            }
            // Not taken out of the state: another thread would have room before the device has passed it.
            let oldest = state.marks.front().map(|mark| mark.event.share());
            drop(state);
            match oldest {
                Some(event) => self.wait(&event, self.timeout)?,
                None => self.mark()?,
            }
        }
    }

    /// Marks the stream behind all its collectives, for a wait until the device has passed them.
    fn mark(&self) -> Result<()> {
        let call = self.begin_call()?;
        self.lock().mark_all(&call)
    }

    /// A call that may give the stream collectives.
    pub(super) fn begin_call(&self) -> Result<StreamCall<'_>> {
        // NCCL may wait for other ranks, whose threads may be about to capture.
        let call = self.stream.begin_blocking_call(&Patience::new())?;
        call.refuse_capture(COLLECTIVE)?;
        Ok(call)
    }

    /// The error of a call, which aborts the communicator if it is fatal. The caller is inside of no gate and has no lock.
    #[cold]
    pub(super) fn fail(&self, error: CollectiveError, wanted: &str) -> Error {
        let is_fatal = error.is_fatal();
        let error = error.into_error(format_args!(
            "{wanted} as rank {} among {} ranks, on {}",
            self.number, self.ranks, self.stream
        ));
        if is_fatal { self.abort(error) } else { error }
    }

    /// Aborts the communicator for `error`, unless it is lost already. Returns the reason why it is lost.
    pub(super) fn abort(&self, error: Error) -> Error {
        if may_not_call() {
            return error;
        }
        let mut state = self.lock();
        let raw = match &state.membership {
            Membership::Lost(first) => return first.clone(),
            Membership::Ended => return error,
            Membership::Joined(raw) => *raw,
        };
        state.membership = Membership::Lost(error.clone());
        state.forget_all();
        // SAFETY: taken out of the state, so no other call has it or gets it.
        let _ = calls_of(self.device()).and_then(|calls| unsafe { calls.communicator_abort(raw) });
        drop(state);
        let (rank, ranks, why) = (self.number, self.ranks, error.to_string());
        // Deferred: a pool above may have its locks, whose memory is being taken back.
        deferred_event!(warn, rank, ranks, %why, "communicator aborted");
        error
    }

    /// The error of a communicator that another rank, or a time, has made useless.
    pub(super) fn check(&self) -> Result<()> {
        not_forked("a communicator")?;
        let state = self.lock();
        let checked = self.ask(&state);
        drop(state);
        checked?.map_err(|error| self.fail(error, "looking at a communicator"))
    }

    fn ask(&self, state: &RankState) -> Result<CollectiveResult<()>> {
        let raw = state.joined()?;
        // SAFETY: the lock keeps the communicator, which is joined.
        Ok(calls_of(self.device()).and_then(|calls| unsafe { calls.communicator_check(raw) }))
    }

    /// Waits until the stream has passed `event`. Then the communicator is asked. If it is lost, or
    /// the time is over, it is aborted.
    pub(super) fn wait(&self, event: &Event, timeout: Duration) -> Result<()> {
        not_forked("a communicator")?;
        let (begun, backoff) = (Instant::now(), Backoff::new());
        loop {
            let is_complete = event.is_complete()?;
            // Another thread's call on this rank may wait for others: the time runs on meanwhile.
            let state = self.try_lock();
            let is_asked = state.is_some();
            if let Some(state) = state {
                let asked = self.ask(&state);
                drop(state);
                asked?.map_err(|error| self.fail(error, "waiting for collectives"))?;
            }
            if is_complete && is_asked {
                return Ok(());
            }
            if begun.elapsed() >= timeout {
                let what = format!(
                    "rank {} among {} ranks, on {}, waited {timeout:?} for its collectives",
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

    /// Waits until the stream has passed the collectives, no longer than the timeout. Returns whether
    /// it has. Otherwise the communicator was aborted, or the stream could not be asked.
    pub(super) fn drain(&self) -> bool {
        let event = self.stream.record_uncaptured().ok().flatten();
        event.is_some_and(|event| self.wait(&event, self.timeout).is_ok())
    }

    /// Registers a range with the communicator that `state` has.
    ///
    /// # Safety
    ///
    /// The conditions of [`communicator_register`](aquifer_collective::CollectiveCalls::communicator_register)
    /// hold for the range.
    pub(super) unsafe fn register(
        &self,
        state: &RankState,
        range: DeviceRange,
    ) -> Result<CollectiveResult<u64>> {
        let raw = state.joined()?;
        // SAFETY: the lock keeps the communicator; the caller's promise.
        Ok(calls_of(self.device())
            .and_then(|calls| unsafe { calls.communicator_register(raw, range) }))
    }

    /// Takes a registration back, which a communicator that is lost or ended has not any more.
    ///
    /// # Safety
    ///
    /// `handle` came from [`register`](Self::register) of this rank, is given once, and the work on its range has run.
    pub(super) unsafe fn deregister(&self, state: &RankState, handle: u64) -> CollectiveResult<()> {
        let Ok(raw) = state.joined() else { return Ok(()) };
        // SAFETY: the lock keeps the communicator; the caller's promise.
        calls_of(self.device())
            .and_then(|calls| unsafe { calls.communicator_deregister(raw, handle) })
    }

    /// Ends the communicator when the stream has passed its collectives, or else by an abort.
    pub(super) fn end(&self) {
        if is_forked_child() || self.lock().joined().is_err() {
            return;
        }
        // Not while a panic unwinds: the other ranks may wait for a call that will not come.
        let passed = !std::thread::panicking() && self.drain();
        let mut state = self.lock();
        let Ok(raw) = state.joined() else { return };
        state.membership = Membership::Ended;
        state.forget_all();
        // SAFETY: taken out of the state, so no other call has it or gets it.
        let ended = calls_of(self.device()).and_then(|calls| unsafe {
            match passed {
                true => calls.communicator_destroy(raw),
                false => calls.communicator_abort(raw),
            }
        });
        drop(state);
        if let Err(error) = ended {
            let (rank, error) = (self.number, error.to_string());
            deferred_event!(error, rank, %error, "a communicator did not end");
        }
    }
}

/// The error of a rank that did not come.
pub(super) fn lost(what: String) -> Error {
    Error::new(ErrorKind::CommunicatorLost, what).with_advice(
        "see what became of the other ranks, and make a new communicator of those that are left",
    )
}
