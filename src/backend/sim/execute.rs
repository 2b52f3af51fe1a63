//! What operations do to memory when their turn comes. Runs without any lock.

use super::backing::POISON;
use super::queue::{Op, Work};
use crate::backend::kernel::{HostArg, HostArgs};
use crate::backend::{FillWord, HostForm, LaunchConfig};
use std::panic::AssertUnwindSafe;

/// What an operation found while it ran.
#[derive(Debug, Default)]
pub(super) struct Outcome {
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
pub(super) unsafe fn execute(op: &mut Op) -> Outcome {
    let mut outcome = Outcome::default();
    if let Some(watched) = &op.watched {
        outcome.host_wrote = watched.backing.unwatch(watched.id, true);
    }
    for hold in op.holds.iter().filter(|hold| hold.writes && hold.host_visible) {
        hold.backing.before_write(hold.start, hold.bytes);
    }
    match &op.work {
        Work::Nothing | Work::Record(_) | Work::Wait(_) | Work::Free { .. } => {}
        &Work::Copy { target, source, bytes } => {
            // SAFETY: both ranges were found inside blocks that `op.holds` keeps alive, or are host
            // memory that the call's contract keeps; `copy` allows them to overlap.
            unsafe { std::ptr::copy(source, target, bytes) };
        }
        Work::Unload { target, staged } => {
            // SAFETY: the target was found inside a block that `op.holds` keeps alive, with room
            // for all that was staged.
            unsafe { std::ptr::copy(staged.as_ptr(), *target, staged.len()) };
        }
        &Work::Poison { target, bytes } => {
            // SAFETY: host memory that the contract of the copy to the host keeps writable.
            unsafe { target.write_bytes(POISON, bytes) };
        }
        &Work::Fill { target, stride, word, count } => {
            // SAFETY: all rows were found inside a block that `op.holds` keeps alive.
            unsafe { fill(target, stride, word, count) };
        }
        Work::Kernel { host, config, arguments } => {
            // SAFETY: the arguments lie in blocks that `op.holds` keeps alive, and no written one
            // overlaps another (checked at the launch); our caller keeps others away.
            outcome.fault = unsafe { launch(*host, config, arguments) };
        }
    }
    outcome
}

/// # Safety
/// `count` words, one each `stride` bytes, from `target`, are writable memory.
unsafe fn fill(target: *mut u8, stride: usize, word: FillWord, count: usize) {
    match word {
        FillWord::U8(byte) if stride == 1 => {
            // SAFETY: by our own contract.
            unsafe { target.write_bytes(byte, count) };
        }
        _ => {
            for row in 0..count {
                // SAFETY: by our own contract.
                let at = unsafe { target.add(row * stride) };
                match word {
                    // SAFETY: as above, for each width.
                    FillWord::U8(value) => unsafe { at.write(value) },
                    // SAFETY: as above.
                    FillWord::U16(value) => unsafe { at.cast::<u16>().write_unaligned(value) },
                    // SAFETY: as above.
                    FillWord::U32(value) => unsafe { at.cast::<u32>().write_unaligned(value) },
                }
            }
        }
    }
}

/// Runs a host form; says why it failed, if it did.
///
/// # Safety
/// As [`HostArgs::new`].
unsafe fn launch(host: HostForm, config: &LaunchConfig, arguments: &[HostArg]) -> Option<String> {
    // SAFETY: by our own contract.
    let args = unsafe { HostArgs::new(arguments) };
    match std::panic::catch_unwind(AssertUnwindSafe(|| host(config, args))) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(payload) => {
            let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
                (Some(text), _) => (*text).to_owned(),
                (None, Some(text)) => text.clone(),
                (None, None) => String::from("the host form panicked"),
            };
            // Not dropped: a payload whose drop panics would unwind through the scheduler.
            std::mem::forget(payload);
            Some(text)
        }
    }
}
