//! Owned transfers of many ranges of their buffers.

use super::owned::{End, InFlight, Transfer, TransferError, failed};
use crate::container::host_copy::{same_length, to_device, to_host};
use crate::container::stopped::HostAccess;
use crate::container::{DeviceVec, check_range};
use crate::driver::{CallSite, DeviceCopy, ErrorContext};
use crate::error::Result;
use crate::event::Event;
use crate::pinned::{HostBuffer, HostRead};
use crate::stream::{Stream, StreamCall, deferred};
use bytemuck::{AnyBitPattern, NoUninit};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;

impl Stream {
    /// Copies many ranges of `device` to ranges of `host`, each pair of one length, on this stream, in one transfer. A pair is
    /// the elements of `device`, then those of `host`. The copies run in the order of the pairs, one after the other. Nothing
    /// is copied if any pair is refused.
    ///
    /// [`download_range`](Self::download_range) says what happens with memory that is not page-locked.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let cache = DeviceVec::from_slice(&stream, &(0..100).collect::<Vec<u32>>())?;
    /// // Two blocks of a cache, one behind the other on the host.
    /// let blocks = [(20..23, 0..3), (80..83, 3..6)];
    /// let (host, cache) = stream.download_ranges(cache, blocks.clone(), vec![0; 6])?.wait()?;
    /// assert_eq!(host, [20, 21, 22, 80, 81, 82]);
    /// let back = blocks.map(|(device, host)| (host, device));
    /// let (_host, _cache) = stream.upload_ranges(host, back, cache)?.wait()?;
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::OutOfBounds`](crate::ErrorKind::OutOfBounds) if a range does not lie in its buffer, and
    ///   [`ErrorKind::LengthMismatch`](crate::ErrorKind::LengthMismatch) for a pair of two lengths.
    /// - The errors of [`download`](Self::download). A driver that fails between two copies has done the former ones.
    ///
    /// The buffers come back in the error.
    #[track_caller]
    pub fn download_ranges<B: HostBuffer<Item: AnyBitPattern>>(
        &self,
        device: DeviceVec<B::Item>,
        ranges: impl IntoIterator<Item = (Range<usize>, Range<usize>)>,
        host: B,
    ) -> Result<Transfer<B>, TransferError<B>> {
        let _site = CallSite::enter();
        let pairs = ranges.into_iter().map(|(device, host)| Pair { host, device });
        begin_ranges(self, host, device, &pairs.collect::<Vec<_>>(), HostAccess::Write)
    }

    /// Copies many ranges of `host` to ranges of `device`, as [`download_ranges`](Self::download_ranges) does. A pair is the
    /// elements of `host`, then those of `device`.
    ///
    /// # Errors
    ///
    /// The errors of [`download_ranges`](Self::download_ranges).
    #[track_caller]
    pub fn upload_ranges<B: HostRead<Item: NoUninit>>(
        &self,
        host: B,
        ranges: impl IntoIterator<Item = (Range<usize>, Range<usize>)>,
        device: DeviceVec<B::Item>,
    ) -> Result<Transfer<B>, TransferError<B>> {
        let _site = CallSite::enter();
        let pairs = ranges.into_iter().map(|(host, device)| Pair { host, device });
        begin_ranges(self, host, device, &pairs.collect::<Vec<_>>(), HostAccess::Read)
    }
}

/// A range of each buffer.
struct Pair {
    host: Range<usize>,
    device: Range<usize>,
}

impl Pair {
    fn check(&self, host: usize, device: usize, access: HostAccess) -> Result<()> {
        let host = check_range(self.host.clone(), host)
            .map_err(|error| error.within("a range of the host's buffer"))?
            .len();
        let device = check_range(self.device.clone(), device)
            .map_err(|error| error.within("a range of the device's vector"))?
            .len();
        match access {
            HostAccess::Write => same_length(host, device),
            _ => same_length(device, host),
        }
    }
}

fn begin_ranges<B: HostRead>(
    stream: &Stream,
    host: B,
    mut device: DeviceVec<B::Item>,
    pairs: &[Pair],
    access: HostAccess,
) -> Result<Transfer<B>, TransferError<B>> {
    deferred::collect();
    let mut host = MaybeUninit::new(host);
    // First, so that nothing can fail between the last copy and its end but the record.
    let event = Event::new(stream.device())
        .with_context(|| format!("making an event for a transfer on {stream}"));
    // SAFETY: initialised above. The pointer is taken from the buffer's final place as a value; it is not used as a `B`
    // again before the copies are complete.
    let (pointer, length) = unsafe { host.assume_init_mut() }.parts();
    let checked = event.and_then(|event| {
        pairs.iter().try_for_each(|pair| pair.check(length, device.len(), access))?;
        Ok(event)
    });
    let event = match checked {
        Ok(event) => event,
        Err(error) => return Err(failed(stream, error, HostAccess::None, host, device)),
    };
    let mut begun = false;
    // SAFETY: the buffer is ours and stays allocated and untouched until the stream has passed: it goes back after the
    // event, is dropped after the event, or leaks.
    let enqueued = unsafe { enqueue(stream, pointer, &mut device, pairs, access, &mut begun) };
    let recorded = enqueued.and_then(|call| call.record_into(&event));
    if let Err(error) = recorded {
        // What was enqueued runs, and only a wait for the stream shows its end.
        let access = access.only_if(begun && stream.synchronize_uncaptured().is_err());
        return Err(failed(stream, error, access, host, device));
    }
    Ok(Transfer::in_flight(InFlight { host, device, event: End::Own(event), access }))
}

/// Enqueues the copies, and returns the call of the last one. `begun` says whether there is one under way, also after an
/// error.
///
/// # Safety
///
/// `host` is the first element of a buffer in which all pairs lie. The host neither touches nor frees it until the stream
/// has passed this.
unsafe fn enqueue<'s, T: DeviceCopy>(
    stream: &'s Stream,
    host: NonNull<T>,
    device: &mut DeviceVec<T>,
    pairs: &[Pair],
    access: HostAccess,
    begun: &mut bool,
) -> Result<StreamCall<'s>> {
    let mut last = None;
    for Pair { host: range, device: device_range } in pairs {
        // Out of the gate, which the next copy may have to wait for.
        drop(last.take());
        let mut slice = device.slice_mut(device_range.clone())?;
        // SAFETY: the range lies in the buffer, by the caller's promise.
        let first = unsafe { host.add(range.start) };
        let memory = NonNull::slice_from_raw_parts(first, range.len()).as_ptr();
        // SAFETY: the caller's promise.
        last = unsafe {
            match access {
                HostAccess::Write => to_host(stream, &slice.as_slice(), memory)?,
                _ => to_device(stream, &mut slice, memory)?,
            }
        };
        *begun |= last.is_some();
    }
    match last {
        Some(call) => Ok(call),
        None => {
            // No copy at the end, but an event: it must not become a node of a graph, nor be another device's.
            if !*begun {
                stream.device().require(device.device(), "the vector")?;
            }
            let call = stream.begin_call()?;
            call.refuse_capture("work on host memory").map(|()| call)
        }
    }
}
