//! The lowest resource of a stack: it counts what it hands on.

use aquifer::{
    Device, DeviceBlock, DeviceLayout, DeviceResource, Error, ErrorKind, Result, Stream,
};
use std::collections::HashMap;
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
    segments: Option<Mutex<Segments>>,
}

#[derive(Debug, Default)]
struct Segments {
    all: Vec<Segment>,
    /// By address, those that are held: their places in `all`.
    held: HashMap<u64, usize>,
}

impl Counts {
    /// No more than `limit` bytes are handed on. With `segments`, each block is remembered.
    pub(crate) fn new(limit: Option<u64>, segments: bool) -> Self {
        Self { limit, segments: segments.then(Mutex::default), ..Self::default() }
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

    pub(crate) fn segments(&self) -> Vec<Segment> {
        let Some(segments) = &self.segments else { return Vec::new() };
        segments.lock().unwrap_or_else(PoisonError::into_inner).all.clone()
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
                        "allocating {bytes} bytes, where the replay's capacity is {limit} and {} \
                         are taken",
                        reserved - bytes
                    ),
                ))
            }
            _ => Ok(()),
        }
    }

    fn taken(&self, block: &DeviceBlock) {
        self.peak.fetch_max(self.reserved(), Ordering::Relaxed);
        if let Some(segments) = &self.segments {
            let mut segments = segments.lock().unwrap_or_else(PoisonError::into_inner);
            let place = segments.all.len();
            segments.held.insert(block.address(), place);
            segments.all.push(Segment {
                address: block.address(),
                bytes: block.bytes() as u64,
                from: self.now.load(Ordering::Relaxed),
                to: usize::MAX,
            });
        }
    }

    fn given_back(&self, block: &DeviceBlock) {
        self.reserved.fetch_sub(block.bytes() as u64, Ordering::Relaxed);
        if let Some(segments) = &self.segments {
            let mut segments = segments.lock().unwrap_or_else(PoisonError::into_inner);
            let place = segments.held.remove(&block.address());
            if let Some(segment) = place.and_then(|place| segments.all.get_mut(place)) {
                segment.to = self.now.load(Ordering::Relaxed);
            }
        }
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
