//! Resources made of another resource, and resources bound to more.

mod aligned;
mod failure_callback;
mod limiting;
mod logging;
mod on_stream;
mod prefetch;
mod shards;
mod statistics;
mod tracking;

pub use aligned::AlignedAdaptor;
pub use failure_callback::{Failure, FailureCallbackAdaptor, FailureCallbackOptions};
pub use limiting::LimitingAdaptor;
pub use logging::{LogFormat, LoggingAdaptor, LoggingOptions};
pub use on_stream::OnStream;
pub use prefetch::PrefetchAdaptor;
pub use statistics::{Counter, Counters, StatisticsAdaptor};
pub use tracking::{Allocation, TrackingAdaptor, TrackingOptions};
