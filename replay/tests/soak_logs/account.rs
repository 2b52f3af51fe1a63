//! The program's own account of what it asked and got.

use aquifer::{Device, DeviceBlock, DeviceLayout, DeviceResource, Result, Stream};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes and calls so far. Empty blocks are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) live: u64,
    pub(crate) peak: u64,
    pub(crate) allocations: usize,
    pub(crate) frees: usize,
    pub(crate) failures: usize,
}

/// Keeps an account that outlives it.
#[derive(Debug)]
pub(crate) struct Accounted<U> {
    upstream: U,
    account: Arc<Mutex<Account>>,
}

impl<U> Accounted<U> {
    pub(crate) fn new(upstream: U, account: &Arc<Mutex<Account>>) -> Self {
        Self { upstream, account: account.clone() }
    }

    fn change(&self, change: impl FnOnce(&mut Account)) {
        change(&mut self.account.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

// SAFETY: every block is the upstream's, and goes back to it unchanged.
unsafe impl<U: DeviceResource> DeviceResource for Accounted<U> {
    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let result = self.upstream.allocate(stream, layout);
        self.change(|account| match &result {
            Ok(block) if block.is_empty() => {}
            Ok(block) => {
                account.allocations += 1;
                account.live += block.bytes() as u64;
                account.peak = account.peak.max(account.live);
            }
            Err(_) => account.failures += 1,
        });
        result
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        if !block.is_empty() {
            self.change(|account| {
                account.frees += 1;
                account.live -= block.bytes() as u64;
            });
        }
        // SAFETY: the block is the upstream's; our caller vouches for the rest.
        unsafe { self.upstream.deallocate(stream, block) }
    }
}
