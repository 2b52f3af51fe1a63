//! The driver's memory, as pools ask for it: ranges of addresses that are allocated and come back,
//! and the parts of them that a pool's users hold.

use super::driver::{Access, Driver, Event, Refused, STREAMS, State, report};
use std::collections::BTreeMap;
use std::ops::Range;

/// Addresses from one block's start to the next one's. No address is ever allocated twice, so a use
/// after the free is told from a use of what came later.
const SPAN: u64 = 1 << 24;

/// Reserved addresses begin here.
const RESERVED: u64 = 1 << 48;

const ALL: Range<usize> = 0..usize::MAX;

/// A handle that is mapped.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: usize,
    /// The block of the handle, which has all uses of the memory.
    memory: usize,
    /// The block of the mapping, which has those by its address.
    address: usize,
}

#[derive(Debug)]
pub(super) struct Memory {
    /// Bytes that can still be allocated.
    left: usize,
    /// No pool may hold more than this.
    limit: usize,
    /// Bytes of each block that is allocated.
    allocated: Vec<usize>,
    /// Parts of blocks that users of a pool hold.
    live: Vec<(usize, Range<usize>)>,
    /// Streams that pools alone hold.
    abandoned: [bool; STREAMS],
    /// Streams that record a graph.
    capturing: [bool; STREAMS],
    /// Records still to be refused.
    refusals: usize,
    leaked: usize,
    /// Where the next reservation begins.
    next_reserved: u64,
    mappings: BTreeMap<u64, Mapping>,
    /// Reservations, by address.
    reserved: BTreeMap<u64, u64>,
    /// What users hold of memory that is not mapped, as its pool sleeps: addresses and bytes.
    aside: Vec<(u64, usize)>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            left: usize::MAX,
            limit: usize::MAX,
            allocated: Vec::new(),
            live: Vec::new(),
            abandoned: [false; STREAMS],
            capturing: [false; STREAMS],
            refusals: 0,
            leaked: 0,
            next_reserved: RESERVED,
            mappings: BTreeMap::new(),
            reserved: BTreeMap::new(),
            aside: Vec::new(),
        }
    }
}

impl Memory {
    fn is_mapped(&self, address: u64) -> bool {
        let before = self.mappings.range(..=address).next_back();
        before.is_some_and(|(start, it)| address < start + it.bytes as u64)
    }

    /// The blocks that an address and the bytes from there on are of, and what of them: of a mapping and of its handle.
    fn places(&self, address: u64, bytes: usize) -> Vec<(usize, Range<usize>)> {
        if address < RESERVED {
            return vec![place(address, bytes)];
        }
        let (mut at, end, mut found) = (address, address + bytes as u64, Vec::new());
        while at < end {
            let (&start, mapping) = self.mappings.range(..=at).next_back().expect("a mapping");
            let (from, to) = (at - start, (end - start).min(mapping.bytes as u64));
            assert!(from < to, "nothing is mapped at {at:#x}");
            found.push((mapping.memory, from as usize..to as usize));
            found.push((mapping.address, from as usize..to as usize));
            at = start + to;
        }
        found
    }
}

/// The block that an address lies in, and where in it the bytes are.
fn place(address: u64, bytes: usize) -> (usize, Range<usize>) {
    let start = (address % SPAN) as usize;
    ((address / SPAN) as usize - 1, start..start + bytes)
}

impl State {
    /// A part of a block is a user's, who gives the stream work on it.
    fn hand_out(&mut self, stream: usize, block: usize, range: Range<usize>) -> Option<String> {
        let mut complaint = self.use_block(stream, block, range.clone(), Access::Write);
        let twice = self.memory.live.iter().any(|(other, part)| {
            *other == block && part.start < range.end && range.start < part.end
        });
        if twice {
            complaint = Some(format!("a part of block {block} is handed out twice"));
        }
        let is_mapping = self.memory.mappings.values().any(|mapping| mapping.address == block);
        if !is_mapping && range.end > self.memory.allocated[block] {
            complaint = Some(format!("what was handed out ends behind block {block}"));
        }
        self.memory.live.push((block, range));
        complaint
    }
}

impl Driver {
    /// There are so many bytes.
    pub fn set_left(&self, bytes: usize) {
        self.state().memory.left = bytes;
    }

    /// From now on it is a mistake to ask for more than this in all.
    pub fn set_limit(&self, bytes: usize) {
        self.state().memory.limit = bytes;
    }

    /// Allocates a new block. `None` if no bytes are left.
    pub fn allocate(&self, stream: Option<usize>, bytes: usize) -> Option<u64> {
        let mut state = self.state();
        state.memory.left = state.memory.left.checked_sub(bytes)?;
        let block = state.blocks.len();
        state.blocks.push(Default::default());
        state.memory.allocated.push(bytes);
        let mut complaint =
            stream.and_then(|stream| state.use_block(stream, block, ALL, Access::Obtain));
        let (held, limit) = (state.memory.allocated.iter().sum::<usize>(), state.memory.limit);
        if held > limit {
            complaint = Some(format!("{held} bytes are held, and {limit} are the maximum"));
        }
        drop(state);
        report(complaint);
        Some((block as u64 + 1) * SPAN)
    }

    /// Unmaps a handle of a pool that falls asleep, and gives it back. No use of it may be pending. What users hold there
    /// is theirs still.
    pub fn put_aside(&self, address: u64, bytes: usize, handle: u64) {
        let mut state = self.state();
        let Memory { mappings, live, aside, .. } = &mut state.memory;
        let mapping = mappings.get(&address).expect("a mapping");
        let (own, memory) = (mapping.address, mapping.memory);
        for (_, range) in live.extract_if(.., |part| part.0 == own) {
            aside.push((address + range.start as u64, range.len()));
        }
        live.retain(|part| part.0 != memory);
        drop(state);
        self.unmap(address, bytes);
        self.release(handle);
    }

    /// The pool sleeps: the device has all of its memory.
    pub fn expect_nothing_mapped(&self) {
        let mapped = self.state().memory.mappings.len();
        assert_eq!(mapped, 0, "handles that are mapped in a pool that sleeps");
    }

    /// Maps a new handle where one was put aside. Returns it.
    pub fn bring_back(&self, address: u64, bytes: usize) -> u64 {
        let handle = self.create(bytes).expect("as many bytes as went back");
        self.map(address, bytes, handle);
        let mut state = self.state();
        let is_there = |part: &mut (u64, usize)| part.0.wrapping_sub(address) < bytes as u64;
        let back: Vec<_> = state.memory.aside.extract_if(.., is_there).collect();
        for (address, bytes) in back {
            let places = state.memory.places(address, bytes);
            state.memory.live.extend(places);
        }
        handle
    }

    /// The user frees this, on which it gives no more work.
    pub fn hand_in_unused(&self, address: u64, bytes: usize) {
        let mut state = self.state();
        let before = state.memory.aside.len();
        state.memory.aside.retain(|part| *part != (address, bytes));
        if state.memory.aside.len() == before && state.memory.is_mapped(address) {
            for part in state.memory.places(address, bytes) {
                state.memory.live.retain(|other| *other != part);
            }
        }
    }

    /// Addresses without memory.
    pub fn reserve(&self, bytes: u64) -> u64 {
        let mut state = self.state();
        let memory = &mut state.memory;
        let start = memory.next_reserved;
        // Adjacent reservations would be one to nobody but a pool that is wrong.
        memory.next_reserved += bytes;
        memory.reserved.insert(start, bytes);
        start
    }

    /// A handle. `None` if no bytes are left.
    pub fn create(&self, bytes: usize) -> Option<u64> {
        self.allocate(None, bytes).map(|address| place(address, 0).0 as u64)
    }

    /// Gives a handle back, at once. Another thread may be about to unmap it from addresses that it had before.
    pub fn release(&self, handle: u64) {
        self.deallocate(None, (handle + 1) * SPAN);
    }

    pub fn map(&self, address: u64, bytes: usize, handle: u64) {
        let mut state = self.state();
        let block = state.blocks.len();
        state.blocks.push(Default::default());
        state.memory.allocated.push(0);
        let memory = &mut state.memory;
        let around = memory.reserved.range(..=address).next_back();
        let is_reserved = around.is_some_and(|(start, all)| address + bytes as u64 <= start + all);
        let before = memory.mappings.range(..address + bytes as u64).next_back();
        let is_free = before.is_none_or(|(start, it)| start + it.bytes as u64 <= address);
        let is_whole = memory.allocated[handle as usize] == bytes;
        let complaint = (!is_reserved || !is_free || !is_whole)
            .then(|| format!("handle {handle} cannot be mapped at {address:#x}"));
        let mapping = Mapping { bytes, memory: handle as usize, address: block };
        memory.mappings.insert(address, mapping);
        drop(state);
        report(complaint);
    }

    /// Unmaps a handle: no use by these addresses may be pending.
    pub fn unmap(&self, address: u64, bytes: usize) {
        let mut state = self.state();
        let removed = state.memory.mappings.remove(&address).filter(|it| it.bytes == bytes);
        let complaint = match removed {
            Some(mapping) => {
                let is_live = state.memory.live.iter().any(|live| live.0 == mapping.address);
                let live = is_live.then(|| format!("{address:#x} is unmapped, and handed out"));
                live.or_else(|| state.use_on_host(mapping.address, ALL, Access::Free))
            }
            None => Some(format!("nothing is mapped at {address:#x}")),
        };
        drop(state);
        report(complaint);
    }

    /// Gives addresses back, of which nothing is mapped.
    pub fn unreserve(&self, address: u64, bytes: u64) {
        let mut state = self.state();
        let is_known = state.memory.reserved.remove(&address) == Some(bytes);
        let is_taken = state.memory.mappings.range(address..address + bytes).next().is_some();
        drop(state);
        report((!is_known || is_taken).then(|| format!("{address:#x} cannot be given back")));
    }

    /// Frees a block, in a stream's order or at once.
    pub fn deallocate(&self, stream: Option<usize>, address: u64) {
        let (block, _) = place(address, 0);
        let mut state = self.state();
        let mut complaint = match stream {
            Some(stream) => state.use_block(stream, block, ALL, Access::Free),
            None => state.use_on_host(block, ALL, Access::Free),
        };
        if state.memory.live.iter().any(|(other, _)| *other == block) {
            complaint = Some(format!("block {block} is given back with a part of it handed out"));
        }
        let bytes = std::mem::take(&mut state.memory.allocated[block]);
        state.memory.left = state.memory.left.saturating_add(bytes);
        drop(state);
        report(complaint);
    }

    /// The pool handed this out, and its user gives the stream work on it.
    pub fn hand_out(&self, stream: usize, address: u64, bytes: usize) {
        let mut state = self.state();
        let mut complaint = None;
        for (block, range) in state.memory.places(address, bytes) {
            complaint = complaint.or_else(|| state.hand_out(stream, block, range));
        }
        drop(state);
        report(complaint);
    }

    /// A launch works on a block that a user holds.
    pub fn work(&self, stream: usize, address: u64, bytes: usize) {
        let places = self.state().memory.places(address, bytes);
        for (block, range) in places {
            self.use_block(stream, block, range, Access::Write);
        }
    }

    /// The user gives it the last work, and is about to free it.
    pub fn hand_in(&self, stream: usize, address: u64, bytes: usize) {
        let mut state = self.state();
        let mut complaint = None;
        for part in state.memory.places(address, bytes) {
            let found = state.use_block(stream, part.0, part.1.clone(), Access::Write);
            complaint = complaint.or(found);
            state.memory.live.retain(|other| *other != part);
        }
        drop(state);
        report(complaint);
    }

    /// The next `records` are refused.
    pub fn refuse_records(&self, records: usize) {
        self.state().memory.refusals = records;
    }

    pub fn try_record(&self, stream: usize) -> Result<Event, Refused> {
        let mut state = self.state();
        if state.memory.refusals > 0 {
            state.memory.refusals -= 1;
            return Err(Refused);
        }
        let (event, mut complaint) = state.record(stream);
        if state.memory.capturing[stream] {
            complaint = Some(format!("an event is recorded on stream {stream}, in capture"));
        }
        drop(state);
        report(complaint);
        Ok(event)
    }

    /// As [`wait`](Self::wait), of a stream that no thread may give work while a capture has it.
    pub fn try_wait(&self, stream: usize, event: &Event) -> Result<(), Refused> {
        let captured = self.state().memory.capturing[stream];
        let complaint = captured.then(|| format!("stream {stream} waits for others, in capture"));
        report(complaint);
        self.wait(stream, event)
    }

    pub fn set_stream_capturing(&self, stream: usize, capturing: bool) {
        self.state().memory.capturing[stream] = capturing;
    }

    pub fn is_stream_capturing(&self, stream: usize) -> bool {
        self.state().memory.capturing[stream]
    }

    /// The last handle of a stream that no pool has is gone.
    pub fn abandon(&self, stream: usize) {
        self.state().memory.abandoned[stream] = true;
    }

    pub fn is_abandoned(&self, stream: usize) -> bool {
        self.state().memory.abandoned[stream]
    }

    pub fn leak(&self, bytes: usize) {
        self.state().memory.leaked += bytes;
    }

    /// The pool is gone, and holds nothing any more.
    pub fn expect_all_back(&self) {
        let state = self.state();
        let held: usize = state.memory.allocated.iter().sum();
        let leaked = state.memory.leaked;
        let (mapped, reserved) = (state.memory.mappings.len(), state.memory.reserved.len());
        drop(state);
        assert_eq!((held, leaked), (0, 0), "bytes that did not come back, and were leaked");
        assert_eq!((mapped, reserved), (0, 0), "handles that stay mapped, and reservations");
    }
}
