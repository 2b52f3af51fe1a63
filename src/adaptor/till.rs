//! What one thread writes in without a locked instruction, until another takes it away.
//!
//! Its owner works inside a section that it marks as busy. Who wants the till changes the owner's
//! name, and waits until the owner is out. The mark and the look at the name are a store before a
//! load, which [`barrier`]'s pair of fences orders. Only its owner writes the mark: a till has one
//! owner for good, who may find it shut.

use crate::sync::{AtomicUsize, MODELLED, Ordering, UnsafeCell, barrier, yield_now};

/// Tills that a thread has for its own, by its seat; the first is nobody's.
pub(super) const DESKS: usize = if MODELLED { 4 } else { 64 };

/// Nobody's till. Nobody has a seat of this number.
pub(super) const SHUT: usize = usize::MAX;

/// In place of an owner: it had one, or needs none, and stays shut for good. Nobody's seat either.
pub(super) const EVERYONE: usize = SHUT - 1;

#[derive(Debug)]
pub(super) struct Till<T> {
    /// A seat, or a number that is none. Changed under one lock, of what the till is part of.
    owner: AtomicUsize,
    /// Written by the owner alone.
    busy: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by the owner in its section, or by the holder of the one lock who
// has kept the owner out (`enter`, `with_shut`).
unsafe impl<T: Send> Sync for Till<T> {}

impl<T: Default> Default for Till<T> {
    fn default() -> Self {
        Self {
            owner: AtomicUsize::new(SHUT),
            busy: AtomicUsize::new(0),
            value: UnsafeCell::new(T::default()),
        }
    }
}

impl<T> Till<T> {
    /// Relaxed: a thread that finds its own name looks again inside of its section.
    #[inline(always)]
    pub(super) fn owner(&self) -> usize {
        self.owner.load(Ordering::Relaxed)
    }

    /// Whether it is [`EVERYONE`]'s. Acquire: what was done before it was given to them is seen.
    pub(super) fn is_everyones(&self) -> bool {
        self.owner.load(Ordering::Acquire) == EVERYONE
    }

    /// The owner's way in. `None` while it is shut.
    ///
    /// # Safety
    ///
    /// Called on the thread that has the seat, of which no other ever owns this till, and not from
    /// within `body`.
    #[inline(always)]
    pub(super) unsafe fn enter<R>(&self, seat: usize, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.busy.store(1, Ordering::Relaxed);
        // Who takes the till away either sees the mark, or is seen here.
        barrier::compiler();
        if MODELLED {
            barrier::light();
        }
        // Acquire: what the last who took it left inside is seen.
        let result = (self.owner.load(Ordering::Acquire) == seat).then(|| {
            self.value.with_mut(|value| {
                // SAFETY: the owner alone comes this way, and who shuts the till waits for it.
                body(unsafe { &mut *value })
            })
        });
        // Release: who waits for it goes on with what was written.
        self.busy.store(0, Ordering::Release);
        result
    }

    /// Names the owner. Release: it finds the value as it is left here. Under the lock.
    pub(super) fn give(&self, owner: usize) {
        self.owner.store(owner, Ordering::Release);
    }

    /// Tells the owner to stay out. Under the lock; [`keep_out`] has to follow.
    pub(super) fn shut(&self, name: usize) {
        self.owner.store(name, Ordering::Relaxed);
    }

    /// The way in of who has the lock.
    ///
    /// # Safety
    ///
    /// The calling thread holds that lock, and the till is shut: from the start, or since
    /// a [`keep_out`], or by this thread, which is its owner and not inside.
    pub(super) unsafe fn with_shut<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        self.value.with_mut(|value| {
            // SAFETY: the owner is out and finds no way in; the lock keeps all others out.
            body(unsafe { &mut *value })
        })
    }
}

/// Returns when the owners of tills that were [shut](Till::shut) are out of them.
pub(super) fn keep_out<'a, T: 'a>(tills: impl Iterator<Item = &'a Till<T>>) {
    barrier::heavy();
    for till in tills {
        #[cfg(not(aquifer_fault = "till_not_awaited"))]
        while till.busy.load(Ordering::Acquire) != 0 {
            yield_now();
        }
        #[cfg(aquifer_fault = "till_not_awaited")]
        let _ = (&till.busy, yield_now as fn());
    }
}

/// Whether a till is cheap for its owner here.
pub(super) fn is_cheap() -> bool {
    MODELLED || barrier::is_asymmetric()
}
