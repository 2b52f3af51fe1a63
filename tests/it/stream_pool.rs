//! Streams that are made once and taken in turn.

use crate::{kernels, support};
use aquifer::sim::SimConfig;
use aquifer::{DeviceVec, ErrorKind, Stream, stream::StreamPool};
use kernels::{add_one, kind};
use std::collections::{HashMap, HashSet};

#[test]
fn sixteen_streams_unless_asked_otherwise_and_never_none() {
    let device = support::device();
    assert_eq!(StreamPool::new(&device).unwrap().len(), 16);
    assert_eq!(StreamPool::DEFAULT_SIZE, 16);
    for size in [1, 3, 40] {
        let pool = StreamPool::with_size(&device, size).unwrap();
        assert_eq!((pool.len(), pool.iter().count(), pool.device()), (size, size, &*device));
    }
    assert_eq!(kind(StreamPool::with_size(&device, 0)), ErrorKind::InvalidArgument);
    assert_eq!(kind(StreamPool::with_size(&device, usize::MAX)), ErrorKind::InvalidArgument);
}

#[test]
fn the_streams_are_distinct_and_none_is_the_default_one() {
    let device = support::device();
    let pool = StreamPool::new(&device).unwrap();
    let numbers: HashSet<_> = pool.iter().map(Stream::id).collect();
    assert_eq!(numbers.len(), 16);
    assert!(!numbers.contains(&device.default_stream().id()));
    assert_ne!(pool.get_stream(), pool.get_stream());
    let other = StreamPool::new(&device).unwrap();
    assert!(other.iter().all(|stream| !numbers.contains(&stream.id())), "two pools share none");
}

#[test]
fn streams_come_in_turn_and_numbers_wrap_around() {
    let device = support::device();
    let pool = StreamPool::with_size(&device, 3).unwrap();
    let clone = pool.clone();
    for turn in 0..10 {
        assert_eq!(pool.get(7), pool.get(1), "takes no turn");
        let taken = if turn % 2 == 0 { pool.get_stream() } else { clone.get_stream() };
        assert_eq!(taken, pool.get(turn), "turn {turn}");
    }
    assert_eq!(pool.get(pool.len()), pool.get(0));
    assert_eq!(pool.get(usize::MAX), pool.get(usize::MAX % 3));
    assert!((&pool).into_iter().eq([pool.get(0), pool.get(1), pool.get(2)]));
}

#[test]
fn threads_take_turns_without_skipping_one() {
    let device = support::device();
    let pool = StreamPool::with_size(&device, 5).unwrap();
    let taken: Vec<u64> = std::thread::scope(|scope| {
        let threads = [(); 4]
            .map(|()| scope.spawn(|| (0..250).map(|_| pool.get_stream().id()).collect::<Vec<_>>()));
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut counts = HashMap::new();
    taken.iter().for_each(|number| *counts.entry(number).or_insert(0) += 1);
    assert_eq!(counts.into_values().collect::<Vec<_>>(), [200; 5]);
}

#[test]
fn work_runs_on_every_stream_and_vectors_outlive_the_pool() {
    let device = support::device();
    let pool = StreamPool::with_size(&device, 4).unwrap();
    let mut vecs: Vec<_> = (0..8_u32)
        .map(|number| DeviceVec::from_slice(pool.get_stream(), &[number; 100]).unwrap())
        .collect();
    let kept = pool.get(2).clone();
    for vec in &mut vecs {
        let home = vec.stream().clone();
        add_one(&home, vec).unwrap();
    }
    drop(pool);
    kept.synchronize().unwrap();
    for (number, vec) in vecs.iter().enumerate() {
        assert_eq!(vec.to_vec().unwrap(), [number as u32 + 1; 100]);
    }
}

#[test]
fn streams_go_with_the_pool_and_after_a_failure() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let pool = StreamPool::with_size(&device, 4).unwrap();
    let kept = pool.get_stream().clone();
    drop(pool.clone());
    assert_eq!(simulator.call_count("cuStreamDestroy"), 0, "the other handle lives");
    drop(pool);
    assert_eq!(simulator.call_count("cuStreamDestroy"), 3, "one is in use");
    kept.synchronize().unwrap();
    drop(kept);
    assert_eq!(simulator.call_count("cuStreamDestroy"), 4);

    simulator.fail_call("cuStreamCreate", 3, 2).unwrap();
    assert_eq!(kind(StreamPool::with_size(&device, 4)), ErrorKind::OutOfMemory);
    assert_eq!(simulator.call_count("cuStreamDestroy"), 6, "the two that were made");
}
