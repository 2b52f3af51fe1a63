//! The [`PeerCalls`] of a GPU.

use super::driver::{CudaDriver, KnownPeer};
use super::library::{PoolAccess, out_param};
use crate::error::DriverError;
use crate::{Driver, DriverResult, PeerCalls, RawPool, call_not_forked, is_forked_child};
use std::any::Any;

impl PeerCalls for CudaDriver {
    fn can_access_peer(&self, peer: &dyn Any) -> DriverResult<bool> {
        let (own, peer) = (self.context().cu_device(), gpu(peer, "cuDeviceCanAccessPeer")?);
        let peer = peer.context().cu_device();
        // SAFETY: `answer` is writable for the call.
        let answer = out_param(|answer| unsafe {
            self.current()?.device_can_access_peer(answer, own, peer)
        })?;
        Ok(answer != 0)
    }

    fn enable_peer_access(&self, peer: &dyn Any) -> DriverResult<()> {
        self.enable(gpu(peer, "cuCtxEnablePeerAccess")?, true)
    }

    fn enable_peer_copies(&self, peer: &dyn Any) {
        // Without it the driver copies by way of the host.
        if let Ok(peer) = gpu(peer, "cuCtxEnablePeerAccess") {
            let _ = self.enable(peer, false);
        }
    }
    fn has_peer_access(&self, peer: &dyn Any) -> bool {
        let Ok(peer) = gpu(peer, "cuCtxEnablePeerAccess") else { return false };
        let number = peer.context_id();
        // In the child of a fork the lock may be held for good.
        if is_forked_child() {
            return false;
        }
        let known = self.peers.lock();
        known.iter().any(|known| known.number == number && known.by_kernels && known.answer.is_ok())
    }

    fn pool_enable_access(&self, pool: RawPool, peer: &dyn Any) -> DriverResult<()> {
        let peer = gpu(peer, "cuMemPoolSetAccess")?;
        let access = PoolAccess::by_device(peer.context().cu_device());
        // SAFETY: one description, readable for the call; the caller's pool lives.
        unsafe { self.relaxed()?.mem_pool_set_access(pool.0, &raw const access, 1) }
    }
}

impl CudaDriver {
    fn enable(&self, peer: &Self, by_kernels: bool) -> DriverResult<()> {
        call_not_forked("cuCtxEnablePeerAccess")?;
        let number = peer.context_id();
        // Held over the call, which waits for no device work: another thread would ask the driver the same.
        let mut known = self.peers.lock();
        if let Some(known) = known.iter_mut().find(|known| known.number == number) {
            known.by_kernels |= by_kernels;
            return known.answer.clone();
        }
        // SAFETY: `peer` keeps its context; the flags have to be 0.
        let answer = unsafe { self.relaxed()?.ctx_enable_peer_access(peer.handle, 0) };
        let answer = match answer {
            // Another library of the program did it.
            Err(error) if error.code() == DriverError::PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            answer => answer,
        };
        known.push(KnownPeer { number, answer: answer.clone(), by_kernels });
        answer
    }
}

/// The peer as a GPU.
pub(super) fn gpu<'a>(peer: &'a dyn Any, call: &'static str) -> DriverResult<&'a CudaDriver> {
    let refused = || DriverError::new(call, DriverError::NOT_SUPPORTED);
    peer.downcast_ref().ok_or_else(refused)
}
