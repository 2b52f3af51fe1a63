//! Resources made of another resource, and resources bound to more.

mod limiting;
mod on_stream;

pub use limiting::LimitingAdaptor;
pub use on_stream::OnStream;
