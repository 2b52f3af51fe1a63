use super::Owner;
use crate::convert::take_back;
use aquifer::{CudaResource, Device, DeviceVec, Error, ErrorKind, PoolResource, sim::SimConfig};
use cuda_core::{Context, DeviceBuffer, RawDeviceBuffer};
use std::sync::Arc;

/// A context that no call of the driver is made with.
fn no_context() -> Arc<Context> {
    // SAFETY: the tests here make no call of the driver, and a borrowed context is not released.
    unsafe { Context::borrow_raw(0x2000 as *mut _, 0, 0) }
}

/// A buffer over a simulated vector of a pool, with no order of streams.
fn lend(elements: &[u32]) -> (PoolResource<CudaResource>, DeviceBuffer<u32>) {
    let device = Device::simulated(SimConfig::default());
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::from_slice_in(&stream, elements, pool.clone()).unwrap();
    let (owner, raw) = Owner::of_memory(vec.as_device_ptr(), vec.size_in_bytes(), &no_context());
    owner.put(vec.cast().unwrap());
    // SAFETY: the memory is the vector's, and only its bookkeeping is tested.
    let buffer = unsafe { DeviceBuffer::from_storage_copy(raw, elements.len()) }.unwrap();
    (pool, buffer)
}

fn in_order(_: &aquifer::Stream, _: &RawDeviceBuffer) -> Result<(), Error> {
    Ok(())
}

#[test]
fn a_vector_comes_back_with_its_elements_and_home() {
    let (pool, buffer) = lend(&[1, 2, 3]);
    assert_eq!(buffer.len(), 3);
    assert_eq!(pool.statistics().live, 256);
    let mut asked = None;
    let vec = take_back(buffer, |home, _| {
        asked = Some(home.clone());
        Ok(())
    })
    .unwrap();
    assert_eq!(asked.as_ref(), Some(vec.stream()));
    assert_eq!(vec.to_vec().unwrap(), [1, 2, 3]);
    drop(vec);
    assert_eq!(pool.statistics().live, 0);
}

#[test]
fn a_dropped_buffer_frees_the_vector() {
    let (pool, buffer) = lend(&[1, 2, 3]);
    drop(buffer);
    assert_eq!(pool.statistics().live, 0);
}

#[test]
fn a_lease_keeps_a_dropped_buffers_vector() {
    let (pool, buffer) = lend(&[1, 2, 3]);
    let lease = buffer.storage().acquire_on_stream(1, true, false).unwrap();
    drop(buffer);
    assert_eq!(pool.statistics().live, 256);
    drop(lease);
    assert_eq!(pool.statistics().live, 0);
}

#[test]
fn a_vector_comes_back_while_leases_are_left() {
    let (pool, buffer) = lend(&[1, 2, 3]);
    let lease = buffer.storage().acquire_on_stream(1, true, false).unwrap();
    let vec = take_back(buffer, in_order).unwrap();
    drop(lease);
    assert_eq!(pool.statistics().live, 256);
    assert_eq!(vec.to_vec().unwrap(), [1, 2, 3]);
}

#[test]
fn a_buffer_with_views_is_refused_and_comes_back() {
    let (_pool, buffer) = lend(&[1, 2, 3]);
    let view = buffer.storage().clone();
    let refused = take_back(buffer, |_, _| panic!("no order is needed")).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidArgument);
    assert!(refused.error.to_string().contains("other views"), "{}", refused.error);
    drop(view);
    let vec = take_back(refused.value, in_order).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1, 2, 3]);
}

#[test]
fn a_part_of_a_vector_is_refused() {
    let (pool, buffer) = lend(&[1, 2, 3]);
    let part = buffer.storage().slice_bytes(4, 8).unwrap();
    drop(buffer);
    // SAFETY: only its bookkeeping is tested.
    let part = unsafe { DeviceBuffer::<u32>::from_storage_copy(part, 2) }.unwrap();
    let refused = take_back(part, in_order).unwrap_err();
    assert!(refused.error.to_string().contains("a part of one"), "{}", refused.error);
    drop(refused);
    assert_eq!(pool.statistics().live, 0);
}

#[test]
fn an_order_that_fails_gives_the_buffer_back() {
    let (_pool, buffer) = lend(&[1, 2, 3]);
    let fails = |_: &aquifer::Stream, _: &RawDeviceBuffer| {
        Err(Error::new(ErrorKind::Driver, "the driver refuses"))
    };
    let refused = take_back(buffer, fails).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Driver);
    let vec = take_back(refused.value, in_order).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1, 2, 3]);
}

#[test]
fn elements_of_another_type_come_back() {
    let (_pool, buffer) = lend(&[1.0_f32.to_bits(), 2.0_f32.to_bits()]);
    let vec = take_back(buffer.cast_elem::<f32>(), in_order).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1.0, 2.0]);
}

#[test]
fn a_buffer_of_theirs_is_refused() {
    // SAFETY: only its bookkeeping is tested.
    let buffer = unsafe {
        let raw = RawDeviceBuffer::borrowed_from_raw_parts(0x1000, 8, no_context());
        DeviceBuffer::<u32>::from_storage_copy(raw, 2).unwrap()
    };
    let refused = take_back(buffer, in_order).unwrap_err();
    assert!(refused.error.to_string().contains("adopt"), "{}", refused.error);
}

#[test]
fn an_empty_vector_comes_back() {
    let (_pool, buffer) = lend(&[]);
    assert!(take_back(buffer, in_order).unwrap().is_empty());
}

#[test]
fn many_threads_lend_and_take_back() {
    std::thread::scope(|scope| {
        for thread in 0..8_u32 {
            scope.spawn(move || {
                for i in 0..200 {
                    let (_pool, buffer) = lend(&[thread, i]);
                    if i % 2 == 0 {
                        let vec = take_back(buffer, in_order).unwrap();
                        assert_eq!(vec.to_vec().unwrap(), [thread, i]);
                    }
                }
            });
        }
    });
    assert!(
        super::LENT.lock().unwrap().as_ref().unwrap().len() < 32,
        "owners that went are listed"
    );
}
