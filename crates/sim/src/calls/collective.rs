//! Communicators of simulated devices, within the process.

use super::call::{Call, is_of_nccl, lose_if_said};
use super::enqueue::OpRequest;
use crate::check::{AccessStamp, OpName, ReportedMemory, Violation};
use crate::driver::SimDriver;
use crate::state::{
    AddressSpace, Agreed, BlockKind, Cliques, Exchange, LookupError, OpWork, Refusal, SimContext,
    SimOp, SimState, TouchedRange, agreed, is_seen, notify_changed, wait_changed_for,
};
use aquifer_collective::{
    CollectiveCalls, CollectiveError, CollectiveResult, CollectiveWork, RawCollective,
    RawCommunicator, Reduction, UniqueId,
};
use aquifer_driver::error::DriverError;
use aquifer_driver::{
    Access, CaptureStatus, DeviceAddress, DeviceRange, MemoryCalls, call_not_forked,
};
use aquifer_sync::Arc;
use aquifer_sync::trusted::unique;
use std::any::Any;
use std::error::Error as _;
use std::fmt;
use std::time::{Duration, Instant};

/// How long a wait for other ranks sleeps before it looks at the clock.
const ROUND: Duration = Duration::from_millis(20);

/// The name of the call that asks for a work.
fn call_of(work: &CollectiveWork) -> &'static str {
    match work {
        CollectiveWork::AllReduce { .. } => "ncclAllReduce",
        CollectiveWork::Reduce { .. } => "ncclReduce",
        CollectiveWork::ReduceScatter { .. } => "ncclReduceScatter",
        CollectiveWork::Broadcast { .. } => "ncclBroadcast",
        CollectiveWork::AllGather { .. } => "ncclAllGather",
        CollectiveWork::Send { .. } => "ncclSend",
        CollectiveWork::Receive { .. } => "ncclRecv",
    }
}

/// The memory that a rank brings to an exchange and takes from it, if it does, by addresses and bytes.
struct Sides {
    brings: Option<(DeviceAddress, usize)>,
    takes: Option<(DeviceAddress, usize)>,
}

fn sides(work: &CollectiveWork, rank: usize, ranks: usize) -> Sides {
    let (brings, takes) = match *work {
        CollectiveWork::AllReduce { send, receive, reduction } => {
            let bytes = reduction.count * reduction.element.bytes();
            (Some((send, bytes)), Some((receive, bytes)))
        }
        CollectiveWork::Reduce { send, receive, reduction, root } => {
            let bytes = reduction.count * reduction.element.bytes();
            (Some((send, bytes)), (rank == root).then_some((receive, bytes)))
        }
        CollectiveWork::ReduceScatter { send, receive, reduction } => {
            let bytes = reduction.count * reduction.element.bytes();
            (Some((send, bytes * ranks)), Some((receive, bytes)))
        }
        CollectiveWork::Broadcast { send, receive, bytes, root } => {
            ((rank == root).then_some((send, bytes)), Some((receive, bytes)))
        }
        CollectiveWork::AllGather { send, receive, bytes } => {
            (Some((send, bytes)), Some((receive, bytes * ranks)))
        }
        CollectiveWork::Send { send, bytes, .. } => (Some((send, bytes)), None),
        CollectiveWork::Receive { receive, bytes, .. } => (None, Some((receive, bytes))),
    };
    Sides { brings, takes }
}

/// A rank's share of an exchange that is being enqueued.
struct Share {
    context: Arc<SimContext>,
    stream: u64,
    name: OpName,
    exchange: Arc<Exchange>,
    rank: usize,
    takes: Option<(DeviceAddress, usize)>,
}

/// Gives an injected number of NCCL's as an error of NCCL. Any other error is the device's.
fn of_nccl(error: DriverError) -> CollectiveError {
    let (call, code) = (error.call(), error.code());
    if error.source().is_none() && is_of_nccl(&error) {
        return CollectiveError::Failed { call, code, text: String::new() };
    }
    CollectiveError::Driver(error)
}

/// The most ranks that one process may have. More are a mistake.
const MOST_RANKS: usize = 1 << 16;

/// NCCL's error for an invalid argument.
fn invalid(call: &'static str, text: String) -> CollectiveError {
    const INVALID_ARGUMENT: u32 = 4;
    CollectiveError::Failed { call, code: INVALID_ARGUMENT, text }
}

fn gone() -> CollectiveError {
    CollectiveError::Lost(String::from("the communicator is gone"))
}

impl CollectiveCalls for SimDriver {
    fn unique_id(&self) -> CollectiveResult<UniqueId> {
        let _call = self.call("ncclGetUniqueId").map_err(of_nccl)?;
        let mut id = [0; 128];
        id[..8].copy_from_slice(&unique().to_ne_bytes());
        id[8..12].copy_from_slice(&std::process::id().to_ne_bytes());
        Ok(id)
    }

    fn join_ranks(
        &self,
        members: &[(&dyn Any, usize)],
        ranks: usize,
        id: &UniqueId,
    ) -> CollectiveResult<Vec<RawCommunicator>> {
        let patience = self.context.config.rank_timeout;
        let mut call = self.call("ncclCommInitRank").map_err(of_nccl)?;
        if ranks > MOST_RANKS {
            return Err(invalid("ncclCommInitRank", format!("{ranks} simulated ranks")));
        }
        let mut joined = Vec::with_capacity(members.len());
        for &(driver, rank) in members {
            let refused = call.error(DriverError::NOT_SUPPORTED);
            let driver: &Self = driver.downcast_ref().ok_or(refused)?;
            let clique = call.state.cliques.of_id(id, ranks, patience);
            if clique.ranks() != ranks || !clique.join(rank, driver.context.id) {
                let why = format!(
                    "rank {rank} among {ranks} was to join a communicator of {} ranks that has it already, or its device, or no such rank",
                    clique.ranks()
                );
                return Err(invalid("ncclCommInitRank", why));
            }
            let communicator = unique();
            call.state.cliques.insert(communicator, id, rank);
            joined.push(RawCommunicator(communicator));
        }
        notify_changed();
        let begun = Instant::now();
        let is_in = |cliques: &Cliques| joined.iter().all(|joined| cliques.has(joined.0));
        loop {
            let is_there = is_in(&call.state.cliques);
            if is_there && call.state.cliques.get(id).is_some_and(|clique| clique.is_complete()) {
                break;
            }
            if !is_there || begun.elapsed() >= patience {
                // That of another rank, which gave this one up, may be another's by now.
                if is_there {
                    call.state.cliques.give_up(id);
                    notify_changed();
                }
                let why = format!(
                    "a rank of {ranks} did not join within {patience:?}; ranks of simulated devices are in one process"
                );
                return Err(CollectiveError::Lost(why));
            }
            wait_changed_for(&mut call.state, ROUND);
        }
        Ok(joined)
    }

    unsafe fn run_collectives(&self, works: &[RawCollective]) -> CollectiveResult<()> {
        let Some(first) = works.first() else { return Ok(()) };
        let mut call = Call::uncounted(&self.context, call_of(&first.work))?;
        let enqueued = call.enqueue_group(works);
        if enqueued.is_err() {
            // Part of the group may be enqueued, and would wait for the rest.
            for work in works {
                if let Some((clique, rank)) = call.state.cliques.of(work.communicator.0) {
                    let ranks = clique.ranks();
                    clique.lose(format!("a call of rank {rank} among {ranks} failed"));
                }
            }
        }
        notify_changed();
        enqueued
    }

    unsafe fn communicator_check(&self, communicator: RawCommunicator) -> CollectiveResult<()> {
        let mut call = Call::unchecked(&self.context, "ncclCommGetAsyncError");
        let (clique, _) = call.state.cliques.of(communicator.0).ok_or_else(gone)?;
        clique.lost().map_or(Ok(()), |why| Err(CollectiveError::Lost(why.to_owned())))
    }

    unsafe fn communicator_abort(&self, communicator: RawCommunicator) -> CollectiveResult<()> {
        // NCCL calls the driver.
        call_not_forked("ncclCommAbort")?;
        let mut call = Call::unchecked(&self.context, "ncclCommAbort");
        call.state.cliques.remove(communicator.0, true);
        notify_changed();
        Ok(())
    }

    unsafe fn communicator_destroy(&self, communicator: RawCommunicator) -> CollectiveResult<()> {
        let mut call = Call::unchecked(&self.context, "ncclCommDestroy");
        call.state.cliques.remove(communicator.0, false);
        notify_changed();
        Ok(())
    }

    unsafe fn communicator_register(
        &self,
        communicator: RawCommunicator,
        range: DeviceRange,
    ) -> CollectiveResult<u64> {
        let mut call = self.call("ncclCommRegister").map_err(of_nccl)?;
        call.state.cliques.of(communicator.0).ok_or_else(gone)?;
        let name = OpName::call(call.name);
        let device = AddressSpace::Device(call.context.id);
        let touched = TouchedRange::new(range.address, range.bytes, Access::Read, device);
        // The whole block, whatever pools have made of it.
        let found = call.state.blocks.around_mut(range).is_some();
        if !found {
            let error = call.state.blocks.find(&touched, false).err();
            let error = error.unwrap_or(LookupError::Unmapped);
            return Err(call.report_unmapped(&self.context, name, &touched, error).into());
        }
        let handle = unique();
        let own = call.state.streams.iter().filter(|(_, stream)| stream.device == call.context.id);
        let given_before = own.map(|(&id, stream)| (id, stream.tick)).collect();
        call.state.cliques.register(communicator.0, handle, range, given_before);
        Ok(handle)
    }

    /// Reports collectives that may still use the range. They were given since it was registered, and the host has not
    /// seen them complete.
    unsafe fn communicator_deregister(
        &self,
        communicator: RawCommunicator,
        handle: u64,
    ) -> CollectiveResult<()> {
        let mut call = self.call("ncclCommDeregister").map_err(of_nccl)?;
        call.state.cliques.of(communicator.0).ok_or_else(gone)?;
        let Some(registered) = call.state.cliques.deregister(communicator.0, handle) else {
            return Err(invalid("ncclCommDeregister", format!("no handle {handle}")));
        };
        let range = registered.range;
        let SimState { streams, blocks, .. } = &mut *call.state;
        let is_over = |former: &AccessStamp| {
            let (stream, tick) = (former.stream, former.tick);
            !former.name.call.starts_with("nccl")
                || registered.is_before(stream, tick)
                || is_seen(streams, stream, tick)
        };
        let found = blocks
            .around_mut(range)
            .and_then(|(block, range)| block.shadow.unordered_in(range, &is_over));
        if let Some(found) = found {
            let name = OpName::call(call.name);
            let memory = call.state.blocks.reported(range.address, range.bytes as u64);
            self.context.report(found.violation, name, found.other, memory, None);
        }
        Ok(())
    }

    fn collective_mem_alloc(&self, bytes: usize) -> CollectiveResult<DeviceAddress> {
        let mut call = self.call("ncclMemAlloc").map_err(of_nccl)?;
        Ok(call.allocate(bytes, BlockKind::Device)?)
    }

    unsafe fn collective_mem_free(&self, address: DeviceAddress) -> CollectiveResult<()> {
        // SAFETY: the caller's contract.
        Ok(unsafe { self.mem_free(address) }?)
    }
}

impl Call<'_> {
    /// Enqueues the parts that the ranks bring, then the waits of all, then the parts that they take. So works of one
    /// group do not wait for each other.
    fn enqueue_group(&mut self, works: &[RawCollective]) -> CollectiveResult<()> {
        let mut shares = Vec::with_capacity(works.len());
        for work in works {
            shares.push(self.bring(work)?);
        }
        for Share { stream, name, exchange, .. } in &shares {
            let wait = OpWork::Wait(Arc::clone(&exchange.fence));
            self.state.push(*stream, SimOp::new(*name, wait));
        }
        for Share { context, stream, name, exchange, rank, takes } in shares {
            let Some((address, bytes)) = takes.filter(|(_, bytes)| *bytes > 0) else { continue };
            let device = AddressSpace::Device(context.id);
            let touched = [TouchedRange::new(address, bytes, Access::Write, device)];
            let work = OpWork::Take { exchange, rank };
            self.enqueue(&context, stream, OpRequest::new(name, &touched, work))?;
        }
        Ok(())
    }

    /// Enqueues a rank's part of an exchange.
    fn bring(&mut self, collective: &RawCollective) -> CollectiveResult<Share> {
        let RawCollective { communicator, stream, work } = collective;
        let name = OpName::on(call_of(work), stream.0);
        let (clique, rank) = self.state.cliques.of(communicator.0).ok_or_else(gone)?;
        let (ranks, device) = (clique.ranks(), clique.device_of(rank));
        let context = device.and_then(|device| self.state.devices.get(&device));
        let context = Arc::clone(&context.ok_or_else(gone)?.context);
        context.check_alive(name.call)?;
        if let Err(injected) = context.count_call(name.call) {
            lose_if_said(&mut self.state, &context, &injected);
            return Err(of_nccl(injected));
        }
        let id = self.state.stream_behind(*stream);
        match self.state.streams.get(&id) {
            Some(known) if known.device == context.id && !known.destroyed => {}
            _ => return Err(context.report_handle(Violation::ForeignHandle, name, None).into()),
        }
        if self.capture_status(id) != CaptureStatus::None {
            // A graph would need a new exchange at each launch.
            return Err(DriverError::new(name.call, DriverError::STREAM_CAPTURE_UNSUPPORTED).into());
        }
        let Some((clique, _)) = self.state.cliques.of(communicator.0) else { return Err(gone()) };
        let exchange = match clique.exchange(rank, work, name) {
            Ok(exchange) => exchange,
            Err(Refusal::Lost(why)) => return Err(CollectiveError::Lost(why)),
            Err(Refusal::Mismatch(exchange)) => {
                let (first, other) = exchange.first;
                let note = format!(
                    "rank {first} asked for {}, rank {rank} for {}",
                    Shown(&exchange.agreed),
                    Shown(&agreed(work))
                );
                let kind = Violation::CollectiveMismatch;
                let memory = ReportedMemory::NONE;
                let report = context.report(kind, name, Some(other), memory, Some(note));
                let code = DriverError::INVALID_VALUE;
                return Err(DriverError::with_detail(name.call, code, report).into());
            }
        };
        let Sides { brings, takes } = sides(work, rank, ranks);
        let slot = match work {
            CollectiveWork::Send { .. } => 0,
            CollectiveWork::Receive { .. } => 1,
            _ => rank,
        };
        let bring = OpWork::Bring { exchange: Arc::clone(&exchange), slot };
        let device = AddressSpace::Device(context.id);
        let touched = brings.filter(|(_, bytes)| *bytes > 0);
        let touched =
            touched.map(|(address, bytes)| TouchedRange::new(address, bytes, Access::Read, device));
        let touched = touched.as_slice();
        // What is freed brings nothing: no result is made of it.
        let refused = OpWork::Bring { exchange: Arc::clone(&exchange), slot: usize::MAX };
        let request = OpRequest { refused, ..OpRequest::new(name, touched, bring) };
        self.enqueue(&context, id, request)?;
        Ok(Share { context, stream: id, name, exchange, rank, takes })
    }
}

/// The work that a rank asked for, in words.
struct Shown<'a>(&'a Agreed);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Agreed::AllReduce(it) => write!(f, "an all-reduce of {}", Reduced(it)),
            Agreed::Reduce(it, root) => write!(f, "a reduce of {} to rank {root}", Reduced(it)),
            Agreed::ReduceScatter(it) => write!(f, "a reduce-scatter of {} each", Reduced(it)),
            Agreed::Broadcast(bytes, root) => {
                write!(f, "a broadcast of {bytes} bytes from rank {root}")
            }
            Agreed::AllGather(bytes) => write!(f, "an all-gather of {bytes} bytes each"),
            Agreed::Pair(bytes) => write!(f, "{bytes} bytes from one to the other"),
        }
    }
}

struct Reduced<'a>(&'a Reduction);

impl fmt::Display for Reduced<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} by {:?}", self.0.count, self.0.element, self.0.op)
    }
}
