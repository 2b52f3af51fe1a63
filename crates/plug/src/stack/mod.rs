//! A stack of resources from a short text. [`StackText`] has the grammar.
//!
//! | file | what it is |
//! | --- | --- |
//! | `error` | what is wrong with a text, and where |
//! | `names` | the tables of resources, adaptors and options |
//! | `value` | values of options: sizes, numbers, switches, names, paths |
//! | `token` | the text as words and marks |
//! | `layer` | a resource or an adaptor of a text, with its options |
//! | `mistakes` | what the grammar's errors say |
//! | `parse` | the grammar |
//! | `text` | the text that was read |
//! | `build` | resources by a text |
//! | `handle` | the resources that were built |

mod build;
mod error;
mod layer;
mod mistakes;
mod names;
mod parse;
mod resource_stack;
#[cfg(test)]
mod tests;
mod text;
mod token;
mod value;

pub use error::StackTextError;
pub use resource_stack::ResourceStack;
pub use text::StackText;
