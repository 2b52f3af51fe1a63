//! The rules of two other allocators, simulated: what they would hold on the same program.
//!
//! Their device is never late, but where a program holds a stream up.

mod free_ranges;
mod pytorch;
mod queues;
mod rmm;

pub(crate) use pytorch::PyTorch;
pub(crate) use rmm::Rmm;

use crate::play::Subject;
use crate::program::Caller;
use queues::Queues;

/// The rules of an allocator.
pub(crate) trait Rules {
    /// Where a block lies, and the bytes that the allocator has made of it.
    type Block;

    fn allocate(&mut self, stream: usize, bytes: usize) -> Self::Block;

    /// Takes a block back whose last use is a kernel on the stream; `is_past` knows which ones have run.
    fn free(&mut self, block: Self::Block, last: Use);

    /// Before each allocation: what is free by now.
    fn poll(&mut self, is_past: &dyn Fn(Use) -> bool);

    fn trim(&mut self);

    fn reserved(&self) -> usize;
}

/// A kernel of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) stream: usize,
    pub(crate) mark: u64,
}

/// An allocator by its rules, on a device.
pub(crate) struct Peer<R> {
    rules: R,
    queues: Queues,
}

impl<R: Rules> Peer<R> {
    pub(crate) fn new(rules: R, streams: usize) -> Self {
        Self { rules, queues: Queues::new(streams) }
    }

    fn poll(&mut self) {
        let queues = &self.queues;
        self.rules.poll(&|one| queues.is_past(one));
    }
}

impl<R: Rules> Subject for Peer<R> {
    type Block = R::Block;

    fn allocate(&mut self, by: Caller, bytes: usize) -> (R::Block, Option<u64>) {
        self.poll();
        (self.rules.allocate(by.stream, bytes), None)
    }

    fn free(&mut self, by: Caller, block: R::Block, _: usize, mark: u64) {
        self.rules.free(block, Use { stream: by.stream, mark });
    }

    fn work(&mut self, stream: usize, mark: u64) {
        self.queues.work(Use { stream, mark });
    }

    fn is_past(&self, stream: usize, mark: u64) -> bool {
        self.queues.is_past(Use { stream, mark })
    }

    fn order(&mut self, stream: usize, before: usize) {
        self.queues.order(stream, before);
    }

    fn stall(&mut self, stream: usize, stalled: bool) {
        self.queues.stall(stream, stalled);
    }

    fn wait(&mut self, _: usize) {}

    fn wait_idle(&mut self) {}

    fn settle(&mut self) {}

    fn trim(&mut self, _: usize, _: bool) {
        self.poll();
        self.rules.trim();
    }

    fn sleep(&mut self, _: bool) -> bool {
        false
    }

    fn set_threshold(&mut self, _: usize) -> bool {
        false
    }

    fn reserved(&self) -> usize {
        self.rules.reserved()
    }
}
