//! Copies between host and device, and between devices.
//!
//! Copies have three forms, which are *owned* ([`Transfer`]), *scoped* ([`Stream::scope`](crate::Stream::scope))
//! and *blocking* ([`DeviceVec::copy_from_slice`](crate::DeviceVec::copy_from_slice) and its kin). Each is sound
//! whatever is forgotten, dropped early or unwound.

mod owned;
mod owned_range;
mod owned_ranges;
mod scope;
mod unchecked;

pub use owned::{Transfer, TransferError};
pub use scope::{Mapped, MappedMut, Scope};
