//! Vectors as buffers of `cuda-core`, and back.

use crate::context::require_same;
use crate::error::{refused, theirs};
use crate::order::Between;
use crate::owner::Owner;
use crate::stream::{refuse_capture, require_one_stream};
use aquifer::bytemuck::Pod;
use aquifer::error::Refused;
use aquifer::{DeviceVec, Error, ErrorKind, Result, Stream};
use cuda_core::{AllocationLease, DeviceBuffer, DeviceCopy, RawDeviceBuffer, sys};
use std::sync::Arc;

/// Makes a vector a buffer of theirs, without a copy, for work on `stream`.
///
/// `stream` waits for the vector's home and for its other uses. The host does not. **Another stream is refused by their
/// own calls** (`CUDA_ERROR_NOT_READY`) until the home has done what it was given before, since nothing orders it. Then
/// any stream of the context may use the buffer. The vector's memory lies in the buffer, its capacity too. [`into_vec`] and
/// [`into_vec_after`] give the vector back. A drop of the buffer frees the memory, when their work on it is complete.
///
/// ```no_run
/// use aquifer::{Device, DeviceVec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::detect()?;
/// let context = aquifer_nvidia::context(&device)?;
/// let theirs = context.new_stream()?;
/// let vec = DeviceVec::from_slice(&device.new_stream()?, &[1_u32, 2, 3])?;
///
/// let mut buffer = aquifer_nvidia::into_buffer(vec, &theirs)?;
/// buffer.zero_async(&theirs)?;
/// let vec = aquifer_nvidia::into_vec_after(buffer, &theirs)?;
/// assert_eq!(vec.to_vec()?, [0; 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The vector comes back with each.
///
/// - [`ErrorKind::Unsupported`] on a simulated device.
/// - [`ErrorKind::WrongDevice`] if `stream` is of another context than the primary one of the vector's device.
/// - [`ErrorKind::InvalidArgument`] for the per-thread default stream.
/// - [`ErrorKind::Capture`] while the vector's home or `stream` is in capture.
/// - The errors of the driver.
#[track_caller]
pub fn into_buffer<T: Pod + DeviceCopy>(
    vec: DeviceVec<T>,
    stream: &Arc<cuda_core::Stream>,
) -> Result<DeviceBuffer<T>, Refused<DeviceVec<T>>> {
    let mut vec = vec;
    let made = order_before(&mut vec, stream).and_then(|between| {
        let (owner, raw) =
            Owner::of_memory(vec.as_device_ptr(), vec.size_in_bytes(), stream.context());
        let excluded = exclude_others(&raw, stream, &between);
        between.give_back();
        excluded?;
        // SAFETY: the vector's elements, of any bit pattern. The vector is in the owner before another sees the buffer, or
        // the buffer goes.
        let buffer = unsafe { DeviceBuffer::from_storage_copy(raw, vec.len()) }
            .map_err(|error| theirs("making a buffer of a vector", "DeviceBuffer", error))?;
        Ok((owner, buffer))
    });
    let (owner, buffer) = match made {
        Ok(made) => made,
        Err(error) => return Err(Refused { error, value: vec }),
    };
    owner.put(vec.cast::<u8>()?);
    Ok(buffer)
}

/// Orders `stream` after the vector's home, and that after the vector's other uses. The stream between waits for the home.
fn order_before<T: Pod>(
    vec: &mut DeviceVec<T>,
    stream: &Arc<cuda_core::Stream>,
) -> Result<Between> {
    let home = vec.stream().clone();
    require_usable(&home, stream, "a buffer of a vector")?;
    // Home waits for what is pending elsewhere.
    vec.on_mut(&home)?;
    let between = Between::take(home.device())?;
    match between.order_theirs(&home, stream) {
        Ok(()) => Ok(between),
        Err(error) => {
            between.give_back();
            Err(error)
        }
    }
}

/// The error of a stream that cannot be put in order with `home`.
fn require_usable(home: &Stream, stream: &Arc<cuda_core::Stream>, what: &str) -> Result<()> {
    require_same(home.device(), stream.context())?;
    require_one_stream(stream)?;
    refuse_captured_home(home, what)?;
    refuse_capture(stream, what)
}

pub(crate) fn refuse_captured_home(home: &Stream, what: &str) -> Result<()> {
    if !home.is_capturing()? {
        return Ok(());
    }
    Err(refused(
        ErrorKind::Capture,
        format!("{what} was asked for, and {home} is in a capture"),
        "do it before the capture, or after it",
    ))
}

/// Has their tracker refuse each stream but `stream` until the stream between has waited for the home.
fn exclude_others(
    raw: &RawDeviceBuffer,
    stream: &cuda_core::Stream,
    between: &Between,
) -> Result<()> {
    let lease = acquire(raw, stream, "lending a vector")?;
    lease
        .retain_until_complete(between.theirs())
        .map_err(|error| theirs("lending a vector", "cuEventRecord", error))
}

/// A lease on all of the memory, which no other stream may be using.
fn acquire(
    raw: &RawDeviceBuffer,
    stream: &cuda_core::Stream,
    what: &str,
) -> Result<AllocationLease> {
    raw.acquire(stream, true, false).map_err(|error| {
        let failed = theirs(what, "RawDeviceBuffer::acquire", error);
        match error.0 {
            sys::cudaError_enum_CUDA_ERROR_NOT_READY => failed.with_advice(
                "another stream of theirs still uses the memory: wait for it, or call into_vec",
            ),
            _ => failed,
        }
    })
}

/// The vector of a buffer again, whose home is ordered after all work of the context, on any stream.
///
/// The host does not wait, but for a driver before CUDA 12.5. The home waits for work of other streams, too, which may have
/// nothing to do with the buffer. Where one stream alone used it, [`into_vec_after`] waits for that.
///
/// A buffer may have been cast to elements of another type meanwhile.
///
/// # Errors
///
/// The buffer comes back with each.
///
/// - [`ErrorKind::InvalidArgument`] for a buffer that is no vector's (take [`adopt`](crate::adopt)), a part of one, or
///   one of which a tensor, a graph or another view is left.
/// - [`ErrorKind::Capture`] while the vector's home is in capture.
/// - The errors of the driver. It refuses while any stream of the context is in capture.
#[track_caller]
pub fn into_vec<T: Pod + DeviceCopy>(
    buffer: DeviceBuffer<T>,
) -> Result<DeviceVec<T>, Refused<DeviceBuffer<T>>> {
    take_back(buffer, |home, _| {
        refuse_captured_home(home, "a vector of a buffer")?;
        in_between(home, |between| between.order_home_after_all(home))
    })
}

/// The vector of a buffer again, whose home is ordered after `stream`.
///
/// The host does not wait. Their tracker knows the streams that still use the memory. So `stream` is checked, and a wrong
/// one is no race.
///
/// Kernels that were launched by an unsafe call which tracks nothing are the caller's to order, as that call says.
///
/// # Errors
///
/// The buffer comes back with each.
///
/// - The errors of [`into_vec`], [`into_buffer`].
/// - [`ErrorKind::Driver`] with `CUDA_ERROR_NOT_READY` if another stream still uses the memory.
#[track_caller]
pub fn into_vec_after<T: Pod + DeviceCopy>(
    buffer: DeviceBuffer<T>,
    stream: &Arc<cuda_core::Stream>,
) -> Result<DeviceVec<T>, Refused<DeviceBuffer<T>>> {
    take_back(buffer, |home, raw| {
        require_usable(home, stream, "a vector of a buffer")?;
        let lease = acquire(raw, stream, "taking a vector back")?;
        in_between(home, |between| between.order_home(home, stream))?;
        drop(lease);
        Ok(())
    })
}

/// Makes an order by a stream between.
pub(crate) fn in_between(home: &Stream, order: impl FnOnce(&Between) -> Result<()>) -> Result<()> {
    let between = Between::take(home.device())?;
    let ordered = order(&between);
    between.give_back();
    ordered
}

/// Takes the vector out of the last view on it, once `order` has ordered its home.
pub(crate) fn take_back<T: Pod + DeviceCopy>(
    buffer: DeviceBuffer<T>,
    order: impl FnOnce(&Stream, &RawDeviceBuffer) -> Result<()>,
) -> Result<DeviceVec<T>, Refused<DeviceBuffer<T>>> {
    let owner = match require_last_view(buffer.storage()) {
        Ok(owner) => owner,
        Err(error) => return Err(Refused { error, value: buffer }),
    };
    let ordered = match owner.home() {
        Some(home) => order(&home, buffer.storage()),
        None => Err(already_back()),
    };
    if let Err(error) = ordered {
        return Err(Refused { error, value: buffer });
    }
    let taken = match owner.take() {
        Some(bytes) => bytes.cast::<T>(),
        None => return Err(Refused { error: already_back(), value: buffer }),
    };
    match taken {
        Ok(vec) => Ok(vec),
        Err(Refused { error, value }) => {
            owner.put(value);
            Err(Refused { error, value: buffer })
        }
    }
}

/// The owner of a buffer that is the last view on a whole vector.
fn require_last_view(raw: &RawDeviceBuffer) -> Result<Arc<Owner>> {
    let Some(owner) = Owner::of(raw) else {
        return Err(refused(
            ErrorKind::InvalidArgument,
            format!("a buffer of {} bytes was no vector", raw.len_bytes()),
            "take aquifer_nvidia::adopt for a buffer that theirs allocated",
        ));
    };
    if !raw.is_unique() {
        return Err(refused(
            ErrorKind::InvalidArgument,
            format!(
                "a vector was asked for of a buffer of {} bytes with other views",
                raw.len_bytes()
            ),
            "drop the tensors, graphs and views of it first",
        ));
    }
    if !owner.is_whole(raw) {
        return Err(refused(
            ErrorKind::InvalidArgument,
            format!("a vector was asked for of {} bytes, which are a part of one", raw.len_bytes()),
            "keep a view on the whole buffer, and give that back",
        ));
    }
    Ok(owner)
}

fn already_back() -> Error {
    refused(
        ErrorKind::InvalidArgument,
        "the vector of this buffer was taken back".into(),
        "this is a fault of aquifer-nvidia: please report it",
    )
}
