//! Thread locals of loom's threads, which all share one thread of the system.
//!
//! As std's: what has no destructor outlives those that have, and a destructor runs when its thread
//! is done. loom drops its own locals after a thread was joined, in an order that changes between
//! executions; so all values of a thread lie in one local of loom's, and [`drop_thread_locals`] runs their
//! destructors where the thread ends.

use std::any::Any;
use std::cell::RefCell;
use std::mem::needs_drop;
use std::rc::Rc;

/// The value's destructor has begun.
#[derive(Debug)]
pub struct Gone;

pub struct LocalKey<T: 'static> {
    init: fn() -> T,
}

struct Value {
    key: usize,
    /// `None` from the moment its destructor begins.
    value: Option<Rc<dyn Any>>,
    has_destructor: bool,
}

#[derive(Default)]
struct Values(RefCell<Vec<Value>>);

loom::thread_local! {
    static VALUES: Values = Values::default();
}

impl<T: 'static> LocalKey<T> {
    pub const fn new(init: fn() -> T) -> Self {
        Self { init }
    }

    pub fn try_with<R>(&'static self, body: impl FnOnce(&T) -> R) -> Result<R, Gone> {
        let key = std::ptr::from_ref(self).addr();
        let find = |values: &Values| {
            let values = values.0.borrow();
            values.iter().find(|value| value.key == key).map(|value| value.value.clone())
        };
        let found = match VALUES.try_with(find).map_err(|_| Gone)? {
            Some(found) => found.ok_or(Gone)?,
            None => {
                let value: Rc<dyn Any> = Rc::new((self.init)());
                let has_destructor = needs_drop::<T>();
                let entry = Value { key, value: Some(value.clone()), has_destructor };
                let add = |values: &Values| values.0.borrow_mut().push(entry);
                VALUES.try_with(add).map_err(|_| Gone)?;
                value
            }
        };
        found.downcast_ref().map(body).ok_or(Gone)
    }
}

/// Runs the destructors of the calling thread's locals, as the end of a thread does. Models call it
/// last on each thread.
pub fn drop_thread_locals() {
    let next = |values: &Values| {
        let mut values = values.0.borrow_mut();
        values.iter_mut().filter(|value| value.has_destructor).find_map(|value| value.value.take())
    };
    while let Ok(Some(value)) = VALUES.try_with(next) {
        drop(value);
    }
}

#[macro_export]
macro_rules! loom_thread_local {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $init:expr;)*) => {
        $(
            $(#[$attribute])*
            static $name: $crate::local::LocalKey<$type> =
                $crate::local::LocalKey::new(|| $init);
        )*
    };
}
pub use crate::loom_thread_local as thread_local;
