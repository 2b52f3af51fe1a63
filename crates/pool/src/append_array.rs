//! An array that grows and is cleared as a whole, whose elements never move: threads read it without a lock
//! while others append.

use crate::sync::MODELLED;
use crate::sync::trusted::{AtomicPtr, Ordering};
use std::marker::PhantomData;
use std::ptr;

/// Elements of the first chunk; each further chunk is as long as all before it.
const FIRST_CHUNK_LENGTH: usize = 16;
const CHUNKS: usize = 28;

/// Elements by index, made in chunks when they are first asked for.
///
/// A chunk is null or a boxed slice of its length, which is the array's until [`clear`](Self::clear).
#[derive(Debug)]
pub(super) struct AppendArray<T> {
    chunks: [AtomicPtr<T>; CHUNKS],
    owns: PhantomData<Box<[T]>>,
}

// SAFETY: it owns its elements, and gives other threads references to them alone.
unsafe impl<T: Send + Sync> Sync for AppendArray<T> {}

/// The chunk of an index, and its place there.
#[inline]
const fn chunk_and_offset(index: usize) -> (usize, usize) {
    if index < FIRST_CHUNK_LENGTH {
        return (0, index);
    }
    let chunk = (index / FIRST_CHUNK_LENGTH).ilog2() as usize + 1;
    (chunk, index - (FIRST_CHUNK_LENGTH << (chunk - 1)))
}

const fn length_of(chunk: usize) -> usize {
    FIRST_CHUNK_LENGTH << chunk.saturating_sub(1)
}

impl<T> AppendArray<T> {
    /// Drops all elements.
    ///
    /// # Safety
    ///
    /// No thread uses an element, or asks for one, until this returns.
    pub(super) unsafe fn clear(&self) {
        for (number, chunk) in self.chunks.iter().enumerate() {
            let first = chunk.swap(ptr::null_mut(), Ordering::Relaxed);
            if !first.is_null() {
                let chunk = ptr::slice_from_raw_parts_mut(first, length_of(number));
                // SAFETY: `get_or_make` made it of a box of this length; the caller vouches that it is
                // not used.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
    }
}

impl<T> Drop for AppendArray<T> {
    fn drop(&mut self) {
        // SAFETY: nothing else has the array.
        unsafe { self.clear() }
    }
}

impl<T: Default> AppendArray<T> {
    pub(super) fn new() -> Self {
        let chunks = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
        let list = Self { chunks, owns: PhantomData };
        if MODELLED {
            // loom does not see that a thread which gets an element comes after the one that made it.
            list.get_or_make(0);
        }
        list
    }

    /// The element, if its chunk is there.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&T> {
        let (chunk, offset) = chunk_and_offset(index);
        // Acquire: the elements were made before.
        let first = self.chunks.get(chunk)?.load(Ordering::Acquire);
        // SAFETY: not null, so a slice of this length, which stays until `clear`; the place is in it.
        (!first.is_null()).then(|| unsafe { &*first.add(offset) })
    }

    /// The element, made with its chunk if need be. `None` past 2^31.
    pub(super) fn get_or_make(&self, index: usize) -> Option<&T> {
        if let Some(element) = self.get(index) {
            return Some(element);
        }
        let (number, _) = chunk_and_offset(index);
        let chunk = self.chunks.get(number)?;
        let made: Box<[T]> = (0..length_of(number)).map(|_| T::default()).collect();
        let made = Box::into_raw(made);
        let first = made.cast();
        let set =
            chunk.compare_exchange(ptr::null_mut(), first, Ordering::AcqRel, Ordering::Acquire);
        if set.is_err() {
            // SAFETY: another thread's chunk is there; this one nobody has seen.
            drop(unsafe { Box::from_raw(made) });
        }
        self.get(index)
    }
}

#[cfg(test)]
mod tests;
