//! How a pool is built, and what it tells of itself.

use crate::error::{Error, ErrorKind, Result};
use crate::layout::DEFAULT_ALIGNMENT;
use crate::pool::{Rung, Settings, Totals};

/// The maximum of a pool that has none.
pub(super) const UNLIMITED: usize = isize::MAX as usize & !0xfff;

/// Blocks of one size that a thread's magazine keeps at most, and unless said otherwise.
const MAGAZINE_ENTRIES: usize = crate::pool::magazine::SHELF_ROOM;

/// What a pool does when the calling stream's own free memory does not serve: its rungs, in order.
///
/// The default takes what is complete or ordered already, grows, makes the stream wait for one block
/// of another, and only then moves and trims: growth costs the host time once, a wait serialises
/// streams each time.
///
/// ```
/// use aquifer::{MissPolicy, Rung};
///
/// let patient = MissPolicy::new([Rung::Complete, Rung::Grow, Rung::GrowToMaximum]);
/// assert!(!patient.rungs().contains(&Rung::Wait)); // streams are never made to wait
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissPolicy {
    rungs: Vec<Rung>,
}

impl Default for MissPolicy {
    fn default() -> Self {
        use Rung::*;
        Self::new([Complete, Ordered, Grow, Wait, GrowToMaximum, Gather, Trim])
    }
}

impl MissPolicy {
    /// These rungs, in this order. A pool without [`Rung::Gather`] and [`Rung::Trim`] may run out of
    /// memory while it has enough in pieces, or in blocks of upstream that are too small.
    pub fn new(rungs: impl IntoIterator<Item = Rung>) -> Self {
        Self { rungs: rungs.into_iter().collect() }
    }

    /// RMM's order: other streams are made to wait before the pool grows.
    pub fn rmm() -> Self {
        use Rung::*;
        Self::new([Wait, Gather, Grow, GrowToMaximum, Trim])
    }

    /// The rungs.
    pub fn rungs(&self) -> &[Rung] {
        &self.rungs
    }
}

/// How a pool is built. From [`PoolResource::builder`](crate::PoolResource::builder).
#[derive(Clone, Debug)]
#[must_use]
pub struct PoolOptions<U> {
    pub(super) upstream: U,
    pub(super) initial_size: usize,
    maximum_size: Option<usize>,
    soft_limit: Option<usize>,
    growth_step: Option<usize>,
    pub(super) alignment: usize,
    miss_policy: MissPolicy,
    magazine_entries: usize,
    magazine_bytes: usize,
}

impl<U> PoolOptions<U> {
    pub(super) fn new(upstream: U) -> Self {
        Self {
            upstream,
            initial_size: 0,
            maximum_size: None,
            soft_limit: None,
            growth_step: None,
            alignment: DEFAULT_ALIGNMENT,
            miss_policy: MissPolicy::default(),
            magazine_entries: MAGAZINE_ENTRIES,
            magazine_bytes: 32 << 20,
        }
    }

    /// Bytes to take from upstream when the pool is built: a multiple of the alignment. 0 unless said
    /// otherwise.
    pub fn initial_size(mut self, bytes: usize) -> Self {
        self.initial_size = bytes;
        self
    }

    /// Bytes that the pool never holds more of: a multiple of the alignment. No maximum unless said
    /// otherwise.
    pub fn maximum_size(mut self, bytes: usize) -> Self {
        self.maximum_size = Some(bytes);
        self
    }

    /// Bytes up to which the pool grows ([`Rung::Grow`]) before it makes streams wait for each other
    /// ([`Rung::Wait`]). Rounded down to the alignment. The maximum unless said otherwise.
    pub fn soft_limit(mut self, bytes: usize) -> Self {
        self.soft_limit = Some(bytes);
        self
    }

    /// Bytes to take from upstream at a time, or what is asked if that is more. An eighth of what
    /// the stream has, between 2 MiB and 1 GiB, unless said otherwise; less where the maximum or
    /// upstream has no more. Rounded up to the alignment.
    pub fn growth_step(mut self, bytes: usize) -> Self {
        self.growth_step = Some(bytes);
        self
    }

    /// What every block is aligned to, in bytes: a power of two, 256 at least, which is the default.
    /// Sizes are rounded up to it. A single block that needs more asks for it in its
    /// [layout](crate::DeviceLayout).
    pub fn alignment(mut self, bytes: usize) -> Self {
        self.alignment = bytes;
        self
    }

    /// What a miss does.
    pub fn miss_policy(mut self, policy: MissPolicy) -> Self {
        self.miss_policy = policy;
        self
    }

    /// Blocks of one size that each thread keeps for each stream, ready without a lock: 8 at most and
    /// unless said otherwise. 0 for none. None while a [tool that watches
    /// memory](crate::debug_log#a-tool-that-watches-memory) is in the program.
    pub fn magazine_entries(mut self, entries: usize) -> Self {
        self.magazine_entries = entries;
        self
    }

    /// Bytes that each thread keeps so for each stream: 32 MiB unless said otherwise.
    pub fn magazine_bytes(mut self, bytes: usize) -> Self {
        self.magazine_bytes = bytes;
        self
    }

    pub(super) fn check(&self) -> Result<Settings> {
        let wrong = |what: String, advice: &'static str| {
            Err(Error::new(ErrorKind::InvalidArgument, what).advise(advice))
        };
        let alignment = self.alignment;
        if !alignment.is_power_of_two() || !(DEFAULT_ALIGNMENT..=1 << 30).contains(&alignment) {
            return wrong(
                format!("a pool was asked to align to {alignment} bytes"),
                "give a power of two between 256 and 2^30",
            );
        }
        let maximum = self.maximum_size.unwrap_or(UNLIMITED & !(alignment - 1));
        for (name, bytes) in [("initial", self.initial_size), ("maximum", maximum)] {
            if bytes % alignment != 0 {
                return wrong(
                    format!("the {name} size of a pool, {bytes}, is no multiple of {alignment}"),
                    "round it to the pool's alignment",
                );
            }
        }
        if maximum == 0 {
            return wrong(
                String::from("a pool was asked to hold no more than 0 bytes"),
                "leave the maximum size out for a pool without one",
            );
        }
        if self.initial_size > maximum {
            return wrong(
                format!(
                    "a pool's initial size, {}, is more than its maximum, {maximum}",
                    self.initial_size
                ),
                "make the maximum size larger",
            );
        }
        let soft_limit = self.soft_limit.unwrap_or(maximum);
        if soft_limit > maximum {
            return wrong(
                format!("a pool's soft limit, {soft_limit}, is more than its maximum, {maximum}"),
                "make the maximum size larger",
            );
        }
        if self.growth_step == Some(0) {
            return wrong(
                String::from("a pool was asked to grow by 0 bytes"),
                "leave the growth step out, or give a miss policy without growth",
            );
        }
        if self.magazine_entries > MAGAZINE_ENTRIES {
            return wrong(
                format!("a magazine was asked for {} blocks of a size", self.magazine_entries),
                "give 8 at most",
            );
        }
        if self.miss_policy.rungs.is_empty() && self.initial_size == 0 {
            return wrong(
                String::from("a pool was asked to start empty and to do nothing on a miss"),
                "give it an initial size, or a miss policy that grows",
            );
        }
        Ok(Settings {
            maximum,
            soft_limit,
            step: self.growth_step.unwrap_or(0),
            alignment: alignment as u64,
            rungs: self.miss_policy.rungs.clone(),
            entries: self.magazine_entries as u8,
            cached_bytes: self.magazine_bytes,
        })
    }
}

/// What a pool holds and what it did. From [`PoolResource::statistics`](crate::PoolResource::statistics).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatistics {
    /// Bytes taken from upstream.
    pub reserved: usize,
    /// The most bytes that were reserved at once.
    pub peak_reserved: usize,
    /// Bytes in blocks that users or graphs hold.
    pub live: usize,
    /// Blocks that users or graphs hold.
    pub live_blocks: usize,
    /// Bytes that are free: `reserved - live`.
    pub free: usize,
    /// Of the free bytes, those that threads keep ready in their magazines.
    pub cached: usize,
    /// Of the bytes in use, those that were freed and wait for a [`Graph`](crate::Graph) to go.
    pub held: usize,
    /// Bytes of the largest free block outside of magazines.
    pub largest_free: usize,
    /// Blocks of upstream.
    pub upstream_blocks: usize,
    /// Streams that have memory of their own here.
    pub streams: usize,
    /// Allocations that the stream's own free memory did not serve.
    pub misses: usize,
    /// Blocks that were taken from another stream's free memory.
    pub steals: usize,
    /// Events recorded.
    pub records: usize,
    /// Times that a stream was made to wait for another.
    pub waits: usize,
    /// Blocks taken from upstream.
    pub growths: usize,
    /// Blocks given back to upstream.
    pub returns: usize,
}

impl From<Totals> for PoolStatistics {
    fn from(totals: Totals) -> Self {
        Self {
            reserved: totals.reserved,
            peak_reserved: totals.peak_reserved,
            live: totals.live,
            live_blocks: totals.live_blocks,
            free: totals.reserved.saturating_sub(totals.live),
            cached: totals.cached,
            held: totals.held,
            largest_free: totals.largest_free,
            upstream_blocks: totals.upstream_blocks,
            streams: totals.streams,
            misses: totals.misses,
            steals: totals.steals,
            records: totals.records,
            waits: totals.waits,
            growths: totals.growths,
            returns: totals.returns,
        }
    }
}
