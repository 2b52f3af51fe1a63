//! Counters that a thread opens for its own calls, nested.

use super::counters::Counters;
use crate::sync::trusted::{AtomicUsize, Ordering, thread_local};
use crate::sync::{Arc, Weak};
use std::cell::RefCell;

/// One adaptor's open scopes, of all threads.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    /// How many are open. Zero lets a call pass without a look at its thread's stacks.
    open: Arc<AtomicUsize>,
}

/// A thread's open scopes of one adaptor, the innermost last.
struct Stack {
    /// The adaptor. Its address is not used again while this is kept.
    of: Weak<AtomicUsize>,
    scopes: Vec<Counters>,
}

impl Drop for Stack {
    fn drop(&mut self) {
        // What a thread leaves open ends with it.
        if let Some(open) = self.of.upgrade() {
            open.fetch_sub(self.scopes.len(), Ordering::Relaxed);
        }
    }
}

thread_local! {
    static STACKS: RefCell<Vec<Stack>> = const { RefCell::new(Vec::new()) };
}

impl Scopes {
    #[inline(always)]
    pub(super) fn change(&self, bytes: i64, blocks: i64) {
        // Relaxed: a thread sees its own scopes, and those of others are nothing to it.
        if self.open.load(Ordering::Relaxed) != 0 {
            self.change_innermost(bytes, blocks);
        }
    }

    #[inline(never)]
    fn change_innermost(&self, bytes: i64, blocks: i64) {
        self.with_stack(|stack| {
            if let Some(scope) = stack.scopes.last_mut() {
                scope.change(bytes, blocks);
            }
        });
    }

    pub(super) fn resize(&self, bytes: i64) {
        if self.open.load(Ordering::Relaxed) != 0 {
            self.with_stack(|stack| {
                if let Some(scope) = stack.scopes.last_mut() {
                    scope.resize(bytes);
                }
            });
        }
    }

    pub(super) fn keep(&self, bytes: i64) {
        if self.open.load(Ordering::Relaxed) != 0 {
            self.with_stack(|stack| {
                if let Some(scope) = stack.scopes.last_mut() {
                    scope.keep(bytes);
                }
            });
        }
    }

    /// Opens a scope of the calling thread. `false` while the thread is going away.
    pub(super) fn push(&self) -> bool {
        let known = self.with_stack(|stack| stack.scopes.push(Counters::default())).is_some();
        self.open.fetch_add(1, Ordering::Relaxed);
        if known {
            return true;
        }
        // Dropped unpushed, it takes its scope off the count.
        let stack = Stack { of: Arc::downgrade(&self.open), scopes: vec![Counters::default()] };
        STACKS
            .try_with(|stacks| {
                let mut stacks = stacks.borrow_mut();
                stacks.retain(|stack| stack.of.strong_count() > 0);
                stacks.push(stack);
            })
            .is_ok()
    }

    /// Ends the innermost scope of the calling thread, and adds its counters to the scope around it.
    pub(super) fn pop(&self) -> Option<Counters> {
        let popped = self.with_stack(|stack| {
            let ended = stack.scopes.pop()?;
            if let Some(around) = stack.scopes.last_mut() {
                around.fold(&ended);
            }
            Some(ended)
        });
        let ended = popped.flatten()?;
        self.open.fetch_sub(1, Ordering::Relaxed);
        Some(ended)
    }

    /// The innermost scope of the calling thread.
    pub(super) fn innermost(&self) -> Option<Counters> {
        self.with_stack(|stack| stack.scopes.last().copied()).flatten()
    }

    /// The calling thread's stack, if it has one.
    fn with_stack<R>(&self, body: impl FnOnce(&mut Stack) -> R) -> Option<R> {
        let this = Arc::as_ptr(&self.open);
        STACKS
            .try_with(|stacks| {
                let mut stacks = stacks.borrow_mut();
                stacks.iter_mut().find(|stack| stack.of.as_ptr() == this).map(body)
            })
            .ok()
            .flatten()
    }
}
