//! Copies between host and device, and between devices.
//!
//! Copies have three forms, which are *owned* ([`Transfer`]), *scoped* ([`Stream::scope`](crate::Stream::scope))
//! and *blocking* ([`DeviceVec::copy_from_slice`](crate::DeviceVec::copy_from_slice) and its kin). Each is sound
//! whatever is forgotten, dropped early or unwound.

pub(crate) mod between_devices;
pub(crate) mod blocking;
mod enqueue;
mod owned;
mod owned_range;
mod scope;
mod stopped;
mod unchecked;

pub(crate) use enqueue::same_number;
pub use owned::{Transfer, TransferError};
pub use scope::{Mapped, MappedMut, Scope};
