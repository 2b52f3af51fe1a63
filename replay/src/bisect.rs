//! The smallest capacity that serves a whole log.

use crate::engine::is_served;
use crate::plan::Plan;
use crate::stack::{Backend, Options};
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

/// How often the capacity is doubled before it is given up.
const DOUBLINGS: u32 = 24;

/// Finds the smallest multiple of `step` bytes with which a simulated device serves all of `plan`,
/// between the log's peak and the first double of it that does. `tell` is called with each
/// capacity that was tried, and whether it served.
///
/// A resource may be served with less where it is not with more; then this is one edge of several.
///
/// # Errors
///
/// [`ErrorKind::InvalidArgument`] for a step that is no multiple of 256, or another backend;
/// [`ErrorKind::OutOfMemory`] if no capacity serves; those of the device.
pub fn bisect(
    plan: &Plan,
    options: &Options,
    step: u64,
    mut tell: impl FnMut(u64, bool),
) -> Result<Bisected, Error> {
    if step == 0 || !step.is_multiple_of(256) {
        let what = format!("a step of {step} bytes, which is no multiple of 256");
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    if options.backend != Backend::Simulated {
        let what = "a bisection needs the simulated device: a GPU's memory is not for trying out";
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    let mut tries = 0;
    let mut serves = |steps: u64| {
        let capacity = steps.saturating_mul(step);
        let options = Options { capacity: Some(capacity), ..options.clone() };
        let served = is_served(plan, &options)?;
        tries += 1;
        tell(capacity, served);
        Ok::<bool, Error>(served)
    };
    // In steps: `fails` does not serve, `works` does.
    let mut works = plan.peak_live.div_ceil(step).max(1);
    let mut fails = works - 1;
    let mut doublings = 0;
    while !serves(works)? {
        fails = works;
        works = works.saturating_mul(2);
        doublings += 1;
        if doublings > DOUBLINGS {
            let what = format!("no capacity up to {} bytes serves", fails.saturating_mul(step));
            return Err(Error::new(ErrorKind::OutOfMemory, what));
        }
    }
    while works - fails > 1 {
        let middle = fails + (works - fails) / 2;
        if serves(middle)? { works = middle } else { fails = middle }
    }
    let capacity = works * step;
    let ratio = capacity as f64 / plan.peak_live.max(1) as f64;
    Ok(Bisected { capacity, peak_live: plan.peak_live, ratio, tries })
}
