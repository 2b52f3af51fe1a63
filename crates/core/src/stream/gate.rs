//! The gate of a stream, which says which threads may call the driver on it, and by which handle.
//!
//! CUDA's graphs are not synchronised inside. While a stream is in capture, no second thread may name it in a call, not
//! even to ask whether it is. So each call on a stream is counted in its gate. A capture closes the gate, from before
//! its begin until the order of its streams is restored.
//!
//! The gate has the stream's handle, and gives it to each thread that enters. A thread that leaves and enters again is
//! given it again, since the stream may have got another one meanwhile.
//!
//! # State table
//!
//! | state | `owner` | `calls` | `published` | `begin_call` |
//! | --- | --- | --- | --- | --- |
//! | open | none | any | - | counts a call of any thread |
//! | closing | some | above 0 | no | of the owner's thread: not counted; of another: waits, and is refused at last |
//! | closed | some | 0 | no | the same; the owner records what the stream was given before |
//! | published | some | 0 | yes | the same; other threads find that record |
//! | alone | none | 0 | - | waits until it is open, and counts |
//!
//! | from | to | by |
//! | --- | --- | --- |
//! | open | closing | `close_and_wait` of the new owner |
//! | closing | closed | the last `end_call` |
//! | closing | open | `close_and_wait` fails: a call that may wait for the device outlasts its patience |
//! | closed | published | `set_published` of the owner |
//! | closed, published | open | `open` of the owner: counts the calls that wait |
//! | open, with no call | alone | `alone`, which waits for that |
//! | alone | open | the end of its body, which may have given the stream another handle |
//!
//! - `INV-1`. In the states closed and published only the owner's thread calls the driver on the stream.
//! - `INV-2`. A wait for something that the waiting thread may have to end first ends with its [`Patience`]. Such are
//!   the waits for an owner, and for a call that waits for the device. A thread that owns gates does not wait for
//!   another owner at all, since two would wait for each other.
//! - `INV-3`. A change of `owner`, of `published` or of `calls` to 0 wakes all waiting threads, as does a change of
//!   `waits` beside an owner.
//! - `INV-4`. A thread that is alone waits for nothing, so that a thread inside of another gate may wait for it. No
//!   thread that waits is inside of this one.
//! - `INV-5`. The `handle` changes in the state alone, and stays while a call is counted or there is an owner.
//! - `INV-6`. A call that waits for an owner is counted as the gate opens, before another owner can close it. An owner
//!   lets a thread go first that waits to be alone. So threads that do these in a loop take turns.
//!
//! The lock is held over nothing but these words.

#![allow(unreachable_pub, reason = "the models of loom_tests reach it through `models`")]

use crate::impls::debug_struct;
use crate::sync::{
    Arc, AtomicBool, Condvar, MODELLED, Ordering, WaitMutex, WaitMutexGuard, thread_local,
};
use std::cell::{Cell, OnceCell};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// The owner that closes a gate.
pub trait GateOwner {
    /// Whether the calling thread is the owner's.
    fn is_here(&self) -> bool;
}

/// The time that a thread waits for gates, in all of one call of a user.
#[derive(Debug)]
pub struct Patience {
    limit: Duration,
    /// The time of the first wait.
    since: OnceCell<Instant>,
}

impl Patience {
    /// The longest wait. A capture that takes longer refuses the calls of others. The limit is some thousand times as
    /// long as a thread's short capture, and no time to a person.
    const LIMIT: Duration = Duration::from_millis(4);

    /// The patience of a thread that is inside of no gate. It begins to run out at the first wait.
    #[allow(clippy::new_without_default, reason = "a default is nothing that begins")]
    pub fn new() -> Self {
        Self { limit: Self::LIMIT, since: OnceCell::new() }
    }

    /// The patience of a thread that is inside of another gate, or has a lock. It does not wait.
    pub fn none() -> Self {
        Self { limit: Duration::ZERO, since: OnceCell::new() }
    }

    /// As [`left`](Self::left), for an owner. None for a thread that owns gates itself: the other may wait for one of these.
    fn left_for_owner(&self) -> Option<Duration> {
        let owns = OWNING.try_with(Cell::get).unwrap_or_default();
        if owns == 0 { self.left() } else { None }
    }

    /// `None` when it has come to its end.
    fn left(&self) -> Option<Duration> {
        // Time does not pass in a model.
        if MODELLED || self.limit.is_zero() {
            return (!self.limit.is_zero()).then_some(self.limit);
        }
        let since = self.since.get_or_init(Instant::now);
        self.limit.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }
}

thread_local! {
    /// The number of [`Owning`] that the thread has.
    static OWNING: Cell<usize> = const { Cell::new(0) };
}

/// While it lives, its thread owns gates.
#[derive(Debug)]
pub struct Owning(PhantomData<*const ()>);

impl Owning {
    #[allow(clippy::new_without_default, reason = "a default is nothing that begins")]
    #[allow(missing_docs)]
    pub fn new() -> Self {
        let _ = OWNING.try_with(|owning| owning.set(owning.get() + 1));
        Self(PhantomData)
    }
}

impl Drop for Owning {
    fn drop(&mut self) {
        let _ = OWNING.try_with(|owning| owning.set(owning.get() - 1));
    }
}

/// The gate of one stream with a handle of type `H`, closed by owners of type `O`.
pub struct Gate<O, H> {
    state: WaitMutex<GateState<O, H>>,
    /// Whether there is an owner, for those that ask without the lock.
    owned: AtomicBool,
    changed: Condvar,
}

struct GateState<O, H> {
    handle: H,
    owner: Option<Arc<O>>,
    /// Calls under way that began while there was no owner.
    calls: usize,
    /// The number of those that may wait for the device.
    waits: usize,
    published: bool,
    /// Calls that wait for the owner to open the gate, and how often one has.
    waiting: usize,
    turn: usize,
    is_alone: bool,
    /// Threads that wait to be alone.
    want_alone: usize,
}

/// A call that has begun.
#[derive(Debug)]
pub struct Entered<O, H> {
    /// The handle of the stream, until the call ends.
    pub handle: H,
    /// The owner, if the calling thread is the owner's. The call is not counted then, and does not end.
    pub owner: Option<Arc<O>>,
}

/// The reason why a thread was kept out.
#[derive(Debug)]
pub enum Refused<O> {
    /// The gate has this owner.
    Owned(Arc<O>),
    /// A call is under way that may wait for the device.
    CallWaits,
}

impl<O: GateOwner, H: Copy> Gate<O, H> {
    /// An open gate.
    pub fn new(handle: H) -> Self {
        let state = GateState {
            handle,
            owner: None,
            calls: 0,
            waits: 0,
            published: false,
            waiting: 0,
            turn: 0,
            is_alone: false,
            want_alone: 0,
        };
        Self {
            state: WaitMutex::new(state),
            owned: AtomicBool::new(false),
            changed: Condvar::default(),
        }
    }

    /// The state when no thread is alone.
    fn lock_beside(&self) -> WaitMutexGuard<'_, GateState<O, H>> {
        let mut state = self.state.lock();
        while state.is_alone {
            state = self.changed.wait(state);
        }
        state
    }

    /// Begins a call, which [`end_call`](Self::end_call) ends unless the calling thread is the owner's. While another
    /// thread's owner has the gate, it waits as long as the patience lasts.
    ///
    /// # Errors
    ///
    /// The owner of the gate.
    #[inline]
    pub fn begin_call(&self, patience: &Patience) -> Result<Entered<O, H>, Refused<O>> {
        self.enter(patience, false)
    }

    /// Does [`begin_call`](Self::begin_call) and [`mark_blocking`](Self::mark_blocking).
    ///
    /// # Errors
    ///
    /// The errors of `begin_call`.
    #[inline]
    pub fn begin_blocking_call(&self, patience: &Patience) -> Result<Entered<O, H>, Refused<O>> {
        self.enter(patience, true)
    }

    #[inline]
    fn enter(&self, patience: &Patience, waits: bool) -> Result<Entered<O, H>, Refused<O>> {
        let mut state = self.lock_beside();
        match &state.owner {
            None => state.calls += 1,
            Some(owner) if owner.is_here() => {
                return Ok(Entered { handle: state.handle, owner: state.owner.clone() });
            }
            Some(_) => state = self.wait_for_turn(state, patience)?,
        }
        if waits {
            state.waits += 1;
            // An owner came between the end of the former one and this: it counts on a call that ends by itself.
            if state.owner.is_some() {
                self.changed.notify_all();
            }
        }
        Ok(Entered { handle: state.handle, owner: None })
    }

    /// Waits until the owner opens the gate, and counts this call (INV-6).
    #[cold]
    fn wait_for_turn<'a>(
        &self,
        mut state: WaitMutexGuard<'a, GateState<O, H>>,
        patience: &Patience,
    ) -> Result<WaitMutexGuard<'a, GateState<O, H>>, Refused<O>> {
        let turn = state.turn;
        state.waiting += 1;
        while state.turn == turn {
            match (patience.left_for_owner(), &state.owner) {
                (Some(left), _) => state = self.changed.wait_for(state, left),
                // In one turn there is one owner.
                (None, owner) => {
                    let refused = owner.clone().map_or(Refused::CallWaits, Refused::Owned);
                    state.waiting -= 1;
                    return Err(refused);
                }
            }
        }
        Ok(state)
    }

    /// Marks that the call may wait for the device from here on.
    pub fn mark_blocking(&self) {
        let mut state = self.state.lock();
        state.waits += 1;
        if state.owner.is_some() {
            self.changed.notify_all();
        }
    }

    /// Ends a call, which has called [`mark_blocking`](Self::mark_blocking) if `waited`.
    pub fn end_call(&self, waited: bool) {
        let mut state = self.state.lock();
        state.calls -= 1;
        state.waits -= usize::from(waited);
        if state.calls == 0 && (state.owner.is_some() || state.want_alone > 0) {
            self.changed.notify_all();
        }
    }

    /// Runs `body` while no thread is in a call, and none begins. It gets the stream's handle, and returns the one that
    /// the stream has from then on. Waits for the calls under way, also those that wait for the device. Others begin
    /// before it. For an owner it waits as long as the patience lasts. The caller is inside of no gate, and `body`
    /// waits for nothing (INV-4).
    ///
    /// # Errors
    ///
    /// The owner.
    pub fn alone<R>(
        &self,
        patience: &Patience,
        body: impl FnOnce(H) -> (R, H),
    ) -> Result<R, Refused<O>> {
        let mut state = self.state.lock();
        state.want_alone += 1;
        while state.owner.is_some() || state.calls > 0 || state.is_alone {
            let Some(owner) = &state.owner else {
                state = self.changed.wait(state);
                continue;
            };
            let left = if owner.is_here() { None } else { patience.left_for_owner() };
            let Some(left) = left else {
                let refused = Refused::Owned(owner.clone());
                state.want_alone -= 1;
                self.changed.notify_all();
                return Err(refused);
            };
            state = self.changed.wait_for(state, left);
        }
        state.want_alone -= 1;
        state.is_alone = true;
        let handle = state.handle;
        drop(state);
        let _end = EndAlone(self);
        let (result, handle) = body(handle);
        self.state.lock().handle = handle;
        Ok(result)
    }

    /// Closes the gate for all threads but the owner's, and waits for the calls under way. Returns the stream's handle,
    /// which it keeps until the gate opens. The caller is inside of no gate, or is the owner of those that it is in.
    ///
    /// # Errors
    ///
    /// The owner of the gate, or that a call may wait for the device. The gate is as it was then.
    pub fn close_and_wait(&self, owner: &Arc<O>, patience: &Patience) -> Result<H, Refused<O>> {
        let mut state = self.lock_beside();
        loop {
            let left = match &state.owner {
                Some(other) => {
                    let left = if other.is_here() { None } else { patience.left_for_owner() };
                    Some(left.ok_or_else(|| Refused::Owned(other.clone()))?)
                }
                // Who would be alone was here first.
                None if state.want_alone > 0 => patience.left(),
                None => None,
            };
            let Some(left) = left else { break };
            drop(self.changed.wait_for(state, left));
            state = self.lock_beside();
        }
        state.owner = Some(owner.clone());
        state.published = false;
        self.owned.store(true, Ordering::Relaxed);
        while state.calls > 0 {
            if state.waits == 0 {
                state = self.changed.wait(state);
                continue;
            }
            let Some(left) = patience.left() else {
                drop(state);
                self.open();
                return Err(Refused::CallWaits);
            };
            state = self.changed.wait_for(state, left);
        }
        Ok(state.handle)
    }

    /// The owner has recorded what other threads look for.
    pub fn set_published(&self) {
        self.state.lock().published = true;
        self.changed.notify_all();
    }

    /// Opens the gate for all threads.
    pub fn open(&self) {
        let mut state = self.state.lock();
        self.owned.store(false, Ordering::Relaxed);
        let owner = state.owner.take();
        // INV-6.
        state.calls += std::mem::take(&mut state.waiting);
        state.turn = state.turn.wrapping_add(1);
        drop(state);
        self.changed.notify_all();
        drop(owner);
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

    /// Calls `body` with the stream's handle, also beside an owner: for what no capture sees. No thread is alone meanwhile.
    /// `body` waits for nothing.
    pub fn with_handle<R>(&self, body: impl FnOnce(H) -> R) -> R {
        let state = self.lock_beside();
        body(state.handle)
    }

    /// The stream's handle, for those that name it in no call. It is another one when a thread was alone.
    pub fn handle(&self) -> H {
        self.state.lock().handle
    }

    /// Waits while an owner is about to publish. The caller is inside of no gate.
    pub fn wait_open_or_published(&self) {
        let mut state = self.state.lock();
        while state.owner.is_some() && !state.published {
            state = self.changed.wait(state);
        }
    }
}

debug_struct!([O, H] Gate<O, H> { .. });

/// A guard whose drop opens the gate, also when the body of [`Gate::alone`] unwinds.
struct EndAlone<'a, O, H>(&'a Gate<O, H>);

impl<O, H> Drop for EndAlone<'_, O, H> {
    fn drop(&mut self) {
        self.0.state.lock().is_alone = false;
        self.0.changed.notify_all();
    }
}
