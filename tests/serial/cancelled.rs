//! Memory of transfers that were dropped before anybody took their buffers: it is there for the next
//! allocation, for a trim and after the device was waited for, once the device is past the copies. And that of
//! pools whose last handle was dropped in a capture.

use crate::{alone, support};
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceVec, ErrorKind, PoolResource, Stream, Transfer,
    pinned::{HostBuffer, HostRead, PinnedPool, PinnedResource},
};
use std::sync::Arc;

const MIB: usize = 1 << 20;

type Uploads = Vec<Transfer<Vec<u8>>>;

/// Uploads of a MiB each that the device has passed.
fn complete_uploads(stream: &Stream, count: usize) -> Uploads {
    let uploads: Uploads = (0..count).map(|_| stream.upload_new(vec![1; MIB]).unwrap()).collect();
    stream.record().unwrap().synchronize().unwrap();
    uploads
}

fn pool_of(device: &Device, bytes: usize) -> Arc<PoolResource<CudaResource>> {
    let options = PoolResource::builder(CudaResource::new(device)).maximum_size(bytes);
    Arc::new(options.build().unwrap())
}

#[test]
fn a_pool_at_its_maximum_has_the_memory_of_cancelled_transfers() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    aquifer::mr::with_device_resource(pool_of(&device, 8 * MIB), || {
        // More than one look takes.
        for count in [8, 8, 3] {
            drop(complete_uploads(&stream, count));
            DeviceVec::<u8>::zeroed(&stream, 7 * MIB).unwrap();
        }
    });
    simulator.check().unwrap();
}

#[test]
fn a_device_without_room_has_the_memory_of_cancelled_transfers() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default().capacity(40 * MIB));
    let stream = device.new_stream().unwrap();
    let plain = Arc::new(CudaResource::new(&device));
    aquifer::mr::with_device_resource(plain, || {
        drop(complete_uploads(&stream, 40));
        DeviceVec::<u8>::zeroed(&stream, 33 * MIB).unwrap();
    });
    simulator.check().unwrap();
}

#[test]
fn a_pinned_pool_at_its_maximum_has_the_memory_of_cancelled_transfers() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let upstream = PinnedResource::new(&device).unwrap();
    let pool = PinnedPool::builder(upstream).maximum_size(8 * MIB).build().unwrap();
    let make = |bytes: usize| {
        let mut host: AllocVec<u8, PinnedPool> = AllocVec::new_in(pool.clone());
        host.try_reserve_exact(bytes).map(|()| {
            host.resize(bytes, 1);
            host
        })
    };
    let uploads: Vec<_> =
        (0..8).map_while(|_| make(MIB).ok()).map(|host| stream.upload_new(host).unwrap()).collect();
    assert!(uploads.len() >= 7, "the pool is full");
    stream.record().unwrap().synchronize().unwrap();
    drop(uploads);
    assert!(make(4 * MIB).is_ok());
    simulator.check().unwrap();
}

#[test]
fn waiting_for_the_device_frees_what_cancelled_transfers_left() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, 64 * MIB);
    aquifer::mr::with_device_resource(pool.clone(), || {
        let uploads: Uploads = (0..40).map(|_| stream.upload_new(vec![1; MIB]).unwrap()).collect();
        drop(uploads);
        device.synchronize().unwrap();
        assert_eq!(pool.statistics().live, 0);
        drop(complete_uploads(&stream, 40));
        assert!(pool.wait_and_trim(0).unwrap() >= 40 * MIB, "a trim looks for it, too");
    });
    simulator.check().unwrap();
}

/// What a capture refuses to drop waits again, whenever it is looked at: an allocation looks once.
#[test]
fn an_allocation_beside_a_capture_is_refused() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = pool_of(&device, MIB);
    let upstream = PinnedResource::new(&device).unwrap();
    let pinned = PinnedPool::builder(upstream).maximum_size(MIB).build().unwrap();
    let vec =
        DeviceVec::<u8>::zeroed_in(&stream, 100, Arc::new(CudaResource::new(&device))).unwrap();
    let captured = PoolResource::new(CudaResource::new(&device)).unwrap();
    let graph = stream.capture(&captured, |_| {
        drop(vec);
        let refused = DeviceVec::<u8>::zeroed_in(&other, 8 * MIB, pool.clone());
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::OutOfMemory);
        let mut host: AllocVec<u8, PinnedPool> = AllocVec::new_in(pinned.clone());
        assert!(host.try_reserve(8 * MIB).is_err());
        Ok(())
    });
    drop(graph.unwrap());
    device.synchronize().unwrap();
    simulator.check().unwrap();
}

/// The drop of a buffer may itself ask for memory that is not there.
#[test]
fn drops_that_allocate_do_not_nest() {
    struct Asks(Vec<u8>, Stream, Arc<PoolResource<CudaResource>>);

    // SAFETY: the `Vec`'s own elements, which stay where they are.
    unsafe impl HostRead for Asks {
        type Item = u8;

        fn parts(&mut self) -> (std::ptr::NonNull<u8>, usize) {
            self.0.parts()
        }
    }

    // SAFETY: and writable.
    unsafe impl HostBuffer for Asks {}

    impl Drop for Asks {
        fn drop(&mut self) {
            let refused = DeviceVec::<u8>::zeroed_in(&self.1, 64 * MIB, self.2.clone());
            assert!(refused.is_err());
        }
    }

    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, 8 * MIB);
    aquifer::mr::with_device_resource(pool.clone(), || {
        for _ in 0..20_000 {
            let asks = Asks(vec![1; 8], stream.clone(), pool.clone());
            drop(stream.upload_new(asks).unwrap());
        }
        stream.record().unwrap().synchronize().unwrap();
        assert!(DeviceVec::<u8>::zeroed(&stream, 64 * MIB).is_err());
    });
    device.synchronize().unwrap();
    simulator.check().unwrap();
}

#[test]
fn a_pool_that_is_dropped_in_a_capture_ends_after_it() {
    let _alone = alone();
    let drop_here: fn(DeviceVec<u32>) = drop;
    let drop_elsewhere: fn(DeviceVec<u32>) =
        |vec| std::thread::spawn(move || drop(vec)).join().unwrap();
    for drop_last in [drop_here, drop_elsewhere] {
        for graph_goes_first in [false, true] {
            let (device, simulator) = support::simulated(SimConfig::default());
            let home = device.new_stream().unwrap();
            let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
            // The last handle of its pool.
            let own = PoolResource::new(CudaResource::new(&device)).unwrap();
            let vec = DeviceVec::<u32>::zeroed_in(&home, 1 << 16, own).unwrap();
            let captured = home.capture(&pool, |_| {
                drop_last(vec);
                Ok(())
            });
            let (graph, ()) = captured.unwrap();
            // SAFETY: it touches nothing.
            unsafe { graph.launch(&home).unwrap() };
            if graph_goes_first {
                drop((graph, pool));
                home.synchronize().unwrap();
            } else {
                home.synchronize().unwrap();
                drop((graph, pool));
            }
            device.synchronize().unwrap();
            assert_eq!((simulator.live_blocks(), simulator.live_bytes()), (0, 0));
            simulator.check().unwrap();
        }
    }
}
