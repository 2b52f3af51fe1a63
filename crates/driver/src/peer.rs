//! The calls of a driver by which one device reaches the memory of another.

use super::raw::{DriverResult, RawPool};
use std::any::Any;

/// The calls of a [`Driver`](super::Driver) on access to memory of its peers. A peer is another device of the same
/// kind, and is given by its [`as_any`](super::Driver::as_any).
///
/// Access is to plain memory of a context as a whole, or to one pool of the driver. It covers the blocks that are there
/// and those that come.
pub trait PeerCalls {
    /// Whether kernels of this device can reach memory of `peer` at all.
    fn can_access_peer(&self, peer: &dyn Any) -> DriverResult<bool>;

    /// Has kernels of this device reach the plain memory of `peer`. The driver is asked once, and its answer stands.
    fn enable_peer_access(&self, peer: &dyn Any) -> DriverResult<()>;

    /// Has copies from plain memory of `peer` to this device go from one to the other, where they can. A GPU has one
    /// switch for both, but kernels are not to depend on whether a copy came before.
    fn enable_peer_copies(&self, peer: &dyn Any);

    /// Whether [`enable_peer_access`](Self::enable_peer_access) has succeeded.
    fn has_peer_access(&self, peer: &dyn Any) -> bool;

    /// Has kernels of `peer` reach the memory of a pool of this device.
    fn pool_enable_access(&self, pool: RawPool, peer: &dyn Any) -> DriverResult<()>;
}
