//! Deallocations that wait until there are enough of them, which is NBEP 7's deallocation strategy.

#![allow(unreachable_pub, reason = "the models of loom_tests reach it through `models`")]

use crate::debug_log::deferred_event;
use crate::device::Device;
use crate::driver::{is_forked_child, is_in_host_function, may_not_call};
use crate::error::{Result, catch_panic};
use crate::impls::debug_struct;
use crate::inside::deferred;
use crate::sync::{Arc, Mutex};

type Deallocation = Box<dyn FnOnce() + Send>;

/// Deallocations that are done together when there are many, or when they are large, which is
/// Numba's strategy. Clones are the same list.
///
/// A driver's free waits for the device, so a loop that frees each array at once runs in step with it. Numba keeps
/// 10 at most, and a fifth of the device's memory ([`for_device`](Self::for_device)). Inside of a
/// [`defer_cleanup`](Self::defer_cleanup) none runs unless memory runs out ([`clear`](Self::clear)).
///
/// # State table
///
/// One lock guards the list, its bytes and the number of open scopes. Deallocations run outside of it, on the thread
/// whose call took them out.
///
/// | call | scopes | list after it |
/// |---|---|---|
/// | [`push`](Self::push), within both limits | any | longer by one |
/// | `push`, past a limit | 0 | empty: all are done |
/// | `push`, past a limit | 1 or more | longer by one |
/// | a scope begins | one more | the same |
/// | a scope ends, past a limit | 0 then | empty: all are done |
/// | a scope ends otherwise | one less | the same |
/// | [`clear`](Self::clear), the drop of the last handle | any | empty: all are done |
///
/// - INV-1: each deallocation is taken out of the list once, so it runs once.
/// - INV-2: none runs under the lock, since it may push another.
///
/// A deallocation that a thread took out before a scope began on another thread may run
/// inside of that scope.
///
/// ```
/// use aquifer::nbep7::PendingDeallocations;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let done = Arc::new(AtomicUsize::new(0));
/// let pending = PendingDeallocations::new(2, 1000);
/// let push = |bytes| {
///     let done = done.clone();
///     pending.push(bytes, move || { done.fetch_add(1, Ordering::Relaxed); });
///     pending.len()
/// };
/// assert_eq!([push(10), push(10), push(10)], [1, 2, 0]); // the third is one too many
/// assert_eq!(push(1001), 0); // too many bytes
/// let deferred = pending.defer_cleanup();
/// assert_eq!([push(10), push(10), push(10)], [1, 2, 3]);
/// drop(deferred);
/// assert_eq!(pending.len(), 0);
/// assert_eq!(done.load(Ordering::Relaxed), 7);
/// ```
#[derive(Clone)]
pub struct PendingDeallocations {
    shared: Arc<Shared>,
}

struct Shared {
    maximum_count: usize,
    maximum_bytes: usize,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    deallocations: Vec<Deallocation>,
    bytes: usize,
    scopes: usize,
}

impl PendingDeallocations {
    /// Numba's number of deallocations that wait.
    pub const NUMBA_COUNT: usize = 10;

    /// At most `maximum_count` deallocations wait, of `maximum_bytes` bytes together.
    pub fn new(maximum_count: usize, maximum_bytes: usize) -> Self {
        let list = Mutex::new(List::default());
        Self { shared: Arc::new(Shared { maximum_count, maximum_bytes, list }) }
    }

    /// A list with Numba's limits, 10 deallocations and 20% of the device's memory.
    ///
    /// # Errors
    ///
    /// The errors of asking the device for its memory.
    pub fn for_device(device: &Device) -> Result<Self> {
        let fifth = device.memory_info()?.total / 5;
        Ok(Self::new(Self::NUMBA_COUNT, fifth))
    }

    /// Adds a deallocation of `bytes` bytes, and runs all that wait if they are too many now and no
    /// scope is open. In the child of a fork it is leaked, since the memory is the parent's.
    pub fn push(&self, bytes: usize, deallocation: impl FnOnce() + Send + 'static) {
        if is_forked_child() {
            return std::mem::forget(deallocation);
        }
        if is_in_host_function() {
            let own = self.clone();
            return deferred::defer_to_program(move || own.push(bytes, deallocation));
        }
        let mut list = self.shared.list.lock();
        list.deallocations.push(Box::new(deallocation));
        list.bytes = list.bytes.saturating_add(bytes);
        let due = self.shared.take_due(&mut list);
        drop(list);
        run(due);
    }

    /// Runs all that wait, even inside of a scope. Call it when memory has run out or the context is
    /// reset. It runs nothing in the child of a fork, and inside of a [host function](crate::stream::Stream::launch_host_fn).
    pub fn clear(&self) {
        if may_not_call() {
            return;
        }
        let all = self.shared.list.lock().take();
        run(all);
    }

    /// Defers deallocations until the guard is dropped, on whatever thread, as NBEP 7's
    /// `defer_cleanup` does. Scopes nest, and the last that ends runs the deallocations that are due.
    pub fn defer_cleanup(&self) -> DeferCleanup {
        if is_forked_child() {
            return DeferCleanup::none();
        }
        self.shared.list.lock().scopes += 1;
        let shared = self.shared.clone();
        DeferCleanup::new(move || {
            let mut list = shared.list.lock();
            list.scopes -= 1;
            let due = shared.take_due(&mut list);
            drop(list);
            run(due);
        })
    }

    /// How many deallocations wait.
    pub fn len(&self) -> usize {
        self.shared.list.lock().deallocations.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the deallocations that wait.
    pub fn bytes(&self) -> usize {
        self.shared.list.lock().bytes
    }
}

impl Shared {
    /// The deallocations that are to run now, which are all or none.
    fn take_due(&self, list: &mut List) -> Vec<Deallocation> {
        let is_past_limit =
            list.deallocations.len() > self.maximum_count || list.bytes > self.maximum_bytes;
        if list.scopes > 0 || !is_past_limit { Vec::new() } else { list.take() }
    }
}

impl List {
    fn take(&mut self) -> Vec<Deallocation> {
        self.bytes = 0;
        std::mem::take(&mut self.deallocations)
    }
}

fn run(deallocations: Vec<Deallocation>) {
    for deallocation in deallocations {
        // One that panics keeps none of the others from running.
        if catch_panic(deallocation).is_none() {
            deferred_event!(error, "leaked memory: a deallocation of a memory manager panicked");
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let all = self.list.lock().take();
        if is_forked_child() {
            return std::mem::forget(all);
        }
        if is_in_host_function() {
            return deferred::defer_to_program(move || run(all));
        }
        run(all);
    }
}

debug_struct!(PendingDeallocations { len(), bytes() });

/// A scope in which a memory manager defers its cleanup, until it is dropped. NBEP 7's
/// `defer_cleanup` returns it.
#[must_use = "cleanup is deferred until this is dropped"]
pub struct DeferCleanup {
    end: Option<Box<dyn FnOnce() + Send>>,
}

impl DeferCleanup {
    /// A scope whose end calls `end`, once.
    pub fn new(end: impl FnOnce() + Send + 'static) -> Self {
        Self { end: Some(Box::new(end)) }
    }

    /// The scope of a manager that defers nothing.
    pub fn none() -> Self {
        Self { end: None }
    }
}

impl Drop for DeferCleanup {
    fn drop(&mut self) {
        let Some(end) = self.end.take() else { return };
        if is_forked_child() {
            return std::mem::forget(end);
        }
        if is_in_host_function() {
            return deferred::defer_to_program(end);
        }
        if catch_panic(end).is_none() {
            deferred_event!(error, "the end of a memory manager's defer_cleanup panicked");
        }
    }
}

debug_struct!(DeferCleanup { .. });
