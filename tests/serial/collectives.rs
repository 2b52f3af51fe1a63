//! Collectives of two ranks: on two simulated devices, and on two GPUs by NCCL.

use crate::two::Two;
use crate::{alone, support};
use aquifer::sim::SimConfig;
use aquifer::{
    Communicator, CudaResource, Device, DeviceBuffer, DeviceResource, DeviceVec, ErrorKind,
    PoolResource, Result, Stream,
    collective::{CommunicatorId, Group, ReduceElement, ReduceOp, RegisteringAdaptor},
    mr::{NcclResource, VirtualResource},
};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Two devices, a stream of each, and a rank on it; or word that `name` is skipped.
pub(crate) fn two_ranks(name: &str) -> Option<(Two, [Stream; 2], Vec<Communicator>)> {
    let both = Two::open(name)?;
    let streams = both.streams();
    match join(&streams) {
        Ok(ranks) => Some((both, streams, ranks)),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            support::skipped(name, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A rank on each stream.
pub(crate) fn join(streams: &[Stream]) -> Result<Vec<Communicator>> {
    // SAFETY: the ranks of a test give the same collectives; where one does not, it is on simulated devices, or waits for
    // none that the other would begin.
    unsafe { Communicator::from_streams(streams) }
}

/// A vector for each rank.
pub(crate) fn vectors<T: bytemuck::Pod>(
    streams: &[Stream; 2],
    values: [&[T]; 2],
) -> Vec<DeviceVec<T>> {
    let make = |(stream, values): (&Stream, &[T])| DeviceVec::from_slice(stream, values).unwrap();
    streams.iter().zip(values).map(make).collect()
}

/// What an all-reduce of two ranks gives, out of place and in place.
fn check_reduce<T: ReduceElement + PartialEq + Debug>(
    streams: &[Stream; 2],
    ranks: &[Communicator],
    (values, op): ([&[T]; 2], ReduceOp),
    expected: &[T],
) {
    let mut data = vectors(streams, values);
    let mut results = vectors(streams, values);
    let mut group = Group::new();
    for ((rank, send), receive) in ranks.iter().zip(&data).zip(&mut results) {
        group.all_reduce(rank, send, receive, op).unwrap();
    }
    group.run().unwrap();
    let mut group = Group::new();
    for (rank, data) in ranks.iter().zip(&mut data) {
        group.all_reduce_in_place(rank, data, op).unwrap();
    }
    group.run().unwrap();
    for vec in results.iter().chain(&data) {
        assert_eq!(vec.to_vec().unwrap(), expected, "{op:?} of {}", std::any::type_name::<T>());
    }
}

#[test]
fn ranks_reduce_elements_of_each_type_by_each_operator() {
    let _alone = alone();
    let name = "ranks_reduce_elements_of_each_type_by_each_operator";
    let Some((both, streams, ranks)) = two_ranks(name) else { return };
    use ReduceOp::{Average, Max, Min, Product, Sum};
    macro_rules! check {
        ($($type:ty),+) => {$(
            let (one, two): ([$type; 3], [$type; 3]) = ([1 as _, 6 as _, 8 as _], [3 as _, 2 as _, 8 as _]);
            for (op, expected) in [
                (Sum, [4, 8, 16]),
                (Product, [3, 12, 64]),
                (Max, [3, 6, 8]),
                (Min, [1, 2, 8]),
                (Average, [2, 4, 8]),
            ] {
                let expected = expected.map(|value| value as $type);
                check_reduce::<$type>(&streams, &ranks, ([&one, &two], op), &expected);
            }
        )+};
    }
    check!(i8, u8, i32, u32, i64, u64, f32, f64);
    check_reduce::<i32>(&streams, &ranks, ([&[i32::MAX], &[1]], Sum), &[i32::MIN]);
    both.check("all-reduces");
    drop(ranks);
    drop(streams);
    both.end();
}

#[cfg(feature = "half")]
#[test]
fn ranks_reduce_floats_of_16_bits() {
    use aquifer::half::{bf16, f16};
    let _alone = alone();
    let Some((both, streams, ranks)) = two_ranks("ranks_reduce_floats_of_16_bits") else { return };
    let (one, two) = ([1.0, 6.0, -8.0], [3.0, 0.5, 8.0]);
    for (op, expected) in [
        (ReduceOp::Sum, [4.0, 6.5, 0.0]),
        (ReduceOp::Product, [3.0, 3.0, -64.0]),
        (ReduceOp::Max, [3.0, 6.0, 8.0]),
        (ReduceOp::Min, [1.0, 0.5, -8.0]),
        (ReduceOp::Average, [2.0, 3.25, 0.0]),
    ] {
        let values = ([one, two].map(|it| it.map(f16::from_f32)), expected.map(f16::from_f32));
        check_reduce(&streams, &ranks, ([&values.0[0], &values.0[1]], op), &values.1);
        let values = ([one, two].map(|it| it.map(bf16::from_f32)), expected.map(bf16::from_f32));
        check_reduce(&streams, &ranks, ([&values.0[0], &values.0[1]], op), &values.1);
    }
    drop(ranks);
    drop(streams);
    both.end();
}

#[test]
fn a_group_takes_ranks_of_one_kind_of_device() {
    let _alone = alone();
    if !support::on_gpu() {
        let name = "a_group_takes_ranks_of_one_kind_of_device";
        return support::skipped(name, "it needs a GPU");
    }
    let gpu = Device::open(0).unwrap();
    let (simulated, _) = support::simulated(SimConfig::default());
    let streams = [gpu.new_stream().unwrap(), simulated.new_stream().unwrap()];
    let ranks =
        streams.each_ref().map(|stream| join(std::slice::from_ref(stream)).unwrap().remove(0));
    let mut data = vectors::<f32>(&streams, [&[1.0], &[2.0]]);
    let [one, two] = &mut data[..] else { panic!("two ranks") };
    let mut group = Group::new();
    group.all_reduce_in_place(&ranks[0], one, ReduceOp::Sum).unwrap();
    let error = group.all_reduce_in_place(&ranks[1], two, ReduceOp::Sum).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongDevice);
    group.run().unwrap();
    let error = join(&streams).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongDevice);
}

#[test]
fn ranks_gather_scatter_broadcast_and_reduce_to_one() {
    let _alone = alone();
    let name = "ranks_gather_scatter_broadcast_and_reduce_to_one";
    let Some((both, streams, ranks)) = two_ranks(name) else { return };
    // All-gather, of plain data that no reduction takes, and of bytes.
    let parts = vectors::<[u8; 3]>(&streams, [&[[1, 2, 3]], &[[4, 5, 6]]]);
    let mut wholes = vectors::<[u8; 3]>(&streams, [&[[0; 3]; 2]; 2]);
    let mut in_place = vectors::<u16>(&streams, [&[7, 8, 0, 0], &[0, 0, 9, 10]]);
    let mut group = Group::new();
    for (((rank, part), whole), own) in ranks.iter().zip(&parts).zip(&mut wholes).zip(&mut in_place)
    {
        group.all_gather(rank, part, whole).unwrap();
        group.all_gather_in_place(rank, own).unwrap();
    }
    assert_eq!(group.len(), 4);
    group.run().unwrap();
    for (whole, own) in wholes.iter().zip(&in_place) {
        assert_eq!(whole.to_vec().unwrap(), [[1, 2, 3], [4, 5, 6]]);
        assert_eq!(own.to_vec().unwrap(), [7, 8, 9, 10]);
    }
    // Reduce-scatter.
    let mut sends = vectors::<i64>(&streams, [&[1, 2, 3, 4], &[10, 20, 30, 40]]);
    let mut results = vectors::<i64>(&streams, [&[0, 0]; 2]);
    let mut group = Group::new();
    for ((rank, send), result) in ranks.iter().zip(&sends).zip(&mut results) {
        group.reduce_scatter(rank, send, result, ReduceOp::Sum).unwrap();
    }
    group.run().unwrap();
    let mut group = Group::new();
    for (rank, send) in ranks.iter().zip(&mut sends) {
        group.reduce_scatter_in_place(rank, send, ReduceOp::Sum).unwrap();
    }
    group.run().unwrap();
    for (rank, expected) in [[11, 22], [33, 44]].iter().enumerate() {
        assert_eq!(results[rank].to_vec().unwrap(), expected);
        assert_eq!(sends[rank].slice(2 * rank..2 * rank + 2).unwrap().to_vec().unwrap(), expected);
    }
    drop((sends, results));
    // Broadcast from rank 1, of buffers too, and a reduce to it.
    let sends = vectors::<f32>(&streams, [&[], &[5.0, 6.0]]);
    let mut received = vectors::<f32>(&streams, [&[0.0; 2]; 2]);
    let mut buffers = [1, 2]
        .map(|byte| DeviceBuffer::from_slice(&streams[usize::from(byte) - 1], &[byte; 5]).unwrap());
    let mut group = Group::new();
    for (((rank, send), receive), buffer) in
        ranks.iter().zip(&sends).zip(&mut received).zip(&mut buffers)
    {
        group.broadcast(rank, send, receive, 1).unwrap();
        group.broadcast_in_place(rank, buffer, 1).unwrap();
    }
    group.run().unwrap();
    let mut reduced = vectors::<f32>(&streams, [&[], &[0.0; 2]]);
    let mut group = Group::new();
    for ((rank, send), result) in ranks.iter().zip(&received).zip(&mut reduced) {
        group.reduce(rank, send, result, ReduceOp::Sum, 1).unwrap();
    }
    group.run().unwrap();
    assert_eq!(reduced[1].to_vec().unwrap(), [10.0, 12.0]);
    for (receive, buffer) in received.iter().zip(&buffers) {
        assert_eq!(receive.to_vec().unwrap(), [5.0, 6.0]);
        assert_eq!(buffer.to_vec().unwrap(), [2; 5]);
    }
    let mut group = Group::new();
    for (rank, receive) in ranks.iter().zip(&mut received) {
        group.reduce_in_place(rank, receive, ReduceOp::Max, 1).unwrap();
    }
    group.run().unwrap();
    assert_eq!(received[0].to_vec().unwrap(), [5.0, 6.0]);
    both.check("all collectives");
    drop((wholes, in_place, parts, sends, received, buffers, reduced, ranks));
    drop(streams);
    both.end();
}

#[test]
fn ranks_exchange_by_sends_and_receives_of_one_group() {
    let _alone = alone();
    let name = "ranks_exchange_by_sends_and_receives_of_one_group";
    let Some((both, streams, ranks)) = two_ranks(name) else { return };
    let sends = vectors::<u32>(&streams, [&[1, 2, 3], &[4, 5, 6]]);
    let mut received = vectors::<u32>(&streams, [&[0; 4]; 2]);
    for round in 0..3_u32 {
        let mut group = Group::new();
        let mut halves: Vec<_> =
            received.iter_mut().map(|vec| vec.split_at_mut(1).unwrap().1).collect();
        for (at, (send, receive)) in sends.iter().zip(&mut halves).enumerate() {
            group.send(&ranks[at], send, 1 - at).unwrap();
            group.receive(&ranks[at], receive, 1 - at).unwrap();
        }
        group.run().unwrap();
        let expected = [[0, 4, 5, 6], [0, 1, 2, 3]];
        for (vec, expected) in received.iter().zip(expected) {
            assert_eq!(vec.to_vec().unwrap(), expected, "in round {round}");
        }
    }
    both.check("sends and receives");
    drop((sends, received, ranks));
    drop(streams);
    both.end();
}

#[test]
fn a_thread_for_each_rank_joins_by_an_id() {
    let _alone = alone();
    let name = "a_thread_for_each_rank_joins_by_an_id";
    let Some((both, _, first)) = two_ranks(name) else { return };
    drop(first);
    let id = CommunicatorId::new(&both.one).unwrap();
    let id = CommunicatorId::from_bytes(*id.as_bytes());
    let work = |device: &Device, rank: usize| -> Result<Vec<f32>> {
        let stream = device.new_stream()?;
        // SAFETY: both ranks run this very function.
        let communicator = unsafe { Communicator::new(&stream, &id, rank, 2)? };
        assert_eq!((communicator.rank(), communicator.ranks()), (rank, 2));
        assert_eq!((communicator.stream(), communicator.device()), (&stream, device));
        // Home is another stream of the device, and its work comes before.
        let home = device.new_stream()?;
        let mut sum = DeviceVec::<f32>::zeroed(&home, 1 << 16)?;
        for round in 0..20 {
            sum.fill((rank + round) as f32)?;
            communicator.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
            // Used and dropped at home while the collective may run.
            let doubled = sum.try_clone()?;
            drop(doubled);
        }
        communicator.synchronize(SOON)?;
        sum.to_vec()
    };
    let (one, two) = std::thread::scope(|threads| {
        let other = threads.spawn(|| work(&both.two, 1));
        (work(&both.one, 0), other.join().unwrap())
    });
    assert_eq!((one.unwrap(), two.unwrap()), (vec![39.0; 1 << 16], vec![39.0; 1 << 16]));
    both.end();
}

#[test]
fn a_group_that_is_dropped_or_refused_has_done_nothing() {
    let _alone = alone();
    let name = "a_group_that_is_dropped_or_refused_has_done_nothing";
    let Some((both, streams, ranks)) = two_ranks(name) else { return };
    let mut data = vectors::<u32>(&streams, [&[1, 2, 3], &[4, 5, 6]]);
    let shorter = vectors::<u32>(&streams, [&[0; 2]; 2]);
    let mut group = Group::new();
    group.all_reduce_in_place(&ranks[0], &mut data[0], ReduceOp::Sum).unwrap();
    drop(group);
    Group::new().run().unwrap();
    let kind = |result: Result<()>| result.unwrap_err().kind();
    let (one, two) = data.split_at_mut(1);
    let (one, two) = (&mut one[0], &mut two[0]);
    assert_eq!(
        kind(ranks[0].all_reduce(&shorter[0], one, ReduceOp::Sum)),
        ErrorKind::LengthMismatch
    );
    assert_eq!(kind(ranks[0].all_gather(&shorter[0], one)), ErrorKind::LengthMismatch);
    assert_eq!(kind(ranks[0].all_gather_in_place(one)), ErrorKind::LengthMismatch);
    assert_eq!(
        kind(ranks[0].reduce_scatter(&shorter[0], one, ReduceOp::Sum)),
        ErrorKind::LengthMismatch
    );
    assert_eq!(
        kind(ranks[0].reduce_scatter_in_place(one, ReduceOp::Sum)),
        ErrorKind::LengthMismatch
    );
    assert_eq!(kind(ranks[1].broadcast(&shorter[1], two, 1)), ErrorKind::LengthMismatch);
    assert_eq!(kind(ranks[0].broadcast_in_place(one, 2)), ErrorKind::InvalidArgument);
    assert_eq!(kind(ranks[0].send(one, 2)), ErrorKind::InvalidArgument);
    assert_eq!(kind(ranks[0].receive(two, 1)), ErrorKind::WrongDevice);
    assert_eq!(kind(ranks[0].send(two, 1)), ErrorKind::WrongDevice);
    // And in capture, of the rank's stream and of a home.
    let home = both.one.new_stream().unwrap();
    let mut captured = DeviceVec::<u32>::zeroed(&home, 3).unwrap();
    let pool = PoolResource::new(CudaResource::new(&both.one)).unwrap();
    for (stream, vec) in [(&streams[0], &mut *one), (&home, &mut captured)] {
        let captured = stream.capture(&pool, |_| {
            assert_eq!(kind(ranks[0].all_reduce_in_place(vec, ReduceOp::Sum)), ErrorKind::Capture);
            Ok::<(), aquifer::Error>(())
        });
        drop(captured.unwrap());
    }
    // All is as it was: the next one that both ranks call is the first.
    let mut group = Group::new();
    group.all_reduce_in_place(&ranks[0], one, ReduceOp::Sum).unwrap();
    group.all_reduce_in_place(&ranks[1], two, ReduceOp::Sum).unwrap();
    group.run().unwrap();
    assert_eq!(two.to_vec().unwrap(), [5, 7, 9]);
    drop((data, shorter, captured, pool, ranks));
    drop((streams, home));
    both.end();
}

#[test]
fn collectives_of_no_elements_are_collectives() {
    let _alone = alone();
    let name = "collectives_of_no_elements_are_collectives";
    let Some((both, streams, ranks)) = two_ranks(name) else { return };
    let mut empty = vectors::<f32>(&streams, [&[]; 2]);
    let mut group = Group::new();
    for (rank, vec) in ranks.iter().zip(&mut empty) {
        group.all_reduce_in_place(rank, vec, ReduceOp::Sum).unwrap();
    }
    group.run().unwrap();
    let mut group = Group::new();
    for (rank, vec) in ranks.iter().zip(&mut empty) {
        group.all_gather_in_place(rank, vec).unwrap();
    }
    group.run().unwrap();
    ranks.iter().for_each(|rank| rank.synchronize(SOON).unwrap());
    drop((empty, ranks));
    drop(streams);
    both.end();
}

/// Works that a rank alone gives, while the other one never comes.
fn lose_the_other(ranks: &[Communicator], data: &mut DeviceVec<f32>) -> aquifer::Error {
    ranks[0].all_reduce_in_place(data, ReduceOp::Sum).unwrap();
    ranks[0].synchronize(Duration::from_millis(300)).unwrap_err()
}

#[test]
fn a_rank_that_waits_too_long_is_aborted_and_its_vectors_stay_sound() {
    let _alone = alone();
    let name = "a_rank_that_waits_too_long_is_aborted_and_its_vectors_stay_sound";
    let Some((both, streams, ranks)) = two_ranks(name) else { return };
    let mut data = vectors::<f32>(&streams, [&[1.0; 1000], &[2.0; 1000]]);
    // Connections are made by the first collective, for which NCCL has the host wait.
    let mut group = Group::new();
    for (rank, vec) in ranks.iter().zip(&mut data) {
        group.all_reduce_in_place(rank, vec, ReduceOp::Sum).unwrap();
    }
    group.run().unwrap();
    ranks.iter().for_each(|rank| rank.synchronize(SOON).unwrap());
    let error = lose_the_other(&ranks, &mut data[0]);
    assert_eq!(error.kind(), ErrorKind::CommunicatorLost);
    assert!(error.to_string().contains("rank 0 among 2"), "{error}");
    // The same again, from each call.
    let again = ranks[0].broadcast_in_place(&mut data[0], 0).unwrap_err();
    assert_eq!(again.to_string(), error.to_string());
    assert_eq!(ranks[0].check().unwrap_err().kind(), ErrorKind::CommunicatorLost);
    // The vector is sound: its home goes on, it can be written, read and dropped.
    data[0].fill(7.0).unwrap();
    assert_eq!(data[0].to_vec().unwrap(), [7.0; 1000]);
    drop(ranks);
    // A new communicator serves.
    let ranks = join(&streams).unwrap();
    data[1].fill(1.0).unwrap();
    let mut group = Group::new();
    for (rank, vec) in ranks.iter().zip(&mut data) {
        group.all_reduce_in_place(rank, vec, ReduceOp::Sum).unwrap();
    }
    group.run().unwrap();
    assert_eq!(data[1].to_vec().unwrap(), [8.0; 1000]);
    drop((data, ranks));
    drop(streams);
    both.end();
}

#[test]
fn a_rank_is_aborted_by_another_thread_while_its_stream_is_waited_for() {
    let _alone = alone();
    let name = "a_rank_is_aborted_by_another_thread_while_its_stream_is_waited_for";
    let Some((both, streams, ranks)) = two_ranks(name) else { return };
    let mut data = vectors::<f32>(&streams, [&[1.0; 10], &[2.0; 10]]);
    let mut group = Group::new();
    for (rank, vec) in ranks.iter().zip(&mut data) {
        group.all_reduce_in_place(rank, vec, ReduceOp::Sum).unwrap();
    }
    group.run().unwrap();
    ranks.iter().for_each(|rank| rank.synchronize(SOON).unwrap());
    ranks[0].all_reduce_in_place(&mut data[0], ReduceOp::Sum).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            ranks[0].abort();
        });
        // Its elements are of no account.
        assert_eq!(data[0].to_vec().unwrap().len(), 10);
    });
    assert_eq!(ranks[0].synchronize(SOON).unwrap_err().kind(), ErrorKind::CommunicatorLost);
    drop((data, ranks));
    drop(streams);
    both.end();
}

#[test]
fn a_rank_that_nobody_else_joins_gives_up() {
    let _alone = alone();
    let name = "a_rank_that_nobody_else_joins_gives_up";
    let Some((both, streams, ranks)) = two_ranks(name) else { return };
    drop(ranks);
    let id = CommunicatorId::new(&both.one).unwrap();
    let options = Communicator::builder(&streams[0]).timeout(Duration::from_millis(200));
    // SAFETY: no rank joins.
    let error = unsafe { options.join(&id, 0, 2) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CommunicatorLost);
    assert!(error.to_string().contains("rank 0 among 2"), "{error}");
    // SAFETY: it is refused.
    let error = unsafe { Communicator::new(&streams[0], &id, 2, 2) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let error = join(&[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let twice = [streams[0].clone(), both.one.new_stream().unwrap()];
    let error = join(&twice).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    // On a GPU, NCCL's thread goes on waiting: nothing of the test's is its own.
}

#[test]
fn a_pools_blocks_are_registered_once_each_and_taken_back_before_they_go() {
    let _alone = alone();
    // NCCL looks at the first handle of mapped memory alone: below the adaptor each block is one.
    registers_blocks("cuMemAlloc", |device| Arc::new(CudaResource::new(device)));
    registers_blocks("cuMemCreate", |device| Arc::new(VirtualResource::new(device).unwrap()));
}

/// `call` is that by which the upstream makes a block.
fn registers_blocks(call: &str, upstream: impl Fn(&Device) -> Arc<dyn DeviceResource>) {
    let name = "a_pools_blocks_are_registered_once_each_and_taken_back_before_they_go";
    let Some((both, streams, ranks)) = two_ranks(name) else { return };
    let adaptors = [&both.one, &both.two].map(|device| RegisteringAdaptor::new(upstream(device)));
    let pools = adaptors.each_ref().map(|adaptor| PoolResource::new(adaptor.clone()).unwrap());
    let make = |at: usize, bytes: usize| {
        DeviceVec::<f32>::zeroed_in(&streams[at], bytes / 4, pools[at].clone()).unwrap()
    };
    // Blocks before the communicator comes, and after.
    let early = [make(0, 4 << 20), make(1, 4 << 20)];
    for (adaptor, rank) in adaptors.iter().zip(&ranks) {
        assert_eq!(adaptor.registered_blocks(), 0);
        adaptor.register_with(rank).unwrap();
        adaptor.register_with(rank).unwrap();
        assert_eq!(adaptor.registered_blocks(), 1);
    }
    let wrong = adaptors[0].register_with(&ranks[1]).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::WrongDevice);
    let mut late = [make(0, 64 << 20), make(1, 64 << 20)];
    assert_eq!(adaptors[0].registered_blocks(), 2);
    let mut group = Group::new();
    for ((rank, early), late) in ranks.iter().zip(&early).zip(&mut late) {
        late.slice_mut(..early.len()).unwrap().fill(1.0).unwrap();
        group.all_reduce_in_place(rank, late, ReduceOp::Sum).unwrap();
    }
    group.run().unwrap();
    assert_eq!(late[1].get(10).unwrap(), 2.0);
    drop(late);
    // The block of the freed vectors goes back to the driver, deregistered first.
    pools.iter().for_each(|pool| assert_eq!(pool.wait_and_trim(4 << 20).unwrap(), 64 << 20));
    assert_eq!(adaptors[1].registered_blocks(), 1);
    if let [first, _] = &*both.simulators {
        assert_eq!((first.call_count(call), first.call_count("ncclCommRegister")), (2, 2));
        assert_eq!(first.call_count("ncclCommDeregister"), 1);
    }
    // The communicator goes first: then nothing is registered.
    drop(ranks);
    assert_eq!(adaptors[0].registered_blocks(), 0);
    drop((early, pools, adaptors));
    drop(streams);
    both.end();
}

/// Memory of many handles is reduced as any other.
#[test]
fn mapped_memory_is_reduced() {
    let _alone = alone();
    let Some((both, streams, ranks)) = two_ranks("mapped_memory_is_reduced") else { return };
    let make = |stream: &Stream| {
        let pool = PoolResource::new(VirtualResource::new(stream.device()).unwrap()).unwrap();
        let mut vec = DeviceVec::<f32>::zeroed_in(stream, 1000, pool).unwrap();
        // In place, by further handles.
        vec.resize(10 << 20, 1.0).unwrap();
        vec.fill(1.0).unwrap();
        vec
    };
    let mut data: Vec<_> = streams.iter().map(make).collect();
    let mut group = Group::new();
    for (rank, vec) in ranks.iter().zip(&mut data) {
        group.all_reduce_in_place(rank, vec, ReduceOp::Sum).unwrap();
    }
    group.run().unwrap();
    assert!(data.iter().all(|vec| vec.to_vec().unwrap().iter().all(|sum| *sum == 2.0)));
    drop((data, ranks));
    drop(streams);
    both.end();
}

#[test]
fn nccls_own_memory_serves_a_pool() {
    let _alone = alone();
    let name = "nccls_own_memory_serves_a_pool";
    let Some((both, streams, ranks)) = two_ranks(name) else { return };
    let mut data = Vec::new();
    for (stream, rank) in streams.iter().zip(&ranks) {
        let adaptor = RegisteringAdaptor::new(NcclResource::new(stream.device()));
        adaptor.register_with(rank).unwrap();
        let pool = PoolResource::new(adaptor).unwrap();
        both.check("a pool of NCCL's memory");
        data.push(DeviceVec::<f64>::zeroed_in(stream, 100_000, pool).unwrap());
    }
    for vec in &mut data {
        vec.fill(1.5).unwrap();
    }
    let mut group = Group::new();
    for (rank, vec) in ranks.iter().zip(&mut data) {
        group.all_reduce_in_place(rank, vec, ReduceOp::Sum).unwrap();
    }
    group.run().unwrap();
    assert_eq!(data[0].to_vec().unwrap(), [3.0; 100_000]);
    drop((data, ranks));
    drop(streams);
    both.end();
}
