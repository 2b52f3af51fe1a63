//! The calling thread's magazine of a stream, for a caller who uses the two again and again: it is looked up once.

use super::block::{Block, BlockSizes, cacheable};
use super::core::Pool;
use super::local::Place;
use super::upstream::Upstream;

/// The way to a thread's magazine of one pool and stream. It stays on its thread, and serves no call where the magazine
/// is gone or suspended, or in the child of a fork.
#[derive(Debug)]
pub struct ThreadMagazine {
    place: Place,
    sizes: BlockSizes,
    mark: u16,
}

impl<U: Upstream> Pool<U> {
    /// The calling thread's magazine of a stream. `None` where its table has none.
    pub fn thread_magazine(&self, stream_id: u64) -> Option<ThreadMagazine> {
        let place = Place::find(self.id, stream_id)?;
        Some(ThreadMagazine { place, sizes: self.sizes, mark: self.mark })
    }
}

impl ThreadMagazine {
    /// A block at the pool's alignment, if the magazine has one of this size.
    ///
    /// # Safety
    ///
    /// The pool and the stream live.
    #[inline(always)]
    pub unsafe fn allocate(&self, bytes: usize) -> Option<Block> {
        let (units, magazine) = (self.sizes.aligned_units(bytes)?, self.place.magazine()?);
        // SAFETY: the table gives a thread its own magazines, which live, and `pop` enters none.
        let cached = unsafe { magazine.as_ref().try_with_fast(|classes| classes.pop(units)) }??;
        Some(cached.into_block(units))
    }

    /// Frees a block in the order of the stream, if the magazine takes it. Returns whether it did.
    ///
    /// # Safety
    ///
    /// As [`Pool::deallocate`], on the magazine's stream; the pool and the stream live.
    #[inline(always)]
    pub unsafe fn deallocate(&self, address: u64, bytes: usize, token: u64) -> bool {
        let block = Block { address, bytes, token };
        let pushed = || {
            let (units, cached) = cacheable(self.mark, &block)?;
            let magazine = self.place.magazine()?;
            // SAFETY: as above; `push` enters none.
            unsafe { magazine.as_ref().try_with_fast(|classes| classes.push(units, cached)) }?.ok()
        };
        pushed().is_some()
    }
}
