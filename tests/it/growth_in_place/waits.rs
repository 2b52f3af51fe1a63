//! What growth waits for, and who waits for it.

use super::*;
use aquifer::mr::FailureCallbackAdaptor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

impl Fixture {
    /// Of a device with so much memory, of which little is used.
    fn large(capacity: usize) -> Self {
        let config = SimConfig::default().capacity(capacity);
        Self::with(config.without_poison().without_pool_checks(), |options| options)
    }

    fn waits(&self) -> [u64; 3] {
        ["cuStreamWaitEvent", "cuEventSynchronize", "cuStreamSynchronize"]
            .map(|call| self.simulator.call_count(call))
    }
}

/// What streams reserve leaves addresses for vectors that grow.
#[test]
fn many_streams_leave_addresses() {
    let fixture = Fixture::large(80 << 30);
    let streams: Vec<_> = (0..600).map(|_| fixture.device.new_stream().unwrap()).collect();
    let vec = |stream: &Stream| {
        DeviceVec::<u8>::zeroed_in(stream, 3 * GRANULE, fixture.pool.clone()).unwrap()
    };
    let mut vecs: Vec<_> = streams.iter().map(vec).collect();
    let neighbours: Vec<_> = streams.iter().map(vec).collect();
    let before = fixture.waits();
    for vec in vecs.iter_mut().rev().take(3) {
        vec.reserve_exact(600 * MIB).unwrap();
        let pointer = vec.as_device_ptr();
        vec.reserve_exact(1200 * MIB).unwrap();
        assert_eq!((vec.growth(), vec.as_device_ptr()), (Some(Growth::InPlace), pointer));
    }
    assert_eq!(fixture.waits()[1..], before[1..], "the host");
    drop((vecs, neighbours, streams));
    fixture.end();
}

/// Where no addresses are left for it, a vector moves, and neither the host nor its stream waits for others.
#[test]
fn nothing_waits_where_addresses_lack() {
    let fixture = Fixture::large(1 << 42);
    let mut grown: Vec<_> = (0..200).map(|_| fixture.grown(2)).collect();
    let mut vec = fixture.block(5 * GRANULE);
    let neighbour = fixture.block(1000);
    let others: Vec<_> = (0..5).map(|_| fixture.device.new_stream().unwrap()).collect();
    let block = |stream: &Stream| {
        let mut vec = DeviceVec::<u8>::zeroed_in(stream, 100, fixture.pool.clone()).unwrap();
        (0..100).for_each(|_| vec.fill(1).unwrap());
        vec
    };
    let kept: Vec<_> = others.iter().map(|stream| (block(stream), drop(block(stream)))).collect();
    let before = fixture.waits();
    vec.resize(6 * GRANULE, 1).unwrap();
    assert_eq!((fixture.waits(), vec.growth()), (before, Some(Growth::Moved)));
    grown.iter_mut().for_each(|vec| vec.reserve_exact(40 * GRANULE).unwrap());
    assert_eq!(fixture.waits()[1..], before[1..], "the host");
    drop((grown, vec, neighbour, kept, others));
    fixture.end();
}

/// Home waits for the stream whose memory the vector takes, and for none whose memory lies farther above.
#[test]
fn home_waits_for_what_it_takes() {
    let fixture = Fixture::with(SimConfig::default().without_pool_checks(), |options| {
        options.maximum_size(200 * GRANULE)
    });
    let others = [(); 2].map(|()| fixture.device.new_stream().unwrap());
    let mut vec = fixture.grown(100);
    vec.truncate(10 * GRANULE / 4);
    vec.shrink_to_fit().unwrap();
    let mut above = [fixture.block(2 * GRANULE), fixture.block(88 * GRANULE)];
    fixture.device.synchronize().unwrap();
    for (block, stream) in above.iter_mut().zip(&others) {
        block.set_stream(stream).unwrap();
    }
    for _ in 0..200 {
        above.iter_mut().for_each(|block| block.fill(1).unwrap());
    }
    drop(above);
    let before = fixture.waits();
    vec.resize(11 * GRANULE / 4, 1).unwrap();
    assert_eq!(vec.growth(), Some(Growth::InPlace));
    assert!(fixture.waits()[0] - before[0] <= 1, "{:?} {before:?}", fixture.waits());
    drop((vec, others));
    fixture.end();
}

/// What a vector takes while it looks for more, and gives back, is refused to nobody (INV-POOL-5).
#[test]
fn nobody_is_refused_what_a_growth_gives_back() {
    let fixture = Fixture::with(SimConfig::default().without_pool_checks(), |options| {
        options.maximum_size(64 * GRANULE)
    });
    let mut vec = fixture.grown(50);
    vec.truncate(8 * GRANULE / 4);
    vec.shrink_to_fit().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (device, pool, is_over) = (&fixture.device, &fixture.pool, &is_over);
        let thread = scope.spawn(move || {
            let own = device.new_stream().unwrap();
            for round in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                let bytes = (10 + round % 17) * GRANULE + round % 5 * 256;
                let block = DeviceVec::<u8>::zeroed_in(&own, bytes, pool.clone());
                assert!(block.is_ok(), "{round}: {block:?}");
            }
        });
        for _ in 0..300 {
            // More than there is.
            assert!(vec.reserve_exact(60 * GRANULE / 4).is_err());
        }
        is_over.store(true, Ordering::Relaxed);
        // Its thread locals keep the pool.
        thread.join().unwrap();
    });
    assert_values(&vec, &[(1000, 0), (8 * GRANULE / 4, 7)]);
    drop(vec);
    fixture.end();
}

/// Spare capacity is no reason to ask a callback, nor to look for memory twice.
#[test]
fn no_callback_is_asked_for_spare_capacity() {
    let fixture =
        Fixture::with(SimConfig::default(), |options| options.maximum_size(1000 * GRANULE));
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let patient = FailureCallbackAdaptor::new(fixture.pool.clone(), move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        false
    });
    let mut vec = DeviceVec::<u8>::zeroed_in(&fixture.stream, 1000, patient).unwrap();
    let neighbour = fixture.block(1000);
    vec.resize(900 * GRANULE, 1).unwrap();
    vec.reserve_exact(95 * GRANULE).unwrap();
    vec.resize(995 * GRANULE, 1).unwrap();
    // A 128th of it is not there.
    vec.push(1).unwrap();
    assert_eq!((calls.load(Ordering::Relaxed), vec.capacity()), (0, 996 * GRANULE));
    assert_eq!(vec.reserve(100 * GRANULE).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(calls.load(Ordering::Relaxed), 2, "in place, and for another block");
    drop((vec, neighbour));
    fixture.end();
}
