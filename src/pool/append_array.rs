//! An array that only grows, whose elements never move: threads read it without a lock while others
//! append.

use crate::sync::{MODELLED, OnceLock};

/// Elements of the first chunk; each further chunk is as long as all before it.
const FIRST_CHUNK_LENGTH: usize = 16;
const CHUNKS: usize = 28;

/// Elements by index, made in chunks when they are first asked for.
#[derive(Debug)]
pub(super) struct AppendArray<T> {
    chunks: [OnceLock<Box<[T]>>; CHUNKS],
}

/// The chunk of an index, and its place there.
#[inline]
const fn chunk_and_offset(index: usize) -> (usize, usize) {
    if index < FIRST_CHUNK_LENGTH {
        return (0, index);
    }
    let chunk = (index / FIRST_CHUNK_LENGTH).ilog2() as usize + 1;
    (chunk, index - (FIRST_CHUNK_LENGTH << (chunk - 1)))
}

impl<T: Default> AppendArray<T> {
    pub(super) fn new() -> Self {
        let list = Self { chunks: [const { OnceLock::new() }; CHUNKS] };
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
        self.chunks.get(chunk)?.get()?.get(offset)
    }

    /// The element, made with its chunk if need be. `None` past 2^31.
    pub(super) fn get_or_make(&self, index: usize) -> Option<&T> {
        let (chunk, offset) = chunk_and_offset(index);
        let length =
            if chunk == 0 { FIRST_CHUNK_LENGTH } else { FIRST_CHUNK_LENGTH << (chunk - 1) };
        let make = || (0..length).map(|_| T::default()).collect();
        self.chunks.get(chunk)?.get_or_init(make).get(offset)
    }
}

#[cfg(test)]
mod tests;
