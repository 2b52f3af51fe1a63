//! A block of device memory, as a resource hands it out.

use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout, align_up};
use std::ptr::NonNull;

/// Memory from a [`DeviceResource`](crate::DeviceResource). A block has an address, a size, and a token by which the
/// resource finds it again.
///
/// A block has no destructor, so its drop leaks its memory. Give it to
/// [`deallocate`](crate::DeviceResource::deallocate), once. It is not `Clone` or `Copy`.
// In this order, which is also the pool's, address and token move as one.
#[derive(Debug, PartialEq, Eq)]
#[repr(C)]
#[must_use = "a block that is not deallocated is leaked"]
pub struct DeviceBlock {
    address: u64,
    token: u64,
    bytes: usize,
}

impl DeviceBlock {
    /// A block at `address` of `bytes` bytes. The resource chooses the token.
    pub const fn new(address: u64, bytes: usize, token: u64) -> Self {
        Self { address, bytes, token }
    }

    /// The block of a request for no bytes. Its address is aligned, and never used. Blocks of one alignment share the
    /// address, so it tells none of them apart.
    pub const fn empty(layout: DeviceLayout) -> Self {
        Self { address: layout.alignment() as u64, bytes: 0, token: 0 }
    }

    /// The device's address of the first byte.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The size in bytes, which is the requested size or more. A pool that a memory tool or the simulated device
    /// follows gives exactly the requested size.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The resource's token.
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// Whether the block has no bytes, and so no memory behind it.
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The first byte, in memory that has one address for host and device.
    #[doc(hidden)]
    pub fn host_pointer(&self) -> NonNull<u8> {
        let pointer = std::ptr::with_exposed_provenance_mut(self.address as usize);
        NonNull::new(pointer).unwrap_or(NonNull::dangling())
    }
}

/// Bytes to ask of a driver that aligns to [`DEFAULT_ALIGNMENT`], with room for the alignment of the layout. The sum
/// cannot wrap, since a layout's rounded size fits in `isize`, and so does its alignment.
pub fn padded_bytes(layout: DeviceLayout) -> usize {
    layout.bytes() + layout.alignment().saturating_sub(DEFAULT_ALIGNMENT)
}

/// The block of a layout in so many bytes at `base`. Its token is the driver's own address.
pub fn padded_block(layout: DeviceLayout, base: u64) -> DeviceBlock {
    let address = align_up(base as usize, layout.alignment()).unwrap_or(base as usize);
    DeviceBlock::new(address as u64, layout.bytes(), base)
}

#[cfg(test)]
mod tests;
