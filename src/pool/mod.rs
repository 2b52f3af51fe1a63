//! The pool: heaps, epochs and magazines. Stream-ordered memory that costs no driver call when warm.
//!
//! Each stream has a [slot](slot): a heap of its own behind a lock that nobody else needs, an open
//! epoch, an inbox, and the magazines of the threads that use it. A block stays its heap's, whoever
//! has it: freed on another stream it goes home with that stream's stamp. Slot 0 is the bank.

#![allow(
    unreachable_pub,
    missing_docs,
    missing_debug_implementations,
    reason = "the models of loom_tests reach it through `models`; no user does"
)]

mod account;
mod capture;
mod chunks;
mod core;
mod epochs;
mod homes;
mod inbox;
pub(crate) mod local;
pub(crate) mod magazine;
mod notes;
mod reserve;
mod rungs;
mod slot;
mod upstream;

#[cfg(test)]
mod tests;

pub use account::Totals;
pub use core::{Block, Pool, Settings};
pub use rungs::Rung;
pub use upstream::{Failure, Upstream};

crate::sync::for_models! {
    #[allow(missing_docs, unreachable_pub)]
    pub mod models {
        pub use super::inbox::{Freed, Inbox};
        pub use super::magazine::{Cached, Limits, Magazine, Shelves};
        pub use super::{Block, Failure, Pool, Rung, Settings, Totals, Upstream};
    }
}
