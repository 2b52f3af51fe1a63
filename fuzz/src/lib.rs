//! What the fuzz targets run on their input. No input may make it panic.

mod log;
mod operations;
mod stack;

pub use log::read_log;
pub use operations::heap_operations;
pub use stack::stack_text;
