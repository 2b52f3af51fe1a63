#![cfg(aquifer_loom)]
//! Deallocations that wait: each runs once (INV-1 of `manager/pending.rs`), outside of the lock (INV-2), and none that
//! was pushed in a scope runs before the scope ends.

mod harness;

use aquifer::models::{DeferCleanup, PendingDeallocations};
use harness::model;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

struct State {
    pending: PendingDeallocations,
    /// How often each deallocation ran. The standard library's, unseen by loom: it has no part in the protocol.
    ran: Arc<[AtomicUsize; 4]>,
    /// A scope that one role ends.
    scope: Mutex<Option<DeferCleanup>>,
}

impl State {
    fn new() -> Self {
        let pending = PendingDeallocations::new(1, 100);
        Self { pending, ran: Arc::default(), scope: Mutex::new(None) }
    }

    fn in_scope() -> Self {
        let state = Self::new();
        *state.scope.lock().unwrap() = Some(state.pending.defer_cleanup());
        state
    }

    fn push(&self, index: usize) {
        let ran = self.ran.clone();
        self.pending.push(10, move || {
            ran[index].fetch_add(1, Relaxed);
        });
    }

    fn ran(&self, index: usize) -> usize {
        self.ran[index].load(Relaxed)
    }

    fn all_ran(&self, pushed: usize) {
        self.pending.clear();
        for index in 0..pushed {
            let times = self.ran(index);
            assert_eq!(times, 1, "deallocation {index} ran {times} times");
        }
        assert_eq!((self.pending.len(), self.pending.bytes()), (0, 0));
    }
}

#[test]
fn two_that_push_and_one_that_clears() {
    model::<State>(
        "two_that_push_and_one_that_clears",
        100,
        State::new,
        &[
            |state| {
                state.push(0);
                state.push(1);
            },
            |state| state.push(2),
            |state| state.pending.clear(),
        ],
        |state| state.all_ran(3),
    );
}

#[test]
fn what_is_pushed_in_a_scope_waits_for_its_end() {
    model::<State>(
        "what_is_pushed_in_a_scope_waits_for_its_end",
        20,
        State::new,
        &[
            |state| {
                let scope = state.pending.defer_cleanup();
                state.push(0);
                state.push(1);
                assert_eq!((state.ran(0), state.ran(1)), (0, 0), "a deallocation ran in its scope");
                drop(scope);
            },
            |state| state.push(2),
        ],
        |state| {
            assert!(state.pending.len() <= 1, "more wait than may");
            state.all_ran(3);
        },
    );
}

#[test]
fn a_scope_that_ends_on_another_thread() {
    model::<State>(
        "a_scope_that_ends_on_another_thread",
        20,
        State::in_scope,
        &[
            |state| {
                state.push(0);
                state.push(1);
            },
            |state| {
                let inner = state.pending.defer_cleanup();
                drop(state.scope.lock().unwrap().take());
                state.push(2);
                assert_eq!(state.ran(2), 0, "a deallocation ran in its scope");
                drop(inner);
            },
        ],
        |state| {
            assert!(state.pending.len() <= 1, "more wait than may");
            state.all_ran(3);
        },
    );
}

#[test]
fn a_deallocation_that_pushes_another() {
    model::<State>(
        "a_deallocation_that_pushes_another",
        10,
        State::new,
        &[
            |state| {
                let (again, ran) = (state.pending.clone(), state.ran.clone());
                state.pending.push(10, move || {
                    ran[0].fetch_add(1, Relaxed);
                    let ran = ran.clone();
                    again.push(10, move || {
                        ran[1].fetch_add(1, Relaxed);
                    });
                });
                state.push(2);
            },
            |state| state.pending.clear(),
        ],
        |state| state.all_ran(3),
    );
}
