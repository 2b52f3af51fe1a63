//! Plays a program on an allocator, and measures what it holds over what is in use.

use crate::program::{Caller, Program, Sizes, Step, THREADS};
use std::collections::BTreeMap;

const MIB: usize = 1 << 20;

/// What an allocator may hold beside a multiple of what is in use, and for each stream.
pub(crate) const SLACK: usize = 64 * MIB;
pub(crate) const SLACK_OF_STREAM: usize = 2 * MIB;

/// A quotient by less would say nothing.
const LEAST_USED: usize = MIB;

/// The most bytes and blocks that a program has at once; it does not allocate past them.
pub(crate) const MOST_LIVE: usize = 4 << 30;
const MOST_BLOCKS: usize = 6000;

/// Programs of blocks of all sizes are measured each so many allocations.
const ALLOCATIONS_BETWEEN: usize = 8;

/// The number of a block that is about to replace another one.
const LONGER: usize = usize::MAX;

/// An allocator and its device, as a program sees them.
pub(crate) trait Subject {
    type Block;

    /// Memory for work on a stream, and where it lies, if the allocator has addresses.
    fn allocate(&mut self, by: Caller, bytes: usize) -> (Self::Block, Option<u64>);

    /// Takes a block back that was allocated on the stream `home`. The stream of `by` is behind all of its uses, of which
    /// `mark` is the last.
    fn free(&mut self, by: Caller, block: Self::Block, home: usize, mark: u64);

    /// Gives the stream a kernel of a moment, whose number this is.
    fn work(&mut self, stream: usize, mark: u64);

    /// Whether the device is past a kernel.
    fn is_past(&self, stream: usize, mark: u64) -> bool;

    /// The stream waits for all that the other one was given.
    fn order(&mut self, stream: usize, before: usize);

    /// Holds up a stream, or lets it go on.
    fn stall(&mut self, stream: usize, stalled: bool);

    /// The host waits for a stream. None is held up.
    fn wait(&mut self, stream: usize);

    /// Gives memory back. No stream is held up.
    fn trim(&mut self, keep: usize);

    /// Bytes of the device that the allocator holds.
    fn reserved(&self) -> usize;
}

/// What was in use at each point of a program: the most since the last trim, and as of then.
pub(crate) type Points = Vec<(usize, usize)>;

/// What a program did to an allocator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// The most that was held over the most that was in use before, less what it may hold beside.
    pub(crate) ratio: f64,
    /// The same of what was in use then, after a trim.
    pub(crate) trimmed: f64,
    /// At the worst point of all.
    pub(crate) reserved: usize,
    pub(crate) used: usize,
    pub(crate) points: Points,
}

impl Measured {
    pub(crate) fn worst(&self) -> f64 {
        self.ratio.max(self.trimmed)
    }
}

struct Held<B> {
    block: B,
    bytes: usize,
    address: Option<u64>,
    home: usize,
}

/// A block that was freed while the device may use it.
struct Freed {
    bytes: usize,
    address: Option<u64>,
    stream: usize,
    mark: u64,
}

struct Player<'a, S: Subject> {
    subject: &'a mut S,
    sizes: Sizes,
    /// What is in use beside: of another run, which knows it.
    given: Option<&'a Points>,
    streams: usize,
    blocks: BTreeMap<usize, Held<S::Block>>,
    freed: Vec<Freed>,
    live: usize,
    /// The most that was in use since the last trim.
    high: usize,
    /// By stream.
    marks: Vec<u64>,
    /// The step until which a stream is held up.
    stalled: Vec<Option<usize>>,
    allocations: usize,
    measured: Measured,
}

/// Plays a program, and gives all back. `given` has what was in use, from a run on another allocator.
pub(crate) fn play<S: Subject>(
    program: &Program,
    sizes: Sizes,
    subject: &mut S,
    given: Option<&Points>,
) -> Measured {
    let streams = program.streams();
    let mut player = Player {
        subject,
        sizes,
        given,
        streams,
        blocks: BTreeMap::new(),
        freed: Vec::new(),
        live: 0,
        high: 0,
        marks: vec![0; streams],
        stalled: vec![None; streams],
        allocations: 0,
        measured: Measured::default(),
    };
    for (number, step) in program.steps.iter().enumerate() {
        player.step(number, step);
    }
    player.resume(None);
    for held in std::mem::take(&mut player.blocks).into_values() {
        player.give_back(Caller { stream: held.home, thread: 0 }, held);
    }
    player.measured
}

impl<S: Subject> Player<'_, S> {
    fn step(&mut self, number: usize, step: &Step) {
        self.resume(Some(number));
        match *step {
            Step::Allocate { first, count, bytes, more, by } => {
                for index in 0..count {
                    self.allocate(first + index, bytes + index * more, by);
                }
                self.work(by.stream);
            }
            Step::Free { first, count, every, by } => {
                let numbers = (0..count).map(|index| first + index * every);
                let held: Vec<_> = numbers.filter_map(|it| self.blocks.remove(&it)).collect();
                self.give_all_back(by, held);
            }
            Step::Grow { block, times, more, by } => {
                for _ in 0..times {
                    let Some(old) = self.blocks.get(&block) else { break };
                    // Both are there for a moment.
                    self.allocate(LONGER, old.bytes + more, by);
                    let Some(longer) = self.blocks.remove(&LONGER) else { break };
                    let old = self.blocks.insert(block, longer);
                    self.give_all_back(by, old.into_iter().collect());
                }
            }
            Step::Busy { stream, steps } => {
                self.work(stream);
                self.subject.stall(stream, true);
                self.stalled[stream] = Some(number + steps);
            }
            Step::Order { stream, before } => self.order(stream, before),
            Step::Wait { stream } => {
                self.resume(None);
                self.subject.wait(stream);
            }
            Step::Trim { keep } => {
                self.resume(None);
                self.subject.trim(keep);
                self.measure(Some(keep));
                return;
            }
        }
        self.measure(None);
    }

    /// Lets those streams go on that were held up until this step, or all.
    fn resume(&mut self, now: Option<usize>) {
        for stream in 0..self.streams {
            if self.stalled[stream].is_some_and(|until| now.is_none_or(|now| now >= until)) {
                self.stalled[stream] = None;
                self.subject.stall(stream, false);
            }
        }
    }

    fn work(&mut self, stream: usize) {
        self.marks[stream] += 1;
        self.subject.work(stream, self.marks[stream]);
    }

    fn order(&mut self, stream: usize, before: usize) {
        if stream != before {
            self.subject.order(stream, before);
        }
    }

    fn allocate(&mut self, number: usize, bytes: usize, by: Caller) {
        let is_full = self.live + bytes > MOST_LIVE || self.blocks.len() >= MOST_BLOCKS;
        if is_full || self.blocks.contains_key(&number) {
            return;
        }
        let by = Caller { thread: by.thread % THREADS, ..by };
        let (block, address) = self.subject.allocate(by, bytes);
        self.blocks.insert(number, Held { block, bytes, address, home: by.stream });
        self.live += bytes;
        self.allocations += 1;
        if self.sizes == Sizes::Large || self.allocations.is_multiple_of(ALLOCATIONS_BETWEEN) {
            self.measure(None);
        }
    }

    /// Frees blocks on a stream, behind their uses on others.
    fn give_all_back(&mut self, by: Caller, held: Vec<Held<S::Block>>) {
        for home in 0..self.streams {
            if held.iter().any(|it| it.home == home) {
                self.order(by.stream, home);
            }
        }
        if !held.is_empty() {
            self.work(by.stream);
        }
        held.into_iter().for_each(|it| self.give_back(by, it));
    }

    fn give_back(&mut self, by: Caller, held: Held<S::Block>) {
        let Held { block, bytes, address, home } = held;
        let (stream, mark) = (by.stream, self.marks[by.stream]);
        self.subject.free(by, block, home, mark);
        self.live -= bytes;
        self.freed.push(Freed { bytes, address, stream, mark });
    }

    /// What is live, and what was freed and is still used: each address once, since a stream uses again what it freed.
    fn used(&mut self) -> usize {
        let subject = &self.subject;
        self.freed.retain(|it| !subject.is_past(it.stream, it.mark));
        if self.freed.is_empty() {
            return self.live;
        }
        let live = self.blocks.values().map(|it| (it.address, it.bytes));
        let freed = self.freed.iter().map(|it| (it.address, it.bytes));
        let (mut ranges, mut used) = (Vec::new(), 0);
        for (address, bytes) in live.chain(freed) {
            match address {
                Some(address) => ranges.push((address, address + bytes as u64)),
                None => used += bytes,
            }
        }
        ranges.sort_unstable();
        let mut last = 0;
        for (start, end) in ranges {
            used += end.saturating_sub(start.max(last)) as usize;
            last = last.max(end);
        }
        used
    }

    fn measure(&mut self, trimmed_to: Option<usize>) {
        let point = self.measured.points.len();
        let given = self.given.map(|points| points[point]);
        let now = match given {
            Some((_, now)) => now,
            None => self.used(),
        };
        // What is to be kept is no waste. Of small blocks no allocator that does not move has a bound by what is in use
        // after a trim.
        self.high = match trimmed_to {
            Some(keep) if self.sizes == Sizes::Large => now.max(keep),
            _ => self.high.max(now),
        };
        let high = given.map_or(self.high, |(high, _)| high);
        self.measured.points.push((high, now));
        let reserved = self.subject.reserved();
        let beside = SLACK + SLACK_OF_STREAM * self.streams;
        let over =
            |used: usize| reserved.saturating_sub(beside) as f64 / used.max(LEAST_USED) as f64;
        let ratio = over(high);
        let trimmed = match trimmed_to {
            Some(keep) if self.sizes == Sizes::Large => over(now.max(keep)),
            _ => 0.0,
        };
        if ratio.max(trimmed) > self.measured.worst() {
            (self.measured.reserved, self.measured.used) = (reserved, high);
        }
        self.measured.ratio = self.measured.ratio.max(ratio);
        self.measured.trimmed = self.measured.trimmed.max(trimmed);
    }
}
