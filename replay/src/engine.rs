//! Replays a plan: once for the time, once to look.

use crate::counting::Segment;
use crate::plan::{Plan, What};
use crate::report::{Failed, Report};
use crate::stack::{Options, Stack, is_full};
use crate::turns::{runs, take};
use aquifer::{DeviceBlock, DeviceLayout, Error, ErrorKind};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where one allocation was, and while which steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The step that made it.
    pub from: usize,
    /// The step that freed it; `usize::MAX` if none did.
    pub to: usize,
    /// The stream that it was made on.
    pub stream: usize,
    /// The device's address in the replay.
    pub address: u64,
    /// Bytes that were asked.
    pub asked: u64,
    /// Bytes that were given.
    pub bytes: u64,
}

/// A sample of a pool's statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// After this step.
    pub step: usize,
    /// Bytes of the largest free block.
    pub largest_free: u64,
}

/// What a replay looked like, step by step.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// Bytes that were asked and live, after each step.
    pub live: Vec<u64>,
    /// Bytes taken from the device, after each step.
    pub reserved: Vec<u64>,
    /// The allocations that were served, in the log's order.
    pub placed: Vec<Placed>,
    /// The blocks of the device.
    pub segments: Vec<Segment>,
    /// The pool's statistics, of some steps, evenly; none without a pool.
    pub samples: Vec<Sample>,
}

/// A replay that was made.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The figures.
    pub report: Report,
    /// The curves.
    pub observation: Observation,
}

/// How many steps are made between two calls of `progress`.
const STRIDE: usize = 4096;

/// How often a pool's statistics are read at most.
const SAMPLES: usize = 256;

/// Replays a plan twice, each time on a device of its own: for the time, and to look. `progress` is
/// called now and then with how many steps are done, of twice the plan's.
///
/// # Errors
///
/// Those of the device, other than a lack of memory: that is a [`Failed`] in the report.
pub fn replay(
    plan: &Plan,
    options: &Options,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Replayed, Error> {
    let timed = once(plan, options, Purpose::Time, progress)?;
    let done = plan.steps.len();
    let looked = once(plan, options, Purpose::Look, &|steps| progress(done + steps))?;
    let report = Report::new(plan, options, &timed, &looked);
    Ok(Replayed { report, observation: looked.observation })
}

/// Whether a plan is served as a whole. Ends at the first failure.
///
/// # Errors
///
/// As [`replay`].
pub fn is_served(plan: &Plan, options: &Options) -> Result<bool, Error> {
    match once(plan, options, Purpose::Try, &|_| {}) {
        Ok(pass) => Ok(pass.failures.is_empty()),
        // Not even the resource could be made.
        Err(error) if is_full(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Time,
    Look,
    Try,
}

/// What one pass came to.
#[derive(Default)]
pub(crate) struct Pass {
    pub(crate) device: String,
    pub(crate) failures: Vec<Failed>,
    pub(crate) served: usize,
    pub(crate) crossings: usize,
    /// From the first step to the last, with what threads take to hand over.
    pub(crate) wall: Duration,
    /// In the steps alone.
    pub(crate) busy: Duration,
    pub(crate) steps: usize,
    pub(crate) upstream_calls: u64,
    pub(crate) driver_calls: Option<u64>,
    pub(crate) peak_reserved: u64,
    pub(crate) reserved_at_end: u64,
    pub(crate) largest_free_at_end: Option<u64>,
    pub(crate) leaked: usize,
    pub(crate) observation: Observation,
}

struct State {
    /// By slot.
    blocks: Vec<Option<(DeviceBlock, usize)>>,
    /// By slot, the index in the observation's `placed`.
    places: Vec<usize>,
    live: u64,
    stop: bool,
    error: Option<Error>,
    /// When the first step began, and when the last one ended.
    ran: Option<(Instant, Instant)>,
    pass: Pass,
}

fn once(
    plan: &Plan,
    options: &Options,
    purpose: Purpose,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Pass, Error> {
    let stack = Stack::new(options, &plan.streams, purpose == Purpose::Look)?;
    let mut state = State {
        blocks: (0..plan.slots).map(|_| None).collect(),
        places: vec![usize::MAX; if purpose == Purpose::Look { plan.slots } else { 0 }],
        live: 0,
        stop: false,
        error: None,
        ran: None,
        pass: Pass { device: stack.device.name().to_owned(), ..Pass::default() },
    };
    if purpose == Purpose::Look {
        state.pass.observation.live.reserve(plan.steps.len());
        state.pass.observation.reserved.reserve(plan.steps.len());
    }
    let calls = stack.driver_calls();
    let state = Mutex::new(state);
    let taken = take(&runs(&plan.steps), &|steps| {
        // Never contended: only who has the turn comes here.
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        for part in parts(steps) {
            if state.stop {
                return;
            }
            state.make(&stack, plan, part.clone(), purpose);
            if part.end % STRIDE == 0 || part.end == plan.steps.len() {
                progress(part.end);
            }
        }
    });
    taken.map_err(|error| {
        let what = format!("a thread for one of the log's cannot be made: {error}");
        Error::new(ErrorKind::Io, what)
    })?;
    let mut state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    let wall = state.ran.map(|(first, last)| last - first).unwrap_or_default();
    let pass = &mut state.pass;
    pass.wall = wall;
    pass.driver_calls = stack.driver_calls().zip(calls).map(|(after, before)| after - before);
    pass.upstream_calls = stack.counts.calls();
    pass.peak_reserved = stack.counts.peak();
    pass.reserved_at_end = stack.counts.reserved();
    pass.largest_free_at_end = stack.statistics().map(|pool| pool.largest_free as u64);
    pass.observation.segments = stack.counts.segments();
    for (block, stream) in state.blocks.drain(..).flatten() {
        pass.leaked += 1;
        // SAFETY: allocated by this resource in this pass, never freed, and used by no work.
        unsafe { stack.resource.deallocate(&stack.streams[stream], block) };
    }
    if let Some(error) = state.error {
        return Err(error);
    }
    stack.check()?;
    Ok(state.pass)
}

/// Cuts steps where their progress is told.
fn parts(steps: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut start = steps.start;
    std::iter::from_fn(move || {
        let end = ((start / STRIDE + 1) * STRIDE).min(steps.end);
        let part = start..end;
        start = end;
        (!part.is_empty()).then_some(part)
    })
}

impl State {
    fn make(&mut self, stack: &Stack, plan: &Plan, steps: Range<usize>, purpose: Purpose) {
        let every = plan.steps.len().div_ceil(SAMPLES).max(1);
        let start = Instant::now();
        for at in steps {
            if purpose == Purpose::Look {
                stack.counts.now.store(at, Ordering::Relaxed);
            }
            self.pass.steps += 1;
            let step = &plan.steps[at];
            match step.what {
                What::Allocate { slot, size } => {
                    let made = DeviceLayout::new(size).and_then(|layout| {
                        stack.resource.allocate(&stack.streams[step.stream], layout)
                    });
                    match made {
                        Ok(block) => {
                            self.pass.served += 1;
                            if purpose == Purpose::Look {
                                self.placed(at, step.stream, slot, size, &block);
                            }
                            self.blocks[slot] = Some((block, step.stream));
                        }
                        Err(error) => {
                            self.failed(step.line, size, error);
                            if purpose == Purpose::Try {
                                self.stop = true;
                            }
                        }
                    }
                }
                What::Free { slot } => {
                    if let Some((block, home)) = self.blocks[slot].take() {
                        let stream = &stack.streams[step.stream];
                        // The program that wrote the log had ordered its streams somehow.
                        if home != step.stream {
                            self.pass.crossings += 1;
                            if let Err(error) = stream.wait_for(&stack.streams[home]) {
                                self.blocks[slot] = Some((block, home));
                                self.failed(step.line, 0, error);
                                break;
                            }
                        }
                        // SAFETY: allocated by this resource in this pass, used by no work, and
                        // the stream is ordered after the allocation.
                        unsafe { stack.resource.deallocate(stream, block) };
                        if purpose == Purpose::Look {
                            self.freed(at, slot);
                        }
                    }
                }
            }
            if purpose == Purpose::Look {
                let observation = &mut self.pass.observation;
                observation.live.push(self.live);
                observation.reserved.push(stack.counts.reserved());
                if at % every == 0
                    && let Some(pool) = stack.statistics()
                {
                    let largest_free = pool.largest_free as u64;
                    observation.samples.push(Sample { step: at, largest_free });
                }
            }
            if self.stop {
                break;
            }
        }
        let end = Instant::now();
        self.pass.busy += end - start;
        self.ran = Some((self.ran.map_or(start, |(first, _)| first), end));
    }

    fn failed(&mut self, line: u64, size: usize, error: Error) {
        // A size that no address space holds is refused by its layout.
        if is_full(&error) || error.kind() == ErrorKind::InvalidArgument {
            self.pass.failures.push(Failed { line, bytes: size as u64, error: error.to_string() });
        } else {
            self.error = Some(error);
            self.stop = true;
        }
    }

    fn placed(&mut self, at: usize, stream: usize, slot: usize, asked: usize, block: &DeviceBlock) {
        self.live += asked as u64;
        let placed = &mut self.pass.observation.placed;
        self.places[slot] = placed.len();
        placed.push(Placed {
            from: at,
            to: usize::MAX,
            stream,
            address: block.address(),
            asked: asked as u64,
            bytes: block.bytes() as u64,
        });
    }

    fn freed(&mut self, at: usize, slot: usize) {
        if let Some(placed) = self.pass.observation.placed.get_mut(self.places[slot]) {
            placed.to = at;
            self.live -= placed.asked;
        }
    }
}
