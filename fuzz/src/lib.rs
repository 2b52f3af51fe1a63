//! What the fuzz targets run on their input. No input may make it panic.

#[allow(dead_code, unreachable_pub, unused_imports, reason = "the crate uses more of it")]
#[path = "../../src/heap/mod.rs"]
mod heap;

mod log;
mod operations;
mod stack;

pub use log::read_log;
pub use operations::heap_operations;
pub use stack::stack_text;
