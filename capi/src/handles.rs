//! Handles of stacks and streams: numbers that are never used again, in the shape of pointers.
//!
//! A handle is no address, so a wrong one is an error and never a crash.

use crate::status::{Failure, Result, aquifer_status as Status};
use std::sync::atomic::{AtomicU32, Ordering};

/// Marks a handle of a stack, above its number.
pub(crate) const STACK: u64 = 0xaf51_0000_0000_0000;

/// Marks a handle of a stream.
pub(crate) const STREAM: u64 = 0xaf52_0000_0000_0000;

const MARK: u64 = 0xffff_ffff_0000_0000;

/// A stack of resources. No address: only the functions of the table read it.
#[allow(non_camel_case_types, reason = "a name of C")]
pub struct aquifer_stack {
    _opaque: [u8; 0],
}

/// A stream that is open here. No address, as [`aquifer_stack`].
#[allow(non_camel_case_types, reason = "a name of C")]
pub struct aquifer_stream {
    _opaque: [u8; 0],
}

/// The last number that was given out. They are of all kinds.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// A number that nothing has. It is 0 for nothing.
pub(crate) fn next() -> u32 {
    // Relaxed: only uniqueness is asked. A process that makes four thousand million handles starts anew.
    NUMBERS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1)
}

/// The number of a handle of one kind.
fn number(handle: u64, mark: u64, kind: &str) -> Result<u32> {
    if handle & MARK == mark && handle as u32 != 0 {
        return Ok(handle as u32);
    }
    let message = match handle {
        0 => format!("a {kind} is null"),
        _ => format!("{handle:#x} is no {kind} of this library"),
    };
    Err(Failure::new(Status::AQUIFER_ERROR_NOT_OURS, message))
}

/// The failure of a call by the number of something that is gone.
pub(crate) fn closed(kind: &str, verb: &str) -> Failure {
    let message = format!("a {kind} was used that is {verb} (keep it as long as it is used)");
    Failure::new(Status::AQUIFER_ERROR_CLOSED, message)
}

pub(crate) fn stack_number(stack: *mut aquifer_stack) -> Result<u32> {
    number(stack.addr() as u64, STACK, "stack")
}

pub(crate) fn stream_number(stream: *mut aquifer_stream) -> Result<u32> {
    number(stream.addr() as u64, STREAM, "stream")
}

pub(crate) fn stack_handle(number: u32) -> *mut aquifer_stack {
    std::ptr::without_provenance_mut((STACK | u64::from(number)) as usize)
}

#[inline(always)]
pub(crate) fn stream_handle(number: u32) -> *mut aquifer_stream {
    std::ptr::without_provenance_mut((STREAM | u64::from(number)) as usize)
}

/// The numbers of two handles as one, of whatever they are: the stack's above.
#[inline(always)]
pub(crate) fn numbers(stack: *mut aquifer_stack, stream: *mut aquifer_stream) -> u64 {
    with_stream((stack.addr() as u64) << 32, stream)
}

/// Two numbers as one, with that of a handle below.
#[inline(always)]
pub(crate) fn with_stream(numbers: u64, stream: *mut aquifer_stream) -> u64 {
    numbers & MARK | u64::from(stream.addr() as u32)
}
