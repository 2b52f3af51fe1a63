//! Programs that move memory as real ones do: what no draw of single operations comes to by itself.

use crate::player::{Expected, Given, Player};
use crate::random::Random;
use crate::shared::{Item, Step, lock, unexpected};
use aquifer::Stream;
use std::sync::atomic::Ordering;

/// What most of a program's operations have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// What one thread makes others free, on streams of their own.
    HandOver,
    /// All work moves from stream to stream.
    Phases,
    /// Threads fill their caches and sleep.
    IdleThreads,
    /// Hundreds of streams, up to more than a thousand, with few blocks each.
    ManyStreams,
    /// The pool's upstream calls back into it.
    Callbacks,
    /// Streams go while memory of theirs lies elsewhere.
    DroppedStreams,
}

/// Programs of many streams take as long as all others together, so they are fewer.
const USUAL: [Pattern; 5] = [
    Pattern::HandOver,
    Pattern::Phases,
    Pattern::IdleThreads,
    Pattern::Callbacks,
    Pattern::DroppedStreams,
];

/// Vectors that a producer is ahead of its consumers.
const AHEAD: usize = 24;

/// Streams from which on a program counts as one of a thousand.
pub(crate) const THOUSAND: usize = 1000;

impl Pattern {
    pub(crate) fn of(seed: u64) -> Self {
        match seed % 48 {
            7 => Self::ManyStreams,
            _ => USUAL[(seed % 5) as usize],
        }
    }

    pub(crate) fn streams(self, random: &mut Random) -> usize {
        match self {
            Self::Phases => 4 + random.below(29),
            Self::ManyStreams => random.pick(&[64, 256, 512, 1000, 1040, 1100]),
            _ => 2 + random.below(5),
        }
    }

    pub(crate) fn threads(self, random: &mut Random) -> usize {
        match self {
            Self::IdleThreads => 3 + random.below(4),
            Self::HandOver => 2 + random.below(2),
            _ => 1 + random.below(3),
        }
    }
}

impl Player<'_> {
    pub(crate) fn pattern(&mut self, pattern: Pattern) -> Step {
        match pattern {
            Pattern::HandOver if self.me == 0 => self.produce(),
            Pattern::HandOver => self.consume(),
            Pattern::Phases => self.phase(),
            Pattern::IdleThreads => self.fill_and_sleep(),
            Pattern::ManyStreams => self.go_round(),
            Pattern::Callbacks => self.make_grow(),
            Pattern::DroppedStreams => self.strand(),
        }
    }

    /// The stream with a number, which wraps.
    fn stream_at(&self, number: usize) -> Option<Stream> {
        let streams = lock(&self.shared.streams);
        (!streams.is_empty()).then(|| streams[number % streams.len()].clone())
    }

    /// Up to `most` vectors on a stream. Says how many there are.
    fn make_some(&mut self, stream: &Stream, most: usize) -> Step<usize> {
        let count = 1 + self.random.below(most);
        for made in 0..count {
            let length = self.length();
            match self.allocate(stream, length, Expected::Room)? {
                Given::Memory(item) => self.write(item)?,
                Given::Refused | Given::NoPool => return Ok(made),
            }
        }
        Ok(count)
    }

    fn drop_all(&mut self) {
        for item in std::mem::take(&mut self.items) {
            self.drop_item(item);
        }
    }

    fn produce(&mut self) -> Step {
        let Some(stream) = self.stream_at(0) else { return Ok(()) };
        if lock(&self.shared.mailbox).len() < AHEAD {
            let before = self.items.len();
            self.make_some(&stream, 16)?;
            let made = self.items.split_off(before);
            lock(&self.shared.mailbox).extend(made);
        }
        Ok(())
    }

    fn consume(&mut self) -> Step {
        let Some(own) = self.stream_at(self.me) else { return Ok(()) };
        for _ in 0..16 {
            let Some(mut item) = lock(&self.shared.mailbox).pop() else { return Ok(()) };
            if item.home() != own.id() {
                item.vec.set_stream(&own).map_err(unexpected("moving the home"))?;
                item.lent.clear();
                self.shared.count("freed on another thread and stream");
            }
            match self.random.one_in(8) {
                true => self.items.push(item),
                false => self.drop_item(item),
            }
        }
        Ok(())
    }

    /// Of whatever thread, all make theirs on the phase's stream, until one of them has had enough.
    fn phase(&mut self) -> Step {
        let phase = self.shared.phase.load(Ordering::Relaxed);
        let Some(stream) = self.stream_at(phase) else { return Ok(()) };
        self.make_some(&stream, 24)?;
        if self.items.len() >= 40 {
            self.drop_all();
            self.shared.phase.fetch_add(1, Ordering::Relaxed);
            self.shared.count("phases");
        }
        Ok(())
    }

    /// Makes and drops the same again and again, then lets the others work.
    fn fill_and_sleep(&mut self) -> Step {
        let Some(stream) = self.stream() else { return Ok(()) };
        for _ in 0..3 {
            self.make_some(&stream, 8)?;
            self.drop_all();
        }
        if self.pool().is_some_and(|(pool, _)| pool.statistics().cached > 0) {
            self.shared.count("slept on blocks in caches");
        }
        for _ in 0..self.random.below(24) {
            self.participant.pass();
        }
        Ok(())
    }

    /// A few blocks on each of many streams in turn.
    fn go_round(&mut self) -> Step {
        let count = lock(&self.shared.streams).len();
        let (first, length) = (self.random.below(count), 1 + self.random.below(64));
        for number in first..first + (1 + self.random.below(48)) {
            let Some(stream) = self.stream_at(number) else { return Ok(()) };
            match self.allocate(&stream, length, Expected::Room)? {
                Given::Memory(item) if self.random.one_in(4) => self.write(item)?,
                Given::Memory(item) => self.drop_item(item),
                Given::Refused => self.drop_all(),
                Given::NoPool => return Ok(()),
            }
        }
        self.shared.count("rounds over many streams");
        Ok(())
    }

    /// What makes a pool ask upstream, and give back.
    fn make_grow(&mut self) -> Step {
        let Some(stream) = self.stream() else { return Ok(()) };
        self.make_some(&stream, 4)?;
        if self.random.one_in(3) {
            self.drop_all();
            self.trim()?;
        }
        Ok(())
    }

    /// A stream's memory comes to another one, or to the caches of a thread, and the stream goes.
    fn strand(&mut self) -> Step {
        let (Some(old), Some(other)) = (self.stream(), self.stream()) else { return Ok(()) };
        let before = self.items.len();
        self.make_some(&old, 6)?;
        let mut moved: Vec<Item> = self.items.split_off(before.min(self.items.len()));
        for item in &mut moved {
            if item.home() == old.id() && old != other {
                item.vec.set_stream(&other).map_err(unexpected("moving the home"))?;
                item.lent.clear();
            }
        }
        let kept = self.random.below(moved.len() + 1);
        for item in moved.split_off(kept) {
            self.drop_item(item);
        }
        self.items.append(&mut moved);
        let new = self.shared.device.new_stream().map_err(unexpected("making a stream"))?;
        self.says(|| format!("stream {} is dropped for stream {}", old.id(), new.id()));
        if self.replace(&old, &new) && old != other {
            self.shared.count("streams dropped with memory elsewhere");
        }
        drop(old);
        match self.random.below(4) {
            0 => self.trim(),
            1 => self.make_some(&new, 4).map(drop),
            _ => Ok(()),
        }
    }
}
