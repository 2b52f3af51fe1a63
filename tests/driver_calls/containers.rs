//! The containers on two devices: every call in the context of the container's own device, while
//! that of the other one is current.

use super::child::{Installed, StandIn, alone, is_in};
use super::{FIRST, SECOND};
use aquifer::{
    CudaResource, Device, DeviceBuffer, DeviceResource, DeviceScalar, PoolResource,
    mr::AsyncResource,
};
use std::sync::Arc;

/// What was called since the last time, all of it in the first device's context, which is not what
/// the thread has.
fn all_on_the_first(driver: &StandIn, after: &str) -> Vec<String> {
    let calls = driver.changes();
    assert!(!calls.is_empty(), "{after} calls the driver");
    assert!(calls.iter().all(|line| is_in(line, FIRST)), "{after}: {calls:#?}");
    assert_eq!(driver.now(), SECOND, "after {after}");
    calls
}

#[test]
fn containers_of_a_device_that_is_not_current_call_it_alone() {
    let name = "containers::containers_of_a_device_that_is_not_current_call_it_alone";
    alone(name, Installed::StandIn, &[], |driver| {
        let (one, two) = (Device::open(0).unwrap(), Device::open(1).unwrap());
        two.cuda_context().unwrap().bind_to_thread().unwrap();
        assert_eq!(driver.now(), SECOND);
        let (home, other) = (one.new_stream().unwrap(), one.new_stream().unwrap());
        let resources: [Arc<dyn DeviceResource>; 3] = [
            Arc::new(CudaResource::new(&one)),
            Arc::new(AsyncResource::new(&one).unwrap()),
            Arc::new(PoolResource::new(CudaResource::new(&one)).unwrap()),
        ];
        driver.take();
        for resource in resources {
            let make = || DeviceBuffer::zeroed_in(&home, 64, resource.clone()).unwrap();
            let mut buffer = make();
            all_on_the_first(driver, "zeroed");
            buffer.resize_zeroed(1024).unwrap();
            let calls = all_on_the_first(driver, "resize");
            assert!(calls.iter().any(|line| line.starts_with("cuMemcpyDtoDAsync")), "{calls:?}");
            buffer.resize_zeroed(64).unwrap();
            buffer.shrink_to_fit().unwrap();
            all_on_the_first(driver, "shrink_to_fit");
            buffer.copy_from_slice(&[3; 64]).unwrap();
            assert_eq!(buffer.to_vec().unwrap(), [3; 64]);
            all_on_the_first(driver, "copies");
            std::mem::forget(buffer.on_mut(&other).unwrap());
            buffer = make();
            all_on_the_first(driver, "move-assign of a buffer that was lent");
            buffer.set_stream(&other).unwrap();
            let mut vec = buffer.into_vec::<u32>().unwrap();
            vec.shrink_to_fit().unwrap();
            assert_eq!(vec.to_vec().unwrap(), [0; 16]);
            all_on_the_first(driver, "conversions");
            let mut scalar = DeviceScalar::new_in(&home, 5_u64, resource.clone()).unwrap();
            scalar.set_value(0x0102_0304_0506_0708).unwrap();
            scalar.set_stream(&other).unwrap();
            assert_eq!(scalar.value().unwrap(), 0x0102_0304_0506_0708);
            all_on_the_first(driver, "a scalar");
            let clone = vec.try_clone().unwrap();
            all_on_the_first(driver, "try_clone");
            // The pool's blocks go back without a call.
            drop((vec, scalar, clone));
            assert_eq!(driver.now(), SECOND, "after the drops");
        }
        let calls = all_on_the_first(driver, "the drops");
        assert!(calls.iter().any(|line| line.starts_with("cuMemFree_v2")), "{calls:?}");
    });
}
