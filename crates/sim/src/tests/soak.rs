//! Random programs. Right ones stay clean and compute right, wrong ones are found, and many threads do
//! no harm.

use super::*;
use crate::Schedule;
use crate::state::Random;

/// Random operations on four blocks and three streams, each ordered after the operations it conflicts with.
fn right_program(fixture: &Fixture, seed: u64) {
    let mut random = Random::new(seed);
    let streams = [fixture.stream(), fixture.stream(), fixture.stream()];
    let blocks: Vec<_> = (0..4).map(|_| fixture.alloc(64)).collect();
    let mut model = vec![[0_u32; 16]; 4];
    for &block in &blocks {
        fixture.upload(block, &[0; 64], streams[0]);
    }
    // For each block the stream of its last access; accesses take blocks over one at a time.
    let mut last = [0_usize; 4];
    for _ in 0..60 {
        let on = random.below(3);
        let (from, to) = (random.below(4), random.below(4));
        for index in [from, to] {
            if last[index] != on {
                fixture.order(streams[last[index]], streams[on]);
                last[index] = on;
            }
        }
        if from == to {
            fixture.launch(&INCREMENT, &[buffer(blocks[to], 64, Access::ReadWrite)], streams[on]);
            model[to].iter_mut().for_each(|value| *value += 1);
        } else {
            fixture.copy(blocks[to], blocks[from], 64, streams[on]);
            model[to] = model[from];
        }
    }
    for (index, &block) in blocks.iter().enumerate() {
        let bytes = fixture.download(block, 64, streams[last[index]]);
        assert_eq!(bytes, bytemuck::cast_slice::<u32, u8>(&model[index]), "seed {seed}");
    }
    fixture.clean();
}

#[test]
fn right_programs_are_clean_and_right() {
    for seed in 0..100 {
        right_program(&Fixture::new(SimConfig::default().seed(seed)), seed);
    }
    for seed in 0..10 {
        let config = SimConfig::default().seed(seed).schedule(Schedule::Background);
        right_program(&Fixture::new(config), seed);
    }
}

/// An operation of a random program in the naive model.
struct ModelOp {
    /// The operations that are ordered before it, itself included, one bit each.
    before: u128,
    reads: usize,
    writes: usize,
}

/// A random program with random waits, until its first race. Returns which operation raced
/// according to the device, and according to reachability in the graph of all waits.
fn random_program(fixture: &Fixture, seed: u64) -> (Option<usize>, Option<usize>) {
    let mut random = Random::new(seed);
    let streams = [fixture.stream(), fixture.stream(), fixture.stream()];
    let blocks: Vec<_> = (0..6).map(|_| fixture.alloc(64)).collect();
    for &block in &blocks {
        fixture.upload(block, &[0; 64], streams[0]);
    }
    fixture.sync(streams[0]).unwrap();
    let mut known: Vec<ModelOp> = Vec::new();
    // The operations ordered before the next one of each stream, and those that the host has seen.
    let (mut next, mut host) = ([0_u128; 3], 0_u128);
    for index in 0..100 {
        // More waits with some seeds, so that races come early, late, or not at all.
        for _ in 0..random.below(2 + seed as usize % 10) {
            let (from, to) = (random.below(3), random.below(3));
            fixture.order(streams[from], streams[to]);
            next[to] |= next[from];
        }
        if seed.is_multiple_of(7) {
            fixture.driver.context_synchronize().unwrap();
            host |= next[0] | next[1] | next[2];
        } else if random.below(10) == 0 {
            let stream = random.below(3);
            fixture.sync(streams[stream]).unwrap();
            host |= next[stream];
        }
        let (on, reads, writes) = (random.below(3), random.below(6), random.below(6));
        if reads == writes {
            continue;
        }
        let before = next[on] | host;
        let races = known.iter().enumerate().any(|(number, other)| {
            let conflicts =
                other.writes == writes || other.writes == reads || other.reads == writes;
            conflicts && before & (1 << number) == 0
        });
        next[on] = before | 1 << known.len();
        known.push(ModelOp { before: next[on], reads, writes });
        fixture.copy(blocks[writes], blocks[reads], 64, streams[on]);
        let reports = fixture.sim.reports();
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
        let run =
            |schedule| random_program(&Fixture::new(SimConfig::default().seed(schedule)), seed);
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
        let fixture = Fixture::new(SimConfig::default().schedule(schedule));
        let pool = fixture.pool();
        std::thread::scope(|scope| {
            for number in 0..4_u8 {
                let fixture = &fixture;
                scope.spawn(move || {
                    let stream = fixture.stream();
                    let pinned = fixture.pinned(256);
                    for _ in 0..100 {
                        let block = fixture.driver.mem_alloc_async(pool, 256, stream).unwrap();
                        fixture.fill(block, 256, number, stream);
                        // SAFETY: the memory lives, and the stream is synchronised before it is
                        // touched or freed.
                        unsafe {
                            let target = pinned.as_ptr();
                            fixture
                                .driver
                                .copy_to_host(RawCopy { target, source: block, bytes: 256 }, stream)
                                .unwrap();
                            fixture.driver.mem_free_async(block, stream).unwrap();
                            fixture.sync(stream).unwrap();
                            assert_eq!(pinned.read(), number);
                        }
                    }
                    // SAFETY: complete.
                    unsafe { fixture.driver.host_free(pinned).unwrap() };
                    fixture.driver.stream_destroy(stream, None);
                });
            }
        });
        fixture.clean();
        assert_eq!((fixture.sim.live_blocks(), fixture.sim.host_blocks()), (0, 0));
    }
}

#[test]
fn threads_that_race_are_reported_and_survive() {
    for schedule in [Schedule::OnDemand, Schedule::Background] {
        let fixture = Fixture::new(SimConfig::default().schedule(schedule));
        let (block, pinned) = (fixture.alloc(4096), fixture.pinned(4096));
        let mapped = pinned.as_ptr() as u64;
        // No thread waits for this fill, so there is a race even if the threads run one after another.
        fixture.fill(block, 4096, 9, fixture.stream());
        std::thread::scope(|scope| {
            for number in 0..4_u8 {
                let fixture = &fixture;
                scope.spawn(move || {
                    let stream = fixture.stream();
                    for _ in 0..100 {
                        fixture.fill(block, 4096, number, stream);
                        fixture.copy(mapped, block, 4096, stream);
                        let _ = fixture.sync(stream);
                    }
                });
            }
        });
        let _ = fixture.driver.context_synchronize();
        let reports = fixture.sim.take_reports();
        assert!(!reports.is_empty());
        assert!(reports.iter().all(|report| report.kind() == Violation::UnorderedAccess));
        // SAFETY: complete.
        unsafe { fixture.driver.host_free(pinned).unwrap() };
        fixture.clean();
    }
}

#[test]
fn a_hundred_thousand_operations_are_fine() {
    let fixture = fixture();
    let (stream, other, block) = (fixture.stream(), fixture.stream(), fixture.alloc(1 << 30));
    for round in 0..50_000_u64 {
        fixture.fill(block + (round * 256) % (1 << 26), 256, 1, stream);
        if round % 1000 == 0 {
            fixture.order(stream, other);
        }
        if round % 10_000 == 0 {
            fixture.sync(stream).unwrap();
        }
        let pooled = fixture.alloc(64);
        // SAFETY: unused.
        unsafe { fixture.driver.mem_free(pooled).unwrap() };
    }
    fixture.clean();
}
