//! Sizes and alignments of device memory, in pure arithmetic that never wraps.

use crate::error::{Error, ErrorKind, Result};
use crate::impls::Count;
use std::fmt;

/// The alignment, in bytes, of device memory when nothing else is asked. It is 256, as in RMM and in
/// the guarantee that `cudaMalloc` gives.
pub const DEFAULT_ALIGNMENT: usize = 256;

/// The size and alignment of a block of device memory, both in bytes.
///
/// A layout is always valid. Its alignment is a power of two, and its size rounded up to that fits in
/// `isize`.
///
/// ```
/// use aquifer::DeviceLayout;
///
/// let layout = DeviceLayout::array::<f32>(1000)?;
/// assert_eq!((layout.bytes(), layout.alignment()), (4000, 256));
/// assert!(DeviceLayout::array::<f32>(usize::MAX).is_err());
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceLayout {
    bytes: usize,
    alignment: usize,
}

impl DeviceLayout {
    /// A block of `bytes` bytes at the [default alignment](DEFAULT_ALIGNMENT).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if the size, rounded up, does not fit in `isize`.
    #[inline]
    pub fn new(bytes: usize) -> Result<Self> {
        Self::with_alignment(bytes, DEFAULT_ALIGNMENT)
    }

    /// A block of `bytes` bytes whose address is a multiple of `alignment`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if `alignment` is not a power of two, or if the size rounded
    /// up to it does not fit in `isize`.
    #[inline]
    pub fn with_alignment(bytes: usize, alignment: usize) -> Result<Self> {
        if alignment.is_power_of_two()
            && let Some(rounded) = align_up(bytes, alignment)
            && rounded <= isize::MAX as usize
        {
            return Ok(Self { bytes, alignment });
        }
        Err(impossible(bytes, alignment))
    }

    /// Room for `count` elements of type `T`, at the larger of `T`'s alignment and the default.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if the size in bytes overflows.
    #[inline]
    pub fn array<T>(count: usize) -> Result<Self> {
        let Some(bytes) = count.checked_mul(size_of::<T>()) else {
            return Err(too_many(count, size_of::<T>()));
        };
        Self::with_alignment(bytes, align_of::<T>().max(DEFAULT_ALIGNMENT))
    }

    /// The size in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The alignment in bytes, a power of two.
    pub const fn alignment(&self) -> usize {
        self.alignment
    }
}

/// The advice where the alignment of a request takes the room, and not its size.
pub const SMALLER_ALIGNMENT: &str = "ask for a smaller alignment";

/// A request as a message names it, with its alignment if that is above the alignment of each block.
#[derive(Clone, Copy, Debug)]
pub struct Requested {
    #[doc(hidden)]
    pub bytes: usize,
    #[doc(hidden)]
    pub alignment: usize,
    /// The alignment of each block.
    #[doc(hidden)]
    pub usual: usize,
}

impl Requested {
    #[doc(hidden)]
    pub fn is_over_aligned(self) -> bool {
        self.alignment > self.usual
    }

    /// Adds the advice of a refused request whose alignment takes the room.
    #[doc(hidden)]
    pub fn advise(self, error: Error) -> Error {
        if error.kind() == ErrorKind::OutOfMemory
            && self.is_over_aligned()
            && self.alignment > self.bytes
        {
            return error.with_advice(SMALLER_ALIGNMENT);
        }
        error
    }
}

impl fmt::Display for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Count(self.bytes, "byte"))?;
        if self.is_over_aligned() { write!(f, " aligned to {}", self.alignment) } else { Ok(()) }
    }
}

/// The error of a layout that no address space holds, or of an invalid alignment. It is kept out of line, so that the
/// layout of a warm allocation costs no call.
#[cold]
pub fn impossible(bytes: usize, alignment: usize) -> Error {
    let (counted, asked) = (Count(bytes, "byte"), Count(alignment, "byte"));
    let (what, advice) = if alignment.is_power_of_two() {
        let what = format!("no address space holds {counted} aligned to {alignment}");
        (what, if alignment > bytes { SMALLER_ALIGNMENT } else { "ask for less" })
    } else {
        let what = format!("an alignment of {asked} was asked, which is not a power of two");
        (what, "give 1, 2, 4 or another power of two")
    };
    Error::new(ErrorKind::InvalidArgument, what).with_advice(advice)
}

#[cold]
fn too_many(count: usize, bytes: usize) -> Error {
    let what = format!(
        "no address space holds {} of {} each",
        Count(count, "element"),
        Count(bytes, "byte")
    );
    Error::new(ErrorKind::InvalidArgument, what).with_advice("ask for less")
}

/// `value` rounded up to a multiple of `alignment` (a power of two), or `None` if that wraps.
pub const fn align_up(value: usize, alignment: usize) -> Option<usize> {
    match value.checked_add(alignment - 1) {
        Some(sum) => Some(sum & !(alignment - 1)),
        None => None,
    }
}

#[cfg(test)]
mod tests;
