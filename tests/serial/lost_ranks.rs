//! Ranks that do not do what the others expect: what a GPU cannot tell, or waits for without an end.

use crate::alone;
use crate::collective_uses::join_within;
use crate::collectives::{SOON, join, two_ranks, vectors};
use crate::support;
use crate::two::Two;
use aquifer::sim::Report;
use aquifer::sim::{SimConfig, Violation};
use aquifer::{
    Communicator, CudaResource, Device, DeviceVec, ErrorKind, PoolResource, Stream,
    collective::{CommunicatorId, Group, ReduceOp, RegisteringAdaptor},
};
use std::time::Duration;

#[test]
fn ranks_that_call_different_collectives_are_reported() {
    let _alone = alone();
    for seed in 0..4 {
        let both = Two::simulated(seed);
        let streams = both.streams();
        let ranks = join(&streams).unwrap();
        let mut data = vectors::<f32>(&streams, [&[1.0; 10], &[2.0; 12]]);
        ranks[0].all_reduce_in_place(&mut data[0], ReduceOp::Sum).unwrap();
        let error = ranks[1].all_reduce_in_place(&mut data[1], ReduceOp::Sum).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Simulation);
        let report = Report::of(&error).unwrap();
        assert_eq!(report.kind(), Violation::CollectiveMismatch);
        let text = report.to_string();
        assert!(text.contains("rank 0 asked for an all-reduce of 10 F32 by Sum"), "{text}");
        assert!(report.operation_location().unwrap().file().ends_with("lost_ranks.rs"));
        assert!(report.conflict_location().is_some());
        // The first one's wait ends, too.
        let error = ranks[0].synchronize(SOON).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CommunicatorLost);
        assert_eq!(data[0].to_vec().unwrap(), [1.0; 10]);
        let taken = both.simulators[1].take_reports();
        assert_eq!(taken.len(), 1);
        drop((data, ranks));
        drop(streams);
        both.end();
    }
}

#[test]
fn a_rank_that_has_left_is_missed_at_the_next_call() {
    let _alone = alone();
    let both = Two::simulated(1);
    let streams = both.streams();
    let mut ranks = join(&streams).unwrap();
    let mut data = vectors::<f32>(&streams, [&[1.0; 10], &[2.0; 10]]);
    ranks.pop();
    let error = ranks[0].all_reduce_in_place(&mut data[0], ReduceOp::Sum).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CommunicatorLost);
    assert!(error.to_string().contains("rank 1 among 2 ranks has left"), "{error}");
    assert_eq!(data[0].to_vec().unwrap(), [1.0; 10]);
    drop((data, ranks));
    drop(streams);
    both.end();
}

#[test]
fn a_wait_for_a_rank_that_never_calls_ends_with_a_report() {
    let _alone = alone();
    let config = SimConfig::default().rank_timeout(Duration::from_millis(200));
    let (one, simulator) = support::simulated(config.clone());
    let (two, _) = support::simulated(config.ordinal(1));
    let streams = [one.new_stream().unwrap(), two.new_stream().unwrap()];
    let ranks = join(&streams).unwrap();
    let mut data = vectors::<f32>(&streams, [&[1.0; 10], &[2.0; 10]]);
    ranks[0].all_reduce_in_place(&mut data[0], ReduceOp::Sum).unwrap();
    let error = data[0].to_vec().unwrap_err();
    assert_eq!(Report::of(&error).unwrap().kind(), Violation::LostRank);
    simulator.take_reports();
    assert_eq!(ranks[0].check().unwrap_err().kind(), ErrorKind::CommunicatorLost);
    assert_eq!(data[0].to_vec().unwrap(), [1.0; 10]);
}

#[test]
fn collectives_keep_the_order_of_all_streams_in_any_schedule() {
    let _alone = alone();
    for seed in 0..30 {
        let both = Two::simulated(seed);
        let streams = both.streams();
        let ranks = join(&streams).unwrap();
        let work = |rank: &Communicator, device: &Device| {
            let homes: Vec<_> = (0..3).map(|_| device.new_stream().unwrap()).collect();
            let pool = PoolResource::new(CudaResource::new(device)).unwrap();
            for round in 0..4 {
                let send =
                    DeviceVec::filled_with(&homes[round % 3], 50, rank.rank() + round, &pool);
                let mut sum =
                    DeviceVec::<u64>::zeroed_in(&homes[(round + 1) % 3], 50, pool.clone()).unwrap();
                rank.all_reduce(&send, &mut sum, ReduceOp::Sum).unwrap();
                drop(send);
                let next = DeviceVec::filled_with(&homes[(round + 2) % 3], 50, 99, &pool);
                drop(next);
                assert_eq!(sum.to_vec().unwrap(), [2 * round as u64 + 1; 50], "seed {seed}");
            }
        };
        std::thread::scope(|threads| {
            threads.spawn(|| work(&ranks[1], &both.two));
            work(&ranks[0], &both.one);
        });
        drop(ranks);
        drop(streams);
        both.end();
    }
}

/// A vector of one value, at home on a stream, in a pool.
trait Filled: Sized {
    fn filled_with(home: &Stream, length: usize, value: usize, pool: &PoolResource) -> Self;
}

impl Filled for DeviceVec<u64> {
    fn filled_with(home: &Stream, length: usize, value: usize, pool: &PoolResource) -> Self {
        let mut vec = Self::zeroed_in(home, length, pool.clone()).unwrap();
        vec.fill(value as u64).unwrap();
        vec
    }
}

#[test]
fn a_call_of_nccl_that_fails_is_typed_and_loses_nothing() {
    let _alone = alone();
    let both = Two::simulated(5);
    let streams = both.streams();
    let simulator = &both.simulators[0];
    // 5 is ncclInvalidUsage, 2 ncclSystemError.
    simulator.fail_call("ncclCommInitRank", 1, 2).unwrap();
    let error = join(&streams).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CommunicatorLost);
    assert!(error.to_string().contains("ncclSystemError"), "{error}");
    let ranks = join(&streams).unwrap();
    let mut data = vectors::<f32>(&streams, [&[1.0; 10], &[2.0; 10]]);
    let adaptor = RegisteringAdaptor::new(CudaResource::new(&both.one));
    let pool = PoolResource::new(adaptor.clone()).unwrap();
    let pooled = DeviceVec::<f32>::zeroed_in(&streams[0], 10, pool.clone()).unwrap();
    simulator.fail_call("ncclCommRegister", 1, 5).unwrap();
    let error = adaptor.register_with(&ranks[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(adaptor.registered_blocks(), 0);
    adaptor.register_with(&ranks[0]).unwrap();
    assert_eq!(adaptor.registered_blocks(), 1);
    // A wrong argument does not cost the communicator; an error of the system does.
    simulator.fail_call("ncclBroadcast", 1, 2).unwrap();
    let error = ranks[0].broadcast_in_place(&mut data[0], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CommunicatorLost);
    assert_eq!(ranks[0].check().unwrap_err().to_string(), error.to_string());
    assert_eq!(adaptor.registered_blocks(), 0, "the communicator is lost");
    assert_eq!(adaptor.register_with(&ranks[0]).unwrap_err().kind(), ErrorKind::CommunicatorLost);
    drop((pooled, pool, adaptor));
    assert_eq!(simulator.call_count("ncclCommDeregister"), 0);
    drop((data, ranks));
    drop(streams);
    both.end();
}

#[test]
fn a_rank_does_not_run_ahead_of_a_lost_one_without_an_end() {
    let _alone = alone();
    let name = "a_rank_does_not_run_ahead_of_a_lost_one_without_an_end";
    let Some((both, streams, ranks)) = two_ranks(name) else { return };
    drop(ranks);
    let id = CommunicatorId::new(&both.one).unwrap();
    let rank = |at: usize| {
        let options = Communicator::builder(&streams[at]).timeout(Duration::from_secs(2));
        // SAFETY: both ranks give all-reduces of one length; one of them ends early.
        unsafe { options.join(&id, at, 2) }.unwrap()
    };
    let ranks = std::thread::scope(|threads| {
        let other = threads.spawn(|| rank(1));
        [rank(0), other.join().unwrap()]
    });
    let mut data = vectors::<f32>(&streams, [&[1.0; 10], &[1.0; 10]]);
    let mut group = Group::new();
    for (rank, vec) in ranks.iter().zip(&mut data) {
        group.all_reduce_in_place(rank, vec, ReduceOp::Max).unwrap();
    }
    group.run().unwrap();
    ranks.iter().for_each(|rank| rank.synchronize(SOON).unwrap());
    // The other rank gives none of these, and the queue of a GPU has room for some thousand.
    let mut given = 0;
    let error = loop {
        match ranks[0].all_reduce_in_place(&mut data[0], ReduceOp::Max) {
            Ok(()) => given += 1,
            Err(error) => break error,
        }
        if given > 320 {
            // Or the end of the test would wait for the other rank.
            ranks.iter().for_each(Communicator::abort);
            panic!("it runs ahead without an end");
        }
    };
    assert_eq!(error.kind(), ErrorKind::CommunicatorLost);
    assert!((192..=320).contains(&given), "{given}");
    // Its elements may be written in part.
    assert_eq!(data[0].to_vec().unwrap().len(), 10);
    drop((data, ranks));
    drop(streams);
    both.end();
}

/// How long the ranks of the next tests wait for another one, which does not come.
const BRIEFLY: Duration = Duration::from_millis(300);

/// So many vectors of one element, at home on a stream.
fn single_elements(stream: &Stream, count: usize) -> Vec<DeviceVec<f32>> {
    (0..count).map(|_| DeviceVec::from_slice(stream, &[1.0]).unwrap()).collect()
}

/// Gives an all-reduce of each vector, in one group.
fn reduce_together(rank: &Communicator, vecs: &mut [DeviceVec<f32>]) -> aquifer::Result<()> {
    let mut group = Group::new();
    vecs.iter_mut().try_for_each(|vec| group.all_reduce_in_place(rank, vec, ReduceOp::Sum))?;
    group.run()
}

#[test]
fn a_rank_runs_no_further_ahead_however_its_collectives_are_grouped() {
    let _alone = alone();
    // Groups of such lengths, one after the other, and the number that may be given of them.
    let cases: [(&[usize], usize); 6] = [
        (&[100, 100, 57], 200),
        (&[100, 100, 56], 256),
        (&[127, 1, 127, 1, 1], 256),
        (&[256, 1], 256),
        (&[1, 256], 1),
        (&[1, 2000], 1),
    ];
    for (lengths, most) in cases {
        let both = Two::simulated(1);
        let streams = both.streams();
        let ranks = join_within(&both, &streams, BRIEFLY);
        let mut vecs = single_elements(&streams[0], 2000);
        // The other rank gives none of these.
        let given = lengths.iter().map(|&length| reduce_together(&ranks[0], &mut vecs[..length]));
        let error = given.filter_map(|given| given.err()).next();
        let count = both.simulators[0].call_count("ncclAllReduce");
        assert_eq!(count as usize, most, "{lengths:?}");
        assert_eq!(error.is_some(), lengths.iter().sum::<usize>() > most, "{lengths:?}");
        if let Some(error) = error {
            assert_eq!(error.kind(), ErrorKind::CommunicatorLost, "{lengths:?}: {error}");
        }
        ranks.iter().for_each(Communicator::abort);
        drop((vecs, ranks));
        drop(streams);
        both.end();
    }
}

#[test]
fn a_group_that_is_longer_than_the_limit_runs_alone() {
    let _alone = alone();
    let both = Two::simulated(1);
    let streams = both.streams();
    let ranks = join_within(&both, &streams, Duration::from_secs(5));
    let mut vecs = streams.each_ref().map(|stream| single_elements(stream, 2000));
    let give = |rank: usize, vecs: &mut [DeviceVec<f32>]| {
        for length in [1, 2000, 1, 300] {
            reduce_together(&ranks[rank], &mut vecs[..length]).unwrap();
        }
    };
    let [one, two] = &mut vecs;
    let [first, _] = &both.simulators[..] else { panic!("two devices") };
    std::thread::scope(|threads| {
        let gives = threads.spawn(|| give(0, one));
        while first.call_count("ncclAllReduce") < 1 {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(first.call_count("ncclAllReduce"), 1, "it waits until it is alone");
        reduce_together(&ranks[1], &mut two[..1]).unwrap();
        while first.call_count("ncclAllReduce") < 2001 && !gives.is_finished() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(first.call_count("ncclAllReduce"), 2001, "what is behind it waits");
        for length in [2000, 1, 300] {
            reduce_together(&ranks[1], &mut two[..length]).unwrap();
        }
        gives.join().unwrap();
    });
    ranks.iter().for_each(|rank| rank.synchronize(SOON).unwrap());
    for vecs in &vecs {
        assert_eq!(vecs[0].to_vec().unwrap(), [16.0]);
        assert_eq!(vecs[299].to_vec().unwrap(), [4.0]);
        assert_eq!(vecs[1999].to_vec().unwrap(), [2.0]);
    }
    drop((vecs, ranks));
    drop(streams);
    both.end();
}

#[test]
fn what_a_rank_has_waited_for_counts_as_ahead_no_more() {
    let _alone = alone();
    let both = Two::simulated(1);
    let streams = both.streams();
    let ranks = join_within(&both, &streams, BRIEFLY);
    let mut vecs = streams.each_ref().map(|stream| single_elements(stream, 256));
    let reduce = |vecs: &mut [Vec<DeviceVec<f32>>; 2], length: usize| {
        let mut group = Group::new();
        for (rank, vecs) in ranks.iter().zip(vecs) {
            for vec in &mut vecs[..length] {
                group.all_reduce_in_place(rank, vec, ReduceOp::Sum).unwrap();
            }
        }
        group.run()
    };
    reduce(&mut vecs, 1).unwrap();
    ranks.iter().for_each(|rank| rank.synchronize(SOON).unwrap());
    both.simulators[0].stall(&streams[0]).unwrap();
    // For none of them it waits, which it would in vain.
    reduce(&mut vecs, 256).unwrap();
    both.simulators[0].resume(&streams[0]).unwrap();
    ranks.iter().for_each(|rank| rank.synchronize(SOON).unwrap());
    assert_eq!(vecs[1][255].to_vec().unwrap(), [2.0]);
    drop((vecs, ranks));
    drop(streams);
    both.end();
}

#[test]
fn threads_that_share_a_rank_run_no_further_ahead_together() {
    let _alone = alone();
    let both = Two::simulated(1);
    let streams = both.streams();
    let ranks = join_within(&both, &streams, BRIEFLY);
    let mut vecs = single_elements(&streams[0], 4);
    std::thread::scope(|threads| {
        for vec in &mut vecs {
            threads.spawn(|| {
                let all_reduce = |_| ranks[0].all_reduce_in_place(vec, ReduceOp::Sum).err();
                let error = (0..257).find_map(all_reduce).unwrap();
                assert_eq!(error.kind(), ErrorKind::CommunicatorLost, "{error}");
            });
        }
    });
    assert_eq!(both.simulators[0].call_count("ncclAllReduce"), 256);
    ranks.iter().for_each(Communicator::abort);
    drop((vecs, ranks));
    drop(streams);
    both.end();
}

#[test]
fn a_mark_that_cannot_be_recorded_lets_no_rank_run_further_ahead() {
    let _alone = alone();
    let both = Two::simulated(1);
    let streams = both.streams();
    let ranks = join_within(&both, &streams, BRIEFLY);
    let mut vec = DeviceVec::from_slice(&streams[0], &[1.0_f32]).unwrap();
    let simulator = &both.simulators[0];
    for _ in 0..127 {
        ranks[0].all_reduce_in_place(&mut vec, ReduceOp::Sum).unwrap();
    }
    let recorded = simulator.call_count("cuEventRecord");
    simulator.fail_call("cuEventRecord", 1, 2).unwrap(); // CUDA_ERROR_OUT_OF_MEMORY
    ranks[0].all_reduce_in_place(&mut vec, ReduceOp::Sum).unwrap();
    assert_eq!(simulator.call_count("cuEventRecord"), recorded + 1);
    let error = (0..129).find_map(|_| ranks[0].all_reduce_in_place(&mut vec, ReduceOp::Sum).err());
    assert_eq!(error.unwrap().kind(), ErrorKind::CommunicatorLost);
    assert_eq!(simulator.call_count("ncclAllReduce"), 256);
    ranks.iter().for_each(Communicator::abort);
    drop((vec, ranks));
    drop(streams);
    both.end();
}

/// A kernel that takes its time.
static SLOW: aquifer::Kernel = aquifer::Kernel::new(
    "slow",
    ".version 6.4\n.target sm_50\n.address_size 64\n.visible .entry slow(.param .u64 data) { ret; }",
    |_, mut args| {
        args.in_out::<f32>()?;
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    },
);

#[test]
fn a_rank_whose_kernel_takes_long_is_not_given_up() {
    let _alone = alone();
    for schedule in [aquifer::sim::Schedule::OnDemand, aquifer::sim::Schedule::Background] {
        let config =
            SimConfig::default().rank_timeout(Duration::from_millis(100)).schedule(schedule);
        let (one, first) = support::simulated(config.clone());
        let (two, second) = support::simulated(config.ordinal(1));
        let streams = [one.new_stream().unwrap(), two.new_stream().unwrap()];
        let ranks = join(&streams).unwrap();
        let mut data = vectors::<f32>(&streams, [&[1.0; 4], &[2.0; 4]]);
        let launch = streams[1].launch(&SLOW).in_out(&mut data[1]).unwrap();
        // SAFETY: the kernel touches its argument alone.
        unsafe { launch.launch(aquifer::LaunchConfig::for_elements(1)) }.unwrap();
        let mut group = Group::new();
        for (rank, vec) in ranks.iter().zip(&mut data) {
            group.all_reduce_in_place(rank, vec, ReduceOp::Sum).unwrap();
        }
        group.run().unwrap();
        assert_eq!(data[0].to_vec().unwrap(), [3.0; 4]);
        ranks.iter().for_each(|rank| rank.synchronize(SOON).unwrap());
        first.check().unwrap();
        second.check().unwrap();
    }
}

#[test]
fn a_lost_device_is_a_lost_rank_to_the_others() {
    let _alone = alone();
    let both = Two::simulated(1);
    let streams = both.streams();
    let ranks = join(&streams).unwrap();
    let mut data = vectors::<f32>(&streams, [&[1.0; 4], &[2.0; 4]]);
    let mut group = Group::new();
    for (rank, vec) in ranks.iter().zip(&mut data) {
        group.all_reduce_in_place(rank, vec, ReduceOp::Sum).unwrap();
    }
    group.run().unwrap();
    both.simulators[1].lose_context();
    let error = ranks[0].synchronize(SOON).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CommunicatorLost);
    assert!(error.to_string().contains("the device of rank 1 among 2 is lost"), "{error}");
    assert_eq!(data[0].to_vec().unwrap(), [1.0; 4]);
}

#[test]
fn a_rank_that_does_not_exist_is_named_as_it_was_given() {
    let _alone = alone();
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let id = CommunicatorId::new(&device).unwrap();
    for (rank, ranks) in [(0, 0), (2, 2), (usize::MAX - 1, 2), (usize::MAX, 2)] {
        // SAFETY: each of these is refused.
        let error = unsafe { Communicator::new(&stream, &id, rank, ranks) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let told = format!("rank {rank} among {ranks} was to join");
        assert!(error.to_string().contains(&told), "{error}");
    }
}

#[test]
fn a_collective_that_fails_by_a_code_of_a_lost_context_loses_it() {
    let _alone = alone();
    let both = Two::simulated(1);
    let streams = both.streams();
    let ranks = join(&streams).unwrap();
    let mut data = vectors::<f32>(&streams, [&[1.0; 4], &[2.0; 4]]);
    both.simulators[1].fail_call("ncclAllReduce", 1, 719).unwrap();
    let mut group = Group::new();
    for (rank, vec) in ranks.iter().zip(&mut data) {
        group.all_reduce_in_place(rank, vec, ReduceOp::Sum).unwrap();
    }
    assert_eq!(group.run().unwrap_err().kind(), ErrorKind::ContextLost);
    assert_eq!(both.two.memory_info().unwrap_err().kind(), ErrorKind::ContextLost);
    both.one.memory_info().unwrap();
    drop((data, ranks, streams));
}

#[test]
fn what_nccl_refuses_of_ranks_is_refused() {
    let _alone = alone();
    let both = Two::simulated(1);
    let streams = both.streams();
    let id = CommunicatorId::new(&both.one).unwrap();
    let options = || Communicator::builder(&streams[0]).timeout(Duration::MAX);
    // SAFETY: each of these is refused.
    let many = unsafe { options().join(&id, 0, i32::MAX as usize) }.unwrap_err();
    assert_eq!(many.kind(), ErrorKind::InvalidArgument);
    // SAFETY: as above.
    let more = unsafe { options().join(&id, 0, usize::MAX) }.unwrap_err();
    assert_eq!(more.kind(), ErrorKind::InvalidArgument);
    std::thread::scope(|threads| {
        // SAFETY: two ranks of one device, of which the second is refused.
        let join = |rank| unsafe { options().join(&id, rank, 2) };
        let first = threads.spawn(move || join(0));
        while both.simulators[0].call_count("ncclCommInitRank") < 2 {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: as above.
        let twice = unsafe { options().join(&id, 1, 2) }.unwrap_err();
        assert_eq!(twice.kind(), ErrorKind::InvalidArgument);
        assert!(twice.to_string().contains("ncclInvalidArgument"), "{twice}");
        // SAFETY: neither rank gives a collective.
        let other = unsafe { Communicator::new(&streams[1], &id, 1, 2) }.unwrap();
        drop((first.join().unwrap().unwrap(), other));
    });
    let (never, _) = support::simulated(SimConfig::default().rank_timeout(Duration::MAX));
    let stream = never.new_stream().unwrap();
    drop(join(std::slice::from_ref(&stream)).unwrap());
}

#[test]
fn memory_that_is_freed_is_reported_and_brings_nothing() {
    let _alone = alone();
    let both = Two::simulated(1);
    let streams = both.streams();
    let ranks = join(&streams).unwrap();
    let plain = CudaResource::new(&both.one);
    let mut data = vectors::<f32>(&streams, [&[1.0; 4], &[2.0; 4]]);
    let gone = DeviceVec::from_slice_in(&streams[0], &[1.0_f32; 4], plain.clone()).unwrap();
    let block = aquifer::DeviceBlock::new(gone.as_device_ptr(), 16, gone.as_device_ptr());
    // SAFETY: wrong on purpose: another vector of the same memory, which is freed first.
    let stolen = unsafe { DeviceVec::<f32>::from_raw_parts(streams[0].clone(), block, 4, plain) };
    let mut stolen = stolen.unwrap();
    drop(gone);
    let mut group = Group::new();
    group.all_reduce_in_place(&ranks[0], &mut stolen, ReduceOp::Sum).unwrap();
    group.all_reduce_in_place(&ranks[1], &mut data[1], ReduceOp::Sum).unwrap();
    let _ = group.run();
    let _ = ranks[1].synchronize(SOON);
    assert_eq!(data[1].to_vec().unwrap(), [2.0; 4]);
    let reports = both.simulators[0].take_reports();
    assert!(reports.iter().all(|it| it.kind() == Violation::UseAfterFree), "{reports:?}");
    assert!(!reports.is_empty());
    std::mem::forget(stolen);
}

#[test]
fn a_rank_that_a_host_function_aborts_ends_at_the_next_call() {
    let _alone = alone();
    let both = Two::simulated(3);
    let streams = both.streams();
    let ranks: Vec<_> = join(&streams).unwrap().into_iter().map(std::sync::Arc::new).collect();
    let adaptor = RegisteringAdaptor::new(CudaResource::new(&both.one));
    adaptor.register_with(&ranks[0]).unwrap();
    let mut vec = DeviceVec::<f32>::zeroed_in(&streams[0], 10, adaptor.clone()).unwrap();
    assert_eq!(adaptor.registered_blocks(), 1);
    let other = both.one.new_stream().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let (rank, inside) = (ranks[0].clone(), adaptor.clone());
    other
        .launch_host_fn(move || {
            rank.abort();
            // Neither waits for a lock that another thread has over a call of NCCL's.
            sender.send(inside.registered_blocks()).unwrap();
        })
        .unwrap();
    other.synchronize().unwrap();
    assert_eq!(receiver.recv().unwrap(), 0);
    let lost = ranks[0].all_reduce_in_place(&mut vec, ReduceOp::Sum).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::CommunicatorLost, "{lost}");
    // A call of the program has aborted it, so the other rank does not wait for it.
    let mut own = DeviceVec::<f32>::zeroed(&streams[1], 10).unwrap();
    let began = std::time::Instant::now();
    let waited = ranks[1]
        .all_reduce_in_place(&mut own, ReduceOp::Sum)
        .and_then(|()| ranks[1].synchronize(Duration::from_secs(60)));
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::CommunicatorLost);
    assert!(began.elapsed() < Duration::from_secs(30), "not by the time that it had");
    drop(own);
    ranks[1].abort();
    drop((vec, adaptor, ranks, other));
    drop(streams);
    both.end();
}
