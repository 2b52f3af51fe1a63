//! Orders that a declared capture made in its graph alone, and that are made for real at its end.
//!
//! A wait between two streams that are in a capture is an edge of the graph. Whoever asked for it may
//! go on when the capture is over: a guard may be used then, and the next use at home relies on a
//! debt that was paid inside. So the same waits are made once more, of what the streams were given
//! outside of the graph.

use super::Stream;
use crate::backend::is_forked_child;
use crate::error::{ErrorKind, Result};
use crate::sync::trusted::{AtomicUsize, Mutex, Ordering};

/// Whether any capture was ever declared: nothing is asked of the driver otherwise.
static BEGUN: AtomicUsize = AtomicUsize::new(0);
/// Captures that are just being ended, and those that were.
static ENDING: AtomicUsize = AtomicUsize::new(0);
static ENDED: AtomicUsize = AtomicUsize::new(0);

/// One stream that is to wait, and the one that it waits for. The lock is held over the driver's
/// calls: whoever finds an order gone must find it made.
static ORDERS: Mutex<Vec<(Stream, Stream)>> = Mutex::new(Vec::new());

/// As of before a wait that may become part of a graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before(usize);

pub(crate) fn before() -> Before {
    Before(ENDED.load(Ordering::SeqCst))
}

/// `waiter` was made to wait for `other`: if that may be in a graph alone, it is to be done again.
pub(crate) fn repeat(before: Before, waiter: &Stream, other: &Stream) -> Result<()> {
    if BEGUN.load(Ordering::SeqCst) == 0 || waiter == other {
        return Ok(());
    }
    // One that ends meanwhile had the wait in it, perhaps, and is no longer seen.
    let ends = || ENDING.load(Ordering::SeqCst) > 0 || ENDED.load(Ordering::SeqCst) != before.0;
    if !waiter.is_capturing()? && !ends() {
        return Ok(());
    }
    {
        let mut orders = ORDERS.lock();
        let known = orders.iter().any(|(known, of)| known == waiter && of == other);
        if !known {
            orders.push((waiter.clone(), other.clone()));
        }
    }
    settle()
}

/// A capture is about to be declared.
pub(super) fn begin() {
    BEGUN.store(1, Ordering::SeqCst);
}

/// Ends a capture by `end`, and makes the orders of those that are over. Whatever fails is tried again
/// at the next end.
pub(super) fn end<R>(end: impl FnOnce() -> R) -> (R, Result<()>) {
    ENDING.fetch_add(1, Ordering::SeqCst);
    let ended = end();
    ENDED.fetch_add(1, Ordering::SeqCst);
    ENDING.fetch_sub(1, Ordering::SeqCst);
    (ended, settle())
}

fn settle() -> Result<()> {
    if is_forked_child() {
        return Ok(());
    }
    // Dropped after the lock: they may be the last handles of their streams.
    let mut done = Vec::new();
    let mut result = Ok(());
    let mut orders = ORDERS.lock();
    let mut index = 0;
    while let Some((waiter, other)) = orders.get(index) {
        match make(waiter, other) {
            Ok(true) => done.push(orders.swap_remove(index)),
            Ok(false) => index += 1,
            // Nothing runs any more that could be out of order.
            Err(error) if error.kind() == ErrorKind::ContextLost => {
                done.push(orders.swap_remove(index));
            }
            Err(error) => {
                result = Err(error);
                index += 1;
            }
        }
    }
    drop(orders);
    drop(done);
    result
}

/// Whether it could be made: not while one of them is in a capture.
fn make(waiter: &Stream, other: &Stream) -> Result<bool> {
    if waiter.is_capturing()? || other.is_capturing()? {
        return Ok(false);
    }
    waiter.wait_for(other)?;
    Ok(true)
}
