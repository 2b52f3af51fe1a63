//! A block that several vectors share, each with a part of its own.

use super::buffer::Buffer;
use crate::device::Device;
use crate::error::Result;
use crate::impls::debug_struct;
use crate::layout::DeviceLayout;
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::trusted::Mutex;
use crate::sync::{Arc, Weak};
use std::any::TypeId;
use std::mem::ManuallyDrop;
use std::ops::Range;

/// The resource of vectors that were split from one. A part of the block comes back to it in the order of its vector's
/// home stream. When all parts are here, the block goes back to the resource that it came from. Any other block is that
/// resource's own.
pub(super) struct SplitBlock {
    upstream: Arc<dyn DeviceResource>,
    /// The addresses of the block.
    range: Range<u64>,
    alignment: usize,
    state: Mutex<State>,
    /// A handle on this, for a graph that keeps a part.
    this: Weak<Self>,
}

struct State {
    /// The block. While it is here, no other block has an address of its range. A part that its vector
    /// leaks is never here again, so the block is leaked with it.
    whole: Option<ManuallyDrop<Buffer>>,
    /// The bytes of the parts that have an owner.
    owned_bytes: usize,
}

impl SplitBlock {
    /// `whole` has a block, and its home is ordered after all use of it.
    pub(super) fn new(whole: Buffer) -> Arc<Self> {
        let (start, bytes, alignment) = (whole.address(), whole.bytes(), whole.alignment());
        let upstream = match Self::downcast(whole.resource()) {
            // The block of a vector that grew out of its part.
            Some(former) => former.upstream.clone(),
            None => whole.resource().clone(),
        };
        let range = start..start + bytes as u64;
        let state = State { whole: Some(ManuallyDrop::new(whole)), owned_bytes: bytes };
        let state = Mutex::new(state);
        Arc::new_cyclic(|this| Self { upstream, range, alignment, state, this: this.clone() })
    }

    /// The split block that `buffer`'s block is a part of.
    pub(super) fn of_part(buffer: &Buffer) -> Option<Arc<Self>> {
        let split = Self::downcast(buffer.resource())?;
        // A vector that grew out of its part has a block of upstream's.
        let is_part = split.range.contains(&buffer.address()) && split.state.lock().whole.is_some();
        is_part.then_some(split)
    }

    fn downcast(resource: &Arc<dyn DeviceResource>) -> Option<Arc<Self>> {
        if (**resource).type_of_resource() != TypeId::of::<Self>() {
            return None;
        }
        let raw = Arc::into_raw(resource.clone());
        // SAFETY: the pointer is of `Arc::into_raw`, and what it points to is a `SplitBlock`, by the
        // resource's own table.
        Some(unsafe { Arc::from_raw(raw.cast::<Self>()) })
    }

    /// An owner of a part that had one until now. `home` is ordered after all use of the part.
    pub(super) fn part(self: &Arc<Self>, home: &Stream, address: u64, bytes: usize) -> Buffer {
        let found = 1_usize.checked_shl(address.trailing_zeros()).unwrap_or(self.alignment);
        let block = DeviceBlock::new(address, bytes, 0);
        let resource: Arc<dyn DeviceResource> = self.clone();
        Buffer::from_block(home, block, self.alignment.min(found), resource.into())
    }

    /// Like [`part`](Self::part), of parts that are one now. Where they are all of the block, it is the
    /// buffer that was split.
    pub(super) fn joined(self: &Arc<Self>, home: &Stream, address: u64, bytes: usize) -> Buffer {
        let is_whole = bytes as u64 == self.range.end - self.range.start;
        let whole = if is_whole { self.state.lock().whole.take() } else { None };
        let Some(whole) = whole else { return self.part(home, address, bytes) };
        let mut whole = ManuallyDrop::into_inner(whole);
        whole.replace_home(home);
        whole
    }
}

impl SplitBlock {
    /// Takes a part back. All work on it is ordered before this on `home`, but for that on the streams of
    /// `launched_on`, which are given no more.
    fn give_back(&self, home: &Stream, launched_on: &[Stream], bytes: usize) {
        let mut state = self.state.lock();
        let Some(whole) = &state.whole else { return };
        for stream in launched_on.iter().chain([home]) {
            whole.note_use_on(stream);
        }
        state.owned_bytes = state.owned_bytes.saturating_sub(bytes);
        let last = if state.owned_bytes == 0 { state.whole.take() } else { None };
        // To free the block takes locks of streams and of pools.
        drop(state);
        drop(last.map(ManuallyDrop::into_inner));
    }
}

// SAFETY: the parts of one block, which do not overlap, and upstream's own blocks, none of which has an
// address of the block while that is live. The block goes back in the order of its home, which waits for the
// homes of all parts first.
unsafe impl DeviceResource for SplitBlock {
    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.upstream.allocate(stream, layout)
    }

    fn allocate_growable(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> Result<Option<DeviceBlock>> {
        self.upstream.allocate_growable(stream, layout)
    }

    unsafe fn resize_in_place(
        &self,
        stream: &Stream,
        block: &mut DeviceBlock,
        bytes: usize,
    ) -> Result<bool> {
        let is_part = self.range.contains(&block.address()) && self.state.lock().whole.is_some();
        if is_part {
            return Ok(false);
        }
        // SAFETY: no part of the block, so upstream's; the caller's promise.
        unsafe { self.upstream.resize_in_place(stream, block, bytes) }
    }

    fn enable_peer_access(&self, peer: &Device) -> Result<()> {
        self.upstream.enable_peer_access(peer)
    }

    fn has_peer_access(&self, peer: &Device) -> bool {
        self.upstream.has_peer_access(peer)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let is_part = self.range.contains(&block.address()) && self.state.lock().whole.is_some();
        if !is_part {
            // SAFETY: no part of the block, so upstream's; the caller's promise.
            return unsafe { self.upstream.deallocate(stream, block) };
        }
        // Without a handle nobody would call.
        let Some(this) = self.this.upgrade() else { return };
        let (home, bytes) = (stream.clone(), block.bytes());
        // The graph of a capture may use the part, as a pool keeps a block for it.
        let kept = stream.keep_for_graph(Box::new(move |launched_on: &[Stream]| {
            this.give_back(&home, launched_on, bytes);
        }));
        if let Err(give_back) = kept {
            give_back(&[]);
        }
    }
}

debug_struct!(SplitBlock { upstream, range, .. });
