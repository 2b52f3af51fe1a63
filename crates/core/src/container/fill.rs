//! Filling device memory with a value of any plain type, and with zeros.

use super::accessors::constructors;
use super::device_vec::DeviceVec;
use super::view::DeviceSliceMut;
use crate::driver::{CallSite, DeviceCopy, ErrorContext, FillWord, RawFill};
use crate::error::Result;
use crate::impls::Count;
use crate::layout::DeviceLayout;
use crate::order::CapturePolicy;
use crate::resource::ResourceHandle;
use crate::stream::Stream;
use bytemuck::{NoUninit, Zeroable};

impl<T: DeviceCopy> DeviceVec<T> {
    /// Elements of the bytes zero, for a `T` whose zeros are a value.
    pub(super) fn filled_with_zeros<C>(
        stream: &Stream,
        layout: DeviceLayout,
        resource: ResourceHandle,
    ) -> Result<Self> {
        let mut vec = Self::unwritten::<C>(stream, layout, resource)?;
        vec.as_mut_slice().fill_with_zeros()?;
        Ok(vec)
    }
}

impl<T: DeviceCopy + Zeroable> DeviceVec<T> {
    constructors! {
        /// `length` elements whose bytes are all zero.
        ///
        /// # Errors
        ///
        /// The errors of [`with_capacity`](Self::with_capacity).
        pub fn zeroed(stream: &Stream, length: usize) -> Result<Self>;
        /// Like [`zeroed`](Self::zeroed), from `resource`.
        ///
        /// # Errors
        ///
        /// The errors of [`with_capacity_in`](Self::with_capacity_in).
        pub fn zeroed_in(.., resource) {
            Self::filled_with_zeros::<Self>(stream, DeviceLayout::array::<T>(length)?, resource)
        }
    }
}

impl<T: DeviceCopy + NoUninit> DeviceVec<T> {
    /// Overwrites all elements with `value`, in the order of the home stream. The host does not wait.
    ///
    /// A value of 1, 2 or 4 bytes takes one driver call, and so does one that repeats such a word, such as all zeros.
    /// Other values take one call for each of their words.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`](crate::ErrorKind::Capture) while a capture on another thread has the home stream, and the
    /// errors of the driver.
    #[track_caller]
    pub fn fill(&mut self, value: T) -> Result<()> {
        let _site = CallSite::enter();
        self.as_mut_slice().fill(value)
    }
}

impl<T: DeviceCopy + NoUninit> DeviceSliceMut<'_, T> {
    /// Overwrites all elements with `value`. See [`DeviceVec::fill`].
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceVec::fill`].
    #[track_caller]
    pub fn fill(&mut self, value: T) -> Result<()> {
        let _site = CallSite::enter();
        self.enqueue_fill(bytemuck::bytes_of(&value))
    }
}

impl<T: DeviceCopy> DeviceSliceMut<'_, T> {
    /// Overwrites all bytes with zero, for a `T` whose zeros are a value.
    pub(super) fn fill_with_zeros(&mut self) -> Result<()> {
        self.enqueue_fill(&[0])
    }

    /// Enqueues a fill with a pattern that fits whole times into the view. An error names the place in the crate, not the
    /// caller's.
    fn enqueue_fill(&mut self, pattern: &[u8]) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let device = self.home().device();
        let call = self.memory_use().order_on(self.home(), CapturePolicy::Join)?;
        for step in steps(pattern, self.as_device_ptr(), self.size_in_bytes()) {
            let Step { offset, stride, word, count } = step;
            let fill =
                RawFill { target: self.as_device_ptr() + offset as u64, stride, word, count };
            // SAFETY: the steps stay inside the view, which is borrowed exclusively and lives until
            // home's later free; home has waited for all use elsewhere.
            unsafe { device.driver().fill(fill, call.raw()) }.with_context(|| {
                format!("filling {} on {call}", Count(self.size_in_bytes(), "byte"))
            })?;
        }
        Ok(())
    }
}

/// One driver call, which writes a word at an offset and at every stride after it.
#[derive(Debug, PartialEq)]
struct Step {
    offset: usize,
    stride: usize,
    word: FillWord,
    count: usize,
}

/// The calls that fill `bytes` bytes from `address` on with a pattern. A word of the driver's is aligned to
/// its size, which elements need not be.
fn steps(pattern: &[u8], address: u64, bytes: usize) -> impl Iterator<Item = Step> {
    let fits =
        |width: usize| pattern.len().is_multiple_of(width) && address.is_multiple_of(width as u64);
    let widths = [1, 2, 4].into_iter().filter(|&width| fits(width));
    let repeats = |&width: &usize| pattern.chunks(width).all(|word| word == &pattern[..width]);
    // The shortest of the words that the whole pattern repeats, if it repeats one; else the longest.
    let (width, stride) = match widths.clone().find(repeats) {
        Some(width) => (width, width),
        None => (widths.max().unwrap_or(1), pattern.len()),
    };
    let (words, count) = (pattern[..stride].chunks(width).map(word), bytes / stride);
    words.enumerate().map(move |(index, word)| Step { offset: index * width, stride, word, count })
}

fn word(bytes: &[u8]) -> FillWord {
    match *bytes {
        [a, b, c, d] => FillWord::U32(u32::from_ne_bytes([a, b, c, d])),
        [a, b] => FillWord::U16(u16::from_ne_bytes([a, b])),
        [a] => FillWord::U8(a),
        _ => FillWord::U8(0),
    }
}

#[cfg(test)]
mod tests;
