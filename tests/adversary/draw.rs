//! Random programs, and random changes of one.

use crate::program::{Caller, Program, STREAMS, Sizes, Step, THREADS};
use crate::random::Random;

const MIB: usize = 1 << 20;
const MOST_STEPS: usize = 120;

/// Sizes that programs have, in MiB, on both sides of powers of two and of what pools round to.
const LARGE: [usize; 24] = [
    32, 33, 34, 36, 40, 47, 48, 63, 64, 65, 66, 80, 96, 100, 127, 128, 130, 192, 255, 256, 300,
    512, 700, 1024,
];
const SMALL: [usize; 12] = [
    512,
    4 << 10,
    64 << 10,
    256 << 10,
    512 << 10,
    MIB,
    MIB + 512,
    2 * MIB,
    3 * MIB,
    6 * MIB,
    10 * MIB,
    20 * MIB,
];

/// Release thresholds that programs set.
const THRESHOLDS: [usize; 5] = [0, 64 * MIB, 256 * MIB, 256 * MIB, 1 << 30];

pub(crate) struct Draw<'a> {
    pub(crate) random: &'a mut Random,
    pub(crate) sizes: Sizes,
}

impl Draw<'_> {
    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound)
    }

    /// A size between two powers of two, each power as likely.
    fn between(&mut self, low: u32, high: u32) -> usize {
        let power = low as usize + self.below((high - low) as usize);
        (1 << power) + self.below(1 << power)
    }

    fn bytes(&mut self) -> usize {
        let bytes = match (self.sizes, self.below(4)) {
            (Sizes::Large, 0) => self.between(25, 30),
            (Sizes::Large, _) => self.random.pick(&LARGE) * MIB,
            (Sizes::All, 0) => self.between(8, 28),
            (Sizes::All, 1) => self.random.pick(&LARGE) * MIB,
            (Sizes::All, _) => self.random.pick(&SMALL),
        };
        match self.below(8) {
            0 => bytes + 256,
            1 => bytes + bytes / 8,
            _ => bytes,
        }
    }

    fn caller(&mut self, streams: usize) -> Caller {
        let stream = self.below(streams);
        let thread = if self.random.one_in(6) { self.below(THREADS) } else { 0 };
        Caller { stream, thread }
    }

    /// How many blocks make some part of a gibibyte, or of ten.
    fn count(&mut self, bytes: usize) -> usize {
        let all = self.random.pick(&[256 * MIB, 512 * MIB, 1 << 30, 2 << 30, 4 << 30]);
        let most = match self.sizes {
            Sizes::Large => 200,
            Sizes::All => 1500,
        };
        match self.random.one_in(4) {
            true => 1 + self.below(4),
            false => (all / bytes).clamp(1, most),
        }
    }

    /// How many kinds of steps there are. Of small blocks nothing is measured where memory goes back.
    fn kinds(&self) -> usize {
        match self.sizes {
            Sizes::Large => 20,
            Sizes::All => 17,
        }
    }

    fn step(&mut self, streams: usize, blocks: usize) -> Step {
        let by = self.caller(streams);
        match self.below(self.kinds()) {
            0..6 => {
                let bytes = self.bytes();
                let more = match self.below(6) {
                    0 => bytes / 16,
                    1 => self.random.pick(&[256, 64 << 10, MIB]).min(bytes),
                    _ => 0,
                };
                Step::Allocate {
                    first: self.below(blocks),
                    count: self.count(bytes),
                    bytes,
                    more,
                    by,
                }
            }
            6..11 => Step::Free {
                first: self.below(blocks),
                count: self.between(0, 11),
                every: self.random.pick(&[1, 1, 2, 2, 3, 4, 8, 16]),
                by,
            },
            11 => Step::Grow {
                block: self.below(blocks),
                times: 1 + self.below(24),
                more: self.random.pick(&[256, 256 << 10, MIB, 3 * MIB, 16 * MIB]),
                by,
            },
            12 => Step::Busy { stream: by.stream, steps: 1 + self.below(20) },
            13 => Step::Order { stream: by.stream, before: self.below(streams) },
            14 => Step::Wait { stream: by.stream },
            15 => Step::Trim { keep: 0, waits: true },
            16 => Step::Sleep { keeps: self.random.one_in(2) },
            17 => Step::Trim { keep: 0, waits: false },
            18 => Step::WaitIdle,
            _ => Step::Threshold { bytes: self.random.pick(&THRESHOLDS) },
        }
    }

    /// Steps that belong together.
    fn pattern(&mut self, streams: usize, steps: &mut Vec<Step>) {
        let base = self.below(8) * 2000;
        let (by, other) = (self.caller(streams), self.caller(streams));
        let bytes = self.bytes();
        let count = self.count(bytes);
        let every = self.random.pick(&[1, 2, 2, 3, 4, 8]);
        match self.below(7) {
            // Holes, and then larger blocks, which do not fit into them.
            0 | 1 => {
                let factor = self.random.pick(&[2, 2, 3, 4]);
                let rounds = 1 + self.below(5);
                let (mut bytes, mut first) = (bytes, base);
                for _ in 0..rounds {
                    let count = self.count(bytes);
                    steps.push(Step::Allocate { first, count, bytes, more: 0, by });
                    steps.push(Step::Free { first, count: count / every + 1, every, by: other });
                    first += count;
                    bytes *= factor;
                }
            }
            // The same memory in another size, on another stream.
            2 => {
                let again = self.bytes();
                let count_again = self.count(again);
                steps.push(Step::Allocate { first: base, count, bytes, more: 0, by });
                steps.push(Step::Free { first: base, count, every: 1, by });
                let first = base + count;
                steps.push(Step::Allocate {
                    first,
                    count: count_again,
                    bytes: again,
                    more: 0,
                    by: other,
                });
                steps.push(Step::Free { first, count: count_again / every + 1, every, by: other });
            }
            // From a producer to a consumer.
            3 => {
                for round in 0..2 + self.below(6) {
                    let (first, count) = (base + round * 16, 1 + self.below(8));
                    steps.push(Step::Allocate { first, count, bytes, more: 0, by });
                    steps.push(Step::Free { first, count, every: 1, by: other });
                }
            }
            4 => {
                steps.push(Step::Allocate {
                    first: base,
                    count: 1 + self.below(4),
                    bytes,
                    more: 0,
                    by,
                });
                let more = self.random.pick(&[256 << 10, MIB, bytes / 16, bytes / 4]);
                for block in base..base + 1 + self.below(4) {
                    steps.push(Step::Grow { block, times: 2 + self.below(20), more, by });
                }
            }
            // Phases on one stream after the other.
            5 => {
                for stream in 0..streams {
                    let by = Caller { stream, ..by };
                    let count = count.div_ceil(2);
                    steps.push(Step::Allocate { first: base, count, bytes, more: 0, by });
                    steps.push(Step::Free { first: base, count, every: 1, by });
                }
            }
            _ => {
                steps.push(Step::Busy { stream: by.stream, steps: 2 + self.below(12) });
                steps.push(Step::Allocate { first: base, count, bytes, more: bytes / 64, by });
                steps.push(Step::Free { first: base, count, every: 1, by });
            }
        }
        if self.random.one_in(4) {
            self.end_of_pattern(steps);
        }
    }

    /// Has the pool give memory back.
    fn end_of_pattern(&mut self, steps: &mut Vec<Step>) {
        match (self.sizes, self.below(5)) {
            (_, 4) => steps.push(Step::Sleep { keeps: self.random.one_in(2) }),
            (Sizes::Large, 0) => steps.push(Step::Trim { keep: 0, waits: false }),
            (Sizes::Large, 1) => {
                steps.push(Step::Threshold { bytes: self.random.pick(&THRESHOLDS) });
                steps.push(Step::WaitIdle);
            }
            _ => steps.push(Step::Trim { keep: 0, waits: true }),
        }
    }

    pub(crate) fn program(&mut self) -> Program {
        let streams = self.random.pick(&[1, 1, 2, 3, 4, STREAMS]);
        let mut steps = Vec::new();
        for _ in 0..1 + self.below(5) {
            match self.random.one_in(4) {
                true => (0..1 + self.below(8)).for_each(|_| steps.push(self.step(streams, 16_000))),
                false => self.pattern(streams, &mut steps),
            }
        }
        Program { steps }
    }

    /// A program a little different from this one, or the beginning of it and the end of another.
    pub(crate) fn mutant(&mut self, of: &Program, other: &Program) -> Program {
        let mut steps = of.steps.clone();
        for _ in 0..1 + self.below(3) {
            self.mutate(&mut steps, other);
        }
        steps.truncate(MOST_STEPS);
        if steps.is_empty() {
            return self.program();
        }
        Program { steps }
    }

    fn mutate(&mut self, steps: &mut Vec<Step>, other: &Program) {
        let streams = steps.iter().flat_map(Step::streams).max().map_or(1, |most| most + 1);
        let at = self.below(steps.len() + 1);
        let place = at.min(steps.len().saturating_sub(1));
        let upto =
            |draw: &mut Self, steps: &[Step]| place + draw.below(steps.len() - place + 1).min(6);
        match self.below(11) {
            0 => steps.insert(at, self.step(streams, 16_000)),
            1 => {
                let mut more = Vec::new();
                self.pattern(streams, &mut more);
                steps.splice(at..at, more);
            }
            2 => {
                let end = upto(self, steps);
                steps.drain(place..end);
            }
            3 => {
                let end = upto(self, steps);
                let again: Vec<_> = steps[place..end].to_vec();
                steps.splice(at..at, again);
            }
            4 => {
                // Once more, of other blocks.
                let end = upto(self, steps);
                let by = 1 + self.below(4000);
                let again: Vec<_> =
                    steps[place..end].iter().map(|step| renumbered(*step, by)).collect();
                steps.splice(end..end, again);
            }
            5 if steps.len() > 1 => {
                let with = self.below(steps.len());
                steps.swap(place, with);
            }
            6 => {
                let from = self.below(other.steps.len() + 1);
                steps.truncate(at);
                steps.extend_from_slice(&other.steps[from..]);
            }
            7 => {
                // Another stream in one step, or in all.
                let (from, to) = (self.below(streams), self.below((streams + 1).min(STREAMS)));
                let all = self.random.one_in(3);
                for (index, step) in steps.iter_mut().enumerate() {
                    if all || index == place {
                        move_to(step, from, to, !all);
                    }
                }
            }
            _ if !steps.is_empty() => steps[place] = self.changed(steps[place]),
            _ => {}
        }
    }

    fn number(&mut self, was: usize) -> usize {
        match self.below(6) {
            0 => was / 2,
            1 => was.saturating_mul(2),
            2 => was + 1,
            3 => was.saturating_sub(1),
            4 => was + was / 4,
            _ => was - was / 4,
        }
    }

    fn changed(&mut self, step: Step) -> Step {
        match step {
            Step::Allocate { first, count, bytes, more, by } => match self.below(5) {
                0 => Step::Allocate { first: self.number(first), count, bytes, more, by },
                1 => Step::Allocate {
                    first,
                    count: self.number(count).clamp(1, 3000),
                    bytes,
                    more,
                    by,
                },
                2 => Step::Allocate { first, count, bytes: self.bytes(), more, by },
                3 => {
                    let least = if self.sizes == Sizes::Large { 32 * MIB } else { 1 };
                    let bytes = self.number(bytes).clamp(least, 2 << 30);
                    Step::Allocate { first, count, bytes, more, by }
                }
                _ => Step::Allocate { first, count, bytes, more: self.number(more).min(bytes), by },
            },
            Step::Free { first, count, every, by } => match self.below(3) {
                0 => Step::Free { first: self.number(first), count, every, by },
                1 => Step::Free { first, count: self.number(count).clamp(1, 4000), every, by },
                _ => Step::Free { first, count, every: self.number(every).clamp(1, 64), by },
            },
            Step::Grow { block, times, more, by } => {
                Step::Grow { block, times: self.number(times).clamp(1, 64), more, by }
            }
            Step::Busy { stream, steps } => Step::Busy { stream, steps: self.number(steps) },
            Step::Trim { waits, .. } => {
                let keep = self.random.pick(&[0, 256 * MIB, 1 << 30]);
                let is_other = self.sizes == Sizes::Large && self.random.one_in(3);
                Step::Trim { keep, waits: waits != is_other }
            }
            Step::Threshold { .. } => Step::Threshold { bytes: self.random.pick(&THRESHOLDS) },
            Step::Sleep { keeps } => Step::Sleep { keeps: !keeps },
            other => other,
        }
    }
}

fn renumbered(step: Step, more_by: usize) -> Step {
    match step {
        Step::Allocate { first, count, bytes, more, by } => {
            Step::Allocate { first: first + more_by, count, bytes, more, by }
        }
        Step::Free { first, count, every, by } => {
            Step::Free { first: first + more_by, count, every, by }
        }
        Step::Grow { block, times, more, by } => {
            Step::Grow { block: block + more_by, times, more, by }
        }
        other => other,
    }
}

/// Gives a step another stream: whatever it has, or only where it has this one.
fn move_to(step: &mut Step, from: usize, to: usize, whatever: bool) {
    let change = |stream: &mut usize| {
        if whatever || *stream == from {
            *stream = to;
        }
    };
    match step {
        Step::Allocate { by, .. } | Step::Free { by, .. } | Step::Grow { by, .. } => {
            change(&mut by.stream);
        }
        Step::Busy { stream, .. } | Step::Wait { stream } | Step::Order { stream, .. } => {
            change(stream);
        }
        Step::WaitIdle | Step::Trim { .. } | Step::Threshold { .. } | Step::Sleep { .. } => {}
    }
}
