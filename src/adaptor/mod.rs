//! Resources made of another resource, and resources bound to more.

mod aligned;
mod limiting;
mod on_stream;

pub use aligned::AlignedAdaptor;
pub use limiting::LimitingAdaptor;
pub use on_stream::OnStream;
