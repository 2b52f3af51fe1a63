//! Resources made of another resource, and resources bound to more.

mod checked;
mod on_stream;
mod shards;
mod thread_safe;
mod tracking;

pub use checked::{BlockUse, CheckedAdaptor, CheckedOptions, Misuse, MisuseKind};
pub use on_stream::OnStream;
pub use thread_safe::{LocalDeviceResource, ThreadSafeAdaptor};
pub use tracking::{Allocation, TrackingAdaptor, TrackingOptions};
