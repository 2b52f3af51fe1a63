//! The steps of a miss policy.

/// One thing that a pool tries on a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissStep {
    /// Memory that other streams freed and the host has seen complete.
    Complete,
    /// Memory that other streams freed at points which the calling stream is already ordered after.
    Ordered,
    /// More memory from upstream, while the pool is under its soft limit.
    Grow,
    /// Memory of one other stream: the calling stream is made to wait for it, the host is not.
    Wait,
    /// More memory from upstream, up to the maximum size.
    GrowToMaximum,
    /// All free memory of the pool is gathered in one place, and the calling stream is made to wait
    /// for all streams that freed it.
    Gather,
    /// The host waits for the streams that freed memory, the one first whose memory is pending for longest, until the device
    /// is past enough: for no stream that has nothing pending. Free blocks of upstream are given back, and upstream is asked
    /// for one that fits. Where the device has no memory left, its other pools give back what they have free: before this
    /// step what the device is past, after it what is pending, behind waits for the streams that freed it, until that is
    /// enough. A pool keeps its initial size. A policy without this step takes from them what the device is past.
    /// The callback (`PoolOptions::failure_callback`) is asked right before this
    /// step, or before a refusal if the policy has no such step.
    Trim,
}

impl MissStep {
    /// Whether memory that is mapped moves to where it is wanted.
    pub(crate) fn moves(&self) -> bool {
        matches!(self, Self::GrowToMaximum | Self::Gather | Self::Trim)
    }

    /// Whether memory comes from upstream, and nothing goes back for it.
    pub(crate) fn grows(&self) -> bool {
        matches!(self, Self::Grow | Self::GrowToMaximum)
    }

    /// Whether it makes a stream wait for others.
    pub(crate) fn waits(&self) -> bool {
        matches!(self, Self::Wait | Self::Gather)
    }

    /// Whether upstream is asked for memory.
    #[doc(hidden)]
    pub fn asks_upstream(self) -> bool {
        matches!(self, Self::Grow | Self::GrowToMaximum | Self::Trim)
    }
}
