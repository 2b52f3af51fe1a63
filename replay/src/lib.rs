//! Replays logs of device memory against [`aquifer`]'s resources.
//!
//! A log (RMM's CSV, NBEP 7's twelve columns, PyTorch's memory snapshots) is [read](read::read)
//! into one list of events, [planned](plan::Plan) so that every free knows its allocation, and
//! [replayed](engine::replay) in the log's order, on the log's threads and streams. The program
//! `aquifer-replay` does all of it; `aquifer-replay --help` shows how.

pub mod bisect;
mod counting;
pub mod engine;
pub mod error;
pub mod event;
pub mod picture;
pub mod plan;
pub mod read;
pub mod report;
pub mod sizing;
pub mod stack;
pub mod trace;
mod turns;
pub mod warning;
pub mod words;

pub use counting::Segment;
