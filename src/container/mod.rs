//! Typed device memory.

mod buffer;
mod debts;
mod device_box;
mod device_buffer;
mod device_scalar;
mod device_vec;
mod edit;
mod fill;
mod foreign;
mod launch;
mod parts;
mod view;

pub use device_box::DeviceBox;
pub use device_buffer::DeviceBuffer;
pub use device_scalar::DeviceScalar;
pub use device_vec::DeviceVec;
pub use foreign::{On, OnMut, StreamRef};
pub use launch::Launch;
pub use parts::DeviceVecParts;
pub use view::{DeviceRead, DeviceSlice, DeviceSliceMut, DeviceWrite};

#[cfg(feature = "cuda")]
pub(crate) use foreign::{Borrower, lend_loosely};
pub(crate) use foreign::{lend, lend_across};

crate::sync::for_models! {
    #[allow(missing_docs, unreachable_pub)]
    pub mod models {
        pub use super::debts::{Debts, Lender};
    }
}
