//! Enqueueing operations on memory: every access is checked here, against stream order alone, so
//! what is found does not depend on when the queues run.

use super::capture::{self, Step};
use super::clock::Stamp;
use super::ledger::Ledger;
use super::plan::{HostSide, Plan};
use super::queue::{Hold, Op, Watched, Work};
use super::report::{OpName, Report, Violation};
use super::schedule;
use super::shadow::Past;
use super::table::{Miss, Place, Reach, Touch};
use super::world::{Held, State, UNKNOWN, is_seen};
use crate::backend::{
    Access, CaptureStatus, DriverResult, FillWord, Kernel, LaunchConfig, RawArg, RawStream,
};
use crate::error::DriverError;
use crate::sync::Arc;

/// An operation to be enqueued.
pub(super) struct Request<'a> {
    pub(super) name: OpName,
    pub(super) touches: &'a [Touch],
    /// The touch whose memory the host must leave alone until the operation has run.
    pub(super) watched: Option<usize>,
    pub(super) plan: Plan,
    pub(super) host: Option<HostSide>,
    /// What runs in its place if it names memory that is gone.
    pub(super) refused: Work,
}

impl<'a> Request<'a> {
    fn new(name: OpName, touches: &'a [Touch], plan: Plan) -> Self {
        Self { name, touches, watched: None, plan, host: None, refused: Work::Nothing }
    }
}

pub(super) enum Submitted {
    /// It became part of a graph.
    Captured,
    Queued,
    /// It will not run, for this reason.
    Refused(Arc<Report>),
}

/// Puts an operation in its stream's queue, or keeps it for the graph that the stream records.
fn submit(
    state: &mut State,
    ledger: &Ledger,
    id: u64,
    request: Request<'_>,
) -> DriverResult<Submitted> {
    let Some(capture) = capture::current(state, id, request.name.call)? else {
        return enqueue(state, ledger, id, request);
    };
    let Request { name, touches, watched, plan, .. } = request;
    let step = Step::Work { touches: touches.to_vec(), watched, plan };
    capture::keep(state, capture, id, name, step);
    Ok(Submitted::Captured)
}

/// Checks an operation and puts it in its queue.
pub(super) fn enqueue(
    state: &mut State,
    ledger: &Ledger,
    id: u64,
    request: Request<'_>,
) -> DriverResult<Submitted> {
    let Request { name, touches, watched, plan, host, refused } = request;
    let mut places = Vec::with_capacity(touches.len());
    let mut freed = None;
    for touch in touches {
        match state.table.find(touch) {
            Ok(place) => places.push((touch, place)),
            Err(Miss::Freed(by)) => {
                let range = (touch.address, touch.span());
                freed = Some(ledger.report(Violation::UseAfterFree, name, Some(by), range, None));
            }
            Err(Miss::Unmapped) => return Err(unmapped(ledger, name, touch.address, touch.span())),
        }
    }
    let tick = state.tick(id);
    check(state, ledger, Stamp { stream: id, tick, name }, &places);

    let mut op = Op { name, tick, work: refused, holds: Vec::new(), watched: None };
    if freed.is_none()
        && let Some((_, place)) = watched.and_then(|index| places.get(index))
        && let Some(touch) = watched.and_then(|index| touches.get(index))
    {
        let block = Arc::as_ptr(&place.backing) as usize;
        let mut running = state.running.iter().flat_map(|running| &running.blocks);
        let quiet = !running.any(|&(other, writes)| other == block && writes);
        let (watch, bytes) = (state.handle(), touch.bytes as usize);
        place.backing.watch(watch, place.pointer, bytes, quiet);
        op.watched = Some(Watched {
            backing: Arc::clone(&place.backing),
            id: watch,
            range: (touch.address, touch.bytes),
        });
    }
    op.holds = places
        .iter()
        .map(|(touch, place)| Hold {
            backing: Arc::clone(&place.backing),
            start: place.pointer as usize,
            bytes: touch.span() as usize,
            writes: touch.access != Access::Read,
            host_visible: place.host_visible,
        })
        .collect();
    if freed.is_none() {
        let found: Vec<Place> = places.into_iter().map(|(_, place)| place).collect();
        op.work = plan.build(&found, host);
    }
    state.push(id, op);
    Ok(freed.map_or(Submitted::Queued, Submitted::Refused))
}

/// Reports a range that is no memory of the device, and makes the call's error of it.
pub(super) fn unmapped(ledger: &Ledger, name: OpName, address: u64, bytes: u64) -> DriverError {
    let report = ledger.report(Violation::UnmappedAddress, name, None, (address, bytes), None);
    DriverError::with_detail(name.call, DriverError::INVALID_VALUE, report)
}

/// Checks the accesses of one operation against all former ones.
fn check(state: &mut State, ledger: &Ledger, stamp: Stamp, places: &[(&Touch, Place)]) {
    let State { streams, table, .. } = state;
    let Some(stream) = streams.get(&stamp.stream) else { return };
    let complete = |former: &Stamp| is_seen(streams, former.stream, former.tick);
    let ordered = |former: &Stamp| stream.follows(stamp.stream, former) || complete(former);
    let past = Past { ordered, complete };
    for (touch, place) in places {
        let Some(block) = table.get_mut(place.key) else { continue };
        if let Some(born) = block.born {
            if !ordered(&born) {
                let range = (touch.address, touch.span());
                let kind = Violation::UseBeforeAllocation;
                ledger.report(kind, stamp.name, Some(born.name), range, None);
            } else if complete(&born) {
                block.born = None;
            }
        }
        let mut findings = Vec::new();
        for row in 0..touch.count {
            let start = place.offset + row * touch.stride;
            let range = (start, start + touch.bytes);
            block.shadow.touch(range, touch.access, stamp, &past, &mut findings);
        }
        for found in findings {
            let range = (place.key + found.start, found.end - found.start);
            ledger.report(found.violation, stamp.name, found.other, range, None);
        }
    }
}

/// A copy from host memory.
///
/// # Safety
/// As [`Driver::copy_to_device`](crate::backend::Driver::copy_to_device).
pub(super) unsafe fn upload(
    held: &mut Held,
    ledger: &Ledger,
    target: u64,
    source: *const u8,
    bytes: usize,
    stream: RawStream,
) -> DriverResult<()> {
    let call = "cuMemcpyHtoDAsync";
    let id = held.stream(ledger, call, stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let name = OpName::on(call, id);
    let write = Touch::new(target, bytes, Access::Write, Reach::Device(ledger.device));
    if held.table.is_locked(source as u64, bytes) {
        let read = Touch::new(source as u64, bytes, Access::Read, Reach::Host);
        let touches = [read, write];
        let request = Request {
            watched: Some(0),
            host: Some(HostSide::Source(source)),
            ..Request::new(name, &touches, Plan::Copy { bytes })
        };
        submit(held, ledger, id, request)?;
        return Ok(());
    }
    // A graph would read it when it runs, and nothing here knows that it is still there then.
    capture::forbid(held, id, call)?;
    let mut staged = Vec::new();
    if staged.try_reserve_exact(bytes).is_err() {
        return Err(DriverError::new(call, DriverError::OUT_OF_MEMORY));
    }
    // SAFETY: the caller promises a readable source; the room was reserved above and is written
    // before its length is set.
    unsafe {
        std::ptr::copy_nonoverlapping(source, staged.as_mut_ptr(), bytes);
        staged.set_len(bytes);
    }
    submit(held, ledger, id, Request::new(name, &[write], Plan::Unload { staged }))?;
    Ok(())
}

/// A copy to host memory.
///
/// # Safety
/// As [`Driver::copy_to_host`](crate::backend::Driver::copy_to_host).
pub(super) unsafe fn download(
    held: &mut Held,
    ledger: &Ledger,
    target: *mut u8,
    source: u64,
    bytes: usize,
    stream: RawStream,
) -> DriverResult<()> {
    let call = "cuMemcpyDtoHAsync";
    let id = held.stream(ledger, call, stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let name = OpName::on(call, id);
    let read = Touch::new(source, bytes, Access::Read, Reach::Device(ledger.device));
    let write = Touch::new(target as u64, bytes, Access::Write, Reach::Host);
    let locked = held.table.is_locked(target as u64, bytes);
    if !locked && capture::status(held, id) != CaptureStatus::None {
        // It would have to be complete when this returns, and a captured copy does not run.
        return capture::forbid(held, id, call);
    }
    let touches = [read, write];
    let request = Request {
        name,
        touches: if locked { &touches } else { &touches[..1] },
        watched: locked.then_some(1),
        plan: Plan::Copy { bytes },
        host: Some(HostSide::Target(target)),
        refused: Work::Poison { target, bytes },
    };
    let submitted = submit(held, ledger, id, request)?;
    if locked {
        return Ok(());
    }
    // Pageable: done when this returns, or the pointer would outlive the call. A queue that is
    // given up counts as passed only when nothing of it runs any more.
    let (clock, tick) = (held.clock_of(id), held.streams.get(&id).map_or(0, |stream| stream.tick));
    let passed = |state: &State| state.streams.get(&id).is_none_or(|stream| stream.passed >= tick);
    while !schedule::drive(held, ledger.device, passed) {
        // Nothing to run and not passed cannot be. Returning would be worse than giving up all.
        ledger.lose(UNKNOWN);
        schedule::abandon(held, ledger.device);
    }
    ledger.alive(call)?;
    held.observe(&clock);
    match submitted {
        Submitted::Captured | Submitted::Queued => Ok(()),
        Submitted::Refused(report) => {
            Err(DriverError::with_detail(call, DriverError::LAUNCH_FAILED, report))
        }
    }
}

/// A copy between two ranges of device memory; `from` is the device that has the source.
pub(super) fn copy(
    held: &mut Held,
    ledger: &Ledger,
    call: &'static str,
    target: u64,
    (source, from): (u64, u64),
    bytes: usize,
    stream: RawStream,
) -> DriverResult<()> {
    let id = held.stream(ledger, call, stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let name = OpName::on(call, id);
    let touches = [
        Touch::new(source, bytes, Access::Read, Reach::Device(from)),
        Touch::new(target, bytes, Access::Write, Reach::Device(ledger.device)),
    ];
    if source.abs_diff(target) < bytes as u64 {
        let range = (source.max(target), bytes as u64 - source.abs_diff(target));
        ledger.report(Violation::OverlappingCopy, name, None, range, None);
    }
    submit(held, ledger, id, Request::new(name, &touches, Plan::Copy { bytes }))?;
    Ok(())
}

/// Fills rows with a word.
pub(super) fn fill(
    held: &mut Held,
    ledger: &Ledger,
    target: u64,
    stride: usize,
    word: FillWord,
    count: usize,
    stream: RawStream,
) -> DriverResult<()> {
    let call = "cuMemsetAsync";
    let id = held.stream(ledger, call, stream)?;
    if count == 0 {
        return Ok(());
    }
    let width = word.bytes();
    let span = (count - 1).checked_mul(stride).and_then(|gap| gap.checked_add(width));
    let aligned =
        target.is_multiple_of(width as u64) && (count == 1 || stride.is_multiple_of(width));
    if span.is_none() || !aligned || (count > 1 && stride < width) {
        return Err(DriverError::new(call, DriverError::INVALID_VALUE));
    }
    let reach = Reach::Device(ledger.device);
    let touch = if stride == width {
        Touch::new(target, width * count, Access::Write, reach)
    } else {
        Touch {
            stride: stride as u64,
            count: count as u64,
            ..Touch::new(target, width, Access::Write, reach)
        }
    };
    let name = OpName::on(call, id);
    let plan = Plan::Fill { stride, word, count };
    submit(held, ledger, id, Request::new(name, &[touch], plan))?;
    Ok(())
}

/// Launches a kernel's host form.
pub(super) fn launch(
    held: &mut Held,
    ledger: &Ledger,
    kernel: &Kernel,
    config: &LaunchConfig,
    arguments: &[RawArg],
    stream: RawStream,
) -> DriverResult<()> {
    let call = "cuLaunchKernel";
    let id = held.stream(ledger, call, stream)?;
    let mut touches = Vec::new();
    for argument in arguments {
        if let &RawArg::Buffer { address, bytes, access } = argument
            && bytes > 0
        {
            touches.push(Touch::new(address, bytes, access, Reach::Device(ledger.device)));
        }
    }
    if overlaps(&touches) {
        return Err(DriverError::new(call, DriverError::INVALID_VALUE));
    }
    let name = OpName { entry: Some(kernel.entry()), ..OpName::on(call, id) };
    let arguments = arguments.to_vec();
    let plan = Plan::Kernel { host: kernel.host(), config: *config, arguments };
    submit(held, ledger, id, Request::new(name, &touches, plan))?;
    Ok(())
}

/// Whether a written buffer overlaps another one: the host form would get two references to it.
fn overlaps(touches: &[Touch]) -> bool {
    touches.iter().enumerate().any(|(index, one)| {
        touches.iter().take(index).any(|other| {
            (one.access != Access::Read || other.access != Access::Read)
                && one.address < other.address.saturating_add(other.bytes)
                && other.address < one.address.saturating_add(one.bytes)
        })
    })
}
