//! The gate of a stream: which threads may call the driver on it.
//!
//! CUDA's graphs are not synchronised inside: while a stream is in capture, no second thread may name
//! it in a call, not even to ask whether it is. So each call on a stream is counted in its gate, and a
//! capture closes the gate, from before its begin until the order of its streams is restored.
//!
//! # State table
//!
//! | state | `owner` | `calls` | `published` | `begin_call` |
//! | --- | --- | --- | --- | --- |
//! | open | none | any | - | counts a call of any thread |
//! | closing | some | above 0 | no | counts nothing and returns the owner |
//! | closed | some | 0 | no | the same; the owner records what the stream was given before |
//! | published | some | 0 | yes | the same; other threads find that record |
//! | alone | none | 0 | - | waits until it is open, and counts |
//!
//! | from | to | by |
//! | --- | --- | --- |
//! | open | closing | `close_and_wait` of the new owner |
//! | closing | closed | the last `end_call` |
//! | closing | open | `mark_blocking` of a call: `close_and_wait` fails |
//! | closed | published | `set_published` of the owner |
//! | closed, published | open | `open` of the owner |
//! | open, with no call | alone | `alone`, which waits for that |
//! | alone | open | the end of its body |
//!
//! - `INV-1`: in the states closed and published only the owner's thread calls the driver on the
//!   stream.
//! - `INV-2`: an owner never waits for a call that waits for the device: such a call may end only
//!   after something that the owner's thread has yet to do.
//! - `INV-3`: a change of `owner`, of `published` or of `calls` to 0 wakes all waiting threads.
//!
//! - `INV-4`: who is alone waits for nothing, so that a thread inside of another gate may wait for it. No thread that
//!   waits is inside of this one.
//!
//! The lock is held over nothing but these words.

#![allow(unreachable_pub, reason = "the models of loom_tests reach it through `models`")]

use crate::impls::debug_struct;
use crate::sync::{Arc, AtomicBool, Condvar, Mutex, MutexGuard, Ordering};

/// The gate of one stream, closed by owners of type `O`.
pub struct Gate<O> {
    state: Mutex<GateState<O>>,
    /// Whether there is an owner, for those that ask without the lock.
    owned: AtomicBool,
    changed: Condvar,
}

struct GateState<O> {
    owner: Option<Arc<O>>,
    /// Calls under way that began while there was no owner.
    calls: usize,
    /// Those of them that may wait for the device.
    waits: usize,
    published: bool,
    is_alone: bool,
    /// Threads that wait to be alone.
    want_alone: usize,
}

impl<O> Default for Gate<O> {
    fn default() -> Self {
        let state = GateState {
            owner: None,
            calls: 0,
            waits: 0,
            published: false,
            is_alone: false,
            want_alone: 0,
        };
        Self {
            state: Mutex::new(state),
            owned: AtomicBool::new(false),
            changed: Condvar::default(),
        }
    }
}

impl<O> Gate<O> {
    /// The state when no thread is alone.
    fn lock_beside(&self) -> MutexGuard<'_, GateState<O>> {
        let mut state = self.state.lock();
        while state.is_alone {
            state = self.changed.wait(state);
        }
        state
    }

    /// Begins a call, which [`end_call`](Self::end_call) ends. Or returns the owner: its thread alone
    /// may call, and does not end the call.
    pub fn begin_call(&self) -> Option<Arc<O>> {
        let mut state = self.lock_beside();
        if state.owner.is_none() {
            state.calls += 1;
            return None;
        }
        state.owner.clone()
    }

    /// As [`begin_call`](Self::begin_call) and [`mark_blocking`](Self::mark_blocking).
    #[inline]
    pub fn begin_blocking_call(&self) -> Option<Arc<O>> {
        let mut state = self.lock_beside();
        if state.owner.is_none() {
            state.calls += 1;
            state.waits += 1;
            return None;
        }
        state.owner.clone()
    }

    /// The call may wait for the device from here on.
    pub fn mark_blocking(&self) {
        let mut state = self.state.lock();
        state.waits += 1;
        if state.owner.is_some() {
            self.changed.notify_all();
        }
    }

    /// Ends a call. `waited`: it has called [`mark_blocking`](Self::mark_blocking).
    pub fn end_call(&self, waited: bool) {
        let mut state = self.state.lock();
        state.calls -= 1;
        state.waits -= usize::from(waited);
        if state.calls == 0 && (state.owner.is_some() || state.want_alone > 0) {
            self.changed.notify_all();
        }
    }

    /// Runs `body` while no thread is in a call, and none begins. Waits for the calls under way, also those that wait for
    /// the device; others begin before it. `None` if the gate has an owner. The caller is inside of no gate, and `body`
    /// waits for nothing (INV-4).
    pub fn alone<R>(&self, body: impl FnOnce() -> R) -> Option<R> {
        let mut state = self.state.lock();
        state.want_alone += 1;
        while state.owner.is_none() && (state.calls > 0 || state.is_alone) {
            state = self.changed.wait(state);
        }
        state.want_alone -= 1;
        if state.owner.is_some() {
            return None;
        }
        state.is_alone = true;
        drop(state);
        let _end = EndAlone(self);
        Some(body())
    }

    /// Closes the gate for all threads but the owner's, and waits for the calls under way. `false` if
    /// the gate has an owner, or one of the calls may wait for the device. The caller is inside of no
    /// gate.
    pub fn close_and_wait(&self, owner: &Arc<O>) -> bool {
        let mut state = self.lock_beside();
        if state.owner.is_some() {
            return false;
        }
        state.owner = Some(owner.clone());
        state.published = false;
        self.owned.store(true, Ordering::Relaxed);
        while state.calls > 0 {
            if state.waits > 0 {
                let owner = self.take_owner(&mut state);
                drop(state);
                self.changed.notify_all();
                drop(owner);
                return false;
            }
            state = self.changed.wait(state);
        }
        true
    }

    /// The owner has recorded what other threads look for.
    pub fn set_published(&self) {
        self.state.lock().published = true;
        self.changed.notify_all();
    }

    /// Opens the gate for all threads.
    pub fn open(&self) {
        let owner = self.take_owner(&mut self.state.lock());
        self.changed.notify_all();
        drop(owner);
    }

    fn take_owner(&self, state: &mut GateState<O>) -> Option<Arc<O>> {
        self.owned.store(false, Ordering::Relaxed);
        state.owner.take()
    }

    /// Whether the gate has no owner. An answer of the moment, without a call.
    pub fn is_open(&self) -> bool {
        // Relaxed: who knows of a close or an open knows of its store.
        !self.owned.load(Ordering::Relaxed)
    }

    /// The owner, which has closed the gate.
    pub fn owner(&self) -> Option<Arc<O>> {
        self.state.lock().owner.clone()
    }

    /// Waits while an owner is about to publish. The caller is inside of no gate.
    pub fn wait_open_or_published(&self) {
        let mut state = self.state.lock();
        while state.owner.is_some() && !state.published {
            state = self.changed.wait(state);
        }
    }
}

debug_struct!([O] Gate<O> { .. });

/// Its drop opens the gate, also when the body of [`Gate::alone`] unwinds.
struct EndAlone<'a, O>(&'a Gate<O>);

impl<O> Drop for EndAlone<'_, O> {
    fn drop(&mut self) {
        self.0.state.lock().is_alone = false;
        self.0.changed.notify_all();
    }
}
