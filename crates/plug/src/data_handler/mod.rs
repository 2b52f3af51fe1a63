//! Named, versioned handlers of host memory, as NumPy's NEP 49 has them.
//!
//! | file | content |
//! |---|---|
//! | `raw` | the table of C functions, laid out as NumPy's |
//! | `functions` | a handler's functions in Rust |
//! | `shared` | a handler of either kind, with C functions over those in Rust |
//! | `handler` | a counted handle on it |
//! | `inside` | whether the calling thread is inside of a handler's function |
//! | `with_header` | functions over an allocator: a header keeps the layout of each block |
//! | `by_size`, `pages`, `system_heap` | the allocators under the ready handlers |
//! | `ready` | the ready handlers |
//! | `current` | the current handler of a thread, a scope, a task |
//! | `alloc` | the allocator that carries a handler |

mod alloc;
mod by_size;
mod current;
mod functions;
mod handler;
mod inside;
#[cfg(target_os = "linux")]
mod pages;
mod raw;
mod ready;
mod shared;
#[cfg(unix)]
mod system_heap;
mod with_header;

pub use alloc::DataAlloc;
pub use current::{
    current_data_handler, data_handler_name, data_handler_version, set_data_handler,
    with_data_handler, with_data_handler_async,
};
pub use functions::HandlerFunctions;
pub use handler::DataHandler;
pub use raw::{RawDataAllocator, RawDataHandler};

#[cfg(test)]
mod tests;
