//! What other programs plug into: memory under the interfaces that they define.

mod data_handler;

pub use data_handler::{
    DataAlloc, DataHandler, HandlerFunctions, RawDataAllocator, RawDataHandler, WithDataHandler,
    current_data_handler, data_handler_name, data_handler_version, set_data_handler,
    with_data_handler,
};
