//! Callbacks on failed allocations, with the failure that they see, and how they nest.

use crate::debug_log::deferred_event;
use crate::error::{Error, catch_panic};
use crate::impls::getters;
use crate::layout::DeviceLayout;
use crate::sync::trusted::thread_local;
use crate::sync::{Arc, assert_unlocked};
use std::cell::Cell;
use std::fmt;

/// An allocation that failed. The callback of a `FailureCallbackAdaptor` or of a
/// pool sees it ([`PoolOptions::failure_callback`](crate::mr::PoolOptions::failure_callback),
/// [`PinnedPoolOptions::failure_callback`](crate::pinned::PinnedPoolOptions::failure_callback)). RMM's callback gets
/// the bytes alone.
///
/// ```
/// use aquifer::mr::Failure;
///
/// /// Tries requests of a mebibyte and more again, twice.
/// fn worth_it(failure: &Failure<'_>) -> bool {
///     failure.layout().bytes() >= 1 << 20 && failure.attempt() <= 2
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Failure<'a> {
    layout: DeviceLayout,
    error: &'a Error,
    attempt: u32,
}

impl<'a> Failure<'a> {
    #[doc(hidden)]
    pub fn new(layout: DeviceLayout, error: &'a Error, attempt: u32) -> Self {
        Self { layout, error, attempt }
    }

    getters! {
        /// The size and alignment of the request. In a pool of device memory, they are rounded up as its blocks are.
        layout: DeviceLayout;

        /// The upstream's error. In a pool, it is the error that the pool would return.
        error: &'a Error;

        /// The number of this attempt, from 1.
        attempt: u32;
    }
}

/// A user's callback on failure.
pub type Callback = dyn Fn(&Failure<'_>) -> bool + Send + Sync;

/// A callback as an option of a pool.
#[derive(Clone)]
pub(crate) struct OnFailure(pub(crate) Arc<Callback>);

impl fmt::Debug for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnFailure")
    }
}

/// Callbacks that may nest on a thread.
const MAX_NESTED: usize = 8;

thread_local! {
    /// The addresses of the owners whose callbacks run on this thread, where 0 marks a free entry. It has no
    /// destructor, so that a thread may allocate while it ends.
    static RUNNING: Cell<[usize; MAX_NESTED]> = const { Cell::new([0; MAX_NESTED]) };
}

/// An entry of [`RUNNING`].
struct RunningCallback {
    owner: usize,
}

impl RunningCallback {
    /// `None` if the callback runs already or [`MAX_NESTED`] others do, since nested retries would multiply.
    fn begin(owner: usize) -> Option<Self> {
        let mut running = RUNNING.get();
        if running.contains(&owner) {
            return None;
        }
        *running.iter_mut().find(|entry| **entry == 0)? = owner;
        RUNNING.set(running);
        Some(Self { owner })
    }
}

impl Drop for RunningCallback {
    fn drop(&mut self) {
        RUNNING.set(RUNNING.get().map(|entry| if entry == self.owner { 0 } else { entry }));
    }
}

/// Whether `call`, a callback of the adaptor or pool at the address `owner`, asks for a retry. It is not called inside
/// of itself. Its panics are stopped, since a resource's methods do not panic.
#[cold]
pub fn asks_for_retry(owner: usize, failure: &Failure<'_>, call: impl FnOnce() -> bool) -> bool {
    assert_unlocked("a callback");
    let Some(_running) = RunningCallback::begin(owner) else { return false };
    catch_panic(call).unwrap_or_else(|| {
        let (bytes, attempt) = (failure.layout.bytes(), failure.attempt);
        let error = failure.error.to_string();
        // Deferred: a pool above may hold its locks.
        deferred_event!(
            error, bytes, attempt, %error, "the callback of a failed allocation panicked"
        );
        false
    })
}
