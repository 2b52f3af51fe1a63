//! What a pool reserves over what is live.

use crate::rows::{MIB, POOL, nanoseconds, number};
use crate::subject::Bench;
use crate::workloads::{Pool, STREAMS, churn, median3};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts the most bytes that are live at once. A block counts once it is there and until its free
/// begins, so that the peak is never overstated.
struct Peak<'a, P> {
    pool: &'a P,
    live: AtomicU64,
    peak: AtomicU64,
}

impl<P: Pool> Pool for Peak<'_, P> {
    type Block = (P::Block, u64);

    fn allocate(&self, bytes: u64, stream: usize) -> Self::Block {
        let block = self.pool.allocate(bytes, stream);
        let live = self.live.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(live, Relaxed);
        (block, bytes)
    }

    fn free(&self, (block, bytes): Self::Block, stream: usize) {
        self.live.fetch_sub(bytes, Relaxed);
        self.pool.free(block, stream);
    }
}

/// What 16 threads make a pool reserve that starts empty, over the most that was live. The worse of
/// two pools: one whose live bytes are counted, and one that runs at full speed.
pub(crate) fn footprint(bench: &Bench) {
    let steps = bench.count(50_000, 50);
    let counted = bench.pool_of(0);
    let subject = bench.erased(counted.clone());
    let peak = Peak { pool: &subject, live: AtomicU64::new(0), peak: AtomicU64::new(0) };
    churn(&peak, STREAMS, steps);
    let live = peak.peak.into_inner() as f64;
    let timed = bench.pool_of(0);
    let subject = bench.erased(timed.clone());
    let time = median3(|| churn(&subject, STREAMS, steps));
    nanoseconds(POOL, "churn 16 threads from an empty pool", time);
    let reserved = [counted, timed].map(|pool| pool.statistics().peak_reserved);
    let reserved = reserved[0].max(reserved[1]) as f64;
    number(POOL, "churn 16 threads peak live MiB", live / MIB as f64);
    number(POOL, "churn 16 threads peak reserved MiB", reserved / MIB as f64);
    number(POOL, "churn 16 threads peak reserved over peak live", reserved / live);
}
