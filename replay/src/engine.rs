//! Replays a plan: one run, of which all figures and curves are.

use crate::counting::Segment;
use crate::error::{Moment, ReplayError, is_full, without_advice};
use crate::plan::{Plan, What};
use crate::report::{Failed, Report};
use crate::sizing::{Tried, first_double, not_too_many_streams};
use crate::stack::{Backend, Options, Resource, Stack};
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

/// What a replay looked like, step by step.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// Bytes that were asked and live, after each step.
    pub live: Vec<u64>,
    /// Bytes taken from the device, after each step.
    pub reserved: Vec<u64>,
    /// The allocations that were served, in the log's order.
    pub placed: Vec<Placed>,
    /// The blocks of the device, in the order in which they were taken.
    pub segments: Vec<Segment>,
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

/// Replays a plan on a device of its own. `progress` is called now and then with how many steps are
/// done. A simulated device without a capacity has what the log needs; an arena, which takes all at
/// once, is of the first double of the log's peak that serves.
///
/// # Errors
///
/// Those of the device, other than a lack of memory: that is a [`Failed`] in the report.
/// [`ErrorKind::OutOfMemory`] if the resource cannot be made, [`ErrorKind::Unsupported`] if the log has more
/// streams than it tells apart.
pub fn replay(
    plan: &Plan,
    options: &Options,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Replayed, ReplayError> {
    let mut sized = options.clone();
    let needs_size = options.backend == Backend::Simulated && options.resource == Resource::Arena;
    if needs_size && options.capacity.is_none() {
        let at = |steps| Options { capacity: Some(steps), ..options.clone() };
        let (_, works) = first_double(plan, options.resource, ARENA_STEP, |capacity| {
            tried(plan, &at(capacity))
        })?;
        sized = at(works * ARENA_STEP);
    }
    let pass = once(plan, &sized, false, progress)?;
    let observation = Observation::new(plan, &pass);
    let report = Report::new(plan, options, &pass, &observation);
    Ok(Replayed { report, observation })
}

/// What arenas are multiples of that are made as large as a log needs.
const ARENA_STEP: u64 = 1 << 20;

/// What comes of a plan, up to the first failure.
///
/// # Errors
///
/// As [`replay`].
pub fn tried(plan: &Plan, options: &Options) -> Result<Tried, ReplayError> {
    match once(plan, options, true, &|_| {}) {
        Ok(mut pass) => Ok(pass.failures.pop().map_or(Tried::Served, Tried::Refused)),
        Err(ReplayError { moment: Moment::Start, error, .. }) if is_full(&error) => {
            Ok(Tried::NotMade(error))
        }
        Err(error) => Err(error),
    }
}

/// Whether a plan is served as a whole.
///
/// # Errors
///
/// As [`replay`].
pub fn is_served(plan: &Plan, options: &Options) -> Result<bool, ReplayError> {
    Ok(matches!(tried(plan, options)?, Tried::Served))
}

/// Where an allocation was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    address: u64,
    bytes: u64,
}

impl Spot {
    /// Of an allocation that was not served. Not zero, so that the pages of a table of these are there
    /// before the clock runs.
    const NONE: Self = Self { address: u64::MAX, bytes: u64::MAX };
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
    pub(crate) largest_free_at_end: Option<u64>,
    pub(crate) leaked: usize,
    /// By slot.
    pub(crate) spots: Vec<Spot>,
    /// The blocks of the device; `None` where each allocation is one.
    pub(crate) segments: Option<Vec<Segment>>,
    /// What was reserved after each step, where a pool maps its memory.
    pub(crate) mapped: Option<Vec<u64>>,
    /// What was reserved after each step.
    #[cfg(debug_assertions)]
    pub(crate) reserved: Vec<u64>,
}

struct State {
    /// By slot.
    blocks: Vec<Option<(DeviceBlock, usize)>>,
    stop: bool,
    stop_at_first: bool,
    error: Option<ReplayError>,
    /// When the first step began, and when the last one ended.
    ran: Option<(Instant, Instant)>,
    pass: Pass,
}

fn once(
    plan: &Plan,
    options: &Options,
    stop_at_first: bool,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Pass, ReplayError> {
    not_too_many_streams(plan, options.resource)?;
    let failed = |moment| move |error| ReplayError { moment, line_word: plan.line_word, error };
    let stack = Stack::new(options, &plan.streams).map_err(failed(Moment::Start))?;
    over(&stack, plan, stop_at_first, progress)
}

/// Replays a plan over a stack.
fn over(
    stack: &Stack,
    plan: &Plan,
    stop_at_first: bool,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Pass, ReplayError> {
    let failed = |moment| move |error| ReplayError { moment, line_word: plan.line_word, error };
    let state = State {
        blocks: (0..plan.slots).map(|_| None).collect(),
        stop: false,
        stop_at_first,
        error: None,
        ran: None,
        pass: Pass {
            device: stack.device.name().to_owned(),
            spots: vec![Spot::NONE; plan.slots],
            ..Pass::default()
        },
    };
    let calls = stack.driver_calls();
    let state = Mutex::new(state);
    let taken = take(&runs(&plan.steps), &|steps| {
        // Never contended: only who has the turn comes here.
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        for part in parts(steps) {
            if state.stop {
                return;
            }
            state.make(stack, plan, part.clone());
            if part.end % STRIDE == 0 || part.end == plan.steps.len() {
                progress(part.end);
            }
        }
    });
    taken.map_err(|error| {
        let what = format!("a thread for one of the log's cannot be made: {error}");
        failed(Moment::Start)(Error::new(ErrorKind::Io, what))
    })?;
    let mut state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    let wall = state.ran.map(|(first, last)| last - first).unwrap_or_default();
    let pass = &mut state.pass;
    pass.wall = wall;
    pass.driver_calls = stack.driver_calls().zip(calls).map(|(after, before)| after - before);
    pass.upstream_calls = stack.upstream_calls();
    pass.peak_reserved = stack.peak_reserved();
    pass.largest_free_at_end = stack.statistics().map(|pool| pool.largest_free as u64);
    pass.segments = stack.counts.segments();
    for (block, stream) in state.blocks.drain(..).flatten() {
        pass.leaked += 1;
        // SAFETY: allocated by this resource in this pass, never freed, and used by no work.
        unsafe { stack.resource.deallocate(&stack.streams[stream], block) };
    }
    if let Some(error) = state.error {
        return Err(error);
    }
    stack.check().map_err(failed(Moment::End))?;
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
    fn make(&mut self, stack: &Stack, plan: &Plan, steps: Range<usize>) {
        let start = Instant::now();
        for at in steps {
            stack.counts.now.store(at, Ordering::Relaxed);
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
                            self.pass.spots[slot] =
                                Spot { address: block.address(), bytes: block.bytes() as u64 };
                            self.blocks[slot] = Some((block, step.stream));
                        }
                        Err(error) => {
                            self.failed(plan, at, size, error);
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
                                self.end(plan, at, error);
                                break;
                            }
                        }
                        // SAFETY: allocated by this resource in this pass, used by no work, and
                        // the stream is ordered after the allocation.
                        unsafe { stack.resource.deallocate(stream, block) };
                    }
                }
            }
            if let Some(bytes) = stack.mapped_bytes() {
                self.pass.mapped.get_or_insert_default().push(bytes);
            }
            #[cfg(debug_assertions)]
            self.pass.reserved.push(stack.counts.reserved());
            if self.stop {
                break;
            }
        }
        let end = Instant::now();
        self.pass.busy += end - start;
        self.ran = Some((self.ran.map_or(start, |(first, _)| first), end));
    }

    fn failed(&mut self, plan: &Plan, step: usize, size: usize, error: Error) {
        // A size that no address space holds is refused by its layout.
        if is_full(&error) || error.kind() == ErrorKind::InvalidArgument {
            let (line, bytes, error) = (plan.steps[step].line, size as u64, without_advice(&error));
            self.pass.failures.push(Failed { step, line, bytes, error });
            self.stop = self.stop_at_first;
        } else {
            self.end(plan, step, error);
        }
    }

    fn end(&mut self, plan: &Plan, step: usize, error: Error) {
        let moment = Moment::Line(plan.steps[step].line);
        self.error = Some(ReplayError { moment, line_word: plan.line_word, error });
        self.stop = true;
    }
}

impl Observation {
    /// What a whole pass looked like.
    fn new(plan: &Plan, pass: &Pass) -> Self {
        let mut found = Self::default();
        found.live.reserve(plan.steps.len());
        // By slot, the index in `placed`.
        let mut places = vec![usize::MAX; plan.slots];
        let mut live = 0;
        for (at, step) in plan.steps.iter().enumerate() {
            match step.what {
                What::Allocate { slot, size } if pass.spots[slot] != Spot::NONE => {
                    let Spot { address, bytes } = pass.spots[slot];
                    let (asked, stream) = (size as u64, step.stream);
                    live += asked;
                    places[slot] = found.placed.len();
                    found.placed.push(Placed {
                        from: at,
                        to: usize::MAX,
                        stream,
                        address,
                        asked,
                        bytes,
                    });
                }
                What::Allocate { .. } => {}
                What::Free { slot } => {
                    if let Some(placed) = found.placed.get_mut(places[slot]) {
                        placed.to = at;
                        live -= placed.asked;
                    }
                }
            }
            found.live.push(live);
        }
        found.segments = pass.segments.clone().unwrap_or_else(|| {
            let segment = |placed: &Placed| {
                let Placed { address, bytes, from, to, .. } = *placed;
                Segment { address, bytes, from, to }
            };
            found.placed.iter().map(segment).collect()
        });
        // Handles move: what lies where they were mapped is drawn, and counted apart.
        if let Some(mapped) = &pass.mapped {
            found.reserved.clone_from(mapped);
            return found;
        }
        found.reserved = reserved(&found.segments, plan.steps.len());
        #[cfg(debug_assertions)]
        assert_eq!(found.reserved, pass.reserved, "the segments' sum is what was counted");
        found
    }
}

/// The bytes of the segments that are held after each step.
fn reserved(segments: &[Segment], steps: usize) -> Vec<u64> {
    // Changes first, which may be negative: their sums are not.
    let mut reserved = vec![0_u64; steps];
    for segment in segments {
        if let Some(change) = reserved.get_mut(segment.from) {
            *change = change.wrapping_add(segment.bytes);
        }
        if let Some(change) = reserved.get_mut(segment.to) {
            *change = change.wrapping_sub(segment.bytes);
        }
    }
    let mut now = 0_u64;
    for change in &mut reserved {
        now = now.wrapping_add(*change);
        *change = now;
    }
    reserved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Action, Event, Log, LogStream, StreamKind};
    use aquifer::{CudaResource, DeviceResource, mr::CallbackResource};
    use std::sync::Arc;

    fn event(index: usize, action: Action, address: u64, stream: usize) -> Event {
        let line = index as u64 + 2;
        Event { index, line, thread: 0, time: None, action, address, size: Some(1000), stream }
    }

    fn stream(name: &str) -> LogStream {
        LogStream { name: name.to_owned(), kind: StreamKind::Other }
    }

    /// Two allocations on one stream, the second of which is freed on another.
    fn plan() -> Plan {
        let log = Log {
            events: vec![
                event(0, Action::Allocate, 0x1000, 0),
                event(1, Action::Allocate, 0x2000, 0),
                event(2, Action::Free, 0x2000, 1),
            ],
            threads: vec![String::from("7")],
            streams: ["16", "32"].map(stream).to_vec(),
            line_word: "line",
            ..Log::default()
        };
        Plan::new(&log)
    }

    /// A stack whose allocations of a number fail with an error of a kind.
    fn failing(plan: &Plan, number: usize, kind: ErrorKind) -> Stack {
        let options = Options { resource: Resource::Cuda, ..Options::default() };
        let mut stack = Stack::new(&options, &plan.streams).unwrap();
        let (from, to) = (CudaResource::new(&stack.device), CudaResource::new(&stack.device));
        let made = std::sync::atomic::AtomicUsize::new(0);
        // SAFETY: every block is a `CudaResource`'s, and goes back unchanged.
        let resource = unsafe {
            CallbackResource::new(
                &stack.device,
                move |stream, layout| match made.fetch_add(1, Ordering::Relaxed) {
                    at if at == number => Err(Error::new(kind, "broken on purpose")),
                    _ => from.allocate(stream, layout),
                },
                move |stream, block| to.deallocate(stream, block),
            )
        };
        stack.resource = Arc::new(resource);
        stack
    }

    #[test]
    fn an_error_names_its_line() {
        let plan = plan();
        let error =
            over(&failing(&plan, 1, ErrorKind::Driver), &plan, false, &|_| {}).err().unwrap();
        assert_eq!(error.to_string(), "line 3: broken on purpose");
        assert_eq!((error.moment, error.error.kind()), (Moment::Line(3), ErrorKind::Driver));
        let pickle = Plan { line_word: "record", ..plan.clone() };
        let error =
            over(&failing(&pickle, 0, ErrorKind::Driver), &pickle, false, &|_| {}).err().unwrap();
        assert_eq!(error.to_string(), "record 2: broken on purpose");
        // A lack of memory is a refusal, and the rest goes on.
        let full = failing(&plan, 0, ErrorKind::OutOfMemory);
        let pass = over(&full, &plan, false, &|_| {}).unwrap();
        let [failed] = &pass.failures[..] else { panic!("{:?}", pass.failures) };
        assert_eq!((failed.step, failed.line, pass.served), (0, 2, 1));
    }

    /// A free that cannot be ordered is no refused allocation, whatever the driver lacked.
    #[test]
    fn a_wait_that_fails_ends_the_replay_at_its_line() {
        let plan = plan();
        let options = Options { resource: Resource::Cuda, ..Options::default() };
        let stack = Stack::new(&options, &plan.streams).unwrap();
        let out_of_memory = 2;
        stack.device.simulator().unwrap().fail_call("cuStreamWaitEvent", 1, out_of_memory).unwrap();
        let error = over(&stack, &plan, false, &|_| {}).err().unwrap();
        assert_eq!((error.moment, error.error.kind()), (Moment::Line(4), ErrorKind::OutOfMemory));
    }

    #[test]
    fn what_is_reserved_after_each_step() {
        let segment = |bytes, from, to| Segment { address: 0, bytes, from, to };
        let segments = [segment(10, 0, 2), segment(5, 1, usize::MAX), segment(7, 3, 3)];
        assert_eq!(reserved(&segments, 5), [10, 15, 5, 5, 5]);
        assert_eq!(reserved(&[], 2), [0, 0]);
    }
}
