//! What a pool of many streams does for each of them, counted: looks at other streams, heaps and
//! magazines, entries of clocks.

mod caches;
mod waits;
#[cfg(debug_assertions)]
mod walks;

use super::block::{Block, SHARED};
use super::core::Pool;
use super::local;
use super::miss_step::MissStep;
use super::settings::{Settings, SizeLimits};
use super::upstream::{Failure, Upstream};
use crate::sync::Arc;
use crate::sync::trusted::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const BYTES: usize = 4096;

/// All steps, in the order of the usual policy.
const STEPS: [MissStep; 7] = {
    use MissStep::*;
    [Complete, Ordered, Grow, Wait, GrowToMaximum, Gather, Trim]
};

/// Memory without end, on a device that never gets anywhere unless a test says so.
#[derive(Default)]
struct EndlessMemory {
    is_done: AtomicBool,
    is_busy: AtomicBool,
    /// How often pools asked whether the device is idle.
    idle_asked: AtomicUsize,
    taken: AtomicU64,
    /// How often pools asked whether the device is past an event.
    questions: AtomicUsize,
    /// The number of a stream of which no event is recorded.
    refused: AtomicU64,
}

#[derive(Clone)]
struct Stream {
    id: u64,
    dropped: Arc<AtomicBool>,
    /// How often pools asked whether a stream is abandoned: of all streams.
    scans: Arc<AtomicUsize>,
}

impl Upstream for EndlessMemory {
    type Stream = Stream;
    type Event = ();
    type Block = ();
    type Error = &'static str;

    fn id(stream: &Stream) -> u64 {
        stream.id
    }

    fn clone_pool_handle(stream: &Stream) -> Stream {
        stream.clone()
    }

    fn is_abandoned(stream: &Stream) -> bool {
        stream.scans.fetch_add(1, Ordering::Relaxed);
        stream.dropped.load(Ordering::Relaxed)
    }

    fn drop_pool_handle(_: Stream) {}

    fn record(&self, stream: &Stream) -> Result<(), Self::Error> {
        match stream.id == self.refused.load(Ordering::Relaxed) {
            true => Err("no event"),
            false => Ok(()),
        }
    }

    fn record_again(&self, _: &Stream, (): &mut ()) -> Result<(), Self::Error> {
        Ok(())
    }

    fn wait(&self, _: &Stream, _: &()) -> Result<(), Self::Error> {
        Ok(())
    }

    fn is_passed(&self, _: &()) -> Result<bool, Self::Error> {
        self.questions.fetch_add(1, Ordering::Relaxed);
        Ok(self.is_done.load(Ordering::Relaxed))
    }

    fn synchronize(&self, _: &()) -> Result<(), Self::Error> {
        Ok(())
    }

    fn is_capturing(&self, _: &Stream) -> Result<bool, Self::Error> {
        Ok(false)
    }

    fn check_device(&self, _: &Stream) -> Result<(), Self::Error> {
        Ok(())
    }

    fn allocate(&self, _: Option<&Stream>, bytes: usize) -> Result<(u64, ()), Self::Error> {
        Ok((1 << 40 | self.taken.fetch_add(bytes as u64, Ordering::Relaxed), ()))
    }

    fn is_exhausted(_: &Self::Error) -> bool {
        true
    }

    fn deallocate(&self, _: Option<&Stream>, (): ()) {}

    fn is_idle(&self, _: Duration) -> bool {
        self.idle_asked.fetch_add(1, Ordering::Relaxed);
        !self.is_busy.load(Ordering::Relaxed)
    }

    fn report_leak(&self, _pool: u64, bytes: usize, why: &Failure<Self::Error>) {
        // A test that has failed keeps its blocks.
        assert!(std::thread::panicking(), "{bytes} bytes are leaked: {why:?}");
    }

    fn is_forked(&self) -> bool {
        false
    }
}

struct Fixture {
    pool: Arc<Pool<EndlessMemory>>,
    scans: Arc<AtomicUsize>,
    next: u64,
}

impl Fixture {
    fn new(steps: &[MissStep]) -> Self {
        Self::with(256, 1 << 20, steps)
    }

    fn with(alignment: u64, cached_bytes: usize, steps: &[MissStep]) -> Self {
        Self::of(Self::settings(alignment, cached_bytes, steps))
    }

    fn settings(alignment: u64, cached_bytes: usize, steps: &[MissStep]) -> Settings {
        Settings {
            limits: SizeLimits::new(1 << 40, 1 << 40),
            growth_step: 0,
            alignment,
            steps: steps.to_vec().into(),
            entries: 8,
            cached_bytes,
            listed: false,
        }
    }

    fn of(settings: Settings) -> Self {
        let pool = Pool::new(EndlessMemory::default(), settings);
        Self { pool, scans: Arc::default(), next: 1 }
    }

    fn stream(&mut self) -> Stream {
        self.next += 1;
        Stream { id: self.next, dropped: Arc::default(), scans: self.scans.clone() }
    }

    /// An allocation as resources make it that are other ones with a pool.
    fn allocate(&self, stream: &Stream) -> Block {
        let warm = self.pool.allocate_cached(stream.id, BYTES, 256);
        warm.unwrap_or_else(|| self.take_past(stream, BYTES))
    }

    /// An allocation as a resource makes it: by the thread's magazine, by the stream's own heap, then by a miss.
    fn take(&self, stream: &Stream, bytes: usize) -> Block {
        let (pool, id) = (&self.pool, stream.id);
        let past = |magazine: Option<_>| {
            // SAFETY: the thread's own magazine of the stream, which lives.
            let own = magazine.and_then(|it| unsafe { pool.allocate_own(it, id, bytes, 256) });
            own.unwrap_or_else(|| self.take_past(stream, bytes))
        };
        // SAFETY: `past` uses the magazine first.
        unsafe { pool.allocate_cached_or(id, bytes, 256, |block| block, past) }
    }

    /// An allocation that has tried nothing before.
    fn take_past(&self, stream: &Stream, bytes: usize) -> Block {
        self.pool.allocate(stream, stream.id, bytes, 256).unwrap()
    }

    /// A free as a resource makes it.
    fn give(&self, stream: &Stream, block: Block) {
        let (pool, id) = (&self.pool, stream.id);
        // SAFETY: the block is the pool's and live, and nothing ever uses it.
        unsafe {
            pool.deallocate_to_cache(id, block, |block, magazine| {
                if !magazine.is_some_and(|it| pool.deallocate_own(it, &block)) {
                    pool.deallocate(stream, id, block);
                }
            });
        }
    }

    /// A free that has tried nothing before.
    fn give_past(&self, stream: &Stream, block: Block) {
        // SAFETY: as above.
        unsafe { self.pool.deallocate(stream, stream.id, block) }
    }

    fn use_once(&self, stream: &Stream) {
        self.give(stream, self.allocate(stream));
    }

    fn scans(&self) -> usize {
        self.scans.load(Ordering::Relaxed)
    }
}

#[test]
fn a_new_stream_looks_at_few_of_many() {
    let mut fixture = Fixture::new(&[MissStep::Ordered, MissStep::Wait, MissStep::Grow]);
    let streams: Vec<_> = (0..1000).map(|_| fixture.stream()).collect();
    streams.iter().for_each(|stream| fixture.use_once(stream));
    assert!(fixture.scans() <= 1000 * 65, "{} scans for 1000 streams", fixture.scans());
    assert_eq!(fixture.pool.stats().streams, 1000);
    // All of them live on what the first one took from upstream.
    let mut populated = 0;
    let _: Option<()> = fixture.pool.find_populated(|_| {
        populated += 1;
        None
    });
    assert_eq!(populated, 1, "heaps that a miss scans");
}

#[test]
fn streams_that_come_and_go_among_many_leave_their_slots_to_the_next() {
    let mut fixture = Fixture::new(&[MissStep::Ordered, MissStep::Wait, MissStep::Grow]);
    let streams: Vec<_> = (0..500).map(|_| fixture.stream()).collect();
    streams.iter().for_each(|stream| fixture.use_once(stream));
    for _ in 0..2000 {
        let stream = fixture.stream();
        fixture.use_once(&stream);
        stream.dropped.store(true, Ordering::Relaxed);
    }
    // A way round 500 streams takes 8 new ones.
    let slots = fixture.pool.slot_count();
    assert!(
        (502..=520).contains(&slots),
        "{slots} slots for the shared heap and 501 streams at a time"
    );
    assert!(fixture.scans() <= 2500 * 65 + 2000, "{} scans for 2500 streams", fixture.scans());
    // Those that are abandoned all at once are found by the next that comes.
    streams.iter().for_each(|stream| stream.dropped.store(true, Ordering::Relaxed));
    for _ in 0..9 {
        let stream = fixture.stream();
        fixture.use_once(&stream);
    }
    assert!(fixture.pool.stats().streams <= 9, "{} streams are kept", fixture.pool.stats().streams);
}

#[test]
fn a_clock_names_the_streams_that_were_waited_for() {
    let mut fixture = Fixture::new(&[MissStep::Ordered, MissStep::Grow, MissStep::Wait]);
    let streams: Vec<_> = (0..300).map(|_| fixture.stream()).collect();
    streams.iter().for_each(|stream| fixture.use_once(stream));
    let [first, second, third] = [1, 2, 3].map(|tag| fixture.pool.slot(tag).unwrap());
    let entries = |slot: &super::slot::Slot<EndlessMemory>| slot.epochs.lock().clock_entries();
    fixture.pool.make_wait(second, &streams[1], 1, first.epochs.current()).unwrap();
    assert_eq!(entries(first), 0, "it had waited for no stream");
    fixture.pool.make_wait(third, &streams[2], 2, second.epochs.current()).unwrap();
    assert_eq!(entries(second), 1, "it had waited for the first");
    assert!(third.epochs.ordered_after(1) > 0, "so the third one is after the first");
    assert_eq!(third.epochs.ordered_after(4), 0);
    fixture.pool.make_wait(first, &streams[0], 3, third.epochs.current()).unwrap();
    assert_eq!(entries(third), 2, "once each");
}

#[test]
fn a_miss_looks_at_magazines_that_may_hold_something() {
    let mut fixture = Fixture::new(&[MissStep::Ordered, MissStep::Wait, MissStep::Grow]);
    let streams: Vec<_> = (0..60).map(|_| fixture.stream()).collect();
    streams.iter().for_each(|stream| fixture.use_once(stream));
    let id = fixture.pool.id;
    let stocked = || {
        let mut seen = 0;
        local::remove_stocked_if(id, |_| {
            seen += 1;
            false
        });
        seen
    };
    assert_eq!(stocked(), 0, "no size was wanted twice yet");
    // The first gets a class for the size, and its block into it.
    let own = &streams[0];
    (0..4).for_each(|_| fixture.use_once(own));
    assert_eq!(stocked(), 1, "of 60");
    assert_eq!(fixture.pool.stats().cached, BYTES);
    // Another one misses: what a heap serves empties no magazine.
    let last = fixture.stream();
    let block = fixture.allocate(&last);
    assert_eq!((stocked(), fixture.pool.stats().cached), (1, BYTES));
    fixture.give(&last, block);
    // What the pool would have to grow for does.
    let large = fixture.pool.allocate(&last, last.id, 64 << 20, 1).unwrap();
    assert_eq!((stocked(), fixture.pool.stats().cached), (0, 0));
    fixture.give(&last, large);
}

/// One thread trims, and the device is not done.
#[test]
fn nothing_waits_for_what_a_trim_waits_for() {
    let mut fixture = Fixture::new(&STEPS);
    let (used, new) = (fixture.stream(), fixture.stream());
    fixture.use_once(&used);
    let pool = fixture.pool.clone();
    let upstream = pool.upstream();
    std::thread::scope(|scope| {
        let trim = scope.spawn(|| pool.wait_and_trim(0));
        // By then it waits, and asks again and again.
        while upstream.questions.load(Ordering::Relaxed) < 100 {
            std::thread::yield_now();
        }
        fixture.use_once(&new);
        fixture.use_once(&used);
        assert_eq!(pool.stats().streams, 2);
        upstream.is_done.store(true, Ordering::Relaxed);
        trim.join().unwrap().unwrap();
    });
}

/// What options allow, and alignments that they do not.
/// A program may make pools that it seldom uses.
#[test]
fn a_pool_has_no_shared_heap_before_that_is_given_memory() {
    let mut fixture = Fixture::new(&[MissStep::Grow]);
    let pool = fixture.pool.clone();
    assert!(pool.slots.get(0).is_none() && pool.populated.snapshot().is_none());
    assert_eq!(pool.stats(), Default::default());
    let stream = fixture.stream();
    fixture.use_once(&stream);
    assert!(pool.slot(SHARED).is_none());
    let reserved = pool.stats().reserved;
    pool.upstream().is_done.store(true, Ordering::Relaxed);
    assert_eq!(pool.wait_and_trim(0).unwrap(), reserved);
    assert!(pool.slot(SHARED).is_some());
    assert_eq!((pool.stats().reserved, pool.stats().streams), (0, 1));
    let prepared = Fixture::new(&[MissStep::Grow]).pool;
    prepared.prepare(1 << 20).unwrap();
    assert_eq!(prepared.slot(SHARED).map(|it| it.heap().stats().free_bytes), Some(1 << 20));
}

#[test]
fn units_are_right_at_every_edge() {
    for power in 8..64 {
        let alignment = 1_u64 << power;
        let fixture = Fixture::with(alignment, 1 << 20, &[MissStep::Grow]);
        let mut sizes = vec![0, 1, 255, 256, 257, u64::MAX, u64::MAX - 1];
        for edge in (0..64).map(|power| 1_u64 << power) {
            sizes.extend([
                edge - 1,
                edge,
                edge + 1,
                edge.wrapping_sub(256),
                edge.wrapping_add(256),
            ]);
        }
        for bytes in sizes {
            let whole = u128::from(bytes).next_multiple_of(u128::from(alignment));
            let right = u32::try_from(whole >> 8).ok();
            assert_eq!(
                fixture.pool.aligned_units(bytes as usize),
                right,
                "{bytes} aligned to {alignment}"
            );
        }
    }
}

/// A block that is 1 MiB longer each time, the old one freed then. Returns what is reserved then, in MiB.
fn grow_by_little(fixture: &mut Fixture, steps: usize) -> usize {
    let stream = fixture.stream();
    let free = |block: Block| {
        // SAFETY: the block is the pool's and live, and nothing ever uses it.
        unsafe { fixture.pool.deallocate(&stream, stream.id, block) };
    };
    let mut held = None;
    for step in 1..=steps {
        let longer = fixture.pool.allocate(&stream, stream.id, step << 20, 256).unwrap();
        held.replace(longer).into_iter().for_each(free);
    }
    held.into_iter().for_each(free);
    fixture.pool.stats().reserved >> 20
}

#[test]
fn growth_gives_back_what_an_idle_device_is_past() {
    let mut fixture = Fixture::new(&[MissStep::Grow]);
    fixture.pool.upstream.is_done.store(true, Ordering::Relaxed);
    let reserved = grow_by_little(&mut fixture, 512);
    // One and a half times the two last ones, and 16 MiB.
    assert!(reserved <= 3 * 1023 / 2 + 16, "{reserved} MiB for 1023");
    assert!(fixture.pool.stats().returns > 0);
}

#[test]
fn growth_gives_nothing_back_that_the_device_may_use() {
    // Frees of other threads may come when the device was asked already.
    let mut fixture = Fixture::new(&[MissStep::Grow]);
    grow_by_little(&mut fixture, 100);
    assert!(fixture.pool.upstream.idle_asked.load(Ordering::Relaxed) > 0);
    assert_eq!(fixture.pool.stats().returns, 0);
}

#[test]
fn growth_beside_a_busy_device_gives_nothing_back_and_asks_seldom() {
    let mut fixture = Fixture::new(&[MissStep::Grow]);
    fixture.pool.upstream.is_done.store(true, Ordering::Relaxed);
    fixture.pool.upstream.is_busy.store(true, Ordering::Relaxed);
    grow_by_little(&mut fixture, 1024);
    let stats = fixture.pool.stats();
    assert_eq!(stats.returns, 0);
    let asked = fixture.pool.upstream.idle_asked.load(Ordering::Relaxed);
    assert!((10..400).contains(&asked), "{asked} questions, {stats:?}");
}
