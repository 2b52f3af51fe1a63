//! A block of device memory with a home stream, inside of every container.

use super::growth::Growth;
use crate::driver::CallSite;
use crate::driver::{
    DeviceRange, MemoryLocation, VectorEvent, VectorType, is_in_host_function, may_not_call,
};
use crate::error::{DriverError, Error, ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::order::{CapturePolicy, MemoryUse, PendingUses, UseTimeline};
use crate::resource::resizing::Purpose;
use crate::resource::{DeviceBlock, DeviceResource, ResourceHandle};
use crate::stream::prefetch::prefetch;
use crate::stream::{Stream, StreamCall, deferred};
use crate::sync::Arc;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::time::{Duration, Instant};

/// One allocation, with its resource, its home stream and its uses elsewhere. It is freed in home's order when home has
/// waited for every use.
pub(crate) struct Buffer {
    resource: ResourceHandle,
    home: Stream,
    block: ManuallyDrop<DeviceBlock>,
    /// The alignment that was asked of the block, and of all that take its place. A power of two.
    alignment: usize,
    uses: PendingUses<UseTimeline>,
    /// The last change of its size, if there was one.
    growth: Option<Growth>,
    /// Its vector was dropped, and the free is deferred. So no graph of a later capture uses it.
    is_deferred: bool,
}

impl Buffer {
    pub(crate) fn new(
        home: &Stream,
        layout: DeviceLayout,
        resource: ResourceHandle,
        kind: VectorKind,
    ) -> Result<Self> {
        resource.device().require(home.device(), "the stream")?;
        let block = if layout.bytes() == 0 {
            DeviceBlock::empty(layout)
        } else {
            deferred::or_collect(|| resource.allocate(home, layout))?
        };
        if CallSite::is_wanted() {
            tell_made(home, block.address(), layout.bytes(), kind);
        }
        Ok(Self::from_block(home, block, layout.alignment(), resource))
    }

    pub(crate) fn from_block(
        home: &Stream,
        block: DeviceBlock,
        alignment: usize,
        resource: ResourceHandle,
    ) -> Self {
        Self {
            resource,
            home: home.clone(),
            block: ManuallyDrop::new(block),
            alignment,
            uses: PendingUses::default(),
            growth: None,
            is_deferred: false,
        }
    }

    /// Another block of the same resource, of this one's alignment at least.
    pub(crate) fn allocate_like(&self, layout: DeviceLayout, kind: VectorKind) -> Result<Self> {
        let alignment = layout.alignment().max(self.alignment);
        let layout = DeviceLayout::with_alignment(layout.bytes(), alignment)?;
        let mut another = Self::new(&self.home, layout, self.resource.clone(), kind)?;
        another.alignment = self.alignment;
        Ok(another)
    }

    /// Like [`allocate_like`](Self::allocate_like), for memory that can grow where it lies. `None` where the resource
    /// has none.
    pub(crate) fn allocate_growable(
        &self,
        layout: DeviceLayout,
        kind: VectorKind,
    ) -> Result<Option<Self>> {
        // The first memory of a vector is any: what grows once is to grow again.
        if self.block.is_empty() {
            return Ok(None);
        }
        let alignment = layout.alignment().max(self.alignment);
        let layout = DeviceLayout::with_alignment(layout.bytes(), alignment)?;
        let Some(block) = self.resource.allocate_growable(&self.home, layout)? else {
            return Ok(None);
        };
        if CallSite::is_wanted() {
            tell_made(&self.home, block.address(), block.bytes(), kind);
        }
        Ok(Some(Self::from_block(&self.home, block, self.alignment, self.resource.clone())))
    }

    /// Extends the block to so many bytes where it lies, and returns whether it does. If not, or on an error, the block
    /// is as it was. Work at home may use the added bytes, and so may other work that is ordered after home, as by the
    /// next guard.
    pub(crate) fn grow_in_place(&mut self, bytes: usize, kind: VectorKind) -> Result<bool> {
        if self.block.is_empty() {
            return Ok(false);
        }
        let Self { resource, home, block, .. } = self;
        // SAFETY: the resource's own block, of which nothing is given up.
        let grow = || unsafe { resource.resize_in_place(home, block, bytes) };
        let grown = Purpose::Needed.of(|| deferred::or_collect(grow))?;
        self.note_resized(grown, kind);
        Ok(grown)
    }

    /// Like [`grow_in_place`](Self::grow_in_place), for growth that is not needed, and by steps that need no wait. An
    /// error shows at the growth that is needed.
    pub(crate) fn grow_by_wish(&mut self, bytes: usize, kind: VectorKind) -> bool {
        if self.block.is_empty() {
            return false;
        }
        let Self { resource, home, block, .. } = self;
        // SAFETY: the resource's own block, of which nothing is given up.
        let grow = || unsafe { resource.resize_in_place(home, block, bytes) };
        let grown = Purpose::Wish.of(grow).unwrap_or(false);
        self.note_resized(grown, kind);
        grown
    }

    /// Like [`grow_in_place`](Self::grow_in_place), for fewer bytes, but not for zero. Home waits for all uses of the
    /// other bytes. It does nothing in a capture, since home does not wait for them there.
    pub(crate) fn shrink_in_place(&mut self, bytes: usize, kind: VectorKind) -> Result<bool> {
        let rest = self.memory_use(bytes..usize::MAX, true);
        let call = rest.order_on(&self.home, CapturePolicy::Join)?;
        if call.is_capturing()? {
            return Ok(false);
        }
        drop(call);
        let Self { resource, home, block, .. } = self;
        // SAFETY: the resource's own block; home is ordered after every use of what is given up.
        let shrink = || unsafe { resource.resize_in_place(home, block, bytes) };
        // Also where a resource of the user's, which takes back a growth, resizes vectors of its own.
        let shrunk = Purpose::Needed.of(shrink)?;
        self.note_resized(shrunk, kind);
        Ok(shrunk)
    }

    fn note_resized(&mut self, resized: bool, kind: VectorKind) {
        if resized {
            self.growth = Some(Growth::InPlace);
            if CallSite::is_wanted() {
                tell_made(&self.home, self.address(), self.bytes(), kind);
            }
        }
    }

    /// Replaces `self`, which is freed, by `other`, to which its bytes were copied.
    pub(crate) fn replace_with(&mut self, mut other: Self) {
        other.growth = (!self.block.is_empty()).then_some(Growth::Moved);
        *self = other;
    }

    pub(crate) fn growth(&self) -> Option<Growth> {
        self.growth
    }

    /// Tells a simulated device that the block is now a container `C`'s, which another one has made.
    pub(super) fn made_as<C>(&self, elements: usize, bytes: usize) {
        let name = std::any::type_name::<C>();
        self.tell(bytes, VectorEvent::Made(VectorType { name, elements, bytes }));
    }

    /// Tells it that the block is a container `C`'s, unless it is one's already.
    pub(super) fn assembled_as<C>(&self, elements: usize, bytes: usize) {
        let name = std::any::type_name::<C>();
        self.tell(bytes, VectorEvent::Assembled(VectorType { name, elements, bytes }));
    }

    fn tell(&self, bytes: usize, event: VectorEvent) {
        tell(&self.home, self.address(), bytes, event);
    }

    pub(crate) fn address(&self) -> u64 {
        self.block.address()
    }

    pub(crate) fn alignment(&self) -> usize {
        self.alignment
    }

    pub(crate) fn bytes(&self) -> usize {
        self.block.bytes()
    }

    pub(crate) fn home(&self) -> &Stream {
        &self.home
    }

    pub(crate) fn resource(&self) -> &Arc<dyn DeviceResource> {
        self.resource.get()
    }

    pub(crate) fn frees_with_driver(&self) -> bool {
        self.resource.frees_with_driver(&self.block)
    }

    /// A use of the bytes in `range`.
    pub(super) fn memory_use(&self, range: Range<usize>, writes: bool) -> MemoryUse<'_> {
        let resource = &**self.resource.get();
        let address = self.address();
        let (home, uses) = (&self.home, &self.uses);
        MemoryUse { home, address, uses, resource, range, writes, touches: true }
    }

    /// Makes home wait for all uses elsewhere.
    fn make_home_wait_for_uses(&self) -> Result<StreamCall<'_>> {
        self.memory_use(0..usize::MAX, true).order_on(&self.home, CapturePolicy::Join)
    }

    /// As [`make_home_wait_for_uses`](Self::make_home_wait_for_uses), for a free, which touches no memory: that may sleep.
    fn make_home_wait_to_free(&self) -> Result<StreamCall<'_>> {
        let all = MemoryUse { touches: false, ..self.memory_use(0..usize::MAX, true) };
        all.order_on(&self.home, CapturePolicy::Join)
    }

    /// Makes home wait for all uses elsewhere, or the host, so that another owner of the memory can go on at home. The uses
    /// stay pending on an error.
    pub(super) fn end_loan(&self) -> Result<()> {
        if self.uses.is_empty() {
            return Ok(());
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let all = MemoryUse { touches: false, ..self.memory_use(0..usize::MAX, true) };
            match all.order_home_or_block() {
                // No event covers the whole context, which an unknown stream needs, while any stream is in capture.
                Err(error) if error.kind() == ErrorKind::Capture && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                ended => return ended,
            }
        }
    }

    /// Forgets the memory, and all uses of it. It is another owner's.
    pub(super) fn forget(&mut self) {
        self.block = ManuallyDrop::new(DeviceBlock::new(0, 0, 0));
        self.uses = PendingUses::default();
    }

    /// Moves the first `bytes` bytes, where they can move.
    pub(crate) fn prefetch(&self, bytes: usize, to: MemoryLocation) -> Result<()> {
        let range = DeviceRange { address: self.address(), bytes: bytes.min(self.bytes()) };
        // SAFETY: the block is this buffer's, which frees it in the order of its home stream.
        unsafe { prefetch(&self.home, range, to) }
    }

    /// Moves home to `stream`, which is ordered after all use so far.
    pub(crate) fn set_home(&mut self, stream: &Stream) -> Result<()> {
        self.home.device().require(stream.device(), "the stream")?;
        if *stream == self.home {
            return Ok(());
        }
        // Ordered in the graph alone, the new home would come after no real work of the old one.
        self.home.refuse_capture("moving a vector to another stream")?;
        // Out of the first gate before the second is entered, which may have to be waited for. No other use comes between.
        let old = self.make_home_wait_for_uses()?;
        old.refuse_capture("moving a vector to another stream")?;
        let event = old.record()?;
        drop(old);
        let new = stream.begin_call()?;
        new.refuse_capture("moving a vector to another stream")?;
        new.wait(&event)?;
        drop(new);
        self.home = stream.clone();
        Ok(())
    }

    /// Makes the free wait for all that `stream` is given until then.
    pub(super) fn note_use_on(&self, stream: &Stream) {
        if *stream != self.home {
            self.uses.record_use(UseTimeline::Stream(stream.clone()), 0..usize::MAX, true);
        }
    }

    /// Like [`set_home`](Self::set_home), where `stream` is ordered already.
    pub(super) fn replace_home(&mut self, stream: &Stream) {
        self.home = stream.clone();
    }

    /// Takes the block out, with home ordered after every use. The rest has no memory to free. On an error it is whole.
    pub(crate) fn take_block(&mut self) -> Result<DeviceBlock> {
        // Ordered in the graph alone, the block would be in no order with former uses.
        self.make_home_wait_for_uses()?.refuse_capture("taking a vector apart")?;
        self.tell(self.bytes(), VectorEvent::TakenApart);
        Ok(std::mem::replace(&mut self.block, DeviceBlock::new(0, 0, 0)))
    }

    /// Inside of a host function, defers the drop to a later call, on a thread that may call the driver.
    #[cold]
    fn drop_where_not_permitted(&mut self, block: DeviceBlock) {
        if is_in_host_function() {
            let buffer = self.for_later(block, self.is_deferred);
            deferred::defer(None, move || drop(buffer));
        }
    }

    /// What is left of a buffer that is being dropped, to be dropped later with its block.
    fn for_later(&mut self, block: DeviceBlock, is_deferred: bool) -> Self {
        Self {
            resource: self.resource.clone(),
            home: self.home.clone(),
            block: ManuallyDrop::new(block),
            alignment: self.alignment,
            uses: std::mem::take(&mut self.uses),
            growth: None,
            is_deferred,
        }
    }

    /// Defers the free of the block until the graph of home's capture is gone, which may use it. If the capture in the
    /// way is another stream's, a later call of the crate frees it.
    #[cold]
    fn defer_free_for_capture(&mut self, block: DeviceBlock) {
        let buffer = self.for_later(block, true);
        let free = Box::new(move |launched_on: &[Stream]| {
            // The launches are uses like others: the drop makes home wait for them.
            for stream in launched_on {
                buffer.uses.record_use(UseTimeline::Stream(stream.clone()), 0..usize::MAX, true);
            }
            drop(buffer);
        });
        let deferred =
            if self.is_deferred { Err(free as _) } else { self.home.keep_for_graph(free) };
        if let Err(free) = deferred {
            deferred::defer(None, move || free(&[]));
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let block = unsafe { ManuallyDrop::take(&mut self.block) };
        // In the child of a fork the memory is the parent's, and the locks on the way may be held.
        if block.is_empty() {
            return;
        }
        if may_not_call() {
            return self.drop_where_not_permitted(block);
        }
        let waited = match self.uses.is_empty() {
            true => Ok(()),
            false => self.make_home_wait_to_free().map(drop),
        };
        match waited {
            // SAFETY: the block is this resource's; home is ordered after every use: those at home
            // by stream order, those elsewhere by the wait.
            Ok(()) => unsafe { self.resource.deallocate(&self.home, block) },
            Err(error) if error.kind() == ErrorKind::Capture => self.defer_free_for_capture(block),
            // Work elsewhere may still use it and nothing can be made to wait: never published.
            // Quiet where this very device is gone; the one that is gone may be that of a use.
            Err(error)
                if error.driver().is_some_and(DriverError::is_gone)
                    && self.home.device().memory_info().is_err() => {}
            Err(error) => log_leak(&block, &error),
        }
    }
}

fn log_leak(block: &DeviceBlock, error: &Error) {
    crate::debug_log::event!(error,
        bytes = block.bytes(),
        %error,
        "leaked device memory: its stream cannot be ordered after its last use"
    );
}

/// The name of a container's type, and the size of its elements.
pub(super) type VectorKind = fn() -> (&'static str, usize);

/// The kind of the container `C` of elements `T`.
pub(super) fn kind_of<C, T>() -> (&'static str, usize) {
    (std::any::type_name::<C>(), size_of::<T>())
}

/// Tells a simulated device what a block was allocated for. It takes no reference to the block, since a vector whose
/// address is taken is moved once more.
#[cold]
fn tell_made(home: &Stream, address: u64, bytes: usize, kind: VectorKind) {
    let (name, size) = kind();
    let elements = bytes.checked_div(size).unwrap_or(0);
    tell(home, address, bytes, VectorEvent::Made(VectorType { name, elements, bytes }));
}

fn tell(home: &Stream, address: u64, bytes: usize, event: VectorEvent) {
    if let Some(regions) = home.device().driver().regions().filter(|_| bytes > 0) {
        regions.vector(DeviceRange { address, bytes }, event);
    }
}
