//! Typed device memory.
//!
//! [`DeviceVec`] is `Vec` on the device, [`DeviceBuffer`] its untyped form, [`DeviceScalar`] one value. Slices are
//! [`DeviceSlice`] and [`DeviceSliceMut`]. [`BorrowedVec`] is memory that another owner
//! lends. [`On`] and [`OnMut`] are guards of a use on another stream than the vector's own.

mod accessors;
mod between_devices;
mod blocking;
mod borrowed;
mod buffer;
mod chunks;
mod copy;
mod device_buffer;
mod device_scalar;
pub(crate) mod device_vec;
mod edit;
mod fill;
mod growth;
pub(crate) mod host_copy;
pub(crate) mod launch;
mod on;
mod parts;
mod split_block;
pub(crate) mod stopped;
mod view;
#[cfg(feature = "zerocopy")]
mod zerocopy;

#[cfg(feature = "zerocopy")]
pub use self::zerocopy::Zerocopy;
pub use crate::driver::MemoryLocation;
pub use crate::order::StreamRef;
pub use borrowed::BorrowedVec;
pub use device_buffer::DeviceBuffer;
pub use device_scalar::DeviceScalar;
pub use device_vec::DeviceVec;
#[cfg(feature = "cuda")]
pub(crate) use device_vec::refuse_zero_sized;
pub use growth::Growth;
pub use on::{On, OnMut};
pub use view::{DeviceRead, DeviceSlice, DeviceSliceMut, DeviceWrite};

pub(crate) use view::{check_range, lengths};
