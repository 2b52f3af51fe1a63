//! The one thread that asks the device on behalf of futures.

use crate::event::Event;
use crate::sync::trusted::channel::{self, RecvTimeoutError, Sender};
use crate::sync::{Arc, OnceLock};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::time::Duration;

/// How long the poller sleeps between two rounds of questions.
const ROUND: Duration = Duration::from_micros(50);

struct Watch {
    event: Arc<Event>,
    waker: Waker,
}

/// Wakes `waker` when the device has passed `event`, or can no longer say.
pub(super) fn wake_after(event: Arc<Event>, waker: Waker) {
    let watch = Watch { event, waker };
    let unsent = match poller() {
        Some(sender) => sender.send(watch).err().map(|error| error.0),
        None => Some(watch),
    };
    // Without a thread the future asks again at once: busy, and right.
    if let Some(watch) = unsent {
        watch.waker.wake();
    }
}

/// Started by the first future that has to wait; `None` if there is no thread to be had.
fn poller() -> Option<&'static Sender<Watch>> {
    static POLLER: OnceLock<Option<Sender<Watch>>> = OnceLock::new();
    POLLER
        .get_or_init(|| {
            let (sender, receiver) = channel::unbounded::<Watch>();
            let thread = std::thread::Builder::new().name("aquifer-poller".into());
            thread.spawn(move || run(&receiver)).ok().map(|_| sender)
        })
        .as_ref()
}

fn run(receiver: &channel::Receiver<Watch>) {
    let mut watched: Vec<Watch> = Vec::new();
    loop {
        let news = if watched.is_empty() {
            receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            receiver.recv_timeout(ROUND)
        };
        match news {
            Ok(watch) => watched.push(watch),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        watched.extend(receiver.try_iter());
        // An error wakes too: the future finds it, and gives it to its caller.
        watched.retain(|watch| match watch.event.is_complete() {
            Ok(false) => true,
            Ok(true) | Err(_) => {
                // A waker that panics must not take the others' poller with it.
                let _ = catch_unwind(AssertUnwindSafe(|| watch.waker.wake_by_ref()));
                false
            }
        });
    }
}
