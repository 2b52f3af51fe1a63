//! The one thread that asks the device on behalf of futures.

use crate::error::{Result, catch_panic};
use crate::event::Event;
use crate::sync::trusted::channel::{self, Sender};
use crate::sync::trusted::{AtomicBool, Mutex, Ordering};
use crate::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The least time that the poller sleeps between two rounds of questions.
const ROUND: Duration = Duration::from_micros(50);

/// The sleep as a multiple of the time that its questions took, so that a thousand futures do not keep a core busy.
const SLEEP_PER_ROUND: u32 = 4;

/// The longest sleep, however long the driver kept the poller. A question may wait for another thread's call.
const LONGEST: Duration = Duration::from_millis(2);

/// An event that a future waits for, and the waker to call.
pub(crate) struct Watched {
    event: Arc<Event>,
    waker: Mutex<Option<Waker>>,
    /// Whether the poller has it on its list.
    listed: AtomicBool,
}

impl Watched {
    pub(crate) fn new(event: Event) -> Arc<Self> {
        let waker = Mutex::new(None);
        Arc::new(Self { event: Arc::new(event), waker, listed: AtomicBool::new(false) })
    }

    pub(crate) fn event(&self) -> &Arc<Event> {
        &self.event
    }

    /// The answer of a future that ends with the event. It is pending as long as the event is, and ready with any other
    /// answer of the device.
    pub(crate) fn poll(self: &Arc<Self>, context: &Context<'_>) -> Poll<Result<bool>> {
        self.set_waker(context.waker());
        match self.event.is_complete() {
            Ok(false) => {
                self.watch();
                Poll::Pending
            }
            asked => Poll::Ready(asked),
        }
    }

    /// Sets the waker to call from now on. Call it before the event is asked. A poller that finds the event passed a
    /// moment later must know the waker of a future that found it pending.
    fn set_waker(&self, waker: &Waker) {
        let new = waker.clone();
        let old = self.waker.lock().replace(new);
        // After the lock: a waker's drop is code of a user.
        catch_panic(|| drop(old));
    }

    /// Makes the poller watch the event, once at a time however often the future is polled.
    fn watch(self: &Arc<Self>) {
        // AcqRel: pairs with the poller's Release when it lets go, so that of the two one sees the
        // other: it wakes the newest waker, or it is sent the event again.
        if self.listed.swap(true, Ordering::AcqRel) {
            return;
        }
        let sent = poller().is_some_and(|sender| sender.send(self.clone()).is_ok());
        if !sent {
            // Without a thread the future asks again at once: busy, and right.
            self.wake();
        }
    }

    /// Wakes the future. Takes the event off the list first, so that a future that is polled from here on lists it
    /// again.
    fn wake(&self) {
        self.listed.store(false, Ordering::Release);
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            // A panic must not end the poller.
            catch_panic(|| waker.wake());
        }
    }
}

impl Drop for Watched {
    /// Runs on any thread. The poller has a handle, and so does the transfer, which may be about to return its buffers.
    fn drop(&mut self) {
        let waker = self.waker.get_mut().take();
        catch_panic(|| drop(waker));
    }
}

/// The poller's queue. The first future that has to wait starts the poller. `None` if there is no thread to be had.
fn poller() -> Option<&'static Sender<Arc<Watched>>> {
    static POLLER: OnceLock<Option<Sender<Arc<Watched>>>> = OnceLock::new();
    POLLER
        .get_or_init(|| {
            let (sender, receiver) = channel::unbounded();
            let thread = std::thread::Builder::new().name("aquifer-poller".into());
            thread.spawn(move || run(&receiver)).ok().map(|_| sender)
        })
        .as_ref()
}

fn run(receiver: &channel::Receiver<Arc<Watched>>) {
    let mut list: Vec<Arc<Watched>> = Vec::new();
    let mut sleep = ROUND;
    loop {
        if list.is_empty() {
            match receiver.recv() {
                Ok(watched) => list.push(watched),
                Err(_) => return,
            }
        }
        // Each future has just asked for itself.
        std::thread::sleep(sleep);
        list.extend(receiver.try_iter());
        let started = Instant::now();
        // A future that was dropped waits for nothing any more. An error wakes too: the future finds it, and
        // gives it to its caller.
        list.retain(|watched| Arc::strong_count(watched) > 1);
        let is_pending = |watched: &Arc<Watched>| matches!(watched.event.is_complete(), Ok(false));
        let (pending, ended): (Vec<_>, Vec<_>) = list.drain(..).partition(is_pending);
        list = pending;
        sleep = (started.elapsed() * SLEEP_PER_ROUND).clamp(ROUND, LONGEST);
        ended.iter().for_each(|watched| watched.wake());
    }
}
