//! What a collective does to the memory that it uses, and to the ranks beside it when it fails.

use crate::alone;
use crate::collectives::{SOON, join, vectors};
use crate::support;
use crate::two::Two;
use aquifer::sim::{SimConfig, Violation};
use aquifer::{
    Communicator, CudaResource, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, PoolResource,
    Stream,
    collective::{CommunicatorId, Group, ReduceOp, RegisteringAdaptor},
    mr::{Keep, VirtualResource},
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A collective of two vectors, as a group takes it.
type Collective<'a> = (
    &'static str,
    &'a dyn for<'g> Fn(
        &mut Group<'g>,
        &'g Communicator,
        &'g DeviceVec<u32>,
        &'g mut DeviceVec<u32>,
    ),
);

#[test]
fn what_a_collective_uses_is_used_at_home_after_it() {
    let _alone = alone();
    let sum = ReduceOp::Sum;
    let all: [Collective<'_>; 3] = [
        ("all_reduce", &|group, rank, send, receive| {
            group.all_reduce(rank, send, receive, sum).unwrap()
        }),
        ("broadcast", &|group, rank, send, receive| {
            group.broadcast(rank, send, receive, 0).unwrap()
        }),
        ("reduce", &|group, rank, send, receive| {
            group.reduce(rank, send, receive, sum, 0).unwrap()
        }),
    ];
    // Which of the two is at home on the rank's stream.
    for (at, at_home) in [(false, false), (true, false), (false, true)].into_iter().enumerate() {
        for (name, give) in all {
            let both = Two::simulated(at as u64);
            let streams = both.streams();
            let ranks = join(&streams).unwrap();
            let homes = both.streams();
            let home = |rank: usize, is_here| if is_here { &streams[rank] } else { &homes[rank] };
            let make = |is_here, values: [u32; 2]| {
                [0, 1].map(|rank| {
                    DeviceVec::from_slice(home(rank, is_here), &[values[rank]; 100]).unwrap()
                })
            };
            let mut sends = make(at_home.0, [1, 2]);
            let mut receives = make(at_home.1, [0, 0]);
            let mut group = Group::new();
            for ((rank, send), receive) in ranks.iter().zip(&sends).zip(&mut receives) {
                give(&mut group, rank, send, receive);
            }
            group.run().unwrap();
            // At once, at home: the write comes after the read, and the read after the write.
            sends.iter_mut().for_each(|send| send.fill(9).unwrap());
            let expected = if name == "broadcast" { 1 } else { 3 };
            assert_eq!(receives[0].to_vec().unwrap(), [expected; 100], "{name}");
            receives[0].fill(5).unwrap();
            drop((sends, receives, ranks));
            drop((streams, homes));
            both.end();
        }
    }
}

#[test]
fn a_rank_that_a_collective_does_not_read_or_write_keeps_its_memory() {
    let _alone = alone();
    let both = Two::simulated(3);
    let streams = both.streams();
    let ranks = join(&streams).unwrap();
    // The others' send buffers and receive buffers may be empty, or of another length.
    let sends = vectors::<u32>(&streams, [&[1; 4], &[7; 2]]);
    let mut receives = vectors::<u32>(&streams, [&[0; 4], &[0; 4]]);
    let mut group = Group::new();
    for ((rank, send), receive) in ranks.iter().zip(&sends).zip(&mut receives) {
        group.broadcast(rank, send, receive, 0).unwrap();
    }
    group.run().unwrap();
    assert_eq!(receives[1].to_vec().unwrap(), [1; 4]);
    let error = ranks[0].reduce_in_place(&mut receives[0], ReduceOp::Sum, 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let send = &sends[0];
    let error = ranks[0].reduce(send, &mut receives[0], ReduceOp::Sum, 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let error = ranks[0].broadcast(send, &mut receives[0], 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    drop((sends, receives, ranks));
    drop(streams);
    both.end();
}

#[test]
fn a_pool_falls_asleep_beside_no_collective_that_is_under_way() {
    let _alone = alone();
    let both = Two::simulated(5);
    let streams = both.streams();
    let ranks = join(&streams).unwrap();
    let pool = PoolResource::new(VirtualResource::new(streams[0].device()).unwrap()).unwrap();
    let other = streams[0].device().new_stream().unwrap();
    let kept = DeviceVec::from_slice_in(&other, &[7_u32; 100], pool.clone()).unwrap();
    let mut data = vectors::<u32>(&streams, [&[1; 10], &[2; 10]]);
    // SAFETY: no other library has pointers to the memory, and there is no graph.
    let sleep = || unsafe { pool.sleep(Keep::PageLocked) };
    ranks[0].all_reduce_in_place(&mut data[0], ReduceOp::Sum).unwrap();
    let begun = Instant::now();
    let error = sleep().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("while the stream of a communicator is at work"), "{error}");
    assert!(begun.elapsed() < SOON && !pool.is_asleep());
    assert_eq!(kept.get(0).unwrap(), 7, "it is awake");
    ranks[1].all_reduce_in_place(&mut data[1], ReduceOp::Sum).unwrap();
    // A collective that completes in a moment refuses no sleep, though no rank has waited for it.
    sleep().unwrap();
    pool.wake().unwrap();
    assert_eq!((kept.get(99).unwrap(), data[0].get(9).unwrap()), (7, 3));
    // Nor are ranks that are gone.
    ranks[0].all_reduce_in_place(&mut data[0], ReduceOp::Sum).unwrap();
    ranks[1].all_reduce_in_place(&mut data[1], ReduceOp::Sum).unwrap();
    drop(ranks);
    sleep().unwrap();
    pool.wake().unwrap();
    drop((kept, data, pool));
    drop((streams, other));
    both.end();
}

#[test]
fn a_group_that_fails_is_the_failure_of_each_of_its_ranks() {
    let _alone = alone();
    let both = Two::simulated(1);
    let streams = both.streams();
    let ranks = join(&streams).unwrap();
    let mut data = vectors::<f32>(&streams, [&[1.0; 10], &[2.0; 10]]);
    both.simulators[0].fail_call("ncclAllReduce", 1, 2).unwrap(); // ncclSystemError
    let mut group = Group::new();
    for (rank, vec) in ranks.iter().zip(&mut data) {
        group.all_reduce_in_place(rank, vec, ReduceOp::Sum).unwrap();
    }
    let error = group.run().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CommunicatorLost);
    for (number, rank) in ranks.iter().enumerate() {
        let error = rank.check().unwrap_err().to_string();
        let told = format!("running a group as rank {number} among 2 ranks");
        assert!(error.contains(&told), "rank {number}: {error}");
        assert!(error.contains("ncclSystemError"), "rank {number}: {error}");
    }
    drop((data, ranks));
    drop(streams);
    both.end();
}

/// A rank on each stream, with so much patience.
pub(crate) fn join_within(
    both: &Two,
    streams: &[Stream; 2],
    timeout: Duration,
) -> [Communicator; 2] {
    let id = CommunicatorId::new(&both.one).unwrap();
    let rank = |at: usize| {
        let options = Communicator::builder(&streams[at]).timeout(timeout);
        // SAFETY: the ranks of a test give the same collectives, or are on simulated devices.
        unsafe { options.join(&id, at, 2) }.unwrap()
    };
    std::thread::scope(|threads| {
        let other = threads.spawn(|| rank(1));
        [rank(0), other.join().unwrap()]
    })
}

#[test]
fn a_registered_block_goes_back_within_the_timeout_of_a_rank_that_stands_still() {
    let _alone = alone();
    let config = SimConfig::default().rank_timeout(Duration::from_secs(3));
    let (one, first) = support::simulated(config.clone());
    let (two, second) = support::simulated(config.ordinal(1));
    let both = Two { one, two, simulators: vec![first, second] };
    let streams = both.streams();
    let ranks = join_within(&both, &streams, Duration::from_millis(300));
    let adaptor = RegisteringAdaptor::new(CudaResource::new(&both.one));
    adaptor.register_with(&ranks[0]).unwrap();
    let mut vec = DeviceVec::<f32>::zeroed_in(&streams[0], 1000, adaptor.clone()).unwrap();
    assert_eq!(adaptor.registered_blocks(), 1);
    // The other rank never calls.
    ranks[0].all_reduce_in_place(&mut vec, ReduceOp::Sum).unwrap();
    let begun = Instant::now();
    drop(vec);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let error = ranks[0].check().unwrap_err();
    assert!(error.to_string().contains("waited 300ms for its collectives"), "{error}");
    assert_eq!(adaptor.registered_blocks(), 0);
    drop((adaptor, ranks));
    drop(streams);
    both.end();
}

#[test]
fn memory_that_a_collective_may_still_use_is_not_taken_back_from_nccl() {
    let _alone = alone();
    for seed in 0..4 {
        let both = Two::simulated(seed);
        let (streams, homes) = (both.streams(), both.streams());
        let ranks = join(&streams).unwrap();
        let adaptors =
            [&both.one, &both.two].map(|one| RegisteringAdaptor::new(CudaResource::new(one)));
        for (adaptor, rank) in adaptors.iter().zip(&ranks) {
            adaptor.register_with(rank).unwrap();
        }
        let mut data = [0, 1]
            .map(|at| DeviceVec::<f32>::zeroed_in(&homes[at], 1000, adaptors[at].clone()).unwrap());
        let mut group = Group::new();
        for (rank, vec) in ranks.iter().zip(&mut data) {
            group.all_reduce_in_place(rank, vec, ReduceOp::Sum).unwrap();
        }
        group.run().unwrap();
        drop(data);
        for simulator in &both.simulators {
            assert_eq!(simulator.call_count("ncclCommDeregister"), 1);
        }
        drop((adaptors, ranks));
        drop((streams, homes));
        both.end();
    }
}

#[test]
fn a_communicator_that_refuses_a_block_keeps_none() {
    let _alone = alone();
    let both = Two::simulated(1);
    let streams = both.streams();
    let simulator = &both.simulators[0];
    let ranks = join(&streams).unwrap();
    let adaptor = RegisteringAdaptor::new(CudaResource::new(&both.one));
    let make = |length| DeviceVec::<u8>::zeroed_in(&streams[0], length, adaptor.clone()).unwrap();
    let vecs = [100, 200, 300].map(make);
    simulator.fail_call("ncclCommRegister", 3, 5).unwrap(); // ncclInvalidUsage
    let error = adaptor.register_with(&ranks[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(adaptor.registered_blocks(), 0);
    assert_eq!(simulator.call_count("ncclCommDeregister"), 2, "those that were made before");
    adaptor.register_with(&ranks[0]).unwrap();
    assert_eq!(adaptor.registered_blocks(), 3);
    // No bytes are no block to know of.
    let asked = simulator.call_count("ncclCommRegister");
    let empty = adaptor.allocate(&streams[0], DeviceLayout::new(0).unwrap()).unwrap();
    support::free(&adaptor, &streams[0], empty);
    assert_eq!(simulator.call_count("ncclCommRegister"), asked);
    drop((vecs, adaptor, ranks));
    drop(streams);
    both.end();
}

#[test]
fn a_lost_rank_is_told_of_though_another_thread_has_its_lock() {
    let _alone = alone();
    let both = Two::simulated(1);
    let streams = both.streams();
    let adaptor = RegisteringAdaptor::new(CudaResource::new(&both.one));
    let mut vec = DeviceVec::<u8>::zeroed(&streams[0], 8).unwrap();
    for _ in 0..40 {
        let mut ranks = join(&streams).unwrap();
        adaptor.register_with(&ranks[0]).unwrap();
        ranks[0].broadcast_in_place(&mut vec, 1).unwrap();
        // What the stream was given ends without a result.
        drop(ranks.pop());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let blocks = [(); 2].map(|()| {
                // Each block is registered under the rank's lock.
                threads.spawn(|| {
                    let mut blocks = Vec::new();
                    while !is_over.load(Ordering::Relaxed) {
                        blocks.push(adaptor.allocate(&streams[0], support::layout(8)).unwrap());
                    }
                    blocks
                })
            });
            std::thread::sleep(Duration::from_millis(1));
            let waited = ranks[0].synchronize(SOON);
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(waited.unwrap_err().kind(), ErrorKind::CommunicatorLost);
            for block in blocks.into_iter().flat_map(|blocks| blocks.join().unwrap()) {
                support::free(&adaptor, &streams[0], block);
            }
        });
    }
    drop((vec, adaptor));
    drop(streams);
    both.end();
}

#[test]
fn a_capture_that_begins_while_a_collective_waits_for_room_refuses_it() {
    let _alone = alone();
    let both = Two::simulated(1);
    let streams = both.streams();
    let ranks = join(&streams).unwrap();
    let mut data = vectors::<f32>(&streams, [&[1.0; 2], &[1.0; 2]]);
    let (one, two) = data.split_at_mut(1);
    let simulator = &both.simulators[0];
    let refused = std::thread::scope(|threads| {
        let first = threads.spawn(|| {
            // As many as a rank may be ahead, and one that waits.
            (0..257).find_map(|_| ranks[0].all_reduce_in_place(&mut one[0], ReduceOp::Max).err())
        });
        while simulator.call_count("ncclAllReduce") < 256 {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(50));
        simulator.start_capture(&streams[0]).unwrap();
        for _ in 0..128 {
            ranks[1].all_reduce_in_place(&mut two[0], ReduceOp::Max).unwrap();
        }
        first.join().unwrap()
    });
    let error = refused.unwrap();
    assert_eq!(error.kind(), ErrorKind::Capture, "{error}");
    assert!(error.driver().is_none(), "NCCL was asked: {error}");
    assert!(simulator.stop_capture(&streams[0]), "the capture is as it was");
    ranks[0].check().unwrap();
    for _ in 0..128 {
        ranks[1].all_reduce_in_place(&mut two[0], ReduceOp::Max).unwrap();
    }
    ranks.iter().for_each(|rank| rank.synchronize(SOON).unwrap());
    drop((data, ranks));
    drop(streams);
    both.end();
}

#[test]
fn a_wait_for_collectives_keeps_no_other_thread_off_the_stream() {
    let _alone = alone();
    let both = Two::simulated(1);
    let streams = both.streams();
    let ranks = join(&streams).unwrap();
    let mut data = vectors::<f32>(&streams, [&[1.0; 2], &[1.0; 2]]);
    let pool = PoolResource::new(CudaResource::new(&both.one)).unwrap();
    let (one, two) = data.split_at_mut(1);
    ranks[0].all_reduce_in_place(&mut one[0], ReduceOp::Max).unwrap();
    std::thread::scope(|threads| {
        let waits = threads.spawn(|| ranks[0].synchronize(SOON));
        std::thread::sleep(Duration::from_millis(100));
        // A capture has the stream to itself.
        let graph = streams[0].capture(&pool, |_| Ok::<(), aquifer::Error>(()));
        ranks[1].all_reduce_in_place(&mut two[0], ReduceOp::Max).unwrap();
        waits.join().unwrap().unwrap();
        drop(graph.unwrap());
    });
    drop((data, ranks, pool));
    drop(streams);
    both.end();
}

#[test]
fn a_registration_that_a_collective_came_before_is_taken_back_under_it() {
    let _alone = alone();
    let both = Two::simulated(1);
    let streams = both.streams();
    let ranks = join(&streams).unwrap();
    let adaptor = RegisteringAdaptor::new(CudaResource::new(&both.one));
    let make = || DeviceVec::<f32>::zeroed_in(&streams[0], 10, adaptor.clone()).unwrap();
    let (mut vec, other) = (make(), make());
    ranks[0].all_reduce_in_place(&mut vec, ReduceOp::Sum).unwrap();
    // The second block is refused, so the first one's registration is taken back. No collective knows it.
    both.simulators[0].fail_call("ncclCommRegister", 2, 5).unwrap();
    adaptor.register_with(&ranks[0]).unwrap_err();
    both.check("a refused registration");
    // Nothing is to wait for the other rank, which never calls.
    ranks.iter().for_each(Communicator::abort);
    drop((vec, other, adaptor, ranks));
    drop(streams);
    both.end();
}

/// The simulated device sees what the tests above ask it for.
#[test]
fn memory_that_is_taken_back_too_early_is_reported() {
    let _alone = alone();
    let both = Two::simulated(1);
    let (streams, others) = (both.streams(), both.streams());
    let (ranks, idle) = (join(&streams).unwrap(), join(&others).unwrap());
    let adaptor = RegisteringAdaptor::new(CudaResource::new(&both.one));
    adaptor.register_with(&idle[0]).unwrap();
    let mut vec = DeviceVec::<f32>::zeroed_in(&streams[0], 10, adaptor.clone()).unwrap();
    ranks[0].all_reduce_in_place(&mut vec, ReduceOp::Sum).unwrap();
    let (_, block, ..) = vec.into_raw_parts().unwrap();
    // Wrong on purpose: neither this stream nor this rank waits for the collective.
    support::free(&adaptor, &others[0], block);
    let reports = both.simulators[0].take_reports();
    // Nothing is to wait for the other rank, which never calls.
    ranks.iter().for_each(Communicator::abort);
    let early = |report: &aquifer::sim::Report| {
        report.kind() == Violation::FreeWhileInUse
            && report.to_string().contains("ncclCommDeregister")
    };
    assert!(reports.iter().any(early), "{reports:?}");
}
