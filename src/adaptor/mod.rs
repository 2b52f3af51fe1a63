//! Resources made of another resource, and resources bound to more.

mod logging;
mod on_stream;
mod traced;

pub use logging::{LogFormat, LoggingAdaptor, LoggingOptions};
pub use on_stream::OnStream;
pub use traced::TracedAdaptor;
