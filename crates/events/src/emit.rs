//! How an event is emitted: never under a lock of a pool, never from within another event, and whatever
//! the subscriber does.

use crate::catch_panic;
use aquifer_sync::trusted::thread_local;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use tracing::Level;
use tracing::level_filters::LevelFilter;

/// The target of the pools' events.
pub const POOL: &str = "aquifer::pool";

/// The level that is compiled in, from 0 for no events and 1 for errors to 5 for all. Of several
/// features, the least wins.
pub const LEVEL: u8 = if cfg!(feature = "log-level-off") {
    0
} else if cfg!(feature = "log-level-error") {
    1
} else if cfg!(feature = "log-level-warn") {
    2
} else if cfg!(feature = "log-level-info") {
    3
} else if cfg!(feature = "log-level-debug") {
    4
} else {
    5
};

/// `event!(warn, fields, "message")`: the macro of `tracing` with that name, where it is compiled in.
/// Emits at once.
#[macro_export]
macro_rules! event {
    (error, $($rest:tt)*) => { $crate::event!(1, error, $($rest)*) };
    (warn, $($rest:tt)*) => { $crate::event!(2, warn, $($rest)*) };
    (debug, $($rest:tt)*) => { $crate::event!(4, debug, $($rest)*) };
    (trace, $($rest:tt)*) => { $crate::event!(5, trace, $($rest)*) };
    ($level:literal, $name:ident, target: $($rest:tt)*) => {
        if $crate::LEVEL >= $level {
            $crate::emit(|| $crate::tracing::$name!(target: $($rest)*));
        }
    };
    ($level:literal, $name:ident, $($rest:tt)*) => {
        $crate::event!($level, $name, target: $crate::module_target!(), $($rest)*)
    };
}

/// As [`event!`], through [`emit_deferred`]: the fields are to be owned.
#[macro_export]
macro_rules! deferred_event {
    ($($rest:tt)*) => {
        $crate::emit_deferred(move || {
            $crate::event!($($rest)*);
        })
    };
}

thread_local! {
    static THREAD: ThreadEvents = const {
        ThreadEvents {
            emitting: Cell::new(false),
            guards: Cell::new(0),
            debug_enabled: Cell::new(false),
            deferred: RefCell::new(ManuallyDrop::new(Vec::new())),
        }
    };
}

type DeferredEvent = Box<dyn FnOnce()>;

/// Without a destructor, since other thread locals' destructors emit events as well.
///
/// | `guards` | [`emit_deferred`] | [`is_enabled`] |
/// |---|---|---|
/// | 0 | emits at once | asks the subscriber |
/// | above | pushes to `deferred` | `debug_enabled`, the answer when the first guard was made |
///
/// - INV-1: `deferred` is empty, and has no memory, where `guards` is 0.
/// - INV-2: a subscriber is called, and asked, without a lock of a pool: guards are made before such a
///   lock is taken and dropped after it is released.
struct ThreadEvents {
    /// Whether a subscriber is running on this thread.
    emitting: Cell<bool>,
    /// Guards of [`defer_events`] that are alive.
    guards: Cell<usize>,
    debug_enabled: Cell<bool>,
    deferred: RefCell<ManuallyDrop<Vec<DeferredEvent>>>,
}

const _: () = assert!(!std::mem::needs_drop::<ThreadEvents>());

/// Calls the subscriber, except from inside of a subscriber. Stops its panics: the caller may own a
/// block, be a destructor, or be unwinding.
pub fn emit(event: impl FnOnce()) {
    // On systems without plain thread locals, an ending thread may have dropped this one: then events
    // inside of a subscriber are emitted, too.
    if THREAD.try_with(|thread| thread.emitting.replace(true)).unwrap_or(false) {
        return;
    }
    let _ = catch_panic(event);
    let _ = THREAD.try_with(|thread| thread.emitting.set(false));
}

/// Whether the subscriber takes the pools' `DEBUG` events.
pub fn is_enabled() -> bool {
    let is_enabled = |thread: &ThreadEvents| match thread.guards.get() {
        0 => ask(),
        _ => thread.debug_enabled.get(),
    };
    LEVEL >= 4 && THREAD.try_with(is_enabled).unwrap_or(false)
}

/// Whether this thread may have locks of a pool, so that the subscriber is not to be called.
#[inline]
pub fn is_deferring() -> bool {
    THREAD.try_with(|thread| thread.guards.get() > 0).unwrap_or(false)
}

fn ask() -> bool {
    let mut enabled = false;
    // One load, which is all without a subscriber for this level.
    if Level::DEBUG <= LevelFilter::current() {
        emit(|| enabled = tracing::enabled!(target: POOL, Level::DEBUG));
    }
    enabled
}

/// Runs `event` when the last guard of [`defer_events`] on this thread is dropped; at once, if there
/// is none.
pub fn emit_deferred(event: impl FnOnce() + 'static) {
    let mut event = Some(event);
    let _ = THREAD.try_with(|thread| {
        if thread.guards.get() > 0
            && let Some(event) = event.take()
        {
            thread.deferred.borrow_mut().push(Box::new(event));
        }
    });
    if let Some(event) = event {
        event();
    }
}

/// Defers the events of [`emit_deferred`] on this thread until it is dropped.
///
/// This does not compile, since the count of guards is the thread's:
///
/// ```compile_fail,E0277
/// fn send<T: Send>() {}
/// send::<aquifer_events::DeferEvents>();
/// ```
pub struct DeferEvents(PhantomData<*const ()>);

#[inline]
pub fn defer_events() -> DeferEvents {
    defer_events_if(ask)
}

/// As [`defer_events`], under a lock: the subscriber is not asked, and gets no `DEBUG` event.
#[inline]
pub fn defer_events_under_lock() -> DeferEvents {
    defer_events_if(|| false)
}

fn defer_events_if(debug_enabled: fn() -> bool) -> DeferEvents {
    if LEVEL > 0 {
        let _ = THREAD.try_with(|thread| {
            if thread.guards.get() == 0 {
                thread.debug_enabled.set(LEVEL >= 4 && debug_enabled());
            }
            thread.guards.set(thread.guards.get() + 1);
        });
    }
    DeferEvents(PhantomData)
}

impl Drop for DeferEvents {
    fn drop(&mut self) {
        if LEVEL == 0 {
            return;
        }
        let deferred = THREAD.try_with(|thread| {
            thread.guards.set(thread.guards.get().saturating_sub(1));
            // Most guards see no event.
            if thread.guards.get() > 0 || thread.deferred.borrow().is_empty() {
                return None;
            }
            let deferred = thread.deferred.replace(ManuallyDrop::new(Vec::new()));
            Some(ManuallyDrop::into_inner(deferred))
        });
        if let Ok(Some(deferred)) = deferred {
            deferred.into_iter().for_each(|event| event());
        }
    }
}

#[cfg(test)]
mod tests;
