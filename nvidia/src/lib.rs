//! Aquifer's memory in NVIDIA's crates for Rust: `cuda-core`, `cuda-async` and `cutile` 0.5.
//!
//! A [`DeviceVec`](aquifer::DeviceVec) of a pool becomes their `DeviceBuffer` and comes back, without a copy and without a
//! wait of the host. The order of the streams is made by events on the way, and safe code cannot get it wrong.
//!
//! | from | to | by |
//! | --- | --- | --- |
//! | `DeviceVec<T>` | `DeviceBuffer<T>` | [`into_buffer`] |
//! | that buffer | the vector | [`into_vec`], [`into_vec_after`] |
//! | a `DeviceBuffer<T>` of theirs | `DeviceVec<T>` | [`adopt`] |
//! | `&mut DeviceVec<T>` | a buffer for one stream, unsafe | [`borrow_mut`] |
//! | `DeviceVec<T>` | a tensor of `cutile`, and back (feature `cutile`) | `into_tensor`, `tensor_into_vec`, `tensor_into_vec_after` |
//! | a page-locked `Vec` | a buffer, and back | [`upload_new`], [`upload`], [`download`] |
//! | `Device`, `Stream` | `Context`, `Stream` of theirs | [`context()`], [`stream()`] |
//! | `Context`, `Stream` of theirs | `Device`, `Stream` | [`device()`], [`from_stream`] |
//!
//! Elements are `T: Pod + DeviceCopy`. `DeviceCopy` has no blanket, so types of a program derive both.
//!
//! The README says how to build it without a toolkit, how the order is made, and what their interface does not permit.
//! Aquifer's guide has a page `nvidia` with whole programs.
#![deny(missing_docs, missing_debug_implementations)]

mod adopt;
mod context;
mod convert;
mod error;
mod host;
mod later;
mod order;
mod owner;
mod stream;
#[cfg(feature = "cutile")]
mod tensor;
mod view;

pub use adopt::adopt;
pub use context::{context, device};
pub use convert::{into_buffer, into_vec, into_vec_after};
pub use host::{HostAndBuffer, HostTransfer, download, upload, upload_new};
pub use stream::{from_stream, stream};
#[cfg(feature = "cutile")]
pub use tensor::{into_tensor, tensor_into_vec, tensor_into_vec_after};
pub use view::{BorrowedBuffer, borrow_mut};

/// The guide's page and the README are tests.
#[cfg(all(doctest, feature = "cutile"))]
#[doc = include_str!("../../docs/guide/nvidia.md")]
mod guide {}
