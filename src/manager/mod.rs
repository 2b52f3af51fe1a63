//! What programs of other languages and libraries plug into.

mod stack;

pub use stack::{ResourceStack, StackText, StackTextError};
