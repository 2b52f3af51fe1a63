//! Epochs in place of an event for each free.
//!
//! A stream's epoch is a number that a free reads and an event closes.
//!
//! # State table of epoch `e` of stream `S`
//!
//! | `current` | `closed` | `completed` | memory that `S` freed in `e` |
//! | --- | --- | --- | --- |
//! | `e` | no event for it | below `e` | is `S`'s; for another stream `e` has to be closed first |
//! | above `e` | an event for `e` or later | below `e` | is that of a stream with `ordered[S] >= e`; another one waits for the event first |
//! | above `e` | the record failed | below `e` | waits for the next close, whose event covers `e` too |
//! | above `e` | any | `e` or above | is any stream's |
//! | `e`, and `S` is gone | the last event, for `e` | below `e` | is that of a stream which waits for the event |
//!
//! `current` rises with each close, under the lock of [`ClosedEpochs`]; the last close leaves it, and the
//! next stream of the slot raises it. `completed` only rises. `ordered[S]` rises, or is forgotten for another
//! stream's ([`Ordered`]): then it counts as 0.
//!
//! INV-POOL-1, *bump, then record*: a close raises `current`, then reads the clock, then records the event.
//! A thread that read the old number gave the stream its last work before the bump, so before the
//! record, which so covers it. A late event may cover later work too: a false wait, never a race.
//!
//! INV-POOL-2, *wait, then publish*: `ordered[S] >= e` of a stream is stored after that stream was made to
//! wait for an event which covers `e`.

use super::block::SlotId;
use super::ordered::Ordered;
use super::upstream::{Counted, Failure, Upstream};
use crate::sync::{Arc, AtomicUsize, Mutex, MutexGuard, Ordering, trusted};
use std::collections::VecDeque;
use std::ops::Deref;

/// Closed epochs whose events a stream keeps; a later event serves for an older epoch as well.
const RING: usize = 8;

/// How many epochs were closed, in all pools of the process. Relaxed: it says which came first where that matters little.
static CLOSES: trusted::AtomicU64 = trusted::AtomicU64::new(0);

/// On a line of the cache of its own: each free reads it, and what is beside it changes more often. One line,
/// for there is one for each stream.
#[repr(align(64))]
struct Line<T>(T);

impl<T> Deref for Line<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// One stream's epochs, and those of other streams that it is ordered after.
pub(super) struct StreamEpochs<U: Upstream> {
    /// The epoch that frees are stamped with.
    current: Line<AtomicUsize>,
    /// The last epoch that the device was seen to have passed.
    completed: AtomicUsize,
    /// What this stream is ordered after.
    ordered: Ordered,
    record: Mutex<ClosedEpochs<U>>,
}

/// What the lock of the epochs protects. It is held over the driver calls that close an epoch.
pub(super) struct ClosedEpochs<U: Upstream> {
    /// `None` once the stream is gone: then every epoch is closed.
    pub(super) stream: Option<U::Stream>,
    closed: VecDeque<ClosedEpoch<U::Event>>,
    /// Events that nothing else has, to be recorded again.
    spare: Vec<(Arc<U::Event>, Clock)>,
}

/// Epochs by slot.
type Clock = Vec<(SlotId, usize)>;

struct ClosedEpoch<E> {
    epoch: usize,
    /// Its number among all closes.
    number: u64,
    /// Shared with threads that wait for it without the lock.
    event: Arc<E>,
    /// What the stream was ordered after when the event was recorded, or before.
    clock: Clock,
}

/// The first epoch. Memory of stamp 0 is complete.
const FIRST_EPOCH: usize = 1;

impl<U: Upstream> StreamEpochs<U> {
    pub(super) fn new(stream: Option<U::Stream>) -> Self {
        let record = ClosedEpochs { stream, closed: VecDeque::new(), spare: Vec::new() };
        Self {
            current: Line(AtomicUsize::new(FIRST_EPOCH)),
            completed: AtomicUsize::new(0),
            ordered: Ordered::new(),
            record: Mutex::new(record),
        }
    }

    /// The stamp of a free whose work was given to the stream before this call.
    #[inline]
    pub(super) fn current(&self) -> usize {
        // Relaxed: had a close recorded its event before our last work, its bump would have
        // happened before this read, by way of the driver's own order on the stream.
        self.current.load(Ordering::Relaxed)
    }

    pub(super) fn completed(&self) -> usize {
        // Acquire: after what the device was seen to have done.
        self.completed.load(Ordering::Acquire)
    }

    /// The last epoch of `source` that this stream is ordered after.
    pub(super) fn ordered_after(&self, source: SlotId) -> usize {
        self.ordered.epoch_of(source)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ClosedEpochs<U>> {
        self.record.lock()
    }

    /// For what waits for no lock.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, ClosedEpochs<U>>> {
        self.record.try_lock()
    }

    /// Closes the current epoch: the event covers every free so far.
    pub(super) fn close(
        &self,
        upstream: &Counted<U>,
        record: &mut ClosedEpochs<U>,
    ) -> Result<(), Failure<U::Error>> {
        self.close_and_advance(upstream, record, 1)
    }

    /// Closes the epoch of a stream that is given no more work, and returns the stream. What becomes
    /// the slot's own from now on is of this epoch, too: the stream was ordered after it before.
    pub(super) fn close_last(
        &self,
        upstream: &Counted<U>,
        record: &mut ClosedEpochs<U>,
    ) -> Result<Option<U::Stream>, Failure<U::Error>> {
        self.close_and_advance(upstream, record, 0)?;
        Ok(record.stream.take())
    }

    /// Begins the epoch of the slot's next stream, before anybody knows that stream's slot.
    pub(super) fn begin_for_next_stream(&self) {
        self.current.fetch_add(1, Ordering::Relaxed);
    }

    fn close_and_advance(
        &self,
        upstream: &Counted<U>,
        record: &mut ClosedEpochs<U>,
        advance: usize,
    ) -> Result<(), Failure<U::Error>> {
        let Some(stream) = &record.stream else { return Ok(()) };
        if upstream.is_capturing(stream)? {
            return Err(Failure::Captured);
        }
        // INV-POOL-1.
        let epoch = self.current.load(Ordering::Relaxed);
        self.current.store(epoch + advance, Ordering::Relaxed);
        let (mut spare, clock) = record.spare.pop().unzip();
        let mut clock: Clock = clock.unwrap_or_default();
        clock.clear();
        clock.extend(self.ordered.iter());
        if let Some(event) = spare.as_mut().and_then(Arc::get_mut) {
            upstream.record_again(stream, event)?;
        } else {
            spare = None;
        }
        let event = match spare {
            Some(event) => event,
            None => Arc::new(upstream.record(stream)?),
        };
        let number = CLOSES.fetch_add(1, trusted::Ordering::Relaxed);
        record.closed.push_back(ClosedEpoch { epoch, number, event, clock });
        if record.closed.len() > RING {
            record.drop_oldest();
        }
        Ok(())
    }

    /// Closes the current epoch unless an earlier close covers `stamp`.
    pub(super) fn ensure_closed(
        &self,
        upstream: &Counted<U>,
        record: &mut ClosedEpochs<U>,
        stamp: usize,
    ) -> Result<(), Failure<U::Error>> {
        if record.newest() >= stamp || self.completed() >= stamp {
            return Ok(());
        }
        self.close(upstream, record)
    }

    /// Asks the device how far it is.
    pub(super) fn poll(&self, upstream: &Counted<U>, record: &mut ClosedEpochs<U>) {
        while let Some(oldest) = record.closed.front() {
            // A question that fails is answered later, or never: the memory stays with its stream.
            if !matches!(upstream.is_passed(&oldest.event), Ok(true)) {
                break;
            }
            self.completed.fetch_max(oldest.epoch, Ordering::Release);
            if record.stream.is_none() && record.closed.len() == 1 {
                // The next stream in the slot waits for this event.
                break;
            }
            record.drop_oldest();
        }
    }

    /// Whether the device is past `stamp`, by an event that covers it, which is recorded if there is none.
    pub(super) fn has_passed(
        &self,
        upstream: &Counted<U>,
        stamp: usize,
    ) -> Result<bool, Failure<U::Error>> {
        let mut record = self.lock();
        if self.completed() >= stamp {
            return Ok(true);
        }
        self.ensure_closed(upstream, &mut record, stamp)?;
        let closed = record.covering(stamp).ok_or(Failure::Gone)?;
        let passed = upstream.is_passed(&closed.event)?;
        if passed {
            self.completed.fetch_max(closed.epoch, Ordering::Release);
        }
        Ok(passed)
    }

    /// Drops the events of epochs that the device has passed, and those that were kept to be used again.
    pub(super) fn release_completed(&self, upstream: &Counted<U>) {
        let mut record = self.lock();
        self.poll(upstream, &mut record);
        record.spare = Vec::new();
        record.closed.shrink_to_fit();
    }

    /// Blocks until the device has passed every epoch up to `stamp`. The lock is free meanwhile.
    pub(super) fn synchronize(
        &self,
        upstream: &Counted<U>,
        stamp: usize,
    ) -> Result<(), Failure<U::Error>> {
        let (epoch, event) = {
            let mut record = self.lock();
            if self.completed() >= stamp {
                return Ok(());
            }
            self.ensure_closed(upstream, &mut record, stamp)?;
            let Some(closed) = record.covering(stamp) else { return Err(Failure::Gone) };
            (closed.epoch, closed.event.clone())
        };
        upstream.synchronize(&event)?;
        self.completed.fetch_max(epoch, Ordering::Release);
        Ok(())
    }

    /// Makes `target`, whose stream is `stream`, ordered after `stamp` of this one, which is that of
    /// the slot `own`.
    pub(super) fn make_wait(
        &self,
        upstream: &Counted<U>,
        (own, stamp): (SlotId, usize),
        (target, stream): (&Self, &U::Stream),
    ) -> Result<(), Failure<U::Error>> {
        let mut record = self.lock();
        if self.completed() >= stamp || target.ordered_after(own) >= stamp {
            return Ok(());
        }
        self.ensure_closed(upstream, &mut record, stamp)?;
        let Some(closed) = record.covering(stamp) else { return Err(Failure::Gone) };
        upstream.wait(stream, &closed.event)?;
        // INV-POOL-2: a thread that sees this may use the memory on `target` without a wait of its own.
        for (source, epoch) in &closed.clock {
            target.ordered.raise(*source, *epoch);
        }
        // Last, so that none of those takes its entry.
        target.ordered.raise(own, closed.epoch);
        Ok(())
    }
}

impl<U: Upstream> ClosedEpochs<U> {
    /// The newest epoch that an event covers.
    pub(super) fn newest(&self) -> usize {
        self.closed.back().map_or(0, |closed| closed.epoch)
    }

    /// Entries of the clock of the newest event.
    #[cfg(test)]
    pub(super) fn clock_entries(&self) -> usize {
        self.closed.back().map_or(0, |closed| closed.clock.len())
    }

    fn drop_oldest(&mut self) {
        if let Some(mut oldest) = self.closed.pop_front()
            && Arc::get_mut(&mut oldest.event).is_some()
        {
            self.spare.push((oldest.event, oldest.clock));
        }
    }

    /// The number of the close that covers `stamp`, among all closes of the process.
    pub(super) fn closed_at(&self, stamp: usize) -> Option<u64> {
        self.covering(stamp).map(|closed| closed.number)
    }

    /// An event that covers `stamp`.
    fn covering(&self, stamp: usize) -> Option<&ClosedEpoch<U::Event>> {
        self.closed.iter().find(|closed| closed.epoch >= stamp)
    }

    /// Makes `stream` wait for all that the stream which is gone had been given.
    pub(super) fn wait_for_last(
        &self,
        upstream: &Counted<U>,
        stream: &U::Stream,
    ) -> Result<(), U::Error> {
        self.closed.back().map_or(Ok(()), |last| upstream.wait(stream, &last.event))
    }
}
