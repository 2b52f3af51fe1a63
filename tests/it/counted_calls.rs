//! The names under which a simulated device counts calls.

use crate::{kernels, support};
#[cfg(target_os = "linux")]
use aquifer::ipc::IpcExport;
use aquifer::ipc::IpcPool;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    Communicator, CudaResource, Device, DeviceResource, DeviceVec, PoolResource, Stream,
    collective::{Group, ReduceOp, RegisteringAdaptor},
    mr::{
        AsyncResource, ManagedResource, NcclResource, PrefetchAdaptor, SystemResource,
        VirtualResource,
    },
    pinned::{PinnedResource, Registered},
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A vector that is filled, and freed.
fn filled(stream: &Stream, resource: impl aquifer::DeviceResource + 'static) {
    DeviceVec::from_slice_in(stream, &[1_u8; 64], resource).unwrap().fill(2).unwrap();
}

fn use_much(device: &Device, peer: &Device) {
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());

    // Copies, fills, a kernel, events.
    let mut vec = DeviceVec::from_slice(&stream, &[1_u32; 8]).unwrap();
    let mut copied = vec.try_clone().unwrap();
    copied.copy_from(&vec).unwrap();
    kernels::add_one(&other, &mut vec).unwrap();
    let on_peer = DeviceVec::from_slice(&peer.new_stream().unwrap(), &[3_u32; 8]).unwrap();
    copied.copy_from(&on_peer).unwrap();
    assert_eq!((vec.to_vec().unwrap(), copied.to_vec().unwrap()), (vec![2; 8], vec![3; 8]));
    let event = stream.record().unwrap();
    other.wait(&event).unwrap();
    event.synchronize().unwrap();
    assert!(event.is_complete().unwrap());
    stream.is_idle().unwrap();
    // The device keeps a few for later, and destroys the others.
    drop([(); 2000].map(|()| stream.record().unwrap()));

    stream.launch_host_fn(|| ()).unwrap();

    // A wait for the device, and one where the driver records no event of a context.
    device.synchronize().unwrap();
    device.simulator().unwrap().fail_call("cuCtxRecordEvent", 1, 801).unwrap();
    device.synchronize().unwrap();

    // A stream that another library may have, and a graph.
    assert!(!device.default_stream().is_capturing().unwrap());
    let pool = PoolResource::new(CudaResource::new(device)).unwrap();
    let (graph, ()) = stream.capture(&pool, |_| vec.fill(5)).unwrap();
    // SAFETY: the vector outlives the launch, and nothing else uses it meanwhile.
    unsafe { graph.launch(&stream) }.unwrap();
    stream.synchronize().unwrap();

    // A stream of another library.
    let theirs = device.simulator().unwrap().create_foreign_stream().unwrap();
    // SAFETY: it is never destroyed.
    drop(unsafe { Stream::from_handle(device, theirs) }.unwrap());

    collectives(&stream, &peer.new_stream().unwrap());

    // Resources.
    CudaResource::new(peer).enable_peer_access(device).unwrap();
    filled(&stream, CudaResource::new(device));
    filled(&stream, VirtualResource::new(device).unwrap());
    let asynchronous =
        AsyncResource::builder(device).reuse_opportunistic(false).shareable(SHAREABLE);
    let asynchronous = Arc::new(asynchronous.build().unwrap());
    filled(&stream, asynchronous.clone());
    asynchronous.enable_peer_access(peer).unwrap();
    asynchronous.statistics().unwrap();
    asynchronous.trim(0).unwrap();
    AsyncResource::default_pool(device).unwrap();
    share(&stream, &asynchronous);
    filled(&stream, PrefetchAdaptor::new(ManagedResource::new(device).unwrap()));
    filled(&stream, SystemResource::builder(device).headroom(1 << 16).build().unwrap());
    let pinned = PinnedResource::new(device).unwrap();
    filled(&stream, pinned.clone());
    drop(Registered::new(device, vec![0_u8; 1 << 16]).unwrap());
    pinned.trim().unwrap();
    Registered::<Vec<u8>>::trim(device).unwrap();
}

/// Each collective, of memory that is registered.
fn collectives(one: &Stream, two: &Stream) {
    let streams = [one.clone(), two.clone()];
    // SAFETY: both ranks give the same collectives.
    let ranks = unsafe { Communicator::from_streams(&streams) }.unwrap();
    let adaptor = RegisteringAdaptor::new(NcclResource::new(one.device()));
    adaptor.register_with(&ranks[0]).unwrap();
    filled(one, adaptor);
    let mut data = streams.each_ref().map(|it| DeviceVec::from_slice(it, &[1_i32; 4]).unwrap());
    let mut group = Group::new();
    for (rank, vec) in ranks.iter().zip(&mut data) {
        group.all_reduce_in_place(rank, vec, ReduceOp::Sum).unwrap();
    }
    group.run().unwrap();
    type Call = fn(&Communicator, &mut DeviceVec<i32>) -> aquifer::Result<()>;
    let calls: [Call; 4] = [
        |rank, vec| rank.reduce_in_place(vec, ReduceOp::Sum, 0),
        |rank, vec| rank.reduce_scatter_in_place(vec, ReduceOp::Sum),
        |rank, vec| rank.broadcast_in_place(vec, 0),
        |rank, vec| rank.all_gather_in_place(vec),
    ];
    for call in calls {
        ranks.iter().zip(&mut data).for_each(|(rank, vec)| call(rank, vec).unwrap());
    }
    let [one, two] = &mut data;
    ranks[0].send(one, 1).unwrap();
    ranks[1].receive(two, 0).unwrap();
    ranks[1].send(two, 0).unwrap();
    ranks[0].receive(one, 1).unwrap();
    assert_eq!(one.to_vec().unwrap().len(), 4);
}

/// Pools that can be shared are the simulated device's on Linux alone.
const SHAREABLE: bool = cfg!(target_os = "linux");

/// Memory that another process would open, of both kinds.
fn share(stream: &Stream, pool: &Arc<AsyncResource>) {
    let device = stream.device();
    let plain = CudaResource::new(device);
    let vec = DeviceVec::from_slice_in(stream, &[1_u8; 64], plain).unwrap();
    // SAFETY: the vector outlives this, and nothing writes.
    drop(unsafe { vec.ipc_handle().unwrap().open::<u8>(stream) }.unwrap());
    #[cfg(target_os = "linux")]
    {
        let imported = IpcPool::import(device, &pool.export().unwrap()).unwrap();
        let vec = DeviceVec::from_slice_in(stream, &[1_u8; 64], pool.clone()).unwrap();
        // SAFETY: as above.
        drop(unsafe { imported.open::<u8>(stream, &vec.ipc_handle().unwrap()) }.unwrap());
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let mapped = VirtualResource::new(device).unwrap();
        let vec = DeviceVec::from_slice_in(stream, &[1_u8; 64], mapped).unwrap();
        vec.send_to(&here).unwrap();
        // SAFETY: as above.
        drop(unsafe { aquifer::ipc::receive::<u8>(stream, &there) }.unwrap());
    }
}

/// Those that the test makes.
fn counted() -> BTreeSet<&'static str> {
    let all = Simulator::CALLS.into_iter();
    let shared =
        ["cuMemPoolExport", "cuMemPoolImport", "cuMemExport", "cuMemImport", "cuMemRetain"];
    let is_shared = |call: &str| shared.iter().any(|it| call.starts_with(it));
    all.filter(|call| SHAREABLE || !is_shared(call)).collect()
}

fn called(simulator: &Simulator) -> BTreeSet<&'static str> {
    simulator.calls().into_iter().map(|(call, _)| call).collect()
}

#[test]
fn each_call_that_is_counted_can_be_made_to_fail() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (peer, _) = support::simulated(SimConfig::default());
    use_much(&device, &peer);
    assert_eq!(called(&simulator), counted());
    simulator.check().unwrap();
}
