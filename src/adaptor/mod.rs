//! Resources made of another resource, and resources bound to more.

mod on_stream;
mod polymorphic;

pub use on_stream::OnStream;
pub use polymorphic::PolymorphicAllocator;
