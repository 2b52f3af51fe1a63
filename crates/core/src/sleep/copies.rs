//! Copies between the device and the host's memory, of a pool that sleeps or wakes.

use super::place::Part;
use crate::device::Device;
use crate::driver::{
    CopyToDevice, CopyToHost, DeviceRange, ErrorContext, FillWord, RawCopy, RawFill,
};
use crate::error::{Error, ErrorKind, Result};
use crate::impls::Count;
use crate::pinned::{CurrentPinned, PinnedResource, current_pinned_resource, last_error};
use crate::resource::DeviceResource as _;
use crate::stream::Stream;
use allocator_api2::vec::Vec as HostVec;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Out,
    In,
}

/// Host memory that holds a piece of the contents.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
}

// SAFETY: an address and a length: `Kept` has the memory behind it.
unsafe impl Send for Segment {}

pub(super) fn segment(block: &mut HostBlock) -> Segment {
    Segment { bytes: block.len() * PAGE, start: NonNull::from(&mut block[..]).cast() }
}

/// Begins to copy the parts between the device and the segments, one behind the other.
pub(super) fn copy_all<'a>(
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
pub(super) fn fill_zero<'a>(stream: &Stream, parts: impl Iterator<Item = &'a Part>) -> Result<()> {
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
