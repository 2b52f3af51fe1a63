//! The smallest capacity that serves a whole log.

use crate::engine::tried;
use crate::error::{Moment, ReplayError};
use crate::plan::Plan;
use crate::sizing::{Tried, first_double};
use crate::stack::{Backend, Options};
use crate::words::count;
use aquifer::{Error, ErrorKind};
use serde::Serialize;

/// What [`bisect`] found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bisected {
    /// The smallest capacity in bytes, a multiple of the step.
    pub capacity: u64,
    /// The most bytes that the log has live at once: what no capacity can be below.
    pub peak_live: u64,
    /// Capacity / peak live.
    pub ratio: f64,
    /// Replays that were made.
    pub tries: usize,
}

/// Finds the smallest multiple of `step` bytes with which a simulated device serves all of `plan`,
/// between the log's peak and the first double of it that does. `tell` is called with each
/// capacity that was tried, and whether it served.
///
/// A resource may be served with less where it is not with more; then this is one edge of several.
///
/// # Errors
///
/// [`ErrorKind::InvalidArgument`] for a step that is no multiple of 256, or another backend;
/// [`ErrorKind::OutOfMemory`] if no capacity serves, with the line that it does not serve; those of
/// the device.
pub fn bisect(
    plan: &Plan,
    options: &Options,
    step: u64,
    mut tell: impl FnMut(u64, bool),
) -> Result<Bisected, ReplayError> {
    let refuse = |what: String| {
        let error = Error::new(ErrorKind::InvalidArgument, what);
        Err(ReplayError { moment: Moment::Start, line_word: plan.line_word, error })
    };
    if step == 0 || !step.is_multiple_of(256) {
        return refuse(format!("a step of {}, which is no multiple of 256", count(step, "byte")));
    }
    if options.backend != Backend::Simulated {
        return refuse(String::from(
            "a bisection needs the simulated device: a GPU's memory is not for trying out",
        ));
    }
    let mut tries = 0;
    let mut tried = |capacity: u64| {
        let options = Options { capacity: Some(capacity), ..options.clone() };
        let tried = tried(plan, &options)?;
        tries += 1;
        tell(capacity, matches!(tried, Tried::Served));
        Ok(tried)
    };
    // In steps: `fails` does not serve, `works` does.
    let (mut fails, mut works) = first_double(plan, options.resource, step, &mut tried)?;
    while works - fails > 1 {
        let middle = fails + (works - fails) / 2;
        match tried(middle * step)? {
            Tried::Served => works = middle,
            _ => fails = middle,
        }
    }
    let capacity = works * step;
    let ratio = capacity as f64 / plan.peak_live.max(1) as f64;
    Ok(Bisected { capacity, peak_live: plan.peak_live, ratio, tries })
}
