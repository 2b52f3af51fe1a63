//! How operations run, with the scheduler and the work of one operation.

mod execute;
mod schedule;

pub(crate) use schedule::{
    advance, discard_queues, drop_waiting_functions, has_stopped, run_background, run_some,
    run_until,
};
