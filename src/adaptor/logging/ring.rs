//! A bounded queue that many fill and one thread empties.
//!
//! By hand, since the records of a busy program come as fast as cache lines move from one processor
//! to another. Queues with many consumers have each take an atomic step, which waits for the record
//! before the next can be fetched, and write to the line of each record taken. Here the one consumer
//! only reads the records, several at a time as far as the processor is concerned, and says now and
//! then how far it has come.

use super::record::{Record, WORDS};
use crate::sync::trusted::Backoff;
use crate::sync::{AtomicU64, CachePadded, MODELLED, Ordering, yield_now};

/// Records between two words of the consumer about how far it is, at most.
const SAY_EVERY: u64 = 64;

/// A record in a cache line of its own.
#[repr(align(64))]
struct Slot {
    words: [AtomicU64; WORDS],
    /// The number of the record that is whole in it, from 1.
    holds: AtomicU64,
}

const _: () = assert!(MODELLED || size_of::<Slot>() == 64);

pub(super) struct Ring {
    /// A power of two of them.
    slots: Box<[Slot]>,
    capacity: u64,
    /// The low bits of a record's number that are 0 when the consumer says how far it is.
    say: u64,
    /// Records that were begun.
    begun: CachePadded<AtomicU64>,
    /// Records that were taken, by the consumer's last word. Written by it alone.
    taken: CachePadded<AtomicU64>,
}

impl Ring {
    /// For 1 to 2^62 records.
    pub(super) fn new(capacity: usize) -> Self {
        let slot = |_| Slot { words: Default::default(), holds: AtomicU64::new(0) };
        let capacity_or_more = capacity.next_power_of_two();
        Self {
            slots: (0..capacity_or_more).map(slot).collect(),
            capacity: capacity as u64,
            say: (capacity_or_more as u64 / 8).clamp(1, SAY_EVERY) - 1,
            begun: CachePadded::new(AtomicU64::new(0)),
            taken: CachePadded::new(AtomicU64::new(0)),
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// About how many there are.
    #[inline]
    pub(super) fn len(&self) -> usize {
        // The second may be newer, and the greater one then.
        let (begun, taken) =
            (self.begun.load(Ordering::Relaxed), self.taken.load(Ordering::Relaxed));
        begun.saturating_sub(taken) as usize
    }

    #[inline]
    fn slot(&self, number: u64) -> Option<&Slot> {
        // As many as a power of two: never none.
        self.slots.get(number as usize & (self.slots.len() - 1))
    }

    /// Puts a record at the end; gives it back if there is no room.
    #[inline]
    pub(super) fn push(&self, record: Record) -> Result<(), Record> {
        let mut begun = self.begun.load(Ordering::Relaxed);
        loop {
            // Acquire: what was in the slot has been read.
            let taken = self.taken.load(Ordering::Acquire);
            // An old number of ours may be the lesser: the exchange fails then.
            if begun.saturating_sub(taken) >= self.capacity {
                return Err(record);
            }
            let next = self.begun.compare_exchange_weak(
                begun,
                begun + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match next {
                Ok(_) => break,
                Err(now) => begun = now,
            }
        }
        let Some(slot) = self.slot(begun) else { return Err(record) };
        for (word, value) in slot.words.iter().zip(record.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        // Release: the words are there for who reads this.
        slot.holds.store(begun + 1, Ordering::Release);
        Ok(())
    }

    /// Gives the records in their order to `take`, `most` of them or until there are none, and says
    /// how many there were. For one thread alone: it would see records twice otherwise. All that was
    /// pushed before the caller learned of it is seen.
    pub(super) fn drain(&self, most: usize, mut take: impl FnMut(Record)) -> usize {
        let first = self.taken.load(Ordering::Relaxed);
        let mut number = first;
        while number - first < most as u64
            && let Some(slot) = self.slot(number)
        {
            if slot.holds.load(Ordering::Acquire) != number + 1 {
                self.taken.store(number, Ordering::Release);
                if !self.is_begun(number, slot) {
                    break;
                }
            }
            if cfg!(aquifer_fault = "ring_says_early") {
                self.taken.store(number + 1, Ordering::Release);
            }
            let record =
                Record::from_words(slot.words.each_ref().map(|word| word.load(Ordering::Relaxed)));
            number += 1;
            // Before it is taken: `take` may lead to a push of this thread's own.
            if number & self.say == 0 {
                self.taken.store(number, Ordering::Release);
            }
            take(record);
        }
        // Release: the slots have been read.
        self.taken.store(number, Ordering::Release);
        (number - first) as usize
    }

    /// False if there is no such record, else waits until it is whole: its producer may have been
    /// interrupted, and later ones be done.
    #[cold]
    fn is_begun(&self, number: u64, slot: &Slot) -> bool {
        if self.begun.load(Ordering::Acquire) == number {
            return false;
        }
        let backoff = Backoff::new();
        while slot.holds.load(Ordering::Acquire) != number + 1 {
            backoff.snooze();
            if MODELLED {
                yield_now();
            }
        }
        true
    }
}

crate::sync::for_models! {
    /// A ring of records that each have one number throughout.
    #[allow(unreachable_pub, missing_debug_implementations)]
    pub struct Line(Ring);

    #[allow(unreachable_pub)]
    impl Line {
        /// For so many records.
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

        /// The numbers of records in their order, as [`Ring::drain`] gives them.
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
mod tests {
    use super::super::record::Action;
    use super::*;
    use crate::sync::Arc;

    fn record(thread: u32, bytes: u64) -> Record {
        let action = [Action::Allocate, Action::Failure, Action::Free, Action::Freed];
        let action = action[bytes as usize % 4];
        let (start, end, address, stream) = (bytes + 1, bytes + 2, !bytes, bytes << 7);
        Record { action, thread, location: !thread, start, end, address, bytes, stream }
    }

    #[test]
    fn records_come_back_as_they_were_and_in_order() {
        for capacity in [1, 2, 3, 100] {
            let ring = Ring::new(capacity);
            let (mut pushed, mut seen) = (0, 0);
            for round in 0..500 {
                while ring.push(record(7, pushed)).is_ok() {
                    pushed += 1;
                }
                assert_eq!(ring.len(), capacity);
                let most = round % (capacity + 1);
                let mut check = |found: Record| {
                    assert_eq!(found, record(7, seen));
                    seen += 1;
                };
                assert_eq!(ring.drain(most, &mut check), most);
                assert_eq!(ring.len(), capacity - most);
            }
            let left = pushed - seen;
            assert_eq!(ring.drain(usize::MAX, |_| seen += 1) as u64, left);
            assert_eq!(ring.drain(usize::MAX, |_| seen += 1), 0);
            assert_eq!(seen, pushed);
        }
    }

    #[test]
    fn who_takes_a_record_may_push_one_into_its_place() {
        let ring = Ring::new(1);
        ring.push(record(0, 0)).unwrap();
        let again = |found: Record| ring.push(record(0, found.bytes + 1)).unwrap();
        assert_eq!(ring.drain(10, again), 10);
        assert_eq!(ring.drain(1, |found| assert_eq!(found, record(0, 10))), 1);
    }

    #[test]
    fn threads_lose_nothing_and_keep_their_order() {
        const THREADS: u32 = 4;
        const EACH: u64 = 20_000;
        for capacity in [1, 3, 1000] {
            let ring = Arc::new(Ring::new(capacity));
            let producers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let ring = ring.clone();
                    std::thread::spawn(move || {
                        for number in 0..EACH {
                            while ring.push(record(thread, number)).is_err() {
                                std::thread::yield_now();
                            }
                        }
                    })
                })
                .collect();
            let mut next = [0; THREADS as usize];
            while next.iter().sum::<u64>() < u64::from(THREADS) * EACH {
                let taken = ring.drain(700, |found| {
                    let number = &mut next[found.thread as usize];
                    assert_eq!(found, record(found.thread, *number));
                    *number += 1;
                });
                if taken == 0 {
                    std::thread::yield_now();
                }
            }
            for producer in producers {
                producer.join().unwrap();
            }
            assert_eq!(ring.drain(1, |_| ()), 0);
        }
    }
}
