//! Two devices in one program: what is made on one stays its own whichever is current.
//!
//! RMM's `container_multidevice_tests`, for every container. Each test runs on two simulated
//! devices, which know no current context, and on two GPUs with `AQUIFER_BACKEND=cuda`, where the
//! second one's context is current on the thread and has to be so again after every call.

use crate::alone;
#[cfg(feature = "cuda")]
use crate::support;
use crate::two::Two;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceBuffer, DeviceLayout, DeviceResource, DeviceScalar,
    DeviceVec, ErrorKind, PoolResource, Result, Stream,
    mr::{current_device_resource, set_current_device_resource},
};
use std::sync::{Arc, Mutex};

/// A resource that writes down its calls, and of which device the stream was.
#[derive(Debug)]
struct Recorded<U> {
    upstream: U,
    calls: Mutex<Vec<(&'static str, Device)>>,
}

// SAFETY: every block is the upstream's, and goes back to it unchanged.
unsafe impl<U: DeviceResource> DeviceResource for Recorded<U> {
    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.calls.lock().unwrap().push(("allocate", stream.device().clone()));
        self.upstream.allocate(stream, layout)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        self.calls.lock().unwrap().push(("deallocate", stream.device().clone()));
        // SAFETY: the caller's promise, unchanged.
        unsafe { self.upstream.deallocate(stream, block) }
    }
}

impl<U> Recorded<U> {
    fn new(upstream: U) -> Arc<Self> {
        Arc::new(Self { upstream, calls: Mutex::default() })
    }

    /// The calls since the last time, all of which were for `device`.
    fn take(&self, device: &Device) -> Vec<&'static str> {
        let calls = std::mem::take(&mut *self.calls.lock().unwrap());
        assert!(calls.iter().all(|(_, of)| of == device), "{calls:?}");
        calls.into_iter().map(|(call, _)| call).collect()
    }
}

#[test]
fn a_vector_of_one_device_is_changed_and_dropped_while_the_other_is_current() {
    let _alone = alone();
    let name = "a_vector_of_one_device_is_changed_and_dropped_while_the_other_is_current";
    let Some(both) = Two::open(name) else { return };
    let stream = both.one.new_stream().unwrap();
    both.check("new_stream");
    let resource = Recorded::new(CudaResource::new(&both.one));
    let make = |length| DeviceVec::<u32>::zeroed_in(&stream, length, resource.clone()).unwrap();
    let mut vec = make(128);
    both.check("zeroed");
    assert_eq!(resource.take(&both.one), ["allocate"]);
    vec.resize(1024, 7).unwrap();
    both.check("resize");
    assert_eq!(resource.take(&both.one), ["allocate", "deallocate"]);
    vec.truncate(64);
    vec.shrink_to_fit().unwrap();
    both.check("shrink_to_fit");
    assert_eq!(resource.take(&both.one), ["allocate", "deallocate"]);
    assert_eq!(vec.to_vec().unwrap(), [0; 64]);
    both.check("to_vec");
    let clone = vec.try_clone().unwrap();
    both.check("try_clone");
    vec = clone;
    both.check("move-assign");
    assert_eq!(resource.take(&both.one), ["allocate", "deallocate"]);
    vec.set_stream(&both.one.new_stream().unwrap()).unwrap();
    both.check("set_stream");
    vec.set(3, 5).unwrap();
    assert_eq!(vec.get(3).unwrap(), 5);
    both.check("set and get");
    drop(vec);
    both.check("drop");
    assert_eq!(resource.take(&both.one), ["deallocate"]);
    both.end();
}

#[test]
fn a_buffer_of_one_device_is_changed_and_dropped_while_the_other_is_current() {
    let _alone = alone();
    let name = "a_buffer_of_one_device_is_changed_and_dropped_while_the_other_is_current";
    let Some(both) = Two::open(name) else { return };
    let stream = both.one.new_stream().unwrap();
    let resource = Recorded::new(CudaResource::new(&both.one));
    let make =
        |bytes: &[u8]| DeviceBuffer::from_slice_in(&stream, bytes, resource.clone()).unwrap();
    let mut buffer = make(&[1; 128]);
    both.check("from_slice");
    buffer.resize_zeroed(1024).unwrap();
    both.check("resize");
    buffer.resize_zeroed(64).unwrap();
    buffer.shrink_to_fit().unwrap();
    both.check("shrink_to_fit");
    buffer.reserve(1000).unwrap();
    both.check("reserve");
    let calls = resource.take(&both.one);
    assert_eq!(calls.iter().filter(|call| **call == "allocate").count(), 4);
    assert_eq!(calls.iter().filter(|call| **call == "deallocate").count(), 3);
    assert_eq!(buffer.to_vec().unwrap(), [1; 64]);
    both.check("to_vec");
    buffer = make(&[2; 10]);
    both.check("move-assign");
    assert_eq!(resource.take(&both.one), ["allocate", "deallocate"]);
    assert_eq!(buffer.to_vec().unwrap(), [2; 10]);
    // A copy on the other device, from that device's own memory.
    let there = both.two.new_stream().unwrap();
    let second = Recorded::new(CudaResource::new(&both.two));
    let copy = DeviceBuffer::copy_of_in(&there, &buffer, second.clone()).unwrap();
    both.check("copy_of");
    assert_eq!((copy.device(), second.take(&both.two)), (&both.two, vec!["allocate"]));
    drop(buffer);
    both.check("drop");
    assert_eq!(resource.take(&both.one), ["deallocate"]);
    assert_eq!(copy.to_vec().unwrap(), [2; 10]);
    drop(copy);
    assert_eq!(second.take(&both.two), ["deallocate"]);
    both.end();
}

#[test]
fn a_scalar_of_one_device_is_changed_and_dropped_while_the_other_is_current() {
    let _alone = alone();
    let name = "a_scalar_of_one_device_is_changed_and_dropped_while_the_other_is_current";
    let Some(both) = Two::open(name) else { return };
    let stream = both.one.new_stream().unwrap();
    let resource = Recorded::new(CudaResource::new(&both.one));
    let make = |value| DeviceScalar::<u64>::new_in(&stream, value, resource.clone()).unwrap();
    let mut scalar = make(1);
    both.check("new");
    scalar.set_value(2).unwrap();
    both.check("set_value");
    assert_eq!(scalar.value().unwrap(), 2);
    both.check("value");
    scalar.set_to_zero().unwrap();
    both.check("set_to_zero");
    assert_eq!(scalar.value().unwrap(), 0);
    scalar = make(3);
    both.check("move-assign");
    assert_eq!(resource.take(&both.one), ["allocate", "allocate", "deallocate"]);
    assert_eq!(scalar.value().unwrap(), 3);
    // Its value, on the other device.
    let there = both.two.new_stream().unwrap();
    let mut copy = DeviceScalar::zeroed_in(&there, Arc::new(CudaResource::new(&both.two))).unwrap();
    copy.copy_from(&scalar).unwrap();
    both.check("copy_from");
    drop(scalar);
    both.check("drop");
    assert_eq!(resource.take(&both.one), ["deallocate"]);
    assert_eq!(copy.value().unwrap(), 3);
    drop(copy);
    both.end();
}

#[test]
fn each_device_has_a_pool_of_its_own() {
    let _alone = alone();
    let Some(both) = Two::open("each_device_has_a_pool_of_its_own") else { return };
    let pools = [&both.one, &both.two].map(|device| {
        let pool = PoolResource::new(CudaResource::new(device)).unwrap();
        both.check("a new pool");
        set_current_device_resource(Arc::new(pool.clone()));
        pool
    });
    let streams = [&both.one, &both.two].map(|device| device.new_stream().unwrap());
    let live = || pools.each_ref().map(|pool| pool.statistics().live_blocks);
    for (at, device) in [&both.one, &both.two].into_iter().enumerate() {
        let pool: Arc<dyn DeviceResource> = Arc::new(pools[at].clone());
        assert!(current_device_resource(device).unwrap() == pool);
    }
    let mut first = DeviceBuffer::from_slice(&streams[0], &[1; 1000]).unwrap();
    both.check("from_slice");
    assert_eq!(live(), [1, 0]);
    let mut second = DeviceVec::from_slice(&streams[1], &[2_u8; 500]).unwrap();
    let scalar = DeviceScalar::new(&streams[1], 9_u32).unwrap();
    assert_eq!(live(), [1, 2]);
    first.resize_zeroed(100_000).unwrap();
    second.resize(1000, 3).unwrap();
    both.check("resize");
    assert_eq!(live(), [1, 2]);
    first.resize_zeroed(1000).unwrap();
    second.copy_from(&first).unwrap();
    both.check("copy_from");
    // Replaced by one of the other device: each goes back to its own pool.
    first = DeviceBuffer::from(second);
    both.check("move-assign");
    assert_eq!((live(), first.device()), ([0, 2], &both.two));
    assert_eq!(first.to_vec().unwrap(), [1; 1000]);
    assert_eq!(scalar.value().unwrap(), 9);
    drop(first);
    // On a thread that never had a context.
    std::thread::scope(|threads| {
        threads.spawn(move || {
            drop(scalar);
            #[cfg(feature = "cuda")]
            if support::on_gpu() {
                let now = aquifer::cudarc::driver::result::ctx::get_current().unwrap();
                assert_eq!(now, None, "dropped on a thread without a context");
            }
        });
    });
    assert_eq!(live(), [0, 0]);
    // Memory of one device's pool is for its own streams alone.
    let foreign = DeviceBuffer::zeroed_in(&streams[1], 8, Arc::new(pools[0].clone()));
    assert_eq!(foreign.unwrap_err().kind(), ErrorKind::WrongDevice);
    for device in [&both.one, &both.two] {
        aquifer::mr::reset_current_device_resource(device);
    }
    drop(pools);
    drop(streams);
    both.end();
}
