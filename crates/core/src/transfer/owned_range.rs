//! Owned transfers of parts of their buffers.

use super::owned::{Transfer, TransferError, begin};
use crate::container::DeviceVec;
use crate::container::stopped::HostAccess;
use crate::driver::CallSite;
use crate::pinned::{HostBuffer, HostRead};
use crate::stream::Stream;
use bytemuck::{AnyBitPattern, NoUninit};
use std::ops::RangeBounds;

impl Stream {
    /// Copies the elements `host_range` of `host` to the elements `device_range` of `device`, as many, on this stream,
    /// and returns at once. The transfer has both buffers whole, like that of [`upload`](Self::upload).
    ///
    /// The copy is asynchronous if the host's memory is page-locked ([`PinnedAlloc`](crate::PinnedAlloc),
    /// [`Registered`](crate::pinned::Registered)). The driver stages other memory itself, more slowly, and may block
    /// the host meanwhile.
    ///
    /// To copy several parts of one buffer at once, make owners of the parts by [`HostChunk`](crate::pinned::HostChunk)
    /// and [`DeviceVec::into_chunks`].
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let (host, vec) = (vec![1_u32, 2, 3, 4], DeviceVec::zeroed(&stream, 3)?);
    /// let (host, vec) = stream.upload_range(host, 2.., vec, ..2)?.wait()?;
    /// assert_eq!(vec.to_vec()?, [3, 4, 0]);
    /// let (host, _vec) = stream.download_range(vec, 1..2, host, 0..1)?.wait()?;
    /// assert_eq!(host, [4, 2, 3, 4]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`](crate::ErrorKind::OutOfBounds) if a range does not lie in its buffer, and the errors
    /// of [`upload`](Self::upload). The buffers come back in the error.
    #[track_caller]
    pub fn upload_range<B: HostRead<Item: NoUninit>>(
        &self,
        host: B,
        host_range: impl RangeBounds<usize>,
        device: DeviceVec<B::Item>,
        device_range: impl RangeBounds<usize>,
    ) -> Result<Transfer<B>, TransferError<B>> {
        let _site = CallSite::enter();
        begin(self, (host, host_range), (device, device_range), HostAccess::Read)
    }

    /// Copies the elements `device_range` of `device` to the elements `host_range` of `host`, as many, on this stream.
    /// It returns at once if the host's memory is page-locked. CUDA copies into other memory before it returns, which
    /// blocks until the stream has come so far. The transfer has both buffers whole, like that of
    /// [`upload_range`](Self::upload_range).
    ///
    /// # Errors
    ///
    /// The errors of [`upload_range`](Self::upload_range).
    #[track_caller]
    pub fn download_range<B: HostBuffer<Item: AnyBitPattern>>(
        &self,
        device: DeviceVec<B::Item>,
        device_range: impl RangeBounds<usize>,
        host: B,
        host_range: impl RangeBounds<usize>,
    ) -> Result<Transfer<B>, TransferError<B>> {
        let _site = CallSite::enter();
        begin(self, (host, host_range), (device, device_range), HostAccess::Write)
    }
}
