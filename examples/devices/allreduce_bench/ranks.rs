//! The ranks: a thread for each device, which times all kinds of memory in turns.

use crate::Plan;
use crate::baseline::{self, Baseline, UniqueId};
use crate::output::Outcome;
use aquifer::{
    Communicator, CudaResource, Device, DeviceResource, DeviceVec, PoolResource,
    collective::{CommunicatorId, ReduceOp, RegisteringAdaptor},
    mr::NcclResource,
};
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// A kind of memory, and who calls NCCL with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// `cudaMalloc`'s, by calls of cudarc's.
    Baseline,
    /// The same, registered with NCCL.
    BaselineRegistered,
    /// `CudaResource`'s, by Aquifer, as the others.
    Plain,
    /// A pool over a `RegisteringAdaptor` over that.
    Pooled,
    /// The same over an `NcclResource`.
    PooledNccl,
}

impl Kind {
    /// The letter and the words of the table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "a: cudarc, plain",
            Self::BaselineRegistered => "r: cudarc, registered",
            Self::Plain => "b: plain",
            Self::Pooled => "c: pooled, registered",
            Self::PooledNccl => "d: pooled, NCCL's",
        }
    }
}

/// What was timed: bytes, kind, whether in place.
pub(crate) type Key = (usize, Kind, bool);

/// The time of one all-reduce, of each round.
pub(crate) type Times = BTreeMap<Key, Vec<Duration>>;

/// The times of the slowest rank, and why the baseline is missing if it is.
pub(crate) fn time(devices: &[Device], plan: &Plan) -> Outcome<(Times, Option<String>)> {
    let Some(first) = devices.first() else { return Err("no device was given".into()) };
    // Aquifer first: without NCCL it has an error, where cudarc panics.
    let id = CommunicatorId::new(first)?;
    let (baseline, missing) = match first.cuda_context() {
        Ok(_) => baseline::new_ids()?.map_or_else(|why| (None, Some(why)), |ids| (Some(ids), None)),
        Err(_) => (None, Some("no NCCL takes part, which cudarc could call".to_owned())),
    };
    let ranks = devices.len();
    let barrier = Barrier::new(ranks);
    let all = std::thread::scope(|threads| {
        let spawn = |(rank, device)| {
            let barrier = &barrier;
            threads.spawn(move || {
                let timed = Rank { device, rank, ranks, barrier, plan }.time(&id, baseline);
                timed.unwrap_or_else(|error| {
                    // The other ranks wait for this one, at the barrier or in NCCL: no end but the process's.
                    eprintln!("allreduce_bench: rank {rank}: {error}");
                    std::process::exit(1)
                })
            })
        };
        let threads: Vec<_> = devices.iter().enumerate().map(spawn).collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect::<Vec<Times>>()
    });
    let mut slowest = Times::new();
    for (key, rounds) in all.into_iter().flatten() {
        let known = slowest.entry(key).or_insert_with(|| vec![Duration::ZERO; rounds.len()]);
        known.iter_mut().zip(rounds).for_each(|(known, time)| *known = time.max(*known));
    }
    Ok((slowest, missing))
}

/// One rank, on its thread.
struct Rank<'a> {
    device: &'a Device,
    rank: usize,
    ranks: usize,
    barrier: &'a Barrier,
    plan: &'a Plan,
}

impl Rank<'_> {
    fn time(&self, id: &CommunicatorId, baseline: Option<[UniqueId; 2]>) -> Outcome<Times> {
        let &Self { device, rank, ranks, plan, .. } = self;
        let stream = device.new_stream()?;
        let plain = RegisteringAdaptor::new(CudaResource::new(device));
        let nccls = RegisteringAdaptor::new(NcclResource::new(device));
        let pools = (PoolResource::new(plain.clone())?, PoolResource::new(nccls.clone())?);
        // SAFETY: all ranks go through the same plan in the same order.
        let communicator = &unsafe { Communicator::new(&stream, id, rank, ranks)? };
        plain.register_with(communicator)?;
        nccls.register_with(communicator)?;

        let largest = plan.sizes.last().copied().unwrap_or_default();
        let mut kinds = vec![
            (Kind::Plain, Memory::new(communicator, largest, CudaResource::new(device))?),
            (Kind::Pooled, Memory::new(communicator, largest, pools.0)?),
            (Kind::PooledNccl, Memory::new(communicator, largest, pools.1)?),
        ];
        for (id, is_registered) in baseline.into_iter().flatten().zip([false, true]) {
            let baseline = Baseline::new(device, id, rank, ranks, largest, is_registered)?;
            let kind = if is_registered { Kind::BaselineRegistered } else { Kind::Baseline };
            kinds.push((kind, Memory::Cudarcs(baseline)));
        }
        if plain.registered_blocks() == 0 || nccls.registered_blocks() == 0 {
            return Err("the pools have no memory that is registered with NCCL".into());
        }
        for (kind, memory) in &mut kinds {
            memory.check(ranks, largest).map_err(|error| format!("{}: {error}", kind.name()))?;
        }
        let mut times = Times::new();
        for &bytes in &plan.sizes {
            self.time_size(bytes, &mut kinds, &mut times)?;
        }
        Ok(times)
    }

    /// The rounds go through all kinds, each beginning with another, so that a change of the machine's speed, and what
    /// one kind leaves to the next, fall on all.
    fn time_size(
        &self,
        bytes: usize,
        kinds: &mut [(Kind, Memory<'_>)],
        times: &mut Times,
    ) -> Outcome {
        let count = bytes / size_of::<f32>();
        let iterations = self.plan.iterations(bytes);
        for (_, memory) in kinds.iter_mut() {
            for in_place in [false, true] {
                memory.all_reduce(count, in_place, iterations.div_ceil(10).max(2))?;
            }
        }
        for _ in 0..self.plan.rounds(bytes) {
            for (kind, memory) in kinds.iter_mut() {
                for in_place in [false, true] {
                    memory.all_reduce(count, in_place, 2)?;
                    self.barrier.wait();
                    let start = Instant::now();
                    memory.all_reduce(count, in_place, iterations)?;
                    let time = start.elapsed() / iterations as u32;
                    times.entry((bytes, *kind, in_place)).or_default().push(time);
                }
            }
            kinds.rotate_left(1);
        }
        Ok(())
    }
}

/// What is sent and received, zero between the checks: sums of zero stay so, however often.
enum Memory<'a> {
    Cudarcs(Baseline),
    Aquifers { communicator: &'a Communicator, send: DeviceVec<f32>, receive: DeviceVec<f32> },
}

impl<'a> Memory<'a> {
    fn new(
        communicator: &'a Communicator,
        bytes: usize,
        resource: impl DeviceResource + Clone + 'static,
    ) -> aquifer::Result<Self> {
        let (stream, count) = (communicator.stream(), bytes / size_of::<f32>());
        let send = DeviceVec::zeroed_in(stream, count, resource.clone())?;
        let receive = DeviceVec::zeroed_in(stream, count, resource)?;
        Ok(Self::Aquifers { communicator, send, receive })
    }

    /// All-reduces the first `count` elements so many times, and waits for the stream.
    fn all_reduce(&mut self, count: usize, in_place: bool, times: usize) -> Outcome {
        match self {
            Self::Cudarcs(baseline) => baseline.all_reduce(count, in_place, times),
            Self::Aquifers { communicator, send, receive } => {
                let (send, mut receive) = (send.slice(..count)?, receive.slice_mut(..count)?);
                for _ in 0..times {
                    match in_place {
                        true => communicator.all_reduce_in_place(&mut receive, ReduceOp::Sum)?,
                        false => communicator.all_reduce(&send, &mut receive, ReduceOp::Sum)?,
                    }
                }
                // Not the communicator's own wait, which has a time limit: each kind waits as the baseline does.
                Ok(communicator.stream().synchronize()?)
            }
        }
    }

    /// Whether ones become the number of ranks, both ways.
    fn check(&mut self, ranks: usize, bytes: usize) -> Outcome {
        let count = (bytes / size_of::<f32>()).min(1024);
        for in_place in [false, true] {
            self.set(&vec![1.0; count])?;
            self.all_reduce(count, in_place, 1)?;
            let sums = self.received(count)?;
            if sums.iter().any(|&sum| sum != ranks as f32) {
                return Err("an all-reduce gave a wrong sum".into());
            }
        }
        self.set(&vec![0.0; count])
    }

    fn set(&mut self, values: &[f32]) -> Outcome {
        match self {
            Self::Cudarcs(baseline) => baseline.set(values),
            Self::Aquifers { send, receive, .. } => {
                send.slice_mut(..values.len())?.copy_from_slice(values)?;
                Ok(receive.slice_mut(..values.len())?.copy_from_slice(values)?)
            }
        }
    }

    fn received(&self, count: usize) -> Outcome<Vec<f32>> {
        match self {
            Self::Cudarcs(baseline) => {
                let mut values = vec![0.0; count];
                baseline.received(&mut values)?;
                Ok(values)
            }
            Self::Aquifers { receive, .. } => Ok(receive.slice(..count)?.to_vec()?),
        }
    }
}
