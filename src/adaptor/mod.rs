//! Resources made of another resource, and resources bound to more.

mod on_stream;

pub use on_stream::OnStream;
