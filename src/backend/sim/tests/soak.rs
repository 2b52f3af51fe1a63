//! Random programs: right ones stay clean and compute right, wrong ones are found, many threads
//! do no harm.

use super::*;
use crate::backend::sim::Schedule;
use crate::backend::sim::random::Random;

/// Random operations on four blocks and three streams, each ordered after what it collides with.
fn right_program(rig: &Rig, seed: u64) {
    let mut random = Random::new(seed);
    let streams = [rig.stream(), rig.stream(), rig.stream()];
    let blocks: Vec<_> = (0..4).map(|_| rig.alloc(64)).collect();
    let mut model = vec![[0_u32; 16]; 4];
    for &block in &blocks {
        rig.upload(block, &[0; 64], streams[0]);
    }
    // For each block the stream of its last access; accesses take blocks over one at a time.
    let mut last = [0_usize; 4];
    for _ in 0..60 {
        let on = random.below(3);
        let (from, to) = (random.below(4), random.below(4));
        for index in [from, to] {
            if last[index] != on {
                rig.order(streams[last[index]], streams[on]);
                last[index] = on;
            }
        }
        if from == to {
            rig.launch(&INCREMENT, &[buffer(blocks[to], 64, Access::ReadWrite)], streams[on]);
            model[to].iter_mut().for_each(|value| *value += 1);
        } else {
            rig.copy(blocks[to], blocks[from], 64, streams[on]);
            model[to] = model[from];
        }
    }
    for (index, &block) in blocks.iter().enumerate() {
        let bytes = rig.download(block, 64, streams[last[index]]);
        assert_eq!(bytes, bytemuck::cast_slice::<u32, u8>(&model[index]), "seed {seed}");
    }
    rig.clean();
}

#[test]
fn right_programs_are_clean_and_right() {
    for seed in 0..100 {
        right_program(&Rig::new(SimConfig::default().seed(seed)), seed);
    }
    for seed in 0..10 {
        let config = SimConfig::default().seed(seed).schedule(Schedule::Background);
        right_program(&Rig::new(config), seed);
    }
}

/// An operation of a random program as the naive model knows it.
struct Known {
    /// The operations that are ordered before it, itself included, one bit each.
    before: u128,
    reads: usize,
    writes: usize,
}

/// A random program with random waits, until its first race. Returns which operation raced
/// according to the device, and according to reachability in the graph of all waits.
fn random_program(rig: &Rig, seed: u64) -> (Option<usize>, Option<usize>) {
    let mut random = Random::new(seed);
    let streams = [rig.stream(), rig.stream(), rig.stream()];
    let blocks: Vec<_> = (0..6).map(|_| rig.alloc(64)).collect();
    for &block in &blocks {
        rig.upload(block, &[0; 64], streams[0]);
    }
    rig.sync(streams[0]).unwrap();
    let mut known: Vec<Known> = Vec::new();
    // What is ordered before the next operation of each stream; what the host has seen.
    let (mut next, mut host) = ([0_u128; 3], 0_u128);
    for index in 0..100 {
        // More waits with some seeds, so that races come early, late, or not at all.
        for _ in 0..random.below(2 + seed as usize % 10) {
            let (from, to) = (random.below(3), random.below(3));
            rig.order(streams[from], streams[to]);
            next[to] |= next[from];
        }
        if seed.is_multiple_of(7) {
            rig.driver.context_synchronize().unwrap();
            host |= next[0] | next[1] | next[2];
        } else if random.below(10) == 0 {
            let stream = random.below(3);
            rig.sync(streams[stream]).unwrap();
            host |= next[stream];
        }
        let (on, reads, writes) = (random.below(3), random.below(6), random.below(6));
        if reads == writes {
            continue;
        }
        let before = next[on] | host;
        let races = known.iter().enumerate().any(|(number, other)| {
            let collides = other.writes == writes || other.writes == reads || other.reads == writes;
            collides && before & (1 << number) == 0
        });
        next[on] = before | 1 << known.len();
        known.push(Known { before: next[on], reads, writes });
        rig.copy(blocks[writes], blocks[reads], 64, streams[on]);
        let reports = rig.sim.reports();
        assert!(reports.iter().all(|report| report.kind() == Violation::UnorderedAccess));
        if races || !reports.is_empty() {
            return ((!reports.is_empty()).then_some(index), races.then_some(index));
        }
    }
    assert!(known.iter().all(|operation| operation.before != 0));
    (None, None)
}

#[test]
fn clocks_agree_with_reachability() {
    let (mut clean, mut late) = (0, 0);
    for seed in 0..300 {
        let run = |schedule| random_program(&Rig::new(SimConfig::default().seed(schedule)), seed);
        let (found, real) = run(seed);
        assert_eq!(found, real, "seed {seed}");
        assert_eq!(run(seed + 1), (found, real), "whatever the schedule");
        clean += usize::from(real.is_none());
        late += usize::from(real.is_some_and(|index| index > 5));
    }
    println!("300 random programs: {clean} clean, {late} racing after a while");
    assert!(late > 50 && clean > 30, "{late} and {clean}");
}

#[test]
fn many_threads_do_no_harm() {
    for schedule in [Schedule::OnDemand, Schedule::Background] {
        let rig = Rig::new(SimConfig::default().schedule(schedule));
        let pool = rig.pool();
        std::thread::scope(|scope| {
            for number in 0..4_u8 {
                let rig = &rig;
                scope.spawn(move || {
                    let stream = rig.stream();
                    let pinned = rig.pinned(256);
                    for _ in 0..100 {
                        let block = rig.driver.mem_alloc_async(pool, 256, stream).unwrap();
                        rig.fill(block, 256, number, stream);
                        // SAFETY: the memory lives, and the stream is synchronised before it is
                        // touched or freed.
                        unsafe {
                            let target = pinned.as_ptr();
                            rig.driver.copy_to_host(target, block, 256, stream).unwrap();
                            rig.driver.mem_free_async(block, stream).unwrap();
                            rig.sync(stream).unwrap();
                            assert_eq!(pinned.read(), number);
                        }
                    }
                    // SAFETY: complete.
                    unsafe { rig.driver.host_free(pinned).unwrap() };
                    rig.driver.stream_destroy(stream, None);
                });
            }
        });
        rig.clean();
        assert_eq!((rig.sim.live_blocks(), rig.sim.host_blocks()), (0, 0));
    }
}

#[test]
fn threads_that_race_are_told_and_survive() {
    for schedule in [Schedule::OnDemand, Schedule::Background] {
        let rig = Rig::new(SimConfig::default().schedule(schedule));
        let (block, pinned) = (rig.alloc(4096), rig.pinned(4096));
        let mapped = pinned.as_ptr() as u64;
        // No thread waits for this one, so that there is a race even if the threads run in turn.
        rig.fill(block, 4096, 9, rig.stream());
        std::thread::scope(|scope| {
            for number in 0..4_u8 {
                let rig = &rig;
                scope.spawn(move || {
                    let stream = rig.stream();
                    for _ in 0..100 {
                        rig.fill(block, 4096, number, stream);
                        rig.copy(mapped, block, 4096, stream);
                        let _ = rig.sync(stream);
                    }
                });
            }
        });
        let _ = rig.driver.context_synchronize();
        let reports = rig.sim.take_reports();
        assert!(!reports.is_empty());
        assert!(reports.iter().all(|report| report.kind() == Violation::UnorderedAccess));
        // SAFETY: complete.
        unsafe { rig.driver.host_free(pinned).unwrap() };
        rig.clean();
    }
}

#[test]
fn a_hundred_thousand_operations_are_fine() {
    let rig = rig();
    let (stream, other, block) = (rig.stream(), rig.stream(), rig.alloc(1 << 30));
    for round in 0..50_000_u64 {
        rig.fill(block + (round * 256) % (1 << 26), 256, 1, stream);
        if round % 1000 == 0 {
            rig.order(stream, other);
        }
        if round % 10_000 == 0 {
            rig.sync(stream).unwrap();
        }
        let pooled = rig.alloc(64);
        // SAFETY: unused.
        unsafe { rig.driver.mem_free(pooled).unwrap() };
    }
    rig.clean();
}
