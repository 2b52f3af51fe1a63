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
use crate::pinned::{CurrentPinned, PinnedResource, current_pinned_resource, last_error};
use crate::pool::MappedPlace;
use crate::resource::DeviceResource as _;
use crate::stream::Stream;
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
    pub buffer: Option<Box<dyn AsMut<[u8]> + Send>>,
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

/// Page-locked memory, of which the device writes all that is read.
pub(super) type HostBlock = HostVec<MaybeUninit<u8>, CurrentPinned>;

/// Page-locked memory for the contents of a device: the current one, if devices of this kind reach it.
pub(super) fn page_locked(device: &Device) -> Result<CurrentPinned> {
    if let Ok(current) = current_pinned_resource()
        && current.device().sharing_host_memory().contains(device)
    {
        return Ok(current);
    }
    Ok(PinnedResource::new(device)?.into())
}

/// A block of page-locked memory.
pub(super) fn allocate(pinned: &CurrentPinned, bytes: usize) -> Result<HostBlock> {
    let mut block = HostBlock::new_in(pinned.clone());
    block.try_reserve_exact(bytes).map_err(|_| {
        let message =
            format!("{} of page-locked memory for a pool that sleeps", Count(bytes, "byte"));
        last_error().unwrap_or_else(|| Error::new(ErrorKind::OutOfMemory, message))
    })?;
    // SAFETY: so many bytes were reserved, and have no value yet, as their type says.
    unsafe { block.set_len(bytes) };
    Ok(block)
}

enum Store {
    PageLocked(Vec<HostBlock>),
    File(KeptFile),
    Buffer(Box<dyn AsMut<[u8]> + Send>),
    Nothing,
}

/// The contents, and where each part of them belongs.
pub(super) struct Contents {
    parts: Vec<Part>,
    store: Store,
    copied: usize,
}

impl Contents {
    pub(super) fn copy_out(device: &Device, places: &[MappedPlace], keep: Keep) -> Result<Self> {
        let (parts, bytes) = parts_of(places, ALIGNMENT);
        let store = match keep {
            Keep::Nothing => Store::Nothing,
            Keep::File(folder) => {
                let (parts, file) = KeptFile::write(device, places, &folder)?;
                return Ok(Self { parts, store: Store::File(file), copied: 0 });
            }
            Keep::Buffer(mut buffer) => {
                let target = buffer.as_mut().as_mut();
                ensure!(
                    target.len() >= bytes,
                    InvalidArgument,
                    "give a larger one",
                    "a pool was to keep {} in a buffer of {}",
                    Count(bytes, "byte"),
                    Count(target.len(), "byte")
                );
                copy_all(device, &parts, &[segment(target)], Direction::Out)?;
                Store::Buffer(buffer)
            }
            Keep::PageLocked => {
                let pinned = page_locked(device)?;
                let sizes = (0..bytes).step_by(LARGEST).map(|at| LARGEST.min(bytes - at));
                let mut blocks =
                    sizes.map(|bytes| allocate(&pinned, bytes)).collect::<Result<Vec<_>>>()?;
                copy_all(device, &parts, &segments(&mut blocks), Direction::Out)?;
                Store::PageLocked(blocks)
            }
        };
        Ok(Self { parts, store, copied: 0 })
    }

    pub(super) fn copy_in(&mut self, device: &Device, places: &[MappedPlace]) -> Result<()> {
        let parts = parts_in(&self.parts, places);
        match &mut self.store {
            Store::PageLocked(blocks) => {
                copy_all(device, &parts, &segments(blocks), Direction::In)?;
            }
            Store::Buffer(buffer) => {
                let source = buffer.as_mut().as_mut();
                let end = parts.last().map_or(0, |part| part.offset + part.bytes);
                ensure!(
                    source.len() >= end,
                    InvalidArgument,
                    "give back all that the pool has written",
                    "a buffer with the contents of a pool has {} now, of {end}",
                    Count(source.len(), "byte")
                );
                copy_all(device, &parts, &[segment(source)], Direction::In)?;
            }
            Store::File(file) => file.read(device, &parts)?,
            Store::Nothing => fill_zero(device, &parts)?,
        }
        let copied = parts.iter().map(|part| part.bytes).sum();
        self.copied = if matches!(self.store, Store::Nothing) { 0 } else { copied };
        Ok(())
    }

    pub(super) fn into_woken(self) -> Woken {
        let buffer = match self.store {
            Store::Buffer(buffer) => Some(buffer),
            _ => None,
        };
        Woken { copied: self.copied, buffer }
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

fn segment(memory: &mut [u8]) -> Segment {
    Segment { bytes: memory.len(), start: NonNull::from(memory).cast() }
}

fn segments(blocks: &mut [HostBlock]) -> Vec<Segment> {
    let segment = |block: &mut HostBlock| Segment {
        bytes: block.len(),
        start: NonNull::from(&mut block[..]).cast(),
    };
    blocks.iter_mut().map(segment).collect()
}

/// Copies all parts between the device and the segments, one behind the other, and waits for that.
fn copy_all(
    device: &Device,
    parts: &[Part],
    segments: &[Segment],
    direction: Direction,
) -> Result<()> {
    let stream = device.new_stream()?;
    let mut copied = Ok(());
    'parts: for part in parts {
        let mut begin = 0;
        for Segment { start, bytes } in segments {
            let (first, last) =
                (part.offset.max(begin), (part.offset + part.bytes).min(begin + bytes));
            if first < last {
                let address = part.address + (first - part.offset) as u64;
                let range = DeviceRange { address, bytes: last - first };
                // SAFETY: the place lies in the segment, which is the caller's until the copies are done.
                let host = unsafe { start.add(first - begin) };
                // SAFETY: the pool has this memory to itself, and it is mapped; the stream is waited for below.
                copied = unsafe { copy(&stream, range, host, direction) };
                if copied.is_err() {
                    break 'parts;
                }
            }
            begin += bytes;
        }
    }
    // Also behind an error: the host's memory is used until then.
    let waited = stream.synchronize_uncaptured();
    copied.and(waited)
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

/// Has all parts be zero.
fn fill_zero(device: &Device, parts: &[Part]) -> Result<()> {
    let (driver, stream) = (device.driver(), device.new_stream()?);
    for part in parts {
        let filled = match driver.aside() {
            // SAFETY: the pool has this memory to itself, and it is mapped.
            Some(aside) => unsafe { aside.bring_back(part.range(), std::ptr::null()) },
            None => {
                let call = stream.begin_call()?;
                let fill = RawFill {
                    target: part.address,
                    stride: 1,
                    word: FillWord::U8(0),
                    count: part.bytes,
                };
                // SAFETY: the same; the stream is waited for below.
                unsafe { driver.fill(fill, call.raw()) }
            }
        };
        filled.with_context(|| {
            format!("clearing {} of a pool that wakes", Count(part.bytes, "byte"))
        })?;
    }
    stream.synchronize_uncaptured()
}
