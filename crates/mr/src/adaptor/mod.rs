//! Adaptors are resources made of another resource, their upstream. [`OnStream`] binds a resource to a
//! stream, [`PolymorphicAllocator`] to an element type.

mod aligned;
mod call_stack;
mod caller;
mod checked;
mod failure_callback;
mod limiting;
mod logging;
mod on_stream;
mod polymorphic;
mod prefetch;
mod shards;
mod statistics;
mod thread_safe;
mod traced;
mod tracking;

pub use aligned::AlignedAdaptor;
pub use call_stack::CallStack;
pub use checked::{BlockUse, CheckedAdaptor, CheckedOptions, Misuse, MisuseKind};
pub use failure_callback::{FailureCallbackAdaptor, FailureCallbackOptions};
pub use limiting::LimitingAdaptor;
pub use logging::{LogFormat, LoggingAdaptor, LoggingOptions, flush_logs};
pub use on_stream::OnStream;
pub use polymorphic::PolymorphicAllocator;
pub use prefetch::PrefetchAdaptor;
pub use statistics::{Counter, Counters, StatisticsAdaptor};
pub use thread_safe::{LocalDeviceResource, ThreadSafeAdaptor};
pub use traced::TracedAdaptor;
pub use tracking::{Allocation, TrackingAdaptor, TrackingOptions};

crate::sync::for_models! {
    #[allow(missing_docs, unreachable_pub)]
    pub mod models {
        pub use super::logging::ring::NumberRing;
        pub use super::statistics::shared::SharedCounters;
    }
}
