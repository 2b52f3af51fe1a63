//! A driver whose streams are vector clocks, not threads.
//!
//! Each use of a block gets a stamp on its stream. An event is a copy of a stream's clock, a wait
//! joins one into another, and a use has to find every conflicting one before it in its own clock.
//! All of it lies behind one loom mutex, which is what "the driver serialises calls" means here and
//! lets loom see that two calls conflict.

use super::memory::Memory;
use loom::sync::{Mutex, MutexGuard};
use std::ops::Range;

/// Streams of the driver, from 0.
pub const STREAMS: usize = 4;

/// Bytes of a block.
pub const WHOLE: Range<usize> = 0..8;

/// How many uses of each stream are known to come before.
type Clock = [u32; STREAMS];

/// All that a stream was given when it was recorded.
#[derive(Clone, Debug)]
pub struct Event(Clock);

/// The driver said no; nothing happened.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// In the stream's order.
    Free,
    /// Memory that work on the stream may use from here on.
    Obtain,
}

#[derive(Debug)]
pub struct Driver(Mutex<State>);

#[derive(Debug)]
pub(super) struct State {
    streams: [Clock; STREAMS],
    pub(super) destroyed: [bool; STREAMS],
    /// What the device has done.
    complete: Clock,
    pub(super) blocks: Vec<Block>,
    pub(super) capturing: bool,
    lost: bool,
    /// Waits still to be refused.
    pub(super) refusals: usize,
    /// What only pools ask for.
    pub(super) memory: Memory,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    uses: Vec<Use>,
    pub(super) freed: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Use {
    stream: usize,
    stamp: u32,
    access: Access,
    range: Range<usize>,
}

impl Use {
    fn conflicts(&self, access: Access, range: &Range<usize>) -> bool {
        let one_writes = self.access != Access::Read || access != Access::Read;
        one_writes && self.range.start < range.end && range.start < self.range.end
    }
}

impl Access {
    fn verb(self) -> &'static str {
        match self {
            Self::Read => "reads",
            Self::Write => "writes",
            Self::Free => "frees",
            Self::Obtain => "obtains",
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Free => "free",
            Self::Obtain => "allocation",
        }
    }
}

fn join(into: &mut Clock, from: &Clock) {
    for (into, from) in into.iter_mut().zip(from) {
        *into = (*into).max(*from);
    }
}

/// Says what is wrong when no lock is held: a poisoned one would drown the message in others.
pub(super) fn report(complaint: Option<String>) {
    if let Some(complaint) = complaint {
        panic!("{complaint}");
    }
}

impl State {
    pub(super) fn record(&self, stream: usize) -> (Event, Option<String>) {
        let complaint = self.destroyed[stream]
            .then(|| format!("an event is recorded on stream {stream}, destroyed"));
        (Event(self.streams[stream]), complaint)
    }

    /// What is wrong with this use, if anything is. It happens anyway.
    pub(super) fn use_block(
        &mut self,
        stream: usize,
        block: usize,
        range: Range<usize>,
        access: Access,
    ) -> Option<String> {
        let clock = self.streams[stream];
        let verb = access.verb();
        let mut complaint = self.destroyed[stream]
            .then(|| format!("stream {stream}, destroyed, {verb} block {block}"));
        if self.blocks[block].freed {
            complaint = Some(format!("stream {stream} {verb} block {block} after its free"));
        }
        let former = &self.blocks[block].uses;
        // What the device has done comes before whatever it is given from now on.
        let known = |stream: usize| clock[stream].max(self.complete[stream]);
        let early = former
            .iter()
            .find(|former| former.conflicts(access, &range) && former.stamp > known(former.stream));
        if let Some(Use { stream: other, access, .. }) = early {
            let noun = access.noun();
            complaint = Some(format!(
                "device race: stream {stream} {verb} block {block} before stream {other}'s {noun} \
                 is ordered"
            ));
        }
        self.streams[stream][stream] += 1;
        let stamp = self.streams[stream][stream];
        self.blocks[block].uses.push(Use { stream, stamp, access, range });
        self.blocks[block].freed |= access == Access::Free;
        complaint
    }

    pub(super) fn use_on_host(
        &mut self,
        block: usize,
        range: Range<usize>,
        access: Access,
    ) -> Option<String> {
        let verb = access.verb();
        let mut complaint = None;
        let running = self.blocks[block].uses.iter().find(|former| {
            former.conflicts(access, &range) && former.stamp > self.complete[former.stream]
        });
        if let Some(Use { stream, access, .. }) = running {
            let noun = access.noun();
            complaint = Some(format!(
                "host race: the host {verb} block {block} and stream {stream}'s {noun} may run"
            ));
        }
        if access == Access::Free {
            if self.blocks[block].freed {
                complaint = Some(format!("block {block} is freed twice"));
            }
            self.blocks[block].freed = true;
        }
        complaint
    }
}

impl Driver {
    pub fn new(blocks: usize) -> Self {
        Self(Mutex::new(State {
            streams: [[0; STREAMS]; STREAMS],
            destroyed: [false; STREAMS],
            complete: [0; STREAMS],
            blocks: vec![Block::default(); blocks],
            capturing: false,
            lost: false,
            refusals: 0,
            memory: Memory::default(),
        }))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn record(&self, stream: usize) -> Event {
        let state = self.state();
        let (event, complaint) = state.record(stream);
        drop(state);
        report(complaint);
        event
    }

    /// One event for all that the context was given.
    pub fn record_context(&self) -> Event {
        let mut all = Clock::default();
        for clock in &self.state().streams {
            join(&mut all, clock);
        }
        Event(all)
    }

    pub fn wait(&self, stream: usize, event: &Event) -> Result<(), Refused> {
        let mut state = self.state();
        if state.refusals > 0 {
            state.refusals -= 1;
            return Err(Refused);
        }
        join(&mut state.streams[stream], &event.0);
        Ok(())
    }

    pub fn wait_for(&self, stream: usize, other: usize) -> Result<(), Refused> {
        self.wait(stream, &self.record(other))
    }

    /// The next `waits` are refused.
    pub fn refuse(&self, waits: usize) {
        self.state().refusals = waits;
    }

    /// Gives a stream work on a part of a block.
    pub fn use_block(&self, stream: usize, block: usize, range: Range<usize>, access: Access) {
        let mut state = self.state();
        let complaint = state.use_block(stream, block, range, access);
        drop(state);
        report(complaint);
    }

    /// The host reads, or frees for good, what no stream may be using any more. An order is not
    /// enough: it has to be over.
    pub fn use_on_host(&self, block: usize, range: Range<usize>, access: Access) {
        let mut state = self.state();
        let complaint = state.use_on_host(block, range, access);
        drop(state);
        report(complaint);
    }

    pub fn is_complete(&self, event: &Event) -> bool {
        let complete = self.state().complete;
        event.0.iter().zip(&complete).all(|(asked, done)| asked <= done)
    }

    /// The device does all that the stream was given, and what it waits for.
    pub fn finish(&self, stream: usize) {
        let mut state = self.state();
        let clock = state.streams[stream];
        join(&mut state.complete, &clock);
    }

    /// The device does what the event is behind.
    pub fn pass(&self, event: &Event) {
        join(&mut self.state().complete, &event.0);
    }

    pub fn finish_all(&self) {
        let all = self.record_context();
        join(&mut self.state().complete, &all.0);
    }

    pub fn destroy(&self, stream: usize) {
        let again = std::mem::replace(&mut self.state().destroyed[stream], true);
        report(again.then(|| format!("stream {stream} is destroyed twice")));
    }

    pub fn is_destroyed(&self, stream: usize) -> bool {
        self.state().destroyed[stream]
    }

    pub fn set_capturing(&self, capturing: bool) {
        self.state().capturing = capturing;
    }

    pub fn is_capturing(&self) -> bool {
        self.state().capturing
    }

    /// From now on, nobody can say what the device does.
    pub fn lose(&self) {
        self.state().lost = true;
    }

    pub fn is_lost(&self) -> bool {
        self.state().lost
    }

    pub fn is_freed(&self, block: usize) -> bool {
        self.state().blocks[block].freed
    }
}
