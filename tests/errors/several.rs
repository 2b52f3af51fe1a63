//! Peers, communicators, collectives.

use crate::support::simulated;
use crate::table::Table;
use aquifer::sim::SimConfig;
use aquifer::{
    Communicator, CudaResource, DeviceLayout, DeviceResource, DeviceVec, PoolResource,
    collective::{CommunicatorId, Group, ReduceOp},
    mr::{AsyncResource, Keep, ManagedResource, NcclResource, SystemResource, VirtualResource},
};
use std::time::Duration;

pub(crate) fn rows(table: &mut Table) {
    peers(table);
    ranks(table);
    collectives(table);
}

fn peers(table: &mut Table) {
    let (one, simulator) = simulated(SimConfig::default());
    let (two, second) = simulated(SimConfig::default().ordinal(1));
    let (apart, lost) = simulated(SimConfig::default().ordinal(2).without_peer_access());
    let plain = CudaResource::new(&one);
    let vec = DeviceVec::<u8>::zeroed_in(&one.new_stream().unwrap(), 8, plain.clone()).unwrap();
    table.failed("memory on a stream of a peer without access", vec.on(&two.new_stream().unwrap()));
    table.failed("memory on a stream out of reach", vec.on(&apart.new_stream().unwrap()));
    table.failed("access out of reach", plain.enable_peer_access(&apart));
    table.failed("access of a resource that gives none", {
        SystemResource::new(&one).unwrap().enable_peer_access(&two)
    });
    second.fail_call("cuCtxEnablePeerAccess", 1, 711).unwrap();
    table.failed("access to one peer too many", plain.enable_peer_access(&two));
    simulator.fail_call("cuMemPoolSetAccess", 1, 2).unwrap();
    let pool = AsyncResource::new(&one).unwrap();
    table.failed("access to a driver pool", pool.enable_peer_access(&two));
    let mapped = VirtualResource::new(&one).unwrap();
    let layout = DeviceLayout::new(8).unwrap();
    let stream = one.new_stream().unwrap();
    let block = mapped.allocate(&stream, layout).unwrap();
    simulator.fail_call("cuMemSetAccess", 1, 2).unwrap();
    table.failed("access to mapped memory", mapped.enable_peer_access(&two));
    // SAFETY: the block is the resource's, and no work uses it.
    unsafe { mapped.deallocate(&stream, block) };
    let managed = ManagedResource::new(&one).unwrap();
    let (without, _) = simulated(SimConfig::default().ordinal(3).without_managed_memory());
    table.failed("managed memory to a device without", managed.enable_peer_access(&without));
    lost.lose_context();
    table.failed("a lost device, asked for its peers", apart.can_access_peer(&one));
}

fn ranks(table: &mut Table) {
    let (one, simulator) = simulated(SimConfig::default());
    let (two, _) = simulated(SimConfig::default().ordinal(1));
    let stream = one.new_stream().unwrap();
    let streams = [stream.clone(), one.new_stream().unwrap()];
    simulator.fail_call("ncclGetUniqueId", 1, 2).unwrap();
    table.failed("an id where NCCL fails", CommunicatorId::new(&one));
    let id = CommunicatorId::new(&one).unwrap();
    let soon = || Communicator::builder(&stream).timeout(Duration::from_millis(20));
    // SAFETY: here and below no rank gives a collective that another one would begin.
    unsafe {
        table.failed("rank 2 of 2", Communicator::new(&stream, &id, 2, 2));
        table.failed("a communicator of no ranks", Communicator::from_streams(&[]));
        table.failed("two ranks of one device", Communicator::from_streams(&streams));
        table.failed("a rank that is alone", soon().join(&id, 0, 2));
        simulator.fail_call("ncclCommInitRank", 1, 3).unwrap();
        table.failed("a join that fails", soon().join(&CommunicatorId::new(&one).unwrap(), 0, 1));
        simulator.fail_call("ncclCommInitRank", 1, 4).unwrap();
        table
            .failed("a join that is wrong", soon().join(&CommunicatorId::new(&one).unwrap(), 0, 1));
    }
    simulator.fail_call("ncclMemAlloc", 1, 1).unwrap();
    let bytes = aquifer::DeviceLayout::new(64).unwrap();
    table.failed("NCCL's memory", NcclResource::new(&one).allocate(&stream, bytes));
    drop(two);
}

fn collectives(table: &mut Table) {
    let (one, simulator) = simulated(SimConfig::default());
    let (two, second) = simulated(SimConfig::default().ordinal(1));
    let streams = [one.new_stream().unwrap(), two.new_stream().unwrap()];
    // SAFETY: the devices are simulated, which compare what the ranks give.
    let join = || unsafe { Communicator::from_streams(&streams) }.unwrap();
    let ranks = join();
    let make = |at: usize, length| DeviceVec::<u32>::zeroed(&streams[at], length).unwrap();
    let (mut three, mut four) = (make(0, 3), make(0, 4));
    table.failed("3 to 4", ranks[0].all_reduce(&three, &mut four, ReduceOp::Sum));
    table.failed("a part of 3 of 4", ranks[0].all_gather(&three, &mut four));
    table.failed("parts of 3 for 2 ranks", ranks[0].all_gather_in_place(&mut three));
    table.failed("from rank 2", ranks[0].broadcast_in_place(&mut three, 2));
    table.failed("memory of the other's device", ranks[1].send(&three, 0));
    let mut group = Group::new();
    table.failed("in a group: to rank 9", group.send(&ranks[0], &three, 9));
    drop(group);
    ranks[0].send(&three, 1).unwrap();
    let mapped = PoolResource::new(VirtualResource::new(&one).unwrap()).unwrap();
    // SAFETY: nothing has pointers to its memory.
    let asleep = unsafe { mapped.sleep(Keep::Nothing) };
    table.failed("a sleep beside a collective", asleep.map(drop));
    table.failed("3 sent, 5 received", ranks[1].receive(&mut make(1, 5), 0));
    second.take_reports();
    table.failed("the other rank, after that", ranks[0].synchronize(Duration::from_secs(9)));
    let ranks = join();
    simulator.fail_call("ncclAllReduce", 1, 1).unwrap();
    table.failed("a call that NCCL fails", ranks[0].all_reduce_in_place(&mut three, ReduceOp::Sum));
    table.failed("the next call", ranks[0].all_reduce_in_place(&mut three, ReduceOp::Sum));
    let ranks = join();
    ranks[0].all_reduce_in_place(&mut three, ReduceOp::Sum).unwrap();
    table.failed("a wait of 1 ms", ranks[0].synchronize(Duration::from_millis(1)));
    let ranks = join();
    ranks[0].abort();
    table.failed("after an abort", ranks[0].check());
}
