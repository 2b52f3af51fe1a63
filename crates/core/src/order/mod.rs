//! The order between a use of memory on some stream and the memory's home.
//!
//! | file | content |
//! | --- | --- |
//! | `memory_use` | one use: what it waits for, and the note that it leaves |
//! | `pending_uses` | the uses that home has not waited for |
//! | `used_on` | where a use was, and how home waits for it |
//! | `stream_ref` | the kinds of streams that a use may be on |

mod memory_use;
mod pending_uses;
mod stream_ref;
mod used_on;

pub use memory_use::{CapturePolicy, MemoryUse};
pub(crate) use pending_uses::PendingUses;
pub use stream_ref::StreamRef;
#[cfg(feature = "cuda")]
pub(crate) use stream_ref::UnknownStream;
pub(crate) use used_on::UseTimeline;

crate::sync::for_models! {
    #[allow(missing_docs, unreachable_pub)]
    pub mod models {
        pub use super::pending_uses::{PendingUses, Timeline};
    }
}
