//! Blocks of a pool that have room to grow, and that change their size where they are.

use super::{Asked, PoolResource, device_block};
use crate::driver::not_forked;
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::pool::{Block, Failure};
use crate::resource::block::DeviceBlock;
use crate::resource::device_resource::DeviceResource;
use crate::resource::resizing::Purpose;
use crate::stream::Stream;

impl<U: DeviceResource + 'static> PoolResource<U> {
    #[cold]
    pub(super) fn allocate_with_room(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> Result<Option<DeviceBlock>> {
        not_forked("a pool")?;
        let (bytes, alignment) = (layout.bytes(), layout.alignment() as u64);
        match self.pool.allocate_growable(stream, stream.id(), bytes, alignment) {
            Ok(Some(block)) => {
                // All of it: there is no rest of a unit.
                if let Some(hooks) = &self.pool.upstream().hooks {
                    hooks.region_register(stream, block.address, block.bytes);
                }
                Ok(Some(device_block(block)))
            }
            // In a capture the pool may have other memory.
            Ok(None) | Err(Failure::Captured) => Ok(None),
            Err(failure) => Err(self.explain(failure, Asked::Allocation(layout))),
        }
    }

    /// # Safety
    ///
    /// The conditions of [`DeviceResource::resize_in_place`].
    #[cold]
    pub(super) unsafe fn resize(
        &self,
        stream: &Stream,
        resized: &mut DeviceBlock,
        bytes: usize,
    ) -> Result<bool> {
        not_forked("a pool")?;
        if bytes == resized.bytes() {
            return Ok(bytes > 0);
        }
        let hooks = &self.pool.upstream().hooks;
        let (address, before) = (resized.address(), resized.bytes());
        let mut block = Block { address, bytes: before, token: resized.token() };
        if hooks.is_some() {
            block.bytes = self.pool.round_up(before);
        }
        if bytes < before {
            let is_undo = Purpose::current() == Purpose::Undo && bytes > 0;
            if !is_undo && !self.pool.can_shrink(stream.id(), &block, bytes) {
                return Ok(false);
            }
            // Before the pool has it: from then on another thread may get the same address.
            if let Some(hooks) = hooks {
                hooks.region_resize(stream, address, before, bytes);
            }
            // SAFETY: the caller's promise.
            let shrunk = unsafe { self.pool.shrink(stream, stream.id(), &mut block, bytes) };
            if !matches!(shrunk, Ok(true)) {
                if let Some(hooks) = hooks {
                    hooks.region_resize(stream, address, bytes, before);
                }
                return shrunk.map_err(|failure| self.explain(failure, Asked::Trim));
            }
            let bytes = if hooks.is_some() { bytes } else { block.bytes };
            *resized = DeviceBlock::new(address, bytes, block.token);
            return Ok(true);
        }
        let is_wish = Purpose::current() == Purpose::Wish;
        match self.pool.extend(stream, stream.id(), &mut block, bytes, is_wish) {
            Ok(true) => {}
            Ok(false) | Err(Failure::Captured) => return Ok(false),
            Err(failure) => {
                let missing = DeviceLayout::new(bytes - before)?;
                return Err(self.explain(failure, Asked::Allocation(missing)));
            }
        }
        if let Some(hooks) = hooks {
            hooks.region_resize(stream, address, before, block.bytes);
        }
        *resized = device_block(block);
        Ok(true)
    }
}
