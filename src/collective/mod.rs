//! Collectives of several devices on vectors: communicators, groups, and memory that is registered with them.
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
// | `registering` | memory that communicators know |

mod calls;
mod communicator;
mod element;
mod id;
mod rank;
mod registering;
mod request;

pub use crate::driver::ReduceOp;
pub use calls::Group;
pub use communicator::{Communicator, CommunicatorOptions};
pub use element::ReduceElement;
pub use id::CommunicatorId;
pub use registering::RegisteringAdaptor;
