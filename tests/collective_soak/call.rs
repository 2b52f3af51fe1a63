//! The collectives that all ranks give at once, and what they make of the values.

use aquifer::collective::ReduceOp;
use std::ops::Range;

pub(crate) const REDUCTIONS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Max, ReduceOp::Min, ReduceOp::Average];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce,
    Reduce,
    ReduceScatter,
    Broadcast,
    AllGather,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] =
        [Self::AllReduce, Self::Reduce, Self::ReduceScatter, Self::Broadcast, Self::AllGather];
}

/// Elements of an item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) item: usize,
    pub(crate) from: usize,
    pub(crate) length: usize,
}

impl Place {
    pub(crate) fn range(self) -> Range<usize> {
        self.from..self.from + self.length
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Part {
    /// One of all ranks. In place, it uses the longer of both places alone.
    All { kind: Kind, in_place: bool, op: ReduceOp, root: usize, send: Place, receive: Place },
    /// One rank sends to another.
    Pair { from: usize, to: usize, send: Place, receive: Place },
    /// Each rank sends to the one that is so many behind it.
    Ring { by: usize, send: Place, receive: Place },
    /// An all-reduce of each of the first elements of the long item.
    Elements { count: usize, op: ReduceOp },
}

/// What the ranks give together: in a group, or alone where a thread has one rank and there is one collective.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) parts: Vec<Part>,
    pub(crate) is_group: bool,
}

/// What one rank gives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    All { kind: Kind, op: ReduceOp, root: usize },
    Send(usize),
    Receive(usize),
}

/// What one rank gives, and the memory that it is of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) action: Action,
    pub(crate) send: Option<Place>,
    pub(crate) receive: Option<Place>,
}

impl Call {
    /// The collectives of a rank.
    pub(crate) fn own(&self, rank: usize, ranks: usize) -> usize {
        self.parts.iter().map(|part| part.own(rank, ranks)).sum()
    }

    /// Whether `rank` waits for `other` in it.
    pub(crate) fn has_both(&self, rank: usize, other: usize, ranks: usize) -> bool {
        self.parts.iter().any(|part| part.has_both(rank, other, ranks))
    }
}

impl Part {
    fn own(&self, rank: usize, ranks: usize) -> usize {
        match self {
            Self::Elements { count, .. } => *count,
            _ => self.shares(rank, ranks, 0).len(),
        }
    }

    fn has_both(&self, rank: usize, other: usize, ranks: usize) -> bool {
        match *self {
            Self::All { .. } | Self::Elements { .. } => true,
            Self::Pair { from, to, .. } => [(from, to), (to, from)].contains(&(rank, other)),
            Self::Ring { by, .. } => (rank + by) % ranks == other || (other + by) % ranks == rank,
        }
    }

    /// What a rank gives. `long` is the number of the long item.
    pub(crate) fn shares(&self, rank: usize, ranks: usize, long: usize) -> Vec<Share> {
        let sends =
            |peer, send| Share { action: Action::Send(peer), send: Some(send), receive: None };
        let receives = |peer, receive| Share {
            action: Action::Receive(peer),
            send: None,
            receive: Some(receive),
        };
        match *self {
            Self::All { kind, in_place, op, root, send, receive } => {
                let whole = if send.length > receive.length { send } else { receive };
                let action = Action::All { kind, op, root };
                vec![match in_place {
                    true => Share { action, send: None, receive: Some(whole) },
                    false => Share { action, send: Some(send), receive: Some(receive) },
                }]
            }
            Self::Pair { from, to, send, receive } => {
                let sent = (rank == from).then(|| sends(to, send));
                sent.into_iter().chain((rank == to).then(|| receives(from, receive))).collect()
            }
            Self::Ring { by, send, receive } => {
                vec![
                    sends((rank + by) % ranks, send),
                    receives((rank + ranks - by) % ranks, receive),
                ]
            }
            Self::Elements { count, op } => {
                let action = Action::All { kind: Kind::AllReduce, op, root: 0 };
                let place = |from| Place { item: long, from, length: 1 };
                let share = |from| Share { action, send: None, receive: Some(place(from)) };
                (0..count).map(share).collect()
            }
        }
    }

    /// The elements of which the documentation does not say what they hold then, besides the rank's own part.
    pub(crate) fn unsaid(&self) -> Option<Place> {
        match *self {
            Self::All { kind: Kind::ReduceScatter, in_place: true, send, .. } => Some(send),
            _ => None,
        }
    }

    /// Does to the values of all ranks what the part does to their memory.
    pub(crate) fn apply(&self, values: &mut [Vec<Vec<u32>>]) {
        let ranks = values.len();
        let read = |values: &[Vec<Vec<u32>>], rank: usize, place: Place| {
            values[rank][place.item][place.range()].to_vec()
        };
        match *self {
            Self::All { kind, in_place, op, root, send, receive } => {
                let whole = if send.length > receive.length { send } else { receive };
                let (send, receive) = if in_place { (whole, whole) } else { (send, receive) };
                let part = whole.length / ranks;
                let own =
                    |rank: usize| Place { from: whole.from + rank * part, length: part, ..whole };
                for (rank, result) in (0..ranks).zip(match kind {
                    Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter => {
                        let all: Vec<_> = (0..ranks).map(|rank| read(values, rank, send)).collect();
                        vec![reduce(&all, op); ranks]
                    }
                    Kind::Broadcast => vec![read(values, root, send); ranks],
                    Kind::AllGather => {
                        let sent = |rank| if in_place { own(rank) } else { send };
                        let all = (0..ranks).flat_map(|rank| read(values, rank, sent(rank)));
                        vec![all.collect(); ranks]
                    }
                }) {
                    match kind {
                        Kind::Reduce if rank != root => {}
                        Kind::ReduceScatter => {
                            let to = if in_place { own(rank) } else { receive };
                            let result = &result[rank * part..][..part];
                            values[rank][to.item][to.range()].copy_from_slice(result);
                        }
                        _ => values[rank][receive.item][receive.range()].copy_from_slice(&result),
                    }
                }
            }
            Self::Pair { from, to, send, receive } => {
                let sent = read(values, from, send);
                values[to][receive.item][receive.range()].copy_from_slice(&sent);
            }
            Self::Ring { by, send, receive } => {
                let all: Vec<_> = (0..ranks).map(|rank| read(values, rank, send)).collect();
                for (rank, sent) in all.iter().enumerate() {
                    let to = (rank + by) % ranks;
                    values[to][receive.item][receive.range()].copy_from_slice(sent);
                }
            }
            Self::Elements { count, op } => {
                let long = values[0].len() - 1;
                let place = Place { item: long, from: 0, length: count };
                let all: Vec<_> = (0..ranks).map(|rank| read(values, rank, place)).collect();
                let result = reduce(&all, op);
                for values in values {
                    values[long][..count].copy_from_slice(&result);
                }
            }
        }
    }
}

fn reduce(all: &[Vec<u32>], op: ReduceOp) -> Vec<u32> {
    let one = |at: usize| {
        let each = all.iter().map(|values| values[at]);
        match op {
            ReduceOp::Sum => each.fold(0, u32::wrapping_add),
            ReduceOp::Product => each.fold(1, u32::wrapping_mul),
            ReduceOp::Max => each.max().unwrap_or(0),
            ReduceOp::Min => each.min().unwrap_or(0),
            ReduceOp::Average => (each.map(u64::from).sum::<u64>() / all.len() as u64) as u32,
        }
    };
    (0..all[0].len()).map(one).collect()
}
