//! The pool: heaps, epochs and magazines. Stream-ordered memory that costs no driver call when warm.

mod chunks;
mod inbox;
pub(crate) mod local;
pub(crate) mod magazine;
