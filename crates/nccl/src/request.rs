//! A collective that is checked and not given to its stream yet.

use super::communicator::Communicator;
use super::element::{Element, ReduceElement};
use super::rank::{COLLECTIVE, Rank};
use crate::container::{DeviceSlice, DeviceSliceMut};
use crate::device_calls::calls_of;
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::inside::{CapturePolicy, MemoryUse};
use crate::inside::{Patience, StreamCall};
use crate::inside::{StreamInside, ViewInside};
use crate::stream::Stream;
use crate::sync::Arc;
use aquifer_collective::{CollectiveWork, RawCollective, ReduceOp, Reduction};
use bytemuck::Pod;

/// One collective of one rank, whose lengths fit, and the memory that it uses.
pub(super) struct Request<'a> {
    communicator: &'a Communicator,
    work: CollectiveWork,
    read: Option<MemoryUse<'a>>,
    written: Option<MemoryUse<'a>>,
}

impl<'a> Request<'a> {
    fn new(communicator: &'a Communicator, work: CollectiveWork) -> Self {
        Self { communicator, work, read: None, written: None }
    }

    fn reads<T: Pod>(mut self, send: &DeviceSlice<'a, T>) -> Result<Self> {
        self.communicator.require_device_of(send.home())?;
        self.read = Some(send.memory_use());
        Ok(self)
    }

    fn writes<T: Pod>(mut self, receive: &DeviceSliceMut<'a, T>) -> Result<Self> {
        self.communicator.require_device_of(receive.home())?;
        self.written = Some(receive.memory_use());
        Ok(self)
    }

    pub(super) fn all_reduce<T: ReduceElement>(
        communicator: &'a Communicator,
        send: &DeviceSlice<'a, T>,
        receive: &DeviceSliceMut<'a, T>,
        op: ReduceOp,
    ) -> Result<Self> {
        same_length(send.len(), receive.len())?;
        let reduction = reduction::<T>(send.len(), op);
        let (from, to) = (send.as_device_ptr(), receive.as_device_ptr());
        let work = CollectiveWork::AllReduce { send: from, receive: to, reduction };
        Self::new(communicator, work).reads(send)?.writes(receive)
    }

    pub(super) fn all_reduce_in_place<T: ReduceElement>(
        communicator: &'a Communicator,
        data: &DeviceSliceMut<'a, T>,
        op: ReduceOp,
    ) -> Result<Self> {
        let (at, reduction) = (data.as_device_ptr(), reduction::<T>(data.len(), op));
        let work = CollectiveWork::AllReduce { send: at, receive: at, reduction };
        Self::new(communicator, work).writes(data)
    }

    pub(super) fn reduce<T: ReduceElement>(
        communicator: &'a Communicator,
        send: &DeviceSlice<'a, T>,
        receive: &DeviceSliceMut<'a, T>,
        op: ReduceOp,
        root: usize,
    ) -> Result<Self> {
        require_rank(communicator, root)?;
        let is_root = communicator.rank() == root;
        if is_root {
            same_length(send.len(), receive.len())?;
        }
        let reduction = reduction::<T>(send.len(), op);
        let (from, to) = (send.as_device_ptr(), receive.as_device_ptr());
        let work = CollectiveWork::Reduce { send: from, receive: to, reduction, root };
        let request = Self::new(communicator, work).reads(send)?;
        if is_root { request.writes(receive) } else { Ok(request) }
    }

    pub(super) fn reduce_in_place<T: ReduceElement>(
        communicator: &'a Communicator,
        data: &DeviceSliceMut<'a, T>,
        op: ReduceOp,
        root: usize,
    ) -> Result<Self> {
        require_rank(communicator, root)?;
        let (at, reduction) = (data.as_device_ptr(), reduction::<T>(data.len(), op));
        let work = CollectiveWork::Reduce { send: at, receive: at, reduction, root };
        Self::new(communicator, work).writes(data)
    }

    pub(super) fn reduce_scatter<T: ReduceElement>(
        communicator: &'a Communicator,
        send: &DeviceSlice<'a, T>,
        receive: &DeviceSliceMut<'a, T>,
        op: ReduceOp,
    ) -> Result<Self> {
        parts_of(send.len(), receive.len(), communicator)?;
        let reduction = reduction::<T>(receive.len(), op);
        let (from, to) = (send.as_device_ptr(), receive.as_device_ptr());
        let work = CollectiveWork::ReduceScatter { send: from, receive: to, reduction };
        Self::new(communicator, work).reads(send)?.writes(receive)
    }

    pub(super) fn reduce_scatter_in_place<T: ReduceElement>(
        communicator: &'a Communicator,
        data: &DeviceSliceMut<'a, T>,
        op: ReduceOp,
    ) -> Result<Self> {
        let (own, part) = own_part(communicator, data)?;
        let (send, reduction) = (data.as_device_ptr(), reduction::<T>(part, op));
        let work = CollectiveWork::ReduceScatter { send, receive: own, reduction };
        Self::new(communicator, work).writes(data)
    }

    pub(super) fn broadcast<T: Pod>(
        communicator: &'a Communicator,
        send: &DeviceSlice<'a, T>,
        receive: &DeviceSliceMut<'a, T>,
        root: usize,
    ) -> Result<Self> {
        require_rank(communicator, root)?;
        let is_root = communicator.rank() == root;
        if is_root {
            same_length(send.len(), receive.len())?;
        }
        let (from, to) = (send.as_device_ptr(), receive.as_device_ptr());
        let bytes = receive.size_in_bytes();
        let work = CollectiveWork::Broadcast { send: from, receive: to, bytes, root };
        let request = Self::new(communicator, work).writes(receive)?;
        if is_root { request.reads(send) } else { Ok(request) }
    }

    pub(super) fn broadcast_in_place<T: Pod>(
        communicator: &'a Communicator,
        data: &DeviceSliceMut<'a, T>,
        root: usize,
    ) -> Result<Self> {
        require_rank(communicator, root)?;
        let (at, bytes) = (data.as_device_ptr(), data.size_in_bytes());
        let work = CollectiveWork::Broadcast { send: at, receive: at, bytes, root };
        Self::new(communicator, work).writes(data)
    }

    pub(super) fn all_gather<T: Pod>(
        communicator: &'a Communicator,
        send: &DeviceSlice<'a, T>,
        receive: &DeviceSliceMut<'a, T>,
    ) -> Result<Self> {
        parts_of(receive.len(), send.len(), communicator)?;
        let (from, to) = (send.as_device_ptr(), receive.as_device_ptr());
        let bytes = send.size_in_bytes();
        let work = CollectiveWork::AllGather { send: from, receive: to, bytes };
        Self::new(communicator, work).reads(send)?.writes(receive)
    }

    pub(super) fn all_gather_in_place<T: Pod>(
        communicator: &'a Communicator,
        data: &DeviceSliceMut<'a, T>,
    ) -> Result<Self> {
        let (own, part) = own_part(communicator, data)?;
        let (receive, bytes) = (data.as_device_ptr(), part * size_of::<T>());
        let work = CollectiveWork::AllGather { send: own, receive, bytes };
        Self::new(communicator, work).writes(data)
    }

    pub(super) fn send<T: Pod>(
        communicator: &'a Communicator,
        data: &DeviceSlice<'a, T>,
        peer: usize,
    ) -> Result<Self> {
        require_rank(communicator, peer)?;
        let (send, bytes) = (data.as_device_ptr(), data.size_in_bytes());
        Self::new(communicator, CollectiveWork::Send { send, bytes, peer }).reads(data)
    }

    pub(super) fn receive<T: Pod>(
        communicator: &'a Communicator,
        data: &DeviceSliceMut<'a, T>,
        peer: usize,
    ) -> Result<Self> {
        require_rank(communicator, peer)?;
        let (receive, bytes) = (data.as_device_ptr(), data.size_in_bytes());
        Self::new(communicator, CollectiveWork::Receive { receive, bytes, peer }).writes(data)
    }

    /// The error if `other` is of another kind of device, since NCCL does not know the
    /// ranks of a simulated one.
    pub(super) fn require_same_kind(&self, other: &Self) -> Result<()> {
        self.communicator.device().require_kind(other.communicator.device())
    }

    fn memory(&self) -> impl Iterator<Item = &MemoryUse<'a>> {
        [&self.read, &self.written].into_iter().flatten()
    }

    /// Orders the rank's stream after the memory's homes, and writes the uses down. The call that it returns may give the
    /// stream the work.
    fn order(&self) -> Result<StreamCall<'a>> {
        let (stream, policy) = (self.communicator.stream(), CapturePolicy::Refuse(COLLECTIVE));
        // NCCL may wait for other ranks, whose threads may be about to capture.
        let patience = Patience::new();
        let mut call = stream.begin_blocking_call(&patience)?;
        if self.memory().all(|memory| memory.is_in_order_on(stream)) {
            call.refuse_capture(COLLECTIVE)?;
            return Ok(call);
        }
        for memory in self.memory() {
            call = memory.order_in(stream, call, policy, &patience)?;
        }
        call.mark_blocking();
        Ok(call)
    }

    /// Gives one collective to its stream.
    pub(super) fn run(&self) -> Result<()> {
        let rank = &self.communicator.rank;
        let mut call = self.order()?;
        let mut state = rank.lock();
        // Again where another thread has come between, and taken the room.
        while !state.has_room(1) {
            drop((state, call));
            rank.wait_for_room(1)?;
            // The order stays.
            call = rank.begin_call()?;
            state = rank.lock();
        }
        // Inside of the gate of the last order alone: a pool may have fallen asleep between.
        self.memory().try_for_each(|memory| memory.require_awake())?;
        let raw = state.joined()?;
        let work = RawCollective { communicator: raw, stream: call.raw(), work: self.work };
        // SAFETY: the lock keeps the communicator, whose stream this is. The lengths fit on this rank, and on the others
        // by the promise of who joined. The uses are pending, so no memory is freed or reused before the stream has
        // passed.
        let ran =
            calls_of(rank.device()).and_then(|calls| unsafe { calls.run_collectives(&[work]) });
        if ran.is_ok() {
            state.count(1, &call);
        }
        drop(state);
        drop(call);
        match ran {
            Ok(()) => Ok(()),
            Err(error) => Err(rank.fail(error, name_of(&self.work))),
        }
    }

    /// Gives several to their streams, as one group.
    pub(super) fn run_all(requests: &[Self]) -> Result<()> {
        let mut ranks: Vec<&Arc<Rank>> =
            requests.iter().map(|request| &request.communicator.rank).collect();
        ranks.sort_by_key(|rank| Arc::as_ptr(rank).addr());
        // Each rank, and how many of the group are its own.
        let ranks: Vec<(&Arc<Rank>, usize)> = ranks
            .chunk_by(|one, other| Arc::ptr_eq(one, other))
            .map(|same| (same[0], same.len()))
            .collect();
        let Some((first, _)) = ranks.first() else { return Ok(()) };
        let wait_for_room = || ranks.iter().try_for_each(|(rank, own)| rank.wait_for_room(*own));
        wait_for_room()?;
        // Out of each gate again: the next one may have to wait for a capture to begin.
        requests.iter().try_for_each(|request| request.order().map(drop))?;
        // A gate is entered once: no thread that closes one waits for another.
        let mut streams: Vec<_> = ranks.iter().map(|(rank, _)| &rank.stream).collect();
        streams.sort_by_key(|stream| stream.id());
        streams.dedup();
        let (calls, mut states) = loop {
            let calls = enter_all(&mut streams)?;
            calls.iter().try_for_each(|call| call.refuse_capture(COLLECTIVE))?;
            let states: Vec<_> = ranks.iter().map(|(rank, _)| rank.lock()).collect();
            if states.iter().zip(&ranks).all(|(state, (_, own))| state.has_room(*own)) {
                break (calls, states);
            }
            // Another thread has come between, and taken the room. The order stays.
            drop((states, calls));
            wait_for_room()?;
        };
        // Inside of all gates again: a pool may have fallen asleep between.
        requests.iter().flat_map(Self::memory).try_for_each(MemoryUse::require_awake)?;
        let mut works = Vec::with_capacity(requests.len());
        for Request { communicator, work, .. } in requests {
            let rank = &communicator.rank;
            let at = ranks.iter().position(|(other, _)| Arc::ptr_eq(other, rank));
            let call = calls.iter().find(|call| call.is(&rank.stream));
            if let (Some(at), Some(call)) = (at, call) {
                let raw = states[at].joined()?;
                works.push(RawCollective { communicator: raw, stream: call.raw(), work: *work });
            }
        }
        // SAFETY: as in `run`, for each.
        let ran =
            calls_of(first.device()).and_then(|calls| unsafe { calls.run_collectives(&works) });
        if ran.is_ok() {
            for (state, (rank, own)) in states.iter_mut().zip(&ranks) {
                if let Some(call) = calls.iter().find(|call| call.is(&rank.stream)) {
                    state.count(*own, call);
                }
            }
        }
        drop(states);
        drop(calls);
        let Err(error) = ran else { return Ok(()) };
        // For all ranks of the group, since none knows what the others were given.
        let failed = first.fail(error.clone(), "running a group");
        for (rank, _) in &ranks[1..] {
            rank.fail(error.clone(), "running a group");
        }
        Err(failed)
    }
}

/// A call on each stream. A wait for a closed gate happens inside of no other gate. The
/// gate is then the first to be entered.
fn enter_all<'a>(streams: &mut [&'a Stream]) -> Result<Vec<StreamCall<'a>>> {
    let patience = Patience::new();
    loop {
        let mut calls = Vec::with_capacity(streams.len());
        let mut closed = None;
        for (at, stream) in streams.iter().enumerate() {
            let first = if at == 0 { &patience } else { &Patience::none() };
            match stream.begin_blocking_call(first) {
                Err(error) if at > 0 && error.kind() == ErrorKind::Capture => closed = Some(at),
                call => calls.push(call?),
            }
        }
        let Some(closed) = closed else { return Ok(calls) };
        drop(calls);
        streams.swap(0, closed);
    }
}

fn reduction<T: ReduceElement>(count: usize, op: ReduceOp) -> Reduction {
    Reduction { count, element: <T as Element>::TYPE.0, op }
}

fn name_of(work: &CollectiveWork) -> &'static str {
    match work {
        CollectiveWork::AllReduce { .. } => "giving an all-reduce",
        CollectiveWork::Reduce { .. } => "giving a reduce",
        CollectiveWork::ReduceScatter { .. } => "giving a reduce-scatter",
        CollectiveWork::Broadcast { .. } => "giving a broadcast",
        CollectiveWork::AllGather { .. } => "giving an all-gather",
        CollectiveWork::Send { .. } => "giving a send",
        CollectiveWork::Receive { .. } => "giving a receive",
    }
}

fn require_rank(communicator: &Communicator, rank: usize) -> Result<()> {
    let ranks = communicator.ranks();
    ensure!(
        rank < ranks,
        InvalidArgument,
        "number the ranks from 0",
        "rank {rank} was named in a communicator of {ranks}"
    );
    Ok(())
}

fn same_length(send: usize, receive: usize) -> Result<()> {
    ensure!(
        send == receive,
        LengthMismatch,
        "give two of one length",
        "a collective was to send {} and to receive {receive}",
        Count(send, "element")
    );
    Ok(())
}

/// The error unless the whole is a part for each rank.
fn parts_of(whole: usize, part: usize, communicator: &Communicator) -> Result<()> {
    let ranks = communicator.ranks();
    ensure!(
        part.checked_mul(ranks) == Some(whole),
        LengthMismatch,
        "give a whole that is as long as the parts of all ranks",
        "a part of {} was given for each of {ranks} ranks, and a whole of {whole}",
        Count(part, "element")
    );
    Ok(())
}

/// The address and the length of this rank's part of a whole.
fn own_part<T: Pod>(
    communicator: &Communicator,
    whole: &DeviceSliceMut<'_, T>,
) -> Result<(u64, usize)> {
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    if !whole.len().is_multiple_of(ranks) {
        let elements = Count(whole.len(), "element");
        let what = format!("{elements} are no whole number of parts for {ranks} ranks");
        return Err(Error::new(ErrorKind::LengthMismatch, what)
            .with_advice("take a length that the number of ranks divides"));
    }
    let part = whole.len() / ranks;
    Ok((whole.as_device_ptr() + (rank * part * size_of::<T>()) as u64, part))
}
