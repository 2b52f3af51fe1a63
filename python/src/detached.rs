//! Values whose end runs detached from the interpreter.

use crate::interpreter::{detach, try_attach};
use std::ops::Deref;

/// A value whose drop may wait for the driver, or for a lock that a thread has which needs the interpreter. No lock that an
/// attached thread takes is held where it ends.
pub(crate) struct Detached<T: Send>(Option<T>);

impl<T: Send> Detached<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T: Send> Deref for Detached<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().unwrap_or_else(|| unreachable!("it is there until its drop"))
    }
}

impl<T: Send> Drop for Detached<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        // Without an interpreter it is dropped as the closure is.
        try_attach(|py| detach(py, || drop(value)));
    }
}
