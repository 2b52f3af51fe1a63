//! Points that queues pass, and that others wait for.

use aquifer_sync::Arc;
use aquifer_sync::trusted::{AtomicBool, AtomicUsize, Ordering};

/// Signaled once the queues that an event was recorded on have passed the record.
#[derive(Debug)]
pub(crate) struct SimFence {
    /// Queues that have not passed it. Read and written under the lock of the state, so relaxed.
    remaining: AtomicUsize,
    /// The device of these queues.
    pub(crate) device: u64,
    /// The other devices with such queues, where ranks of a communicator are to pass it.
    others: Vec<u64>,
    of_ranks: bool,
    /// The fence will never be passed, and is waited for no longer. It is guarded like `remaining`.
    cancelled: AtomicBool,
}

impl SimFence {
    pub(crate) fn new(device: u64, queues: usize) -> Arc<Self> {
        Arc::new(Self {
            remaining: AtomicUsize::new(queues),
            device,
            others: Vec::new(),
            of_ranks: false,
            cancelled: AtomicBool::new(false),
        })
    }

    /// A fence that ranks on these devices pass.
    pub(crate) fn of_ranks(mut devices: Vec<u64>, ranks: usize) -> Arc<Self> {
        let device = devices.pop().unwrap_or_default();
        let (remaining, cancelled) = (AtomicUsize::new(ranks), AtomicBool::new(false));
        Arc::new(Self { remaining, device, others: devices, of_ranks: true, cancelled })
    }

    /// Whether ranks of a communicator are to pass it, some of which may not have called yet.
    pub(crate) fn is_of_ranks(&self) -> bool {
        self.of_ranks
    }

    /// The devices whose queues are to pass it.
    pub(crate) fn devices(&self) -> impl Iterator<Item = u64> + '_ {
        self.others.iter().copied().chain([self.device])
    }

    /// Ends all waits for it.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Notes that one queue has passed the record.
    pub(crate) fn pass(&self) {
        self.remaining.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn is_signaled(&self) -> bool {
        self.remaining.load(Ordering::Relaxed) == 0 || self.cancelled.load(Ordering::Relaxed)
    }
}
