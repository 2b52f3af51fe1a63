//! What the ranks of a program do, and the values that each of them has to find: all of it made from the
//! seed before a rank begins.

use crate::call::{Call, Kind, Part, Place, REDUCTIONS};
use crate::random::Random;

/// How a rank is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Its thread gives nothing more, and keeps the communicator.
    Stops,
    Drops,
    Aborts,
    /// A panic unwinds through its communicator.
    Unwinds,
    /// A call of NCCL fails.
    Fails,
    LosesDevice,
}

/// The rank that is lost before it gives call number `at`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    pub(crate) rank: usize,
    pub(crate) at: usize,
    pub(crate) way: Way,
}

/// Where memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A pool that no communicator knows.
    Pool,
    /// A pool whose blocks are registered.
    RegisteredPool,
    /// A registered block of its own.
    Registered,
}

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The ranks of each thread.
    pub(crate) threads: Vec<Vec<usize>>,
    pub(crate) ranks: usize,
    /// Of each rank, the one of its collectives included.
    pub(crate) streams: usize,
    /// Blocks of memory of each rank, besides the long one.
    pub(crate) items: usize,
    pub(crate) length: usize,
    /// Elements of the long block. 1 where no rank runs ahead.
    pub(crate) long: usize,
    pub(crate) registers: bool,
    /// Registered memory is NCCL's own.
    pub(crate) nccl: bool,
    /// Other threads register memory while a rank waits for its end.
    pub(crate) company: bool,
    /// The queues run by themselves.
    pub(crate) background: bool,
    pub(crate) loss: Option<Loss>,
}

/// What one rank does by itself.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Drops the item, if there is one, and makes it anew.
    Renew {
        item: usize,
        length: usize,
        home: usize,
        source: Source,
        is_buffer: bool,
        value: u32,
    },
    Fill {
        place: Place,
        value: u32,
    },
    Write {
        item: usize,
        value: u32,
    },
    AddOne {
        place: Place,
        stream: usize,
    },
    Copy {
        from: usize,
        to: usize,
        stream: usize,
    },
    Move {
        item: usize,
        home: usize,
    },
    /// Makes memory, writes it and drops it at once.
    Passing {
        home: usize,
        source: Source,
    },
    Read {
        item: usize,
        expected: Vec<u32>,
    },
    Synchronize,
    /// Waits until the others give no more calls.
    Late,
    /// `failing`: the call of NCCL that fails.
    Register {
        failing: Option<u64>,
    },
    Trim,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Local { rank: usize, op: Op },
    Call(usize),
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) setup: Setup,
    pub(crate) calls: Vec<Call>,
    pub(crate) steps: Vec<Step>,
}

/// The ranks of each thread: mostly one.
fn threads(random: &mut Random, ranks: usize) -> Vec<Vec<usize>> {
    let together = match random.below(6) {
        0 => ranks,
        1 => 2,
        _ => 1,
    };
    let rest = (together..ranks).map(|rank| vec![rank]);
    std::iter::once((0..together).collect()).chain(rest).collect()
}

impl Setup {
    fn new(random: &mut Random) -> Self {
        let ranks = 2 + random.below(3);
        Self {
            threads: threads(random, ranks),
            ranks,
            streams: 1 + random.below(3),
            items: 3 + random.below(3),
            length: ranks * random.pick(&[1, 2, 5, 16]),
            long: if random.one_in(30) { 20 + random.below(280) } else { 1 },
            registers: random.one_in(2),
            nccl: random.one_in(2),
            company: !random.one_in(4),
            background: random.one_in(12),
            loss: None,
        }
    }

    /// Whether another rank shares the thread of `rank`.
    fn is_together(&self, rank: usize) -> bool {
        self.threads.iter().any(|own| own.contains(&rank) && own.len() > 1)
    }

    pub(crate) fn way(&self) -> Option<Way> {
        self.loss.map(|loss| loss.way)
    }
}

/// Makes a plan, and knows what all memory holds.
struct Planner {
    random: Random,
    plan: Plan,
    /// The elements of each item of each rank. The long one is the last.
    values: Vec<Vec<Vec<u32>>>,
    next: u32,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, 0);
        let setup = Setup::new(&mut random);
        let lengths = || {
            let items = std::iter::repeat_n(setup.length, setup.items);
            items.chain([setup.long]).map(|length| vec![0; length]).collect()
        };
        let values = (0..setup.ranks).map(|_| lengths()).collect();
        let plan = Self { setup, calls: Vec::new(), steps: Vec::new() };
        let next = (seed as u32).wrapping_mul(0x9e37_79b1);
        let mut planner = Planner { random, plan, values, next };
        planner.make();
        planner.plan
    }
}

impl Planner {
    fn make(&mut self) {
        let (ranks, items) = (self.plan.setup.ranks, self.plan.setup.items);
        let lost = self.random.one_in(5).then(|| self.lost_rank());
        let stops = lost.is_some_and(|(_, way)| way == Way::Stops);
        let goes_back = stops && self.plan.setup.registers;
        for rank in 0..ranks {
            if goes_back {
                // A block that is not registered waits for its stream without an end when it goes.
                self.step(rank, Op::Register { failing: None });
            }
            for item in 0..=items {
                self.renew(rank, item);
            }
        }
        let calls = 3 + self.random.below(14);
        let runs = (self.plan.setup.long > 1).then(|| self.random.below(calls));
        for at in 0..calls {
            self.local();
            self.call();
            if runs == Some(at) {
                self.run_ahead();
            }
        }
        self.local();
        if goes_back {
            (0..ranks).for_each(|rank| self.renew_from(rank, items, Source::Registered));
        }
        // All ranks take part in the last one: none that is lost before is not missed.
        let count = self.plan.setup.long.min(1 + self.random.below(4));
        let parts = vec![Part::Elements { count, op: self.op() }];
        self.add(Call { parts, is_group: true });
        if goes_back {
            // Registered memory goes back under a collective that never ends.
            (0..ranks).for_each(|rank| self.renew(rank, items));
        }
        if let Some((rank, way)) = lost {
            self.lose(rank, way);
        }
        for rank in 0..ranks {
            for item in 0..=items {
                self.read(rank, item);
            }
        }
    }

    fn op(&mut self) -> aquifer::collective::ReduceOp {
        self.random.pick(&REDUCTIONS)
    }

    fn step(&mut self, rank: usize, op: Op) {
        self.plan.steps.push(Step::Local { rank, op });
    }

    fn add(&mut self, call: Call) {
        call.parts.iter().for_each(|part| part.apply(&mut self.values));
        let unsaid: Vec<Place> = call.parts.iter().filter_map(Part::unsaid).collect();
        self.plan.steps.push(Step::Call(self.plan.calls.len()));
        self.plan.calls.push(call);
        let ranks = self.plan.setup.ranks;
        for Place { item, from, length } in unsaid {
            for rank in 0..ranks {
                let (own, part) = (from + rank * (length / ranks), length / ranks);
                for (from, end) in [(from, own), (own + part, from + length)] {
                    if from < end {
                        let value = self.value();
                        self.fill(rank, Place { item, from, length: end - from }, value);
                    }
                }
            }
        }
    }

    /// A value that nothing of this program held. Additions of one stay below the next.
    fn value(&mut self) -> u32 {
        self.next = self.next.wrapping_add(0x1_0000);
        self.next
    }

    fn source(&mut self) -> Source {
        match self.plan.setup.registers {
            true => self.random.pick(&[Source::Pool, Source::RegisteredPool, Source::Registered]),
            false => Source::Pool,
        }
    }

    fn home(&mut self) -> usize {
        self.random.below(self.plan.setup.streams)
    }

    fn item(&mut self) -> usize {
        self.random.below(self.plan.setup.items)
    }

    fn renew(&mut self, rank: usize, item: usize) {
        let source = self.source();
        self.renew_from(rank, item, source);
    }

    fn renew_from(&mut self, rank: usize, item: usize, source: Source) {
        let (home, value) = (self.home(), self.value());
        let is_buffer = self.random.one_in(4);
        let length = self.values[rank][item].len();
        self.values[rank][item].fill(value);
        self.step(rank, Op::Renew { item, length, home, source, is_buffer, value });
    }

    fn read(&mut self, rank: usize, item: usize) {
        let expected = self.values[rank][item].clone();
        self.step(rank, Op::Read { item, expected });
    }

    fn fill(&mut self, rank: usize, place: Place, value: u32) {
        self.values[rank][place.item][place.range()].fill(value);
        self.step(rank, Op::Fill { place, value });
    }

    /// A part of an item: all of it half of the time.
    fn place(&mut self, item: usize) -> Place {
        let whole = self.plan.setup.length;
        if self.random.one_in(2) {
            return Place { item, from: 0, length: whole };
        }
        let length = 1 + self.random.below(whole);
        Place { item, from: self.random.below(whole - length + 1), length }
    }

    /// What the ranks do between two calls.
    fn local(&mut self) {
        for rank in 0..self.plan.setup.ranks {
            for _ in 0..self.random.below(4) {
                self.local_of(rank);
            }
        }
    }

    fn local_of(&mut self, rank: usize) {
        let (item, stream) = (self.item(), self.home());
        match self.random.below(20) {
            0..4 => {
                let (place, value) = (self.place(item), self.value());
                self.fill(rank, place, value);
            }
            4 => {
                let value = self.value();
                self.values[rank][item].fill(value);
                self.step(rank, Op::Write { item, value });
            }
            5..8 => {
                let place = self.place(item);
                for value in &mut self.values[rank][item][place.range()] {
                    *value = value.wrapping_add(1);
                }
                self.step(rank, Op::AddOne { place, stream });
            }
            8..10 => {
                let to = (item + 1) % self.plan.setup.items;
                self.values[rank][to] = self.values[rank][item].clone();
                self.step(rank, Op::Copy { from: item, to, stream });
            }
            10..13 => self.renew(rank, item),
            13 => self.step(rank, Op::Move { item, home: stream }),
            14 => {
                let source = self.source();
                self.step(rank, Op::Passing { home: stream, source });
            }
            15..17 => self.read(rank, item),
            17 => self.step(rank, Op::Synchronize),
            18 if self.plan.setup.registers => {
                let failing = self.random.one_in(2).then(|| 1 + self.random.below(3) as u64);
                self.step(rank, Op::Register { failing });
            }
            18 => {}
            _ => self.step(rank, Op::Trim),
        }
    }

    fn call(&mut self) {
        let mut free: Vec<usize> = (0..self.plan.setup.items).collect();
        self.random.shuffle(&mut free);
        let is_group = self.random.one_in(3);
        let most = if is_group { 1 + self.random.below(3) } else { 1 };
        let mut parts = Vec::new();
        // Each part has memory of its own.
        while parts.len() < most
            && let [.., one, other] = free[..]
        {
            free.truncate(free.len() - 2);
            parts.push(self.part(one, other));
        }
        self.add(Call { parts, is_group });
    }

    fn part(&mut self, one: usize, other: usize) -> Part {
        let Setup { ranks, length, .. } = self.plan.setup;
        let (send, receive) = (self.place(one), self.place(other));
        // As long as the other, where the two have one length.
        let same = Place { item: other, from: send.from, length: send.length };
        if self.random.one_in(4) {
            return match self.random.one_in(2) {
                true => Part::Ring { by: 1 + self.random.below(ranks - 1), send, receive: same },
                false => {
                    let from = self.random.below(ranks);
                    let to = (from + 1 + self.random.below(ranks - 1)) % ranks;
                    Part::Pair { from, to, send, receive: same }
                }
            };
        }
        let (kind, op, root) = (self.random.pick(&Kind::ALL), self.op(), self.random.below(ranks));
        let in_place = self.random.one_in(2);
        let (send, receive) = match kind {
            Kind::AllReduce | Kind::Reduce | Kind::Broadcast => (send, same),
            Kind::ReduceScatter | Kind::AllGather => {
                let part = 1 + self.random.below(length / ranks);
                let whole = Place { length: part * ranks, from: 0, ..send };
                let part = Place { length: part, from: receive.from.min(length - part), ..receive };
                if kind == Kind::AllGather { (part, whole) } else { (whole, part) }
            }
        };
        Part::All { kind, in_place, op, root, send, receive }
    }

    /// Many collectives of few elements, alone and in groups, while one rank is late.
    fn run_ahead(&mut self) {
        let Setup { ranks, long, .. } = self.plan.setup;
        let late = self.random.below(ranks);
        self.step(late, Op::Late);
        let mut left = 150 + self.random.below(250);
        while left > 0 {
            let count = match self.random.below(4) {
                0 => long,
                1 => 1 + self.random.below(long),
                2 => 1 + self.random.below(long.min(20)),
                _ => 1,
            };
            let (op, is_group) = (self.op(), count > 1 || self.random.one_in(2));
            self.add(Call { parts: vec![Part::Elements { count, op }], is_group });
            left = left.saturating_sub(count);
        }
    }

    /// A rank that is to be lost, and how.
    fn lost_rank(&mut self) -> (usize, Way) {
        use Way::{Aborts, Drops, Fails, LosesDevice, Stops, Unwinds};
        let rank = self.random.below(self.plan.setup.ranks);
        // Those in one group give each call together, and go on.
        let way = match self.plan.setup.is_together(rank) {
            true => self.random.pick(&[Aborts, Fails, LosesDevice]),
            false => match self.random.one_in(12) {
                true => Stops,
                false => self.random.pick(&[Drops, Aborts, Unwinds, Fails, LosesDevice]),
            },
        };
        (rank, way)
    }

    /// Loses a rank before the last call half of the time, when the others have given theirs.
    fn lose(&mut self, rank: usize, way: Way) {
        let last = self.plan.calls.len() - 1;
        let at = if self.random.one_in(2) { last } else { self.random.below(last + 1) };
        self.plan.setup.loss = Some(Loss { rank, at, way });
        if at == last || self.random.one_in(2) {
            let call = |step: &Step| matches!(step, Step::Call(call) if *call == at);
            let found = self.plan.steps.iter().position(call).unwrap_or(0);
            self.plan.steps.insert(found, Step::Local { rank, op: Op::Late });
        }
    }
}
