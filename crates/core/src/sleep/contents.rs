//! What a pool held when it fell asleep.

use super::copies::{
    Direction, HostBlock, Segment, allocate, copy_all, fill_zero, page_locked, segment,
};
use super::file::KeptFile;
use super::keep::Keep;
use super::place::{Part, parts_in, parts_of};
use crate::debug_log;
use crate::device::Device;
use crate::error::{ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::pinned::HostBuffer;
use crate::pool::MappedPlace;
use crate::resource::pool::Contents;
use crate::stream::{Event, Stream};
use std::fmt;

/// Parts begin there in memory, where the device's blocks do.
const ALIGNMENT: usize = 256;

/// The largest block of page-locked memory: one that is larger takes the driver long at once.
const LARGEST: usize = 1 << 30;

/// What a pool that [woke](crate::PoolResource::wake) gives back.
#[non_exhaustive]
pub struct Woken {
    /// Bytes that were copied to the device.
    pub copied: usize,
    /// The buffer of [`Keep::Buffer`].
    pub buffer: Option<Box<dyn HostBuffer<Item = u8>>>,
}

impl fmt::Debug for Woken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_buffer = self.buffer.is_some();
        f.debug_struct("Woken")
            .field("copied", &self.copied)
            .field("has_buffer", &has_buffer)
            .finish()
    }
}

enum Store {
    PageLocked(Vec<HostBlock>),
    File(KeptFile),
    Buffer(Box<dyn HostBuffer<Item = u8>>),
    Nothing,
}

impl Store {
    /// The host's memory, in order, asked for once: the device may use it from then on. A file has none.
    fn segments(&mut self) -> Vec<Segment> {
        match self {
            Self::PageLocked(blocks) => blocks.iter_mut().map(segment).collect(),
            Self::Buffer(buffer) => {
                let (start, bytes) = buffer.parts();
                vec![Segment { start, bytes }]
            }
            Self::File(_) | Self::Nothing => Vec::new(),
        }
    }
}

/// The contents, and where each part of them belongs. A drop waits for copies that are on their way.
pub(super) struct Kept {
    device: Device,
    parts: Vec<Part>,
    store: Option<Store>,
    /// Of the store's memory, which lies still while the store is only moved.
    segments: Vec<Segment>,
    /// What the copies are on, and the end of each group of those to the host.
    stream: Stream,
    groups: Vec<Event>,
    /// Copies may be on their way.
    copies: bool,
    copied: usize,
}

impl Kept {
    pub(super) fn copy_out(device: &Device, groups: &[&[MappedPlace]], keep: Keep) -> Result<Self> {
        let (parts, bytes) = parts_of(groups, ALIGNMENT);
        let stream = device.new_stream()?;
        let kept = |parts, store| Self {
            device: device.clone(),
            parts,
            store: Some(store),
            segments: Vec::new(),
            stream,
            groups: Vec::new(),
            copies: false,
            copied: 0,
        };
        let mut kept = match keep {
            Keep::Nothing => kept(parts, Store::Nothing),
            Keep::File(folder) => {
                let (parts, file) = KeptFile::write(device, groups, &folder)?;
                kept(parts, Store::File(file))
            }
            Keep::Buffer(buffer) => kept(parts, Store::Buffer(buffer)),
            Keep::PageLocked => {
                let pinned = page_locked(device)?;
                let sizes = (0..bytes).step_by(LARGEST).map(|at| LARGEST.min(bytes - at));
                let blocks = sizes.map(|bytes| allocate(&pinned, bytes));
                kept(parts, Store::PageLocked(blocks.collect::<Result<Vec<_>>>()?))
            }
        };
        kept.segments = kept.store.as_mut().map_or_else(Vec::new, Store::segments);
        if matches!(kept.store, Some(Store::PageLocked(_) | Store::Buffer(_))) {
            let room: usize = kept.segments.iter().map(|segment| segment.bytes).sum();
            ensure!(
                room >= bytes,
                InvalidArgument,
                "give a larger one",
                "a pool was to keep {} in a buffer of {}",
                Count(bytes, "byte"),
                Count(room, "byte")
            );
            for group in groups {
                let parts = parts_in(&kept.parts, group);
                kept.copies = true;
                copy_all(&kept.stream, parts, &kept.segments, Direction::Out)?;
                kept.groups.push(kept.stream.record()?);
            }
        }
        Ok(kept)
    }

    pub(super) fn into_woken(mut self) -> Woken {
        let buffer = match self.store.take() {
            Some(Store::Buffer(buffer)) => Some(buffer),
            _ => None,
        };
        Woken { copied: self.copied, buffer }
    }
}

impl Contents for Kept {
    fn wait_out(&mut self, group: usize) -> Result<()> {
        let Some(event) = self.groups.get(group) else { return Ok(()) };
        event.synchronize()?;
        // They are in one order.
        self.copies &= group + 1 < self.groups.len();
        Ok(())
    }

    fn begin_in(&mut self) -> Result<()> {
        self.copied = 0;
        Ok(())
    }

    fn copy_in(&mut self, group: &[MappedPlace]) -> Result<()> {
        let parts = parts_in(&self.parts, group);
        // A file is read by then.
        self.copies |= !matches!(self.store, Some(Store::File(_)));
        match &self.store {
            Some(Store::PageLocked(_) | Store::Buffer(_)) => {
                copy_all(&self.stream, parts, &self.segments, Direction::In)?;
            }
            Some(Store::File(file)) => file.read(&self.device, parts)?,
            Some(Store::Nothing) | None => return fill_zero(&self.stream, parts),
        }
        self.copied += parts_in(&self.parts, group).map(|part| part.bytes).sum::<usize>();
        Ok(())
    }

    fn wait_in(&mut self) -> Result<()> {
        self.stream.synchronize_uncaptured()?;
        self.copies = false;
        Ok(())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A copy that is on its way uses the host's memory, and may for good where the device is lost.
        if self.copies
            && let Err(error) = self.stream.synchronize_uncaptured()
            && let Some(store) = self.store.take()
        {
            // In the child of a fork the copies are the parent's.
            if error.kind() != ErrorKind::Forked {
                debug_log::event!(debug, %error, "leaked host memory of a pool that slept: its copies may run still");
            }
            std::mem::forget(store);
        }
    }
}
