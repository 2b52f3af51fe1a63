//! Access to memory of other simulated devices.

use super::call::Call;
use crate::driver::SimDriver;
use crate::state::{PeerMemory, lock_state};
use aquifer_driver::error::DriverError;
use aquifer_driver::{DriverResult, PeerCalls, RawPool, call_not_forked, is_forked_child};
use std::any::Any;

impl PeerCalls for SimDriver {
    fn can_access_peer(&self, peer: &dyn Any) -> DriverResult<bool> {
        let name = "cuDeviceCanAccessPeer";
        call_not_forked(name)?;
        self.context.check_alive(name)?;
        let peer = peer.downcast_ref::<Self>();
        let reaches = |peer: &Self| {
            let both = self.context.config.peer_access && peer.context.config.peer_access;
            both && self.context.id != peer.context.id
        };
        Ok(peer.is_some_and(reaches))
    }

    fn enable_peer_access(&self, peer: &dyn Any) -> DriverResult<()> {
        let mut call = self.call("cuCtxEnablePeerAccess")?;
        call.allow_peer(self, peer, |peer| PeerMemory::Device(peer.context.id))
    }

    /// Does nothing, since a copy needs no access here.
    fn enable_peer_copies(&self, _peer: &dyn Any) {}

    fn has_peer_access(&self, peer: &dyn Any) -> bool {
        let Some(peer) = peer.downcast_ref::<Self>() else { return false };
        let memory = PeerMemory::Device(peer.context.id);
        !is_forked_child() && lock_state().blocks.is_allowed(self.context.id, memory)
    }

    fn pool_enable_access(&self, pool: RawPool, peer: &dyn Any) -> DriverResult<()> {
        let mut call = self.call("cuMemPoolSetAccess")?;
        call.pool(pool)?;
        let refused = call.error(DriverError::INVALID_DEVICE);
        let peer = peer.downcast_ref::<Self>().ok_or(refused)?;
        call.allow_peer(peer, self, |_| PeerMemory::Pool(pool.0))
    }
}

impl Call<'_> {
    /// Has kernels of `by` reach memory of `owner`, where the two devices reach each other.
    fn allow_peer(
        &mut self,
        by: &SimDriver,
        owner: &dyn Any,
        memory: impl FnOnce(&SimDriver) -> PeerMemory,
    ) -> DriverResult<()> {
        let reaches = by.can_access_peer(owner)?;
        let owner = owner.downcast_ref::<SimDriver>().filter(|_| reaches);
        let Some(owner) = owner else { return self.refuse(DriverError::PEER_ACCESS_UNSUPPORTED) };
        self.state.blocks.allow(by.context.id, memory(owner));
        Ok(())
    }
}
