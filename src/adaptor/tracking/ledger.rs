//! What a tracking adaptor has handed out and not got back.

use super::allocation::Allocation;
use crate::adaptor::shards::Shards;
use crate::backend::is_forked_child;
use crate::debug_log::{event, later};
use crate::device::Device;
use crate::resource::DeviceBlock;
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::trusted::{AtomicU64, Ordering};
use std::backtrace::Backtrace;
use std::collections::HashMap;
use std::fmt::Write;
use std::thread;
use std::time::Instant;

/// How many blocks a log's line names: to look up where a block comes from may take milliseconds.
const NAMED: usize = 100;

#[derive(Default)]
struct Shard {
    live: HashMap<u64, Allocation>,
    bytes: usize,
}

impl Shard {
    fn insert(&mut self, allocation: Allocation) -> Option<Allocation> {
        self.bytes += allocation.bytes();
        let replaced = self.live.insert(allocation.address(), allocation);
        self.bytes -= replaced.as_ref().map_or(0, Allocation::bytes);
        replaced
    }

    fn remove(&mut self, address: u64) -> Option<Allocation> {
        let removed = self.live.remove(&address);
        // By what was added: the caller's idea of the size cannot bring the sum below zero.
        self.bytes -= removed.as_ref().map_or(0, Allocation::bytes);
        removed
    }
}

/// Events that are counted, and warned of the first time.
#[derive(Default)]
struct Odd {
    count: AtomicU64,
}

impl Odd {
    /// Whether this is the one to warn of.
    fn add(&self) -> bool {
        // Relaxed: numbers for people; they order nothing.
        self.count.fetch_add(1, Ordering::Relaxed) == 0
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

pub(super) struct Ledger {
    device: Device,
    started: Instant,
    numbers: AtomicU64,
    shards: Shards<Shard>,
    unknown: Odd,
    wrong_size: Odd,
    bypassed: Odd,
}

impl Ledger {
    pub(super) fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
            started: Instant::now(),
            numbers: AtomicU64::new(0),
            shards: Shards::default(),
            unknown: Odd::default(),
            wrong_size: Odd::default(),
            bypassed: Odd::default(),
        }
    }

    /// Notes a block that upstream handed out.
    pub(super) fn add(&self, block: &DeviceBlock, stream: &Stream, backtraces: bool) {
        if block.is_empty() || is_forked_child() {
            return;
        }
        let allocation = Allocation {
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            address: block.address(),
            bytes: block.bytes(),
            stream: stream.id(),
            thread: thread::current().id(),
            after: self.started.elapsed(),
            backtrace: backtraces.then(|| Arc::new(Backtrace::force_capture())),
        };
        let replaced = self.shards.of(block.address()).insert(allocation);
        if let Some(replaced) = replaced
            && self.bypassed.add()
        {
            let device = self.device.to_string();
            let (address, bytes) = (replaced.address(), replaced.bytes());
            later(move || {
                event!(
                    warn, %device, address, bytes,
                    "a tracked block was handed out again: it was freed past its tracking adaptor"
                );
            });
        }
    }

    /// Takes a block off the list, before upstream can hand it out again. Gives the block as it was
    /// handed out: upstream is not to suffer from a size that is wrong.
    pub(super) fn remove(&self, block: DeviceBlock) -> DeviceBlock {
        // The lock may have been held by a thread that is not there.
        if is_forked_child() {
            return block;
        }
        let found = self.shards.of(block.address()).remove(block.address());
        let (address, bytes) = (block.address(), block.bytes());
        match found {
            Some(found) if found.bytes() == bytes => block,
            Some(found) => {
                let allocated = found.bytes();
                if self.wrong_size.add() {
                    let device = self.device.to_string();
                    later(move || {
                        event!(
                            warn, %device, address, bytes, allocated,
                            "a tracked block was freed with a size that is not its own"
                        );
                    });
                }
                DeviceBlock::new(address, allocated, block.token())
            }
            None => {
                if bytes != 0 && self.unknown.add() {
                    let device = self.device.to_string();
                    later(move || {
                        event!(
                            warn, %device, address, bytes,
                            "a block was freed that this tracking adaptor does not know"
                        );
                    });
                }
                block
            }
        }
    }

    pub(super) fn outstanding(&self) -> Vec<Allocation> {
        if is_forked_child() {
            return Vec::new();
        }
        let shards = self.shards.all();
        sorted(shards.iter().flat_map(|shard| shard.live.values().cloned()).collect())
    }

    pub(super) fn bytes(&self) -> usize {
        if is_forked_child() {
            return 0;
        }
        self.shards.all().iter().map(|shard| shard.bytes).sum()
    }

    /// Frees of unknown blocks, of wrong sizes, and past the adaptor.
    pub(super) fn odd(&self) -> [u64; 3] {
        [&self.unknown, &self.wrong_size, &self.bypassed].map(Odd::count)
    }

    /// Names the first `most` of them.
    pub(super) fn report_of(&self, outstanding: &[Allocation], most: usize) -> String {
        let bytes: usize = outstanding.iter().map(Allocation::bytes).sum();
        let mut text = format!(
            "Outstanding Allocations: {} of {bytes} bytes on {}",
            outstanding.len(),
            self.device
        );
        // Writing to a string does not fail.
        for allocation in outstanding.iter().take(most) {
            let _ = write!(text, "\n  {allocation}");
        }
        if let Some(more) = outstanding.len().checked_sub(most).filter(|more| *more > 0) {
            let _ = write!(text, "\n  and {more} more");
        }
        let [unknown, wrong_size, bypassed] = self.odd();
        for (count, what) in [
            (unknown, "of blocks that were not handed out here"),
            (wrong_size, "with a wrong size"),
            (bypassed, "past this adaptor"),
        ] {
            if count != 0 {
                let _ = write!(text, "\n  frees {what}: {count}");
            }
        }
        text
    }

    pub(super) fn log(&self) {
        let outstanding = self.outstanding();
        if outstanding.is_empty() {
            event!(debug, "{}", self.report_of(&outstanding, NAMED));
        } else {
            event!(warn, "{}", self.report_of(&outstanding, NAMED));
        }
    }
}

fn sorted(mut allocations: Vec<Allocation>) -> Vec<Allocation> {
    allocations.sort_unstable_by_key(|allocation| allocation.number);
    allocations
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // A child inherits its parent's blocks, and leaks none of its own.
        if is_forked_child() {
            return;
        }
        let left = self.shards.all_mut().flat_map(|shard| shard.live.drain());
        let left = sorted(left.map(|(_, allocation)| allocation).collect());
        if !left.is_empty() {
            event!(
                warn,
                "a tracking adaptor ends before its blocks. {}",
                self.report_of(&left, NAMED)
            );
        }
    }
}
