//! Typed device memory.
//!
//! [`DeviceVec`] is `Vec` on the device, [`DeviceBuffer`] its untyped form, [`DeviceScalar`] one value. Slices are
//! [`DeviceSlice`] and [`DeviceSliceMut`]. [`On`] and [`OnMut`] are guards of a use on another stream than the vector's own.

mod accessors;
mod buffer;
mod chunks;
mod copy;
mod device_buffer;
mod device_scalar;
pub(crate) mod device_vec;
mod edit;
mod fill;
mod growth;
pub(crate) mod launch;
pub(crate) mod memory_use;
mod on;
mod parts;
mod pending_uses;
mod split_block;
mod stream_ref;
mod used_on;
mod view;

pub use device_buffer::DeviceBuffer;
pub use device_scalar::DeviceScalar;
pub use device_vec::DeviceVec;
#[cfg(feature = "cuda")]
pub(crate) use device_vec::refuse_zero_sized;
pub use growth::Growth;
pub use on::{On, OnMut};
pub use stream_ref::StreamRef;
pub use view::{DeviceRead, DeviceSlice, DeviceSliceMut, DeviceWrite};

pub(crate) use memory_use::{CapturePolicy, MemoryUse};
#[cfg(feature = "cuda")]
pub(crate) use stream_ref::UnknownStream;
pub(crate) use view::{check_range, lengths};

crate::sync::for_models! {
    #[allow(missing_docs, unreachable_pub)]
    pub mod models {
        pub use super::pending_uses::{PendingUses, Timeline};
    }
}
