//! The benches replay what the peers' C++ replays. The numbers here were printed by
//! `benches/peers/vectors.cpp`, which includes the C++ workloads.

use crate::workloads;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use workloads::{
    LIVE, Op, Pool, SEED, SplitMix64, churn, cross, hot, log_size, median3, random_trace, replay,
};

/// FNV-1a, by words of 64 bits.
struct Hash(u64);

impl Hash {
    fn new() -> Self {
        Self(1_469_598_103_934_665_603)
    }

    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(1_099_511_628_211);
    }
}

#[test]
fn the_generator_is_splitmix64() {
    let mut random = SplitMix64(0);
    let first = [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f];
    assert_eq!(first.map(|_| random.next()), first);
}

#[test]
fn random_traces_are_those_of_the_cpp() {
    // Allocations, maximum size in MiB, hash of slots and sizes, peak of live bytes.
    let vectors = [
        (1000, 1, 0x77f1_f0a7_b1f7_9a37, 343_278_748),
        (100_000, 1, 0x84aa_872f_b54c_a247, 16_777_215_975),
        (1000, 64, 0xa04f_252c_07a4_8b4f, 16_775_495_131),
        (100_000, 64, 0xc207_2a41_dfee_68f7, 16_777_215_699),
        (1000, 1024, 0x3fa2_40a6_e7d7_c5fb, 16_777_058_605),
        (100_000, 1024, 0x913f_eb3f_992e_3cec, 16_777_215_141),
        (1000, 4096, 0xb3b7_a7cb_a891_719e, 16_770_931_834),
        (100_000, 4096, 0xd46b_dfb6_c527_9337, 16_777_172_124),
    ];
    for (n, mib, expected, peak) in vectors {
        let trace = random_trace(n, mib << 20, SEED);
        let mut hash = Hash::new();
        for op in trace.ops() {
            hash.add(op.slot.into());
            hash.add(op.size);
        }
        assert_eq!(trace.ops().len(), 2 * n as usize);
        assert_eq!(hash.0, expected, "n={n} max={mib}MiB");
        assert_eq!(trace.peak(), peak, "n={n} max={mib}MiB");
    }
    let trace = random_trace(1000, 1 << 20, SEED);
    let first = [749_206, 454_916, 713_621, 56_071, 929_701, 1_013_679];
    for (slot, (op, size)) in trace.ops().iter().zip(first).enumerate() {
        assert_eq!(*op, Op { slot: slot as u32, size });
    }
}

/// What the workloads did, as they did it.
#[derive(Default)]
struct Recorder {
    next: AtomicUsize,
    live: Mutex<HashSet<usize>>,
    done: Mutex<Vec<(u64, usize, bool)>>,
}

impl Pool for Recorder {
    type Block = (usize, u64, usize);

    fn allocate(&self, bytes: u64, stream: usize) -> Self::Block {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.live.lock().unwrap().insert(number);
        self.done.lock().unwrap().push((bytes, stream, true));
        (number, bytes, stream)
    }

    fn free(&self, block: Self::Block, stream: usize) {
        assert!(self.live.lock().unwrap().remove(&block.0), "freed twice");
        assert_eq!(block.2, stream, "freed on the stream that it was allocated on");
        self.done.lock().unwrap().push((block.1, stream, false));
    }
}

impl Recorder {
    fn finish(self) -> Vec<(u64, usize, bool)> {
        assert!(self.live.into_inner().unwrap().is_empty(), "something was left");
        self.done.into_inner().unwrap()
    }
}

#[test]
fn replay_does_what_the_trace_says() {
    let trace = random_trace(1000, 1 << 20, SEED);
    let recorder = Recorder::default();
    replay(&recorder, &trace, 3);
    let done = recorder.finish();
    assert_eq!(done.len(), trace.ops().len());
    for (op, (bytes, stream, allocated)) in trace.ops().iter().zip(done) {
        assert_eq!(stream, 3);
        assert_eq!(allocated, op.size > 0);
        assert!(!allocated || bytes == op.size);
    }
}

#[test]
fn churn_takes_the_sizes_of_the_cpp() {
    // The first sizes of each thread, and the hash of what it draws in 50,000 steps.
    let vectors: [([u64; 4], u64); 16] = [
        ([307_309, 80_709, 1_820, 4_996], 0xa141_d3cb_0fe7_e01f),
        ([3_272_368, 16_776, 196_148, 80_062], 0xfe82_ca44_cac6_81bc),
        ([2_081_329, 39_234, 3_888_374, 19_117], 0x9a85_e074_b0eb_7403),
        ([1_898_701, 571_085, 45_425, 95_725], 0x388f_4fe7_9c4e_08aa),
        ([33_976, 1_370_390, 798_545, 153_308], 0xc6d0_fe07_bc6f_9dd2),
        ([12_224, 3_085, 1_715, 2_631_693], 0x2794_e129_bb45_a1d8),
        ([47_045, 1_927_248, 322_195, 101_428], 0x43df_1869_3cd6_f84e),
        ([3_741_890, 3_146_380, 3_910, 2_349], 0x3cae_9550_ab1c_131f),
        ([1_021, 3_849, 734, 190_390], 0xefb1_44ac_64a4_15b8),
        ([571_850, 1_604, 20_319, 8_477], 0x2663_82cb_e654_7b41),
        ([1_421_748, 4_265, 1_792_995, 28_091], 0x7f29_43aa_1ed3_8b58),
        ([720, 221_866, 227_246, 192_853], 0xd9cf_0587_5b8c_af3f),
        ([3_147, 16_183, 77_184, 1_567], 0xfe9b_5f46_b269_449a),
        ([726, 616_809, 335, 14_120], 0x0db8_eb06_14d3_d1e5),
        ([5_193, 768_180, 28_777, 473_054], 0x1496_6281_f29c_7268),
        ([1_420_219, 425_779, 765_413, 262], 0x95c3_a90a_e3fa_35b8),
    ];
    for (thread, (first, expected)) in vectors.into_iter().enumerate() {
        let mut random = SplitMix64(1234 + thread as u64);
        let mut hash = Hash::new();
        for entry in 0..LIVE {
            let size = log_size(&mut random);
            assert!(entry >= first.len() || size == first[entry], "thread {thread}");
            hash.add(size);
        }
        for _ in 0..50_000 {
            hash.add(random.below(LIVE as u64));
            hash.add(log_size(&mut random));
        }
        assert_eq!(hash.0, expected, "thread {thread}");
    }
}

#[test]
fn churn_frees_one_and_allocates_one() {
    const STEPS: usize = 1000;
    let recorder = Recorder::default();
    churn(&recorder, 2, STEPS as u32);
    let done = recorder.finish();
    for thread in 0..2 {
        let own: Vec<_> = done.iter().filter(|one| one.1 == thread).collect();
        assert_eq!(own.len(), 2 * LIVE + 2 * STEPS);
        assert!(own[..LIVE].iter().all(|one| one.2));
        let mut random = SplitMix64(1234 + thread as u64);
        let mut sizes: Vec<u64> = (0..LIVE).map(|_| log_size(&mut random)).collect();
        for step in own[LIVE..LIVE + 2 * STEPS].chunks(2) {
            let k = random.below(LIVE as u64) as usize;
            assert_eq!((step[0].0, step[0].2), (sizes[k], false));
            sizes[k] = log_size(&mut random);
            assert_eq!((step[1].0, step[1].2), (sizes[k], true));
        }
        assert!(own[LIVE + 2 * STEPS..].iter().all(|one| !one.2));
    }
}

#[test]
fn hot_stays_and_cross_changes_streams() {
    let recorder = Recorder::default();
    hot(&recorder, 256, 10);
    assert_eq!(recorder.finish(), [(256, 0, true), (256, 0, false)].repeat(11));
    let recorder = Recorder::default();
    cross(&recorder, 512, 6, 2);
    let turn = [(512, 0, true), (512, 0, false), (512, 1, true), (512, 1, false)];
    assert_eq!(recorder.finish(), turn.repeat(4));
}

#[test]
fn the_median_of_three_is_the_middle_one() {
    let mut times = [3.0, 1.0, 2.0].into_iter();
    assert_eq!(median3(|| times.next().unwrap()), 2.0);
}
