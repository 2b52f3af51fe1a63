//! The work of an operation on memory. It runs without any lock.

use crate::state::{HostSide, OpRange, OpWork, POISON, SimOp};
use aquifer_driver::arguments::{HostArg, HostArgs};
use aquifer_driver::error::catch_panic_text;
use aquifer_driver::{FillWord, HostForm, LaunchConfig, RawArg, RawFill};

/// The findings of an operation that ran.
#[derive(Debug, Default)]
pub(super) struct OpOutcome {
    /// The host wrote to the watched side of the copy.
    pub(super) host_wrote: bool,
    /// Why the kernel failed.
    pub(super) fault: Option<String>,
}

/// Runs one operation.
///
/// # Safety
///
/// No other operation that touches one of its blocks runs meanwhile, and the contract of the call
/// that enqueued it holds.
pub(super) unsafe fn execute(op: &SimOp) -> OpOutcome {
    let mut outcome = OpOutcome::default();
    if let Some(watchpoint) = &op.watchpoint {
        outcome.host_wrote = watchpoint.backing.unwatch(watchpoint.id, true);
    }
    for range in op.ranges.iter().filter(|range| range.writes && range.host_visible) {
        range.backing.before_write(range.pointer as usize, range.bytes);
    }
    let first = op.ranges.first().map(|range| range.pointer);
    let source = match op.host_side {
        Some(HostSide::Source(pointer)) => Some(pointer),
        _ => first.map(<*mut u8>::cast_const),
    };
    let target = match op.host_side {
        Some(HostSide::Target(pointer)) => Some(pointer),
        _ => op.ranges.last().map(|range| range.pointer),
    };
    match (&op.work, source, target) {
        (&OpWork::Copy(bytes), Some(source), Some(target)) => {
            // SAFETY: both ranges were found inside blocks that `op.ranges` keeps alive, or are host
            // memory that the call's contract keeps; `copy` allows them to overlap.
            unsafe { std::ptr::copy(source, target, bytes) };
        }
        (OpWork::CopyStaged(staged), _, Some(target)) => {
            // SAFETY: the target was found inside a block that `op.ranges` keeps alive, and is as long
            // as the staged bytes.
            unsafe { std::ptr::copy(staged.as_ptr(), target, staged.len()) };
        }
        (&OpWork::PoisonHost(bytes), _, Some(target)) => {
            // SAFETY: host memory that the contract of the copy to the host keeps writable.
            unsafe { target.write_bytes(POISON, bytes) };
        }
        (OpWork::Fill(rows), _, Some(target)) => {
            // SAFETY: all rows were found inside a block that `op.ranges` keeps alive.
            unsafe { fill(target, rows) };
        }
        (OpWork::Kernel { host, config, arguments }, ..) => {
            // SAFETY: the arguments lie in blocks that `op.ranges` keeps alive, and no written one
            // overlaps another (checked at the launch); our caller keeps others away.
            outcome.fault = unsafe {
                let arguments = host_args(arguments, &op.ranges);
                launch(op.name.entry.unwrap_or_default(), *host, config, &arguments)
            };
        }
        (OpWork::Bring { exchange, slot }, Some(source), _) => {
            let bytes = op.ranges.first().map_or(0, |range| range.bytes);
            // SAFETY: the range was found inside a block that `op.ranges` keeps alive.
            let part = unsafe { std::slice::from_raw_parts(source, bytes) };
            exchange.bring(*slot, part.to_vec());
        }
        (OpWork::Bring { exchange, slot }, None, _) => exchange.bring(*slot, Vec::new()),
        (OpWork::Take { exchange, rank }, _, Some(target)) => {
            let room = op.ranges.last().map_or(0, |range| range.bytes);
            if let Some(result) = exchange.result_for(*rank).filter(|it| it.len() == room) {
                // SAFETY: the target was found inside a block that `op.ranges` keeps alive, and is as long.
                unsafe { std::ptr::copy(result.as_ptr(), target, room) };
            }
        }
        _ => {}
    }
    outcome
}

/// # Safety
/// `count` words, one each `stride` bytes, from `target`, are writable memory.
unsafe fn fill(target: *mut u8, &RawFill { stride, word, count, .. }: &RawFill) {
    if let FillWord::U8(byte) = word
        && stride == 1
    {
        // SAFETY: by our own contract.
        unsafe { target.write_bytes(byte, count) };
        return;
    }
    for row in 0..count {
        // SAFETY: by our own contract, here and for each width.
        unsafe {
            let at = target.add(row * stride);
            match word {
                FillWord::U8(value) => at.write(value),
                FillWord::U16(value) => at.cast::<u16>().write_unaligned(value),
                FillWord::U32(value) => at.cast::<u32>().write_unaligned(value),
            }
        }
    }
}

/// The arguments of a launch as the host form gets them. `ranges` are its buffers but the empty ones.
fn host_args<'a>(arguments: &'a [RawArg], ranges: &[OpRange]) -> Vec<HostArg<'a>> {
    let mut ranges = ranges.iter();
    let host_arg = |argument: &'a RawArg| match *argument {
        RawArg::Scalar(ref value) => HostArg::Scalar(value),
        RawArg::Param(ref param) => HostArg::Param(param),
        RawArg::Buffer { bytes, access, .. } => {
            let range = if bytes > 0 { ranges.next() } else { None };
            // An empty buffer has no address; a slice of no elements needs an aligned pointer.
            let dangling = std::ptr::without_provenance_mut(1 << 29);
            HostArg::Buffer {
                pointer: range.map_or(dangling, |range| range.pointer),
                bytes,
                access,
            }
        }
    };
    arguments.iter().map(host_arg).collect()
}

/// Runs a host form, and returns why it failed, if it did.
///
/// # Safety
/// As [`HostArgs::new`].
unsafe fn launch(
    entry: &'static str,
    host: HostForm,
    config: &LaunchConfig,
    arguments: &[HostArg],
) -> Option<String> {
    // SAFETY: by our own contract.
    let args = unsafe { HostArgs::new(entry, arguments) };
    match catch_panic_text(|| host(config, args)) {
        Ok(Ok(())) => None,
        // The advice is the report's.
        Ok(Err(error)) => Some(match error.driver() {
            Some(driver) => format!("{}: {driver}", error.message()),
            None => error.message().into(),
        }),
        Err(text) => Some(text.unwrap_or_else(|| String::from("the host form panicked"))),
    }
}
