//! The [`PeerCalls`] of a GPU.

use super::driver::CudaDriver;
use super::library::{PoolAccess, out_param};
use crate::driver::{Driver, DriverResult, PeerCalls, RawPool};
use crate::error::DriverError;
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
        let peer = gpu(peer, "cuCtxEnablePeerAccess")?;
        let number = peer.context_id();
        // Held over the call, which waits for no device work: another thread would ask the driver the same.
        let mut answers = self.enabled_peers.lock();
        if let Some((_, answer)) = answers.iter().find(|(asked, _)| *asked == number) {
            return answer.clone();
        }
        // SAFETY: `peer` keeps its context; the flags have to be 0.
        let answer = unsafe { self.relaxed()?.ctx_enable_peer_access(peer.handle, 0) };
        let answer = match answer {
            // Another library of the program did it.
            Err(error) if error.code() == DriverError::PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            answer => answer,
        };
        answers.push((number, answer.clone()));
        answer
    }

    fn has_peer_access(&self, peer: &dyn Any) -> bool {
        let Ok(peer) = gpu(peer, "cuCtxEnablePeerAccess") else { return false };
        let number = peer.context_id();
        let answers = self.enabled_peers.lock();
        answers.iter().any(|(asked, answer)| *asked == number && answer.is_ok())
    }

    fn pool_enable_access(&self, pool: RawPool, peer: &dyn Any) -> DriverResult<()> {
        let peer = gpu(peer, "cuMemPoolSetAccess")?;
        let access = PoolAccess::by_device(peer.context().cu_device());
        // SAFETY: one description, readable for the call; the caller's pool lives.
        unsafe { self.relaxed()?.mem_pool_set_access(pool.0, &raw const access, 1) }
    }
}

/// The peer as a GPU.
fn gpu<'a>(peer: &'a dyn Any, call: &'static str) -> DriverResult<&'a CudaDriver> {
    let refused = || DriverError::new(call, DriverError::NOT_SUPPORTED);
    peer.downcast_ref().ok_or_else(refused)
}
