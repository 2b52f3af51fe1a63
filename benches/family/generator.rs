//! The random numbers of RMM's RANDOM_ALLOCATIONS, bit for bit: libstdc++'s `default_random_engine`
//! and `uniform_int_distribution`, and the operations that RMM's program makes of them.
//!
//! `benches/peers/rmm_family_peer.cpp` draws the same from libstdc++ itself; `tests/it/rmm_random.rs`
//! holds hashes of both.

use crate::workloads::{Op, Trace};

/// `minstd_rand0` with the seed 1, which C++ takes where none is given.
pub(crate) struct Engine(u64);

impl Engine {
    pub(crate) fn new() -> Self {
        Self(1)
    }

    /// From 0 to [`SPAN`](Self::SPAN), both included.
    fn next(&mut self) -> u64 {
        self.0 = self.0 * 16_807 % 2_147_483_647;
        self.0 - 1
    }

    /// What the engine's greatest number is above its least.
    const SPAN: u64 = 2_147_483_645;

    /// From `least` to `most`, both included.
    pub(crate) fn uniform(&mut self, least: u64, most: u64) -> u64 {
        least + self.up_to(most - least)
    }

    fn up_to(&mut self, range: u64) -> u64 {
        if range < Self::SPAN {
            let buckets = range + 1;
            let width = Self::SPAN / buckets;
            loop {
                let bucket = self.next() / width;
                if bucket < buckets {
                    return bucket;
                }
            }
        }
        if range == Self::SPAN {
            return self.next();
        }
        let base = Self::SPAN + 1;
        loop {
            // C++ lets both wrap, and draws again.
            let high = base.wrapping_mul(self.up_to(range / base));
            let drawn = high.wrapping_add(self.next());
            if high <= drawn && drawn <= range {
                return drawn;
            }
        }
    }
}

/// `n` allocations of 1 byte to `mib` MiB, as RMM's program makes them where none fails: 73 in 100
/// steps allocate while fewer than 16000 MiB are live, the others free a random block. None if the
/// program would free what it never allocated, which it does not.
pub(crate) fn rmm_trace(n: u32, mib: u64) -> Option<Trace> {
    const MAX_USAGE: u64 = 16_000 << 20;
    let mut engine = Engine::new();
    let (mut ops, mut live) = (Vec::new(), Vec::<(u32, u64)>::new());
    let (mut count, mut used) = (0, 0);
    for _ in 0..2 * n {
        let size = engine.uniform(1, mib << 20);
        // Both are drawn only where RMM draws them.
        let allocates =
            live.is_empty() || (engine.uniform(0, 99) < 73 && count < n && used + size < MAX_USAGE);
        if allocates {
            ops.push(Op { slot: count, size });
            live.push((count, size));
            count += 1;
            used += size;
        } else {
            let drawn = engine.uniform(0, u64::from(n) - 1) as usize;
            let (slot, size) = live.swap_remove(drawn % live.len());
            ops.push(Op { slot, size: 0 });
            used -= size;
        }
    }
    ops.extend(live.iter().map(|&(slot, _)| Op { slot, size: 0 }));
    Trace::checked(ops)
}
