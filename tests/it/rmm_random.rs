//! RMM's own random allocations, drawn anew in Rust: the numbers here were printed by a program of
//! libstdc++'s generators, as RMM's benchmark is, and by a second one in Python.

use crate::{generator, workloads};
use generator::{Engine, rmm_trace};
use std::collections::HashMap;
use workloads::{Op, Trace};

/// What RMM's program does: bytes for an allocation; for a free, which allocation, below -0.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Does {
    Allocate(u64),
    Free(u32),
}
use Does::{Allocate, Free};

fn does(op: &Op) -> Does {
    if op.size > 0 { Allocate(op.size) } else { Free(op.slot) }
}

/// The hash of all operations, and the most blocks that are live at once.
fn summary(trace: &Trace) -> (u64, usize) {
    let mut hash = 1_469_598_103_934_665_603_u64;
    let (mut live, mut peak) = (0_usize, 0);
    for op in trace.ops() {
        let word = match does(op) {
            Allocate(size) => {
                live += 1;
                size
            }
            Free(slot) => {
                live -= 1;
                !u64::from(slot)
            }
        };
        peak = peak.max(live);
        hash = (hash ^ word).wrapping_mul(1_099_511_628_211);
    }
    (hash, peak)
}

#[test]
fn the_engine_is_that_of_libstdcxx() {
    let mut engine = Engine::new();
    let sizes: Vec<u64> = (0..100).map(|_| engine.uniform(1, 5 << 20)).collect();
    assert_eq!(sizes[..5], [42, 690_649, 3_967_360, 2_408_176, 2_797_333]);
    assert_eq!(sizes.iter().sum::<u64>(), 269_776_056);
}

#[test]
fn traces_are_those_of_rmm() {
    // Allocations, maximum size in MiB, peak of live bytes, peak of live blocks, hash.
    let vectors = [
        (1000, 1, 323_760_572, 638, 0x0144_ce58_f7a1_66f4),
        (1000, 4, 1_332_080_261, 642, 0x5d9d_bf0c_3a15_9c37),
        (1000, 64, 16_777_102_043, 528, 0xd88b_bf89_fc35_9c26),
        (1000, 256, 16_776_470_325, 150, 0xd2a1_4504_03b6_ffd3),
        (1000, 1024, 16_775_773_201, 44, 0x8f5c_bf95_9f7a_9a8b),
        (1000, 4096, 16_775_344_215, 15, 0xef3e_027b_ca82_2df6),
        (10_000, 1, 3_254_545_443, 6204, 0xe973_d631_4228_2685),
        (10_000, 4096, 16_775_887_653, 16, 0x3ac5_5596_8be9_5833),
        (100_000, 1, 16_777_215_997, 36_071, 0x6195_2226_d25b_37eb),
        (100_000, 4096, 16_777_201_659, 19, 0x3564_d021_d949_b746),
    ];
    for (n, mib, bytes, blocks, hash) in vectors {
        let trace = rmm_trace(n, mib).unwrap();
        let allocations = trace.ops().iter().filter(|op| op.size > 0).count();
        assert_eq!((trace.ops().len(), allocations), (2 * n as usize, n as usize));
        assert_eq!(trace.peak(), bytes, "n={n} max={mib}MiB");
        assert_eq!(summary(&trace), (hash, blocks), "n={n} max={mib}MiB");
    }
}

#[test]
fn traces_start_as_those_of_rmm() {
    let starts = HashMap::from([
        (1, [9, 558_920, 229_708, 712_189, 980_576].as_slice()),
        (4, &[33, 2_238_961, 920_179, 2_852_938, 3_928_059]),
        (64, &[543, 36_906_740, 15_168_106, 47_027_448, 64_749_604]),
        (256, &[2401, 163_444_133, 67_173_039, 208_264_412, 117_652_063]),
        (1024, &[16_807, 470_211_272, 101_027_544, 823_564_440, 74_243_042]),
    ]);
    for (mib, sizes) in starts {
        let trace = rmm_trace(1000, mib).unwrap();
        let start: Vec<Does> = trace.ops()[..6].iter().map(does).collect();
        let mut expected: Vec<Does> = sizes.iter().map(|size| Allocate(*size)).collect();
        expected.insert(1, Free(0));
        assert_eq!(start, expected, "max={mib}MiB");
    }
    let trace = rmm_trace(1000, 4096).unwrap();
    let start: Vec<Does> = trace.ops()[..6].iter().map(does).collect();
    let sizes =
        [282_475_249, 2_617_694_918, 3_931_968_138, 1_137_522_503, 823_378_840, 3_622_316_815];
    assert_eq!(start, sizes.map(Allocate));
}

#[test]
fn a_trace_that_frees_wrongly_is_none() {
    let ops = |steps: &[(u32, u64)]| steps.iter().map(|&(slot, size)| Op { slot, size }).collect();
    assert!(Trace::checked(ops(&[(0, 8), (1, 8), (0, 0), (1, 0)])).is_some());
    for wrong in [
        &[(0, 0)][..],
        &[(0, 8)],
        &[(0, 8), (0, 8)],
        &[(0, 8), (0, 0), (0, 0)],
        &[(0, 8), (0, 0), (0, 8)],
        &[(1, 8), (1, 0)],
    ] {
        assert!(Trace::checked(ops(wrong)).is_none(), "{wrong:?}");
    }
}
