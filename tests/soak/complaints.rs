//! What the crate says through `tracing` as an error. A program in which no driver call was made to
//! fail gives it no reason to.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

#[derive(Clone, Default)]
pub(crate) struct Complaints(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl<S: Subscriber> Layer<S> for Complaints {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if *event.metadata().level() != Level::ERROR {
            return;
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text.0);
    }
}

impl Complaints {
    /// Listens to all threads of the process, once and for good.
    pub(crate) fn listen() -> Self {
        let complaints = Self::default();
        let subscriber = tracing_subscriber::registry().with(complaints.clone());
        tracing::subscriber::set_global_default(subscriber).expect("nobody else listens");
        complaints
    }

    pub(crate) fn clear(&self) {
        drop(self.take());
    }

    pub(crate) fn first(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).first().cloned()
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
