//! The elements of device memory.

use bytemuck::Pod;

/// Plain data, which device memory holds and kernels get by value.
///
/// Every [`Pod`](https://docs.rs/bytemuck/1/bytemuck/trait.Pod.html) type is one: numbers, arrays of numbers, and
/// structures of numbers without padding (`#[derive(Pod)]`). Other types implement it themselves. Each call then asks
/// what it needs beside this:
///
/// | call | it also needs | since |
/// | --- | --- | --- |
/// | vectors, views, guards, launches, copies between devices, downloads into `MaybeUninit` | nothing | the host does not look at the elements |
/// | uploads, `fill`, `push`, `set`, scalars of launches | `NoUninit` | bytes of padding have no value to copy |
/// | `zeroed` | `Zeroable` | zeros have to be a value |
/// | `to_vec`, `get`, `copy_to_slice`, owned downloads, `cast` | `AnyBitPattern` | the device may hold any bytes |
/// | `to_vec_checked` | `CheckedBitPattern` | each element is checked |
///
/// These are bytemuck's traits, all of which `Pod` implies.
///
/// # A type of another crate
///
/// A wrapper of one field implements the traits in its place. bytemuck's `TransparentWrapper` turns slices and vectors
/// of the one into those of the other, without a copy:
///
/// ```
/// use aquifer::{Device, DeviceCopy, DeviceVec, bytemuck};
/// use bytemuck::{CheckedBitPattern, NoUninit, TransparentWrapper, allocation::TransparentWrapperAlloc};
/// # mod field {
/// #     #[derive(Clone, Copy, Debug, PartialEq)]
/// #     #[repr(transparent)]
/// #     pub struct Fr([u64; 4]);
/// #     impl From<u64> for Fr {
/// #         fn from(value: u64) -> Self {
/// #             Self([value, 0, 0, 0])
/// #         }
/// #     }
/// # }
///
/// /// `field::Fr` is a `repr(transparent)` type over `[u64; 4]`, whose number is below a modulus.
/// #[derive(Clone, Copy)]
/// #[repr(transparent)]
/// struct Scalar(field::Fr);
///
/// // SAFETY: four integers, without padding, without pointers.
/// unsafe impl DeviceCopy for Scalar {}
/// // SAFETY: the same.
/// unsafe impl NoUninit for Scalar {}
/// // SAFETY: `repr(transparent)`.
/// unsafe impl TransparentWrapper<field::Fr> for Scalar {}
/// // SAFETY: a number below the modulus is an `Fr`.
/// unsafe impl CheckedBitPattern for Scalar {
///     type Bits = [u64; 4];
///
///     fn is_valid_bit_pattern(bits: &[u64; 4]) -> bool {
///         bits[3] < 0x30644e72e131a029
///     }
/// }
///
/// let stream = Device::detect_or_simulate()?.new_stream()?;
/// let scalars = [field::Fr::from(1), field::Fr::from(2)];
/// let vec = DeviceVec::from_slice(&stream, Scalar::wrap_slice(&scalars))?;
/// assert_eq!(Scalar::peel_vec(vec.to_vec_checked()?), scalars);
/// # Ok::<(), aquifer::Error>(())
/// ```
///
/// A check of each element takes time, and a program may trust its own kernels. It downloads into `MaybeUninit` then,
/// by `copy_to_uninit_slice`, and says so by its own `unsafe`.
///
/// # What is refused
///
/// A `bool` is no plain data, since only two of its bytes are values, and neither is a reference or a `String`. This
/// does not compile:
///
/// ```compile_fail
/// fn flags(_: aquifer::DeviceVec<bool>) {}
/// ```
///
/// # Safety
///
/// - A copy of a value's bytes, on the device or back on the host, is the same value.
/// - The value has no reference and no pointer to memory of the host, and no interior mutability.
/// - Kernels that take it know its layout, which `repr(C)` or `repr(transparent)` fixes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not plain data, which device memory holds",
    label = "neither `Pod` nor `DeviceCopy`",
    note = "derive `bytemuck::Pod` for a type of your own; for one with padding or with invalid bit patterns, write `unsafe impl DeviceCopy`",
    note = "wrap a type of another crate in a `#[repr(transparent)]` structure of your own"
)]
pub unsafe trait DeviceCopy: Copy + 'static {}

// SAFETY: plain data of any bit pattern, without pointers or cells, by the contract of `Pod`.
#[diagnostic::do_not_recommend]
unsafe impl<T: Pod> DeviceCopy for T {}
