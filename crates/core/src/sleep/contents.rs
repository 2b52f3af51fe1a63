//! What a pool held when it fell asleep.

use super::Keep;
use super::file::KeptFile;
use super::place::{Part, parts_in, parts_of};
use crate::device::Device;
use crate::driver::{
    CopyToDevice, CopyToHost, DeviceRange, ErrorContext, FillWord, RawCopy, RawFill,
};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::pinned::{
    CurrentPinned, HostBuffer, PinnedResource, current_pinned_resource, last_error,
};
use crate::pool::MappedPlace;
use crate::resource::DeviceResource as _;
use crate::resource::pool::Contents;
use crate::stream::{Event, Stream};
use allocator_api2::vec::Vec as HostVec;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

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

/// A page of host memory: files past the system's cache are read and written from whole ones.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
pub(super) struct Page([MaybeUninit<u8>; PAGE]);

pub(super) const PAGE: usize = 4096;

/// Page-locked memory, of which the device writes all that is read.
pub(super) type HostBlock = HostVec<Page, CurrentPinned>;

/// Page-locked memory for the contents of a device: the current one, if devices of this kind reach it.
pub(super) fn page_locked(device: &Device) -> Result<CurrentPinned> {
    if let Ok(current) = current_pinned_resource()
        && current.device().sharing_host_memory().contains(device)
    {
        return Ok(current);
    }
    Ok(PinnedResource::new(device)?.into())
}

/// A block of page-locked memory, of whole pages.
pub(super) fn allocate(pinned: &CurrentPinned, bytes: usize) -> Result<HostBlock> {
    let mut block = HostBlock::new_in(pinned.clone());
    let pages = bytes.div_ceil(PAGE);
    block.try_reserve_exact(pages).map_err(|_| {
        let message =
            format!("{} of page-locked memory for a pool that sleeps", Count(bytes, "byte"));
        last_error().unwrap_or_else(|| Error::new(ErrorKind::OutOfMemory, message))
    })?;
    // SAFETY: so many were reserved, and have no value yet, as their type says.
    unsafe { block.set_len(pages) };
    Ok(block)
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

/// The contents, and where each part of them belongs. Copies may be on their way: a drop waits for them.
pub(super) struct Kept {
    device: Device,
    parts: Vec<Part>,
    store: Option<Store>,
    /// Of the store's memory, which lies still while the store is only moved.
    segments: Vec<Segment>,
    /// What the copies are on, and the end of each group of those to the host.
    stream: Stream,
    groups: Vec<Event>,
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
        self.groups.get(group).map_or(Ok(()), Event::synchronize)
    }

    fn begin_in(&mut self) -> Result<()> {
        self.copied = 0;
        Ok(())
    }

    fn copy_in(&mut self, group: &[MappedPlace]) -> Result<()> {
        let parts = parts_in(&self.parts, group);
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
        self.stream.synchronize_uncaptured()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A copy that is on its way uses the host's memory, and may for good where the device is lost.
        if self.stream.synchronize_uncaptured().is_err()
            && let Some(store) = self.store.take()
        {
            std::mem::forget(store);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Out,
    In,
}

/// Host memory that holds a piece of the contents.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address and a length: `Kept` has the memory behind it.
unsafe impl Send for Segment {}

fn segment(block: &mut HostBlock) -> Segment {
    Segment { bytes: block.len() * PAGE, start: NonNull::from(&mut block[..]).cast() }
}

/// Begins to copy the parts between the device and the segments, one behind the other.
fn copy_all<'a>(
    stream: &Stream,
    parts: impl Iterator<Item = &'a Part>,
    segments: &[Segment],
    direction: Direction,
) -> Result<()> {
    for part in parts {
        let mut begin = 0;
        for Segment { start, bytes } in segments {
            let (first, last) =
                (part.offset.max(begin), (part.offset + part.bytes).min(begin + bytes));
            if first < last {
                let address = part.address + (first - part.offset) as u64;
                let range = DeviceRange { address, bytes: last - first };
                // SAFETY: the place lies in the segment, which `Kept` has until the stream has passed.
                let host = unsafe { start.add(first - begin) };
                // SAFETY: the pool has this memory to itself, and it is mapped until the stream has passed.
                unsafe { copy(stream, range, host, direction) }?;
            }
            begin += bytes;
        }
    }
    Ok(())
}

/// Copies a part on a stream, or at once.
///
/// # Safety
///
/// The range is mapped, and no other work uses it. The host's memory is as long, and nothing else uses it until the stream
/// has passed this.
pub(super) unsafe fn copy(
    stream: &Stream,
    range: DeviceRange,
    host: NonNull<u8>,
    direction: Direction,
) -> Result<()> {
    let DeviceRange { address, bytes } = range;
    let (driver, host) = (stream.device().driver(), host.as_ptr());
    let copied = match (driver.aside(), direction) {
        // SAFETY: the caller's promise.
        (Some(aside), Direction::Out) => unsafe { aside.put_aside(range, host) },
        // SAFETY: the same.
        (Some(aside), Direction::In) => unsafe { aside.bring_back(range, host) },
        (None, _) => {
            let call = stream.begin_call()?;
            // The driver waits where the memory is pageable.
            call.mark_blocking();
            match direction {
                Direction::Out => {
                    let copy: CopyToHost = RawCopy { target: host, source: address, bytes };
                    // SAFETY: the same.
                    unsafe { driver.copy_to_host(copy, call.raw()) }
                }
                Direction::In => {
                    let copy: CopyToDevice =
                        RawCopy { target: address, source: host.cast_const(), bytes };
                    // SAFETY: the same.
                    unsafe { driver.copy_to_device(copy, call.raw()) }
                }
            }
        }
    };
    copied.with_context(|| format!("copying {} of a pool that sleeps", Count(bytes, "byte")))
}

/// Begins to have the parts be zero.
fn fill_zero<'a>(stream: &Stream, parts: impl Iterator<Item = &'a Part>) -> Result<()> {
    let driver = stream.device().driver();
    for part in parts {
        let filled = match driver.aside() {
            // SAFETY: the pool has this memory to itself, and it is mapped.
            Some(aside) => unsafe { aside.bring_back(part.range(), std::ptr::null()) },
            None => {
                let call = stream.begin_call()?;
                let (target, count) = (part.address, part.bytes);
                let fill = RawFill { target, stride: 1, word: FillWord::U8(0), count };
                // SAFETY: the same, until the stream has passed.
                unsafe { driver.fill(fill, call.raw()) }
            }
        };
        filled.with_context(|| {
            format!("clearing {} of a pool that wakes", Count(part.bytes, "byte"))
        })?;
    }
    Ok(())
}
