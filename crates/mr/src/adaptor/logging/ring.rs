//! A bounded queue of many producers and one consumer.
//!
//! In a queue with many consumers each takes an atomic step, which waits for the record before the next
//! can be fetched. Each also writes to the cache line of each record. Here the consumer only reads the
//! records, several at a time as far as the processor is concerned. It publishes its position now and
//! then. A busy program's records then come as fast as cache lines move between processors.
//!
//! # State table
//!
//! Records are numbered from 0, in order. Record `n` uses slot `n % slots`.
//!
//! | word | writer | meaning |
//! |---|---|---|
//! | `enqueued` | producers, by compare-and-swap | numbers below it are claimed |
//! | `Slot::words` | the producer that claimed the number | the record |
//! | `Slot::sequence` | the same producer, after the words | `n + 1`: record `n` is complete |
//! | `dequeued` | the consumer | numbers below it are read |
//!
//! | slot of record `n` | `enqueued` | `sequence` | `dequeued` | next |
//! |---|---|---|---|---|
//! | free | `<= n` | not `n + 1` | `<= n` | claimed, by a producer |
//! | claimed | `> n` | not `n + 1` | `<= n` | complete, by the same producer |
//! | complete | `> n` | `n + 1` | `<= n` | read, by the consumer |
//! | read | `> n` | `n + 1` | `> n` | free, for record `n + slots` |
//!
//! - INV-1: `enqueued - dequeued <= capacity <= slots`, so a claimed slot has been read.
//! - INV-2: while `sequence` is `n + 1` and `dequeued <= n`, `words` is record `n`.
//! - INV-3: only one thread drains at a time.

use super::record::{Record, WORDS};
use crate::sync::trusted::Backoff;
use crate::sync::{AtomicU64, CachePadded, MODELLED, Ordering, yield_now};

/// The most records between two stores of `dequeued`.
const PUBLISH_EVERY: u64 = 64;

/// A record in a cache line of its own.
#[repr(align(64))]
struct Slot {
    words: [AtomicU64; WORDS],
    sequence: AtomicU64,
}

const _: () = assert!(MODELLED || size_of::<Slot>() == 64);

pub(super) struct Ring {
    /// A power of two of them.
    slots: Box<[Slot]>,
    capacity: u64,
    /// The consumer publishes its position at numbers that are 0 in these bits.
    publish_mask: u64,
    enqueued: CachePadded<AtomicU64>,
    dequeued: CachePadded<AtomicU64>,
}

impl Ring {
    /// For 1 to 2^62 records.
    pub(super) fn new(capacity: usize) -> Self {
        let slot = |_| Slot { words: Default::default(), sequence: AtomicU64::new(0) };
        let slots = capacity.next_power_of_two();
        Self {
            slots: (0..slots).map(slot).collect(),
            capacity: capacity as u64,
            publish_mask: (slots as u64 / 8).clamp(1, PUBLISH_EVERY) - 1,
            enqueued: CachePadded::new(AtomicU64::new(0)),
            dequeued: CachePadded::new(AtomicU64::new(0)),
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// About how many records there are.
    #[inline]
    pub(super) fn len(&self) -> usize {
        // Saturating: `dequeued` is loaded later, and may be greater.
        let (enqueued, dequeued) =
            (self.enqueued.load(Ordering::Relaxed), self.dequeued.load(Ordering::Relaxed));
        enqueued.saturating_sub(dequeued) as usize
    }

    #[inline]
    fn slot(&self, number: u64) -> Option<&Slot> {
        // Never `None`: the number of slots is a power of two.
        self.slots.get(number as usize & (self.slots.len() - 1))
    }

    /// Appends a record, or gives it back if there is no room.
    #[inline]
    pub(super) fn push(&self, record: Record) -> Result<(), Record> {
        let mut number = self.enqueued.load(Ordering::Relaxed);
        loop {
            // Acquire: pairs with the stores of `dequeued`, so the slot was read (INV-1).
            let dequeued = self.dequeued.load(Ordering::Acquire);
            // Saturating: an old `number` may be less, and then the exchange fails.
            if number.saturating_sub(dequeued) >= self.capacity {
                return Err(record);
            }
            let claimed = self.enqueued.compare_exchange_weak(
                number,
                number + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match claimed {
                Ok(_) => break,
                Err(now) => number = now,
            }
        }
        let Some(slot) = self.slot(number) else { return Err(record) };
        for (word, value) in slot.words.iter().zip(record.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        // Release: publishes the words (INV-2).
        slot.sequence.store(number + 1, Ordering::Release);
        Ok(())
    }

    /// Passes up to `most` records in order to `take`, and gives their number. It stops where there
    /// are no more, and sees every record whose push happened before the call. Only one thread may
    /// call it (INV-3), since a second would read the same records.
    pub(super) fn drain(&self, most: usize, mut take: impl FnMut(Record)) -> usize {
        let first = self.dequeued.load(Ordering::Relaxed);
        let mut number = first;
        while number - first < most as u64
            && let Some(slot) = self.slot(number)
        {
            if slot.sequence.load(Ordering::Acquire) != number + 1 {
                self.dequeued.store(number, Ordering::Release);
                if !self.wait_if_claimed(number, slot) {
                    break;
                }
            }
            let record =
                Record::from_words(slot.words.each_ref().map(|word| word.load(Ordering::Relaxed)));
            number += 1;
            // Before `take`, which may push a record on this thread.
            if number & self.publish_mask == 0 {
                self.dequeued.store(number, Ordering::Release);
            }
            take(record);
        }
        // Release: the slots have been read.
        self.dequeued.store(number, Ordering::Release);
        (number - first) as usize
    }

    /// Waits until a claimed record is complete, since its producer may be preempted. `false` if the number
    /// is not claimed.
    #[cold]
    fn wait_if_claimed(&self, number: u64, slot: &Slot) -> bool {
        if self.enqueued.load(Ordering::Acquire) == number {
            return false;
        }
        let backoff = Backoff::new();
        while slot.sequence.load(Ordering::Acquire) != number + 1 {
            backoff.snooze();
            if MODELLED {
                yield_now();
            }
        }
        true
    }
}

crate::sync::for_models! {
    /// A ring of records, each of which has one number in all of its words.
    #[allow(unreachable_pub, missing_debug_implementations)]
    pub struct NumberRing(Ring);

    #[allow(unreachable_pub)]
    impl NumberRing {
        /// For `capacity` records.
        pub fn new(capacity: usize) -> Self {
            Self(Ring::new(capacity))
        }

        /// Whether there was room.
        pub fn push(&self, number: u32) -> bool {
            let of = u64::from(number);
            let action = super::record::Action::Free;
            let (thread, location) = (number, number);
            let (start, end, address, bytes, stream) = (of, of, of, of, of);
            let record =
                Record { action, thread, location, start, end, address, bytes, stream };
            self.0.push(record).is_ok()
        }

        /// The numbers of the records that [`Ring::drain`] passes on.
        pub fn drain(&self, most: usize, mut take: impl FnMut(u32)) {
            self.0.drain(most, |record| {
                let Record { action: _, thread, location, start, end, address, bytes, stream } = record;
                let whole = location == thread
                    && [start, end, address, bytes, stream].iter().all(|word| *word == thread.into());
                assert!(whole, "a record is of one piece: {record:?}");
                take(thread);
            });
        }
    }
}

#[cfg(test)]
mod tests;
