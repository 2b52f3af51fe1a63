//! A block of device memory with a home stream: what every container is made of.

use super::debts::Debts;
use super::foreign::Borrower;
use super::parts::DeviceVecParts;
use crate::backend::is_forked_child;
use crate::error::{DriverError, Error, ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::resource::handle::Handle;
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::{Stream, graveyard};
use crate::sync::Arc;
use std::mem::ManuallyDrop;
use std::ops::Range;

/// One allocation, its resource, its home stream and its debts. Freed in home's order when every
/// debt is paid.
pub(crate) struct Buffer {
    resource: Handle,
    home: Stream,
    block: ManuallyDrop<DeviceBlock>,
    debts: Debts<Borrower>,
}

impl Buffer {
    pub(crate) fn new(
        home: &Stream,
        layout: DeviceLayout,
        resource: impl Into<Handle>,
    ) -> Result<Self> {
        let resource = resource.into();
        resource.device().require(home.device(), "the stream")?;
        let block = if layout.bytes() == 0 {
            DeviceBlock::empty(layout)
        } else {
            resource.allocate(home, layout)?
        };
        Ok(Self::from_block(home, block, resource))
    }

    pub(crate) fn from_block(
        home: &Stream,
        block: DeviceBlock,
        resource: impl Into<Handle>,
    ) -> Self {
        Self {
            resource: resource.into(),
            home: home.clone(),
            block: ManuallyDrop::new(block),
            debts: Debts::default(),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.block.address()
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

    /// The handle, for another buffer of the same resource.
    pub(crate) fn handle(&self) -> Handle {
        self.resource.clone()
    }

    pub(crate) fn debts(&self) -> &Debts<Borrower> {
        &self.debts
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn frees_with_driver(&self) -> bool {
        self.resource.frees_with_driver(&self.block)
    }

    /// Makes home wait for whatever conflicts with a use of `range`.
    pub(crate) fn pay(&self, range: &Range<usize>, writes: bool) -> Result<()> {
        self.debts.pay(&self.home, range, writes)
    }

    /// Moves home to `stream`, which is ordered after all use so far.
    pub(crate) fn set_home(&mut self, stream: &Stream) -> Result<()> {
        self.home.device().require(stream.device(), "the stream")?;
        if *stream == self.home {
            return Ok(());
        }
        // Ordered in the graph alone, the new home would come after no real work of the old one.
        self.home.refuse_capture("moving a vector away from it")?;
        // To wait for what is outside of its graph would cost it the graph, and fail.
        stream.refuse_capture("moving a vector to it")?;
        self.pay(&(0..usize::MAX), true)?;
        stream.wait_for(&self.home)?;
        self.home = stream.clone();
        Ok(())
    }

    /// Takes the parts out, every debt paid. On an error the buffer is whole.
    pub(crate) fn into_parts(self, length: usize) -> Result<DeviceVecParts, (Error, Self)> {
        if let Err(error) = self.pay(&(0..usize::MAX), true) {
            return Err((error, self));
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never used or dropped again, and each field is moved or dropped once.
        unsafe {
            let block = ManuallyDrop::take(&mut this.block);
            let stream = std::ptr::read(&this.home);
            let resource = std::ptr::read(&this.resource).get().clone();
            std::ptr::drop_in_place(&mut this.debts);
            Ok(DeviceVecParts { stream, block, length, resource })
        }
    }

    /// A capture is in the way of the order that the free needs: a later call of the crate tries
    /// again what this drop could not do.
    #[cold]
    fn bury(&mut self, block: DeviceBlock) {
        Again(Some(Self {
            resource: self.resource.clone(),
            home: self.home.clone(),
            block: ManuallyDrop::new(block),
            debts: std::mem::take(&mut self.debts),
        }))
        .bury();
    }
}

/// A buffer to be dropped when its home is in no capture, which a payment from outside would cost.
struct Again(Option<Buffer>);

impl Again {
    fn bury(self) {
        graveyard::bury(None, Box::new(self));
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        let Some(buffer) = self.0.take() else { return };
        if buffer.home.is_capturing().unwrap_or(false) {
            Again(Some(buffer)).bury();
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let block = unsafe { ManuallyDrop::take(&mut self.block) };
        // In the child of a fork the memory is the parent's, and the locks on the way may be held.
        if block.is_empty() || is_forked_child() {
            return;
        }
        match self.debts.pay(&self.home, &(0..usize::MAX), true) {
            // SAFETY: the block is this resource's; home is ordered after every use: those at home
            // by stream order, those elsewhere by the debts just paid.
            Ok(()) => unsafe { self.resource.deallocate(&self.home, block) },
            Err(error) if error.kind() == ErrorKind::Capture => self.bury(block),
            // Work elsewhere may still use it and nothing can be made to wait: never published.
            // Quiet where this very device is gone; the one that is gone may be a borrower's.
            Err(error)
                if error.driver().is_some_and(DriverError::is_gone)
                    && self.home.device().memory_info().is_err() => {}
            Err(error) => leaked(&block, &error),
        }
    }
}

fn leaked(block: &DeviceBlock, error: &Error) {
    crate::debug_log::event!(error,
        bytes = block.bytes(),
        %error,
        "leaked device memory: its stream cannot be ordered after its last use"
    );
}
