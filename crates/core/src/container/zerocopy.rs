//! Elements with the traits of zerocopy.

use crate::driver::DeviceCopy;
use ::zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};
use bytemuck::{AnyBitPattern, NoUninit, TransparentWrapper, Zeroable};

/// A value with zerocopy's traits in place of bytemuck's, as an element of device memory.
///
/// bytemuck's functions of transparent wrappers turn slices and vectors of the one into those of the other:
///
/// ```
/// use aquifer::{Device, DeviceVec, container::Zerocopy};
/// use aquifer::bytemuck::{TransparentWrapper, allocation::TransparentWrapperAlloc};
/// use zerocopy::{FromBytes, Immutable, IntoBytes};
///
/// #[derive(Clone, Copy, Debug, PartialEq, FromBytes, Immutable, IntoBytes)]
/// #[repr(C)]
/// struct Particle {
///     position: [f32; 3],
///     charge: f32,
/// }
///
/// let stream = Device::detect_or_simulate()?.new_stream()?;
/// let particles = [Particle { position: [1.0, 2.0, 3.0], charge: -1.0 }];
/// let vec = DeviceVec::from_slice(&stream, Zerocopy::wrap_slice(&particles))?;
/// assert_eq!(Zerocopy::peel_vec(vec.to_vec()?), particles);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Zerocopy<T>(pub T);

// SAFETY: `repr(transparent)`.
unsafe impl<T> TransparentWrapper<T> for Zerocopy<T> {}

// SAFETY: plain bytes without cells, by the contract of zerocopy's traits, none of which a type with pointers has both of.
#[diagnostic::do_not_recommend]
unsafe impl<T: Copy + FromBytes + IntoBytes + Immutable + 'static> DeviceCopy for Zerocopy<T> {}

// SAFETY: `IntoBytes` says that no byte is uninitialised, `Immutable` that there are no cells.
unsafe impl<T: Copy + IntoBytes + Immutable + 'static> NoUninit for Zerocopy<T> {}

// SAFETY: `FromZeros` says that zeros are a value.
unsafe impl<T: FromZeros> Zeroable for Zerocopy<T> {}

// SAFETY: `FromBytes` says that any bytes are a value, `Immutable` that there are no cells.
unsafe impl<T: Copy + FromBytes + Immutable + 'static> AnyBitPattern for Zerocopy<T> {}
