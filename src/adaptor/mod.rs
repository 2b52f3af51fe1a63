//! Resources made of another resource, and resources bound to more.

mod on_stream;
mod shards;
mod tracking;

pub use on_stream::OnStream;
pub use tracking::{Allocation, TrackingAdaptor, TrackingOptions};
