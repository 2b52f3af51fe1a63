//! Communicators of simulated devices, with their ranks and what they exchange.
//!
//! A collective is an [`Exchange`] of its ranks. Each rank's stream has three operations of it. One brings the rank's
//! own part, one waits for the parts of all, and one writes the result. So a rank that does not come holds up the
//! streams of the others, as on a GPU.
//!
//! | state of an exchange | its fence | next |
//! | --- | --- | --- |
//! | begun by the first rank that calls | counts the parts that are missing | complete, cancelled |
//! | complete: each part is there | signaled | gone with the last operation |
//! | cancelled: a rank is lost | signaled | gone; its results are not written |

use super::fence::SimFence;
use crate::check::OpName;
use aquifer_collective::{CollectiveWork, ReduceOp, Reduction, UniqueId};
use aquifer_driver::DeviceRange;
use aquifer_sync::Arc;
use aquifer_sync::trusted::{AtomicUsize, Mutex, Ordering};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The terms that the ranks of an exchange have to agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreed {
    AllReduce(Reduction),
    Reduce(Reduction, usize),
    ReduceScatter(Reduction),
    Broadcast(usize, usize),
    AllGather(usize),
    /// A transfer from one rank to another.
    Pair(usize),
}

/// Identifies an exchange in its clique, as the n-th of all ranks, or the n-th from a rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ExchangeKey {
    All(u64),
    Pair { from: usize, to: usize, nth: u64 },
}

/// One collective, or one send with its receive.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) agreed: Agreed,
    /// Signaled when each rank has brought its part.
    pub(crate) fence: Arc<SimFence>,
    /// The first rank that called, and its call.
    pub(crate) first: (usize, OpName),
    since: Instant,
    /// The number of ranks that have called, under the lock of the state.
    callers: AtomicUsize,
    parts: Mutex<Vec<Option<Vec<u8>>>>,
}

impl Exchange {
    /// Whether each rank has called. Then the exchange is on its way, however long that is.
    fn is_called(&self) -> bool {
        self.callers.load(Ordering::Relaxed) >= self.parts.lock().len()
    }

    /// Takes a part. A refused operation may name a place that does not exist, whose part is dropped.
    pub(crate) fn bring(&self, rank: usize, part: Vec<u8>) {
        if let Some(slot) = self.parts.lock().get_mut(rank) {
            *slot = Some(part);
        }
    }

    /// The bytes that a rank receives. `None` if a part of them never came.
    pub(crate) fn result_for(&self, rank: usize) -> Option<Vec<u8>> {
        let parts = self.parts.lock();
        let part = |rank: usize| parts.get(rank)?.as_deref();
        let all = || parts.iter().map(|part| part.as_deref()).collect::<Option<Vec<&[u8]>>>();
        match self.agreed {
            Agreed::AllReduce(reduction) | Agreed::Reduce(reduction, _) => {
                let bytes = reduction.count * reduction.element.bytes();
                let parts = all()?.into_iter().map(|part| part.get(..bytes));
                Some(reduce(reduction, &parts.collect::<Option<Vec<_>>>()?))
            }
            Agreed::ReduceScatter(reduction) => {
                let bytes = reduction.count * reduction.element.bytes();
                let own = rank * bytes..(rank + 1) * bytes;
                let parts = all()?.into_iter().map(|part| part.get(own.clone()));
                Some(reduce(reduction, &parts.collect::<Option<Vec<_>>>()?))
            }
            Agreed::Broadcast(_, root) => part(root).map(<[u8]>::to_vec),
            Agreed::AllGather(_) => Some(all()?.concat()),
            // The sender's part stands first.
            Agreed::Pair(_) => part(0).map(<[u8]>::to_vec),
        }
    }
}

/// Reduces an element of all ranks to one, by its bytes.
macro_rules! reduce_as {
    ($type:ty, $wide:ty, $op:expr, $parts:expr, $at:expr) => {{
        const SIZE: usize = size_of::<$type>();
        let mut values = $parts.iter().map(|part| {
            let mut bytes = [0; SIZE];
            bytes.copy_from_slice(&part[$at * SIZE..($at + 1) * SIZE]);
            <$type>::from_ne_bytes(bytes)
        });
        let first = values.next().unwrap_or_default();
        let value = match $op {
            ReduceOp::Sum => values.fold(first, |sum, value| wrapping!(sum, +, value, $wide)),
            ReduceOp::Product => values.fold(first, |product, value| wrapping!(product, *, value, $wide)),
            ReduceOp::Max => values.fold(first, |most, value| if value > most { value } else { most }),
            ReduceOp::Min => values.fold(first, |least, value| if value < least { value } else { least }),
            ReduceOp::Average => {
                let sum = values.fold(first as $wide, |sum, value| sum + value as $wide);
                (sum / $parts.len() as $wide) as $type
            }
        };
        value.to_ne_bytes().to_vec()
    }};
}

/// Arithmetic in a type that has room, cut to the element's own. So integers wrap as on a GPU.
macro_rules! wrapping {
    ($left:expr, $op:tt, $right:expr, $wide:ty) => {
        ($left as $wide $op $right as $wide) as _
    };
}
fn reduce(Reduction { count, element, op }: Reduction, parts: &[&[u8]]) -> Vec<u8> {
    use aquifer_collective::ElementType;
    let one = |at: usize| match element {
        ElementType::I8 => reduce_as!(i8, i128, op, parts, at),
        ElementType::U8 => reduce_as!(u8, u128, op, parts, at),
        ElementType::I32 => reduce_as!(i32, i128, op, parts, at),
        ElementType::U32 => reduce_as!(u32, u128, op, parts, at),
        ElementType::I64 => reduce_as!(i64, i128, op, parts, at),
        ElementType::U64 => reduce_as!(u64, u128, op, parts, at),
        ElementType::F32 => reduce_as!(f32, f32, op, parts, at),
        ElementType::F64 => reduce_as!(f64, f64, op, parts, at),
        #[cfg(feature = "half")]
        ElementType::F16 => reduce_half!(half::f16, op, parts, at),
        #[cfg(feature = "half")]
        ElementType::Bf16 => reduce_half!(half::bf16, op, parts, at),
    };
    (0..count).flat_map(one).collect()
}

/// Reduces halves by `reduce_as`, in `f32`.
#[cfg(feature = "half")]
macro_rules! reduce_half {
    ($type:ty, $op:expr, $parts:expr, $at:expr) => {{
        let wide: Vec<[u8; 4]> = $parts
            .iter()
            .map(|part| {
                let half = <$type>::from_ne_bytes([part[$at * 2], part[$at * 2 + 1]]);
                half.to_f32().to_ne_bytes()
            })
            .collect();
        let wide: Vec<&[u8]> = wide.iter().map(|bytes| &bytes[..]).collect();
        let value = reduce_as!(f32, f32, $op, wide, 0);
        let value = f32::from_ne_bytes([value[0], value[1], value[2], value[3]]);
        <$type>::from_f32(value).to_ne_bytes().to_vec()
    }};
}
#[cfg(feature = "half")]
use reduce_half;

/// The ranks that joined by one [`UniqueId`].
#[derive(Debug)]
pub(crate) struct Clique {
    /// The device of each rank, once it has joined and until it leaves.
    members: Vec<Member>,
    exchanges: HashMap<ExchangeKey, Arc<Exchange>>,
    /// How often each rank called, and each pair.
    calls: Vec<u64>,
    sends: HashMap<(usize, usize), u64>,
    receives: HashMap<(usize, usize), u64>,
    /// The reason why nothing is exchanged any more.
    lost: Option<String>,
    patience: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    Awaited,
    Joined { device: u64 },
    Left,
}

impl Clique {
    pub(crate) fn new(ranks: usize, patience: Duration) -> Self {
        Self {
            members: vec![Member::Awaited; ranks],
            exchanges: HashMap::new(),
            calls: vec![0; ranks],
            sends: HashMap::new(),
            receives: HashMap::new(),
            lost: None,
            patience,
        }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.members.len()
    }

    /// Takes a rank for a device. `false` if the rank is not free, or the device has a rank already.
    pub(crate) fn join(&mut self, rank: usize, device: u64) -> bool {
        if self.members.contains(&Member::Joined { device }) {
            return false;
        }
        match self.members.get_mut(rank) {
            Some(member @ Member::Awaited) => {
                *member = Member::Joined { device };
                true
            }
            _ => false,
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        !self.members.contains(&Member::Awaited)
    }

    /// Whether no rank is left that could exchange anything.
    pub(crate) fn is_over(&self) -> bool {
        !self.members.iter().any(|member| matches!(member, Member::Joined { .. }))
    }

    pub(crate) fn device_of(&self, rank: usize) -> Option<u64> {
        match self.members.get(rank) {
            Some(Member::Joined { device }) => Some(*device),
            _ => None,
        }
    }

    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Ends a rank's exchanges. Exchanges that the others began with it end without a result.
    pub(crate) fn leave(&mut self, rank: usize) {
        if let Some(member) = self.members.get_mut(rank) {
            *member = Member::Left;
        }
        self.exchanges.retain(|_, exchange| !exchange.fence.is_signaled());
        let is_of = |key: &ExchangeKey| match *key {
            ExchangeKey::All(_) => true,
            ExchangeKey::Pair { from, to, .. } => from == rank || to == rank,
        };
        if self.exchanges.keys().any(is_of) {
            self.lose(format!("rank {rank} among {} ranks has left", self.ranks()));
        }
    }

    /// Notes that a device is lost, with the parts that its ranks were to bring.
    fn lose_device(&mut self, device: u64) {
        if let Some(rank) = self.members.iter().position(|it| *it == Member::Joined { device }) {
            self.lose(format!("the device of rank {rank} among {} is lost", self.ranks()));
        }
    }

    /// Ends all exchanges without a result, and refuses new ones.
    pub(crate) fn lose(&mut self, why: String) {
        self.lost.get_or_insert(why);
        for (_, exchange) in self.exchanges.drain() {
            exchange.fence.cancel();
        }
    }

    /// The exchange that a call of a rank is part of, or why there is none. Its first call begins the exchange.
    pub(crate) fn exchange(
        &mut self,
        rank: usize,
        work: &CollectiveWork,
        name: OpName,
    ) -> Result<Arc<Exchange>, Refusal> {
        if let Some(why) = &self.lost {
            return Err(Refusal::Lost(why.clone()));
        }
        let mut of_work = match *work {
            CollectiveWork::Send { peer, .. } | CollectiveWork::Receive { peer, .. } => {
                peer..peer + 1
            }
            _ => 0..self.members.len(),
        };
        if let Some(left) = of_work.find(|&rank| self.members.get(rank) == Some(&Member::Left)) {
            let why = format!("rank {left} among {} ranks has left", self.ranks());
            self.lose(why.clone());
            return Err(Refusal::Lost(why));
        }
        let agreed = agreed(work);
        let key = self.next_key(rank, work);
        let devices = self.members.iter().filter_map(|member| match member {
            Member::Joined { device } => Some(*device),
            _ => None,
        });
        let parts = match key {
            ExchangeKey::All(_) => self.members.len(),
            ExchangeKey::Pair { .. } => 2,
        };
        let fence = || SimFence::of_ranks(devices.collect(), parts);
        let exchange = self.exchanges.entry(key).or_insert_with(|| {
            let (first, since) = ((rank, name), Instant::now());
            Arc::new(Exchange {
                agreed,
                fence: fence(),
                first,
                since,
                callers: AtomicUsize::new(0),
                parts: Mutex::new(vec![None; parts]),
            })
        });
        let exchange = Arc::clone(exchange);
        exchange.callers.fetch_add(1, Ordering::Relaxed);
        if exchange.agreed != agreed {
            return Err(Refusal::Mismatch(exchange));
        }
        Ok(exchange)
    }

    fn next_key(&mut self, rank: usize, work: &CollectiveWork) -> ExchangeKey {
        let mut next = |pairs: bool, from: usize, to: usize| {
            let calls = if pairs { &mut self.sends } else { &mut self.receives };
            let count = calls.entry((from, to)).or_default();
            *count += 1;
            ExchangeKey::Pair { from, to, nth: *count }
        };
        match *work {
            CollectiveWork::Send { peer, .. } => next(true, rank, peer),
            CollectiveWork::Receive { peer, .. } => next(false, peer, rank),
            _ => {
                self.calls[rank] += 1;
                ExchangeKey::All(self.calls[rank])
            }
        }
    }

    /// Forgets exchanges that are over, and gives up if one has waited too long for a rank. Returns the call that
    /// waits.
    pub(crate) fn expire(&mut self) -> Option<OpName> {
        self.exchanges.retain(|_, exchange| !exchange.fence.is_signaled());
        let late = |exchange: &&Arc<Exchange>| {
            !exchange.is_called() && exchange.since.elapsed() > self.patience
        };
        let (rank, name) = self.exchanges.values().find(late)?.first;
        let why = format!(
            "{} of rank {rank} waited {:?} for another of the {} ranks",
            name.call,
            self.patience,
            self.ranks()
        );
        self.lose(why);
        Some(name)
    }
}

/// Why a call is part of no exchange.
#[derive(Debug)]
pub(crate) enum Refusal {
    Lost(String),
    /// Another rank has called something else.
    Mismatch(Arc<Exchange>),
}

pub(crate) fn agreed(work: &CollectiveWork) -> Agreed {
    match *work {
        CollectiveWork::AllReduce { reduction, .. } => Agreed::AllReduce(reduction),
        CollectiveWork::Reduce { reduction, root, .. } => Agreed::Reduce(reduction, root),
        CollectiveWork::ReduceScatter { reduction, .. } => Agreed::ReduceScatter(reduction),
        CollectiveWork::Broadcast { bytes, root, .. } => Agreed::Broadcast(bytes, root),
        CollectiveWork::AllGather { bytes, .. } => Agreed::AllGather(bytes),
        CollectiveWork::Send { bytes, .. } | CollectiveWork::Receive { bytes, .. } => {
            Agreed::Pair(bytes)
        }
    }
}

/// A range that a communicator knows.
#[derive(Debug)]
pub(crate) struct Registered {
    communicator: u64,
    pub(crate) range: DeviceRange,
    /// The last operation that each stream was given before. Operations up to it do not use the
    /// registration.
    given_before: HashMap<u64, u64>,
}

impl Registered {
    /// Whether an operation was given before the range was registered.
    pub(crate) fn is_before(&self, stream: u64, tick: u64) -> bool {
        self.given_before.get(&stream).is_some_and(|last| tick <= *last)
    }
}

/// All communicators of simulated devices.
#[derive(Debug, Default)]
pub(crate) struct Cliques {
    cliques: HashMap<UniqueId, Clique>,
    /// The clique and the rank of each communicator.
    communicators: HashMap<u64, (UniqueId, usize)>,
    /// The ranges that are registered, by their handles.
    registered: HashMap<u64, Registered>,
}

impl Cliques {
    pub(crate) fn is_empty(&self) -> bool {
        self.cliques.is_empty()
    }

    /// The clique of an id, which is begun if there is none.
    pub(crate) fn of_id(&mut self, id: &UniqueId, ranks: usize, patience: Duration) -> &mut Clique {
        self.cliques.entry(*id).or_insert_with(|| Clique::new(ranks, patience))
    }

    pub(crate) fn get(&self, id: &UniqueId) -> Option<&Clique> {
        self.cliques.get(id)
    }

    pub(crate) fn insert(&mut self, communicator: u64, id: &UniqueId, rank: usize) {
        self.communicators.insert(communicator, (*id, rank));
    }

    /// Has a communicator know a range by a handle. `given_before` is the last operation that each stream was given.
    pub(crate) fn register(
        &mut self,
        communicator: u64,
        handle: u64,
        range: DeviceRange,
        given_before: HashMap<u64, u64>,
    ) {
        self.registered.insert(handle, Registered { communicator, range, given_before });
    }

    /// Takes out the range that a communicator knew by a handle.
    pub(crate) fn deregister(&mut self, communicator: u64, handle: u64) -> Option<Registered> {
        let is_its = self.registered.get(&handle)?.communicator == communicator;
        if is_its { self.registered.remove(&handle) } else { None }
    }

    /// The clique of a communicator, and its rank there.
    pub(crate) fn of(&mut self, communicator: u64) -> Option<(&mut Clique, usize)> {
        let &(id, rank) = self.communicators.get(&communicator)?;
        Some((self.cliques.get_mut(&id)?, rank))
    }

    /// Takes a communicator out. If it was aborted, its clique is lost.
    pub(crate) fn remove(&mut self, communicator: u64, is_aborted: bool) {
        self.registered.retain(|_, registered| registered.communicator != communicator);
        let Some((id, rank)) = self.communicators.remove(&communicator) else { return };
        let Some(clique) = self.cliques.get_mut(&id) else { return };
        clique.leave(rank);
        if is_aborted {
            clique.lose(format!("rank {rank} among {} ranks has left", clique.ranks()));
        }
        if clique.is_over() {
            self.cliques.remove(&id);
        }
    }

    pub(crate) fn lose_device(&mut self, device: u64) {
        self.cliques.values_mut().for_each(|clique| clique.lose_device(device));
    }

    /// Whether a communicator is of a clique that was not given up.
    pub(crate) fn has(&self, communicator: u64) -> bool {
        self.communicators.contains_key(&communicator)
    }

    /// Takes out a clique that never became complete.
    pub(crate) fn give_up(&mut self, id: &UniqueId) {
        self.cliques.remove(id);
        self.communicators.retain(|_, (of, _)| of != id);
    }

    /// The calls that have waited too long for a rank.
    pub(crate) fn expire(&mut self) -> Vec<OpName> {
        self.cliques.values_mut().filter_map(Clique::expire).collect()
    }
}
