//! The data of all simulated devices, and how it changes in one step. One lock guards it.
//!
//! | file | data |
//! | --- | --- |
//! | `config`, `context` | what a device is like; its reports, call counts and whether it is lost |
//! | `backing`, `op`, `fence` | the host memory of a block; an operation and the ranges that it touches; points to wait for |
//! | `blocks`, `parts` | live and freed blocks by address; what the crate's pools cut from a block |
//! | `imports` | blocks at a second address, which were opened as another process's |
//! | `virtual_memory` | handles of memory, and what reserved addresses have mapped |
//! | `pool` | the driver's memory pools |
//! | `clique` | the ranks of communicators, and what they exchange |
//! | `stream`, `graph` | queues; recorded points, captures, executable graphs |
//! | `sim_state` | all of these by handle, behind the lock |
//!
//! | lock or word | guards | taken under |
//! | --- | --- | --- |
//! | the lock of `SimState` | all handles, queues, blocks, clocks and shadows | locks of the crate above |
//! | `SimContext::log` | reports, call counts, failures to inject | any; a leaf |
//! | `SimContext::lost` | nothing: written under the lock of `SimState`, read anywhere | |
//! | `Backing`'s watchpoints | themselves, against the running operation | any; a leaf |
//! | `SimFence::remaining`, `cancelled` | nothing: read and written under the lock of `SimState` | |
//! | `Exchange`'s parts | themselves, between running operations | any; a leaf |
//! | a block's bytes | the one running operation that touches the block (INV-1 of the scheduler) | |

mod backing;
mod blocks;
mod clique;
mod config;
mod context;
mod fence;
mod graph;
mod imports;
mod op;
mod parts;
mod pool;
mod random;
mod sim_state;
mod stream;
mod virtual_memory;

pub(crate) use backing::{Backing, POISON, is_mapped, physical_memory};
pub(crate) use blocks::{ADDRESS_RANGE, BlockKind, LookupError, PeerMemory, SimBlock};
pub(crate) use clique::{Agreed, Cliques, Exchange, Refusal, agreed};
pub use config::{Schedule, SimConfig};
pub(crate) use context::{InjectedFailure, SimContext};
pub(crate) use fence::SimFence;
pub(crate) use graph::{
    CaptureMember, CapturePoint, CaptureRecording, CapturedOp, CapturedWork, EventRecord,
    SimCapture, SimEvent, SimGraph,
};
pub(crate) use imports::{Import, Imports};
pub(crate) use op::{AddressSpace, HostSide, OpRange, OpWork, SimOp, TouchedRange, Watchpoint};
pub(crate) use parts::{FreedPart, Region};
pub(crate) use pool::SimPool;
#[cfg(test)]
pub(crate) use random::Random;
pub(crate) use sim_state::{
    RunningOp, SimDevice, SimState, StateGuard, is_seen, is_seen_by_pools, lock_state,
    notify_changed, wait_changed, wait_changed_for,
};
pub(crate) use stream::SimStream;
pub(crate) use virtual_memory::{Mapping, MappingState, SimHandle};
