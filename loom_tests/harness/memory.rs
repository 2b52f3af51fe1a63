//! The driver's memory, as pools ask for it: ranges of addresses that are allocated and come back,
//! and the parts of them that a pool's users hold.

use super::driver::{Access, Driver, Event, Refused, STREAMS, report};
use std::ops::Range;

/// Addresses from one block's start to the next one's. No address is ever allocated twice, so a use
/// after the free is told from a use of what came later.
const SPAN: u64 = 1 << 24;

const ALL: Range<usize> = 0..usize::MAX;

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
        }
    }
}

/// The block that an address lies in, and where in it the bytes are.
fn place(address: u64, bytes: usize) -> (usize, Range<usize>) {
    let start = (address % SPAN) as usize;
    ((address / SPAN) as usize - 1, start..start + bytes)
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
        let (block, range) = place(address, bytes);
        let mut state = self.state();
        let mut complaint = state.use_block(stream, block, range.clone(), Access::Write);
        let twice = state.memory.live.iter().any(|(other, part)| {
            *other == block && part.start < range.end && range.start < part.end
        });
        if twice {
            complaint = Some(format!("a part of block {block} is handed out twice"));
        }
        if range.end > state.memory.allocated[block] {
            complaint = Some(format!("what was handed out ends behind block {block}"));
        }
        state.memory.live.push((block, range));
        drop(state);
        report(complaint);
    }

    /// A launch works on a block that a user holds.
    pub fn work(&self, stream: usize, address: u64, bytes: usize) {
        let (block, range) = place(address, bytes);
        self.use_block(stream, block, range, Access::Write);
    }

    /// The user gives it the last work, and is about to free it.
    pub fn hand_in(&self, stream: usize, address: u64, bytes: usize) {
        let part = place(address, bytes);
        let mut state = self.state();
        let complaint = state.use_block(stream, part.0, part.1.clone(), Access::Write);
        state.memory.live.retain(|other| *other != part);
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
        drop(state);
        assert_eq!((held, leaked), (0, 0), "bytes that did not come back, and were leaked");
    }
}
