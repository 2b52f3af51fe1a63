//! What a soak asks of its environment, and the end of a process whose program hangs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A program that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// The number that a variable of the environment has.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, which is no number")))
}

/// The program that runs, and since when.
type Running = Option<(u64, Instant)>;

/// Ends the process if a program hangs, with a report of its seed.
pub(crate) struct Watch(Arc<Mutex<Running>>);

impl Watch {
    pub(crate) fn start(report: impl Fn(u64, &str) -> String + Send + 'static) -> Self {
        let current = Arc::new(Mutex::new(Running::None));
        let watched = Arc::downgrade(&current);
        std::thread::spawn(move || {
            while let Some(current) = watched.upgrade() {
                let running = *current.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((seed, since)) = running
                    && since.elapsed() > LIMIT
                {
                    eprintln!("{}", report(seed, "it hangs"));
                    std::process::abort();
                }
                drop(current);
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        Self(current)
    }

    pub(crate) fn program(&self, seed: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((seed, Instant::now()));
    }
}
