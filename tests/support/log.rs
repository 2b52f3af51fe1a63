//! Listens to what the crate says through `tracing`.

#![allow(dead_code, unreachable_pub, reason = "each test target uses a part of it")]

use std::fmt::Write;
use std::sync::{Arc, Mutex, OnceLock};
use tracing::field::{Field, Visit};
use tracing::{Dispatch, Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// What was said at `WARN` and above: the level, and the message with its fields.
#[derive(Clone, Debug, Default)]
pub struct Log {
    lines: Arc<Mutex<Vec<(Level, String)>>>,
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if *event.metadata().level() > Level::WARN {
            return;
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.lines.lock().unwrap().push((*event.metadata().level(), text.0));
    }
}

/// Keeps every event wanted from now on. `tracing` notes whether anybody wants an event when it is
/// first met; one that another thread meets while no subscriber lives could be noted as unwanted just
/// after the subscriber of this thread was asked.
pub fn keep_wanted() {
    static KEPT: OnceLock<Dispatch> = OnceLock::new();
    KEPT.get_or_init(|| Dispatch::new(tracing_subscriber::registry()));
}

impl Log {
    /// Runs `body`; gives what it said on this thread.
    pub fn of<R>(body: impl FnOnce() -> R) -> (R, Self) {
        keep_wanted();
        let log = Self::default();
        let subscriber = tracing_subscriber::registry().with(log.clone());
        let result = tracing::subscriber::with_default(subscriber, body);
        (result, log)
    }

    /// How many lines of this level hold `text`.
    pub fn count(&self, level: Level, text: &str) -> usize {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|(of, line)| *of == level && line.contains(text)).count()
    }

    /// All lines.
    pub fn lines(&self) -> Vec<(Level, String)> {
        self.lines.lock().unwrap().clone()
    }
}
