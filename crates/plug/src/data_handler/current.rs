//! The current handler of a thread, a scope or a task.
//!
//! | where | written by | seen by |
//! |---|---|---|
//! | the slot of the innermost scope, or of the task that is polled | [`set_data_handler`] inside | the thread, while it is inside |
//! | the slot of the thread | [`set_data_handler`] outside of any | the thread, until it ends |
//! | the default | - | a thread that set none |
//!
//! So `set_data_handler` is Python's `ContextVar.set`, whose context is a thread, a scope or a task.

use super::handler::DataHandler;
use super::inside::is_inside;
use crate::sync::scope_list::{PolledInScope, ScopeList};
use crate::sync::{Arc, thread_local, trusted};
use std::cell::RefCell;

/// The handler of a scope or a task, with a count of its own, or `None` for the default. The lock is
/// not contended, and is there since a task moves between threads.
struct Slot(trusted::Mutex<Option<DataHandler>>);

impl Slot {
    fn new(handler: &DataHandler) -> Arc<Self> {
        Arc::new(Self(trusted::Mutex::new(Some(handler.with_own_count()))))
    }
}

thread_local! {
    static SCOPES: ScopeList<Slot> = const { ScopeList::new() };
}

trusted::thread_local! {
    static OF_THREAD: RefCell<Option<DataHandler>> = const { RefCell::new(None) };
}

/// Applies `body` to the handler that is set where the calling thread is. `body` must not run the code
/// of others, since the slot is locked. A thread whose locals have been dropped has no handler set.
fn with_slot<R>(body: impl FnOnce(&mut Option<DataHandler>) -> R) -> Option<R> {
    match ScopeList::innermost(&SCOPES, |_| true) {
        Some(slot) => Some(body(&mut slot.0.lock())),
        None => OF_THREAD.try_with(|handler| body(&mut handler.borrow_mut())).ok(),
    }
}

/// The handler that the next allocation of the calling thread takes. It is that of the innermost
/// [scope](with_data_handler) or [task](with_data_handler_async), or else the one that the thread
/// [set](set_data_handler), or else the default.
///
/// **A new thread begins with the default handler**, whatever its parent had, as in Python. Inside of a function
/// of a handler the default is current, also in a scope that the function enters, so that a handler does not call
/// itself.
///
/// ```
/// use aquifer::nep49::{DataHandler, current_data_handler, with_data_handler};
///
/// let handler = DataHandler::aligned(64)?;
/// with_data_handler(handler.clone(), || {
///     assert_eq!(current_data_handler(), handler);
///     let elsewhere = std::thread::spawn(current_data_handler).join().unwrap();
///     assert_eq!(elsewhere, DataHandler::default());
/// });
/// # Ok::<(), aquifer::Error>(())
/// ```
pub fn current_data_handler() -> DataHandler {
    if is_inside() {
        return DataHandler::default();
    }
    let current = |handler: &mut Option<DataHandler>| match handler {
        Some(handler) => handler.clone(),
        None => handler.insert(DataHandler::default().with_own_count()).clone(),
    };
    with_slot(current).unwrap_or_default()
}

/// Makes `handler` the current one, or the default with `None`, and returns the one that was current
/// before. NEP 49 calls it `PyDataMem_SetHandler`.
///
/// The setting holds in a [scope](with_data_handler) until that ends, in a [task](with_data_handler_async) for
/// the rest of that, and otherwise on this thread. Earlier allocations keep their own handler. A
/// handler's own function may set one, too, which shows when the function has returned.
///
/// ```
/// use aquifer::nep49::{DataHandler, data_handler_name, set_data_handler};
///
/// let before = set_data_handler(Some(DataHandler::aligned(64)?));
/// assert_eq!(data_handler_name(), "aquifer_aligned_64");
/// let aligned = set_data_handler(None);
/// assert_eq!((aligned.name(), data_handler_name()), ("aquifer_aligned_64", before.name().into()));
/// # Ok::<(), aquifer::Error>(())
/// ```
pub fn set_data_handler(handler: Option<DataHandler>) -> DataHandler {
    let handler = handler.map(|handler| handler.with_own_count());
    with_slot(|current| std::mem::replace(current, handler)).flatten().unwrap_or_default()
}

/// The name of the [current handler](current_data_handler), as of NEP 49's `get_handler_name()`.
/// [`DataAlloc::handler_name`](crate::nep49::DataAlloc::handler_name) has the name for a container.
///
/// ```
/// assert_eq!(aquifer::nep49::data_handler_name(), "aquifer_default");
/// ```
pub fn data_handler_name() -> String {
    current_data_handler().name().to_owned()
}

/// The version of the [current handler](current_data_handler), as of NEP 49's `get_handler_version()`.
///
/// ```
/// assert_eq!(aquifer::nep49::data_handler_version(), 1);
/// ```
pub fn data_handler_version() -> u8 {
    current_data_handler().version()
}

/// Runs `body` with `handler` as the current one of the calling thread.
///
/// Scopes nest. The former handler is current again when `body` returns or unwinds, even if `body`
/// [set](set_data_handler) another. Other threads do not see the scope. A container that was made
/// inside keeps the handler and may outlive the scope. For a task that may move between threads, see
/// [`with_data_handler_async`]. The notes of [`with_device_resource`](crate::mr::with_device_resource) on
/// coroutines hold here, too.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::nep49::{DataAlloc, DataHandler, with_data_handler};
///
/// let vec: Vec<u8, _> = with_data_handler(DataHandler::aligned(64)?, || {
///     Vec::with_capacity_in(10, DataAlloc::current())
/// });
/// assert_eq!(vec.allocator().handler_name(), "aquifer_aligned_64");
/// assert_eq!(aquifer::nep49::data_handler_name(), "aquifer_default");
/// # Ok::<(), aquifer::Error>(())
/// ```
pub fn with_data_handler<R>(handler: DataHandler, body: impl FnOnce() -> R) -> R {
    ScopeList::run(&SCOPES, &Slot::new(&handler), body)
}

/// `future` with a current handler of its own, on whatever thread it is polled. It begins with `handler`.
///
/// Tasks that take turns on one thread do not see each other's. A handler that the future
/// [sets](set_data_handler) holds until the future ends, and nowhere else. The future is
/// not in its scope while it waits, nor when it is dropped. A task that it spawns is
/// another future. Give that the [current handler](current_data_handler), as Python's
/// tasks have a copy of their parent's context. The result is `Send` if `future` is.
///
/// ```
/// use aquifer::nep49::{
///     DataHandler, current_data_handler, data_handler_name, with_data_handler_async,
/// };
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
///
/// let task = with_data_handler_async(DataHandler::aligned(64)?, async {
///     // For `tokio::spawn`, say.
///     with_data_handler_async(current_data_handler(), async { data_handler_name() })
/// });
/// let context = &mut Context::from_waker(Waker::noop());
/// let Poll::Ready(child) = pin!(task).poll(context) else { unreachable!("it waits for nothing") };
/// assert_eq!(pin!(child).poll(context), Poll::Ready("aquifer_aligned_64".into()));
/// # Ok::<(), aquifer::Error>(())
/// ```
pub fn with_data_handler_async<F: Future>(
    handler: DataHandler,
    future: F,
) -> impl Future<Output = F::Output> {
    PolledInScope::new(&SCOPES, Slot::new(&handler), future)
}
