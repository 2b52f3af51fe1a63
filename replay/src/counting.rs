//! The lowest resource of a stack: it counts what it hands on.

use crate::words::count;
use aquifer::{
    Device, DeviceBlock, DeviceLayout, DeviceResource, Error, ErrorKind, Result, Stream,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A block of the device, and while which steps it was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The device's address.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// The step that took it.
    pub from: usize,
    /// The step that gave it back; `usize::MAX` if none did.
    pub to: usize,
}

/// What went through a [`Counting`].
#[derive(Debug, Default)]
pub(crate) struct Counts {
    reserved: AtomicU64,
    peak: AtomicU64,
    calls: AtomicU64,
    limit: Option<u64>,
    /// The step that is being replayed, written by the engine.
    pub(crate) now: AtomicUsize,
    changes: Option<Mutex<Vec<Change>>>,
}

/// A block that was taken from the device, or given back.
#[derive(Clone, Copy, Debug)]
struct Change {
    address: u64,
    /// 0 for a block that was given back.
    bytes: u64,
    step: usize,
}

impl Counts {
    /// No more than `limit` bytes are handed on. With `changes`, each block is remembered.
    pub(crate) fn new(limit: Option<u64>, changes: bool) -> Self {
        Self { limit, changes: changes.then(Mutex::default), ..Self::default() }
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// The blocks so far, in the order in which they were taken; `None` if they are not remembered.
    pub(crate) fn segments(&self) -> Option<Vec<Segment>> {
        let changes = self.changes.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Segment> = Vec::new();
        // By address, those that are held: their places in `all`.
        let mut held = BTreeMap::new();
        for Change { address, bytes, step } in changes.iter().copied() {
            if bytes > 0 {
                held.insert(address, all.len());
                all.push(Segment { address, bytes, from: step, to: usize::MAX });
            } else if let Some(segment) =
                held.remove(&address).and_then(|place: usize| all.get_mut(place))
            {
                segment.to = step;
            }
        }
        Some(all)
    }

    fn note(&self, address: u64, bytes: u64) {
        if let Some(changes) = &self.changes {
            let step = self.now.load(Ordering::Relaxed);
            let mut changes = changes.lock().unwrap_or_else(PoisonError::into_inner);
            changes.push(Change { address, bytes, step });
        }
    }

    /// Counts bytes before they are asked for, so that a limit holds whoever else asks.
    fn reserve(&self, bytes: u64) -> Result<()> {
        let reserved = self.reserved.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match self.limit {
            Some(limit) if reserved > limit => {
                self.reserved.fetch_sub(bytes, Ordering::Relaxed);
                Err(Error::new(
                    ErrorKind::OutOfMemory,
                    format!(
                        "allocating {}, where the replay's capacity is {limit} and {} are taken",
                        count(bytes, "byte"),
                        reserved - bytes
                    ),
                ))
            }
            _ => Ok(()),
        }
    }

    fn taken(&self, block: &DeviceBlock) {
        self.peak.fetch_max(self.reserved(), Ordering::Relaxed);
        self.note(block.address(), block.bytes() as u64);
    }

    fn given_back(&self, block: &DeviceBlock) {
        self.reserved.fetch_sub(block.bytes() as u64, Ordering::Relaxed);
        self.note(block.address(), 0);
    }
}

/// Counts the bytes that its upstream hands out, and refuses more than a limit.
#[derive(Debug)]
pub(crate) struct Counting<U> {
    upstream: U,
    counts: Arc<Counts>,
}

impl<U> Counting<U> {
    pub(crate) fn new(upstream: U, counts: Arc<Counts>) -> Self {
        Self { upstream, counts }
    }
}

// SAFETY: every block is the upstream's, and goes back to it unchanged.
unsafe impl<U: DeviceResource> DeviceResource for Counting<U> {
    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let asked = layout.bytes() as u64;
        self.counts.calls.fetch_add(1, Ordering::Relaxed);
        self.counts.reserve(asked)?;
        let block = self.upstream.allocate(stream, layout).inspect_err(|_| {
            self.counts.reserved.fetch_sub(asked, Ordering::Relaxed);
        })?;
        self.counts.reserved.fetch_add(block.bytes() as u64 - asked, Ordering::Relaxed);
        self.counts.taken(&block);
        Ok(block)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        self.counts.calls.fetch_add(1, Ordering::Relaxed);
        self.counts.given_back(&block);
        // SAFETY: the block is the upstream's; our caller vouches for the rest.
        unsafe { self.upstream.deallocate(stream, block) }
    }
}
