//! One current resource, of a device or of page-locked memory.

#![allow(unreachable_pub, reason = "the models of loom_tests reach it through `models`")]

use crate::impls::debug_struct;
use crate::sync::{Arc, Mutex, Weak};

/// The resource that was set, or else a default that is made at the first use.
///
/// # State table
///
/// The lock over `CurrentState` guards its fields. No lock is held while a default is made, and none while a resource
/// is dropped, since both may use this again.
///
/// | `set` | `default` | [`get`](Self::get) returns | next state |
/// |---|---|---|---|
/// | `Some` | any | `set` | the same |
/// | `None` | `None`, or of a dropped one | what `make` made | `default`, and `kept` if `keep_default` |
/// | `None` | of a live one | `default` | the same |
///
/// [`replace`](Self::replace) writes `set` alone.
///
/// - INV-1. There is one default at a time. The second of two threads that make one drops its own and returns that of
///   the first.
/// - INV-2. Each resource that was set is returned by exactly one `replace`.
pub struct CurrentResource<R: ?Sized, D: ?Sized = R> {
    state: Mutex<CurrentState<R, D>>,
    /// Converts the default into a resource that may be set in its place.
    as_current: fn(Arc<D>) -> Arc<R>,
}

struct CurrentState<R: ?Sized, D: ?Sized> {
    set: Option<Arc<R>>,
    default: Option<Weak<D>>,
    /// The default, if it stays when its last user drops it.
    kept: Option<Arc<D>>,
}

impl<R: ?Sized, D: ?Sized> CurrentState<R, D> {
    fn default(&self) -> Option<Arc<D>> {
        self.default.as_ref()?.upgrade()
    }
}

debug_struct!([R: ?Sized, D: ?Sized] CurrentResource<R, D> { .. });

impl<R: ?Sized> CurrentResource<R> {
    /// A value with no resource set and no default made.
    pub fn new() -> Self {
        Self::with_default(|default| default)
    }
}

impl<R: ?Sized, D: ?Sized> CurrentResource<R, D> {
    /// Like [`new`](Self::new), with a default of a type of its own.
    pub fn with_default(as_current: fn(Arc<D>) -> Arc<R>) -> Self {
        let state = CurrentState { set: None, default: None, kept: None };
        Self { state: Mutex::new(state), as_current }
    }

    /// The current resource. Calls `make` for the default if there is none. `keep_default` says
    /// whether the default stays when its last user drops it.
    pub fn get<E>(
        &self,
        keep_default: bool,
        make: impl FnOnce() -> Result<Arc<D>, E>,
    ) -> Result<Arc<R>, E> {
        match self.set() {
            Some(resource) => Ok(resource),
            None => self.get_default(keep_default, make).map(self.as_current),
        }
    }

    /// The resource that was set.
    pub fn set(&self) -> Option<Arc<R>> {
        self.state.lock().set.clone()
    }

    /// The default, whether or not a resource is set.
    pub fn get_default<E>(
        &self,
        keep_default: bool,
        make: impl FnOnce() -> Result<Arc<D>, E>,
    ) -> Result<Arc<D>, E> {
        let default = self.state.lock().default();
        if let Some(default) = default {
            return Ok(default);
        }
        let made = make()?;
        let mut state = self.state.lock();
        if let Some(default) = state.default() {
            // INV-1. `made` is dropped after the lock: its drop may ask for the current resource.
            drop(state);
            return Ok(default);
        }
        state.default = Some(Arc::downgrade(&made));
        state.kept = keep_default.then(|| made.clone());
        Ok(made)
    }

    /// Whether the current resource stays when its last user drops it. Another thread may change
    /// that at any time.
    pub fn is_kept(&self) -> bool {
        let state = self.state.lock();
        state.set.is_some() || state.kept.is_some()
    }

    /// Whether no resource is set and no default is alive. Takes no reference to the default, which
    /// might turn out to be the last.
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.set.is_none()
            && state.default.as_ref().is_none_or(|default| default.strong_count() == 0)
    }

    /// Sets `resource`, or unsets with `None`. Returns the resource that was set before.
    pub fn replace(&self, resource: Option<Arc<R>>) -> Option<Arc<R>> {
        std::mem::replace(&mut self.state.lock().set, resource)
    }
}
