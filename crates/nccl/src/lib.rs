//! Collectives of several devices on vectors, with communicators, groups, and memory that is
//! registered with them.
//!
//! A [`Communicator`] is one rank. NCCL does the work where the devices are GPUs. A [`Group`] gives several calls together,
//! and [`RegisteringAdaptor`] registers a pool's blocks, which makes large collectives faster.

// | file | content |
// | --- | --- |
// | `id`, `element` | what ranks find each other by; the elements that can be reduced |
// | `rank` | one rank, its lock and its end |
// | `communicator` | the handle: how ranks join, wait and are aborted |
// | `request` | a collective that is checked and not given to its stream yet |
// | `calls` | the collectives, alone and in a group |
// | `device_calls` | what a device does with communicators |
// | `registering`, `nccl_resource` | memory that communicators know; memory of NCCL's own |

#![deny(missing_docs, missing_debug_implementations)]

mod calls;
mod communicator;
mod device_calls;
mod element;
mod id;
mod nccl_resource;
mod rank;
mod registering;
mod request;

use aquifer_core::{container, device, event, inside, resource, stream};
use aquifer_driver::{self as driver, error, impls, layout};
use aquifer_events as debug_log;
use aquifer_sync as sync;

// The names that the documentation links to are those of `aquifer`.
#[cfg(doc)]
use aquifer_core::*;

pub use aquifer_collective::ReduceOp;
pub use calls::Group;
pub use communicator::{Communicator, CommunicatorOptions};
pub use element::ReduceElement;
pub use id::CommunicatorId;
pub use nccl_resource::NcclResource;
pub use registering::RegisteringAdaptor;
