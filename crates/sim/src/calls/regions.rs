//! The parts of a block that pools hand out and take back. Each is found by its address alone, so memory that is in no
//! block of the simulator's is not followed.

use super::call::Call;
use crate::check::{AccessStamp, OpName, ReportedMemory, Violation};
use crate::driver::SimDriver;
use crate::state::{FreedPart, Region, SimBlock, SimState, SimStream, is_seen, is_seen_by_pools};
use aquifer_driver::{
    DeviceRange, DriverResult, RawEvent, RawStream, RegionCalls, VectorEvent, is_forked_child,
};
use std::collections::HashMap;

/// The names of calls for the sides of a report that are a pool's.
const ALLOCATION: &str = "an allocation from a pool";
const FREE: &str = "a free to a pool";
const GROWTH: &str = "growth in a pool";

impl SimDriver {
    /// Begins a call that is not the driver's, and so neither counted nor refused. `None` in the child of a fork.
    fn region_call(&self, name: &'static str) -> Option<Call<'_>> {
        // Before any lock: the child has inherited them as they were.
        (!is_forked_child()).then(|| Call::unchecked(&self.context, name))
    }
}

/// Forgets the complete uses of memory that a pool hands out or gives back, as far as pools know. The next uses of the
/// range are ordered after them.
fn forget_known_to_pools(
    block: &mut SimBlock,
    range: (u64, u64),
    streams: &HashMap<u64, SimStream>,
) {
    let complete = |former: &AccessStamp| is_seen_by_pools(streams, former.stream, former.tick);
    block.allocation = block.allocation.filter(|allocation| !complete(allocation));
    block.shadow.forget_accesses(range, &complete);
}

impl RegionCalls for SimDriver {
    fn heap_register(&self, pool: u64, heap: DeviceRange) {
        if let Some(mut call) = self.region_call(ALLOCATION)
            && let Some((block, range)) = call.state.blocks.around_mut(heap)
        {
            block.parts.add_heap(pool, range);
        }
    }

    fn heap_unregister(&self, pool: u64, heap: DeviceRange) {
        let Some(mut call) = self.region_call(FREE) else { return };
        let SimState { streams, blocks, .. } = &mut *call.state;
        if let Some((block, range)) = blocks.around_mut(heap) {
            forget_known_to_pools(block, range, streams);
            block.parts.remove_heap(pool, range);
            block.vectors.end_in(range);
        }
    }

    fn event_query_for_pool(&self, event: RawEvent) -> DriverResult<bool> {
        self.query(event, SimState::observe_for_pools)
    }

    /// Pushes no operation, so that schedules are those of a device that does not follow pools.
    fn region_register(&self, pool: u64, region: DeviceRange, stream: RawStream) {
        let Some(mut call) = self.region_call(ALLOCATION) else { return };
        let by = OpName::on(call.name, stream.0);
        let id = call.state.stream_behind(stream);
        let SimState { streams, blocks, .. } = &mut *call.state;
        let Some(own) = streams.get(&id) else { return };
        let Some((block, range)) = blocks.around_mut(region) else { return };
        forget_known_to_pools(block, range, streams);
        if !block.kind.is_host_visible() {
            block.shadow.forget_writes(range);
        }
        let stamp = AccessStamp { stream: id, tick: own.tick, name: by };
        let order = own.capture.is_none().then_some(stamp);
        block.parts.allocate(pool, Region { range, by, order });
        block.vectors.remove(range);
    }

    /// The region keeps what orders its uses, which may go on. Bytes that it gains come after a write that nobody made,
    /// so that a use which is in no order with the growth is found.
    fn region_resize(&self, pool: u64, region: DeviceRange, bytes: usize, stream: RawStream) {
        let is_growth = bytes > region.bytes;
        let Some(mut call) = self.region_call(if is_growth { GROWTH } else { FREE }) else {
            return;
        };
        let name = OpName::on(call.name, stream.0);
        let (context, id) = (call.context, call.state.stream_behind(stream));
        let SimState { streams, blocks, .. } = &mut *call.state;
        let Some(own) = streams.get(&id) else { return };
        let larger = DeviceRange { bytes: bytes.max(region.bytes), ..region };
        let Some((block, (start, _))) = blocks.around_mut(larger) else { return };
        let ends = (start + region.bytes as u64, start + bytes as u64);
        if !block.parts.resize(pool, (start, ends.0), ends.1, name) {
            return;
        }
        if is_growth {
            forget_known_to_pools(block, ends, streams);
            if !block.kind.is_host_visible() {
                block.shadow.forget_writes(ends);
            }
            block.vectors.remove(ends);
        }
        if own.capture.is_some() || context.is_lost() {
            return;
        }
        let ordered = |former: &AccessStamp| {
            own.follows(id, former) || is_seen(streams, former.stream, former.tick)
        };
        if is_growth {
            let stamp = AccessStamp { stream: id, tick: own.tick, name };
            return block.shadow.order_after(ends, stamp, &ordered);
        }
        if let Some(found) = block.shadow.unordered_in((ends.1, ends.0), &ordered) {
            let vector = block.vectors.at(start);
            let place = (region.address + (found.start - start), found.end - found.start);
            let memory = ReportedMemory::new(place, vector);
            context.report(found.violation, name, found.other, memory, None);
        }
    }

    /// A free in a capture is recorded, so no use has to be in order before it. Launches that go on to use memory that
    /// is kept for graphs do not have to be either. The free need not come after the allocation. By the contract of
    /// resources it comes after the uses, and a block may have none.
    fn region_unregister(
        &self,
        pool: u64,
        region: DeviceRange,
        stream: RawStream,
        kept_for_graph: bool,
    ) {
        let Some(mut call) = self.region_call(FREE) else { return };
        let name = OpName::on(call.name, stream.0);
        let (context, id) = (call.context, call.state.stream_behind(stream));
        let SimState { streams, blocks, .. } = &mut *call.state;
        let Some(own) = streams.get(&id) else { return };
        let Some((block, range)) = blocks.around_mut(region) else { return };
        let vector = block.vectors.at(range.0);
        let name = name.freeing(vector.is_some_and(|vector| vector.is_live()));
        match block.parts.free(pool, range, name, kept_for_graph) {
            FreedPart::Region => block.vectors.end(range.0),
            FreedPart::Freed(by) => {
                let memory = ReportedMemory::new((region.address, region.bytes as u64), vector);
                context.report(Violation::DoubleFree, name, Some(by), memory, None);
                return;
            }
            FreedPart::Unknown => return,
        }
        // In a lost context no stream can be made to wait, and nothing more runs.
        if own.capture.is_some() || context.is_lost() {
            return;
        }
        let ordered = |former: &AccessStamp| {
            own.follows(id, former)
                || is_seen(streams, former.stream, former.tick)
                || kept_for_graph && former.name.graph.is_some()
        };
        if let Some(found) = block.shadow.unordered_in(range, &ordered) {
            let start = region.address + (found.start - range.0);
            let place = (start, found.end - found.start);
            context.report(
                found.violation,
                name,
                found.other,
                ReportedMemory::new(place, vector),
                None,
            );
        }
    }

    fn vector(&self, range: DeviceRange, event: VectorEvent) {
        if let Some(mut call) = self.region_call("a vector")
            && let Some((block, range)) = call.state.blocks.around_mut(range)
        {
            block.vectors.apply(range, event);
        }
    }
}
