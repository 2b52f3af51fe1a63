//! Vectors as tensors of `cutile`. No kernel is compiled, so `tileiras` is not needed.

mod support;

use aquifer::{DeviceVec, ErrorKind};
use aquifer_nvidia::{into_tensor, tensor_into_vec, tensor_into_vec_after};
use cutile::prelude::*;
use support::{gpu, write_slowly};

#[test]
fn a_vector_is_a_tensor_and_comes_back() {
    let Some((device, context, _alone)) = gpu("a_vector_is_a_tensor_and_comes_back") else {
        return;
    };
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    let mut vec = DeviceVec::from_slice(&home, &[1_u32; 6]).unwrap();
    write_slowly(&home, &mut vec, 5);
    let address = vec.as_device_ptr();
    let tensor = into_tensor(vec, &[2, 3], &theirs).unwrap();
    assert_eq!((tensor.shape(), tensor.strides()), (&[2, 3][..], &[3, 1][..]));
    assert_eq!(tensor.device_pointer().cu_deviceptr(), address);
    let tensor = Arc::new(tensor);
    assert_eq!((&tensor).to_host_vec().sync_on(&theirs).unwrap(), [5; 6]);
    let row = tensor.slice(&[1..2, 0..3]).unwrap();
    assert_eq!(row.shape(), [1, 3]);
    drop(row);
    let tensor = Arc::into_inner(tensor).unwrap();
    let vec = tensor_into_vec_after(tensor, &theirs).unwrap();
    assert_eq!((vec.as_device_ptr(), vec.to_vec().unwrap()), (address, vec![5; 6]));
}

#[test]
fn a_shape_that_does_not_fit_is_refused_and_the_vector_comes_back() {
    let test = "a_shape_that_does_not_fit_is_refused_and_the_vector_comes_back";
    let Some((device, context, _alone)) = gpu(test) else { return };
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    let vec = DeviceVec::from_slice(&home, &[1_u32; 6]).unwrap();
    let refused = into_tensor(vec, &[2, 4], &theirs).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::LengthMismatch);
    assert_eq!(refused.value.to_vec().unwrap(), [1; 6]);
}

#[test]
fn a_tensor_with_an_alias_is_refused_and_comes_back() {
    let test = "a_tensor_with_an_alias_is_refused_and_comes_back";
    let Some((device, context, _alone)) = gpu(test) else { return };
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    let vec = DeviceVec::from_slice(&home, &[1_u32; 6]).unwrap();
    let tensor = Arc::new(into_tensor(vec, &[6], &theirs).unwrap());
    let alias = (&tensor).reshape(&[2, 3]).unwrap();
    let tensor = Arc::into_inner(tensor).unwrap();
    let refused = tensor_into_vec(tensor).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(refused.value.shape(), [6]);
    drop(alias);
    assert_eq!(tensor_into_vec(refused.value).unwrap().to_vec().unwrap(), [1; 6]);
}
