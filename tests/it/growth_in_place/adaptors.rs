//! The adaptors that hand growth on count it as what it is; the others move the memory.

use super::*;
use aquifer::{
    DeviceBlock,
    mr::{
        AlignedAdaptor, CheckedAdaptor, FailureCallbackAdaptor, LimitingAdaptor, LoggingAdaptor,
        PrefetchAdaptor, StackText, StatisticsAdaptor, TracedAdaptor, TrackingAdaptor,
    },
};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Grows a vector of `resource` in place, shrinks it, and drops it: `look` sees how many bytes it has after each.
fn grow(
    fixture: &Fixture,
    resource: impl DeviceResource + 'static,
    way: Growth,
    mut look: impl FnMut(usize),
) {
    let resource: Arc<dyn DeviceResource> = Arc::new(resource);
    let mut vec = DeviceVec::<u8>::zeroed_in(&fixture.stream, 100, resource.clone()).unwrap();
    let neighbour = DeviceVec::<u8>::zeroed_in(&fixture.stream, 100, fixture.pool.clone());
    for granules in [2, 3, 50, 20, 21] {
        if vec.len() > granules * GRANULE {
            vec.truncate(granules * GRANULE);
            vec.shrink_to_fit().unwrap();
        }
        vec.resize(granules * GRANULE, 5).unwrap();
        look(vec.capacity());
    }
    assert_eq!(vec.growth(), Some(way));
    let values = vec.to_vec().unwrap();
    assert_eq!((values[0], values[99], values[100], values[21 * GRANULE - 1]), (0, 0, 5, 5));
    drop((vec, neighbour));
    look(0);
}

#[test]
fn statistics_count_the_bytes() {
    let fixture = Fixture::new();
    let counted = StatisticsAdaptor::new(fixture.pool.clone());
    counted.push_counters().unwrap();
    let mut blocks = 0;
    grow(&fixture, counted.clone(), Growth::InPlace, |bytes| {
        let all = counted.counters();
        assert_eq!(all.bytes.current, bytes as i64);
        assert_eq!(all.allocations.current, i64::from(bytes > 0));
        blocks = all.allocations.total;
        assert_eq!(counted.scope_counters(), Some(all));
    });
    let all = counted.counters();
    assert_eq!((blocks, all.bytes.peak), (2, 50 * GRANULE as i64));
    // 100 bytes, 2 granules, and then what was added.
    let first = all.bytes.total - (2 + 1 + 47 + 1) * GRANULE as i64;
    assert!((100..=256).contains(&first), "{first}");
    drop(counted);
    fixture.end();
}

#[test]
fn a_limit_is_not_passed() {
    let fixture = Fixture::new();
    let limited = LimitingAdaptor::new(fixture.pool.clone(), 60 * GRANULE);
    grow(&fixture, limited.clone(), Growth::InPlace, |bytes| {
        assert_eq!(limited.allocated(), bytes.next_multiple_of(256));
    });
    // A granule more than the limit has, since the pool gives whole ones.
    let odd = LimitingAdaptor::new(fixture.pool.clone(), 10 * GRANULE + 500);
    let mut vec = DeviceVec::<u8>::zeroed_in(&fixture.stream, 10, odd.clone()).unwrap();
    let neighbour = fixture.block(100);
    vec.resize(2 * GRANULE, 1).unwrap();
    vec.resize(10 * GRANULE, 1).unwrap();
    let pointer = vec.as_device_ptr();
    for more in [1, 200, 600, GRANULE, 60 * GRANULE] {
        assert_eq!(vec.reserve(more).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_eq!((odd.allocated(), vec.capacity()), (10 * GRANULE, 10 * GRANULE));
    }
    assert_eq!(vec.to_vec().unwrap()[10..], vec![1; 10 * GRANULE - 10]);
    vec.truncate(3 * GRANULE);
    vec.shrink_to_fit().unwrap();
    assert_eq!((odd.allocated(), vec.as_device_ptr()), (3 * GRANULE, pointer));
    drop((vec, neighbour));
    assert_eq!((odd.allocated(), fixture.pool.statistics().live), (0, 0));
    drop((odd, limited));
    fixture.end();
}

/// Also where the pool's other rules keep a block from being made shorter: below a granule, and in a capture.
#[test]
fn a_limit_is_not_passed_by_what_cannot_shrink() {
    let fixture = Fixture::new();
    let limited = LimitingAdaptor::new(fixture.pool.clone(), GRANULE + 2048);
    let mut vec = DeviceVec::<u8>::zeroed_in(&fixture.stream, 1024, limited.clone()).unwrap();
    vec.reserve_exact(GRANULE + 1 - 1024).unwrap();
    assert!(limited.allocated() <= limited.limit(), "{}", limited.allocated());
    drop((vec, limited));
    let limited = LimitingAdaptor::new(fixture.pool.clone(), 10 * GRANULE + 512);
    let mut vec =
        DeviceVec::<u8>::zeroed_in(&fixture.stream, 10 * GRANULE, limited.clone()).unwrap();
    let (graph, vec) = fixture
        .stream
        .capture(&fixture.pool, |_| {
            // Elements do not move in a capture, and the limit has no room for a granule.
            assert!(vec.reserve_exact(100).is_err());
            Ok(vec)
        })
        .unwrap();
    assert_eq!((limited.allocated(), vec.capacity()), (10 * GRANULE, 10 * GRANULE));
    drop((graph, vec));
    assert_eq!((limited.allocated(), fixture.pool.statistics().live), (0, 0));
    drop(limited);
    fixture.end();
}

/// A pool, and a call right after a block has become shorter, as of another thread.
#[derive(Debug)]
struct Between {
    pool: Pool,
    stream: Stream,
    above: Mutex<Option<std::sync::Weak<dyn DeviceResource>>>,
    got: Mutex<Option<DeviceVec<u8>>>,
}

// SAFETY: every block is the pool's, and goes back to it unchanged.
unsafe impl DeviceResource for Between {
    fn device(&self) -> &Device {
        self.pool.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> aquifer::Result<DeviceBlock> {
        self.pool.allocate(stream, layout)
    }

    fn allocate_growable(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> aquifer::Result<Option<DeviceBlock>> {
        self.pool.allocate_growable(stream, layout)
    }

    unsafe fn resize_in_place(
        &self,
        stream: &Stream,
        block: &mut DeviceBlock,
        bytes: usize,
    ) -> aquifer::Result<bool> {
        let before = block.bytes();
        // SAFETY: the caller's promise.
        let resized = unsafe { self.pool.resize_in_place(stream, block, bytes) };
        let above = self.above.lock().unwrap().take_if(|_| bytes < before);
        if let Some(above) = above.and_then(|above| above.upgrade()) {
            let own = self.stream.clone();
            let other = std::thread::spawn(move || {
                DeviceVec::<u8>::zeroed_in(&own, 30 * GRANULE, above).unwrap()
            });
            *self.got.lock().unwrap() = Some(other.join().unwrap());
        }
        resized
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the caller's promise.
        unsafe { self.pool.deallocate(stream, block) }
    }
}

/// What a block gives up may be another's at once: by then it is logged and counted as free.
#[test]
fn what_is_given_up_is_told_before() {
    let fixture = Fixture::new();
    let between = Arc::new(Between {
        pool: fixture.pool.clone(),
        stream: fixture.stream.clone(),
        above: Mutex::default(),
        got: Mutex::default(),
    });
    let rows = Rows::default();
    let logged = LoggingAdaptor::builder(between.clone()).writer(Box::new(rows.clone()));
    let logged = logged.build().unwrap();
    let counted = StatisticsAdaptor::new(logged.clone());
    let mut vec = DeviceVec::<u8>::zeroed_in(&fixture.stream, 1000, counted.clone()).unwrap();
    let neighbour = fixture.block(1000);
    let first = vec.capacity();
    vec.resize(40 * GRANULE, 1).unwrap();
    vec.truncate(4 * GRANULE);
    let above: Arc<dyn DeviceResource> = Arc::new(counted.clone());
    *between.above.lock().unwrap() = Some(Arc::downgrade(&above));
    vec.shrink_to_fit().unwrap();
    let got = between.got.lock().unwrap().take().unwrap();
    let bytes = counted.counters().bytes;
    let expected = [34 * GRANULE, 40 * GRANULE + first].map(|bytes| bytes as i64);
    assert_eq!([bytes.current, bytes.peak], expected);
    // Below a granule the pool keeps the block as it is, and the vector moves.
    vec.truncate(100);
    vec.shrink_to_fit().unwrap();
    assert_eq!(counted.counters().bytes.current, (got.capacity() + vec.capacity()) as i64);
    logged.flush().unwrap();
    let text = String::from_utf8(rows.0.lock().unwrap().clone()).unwrap();
    let mut live: Vec<(u64, u64)> = Vec::new();
    for row in text.lines().skip(1) {
        let fields: Vec<&str> = row.split(',').collect();
        let start = u64::from_str_radix(fields[3].trim_start_matches("0x"), 16).unwrap();
        let end = start + fields[4].parse::<u64>().unwrap();
        if fields[2] == "allocate" {
            assert!(live.iter().all(|it| end <= it.0 || it.1 <= start), "{row} in\n{text}");
            live.push((start, end));
        } else {
            live.retain(|it| *it != (start, end));
        }
    }
    assert_eq!(live.len(), 2, "{text}");
    drop((vec, got, neighbour, above, counted, logged, between));
    fixture.end();
}

#[test]
fn tracking_lists_the_block_once() {
    let fixture = Fixture::new();
    let tracking = TrackingAdaptor::new(fixture.pool.clone());
    grow(&fixture, tracking.clone(), Growth::InPlace, |bytes| {
        let all = tracking.outstanding();
        assert_eq!(all.len(), usize::from(bytes > 0));
        assert_eq!(tracking.allocated_bytes(), bytes);
    });
    let bad = [tracking.unknown_frees(), tracking.wrong_size_frees(), tracking.bypassing_frees()];
    assert_eq!(bad, [0; 3]);
    drop(tracking);
    fixture.end();
}

#[derive(Clone, Default)]
struct Rows(Arc<Mutex<Vec<u8>>>);

impl Write for Rows {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The rows of a log give the sizes that live: growth is a free and an allocation at one address.
#[test]
fn a_log_has_a_free_and_an_allocation() {
    let fixture = Fixture::new();
    let rows = Rows::default();
    let logged = LoggingAdaptor::builder(fixture.pool.clone());
    let logged = logged.writer(Box::new(rows.clone())).build().unwrap();
    grow(&fixture, logged.clone(), Growth::InPlace, |bytes| {
        logged.flush().unwrap();
        let text = String::from_utf8(rows.0.lock().unwrap().clone()).unwrap();
        let mut live = std::collections::HashMap::new();
        for row in text.lines().skip(1) {
            let fields: Vec<&str> = row.split(',').collect();
            let (address, size) = (fields[3].to_owned(), fields[4].parse::<usize>().unwrap());
            match fields[2] {
                "allocate" => assert_eq!(live.insert(address, size), None, "{row}"),
                "free" => assert_eq!(live.remove(&address), Some(size), "{row}"),
                action => panic!("{action}"),
            }
        }
        assert_eq!(live.values().sum::<usize>(), bytes);
    });
    drop(logged);
    fixture.end();
}

#[test]
fn larger_blocks_stay_aligned() {
    let fixture = Fixture::new();
    // The granule is the most that a pool's growable blocks are aligned to.
    let aligned = AlignedAdaptor::new(fixture.pool.clone(), GRANULE, 3 * GRANULE).unwrap();
    grow(&fixture, aligned.clone(), Growth::InPlace, |_| {});
    let mut vec = DeviceVec::<u8>::zeroed_in(&fixture.stream, 2 * GRANULE, aligned).unwrap();
    let wide = AlignedAdaptor::new(fixture.pool.clone(), 1 << 20, 3 * GRANULE).unwrap();
    let mut other = DeviceVec::<u8>::zeroed_in(&fixture.stream, 2 * GRANULE, wide).unwrap();
    vec.resize(30 * GRANULE, 1).unwrap();
    other.resize(30 * GRANULE, 1).unwrap();
    assert!(vec.as_device_ptr().is_multiple_of(GRANULE as u64));
    assert!(other.as_device_ptr().is_multiple_of(1 << 20));
    drop((vec, other));
    fixture.end();
}

/// The callback of a refusal makes room for growth in place.
#[test]
fn a_callback_makes_room() {
    let fixture = Fixture::with(SimConfig::default(), |options| options.maximum_size(64 * GRANULE));
    let spare = Mutex::new(Some(fixture.block(40 * GRANULE)));
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let patient = FailureCallbackAdaptor::new(fixture.pool.clone(), move |failure| {
        assert!(failure.layout().bytes() >= 20 * GRANULE);
        counted.fetch_add(1, Ordering::Relaxed);
        spare.lock().is_ok_and(|mut spare| spare.take().is_some())
    });
    let mut vec = DeviceVec::<u8>::zeroed_in(&fixture.stream, 100, patient).unwrap();
    let neighbour = fixture.block(100);
    vec.resize(10 * GRANULE, 1).unwrap();
    let pointer = vec.as_device_ptr();
    vec.resize(50 * GRANULE, 1).unwrap();
    assert_eq!((vec.as_device_ptr(), calls.load(Ordering::Relaxed)), (pointer, 1));
    assert_eq!(vec.to_vec().unwrap()[100..], vec![1; 50 * GRANULE - 100]);
    drop((vec, neighbour));
    fixture.end();
}

#[test]
fn events_tell_of_it_and_nothing_is_lost() {
    let fixture = Fixture::new();
    grow(&fixture, TracedAdaptor::new(fixture.pool.clone()), Growth::InPlace, |_| {});
    fixture.end();
}

/// Those that cannot hand growth on move the memory.
#[test]
fn other_adaptors_move() {
    let fixture = Fixture::new();
    let checked = CheckedAdaptor::new(fixture.pool.clone());
    grow(&fixture, checked.clone(), Growth::Moved, |_| {});
    assert_eq!(checked.misuses(), 0);
    grow(&fixture, PrefetchAdaptor::new(fixture.pool.clone()), Growth::Moved, |_| {});
    drop(checked);
    fixture.end();
}

#[test]
fn a_stack_of_a_text_hands_it_on() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let stack = "pool(virtual) | statistics".parse::<StackText>().unwrap().build(&device).unwrap();
    let mut vec = DeviceVec::<u8>::zeroed_in(&stream, MIB, stack).unwrap();
    vec.resize(3 * MIB, 1).unwrap();
    let pointer = vec.as_device_ptr();
    vec.resize(9 * MIB, 1).unwrap();
    assert_eq!((vec.as_device_ptr(), vec.growth()), (pointer, Some(Growth::InPlace)));
}
