//! Chunks of one host buffer, each with an owner of its own.

use super::host_buffer::HostBuffer;
use super::host_read::{HostRead, implement_for_arc};
use crate::error::{Error, ErrorKind, Refused, Result, SPLIT_ADVICE, ensure};
use crate::impls::{Count, debug_struct};
use crate::split::{join_all, list_for};
use crate::sync::Arc;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

/// A chunk of one large host buffer, with an owner of its own, like `bytes::BytesMut` over any [`HostBuffer`].
///
/// It derefs to its elements, and is a `HostBuffer`. So a [`Transfer`](crate::Transfer) takes one chunk while the host
/// writes the next. No two chunks overlap. The buffer is freed with its last chunk, and
/// [`into_inner`](Self::into_inner) of the last one gives it back. A chunk that is forgotten, or that a transfer has,
/// keeps it.
///
/// [`DeviceVec::into_chunks`](crate::DeviceVec::into_chunks) does the same for device memory, and has an
/// example with both.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::{Device, PinnedAlloc, pinned::HostChunk};
///
/// let stream = Device::detect_or_simulate()?.new_stream()?;
/// let mut large: Vec<u32, PinnedAlloc> = Vec::new_in(PinnedAlloc);
/// large.resize(1000, 0);
///
/// let mut first = HostChunk::new(large);
/// let mut second = first.split_off(600)?;
/// first.fill(1);
/// let upload = stream.upload_new(first)?;     // the device reads the first chunk
/// second.fill(2);                             // and the host writes the second
/// let (mut first, _device) = upload.wait()?;
///
/// first.unsplit(second)?;
/// let large: Vec<u32, PinnedAlloc> = first.into_inner()?;
/// assert_eq!((large[599], large[600]), (1, 2));
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct HostChunk<B: HostBuffer> {
    owner: Arc<Owner<B>>,
    /// The buffer's first element.
    buffer: NonNull<B::Item>,
    /// The elements of the buffer that are this chunk's, and no other's.
    range: Range<usize>,
}

/// Drops the buffer with the last chunk.
struct Owner<B> {
    /// The buffer, which is not touched as a `B` while there are chunks. A move of a `Box` promises that no other
    /// pointer to its memory is used.
    buffer: MaybeUninit<B>,
    length: usize,
}

impl<B> Drop for Owner<B> {
    fn drop(&mut self) {
        // SAFETY: initialised in `HostChunk::new`; `into_inner`, which takes it out, forgets this owner.
        unsafe { self.buffer.assume_init_drop() }
    }
}

// SAFETY: the pointer is the buffer's, which is `Send`, as its items are. The chunk that ends the owner may
// be on any thread, and is the only one then.
unsafe impl<B: HostBuffer> Send for HostChunk<B> {}
// SAFETY: `&self` gives out `&[Item]` alone.
unsafe impl<B: HostBuffer> Sync for HostChunk<B> where B::Item: Sync {}

// SAFETY: elements of the buffer, which is allocated and in place while the owner lives; they are this
// chunk's alone, and moving the chunk moves none of them.
unsafe impl<B: HostBuffer> HostRead for HostChunk<B> {
    type Item = B::Item;

    fn parts(&mut self) -> (NonNull<B::Item>, usize) {
        (self.first(), self.range.len())
    }
}

// SAFETY: the elements are writable, as those of the buffer are, and this chunk's alone.
unsafe impl<B: HostBuffer> HostBuffer for HostChunk<B> {}

implement_for_arc!([B: HostBuffer<Item: Sync>] HostChunk<B>, B::Item;);

impl<B: HostBuffer> HostChunk<B> {
    /// One chunk of all the elements of `buffer`, to be split.
    pub fn new(buffer: B) -> Self {
        let mut buffer = MaybeUninit::new(buffer);
        // SAFETY: initialised in the line above.
        let (pointer, length) = unsafe { buffer.assume_init_mut() }.parts();
        Self { owner: Arc::new(Owner { buffer, length }), buffer: pointer, range: 0..length }
    }

    fn first(&self) -> NonNull<B::Item> {
        // SAFETY: the range lies in the buffer.
        unsafe { self.buffer.add(self.range.start) }
    }

    /// The elements of the buffer that this chunk has.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Splits it in two. It keeps the elements before `at`, and returns the others.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] if `at` lies past the end.
    pub fn split_off(&mut self, at: usize) -> Result<Self> {
        let elements = Count(self.range.len(), "element");
        ensure!(
            at <= self.range.len(),
            OutOfBounds,
            SPLIT_ADVICE,
            "a split at {at} was asked of {elements}"
        );
        let middle = self.range.start + at;
        let tail = middle..self.range.end;
        self.range.end = middle;
        Ok(Self { owner: self.owner.clone(), buffer: self.buffer, range: tail })
    }

    /// Chunks of `length` elements, as of [`slice::chunks`]. The last chunk has the elements that are left over. An
    /// empty chunk is one chunk.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for chunks of no elements, and [`ErrorKind::OutOfMemory`] if the host has no
    /// memory for a list of so many. The chunk comes back.
    pub fn into_chunks(mut self, length: usize) -> Result<Vec<Self>, Refused<Self>> {
        let (before_last, mut chunks) =
            match list_for("a chunk", "a host buffer", self.len(), length) {
                Ok(list) => list,
                Err(error) => return Err(Refused::new(error, self)),
            };
        for _ in 0..before_last {
            let end = self.range.start + length;
            let (owner, range) = (self.owner.clone(), self.range.start..end);
            chunks.push(Self { owner, buffer: self.buffer, range });
            self.range.start = end;
        }
        chunks.push(self);
        Ok(chunks)
    }

    /// Adds the elements of the chunk that follows this one in the buffer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for a chunk of another buffer, or one that does not follow, which comes back.
    pub fn unsplit(&mut self, other: Self) -> Result<(), Refused<Self>> {
        match self.check_next(&other) {
            Ok(()) => {
                self.range.end = other.range.end;
                Ok(())
            }
            Err(error) => Err(Refused::new(error, other)),
        }
    }

    fn check_next(&self, other: &Self) -> Result<()> {
        ensure!(
            Arc::ptr_eq(&self.owner, &other.owner),
            InvalidArgument,
            "keep the chunks of each buffer together",
            "a chunk of one host buffer was to be joined to a chunk of another"
        );
        let (own, next) = (&self.range, &other.range);
        ensure!(
            own.end == next.start,
            InvalidArgument,
            "join the chunk that begins where this one ends",
            "elements {}..{} of a host buffer were to be joined to elements {}..{}",
            next.start,
            next.end,
            own.start,
            own.end
        );
        Ok(())
    }

    /// One chunk of chunks that lie side by side, in any order. It is the way back from
    /// [`into_chunks`](Self::into_chunks).
    ///
    /// # Errors
    ///
    /// The errors of [`unsplit`](Self::unsplit), and [`ErrorKind::InvalidArgument`] if there are no chunks. All
    /// elements come back, in fewer chunks maybe.
    pub fn from_chunks(chunks: impl IntoIterator<Item = Self>) -> Result<Self, Refused<Vec<Self>>> {
        let place = |chunk: &Self| (chunk.range.start, chunk.range.end);
        join_all("a host buffer", chunks, place, Self::unsplit)
    }

    /// The whole buffer, from its last chunk.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] while there are other chunks, with which this one comes back.
    pub fn into_inner(self) -> Result<B, Refused<Self>> {
        let Self { owner, buffer, range } = self;
        match Arc::try_unwrap(owner) {
            Ok(owner) => {
                let owner = ManuallyDrop::new(owner);
                // SAFETY: initialised in `new`, and read once: the owner is not dropped. No other chunk
                // points into it.
                Ok(unsafe { owner.buffer.assume_init_read() })
            }
            Err(owner) => {
                let what = format!(
                    "a host buffer of {} was asked of one of its chunks, {}..{}, while others live",
                    Count(owner.length, "element"),
                    range.start,
                    range.end
                );
                let error = Error::new(ErrorKind::InvalidArgument, what)
                    .with_advice("join the chunks or drop them, those of transfers too");
                Err(Refused::new(error, Self { owner, buffer, range }))
            }
        }
    }
}

impl<B: HostBuffer> Deref for HostChunk<B> {
    type Target = [B::Item];

    fn deref(&self) -> &[B::Item] {
        // SAFETY: the chunk's elements, valid by the contract of `HostBuffer` while the owner lives.
        unsafe { std::slice::from_raw_parts(self.first().as_ptr(), self.range.len()) }
    }
}

impl<B: HostBuffer> DerefMut for HostChunk<B> {
    fn deref_mut(&mut self) -> &mut [B::Item] {
        // SAFETY: as in `deref`; no other chunk has these elements, and this one is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.first().as_ptr(), self.range.len()) }
    }
}

debug_struct!([B: HostBuffer] HostChunk<B> { range, buffer, .. });

#[cfg(test)]
mod tests;
