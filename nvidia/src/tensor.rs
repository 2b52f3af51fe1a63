//! Vectors as tensors of `cutile`, and back.

use crate::convert::{into_buffer, into_vec, into_vec_after};
use crate::error::refused;
use aquifer::bytemuck::Pod;
use aquifer::error::Refused;
use aquifer::{DeviceVec, Error, ErrorKind, Result};
use cuda_core::{DType, DeviceBuffer, DeviceCopy};
use cutile::tensor::Tensor;
use std::sync::Arc;

/// Makes a vector a tensor of this shape, without a copy, as [`into_buffer`] makes it a buffer.
///
/// ```no_run
/// use aquifer::{Device, DeviceVec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::detect()?;
/// let theirs = aquifer_nvidia::context(&device)?.new_stream()?;
/// let vec = DeviceVec::<f32>::zeroed(&device.new_stream()?, 6)?;
/// let tensor = aquifer_nvidia::into_tensor(vec, &[2, 3], &theirs)?;
/// assert_eq!(tensor.shape(), [2, 3]);
/// let vec = aquifer_nvidia::tensor_into_vec_after(tensor, &theirs)?;
/// assert_eq!(vec.len(), 6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`ErrorKind::LengthMismatch`] if the shape has another number of elements, or more than their `i32` counts, and the
/// errors of [`into_buffer`]. The vector comes back.
#[track_caller]
pub fn into_tensor<T: Pod + DeviceCopy + DType>(
    vec: DeviceVec<T>,
    shape: &[usize],
    stream: &Arc<cuda_core::Stream>,
) -> Result<Tensor<T>, Refused<DeviceVec<T>>> {
    match checked_shape(shape, vec.len()) {
        Ok(shape) => Ok(Tensor::from_buffer(into_buffer(vec, stream)?, shape)),
        Err(error) => Err(Refused { error, value: vec }),
    }
}

/// The shape in their numbers, which panic for one that does not fit.
fn checked_shape(shape: &[usize], length: usize) -> Result<Vec<i32>> {
    let product = shape.iter().try_fold(1_usize, |product, side| product.checked_mul(*side));
    let fits = product == Some(length) && i32::try_from(length).is_ok();
    let sides: Option<Vec<i32>> = shape.iter().map(|side| i32::try_from(*side).ok()).collect();
    match sides {
        Some(sides) if fits && !sides.is_empty() && !sides.contains(&0) => Ok(sides),
        _ => Err(refused(
            ErrorKind::LengthMismatch,
            format!("a tensor of shape {shape:?} was asked for over {length} elements"),
            "give one side or more, none of them 0, of as many elements, and less than 2 to the 31",
        )),
    }
}

/// The vector of a tensor again, as by [`into_vec`].
///
/// # Errors
///
/// [`ErrorKind::InvalidArgument`] for a tensor that is not contiguous, and the errors of [`into_vec`]. The tensor comes
/// back.
#[track_caller]
pub fn tensor_into_vec<T: Pod + DeviceCopy + DType>(
    tensor: Tensor<T>,
) -> Result<DeviceVec<T>, Refused<Tensor<T>>> {
    convert(tensor, into_vec)
}

/// The vector of a tensor again, as by [`into_vec_after`].
///
/// # Errors
///
/// [`ErrorKind::InvalidArgument`] for a tensor that is not contiguous, and the errors of [`into_vec_after`]. The tensor
/// comes back.
#[track_caller]
pub fn tensor_into_vec_after<T: Pod + DeviceCopy + DType>(
    tensor: Tensor<T>,
    stream: &Arc<cuda_core::Stream>,
) -> Result<DeviceVec<T>, Refused<Tensor<T>>> {
    convert(tensor, |buffer| into_vec_after(buffer, stream))
}

fn convert<T: Pod + DeviceCopy + DType>(
    tensor: Tensor<T>,
    into_vec: impl FnOnce(DeviceBuffer<T>) -> Result<DeviceVec<T>, Refused<DeviceBuffer<T>>>,
) -> Result<DeviceVec<T>, Refused<Tensor<T>>> {
    let buffer = match buffer_of(&tensor) {
        Ok(buffer) => buffer,
        Err(error) => return Err(Refused { error, value: tensor }),
    };
    let shape = tensor.shape().to_vec();
    // `Tensor::into_buffer` panics while another tensor has the memory. A drop leaves the views to be counted.
    drop(tensor);
    into_vec(buffer).map_err(|Refused { error, value }| Refused {
        error,
        value: Tensor::from_buffer(value, shape),
    })
}

/// A second view of the tensor's memory.
fn buffer_of<T: Pod + DeviceCopy + DType>(tensor: &Tensor<T>) -> Result<DeviceBuffer<T>> {
    let failed = |error: &dyn std::fmt::Display| -> Error {
        refused(
            ErrorKind::InvalidArgument,
            format!("a vector was asked for of a tensor of shape {:?}: {error}", tensor.shape()),
            "give a tensor that is contiguous and has memory",
        )
    };
    let view = tensor.as_buffer().map_err(|error| failed(&error))?;
    // SAFETY: the tensor's elements, of any bit pattern. The tensor goes before the buffer is used.
    unsafe { DeviceBuffer::from_storage_copy(view.storage().clone(), tensor.size()) }
        .map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::checked_shape;
    use aquifer::ErrorKind;

    #[test]
    fn shapes_that_theirs_would_panic_for_are_refused() {
        assert_eq!(checked_shape(&[2, 3], 6).unwrap(), [2, 3]);
        assert_eq!(checked_shape(&[6], 6).unwrap(), [6]);
        let large = 1_usize << 31;
        for (shape, length) in [
            (&[2, 4][..], 6),
            (&[0, 3], 0),
            (&[], 1),
            (&[large], large),
            (&[usize::MAX, 2], usize::MAX - 1),
        ] {
            let error = checked_shape(shape, length).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LengthMismatch, "{shape:?}");
        }
        assert_eq!(
            checked_shape(&[1 << 16, (1 << 15) - 1], (1 << 31) - (1 << 16)).unwrap().len(),
            2
        );
    }
}
