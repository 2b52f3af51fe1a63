//! Resources made of another resource, and resources bound to more.

mod aligned;
mod caller;
mod caught;
mod checked;
mod failure_callback;
mod handles;
mod limiting;
mod logging;
mod on_stream;
mod polymorphic;
mod prefetch;
mod seats;
mod shards;
mod statistics;
mod thread_safe;
mod till;
mod traced;
mod tracking;

pub use aligned::AlignedAdaptor;
pub use checked::{BlockUse, CheckedAdaptor, CheckedOptions, Misuse, MisuseKind};
pub use failure_callback::{Failure, FailureCallbackAdaptor, FailureCallbackOptions};
pub use limiting::LimitingAdaptor;
pub use logging::{LogFormat, LoggingAdaptor, LoggingOptions};
pub use on_stream::OnStream;
pub use polymorphic::PolymorphicAllocator;
pub use prefetch::PrefetchAdaptor;
pub use statistics::{Counter, Counters, StatisticsAdaptor};
pub use thread_safe::{LocalDeviceResource, ThreadSafeAdaptor};
pub use traced::TracedAdaptor;
pub use tracking::{Allocation, CallStack, TrackingAdaptor, TrackingOptions};

crate::sync::for_models! {
    #[allow(missing_docs, unreachable_pub)]
    pub mod models {
        pub use super::logging::ring::Line;
        pub use super::statistics::counts::Counts;
        pub use super::tracking::alone::Alone;
    }
}
