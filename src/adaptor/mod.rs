//! Resources made of another resource, and resources bound to more.

mod logging;
mod on_stream;

pub use logging::{LogFormat, LoggingAdaptor, LoggingOptions};
pub use on_stream::OnStream;
