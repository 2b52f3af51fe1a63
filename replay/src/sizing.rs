//! How large a device has to be.

use crate::error::{Moment, ReplayError, without_advice};
use crate::plan::{Plan, What};
use crate::report::Failed;
use crate::stack::{BEYOND_ANY_DEVICE, Resource};
use crate::words::count;
use aquifer::{Error, ErrorKind};
use std::collections::HashSet;

/// What came of a replay that ends at the first failure.
#[derive(Clone, Debug)]
pub enum Tried {
    /// All was served.
    Served,
    /// This was refused.
    Refused(Failed),
    /// There was too little for the resource itself.
    NotMade(Error),
}

/// How often a capacity is doubled before it is given up.
const DOUBLINGS: u32 = 24;

/// Doubles a capacity, from the log's peak on, until `tried` serves. In steps of `step` bytes: the last
/// that did not serve, and the first that did.
///
/// # Errors
///
/// [`ErrorKind::OutOfMemory`] with its line if an allocation is larger than any device or than the
/// resource's largest block, or if no capacity serves it; those of `tried`.
pub(crate) fn first_double(
    plan: &Plan,
    resource: Resource,
    step: u64,
    mut tried: impl FnMut(u64) -> Result<Tried, ReplayError>,
) -> Result<(u64, u64), ReplayError> {
    let too_little = |moment, words: String| ReplayError {
        moment,
        line_word: plan.line_word,
        error: Error::new(ErrorKind::OutOfMemory, words),
    };
    if let Some((line, size)) = beyond(plan, BEYOND_ANY_DEVICE) {
        let words = format!("{} were asked, more than any device has", count(size, "byte"));
        return Err(too_little(Moment::Line(line), words));
    }
    if let Some(largest) = resource.largest_block()
        && let Some((line, size)) = beyond(plan, largest)
    {
        let (size, name) = (count(size, "byte"), resource.name());
        let words = format!("{size} were asked, and the largest block of `{name}` has {largest}");
        return Err(too_little(Moment::Line(line), words));
    }
    let mut works = plan.peak_live.div_ceil(step).max(1);
    let mut fails = works - 1;
    let mut doublings = 0;
    loop {
        let capacity = works.saturating_mul(step);
        let refused = tried(capacity)?;
        if doublings < DOUBLINGS && !matches!(refused, Tried::Served) {
            fails = works;
            works = works.saturating_mul(2);
            doublings += 1;
            continue;
        }
        return match refused {
            Tried::Served => Ok((fails, works)),
            Tried::Refused(Failed { line, error, .. }) => {
                let words = format!("no capacity up to {capacity} bytes serves: {error}");
                Err(too_little(Moment::Line(line), words))
            }
            Tried::NotMade(error) => {
                let error = without_advice(&error);
                let words = format!("no capacity up to {capacity} bytes serves: {error}");
                Err(too_little(Moment::Start, words))
            }
        };
    }
}

/// An error with its line if a log uses more streams than the resource tells apart. A replay would end
/// there, too, but not soon.
pub(crate) fn not_too_many_streams(plan: &Plan, resource: Resource) -> Result<(), ReplayError> {
    let Some(most) = resource.most_streams().filter(|most| plan.streams.len() > *most) else {
        return Ok(());
    };
    let mut seen = HashSet::new();
    let mut first = plan.steps.iter().filter(|step| seen.insert(step.stream));
    let Some(step) = first.nth(most) else { return Ok(()) };
    let words = format!(
        "the log's {}th stream, and `{}` tells {most} apart; --resource cuda, async and managed tell any \
         number",
        most + 1,
        resource.name()
    );
    Err(ReplayError {
        moment: Moment::Line(step.line),
        line_word: plan.line_word,
        error: Error::new(ErrorKind::Unsupported, words),
    })
}

/// The first allocation of more than `most` bytes: its line, and its bytes.
fn beyond(plan: &Plan, most: u64) -> Option<(u64, usize)> {
    plan.steps.iter().find_map(|step| match step.what {
        What::Allocate { size, .. } if size as u64 > most => Some((step.line, size)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{LogStream, StreamKind};
    use crate::plan::Step;

    /// A log of that many streams, each with two lines, and of one more that has none.
    fn plan(streams: usize) -> Plan {
        let stream = LogStream { name: String::from("16"), kind: StreamKind::Other };
        let step = |at: usize| Step {
            line: at as u64 + 2,
            thread: 0,
            stream: at / 2,
            time: None,
            what: What::Free { slot: 0 },
        };
        Plan {
            steps: (0..2 * streams).map(step).collect(),
            streams: vec![stream; streams + 1],
            line_word: "line",
            ..Plan::default()
        }
    }

    #[test]
    fn a_pool_has_its_number_of_streams() {
        assert!(not_too_many_streams(&plan(65_534), Resource::Pool).is_ok());
        assert!(not_too_many_streams(&plan(65_535), Resource::Cuda).is_ok());
        let error = not_too_many_streams(&plan(65_535), Resource::Arena).unwrap_err();
        assert_eq!(error.moment, Moment::Line(2 * 65_534 + 2));
        assert_eq!(
            error.error.to_string(),
            "the log's 65535th stream, and `arena` tells 65534 apart; --resource cuda, async and managed \
             tell any number"
        );
    }
}
