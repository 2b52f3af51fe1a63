//! Threads that a test waits for to their very end.

use std::cell::RefCell;
use std::panic::resume_unwind;
use std::thread::{Scope, ScopedJoinHandle, scope};

/// Spawns threads that [`run_threads`] waits for.
pub(crate) struct Threads<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    handles: RefCell<Vec<ScopedJoinHandle<'scope, ()>>>,
}

impl<'scope> Threads<'scope, '_> {
    pub(crate) fn spawn(&self, body: impl FnOnce() + Send + 'scope) {
        self.handles.borrow_mut().push(self.scope.spawn(body));
    }
}

/// As [`std::thread::scope`], and waits for the destructors of thread-locals, too: by those a thread
/// gives back what it keeps of a pool, and the end of a scope does not wait for them.
pub(crate) fn run_threads<'env, R>(
    body: impl for<'scope> FnOnce(&Threads<'scope, 'env>) -> R,
) -> R {
    scope(|scope| {
        let threads = Threads { scope, handles: RefCell::default() };
        let result = body(&threads);
        for handle in threads.handles.take() {
            handle.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
        result
    })
}
