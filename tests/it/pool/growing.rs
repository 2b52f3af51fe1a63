//! Buffers that are allocated again a little larger each time, the old one freed then: what a pool that has no setting
//! reserves for them, and how often it asks its upstream.

use super::builder;
use crate::support;
use aquifer::{CudaResource, DeviceVec, PoolResource, Stream, mr::PoolStatistics};
use std::sync::Arc;

const KIB: usize = 1 << 10;
const STEP: usize = 256 * KIB;
const STEPS: usize = 512;

/// The sizes of a buffer, one after the other.
type Sizes = Vec<usize>;

/// A program, by its name.
type Program = (&'static str, fn() -> Sizes);

fn by_little() -> Sizes {
    (1..=STEPS).map(|step| step * STEP).collect()
}

fn by_a_part() -> Sizes {
    let next = |size: &usize| Some(size + size / 25);
    std::iter::successors(Some(4 * STEP), next).take_while(|size| *size <= STEPS * STEP).collect()
}

fn four_in_turn() -> Sizes {
    (1..=STEPS / 2).map(|step| step * STEP + step % 4 * 10 * STEP).collect()
}

fn in_reverse() -> Sizes {
    by_little().into_iter().rev().collect()
}

fn shuffled() -> Sizes {
    let mut sizes = by_little();
    fastrand::Rng::with_seed(1).shuffle(&mut sizes);
    sizes
}

type Pool = PoolResource<CudaResource>;

/// Allocates `buffers` of each size, each before its former one is freed. Returns the most that was live.
fn grow(pool: &Pool, stream: &Stream, buffers: usize, sizes: &Sizes) -> usize {
    let memory = Arc::new(pool.clone());
    let mut live: Vec<Option<DeviceVec<u8>>> = Vec::new();
    live.resize_with(buffers, || None);
    let (mut bytes, mut peak) = (0, 0);
    for size in sizes {
        for buffer in &mut live {
            // SAFETY: nothing reads it.
            let new = unsafe { DeviceVec::uninit_in(stream, *size, memory.clone()) }.unwrap();
            bytes += size;
            peak = peak.max(bytes);
            bytes -= buffer.replace(new).map_or(0, |old| old.len());
        }
    }
    peak
}

fn reserved_for(buffers: usize, sizes: &Sizes, maximum: Option<usize>) -> (f64, PoolStatistics) {
    let device = support::device();
    let builder = builder(&device);
    let pool = match maximum {
        Some(bytes) => builder.maximum_size(bytes).build().unwrap(),
        None => builder.build().unwrap(),
    };
    let stream = device.new_stream().unwrap();
    let peak = grow(&pool, &stream, buffers, sizes);
    let now = pool.statistics();
    let over = now.peak_reserved as f64 / peak as f64;
    println!(
        "{buffers} buffers: {over:.2} times {} MiB, {} growths, {} blocks returned, {} allocations",
        peak >> 20,
        now.growths,
        now.returns,
        buffers * sizes.len()
    );
    (over, now)
}

#[test]
fn a_pool_reserves_at_most_twice_what_growing_buffers_take() {
    let programs: [Program; 5] = [
        ("by 256 KiB", by_little),
        ("by 4%", by_a_part),
        ("four in turn", four_in_turn),
        ("in reverse", in_reverse),
        ("shuffled", shuffled),
    ];
    for (name, sizes) in programs {
        for buffers in [1, 8] {
            println!("{name}");
            let (over, now) = reserved_for(buffers, &sizes(), None);
            assert!(
                over <= 2.0,
                "{name}, {buffers}: {over:.2} times the most that was live, {now:?}"
            );
        }
    }
}

#[test]
fn a_pool_with_a_maximum_asks_upstream_once_in_ten_allocations_of_growing_buffers() {
    for (buffers, maximum) in [(1, 512 << 20), (1, 320 << 20), (8, 1536 << 20)] {
        let (_, now) = reserved_for(buffers, &by_little(), Some(maximum));
        let allocations = buffers * STEPS;
        assert!(now.growths * 10 <= allocations, "{buffers} within {maximum}: {now:?}");
    }
}
