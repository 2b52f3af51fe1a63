//! The sleep of a pool, as its driver has it.

use crate::error::Result;
use crate::resource::asleep::Listed;
use crate::sync::thread_id;
use crate::sync::trusted::{AtomicUsize, Mutex, Ordering};
use crate::sync::{Arc, Condvar, WaitMutex};
use std::any::Any;
use std::collections::BTreeSet;

/// Wakes the pool, for an allocation. It keeps no share of the pool, which has it.
pub(super) type Waker = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// The sleep of a pool.
#[derive(Default)]
pub(super) struct Sleep {
    state: WaitMutex<State>,
    /// One thread has the pool fall asleep or wake no more.
    changed: Condvar,
    waker: Mutex<Option<Waker>>,
    /// The bytes that went back, for those that ask without the lock.
    bytes: AtomicUsize,
}

/// Whether a pool sleeps, as those see it that change it.
#[derive(Default)]
enum State {
    #[default]
    Awake,
    Asleep(Asleep),
    /// The thread of this number changes it, and has what it was.
    Changing(u64),
}

/// The right to change whether a pool sleeps. Its drop says how it is then.
pub(super) struct Change<'a> {
    sleep: &'a Sleep,
    pub(super) asleep: Option<Asleep>,
}

impl Sleep {
    /// Waits for a thread that changes it. `None` in a callback on that thread.
    pub(super) fn change(&self) -> Option<Change<'_>> {
        let this = thread_id::assign();
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::Changing(thread) if *thread == this => return None,
                State::Changing(_) => state = self.changed.wait(state),
                State::Awake | State::Asleep(_) => break,
            }
        }
        match std::mem::replace(&mut *state, State::Changing(this)) {
            State::Asleep(asleep) => Some(Change { sleep: self, asleep: Some(asleep) }),
            _ => Some(Change { sleep: self, asleep: None }),
        }
    }

    /// The function that wakes the pool, if an allocation is to.
    pub(super) fn waker(&self) -> Option<Waker> {
        self.waker.lock().clone()
    }

    /// The bytes that the device has back.
    pub(super) fn bytes(&self) -> usize {
        // Relaxed: a number for people.
        self.bytes.load(Ordering::Relaxed)
    }

    /// Notes what the device has back.
    pub(super) fn set_bytes(&self, bytes: u64) {
        self.bytes.store(bytes as usize, Ordering::Relaxed);
    }

    /// Notes what the device has back, and what wakes the pool.
    pub(super) fn set(&self, bytes: u64, waker: Option<Waker>) {
        self.set_bytes(bytes);
        let before = std::mem::replace(&mut *self.waker.lock(), waker);
        // Not under the lock.
        drop(before);
    }

    /// The addresses at which nothing is mapped of a pool that ends. It is not asleep any more.
    pub(super) fn end(&self) -> BTreeSet<u64> {
        let ended = self.change().and_then(|mut change| change.asleep.take());
        ended.map_or_else(BTreeSet::new, |ended| ended.places)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        *self.sleep.state.lock() = self.asleep.take().map_or(State::Awake, State::Asleep);
        self.sleep.changed.notify_all();
    }
}

pub(super) struct Asleep {
    /// The addresses at which nothing is mapped.
    pub(super) places: BTreeSet<u64>,
    /// The addresses at which a wake that failed has mapped memory that it could not unmap. The pool has the handles, and
    /// the contents are not there.
    pub(super) unfilled: BTreeSet<u64>,
    pub(super) contents: Box<dyn Any + Send>,
    /// It is on the list.
    pub(super) listed: Option<Listed>,
}
