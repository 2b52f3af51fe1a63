//! Resources made of another resource, and resources bound to more.

mod on_stream;
mod prefetch;

pub use on_stream::OnStream;
pub use prefetch::PrefetchAdaptor;
