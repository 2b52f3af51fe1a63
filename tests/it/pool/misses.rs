//! What a miss does: each step alone, and which comes first.

use super::{MIB, allocate, builder, free, support};
use aquifer::mr::MissStep::{Complete, Gather, Grow, GrowToMaximum, Ordered, Trim, Wait};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, DeviceBlock, DeviceVec, ErrorKind, PoolResource, Stream,
    mr::{MissPolicy, MissStep},
};
use std::cell::RefCell;
use std::sync::Arc;

/// A pool whose 2 MiB one stream has freed, with a long way to go before it is done, and another
/// stream, which asks. It grows to 3 MiB softly, to 4 MiB at all.
struct Fixture {
    pool: PoolResource<CudaResource>,
    source: Stream,
    asking: Stream,
    held: RefCell<Vec<DeviceBlock>>,
    _work: DeviceVec<u32>,
}

fn fixture(policy: MissPolicy) -> Fixture {
    on(SimConfig::default(), policy)
}

fn steps<const N: usize>(steps: [MissStep; N]) -> Fixture {
    fixture(MissPolicy::new(steps))
}

fn on(config: SimConfig, policy: MissPolicy) -> Fixture {
    let (device, _) = support::simulated(config);
    let (source, asking) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let options = builder(&device).initial_size(2 * MIB).growth_step(MIB).soft_limit(3 * MIB);
    let pool = options.maximum_size(4 * MIB).miss_policy(policy).build().unwrap();
    let held = [(); 2].map(|()| allocate(&pool, &source, MIB).unwrap());
    let plain = Arc::new(CudaResource::new(&device));
    let mut work = DeviceVec::<u32>::zeroed_in(&source, 8, plain).unwrap();
    (0..1000).for_each(|value| work.fill(value).unwrap());
    held.into_iter().for_each(|block| free(&pool, &source, block));
    Fixture { pool, source, asking, held: RefCell::default(), _work: work }
}

impl Fixture {
    fn counts(&self) -> [usize; 4] {
        let counts = self.pool.statistics();
        [counts.steals, counts.waits, counts.growths, counts.returns]
    }

    /// Asks for so much and keeps it: how many steals, waits, growths and returns that took. `None`
    /// if there was nothing.
    fn ask_for(&self, bytes: usize) -> Option<[usize; 4]> {
        let before = self.counts();
        match allocate(&self.pool, &self.asking, bytes) {
            Ok(block) => {
                self.held.borrow_mut().push(block);
                let after = self.counts();
                Some(std::array::from_fn(|at| after[at] - before[at]))
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
                // A gathering that was in vain may have waited.
                let after = self.counts();
                for at in [0, 2, 3] {
                    assert_eq!(after[at], before[at], "a failure takes nothing");
                }
                None
            }
        }
    }

    /// What asking for 1 MiB again and again takes.
    fn asks<const N: usize>(&self) -> [Option<[usize; 4]>; N] {
        [(); N].map(|()| self.ask_for(MIB))
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for block in self.held.take() {
            free(&self.pool, &self.asking, block);
        }
    }
}

const OWN: Option<[usize; 4]> = Some([0, 0, 0, 0]);
const STEAL: Option<[usize; 4]> = Some([1, 0, 0, 0]);
const STEAL_AND_WAIT: Option<[usize; 4]> = Some([1, 1, 0, 0]);
const WAIT: Option<[usize; 4]> = Some([0, 1, 0, 0]);
const GROWTH: Option<[usize; 4]> = Some([0, 0, 1, 0]);

#[test]
fn complete_takes_what_the_device_has_passed_and_never_waits() {
    let fixture = steps([Complete]);
    assert_eq!(fixture.asks(), [None, None], "the source is at work");
    fixture.source.synchronize().unwrap();
    assert_eq!(fixture.asks(), [STEAL, STEAL, None]);
}

#[test]
fn ordered_takes_only_what_the_stream_is_ordered_after() {
    let fixture = steps([Ordered]);
    assert_eq!(fixture.asks(), [None]);
    fixture.source.synchronize().unwrap();
    assert_eq!(fixture.asks(), [None], "nobody has asked the device");
    assert_eq!(fixture.pool.statistics().records, 0);
    // One wait covers all that was freed before it, which is the stream's own then.
    let fixture = steps([Ordered, Wait]);
    assert_eq!(fixture.asks(), [STEAL_AND_WAIT, OWN, None]);
}

/// Memory that was complete when its stream took it over is not behind what that stream was given since.
#[test]
fn what_a_stream_takes_over_complete_needs_no_wait_of_another() {
    let (device, _) = support::simulated(SimConfig::default());
    let [home, user, asking] = [(); 3].map(|()| device.new_stream().unwrap());
    let options = builder(&device).initial_size(2 * MIB).maximum_size(2 * MIB);
    let pool = options.miss_policy(MissPolicy::new([Complete])).build().unwrap();
    let [kept, freed] = [(); 2].map(|()| allocate(&pool, &home, MIB).unwrap());
    free(&pool, &user, freed);
    // Half of what the other stream freed, once the device has passed that. The rest is its heap's.
    let half = (0..100).find_map(|_| allocate(&pool, &home, MIB / 2).ok()).unwrap();
    let plain = Arc::new(CudaResource::new(&device));
    let mut work = DeviceVec::<u32>::zeroed_in(&home, 8, plain).unwrap();
    (0..1000).for_each(|value| work.fill(value).unwrap());
    let rest = allocate(&pool, &asking, MIB / 2).unwrap();
    for (stream, block) in [(&home, kept), (&home, half), (&asking, rest)] {
        free(&pool, stream, block);
    }
}

/// As a first small allocation beside a long kernel of another stream and a trim, which empties the caches:
/// what was complete when the busy stream's heap merged it serves without growth and without a wait.
#[test]
fn a_small_allocation_beside_a_busy_stream_takes_what_was_complete() {
    let (device, _) = support::simulated(SimConfig::default());
    let [busy, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = builder(&device).build().unwrap();
    for stream in [&busy, &other] {
        let block = allocate(&pool, stream, 16 * MIB).unwrap();
        free(&pool, stream, block);
        device.synchronize().unwrap();
    }
    let large = allocate(&pool, &busy, 64 * MIB).unwrap();
    let plain = Arc::new(CudaResource::new(&device));
    let mut work = DeviceVec::<u32>::zeroed_in(&busy, 8, plain).unwrap();
    (0..1000).for_each(|value| work.fill(value).unwrap());
    free(&pool, &busy, large);
    let before = pool.statistics();
    let small = allocate(&pool, &other, 768).unwrap();
    let after = pool.statistics();
    let took = |count: fn(&aquifer::mr::PoolStatistics) -> usize| count(&after) - count(&before);
    assert_eq!((took(|counts| counts.growths), took(|counts| counts.waits)), (0, 0));
    free(&pool, &other, small);
}

#[test]
fn wait_takes_one_block_of_another_stream() {
    let fixture = steps([Wait]);
    assert_eq!(fixture.asks(), [STEAL_AND_WAIT, OWN, None]);
    assert_eq!(fixture.pool.statistics().records, 1);
}

#[test]
fn a_wait_comes_when_nothing_before_it_serves() {
    let first = steps([Ordered, Grow, GrowToMaximum, Wait]);
    assert_eq!(first.asks(), [GROWTH, GROWTH, STEAL_AND_WAIT, OWN]);
    // Of two streams one is done: no wait for the other, though its memory was seen first.
    let (device, _) = support::simulated(SimConfig::default());
    let [busy, done, asking] = [(); 3].map(|()| device.new_stream().unwrap());
    let pool = builder(&device).initial_size(2 * MIB).maximum_size(2 * MIB).build().unwrap();
    let blocks = [&busy, &done].map(|stream| allocate(&pool, stream, MIB).unwrap());
    let plain = Arc::new(CudaResource::new(&device));
    let mut work = DeviceVec::<u32>::zeroed_in(&busy, 8, plain).unwrap();
    (0..1000).for_each(|value| work.fill(value).unwrap());
    for (stream, block) in [&busy, &done].into_iter().zip(blocks) {
        free(&pool, stream, block);
    }
    done.synchronize().unwrap();
    let before = pool.statistics();
    let block = allocate(&pool, &asking, MIB).unwrap();
    let after = pool.statistics();
    assert_eq!((after.steals - before.steals, after.waits - before.waits), (1, 0), "{after:?}");
    free(&pool, &asking, block);
}

#[test]
fn grow_stops_at_the_soft_limit_and_the_other_at_the_maximum() {
    assert_eq!(steps([Grow]).asks(), [GROWTH, None]);
    assert_eq!(steps([GrowToMaximum]).asks(), [GROWTH, GROWTH, None]);
    assert_eq!(steps([Grow, GrowToMaximum]).asks(), [GROWTH, GROWTH, None]);
}

#[test]
fn gather_makes_all_memory_the_streams_own() {
    let fixture = steps([Gather]);
    assert_eq!(fixture.asks(), [WAIT, OWN, None]);
    let fixture = steps([Gather]);
    assert_eq!(fixture.ask_for(2 * MIB), WAIT);
}

#[test]
fn trim_gives_back_only_where_gathering_does_not_do() {
    assert_eq!(steps([Trim]).asks(), [WAIT, OWN]);
    let fixture = steps([Trim]);
    assert_eq!(fixture.ask_for(4 * MIB), Some([0, 0, 1, 1]), "one block for another, of all");
    assert_eq!(fixture.ask_for(256), None);
    let fixture = steps([Gather, GrowToMaximum]);
    assert_eq!(fixture.ask_for(4 * MIB), None, "without it there is no larger block");
    assert_eq!(fixture.ask_for(2 * MIB), WAIT, "nobody waited for what cannot serve");
}

#[test]
fn rungs_are_tried_in_their_order() {
    assert_eq!(steps([Grow, Wait]).asks(), [GROWTH, STEAL_AND_WAIT, OWN, None]);
    assert_eq!(steps([Wait, Grow]).asks(), [STEAL_AND_WAIT, OWN, GROWTH, None]);
    assert_eq!(steps([Gather, Wait, Grow]).asks(), [WAIT, OWN, GROWTH, None]);
    let patient = steps([Complete, Grow, GrowToMaximum]);
    assert_eq!(patient.asks(), [GROWTH, GROWTH, None], "streams are never made to wait");
    patient.source.synchronize().unwrap();
    assert_eq!(patient.asks(), [STEAL, STEAL, None]);
}

#[test]
fn the_default_grows_before_it_waits_and_rmms_order_waits_first() {
    let stage_of = |policy: fn() -> MissPolicy, done: bool| {
        let fixture = fixture(policy());
        if done {
            fixture.source.synchronize().unwrap();
        }
        fixture.asks::<5>()
    };
    let default = MissPolicy::default;
    assert_eq!(stage_of(default, false), [GROWTH, STEAL_AND_WAIT, OWN, GROWTH, None]);
    assert_eq!(
        stage_of(default, true),
        [STEAL, STEAL, GROWTH, GROWTH, None],
        "complete comes first"
    );
    let rmm = MissPolicy::rmm;
    assert_eq!(stage_of(rmm, false), [STEAL_AND_WAIT, OWN, GROWTH, GROWTH, None]);
    assert_eq!(stage_of(rmm, true), [STEAL_AND_WAIT, OWN, GROWTH, GROWTH, None]);
}

#[test]
fn what_a_stream_has_freed_is_its_own_wherever_it_lies() {
    for policy in [MissPolicy::default(), MissPolicy::rmm(), MissPolicy::new([Trim, Gather, Grow])]
    {
        let fixture = fixture(policy.clone());
        while fixture.ask_for(MIB).is_some() {}
        let count = fixture.held.borrow().len();
        assert!(count >= 3, "{count}");
        for _ in 0..2 * count {
            let block = fixture.held.borrow_mut().remove(0);
            free(&fixture.pool, &fixture.asking, block);
            assert_eq!(fixture.ask_for(MIB), OWN, "{policy:?}");
        }
    }
}

#[test]
fn an_upstream_that_has_no_more_is_passed_over() {
    let full = SimConfig::default().capacity(2 * MIB + 256);
    let fixture = on(full.clone(), MissPolicy::new([Grow, Wait]));
    assert_eq!(fixture.asks(), [STEAL_AND_WAIT, OWN, None]);
    let fixture = on(full, MissPolicy::default());
    assert_eq!(fixture.asks(), [STEAL_AND_WAIT, OWN, None]);
    let error = allocate(&fixture.pool, &fixture.asking, MIB).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("whose maximum is 4194304 bytes") && text.contains("its upstream: "),
        "{text}"
    );
}
