//! Plays a program on an allocator, and measures what it holds over what is in use.

use crate::program::{Caller, Program, STREAMS, Sizes, Step, THREADS};
use std::array;
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

/// The most bytes that are copied for a sleep: a program drops what is more.
const MOST_KEPT: usize = 64 * MIB;

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

    /// The host waits for a stream that has no work.
    fn wait_idle(&mut self);

    /// Has the device do all that is not held up.
    fn settle(&mut self);

    /// Gives memory back. Where it waits for the device, no stream is held up.
    fn trim(&mut self, keep: usize, waits: bool);

    /// Sleeps, with its contents or without, and wakes. No stream is held up. Returns whether it did.
    fn sleep(&mut self, keeps: bool) -> bool;

    /// From now on memory above this goes back where the host waits. Returns whether it does.
    fn set_threshold(&mut self, bytes: usize) -> bool;

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
    /// The same after a wait of the host, where more than the release threshold was held.
    pub(crate) released: f64,
    /// At the worst point of all.
    pub(crate) reserved: usize,
    pub(crate) used: usize,
    pub(crate) points: Points,
}

impl Measured {
    pub(crate) fn worst(&self) -> f64 {
        self.ratio.max(self.trimmed).max(self.released)
    }
}

struct Held<B> {
    block: B,
    bytes: usize,
    address: Option<u64>,
    home: usize,
}

/// Why memory went back, of which a sleep is one kind of trim, and how many bytes may stay however little is in use.
#[derive(Clone, Copy)]
enum Returned {
    Trim { keep: usize },
    AboveThreshold { threshold: usize },
}

/// A block that was freed while the device may use it.
struct Freed {
    bytes: usize,
    address: Option<u64>,
    stream: usize,
    mark: u64,
    /// The streams that may have it: the one that freed it, and those that allocated since.
    owners: [bool; STREAMS],
}

struct Player<'a, S: Subject> {
    subject: &'a mut S,
    sizes: Sizes,
    /// What is in use beside: of another run, which knows it.
    given: Option<&'a Points>,
    streams: usize,
    blocks: BTreeMap<usize, Held<S::Block>>,
    freed: Vec<Freed>,
    threshold: Option<usize>,
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
        threshold: None,
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
                return self.wait(|subject| subject.wait(stream));
            }
            Step::WaitIdle => return self.wait(S::wait_idle),
            Step::Trim { keep, waits: true } => {
                self.resume(None);
                self.subject.trim(keep, true);
                if keep == 0 {
                    self.forget_past();
                }
                let now = self.used();
                return self.measure_at(now, Some(Returned::Trim { keep }));
            }
            Step::Sleep { keeps } => {
                self.resume(None);
                // What cannot sleep gives back as much by a trim.
                if !self.subject.sleep(keeps && self.live <= MOST_KEPT) {
                    self.subject.trim(0, true);
                }
                self.forget_past();
                let now = self.used();
                return self.measure_at(now, Some(Returned::Trim { keep: 0 }));
            }
            Step::Trim { keep, waits: false } => {
                self.settle();
                self.subject.trim(keep, false);
                let now = self.used_by_events(keep);
                return self.measure_at(now, Some(Returned::Trim { keep }));
            }
            Step::Threshold { bytes } => {
                if self.subject.set_threshold(bytes) {
                    self.threshold = Some(bytes);
                }
            }
        }
        self.measure();
    }

    /// The host waits, and memory above the release threshold goes back.
    fn wait(&mut self, wait: impl FnOnce(&mut S)) {
        // Below it a pool has no reason to ask the device anything.
        let reserved = self.subject.reserved();
        let Some(threshold) = self.threshold.filter(|threshold| reserved > *threshold) else {
            wait(self.subject);
            return self.measure();
        };
        self.settle();
        wait(self.subject);
        let now = self.used_by_events(threshold);
        self.measure_at(now, Some(Returned::AboveThreshold { threshold }));
    }

    /// Gives each stream a kernel, as an event that the pool records now would lie there, and has the device do what it can.
    fn settle(&mut self) {
        (0..self.streams).for_each(|stream| self.work(stream));
        self.subject.settle();
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
        self.freed.iter_mut().for_each(|it| it.owners[by.stream] = true);
        self.live += bytes;
        self.allocations += 1;
        if self.sizes == Sizes::Large || self.allocations.is_multiple_of(ALLOCATIONS_BETWEEN) {
            self.measure();
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
        let owners = array::from_fn(|owner| owner == stream);
        self.freed.push(Freed { bytes, address, stream, mark, owners });
    }

    /// What is live, and what was freed and is still used.
    fn used(&mut self) -> usize {
        // Where memory is to go back, events count, which may be late.
        if self.sizes == Sizes::All {
            self.forget_past();
        }
        let subject = &self.subject;
        self.live_and(|it| !subject.is_past(it.stream, it.mark))
    }

    fn forget_past(&mut self) {
        let subject = &self.subject;
        self.freed.retain(|it| !subject.is_past(it.stream, it.mark));
    }

    /// What is live, and what was freed and is still used as far as events tell that are recorded now. Each comes behind all
    /// that its stream was given. `keep` bytes may stay: later frees may merge with them, and are over later.
    fn used_by_events(&mut self, keep: usize) -> usize {
        let subject = &self.subject;
        let marks = self.marks.iter().enumerate();
        let has_work: Vec<bool> = marks.map(|(it, mark)| !subject.is_past(it, *mark)).collect();
        let is_used = |it: &Freed| has_work.iter().zip(it.owners).any(|(work, owns)| *work && owns);
        if keep == 0 {
            self.freed.retain(is_used);
        }
        self.live_and(is_used)
    }

    /// What is live, and some of what was freed: each address once, since a stream uses again what it freed.
    fn live_and(&self, counts: impl Fn(&Freed) -> bool) -> usize {
        let freed = self.freed.iter().filter(|it| counts(it));
        let mut freed = freed.map(|it| (it.address, it.bytes)).peekable();
        if freed.peek().is_none() {
            return self.live;
        }
        let live = self.blocks.values().map(|it| (it.address, it.bytes));
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

    fn measure(&mut self) {
        let now = self.used();
        self.measure_at(now, None);
    }

    /// Measures where so much is in use.
    fn measure_at(&mut self, now: usize, returned: Option<Returned>) {
        // Of small blocks no allocator that does not move has a bound by what is in use after a trim.
        let returned = returned.filter(|_| self.sizes == Sizes::Large);
        let point = self.measured.points.len();
        let given = self.given.map(|points| points[point]);
        let now = given.map_or(now, |(_, now)| now);
        // What is to be kept is no waste.
        self.high = match returned {
            Some(Returned::Trim { keep }) => now.max(keep),
            _ => self.high.max(now),
        };
        let high = given.map_or(self.high, |(high, _)| high);
        self.measured.points.push((high, now));
        let reserved = self.subject.reserved();
        let beside = SLACK + SLACK_OF_STREAM * self.streams;
        let over =
            |used: usize| reserved.saturating_sub(beside) as f64 / used.max(LEAST_USED) as f64;
        let over_kept = |kept| if reserved > kept { over(now) } else { 0.0 };
        let (trimmed, released) = match returned {
            Some(Returned::Trim { keep }) => (over_kept(keep), 0.0),
            Some(Returned::AboveThreshold { threshold }) => (0.0, over_kept(threshold)),
            None => (0.0, 0.0),
        };
        let ratio = over(high);
        if ratio.max(trimmed).max(released) > self.measured.worst() {
            let used = if ratio >= trimmed.max(released) { high } else { now };
            (self.measured.reserved, self.measured.used) = (reserved, used);
        }
        self.measured.ratio = self.measured.ratio.max(ratio);
        self.measured.trimmed = self.measured.trimmed.max(trimmed);
        self.measured.released = self.measured.released.max(released);
    }
}
