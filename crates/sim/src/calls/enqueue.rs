//! Enqueueing operations on memory. Every access is checked here, against stream order alone, so a
//! report does not depend on when the queues run.

use super::call::Call;
use crate::check::{AccessCheck, AccessStamp, OpName, Report, ReportedMemory, Violation};
use crate::state::{
    AddressSpace, CapturedWork, HostSide, LookupError, OpRange, OpWork, SimContext, SimOp,
    SimState, TouchedRange, Watchpoint, is_seen,
};
use aquifer_driver::{Access, DriverResult};
use aquifer_sync::Arc;
use aquifer_sync::trusted::unique;

/// An operation to be enqueued.
pub(super) struct OpRequest<'a> {
    pub(super) name: OpName,
    pub(super) touched: &'a [TouchedRange],
    /// The index of the range that the host must not write until the operation has run.
    pub(super) watched: Option<usize>,
    pub(super) work: OpWork,
    pub(super) host_side: Option<HostSide>,
    /// The work that takes the place of `work` if it names freed memory.
    pub(super) refused: OpWork,
}

impl<'a> OpRequest<'a> {
    pub(super) fn new(name: OpName, touched: &'a [TouchedRange], work: OpWork) -> Self {
        Self { name, touched, watched: None, work, host_side: None, refused: OpWork::Nothing }
    }
}

/// Whether an operation is a copy within device memory. Such a copy is no read of values, since unwritten bytes are
/// unwritten in the target, too. The host reads other targets without a call, and no report would tell.
fn carries_unwritten(work: &OpWork, touched: &[TouchedRange], ranges: &[OpRange]) -> bool {
    let is_device = |it: &TouchedRange| matches!(it.space, AddressSpace::Device(_));
    matches!(work, OpWork::Copy(_))
        && touched.len() == 2
        && touched.iter().all(is_device)
        && ranges.last().is_none_or(|target| !target.host_visible)
}

impl Call<'_> {
    /// Puts an operation in its stream's queue, or records it for the graph that the stream captures. Returns the
    /// report of an operation that will not run, since it names freed memory.
    pub(super) fn submit(
        &mut self,
        id: u64,
        request: OpRequest<'_>,
    ) -> DriverResult<Option<Arc<Report>>> {
        let Some(capture) = self.active_capture(id)? else {
            return self.enqueue(self.context, id, request);
        };
        let OpRequest { name, touched, watched, work, .. } = request;
        let blocks = &self.state.blocks;
        let seen =
            |range: &TouchedRange| TouchedRange { captured_in: blocks.region_of(range), ..*range };
        let touched = touched.iter().map(seen).collect();
        let work = CapturedWork::Memory { touched, watched, work };
        self.capture_op(capture, id, name, work);
        Ok(None)
    }

    /// Checks an operation and puts it in its stream's queue. Returns the report if it names freed
    /// memory. `context` is that of the stream's device.
    pub(super) fn enqueue(
        &mut self,
        context: &SimContext,
        id: u64,
        request: OpRequest<'_>,
    ) -> DriverResult<Option<Arc<Report>>> {
        let OpRequest { name, touched, watched, work, host_side, refused } = request;
        let (mut ranges, mut found, mut freed) =
            (Vec::with_capacity(touched.len()), Vec::new(), None);
        for touched in touched {
            match self.state.blocks.find(touched, name.graph.is_some()) {
                Ok(place) => {
                    ranges.push(place);
                    found.push(touched);
                }
                Err(LookupError::Freed(by)) => {
                    let kind = Violation::UseAfterFree;
                    let memory = self.reported(touched);
                    let name = name.accessing(touched.access);
                    freed = Some(context.report(kind, name, Some(by), memory, None));
                }
                Err(error) => return Err(self.report_unmapped(context, name, touched, error)),
            }
        }
        let tick = self.state.last_tick(id) + 1;
        let carries = carries_unwritten(&work, touched, &ranges);
        self.check(context, AccessStamp { stream: id, tick, name }, &found, &ranges, carries);
        let watched = watched.filter(|_| freed.is_none());
        let watched = watched.and_then(|index| Some((touched.get(index)?, ranges.get(index)?)));
        let watchpoint = watched.map(|(touched, range)| self.watch(touched, range));
        let work = if freed.is_none() { work } else { refused };
        self.state.push(id, SimOp { name, tick, work, ranges, host_side, watchpoint });
        Ok(freed)
    }

    /// Sets a watchpoint over a range that the host must not write until the operation has run.
    fn watch(&self, touched: &TouchedRange, range: &OpRange) -> Watchpoint {
        let mut running = self.state.running.iter().flat_map(|running| &running.memory);
        let quiet = !running.any(|&(id, writes)| id == range.memory_id() && writes);
        let id = unique();
        range.backing.watch(id, range.pointer, touched.bytes as usize, quiet);
        let backing = Arc::clone(&range.backing);
        Watchpoint { backing, id, range: (touched.address, touched.bytes) }
    }

    /// Checks the accesses of one operation against all former ones. `carries` says that it is a copy that carries
    /// unwritten bytes from the first range to the second.
    fn check(
        &mut self,
        context: &SimContext,
        stamp: AccessStamp,
        touched: &[&TouchedRange],
        ranges: &[OpRange],
        carries: bool,
    ) {
        let SimState { streams, blocks, .. } = &mut *self.state;
        let Some(stream) = streams.get(&stamp.stream) else { return };
        let (copy, mut unwritten) = (stamp.name, Vec::new());
        let complete = |former: &AccessStamp| is_seen(streams, former.stream, former.tick);
        let ordered =
            |former: &AccessStamp| stream.follows(stamp.stream, former) || complete(former);
        for (touched, range) in touched.iter().zip(ranges) {
            let Some(block) = blocks.get_mut(range.block) else { continue };
            let region = block.parts.region(range.offset);
            let name = stamp.name.accessing(touched.access);
            let stamp = AccessStamp { name, ..stamp };
            let allocations = [region.and_then(|region| region.order), block.allocation];
            if let Some(late) = allocations.into_iter().flatten().find(|it| !ordered(it)) {
                let kind = Violation::UseBeforeAllocation;
                let memory = ReportedMemory::new(touched.bounds(), block.vectors.at(range.offset));
                context.report(kind, name, Some(late.name), memory, None);
            }
            let owner = region.map_or(block.by, |region| region.by);
            block.allocation = block.allocation.filter(|allocation| !complete(allocation));
            let (access, findings) = (touched.access, Vec::new());
            let (ordered, complete) = (&ordered, &complete);
            let mut check = AccessCheck { access, carries, stamp, ordered, complete, findings };
            let row = (range.offset, range.offset + touched.bytes);
            if carries && access == Access::Read {
                unwritten = block.shadow.unwritten_in(row);
            }
            block.shadow.access_rows(row, touched.stride, touched.count, &mut check);
            if access == Access::Write {
                for rows in unwritten.drain(..) {
                    block.shadow.copy_unwritten(range.offset, rows, copy);
                }
            }
            for found in check.findings {
                let place = (range.block + found.start, found.end - found.start);
                let memory = ReportedMemory::new(place, block.vectors.at(found.start));
                // The other side of a read of what was never written is the allocation, or the last copy.
                let other = found.other.or(Some(owner));
                let is_copied =
                    found.violation == Violation::UninitializedRead && found.other.is_some();
                let note = is_copied.then(|| String::from("that copy found them unwritten"));
                context.report(found.violation, name, other, memory, note);
            }
        }
    }
}
