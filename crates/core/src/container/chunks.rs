//! Splitting a vector into vectors that share its memory, and joining them again.

use super::buffer::Buffer;
use super::device_vec::DeviceVec;
use super::split_block::SplitBlock;
use crate::driver::{DeviceCopy, not_forked};
use crate::error::{Error, ErrorKind, Refused, Result, SPLIT_ADVICE, ensure};
use crate::impls::Count;
use crate::split::{join_all, list_for};
use crate::sync::Arc;
use std::marker::PhantomData;

impl<T: DeviceCopy> DeviceVec<T> {
    /// Splits it into vectors of `length` elements, as [`slice::chunks`] does. The last vector has the elements that
    /// are left over, and the spare capacity. Nothing is copied. An empty vector is one chunk.
    ///
    /// Each chunk is a vector of its own, at home on the same stream to begin with. So each can be in another
    /// [`Transfer`](crate::Transfer), on another stream and on another thread, and no two overlap. A chunk that grows
    /// past its memory moves to a block of its own. When all chunks are gone, the shared memory is freed in the order
    /// of the first home stream, behind those of the chunks. A chunk that is forgotten keeps all of it.
    /// [`from_chunks`](Self::from_chunks) gives the vector back.
    ///
    /// A pipeline over one large buffer moves the next chunk while the device computes on the one before:
    ///
    /// ```
    /// use allocator_api2::vec::Vec as AllocVec;
    /// use aquifer::{
    ///     Device, DeviceVec, LaunchConfig, PinnedAlloc, Result, Stream, Transfer,
    ///     pinned::HostChunk,
    /// };
    /// // `DOUBLE` is a `Kernel` that doubles elements: the example of `Kernel` has it.
    /// # use aquifer::{HostArgs, Kernel};
    /// # static DOUBLE: Kernel = Kernel::new(
    /// #     "double",
    /// #     include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kernels/double.ptx")),
    /// #     |_: &LaunchConfig, mut args: HostArgs<'_>| {
    /// #         args.in_out::<u32>()?.iter_mut().for_each(|value| *value *= 2);
    /// #         Ok(())
    /// #     },
    /// # );
    /// use std::collections::VecDeque;
    ///
    /// type Chunk = HostChunk<AllocVec<u32, PinnedAlloc>>;
    ///
    /// /// Computes on a chunk that has arrived, and fetches it.
    /// fn compute(stream: &Stream, upload: Transfer<Chunk>) -> Result<Transfer<Chunk>> {
    ///     let (host, mut chunk) = upload.wait()?; // or `.await?`
    ///     let n = chunk.len();
    ///     let launch = stream.launch(&DOUBLE).in_out(&mut chunk)?.scalar(n as u32)?;
    ///     // SAFETY: the kernel touches the first `n` elements of `chunk` alone.
    ///     unsafe { launch.launch(LaunchConfig::for_elements(n))? };
    ///     Ok(stream.download(chunk, host)?)
    /// }
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let streams = [device.new_stream()?, device.new_stream()?];
    /// let mut host: AllocVec<u32, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
    /// host.resize(10_000, 0);
    /// // One large buffer on each side. 64 elements of 4 bytes keep each chunk aligned to 256 bytes.
    /// let host_chunks = HostChunk::new(host).into_chunks(64 * 16)?;
    /// let chunks = DeviceVec::<u32>::zeroed(&streams[0], 10_000)?.into_chunks(64 * 16)?;
    ///
    /// let mut uploads = VecDeque::new();
    /// let mut downloads = Vec::new();
    /// for (k, (mut host, chunk)) in host_chunks.into_iter().zip(chunks).enumerate() {
    ///     host.fill(k as u32); // reads chunk k, while the device has chunk k - 1
    ///     let stream = &streams[k % 2];
    ///     uploads.push_back((stream, stream.upload(host, chunk)?));
    ///     if uploads.len() == 2 {
    ///         let (stream, upload) = uploads.pop_front().unwrap();
    ///         downloads.push(compute(stream, upload)?);
    ///     }
    /// }
    /// for (stream, upload) in uploads {
    ///     downloads.push(compute(stream, upload)?);
    /// }
    ///
    /// let (mut host_chunks, mut chunks) = (Vec::new(), Vec::new());
    /// for download in downloads {
    ///     let (host, chunk) = download.wait()?;
    ///     host_chunks.push(host);
    ///     chunks.push(chunk);
    /// }
    /// let host = HostChunk::from_chunks(host_chunks)?.into_inner()?;
    /// let vec = DeviceVec::from_chunks(chunks)?;
    /// assert_eq!((host[9_999], vec.len()), (2 * 9, 10_000));
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidArgument`] for chunks of no elements.
    /// - [`ErrorKind::OutOfMemory`] where the host has no memory for a list of so many.
    /// - [`ErrorKind::Capture`] while home is in capture.
    /// - The errors of making home wait for uses elsewhere.
    ///
    /// The vector comes back.
    pub fn into_chunks(mut self, length: usize) -> Result<Vec<Self>, Refused<Self>> {
        match list_for("a vector", "a vector", self.length, length) {
            Ok((0, mut parts)) => {
                parts.push(self);
                Ok(parts)
            }
            Ok((before_last, parts)) => self
                .cut(std::iter::repeat_n(length, before_last), parts)
                .map_err(|error| Refused::new(error, self)),
            Err(error) => Err(Refused::new(error, self)),
        }
    }

    /// Splits it in two. It keeps the elements before `at`, and returns the others, with the spare capacity. The two
    /// share the memory, and nothing is copied. `bytes::BytesMut::split_off` does the same. See
    /// [`into_chunks`](Self::into_chunks).
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let mut head = DeviceVec::from_slice(&stream, &[1_u32, 2, 3, 4])?;
    /// let mut tail = head.split_off(1)?;
    /// tail.fill(0)?;
    /// head.unsplit(tail)?;
    /// assert_eq!(head.to_vec()?, [1, 0, 0, 0]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] if `at` lies past the end, [`ErrorKind::Capture`] while home is in capture, and the
    /// errors of making home wait for uses elsewhere. The vector is as it was then.
    pub fn split_off(&mut self, at: usize) -> Result<Self> {
        let elements = Count(self.length, "element");
        ensure!(
            at <= self.length,
            OutOfBounds,
            SPLIT_ADVICE,
            "a split at {at} was asked of {elements}"
        );
        if self.buffer.bytes() > 0 {
            let mut parts = self.cut(std::iter::once(at), Vec::with_capacity(2))?.into_iter();
            if let (Some(head), Some(tail)) = (parts.next(), parts.next()) {
                *self = head;
                return Ok(tail);
            }
        }
        Ok(Self { buffer: self.allocate_like(0)?, length: 0, elements: PhantomData })
    }

    /// Makes `parts` of vectors of so many elements each, and of one with the elements that are left over. The vector
    /// has no memory afterwards. On an error it is as it was.
    fn cut(
        &mut self,
        lengths: impl Iterator<Item = usize>,
        mut parts: Vec<Self>,
    ) -> Result<Vec<Self>> {
        // Before the lock of the parts, which another thread of the parent may have had.
        not_forked("a vector")?;
        let (mut address, mut bytes) = (self.buffer.address(), self.buffer.bytes());
        let (known, alignment) = (SplitBlock::of_part(&self.buffer), self.buffer.alignment());
        let block = self.buffer.take_block()?;
        let home = self.stream().clone();
        let split = known.unwrap_or_else(|| {
            let resource = self.resource().clone().into();
            SplitBlock::new(Buffer::from_block(&home, block, alignment, resource))
        });
        let mut left = std::mem::take(&mut self.length);
        for length in lengths.map(Some).chain([None]) {
            let (length, part) = match length {
                Some(length) => (length, length * size_of::<T>()),
                None => (left, bytes),
            };
            let buffer = split.part(&home, address, part);
            parts.push(Self { buffer, length, elements: PhantomData });
            (left, bytes, address) = (left - length, bytes - part, address + part as u64);
        }
        Ok(parts)
    }

    /// Adds the elements of the vector that follows in the memory that both were split from. Nothing is
    /// copied.
    ///
    /// The home of this one becomes the home of both, behind what the other's was given. A vector without
    /// memory can be joined to any.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidArgument`] for a vector of other memory, or one that does not follow.
    /// - [`ErrorKind::LengthMismatch`] if this one is shorter than its memory, so that elements would move.
    /// - [`ErrorKind::Capture`] while a home is in capture.
    /// - The errors of ordering the two homes.
    ///
    /// The other vector comes back.
    pub fn unsplit(&mut self, mut other: Self) -> Result<(), Refused<Self>> {
        self.join(&mut other).map_err(|error| Refused::new(error, other))
    }

    /// Leaves `other` without memory. On an error `other` is as it was, but for its home.
    fn join(&mut self, other: &mut Self) -> Result<()> {
        not_forked("a vector")?;
        if other.buffer.bytes() == 0 {
            return Ok(());
        }
        if self.buffer.bytes() == 0 {
            other.buffer.set_home(self.stream())?;
            std::mem::swap(self, other);
            return Ok(());
        }
        let pair = SplitBlock::of_part(&self.buffer).zip(SplitBlock::of_part(&other.buffer));
        let shared = pair.filter(|(split, others)| Arc::ptr_eq(split, others));
        let Some((split, _)) = shared else {
            let what = "a vector was to be joined to one that it was not split from";
            return Err(Error::new(ErrorKind::InvalidArgument, what)
                .with_advice("keep the chunks of each vector together, and none that has grown"));
        };
        let (address, bytes) = (self.buffer.address(), self.buffer.bytes());
        let (next, next_bytes) = (other.buffer.address(), other.buffer.bytes());
        ensure!(
            address + bytes as u64 == next,
            InvalidArgument,
            "join the chunk that begins where this one ends",
            "a chunk at {next:#x} was to be joined to one of {} at {address:#x}",
            Count(bytes, "byte")
        );
        ensure!(
            self.size_in_bytes() == bytes,
            LengthMismatch,
            "resize it to its capacity first",
            "a chunk of {} has room for {}, and the next chunk's would not follow its own",
            Count(self.length, "element"),
            self.capacity()
        );
        other.buffer.set_home(self.stream())?;
        let home = self.stream().clone();
        // The split block has them, once they are part of a buffer again.
        let _ = other.buffer.take_block()?;
        if let Err(error) = self.buffer.take_block() {
            other.buffer = split.part(&home, next, next_bytes);
            return Err(error);
        }
        self.buffer = split.joined(&home, address, bytes + next_bytes);
        self.length += std::mem::take(&mut other.length);
        Ok(())
    }

    /// One vector of chunks that lie side by side, in any order. It is the way back from
    /// [`into_chunks`](Self::into_chunks). The first chunk in memory gives it its home stream. All chunks together are
    /// the vector that was split.
    ///
    /// # Errors
    ///
    /// The errors of [`unsplit`](Self::unsplit), and [`ErrorKind::InvalidArgument`] if there are no chunks. All
    /// elements come back, in fewer chunks maybe.
    pub fn from_chunks(chunks: impl IntoIterator<Item = Self>) -> Result<Self, Refused<Vec<Self>>> {
        let place = |chunk: &Self| (chunk.buffer.address(), chunk.buffer.bytes());
        join_all("a vector", chunks, place, Self::unsplit)
    }
}
