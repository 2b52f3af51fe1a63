//! Epochs in place of an event for each free.
//!
//! A stream's epoch is a number that a free reads and an event closes. *Bump, then record*: who read
//! the old number gave the stream its last work before the bump, so before the record, which so
//! covers it. A late event may cover later work too: a false wait, never a race.

use super::chunks::Chunks;
use super::upstream::{Failure, Upstream};
use crate::heap::Tag;
use crate::sync::{AtomicUsize, CachePadded, MODELLED, Mutex, MutexGuard, Ordering, trusted};
use std::collections::VecDeque;

/// Closed epochs whose events a stream keeps; a later event serves for an older epoch as well.
const RING: usize = 8;

/// One stream's time, and what it knows of the others'.
pub(super) struct Epochs<U: Upstream> {
    /// The epoch that frees are stamped with.
    open: CachePadded<AtomicUsize>,
    /// The last epoch that the device was seen to have passed.
    completed: AtomicUsize,
    /// By the other streams' tags: the last epoch that this one is ordered after.
    ordered: Chunks<AtomicUsize>,
    /// The tags whose epoch there is not 0. One that is just coming may lack: a clock that knows less
    /// makes for a false wait, never a race.
    known: trusted::Mutex<Vec<Tag>>,
    record: Mutex<Record<U>>,
}

/// The source's own lock: held over the driver calls that close an epoch.
pub(super) struct Record<U: Upstream> {
    /// `None` once the stream is gone: then every epoch is closed.
    pub(super) stream: Option<U::Stream>,
    closed: VecDeque<Closed<U::Event>>,
    spare: Vec<(U::Event, Clock)>,
}

/// Epochs by tag, of those tags alone that have one: streams are many, and few wait for many others.
type Clock = Vec<(Tag, usize)>;

struct Closed<E> {
    epoch: usize,
    event: E,
    /// What the stream was ordered after when the event was recorded, or before.
    clock: Clock,
}

/// The first epoch. Memory of stamp 0 is complete.
const FIRST: usize = 1;

impl<U: Upstream> Epochs<U> {
    pub(super) fn new(stream: Option<U::Stream>) -> Self {
        let record = Record { stream, closed: VecDeque::new(), spare: Vec::new() };
        Self {
            open: CachePadded::new(AtomicUsize::new(FIRST)),
            completed: AtomicUsize::new(0),
            ordered: Chunks::new(),
            known: trusted::Mutex::new(Vec::new()),
            record: Mutex::new(record),
        }
    }

    /// The stamp of a free whose work was given to the stream before this call.
    #[inline]
    pub(super) fn open(&self) -> usize {
        // Relaxed: had a close recorded its event before our last work, its bump would have
        // happened before this read, by way of the driver's own order on the stream.
        self.open.load(Ordering::Relaxed)
    }

    pub(super) fn completed(&self) -> usize {
        // Acquire: after what the device was seen to have done.
        self.completed.load(Ordering::Acquire)
    }

    /// The last epoch of `source` that this stream is ordered after.
    pub(super) fn ordered_after(&self, source: Tag) -> usize {
        // Acquire: the wait that was published is enqueued before whatever the caller gives.
        self.ordered.get(source as usize).map_or(0, |epoch| epoch.load(Ordering::Acquire))
    }

    fn raise(&self, source: Tag, epoch: usize) {
        let order = if cfg!(aquifer_fault = "order_relaxed") {
            Ordering::Relaxed
        } else {
            Ordering::Release
        };
        if let Some(known) = self.ordered.get_or_make(source as usize)
            // loom loses races of a write that its own thread's load comes before.
            && (MODELLED || known.load(Ordering::Relaxed) < epoch)
            // The first one of this source.
            && known.fetch_max(epoch, order) == 0
        {
            self.known.lock().push(source);
        }
    }

    /// What this stream is ordered after now.
    fn read_clock(&self, clock: &mut Clock) {
        clock.clear();
        clock.extend(self.known.lock().iter().map(|tag| (*tag, 0)));
        for (tag, epoch) in clock {
            *epoch = self.ordered_after(*tag);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Record<U>> {
        self.record.lock()
    }

    /// Closes the open epoch: every free so far is covered by the event.
    pub(super) fn close(
        &self,
        upstream: &U,
        record: &mut Record<U>,
    ) -> Result<(), Failure<U::Error>> {
        let Some(stream) = &record.stream else { return Ok(()) };
        if upstream.is_capturing(stream)? {
            return Err(Failure::Captured);
        }
        let epoch = self.open.load(Ordering::Relaxed);
        #[cfg(not(aquifer_fault = "record_before_bump"))]
        self.open.store(epoch + 1, Ordering::Relaxed);
        let (spare, mut clock) = match record.spare.pop() {
            Some((event, clock)) => (Some(event), clock),
            None => (None, Vec::new()),
        };
        #[cfg(not(aquifer_fault = "clock_after_record"))]
        self.read_clock(&mut clock);
        let event = upstream.record(stream, spare)?;
        #[cfg(aquifer_fault = "clock_after_record")]
        {
            // loom does not see the lock of the clock, before which another thread may come.
            crate::sync::yield_now();
            self.read_clock(&mut clock);
        }
        #[cfg(aquifer_fault = "record_before_bump")]
        self.open.store(epoch + 1, Ordering::Relaxed);
        record.closed.push_back(Closed { epoch, event, clock });
        if record.closed.len() > RING
            && let Some(oldest) = record.closed.pop_front()
        {
            record.spare.push((oldest.event, oldest.clock));
        }
        Ok(())
    }

    /// Closes the open epoch unless an earlier close covers `stamp`.
    pub(super) fn close_past(
        &self,
        upstream: &U,
        record: &mut Record<U>,
        stamp: usize,
    ) -> Result<(), Failure<U::Error>> {
        if record.newest() >= stamp || self.completed() >= stamp {
            return Ok(());
        }
        self.close(upstream, record)
    }

    /// Asks the device how far it is. Returns the last epoch known to be complete.
    pub(super) fn poll(&self, upstream: &U, record: &mut Record<U>) -> usize {
        while let Some(oldest) = record.closed.front() {
            // A question that fails is answered later, or never: the memory stays with its stream.
            if !matches!(upstream.is_passed(&oldest.event), Ok(true)) {
                break;
            }
            let epoch = oldest.epoch + usize::from(cfg!(aquifer_fault = "completed_too_early"));
            if record.stream.is_none() && record.closed.len() == 1 {
                // The last event of a stream that is gone: its heir waits for it.
                self.completed.fetch_max(epoch, Ordering::Release);
                break;
            }
            if let Some(passed) = record.closed.pop_front() {
                record.spare.push((passed.event, passed.clock));
            }
            self.completed.fetch_max(epoch, Ordering::Release);
        }
        self.completed()
    }

    /// Blocks until the device has passed every epoch up to `stamp`.
    pub(super) fn synchronize(
        &self,
        upstream: &U,
        record: &mut Record<U>,
        stamp: usize,
    ) -> Result<(), Failure<U::Error>> {
        if self.completed() >= stamp {
            return Ok(());
        }
        self.close_past(upstream, record, stamp)?;
        let Some(closed) = record.covering(stamp) else { return Err(Failure::Gone) };
        upstream.synchronize(&closed.event)?;
        self.completed.fetch_max(closed.epoch, Ordering::Release);
        Ok(())
    }

    /// Makes `target`, whose stream is `stream`, ordered after `stamp` of this one. The caller holds
    /// this one's record.
    pub(super) fn order(
        &self,
        upstream: &U,
        record: &mut Record<U>,
        (own, stamp): (Tag, usize),
        (target, stream): (&Self, &U::Stream),
    ) -> Result<bool, Failure<U::Error>> {
        if self.completed() >= stamp || target.ordered_after(own) >= stamp {
            return Ok(false);
        }
        self.close_past(upstream, record, stamp)?;
        let Some(closed) = record.covering(stamp) else { return Err(Failure::Gone) };
        #[cfg(aquifer_fault = "order_before_wait")]
        target.raise(own, closed.epoch);
        #[cfg(not(any(
            aquifer_fault = "skip_stream_wait",
            aquifer_fault = "failed_wait_publishes"
        )))]
        upstream.wait(stream, &closed.event)?;
        #[cfg(aquifer_fault = "failed_wait_publishes")]
        let _ = upstream.wait(stream, &closed.event);
        // Only now: who sees this may use the memory on `target` without a wait of his own.
        target.raise(own, closed.epoch);
        for (source, epoch) in &closed.clock {
            if *epoch > 0 {
                target.raise(*source, *epoch);
            }
        }
        Ok(true)
    }
}

impl<U: Upstream> Record<U> {
    /// The newest epoch that an event covers.
    pub(super) fn newest(&self) -> usize {
        self.closed.back().map_or(0, |closed| closed.epoch)
    }

    /// Entries of the clock of the newest event.
    #[cfg(test)]
    pub(super) fn clock_entries(&self) -> usize {
        self.closed.back().map_or(0, |closed| closed.clock.len())
    }

    /// An event that covers `stamp`.
    fn covering(&self, stamp: usize) -> Option<&Closed<U::Event>> {
        let closed = self.closed.iter().find(|closed| closed.epoch >= stamp);
        // What comes home to a stream that is gone is made its own at a later stamp than its last
        // event's. That stream was ordered after it, so what is behind the event is, too.
        #[cfg(not(aquifer_fault = "gone_and_uncovered"))]
        let closed = closed.or_else(|| self.closed.back().filter(|_| self.stream.is_none()));
        closed
    }

    /// Makes `stream` wait for all that the stream which is gone had been given.
    pub(super) fn inherit(&self, upstream: &U, stream: &U::Stream) -> Result<(), U::Error> {
        match self.closed.back() {
            Some(last) => upstream.wait(stream, &last.event),
            None => Ok(()),
        }
    }
}
