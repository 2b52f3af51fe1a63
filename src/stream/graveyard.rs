//! Buffers whose owner is gone while the device may still use them.
//!
//! A transfer that is dropped early leaves its buffers here with the event that ends it, so that
//! nobody blocks. Later calls of the crate, on any stream, free what the device has passed. There is
//! one graveyard for the process: a buffer holds its stream, so one inside the stream would keep
//! both alive for good.

#![allow(unreachable_pub, reason = "the models of loom_tests reach it through `models`")]

use crate::debug_log::{event, later};
use crate::error::ErrorKind;
use crate::event::Event;
use crate::sync::{Arc, AtomicUsize, LazyLock, Mutex, Ordering};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Graves that one call looks at, at most, so that a long queue costs each caller little.
const LOOKS: usize = 16;

/// Things that wait for their end, each of type `G`.
#[derive(Debug)]
pub struct Graveyard<G> {
    graves: Mutex<VecDeque<G>>,
    count: AtomicUsize,
}

/// What can be said of a grave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// The device is past all that used the buffers.
    Yes,
    /// Not yet, or it cannot be asked now.
    NotYet,
    /// Nobody will ever know.
    Never,
}

impl<G> Default for Graveyard<G> {
    fn default() -> Self {
        Self { graves: Mutex::new(VecDeque::new()), count: AtomicUsize::new(0) }
    }
}

impl<G> Graveyard<G> {
    /// Whether nothing is buried, without a lock.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Graves that are not given out, as of some moment during the call; without a lock.
    pub fn len(&self) -> usize {
        // Relaxed: a hint; the lock orders the graves themselves.
        self.count.load(Ordering::Relaxed)
    }

    /// Takes buffers in.
    pub fn bury(&self, grave: G) {
        let mut graves = self.graves.lock();
        graves.push_back(grave);
        #[cfg(aquifer_fault = "grave_counted_late")]
        drop(graves);
        // Still under the lock: whoever takes the grave out finds it counted.
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes out some of those that the device has passed, for the caller to drop: never under the
    /// lock, since their drops may bury more. Each grave is asked by one thread at a time.
    pub fn reap(&self, passed: impl Fn(&G) -> Passed) -> Reaped<G> {
        let mut reaped = Reaped { free: Vec::new(), lost: Vec::new() };
        // No more looks than graves: one that is put back is not asked again in the same call.
        for _ in 0..self.len().min(LOOKS) {
            let Some(grave) = self.graves.lock().pop_front() else { break };
            match passed(&grave) {
                Passed::Yes => reaped.free.push(grave),
                #[cfg(aquifer_fault = "reap_unpassed")]
                Passed::NotYet => reaped.free.push(grave),
                #[cfg(aquifer_fault = "grave_lost")]
                Passed::NotYet => {}
                #[cfg(not(any(aquifer_fault = "reap_unpassed", aquifer_fault = "grave_lost")))]
                Passed::NotYet => self.graves.lock().push_back(grave),
                Passed::Never => reaped.lost.push(grave),
            }
        }
        self.count.fetch_sub(reaped.free.len() + reaped.lost.len(), Ordering::Relaxed);
        reaped
    }
}

/// What [`Graveyard::reap`] took out.
#[derive(Debug)]
pub struct Reaped<G> {
    /// To be dropped.
    pub free: Vec<G>,
    /// To be leaked.
    pub lost: Vec<G>,
}

struct Grave {
    /// Without one, what is buried waits for nothing but a later call.
    event: Option<Arc<Event>>,
    /// Leaked unless it is dropped on purpose: a panic on the way must free nothing that the device
    /// may still use.
    buffers: ManuallyDrop<Box<dyn Send>>,
}

static GRAVES: LazyLock<Graveyard<Grave>> = LazyLock::new(Graveyard::default);

/// Blocks alone, whose drops run nobody else's code: a pool that has locks of its own in hand may ask
/// its upstream, and that may look here.
static BLOCKS: LazyLock<Graveyard<Grave>> = LazyLock::new(Graveyard::default);

/// Keeps `buffers` until the device has passed `event`; without one, until the crate next looks.
pub(crate) fn bury(event: Option<Arc<Event>>, buffers: Box<dyn Send>) {
    GRAVES.bury(Grave { event, buffers: ManuallyDrop::new(buffers) });
}

/// As [`bury`], what calls of a driver free and nothing else.
pub(crate) fn bury_block(event: Option<Arc<Event>>, block: Box<dyn Send>) {
    BLOCKS.bury(Grave { event, buffers: ManuallyDrop::new(block) });
}

/// Frees what the devices have passed, without waiting.
pub(crate) fn reap() {
    visit(&BLOCKS);
    visit(&GRAVES);
}

/// As [`reap`], of blocks alone.
pub(crate) fn reap_blocks() {
    visit(&BLOCKS);
}

fn visit(graves: &Graveyard<Grave>) {
    if graves.is_empty() || crate::backend::is_forked_child() {
        return;
    }
    let reaped = graves.reap(|grave| {
        match grave.event.as_ref().map_or(Ok(true), |event| event.is_complete()) {
            Ok(true) => Passed::Yes,
            Ok(false) => Passed::NotYet,
            Err(error) if matches!(error.kind(), ErrorKind::ContextLost | ErrorKind::Forked) => {
                Passed::Never
            }
            Err(_) => Passed::NotYet,
        }
    });
    for grave in reaped.lost {
        let device = grave.event.as_ref().map(|event| event.device().to_string());
        // It may be a pool that looks here, with its locks in hand.
        later(move || {
            event!(
                error,
                device,
                "leaked the buffers of a transfer: the device can no longer say whether it is done"
            );
        });
    }
    for grave in reaped.free {
        let buffers = grave.buffers;
        let freed = catch_unwind(AssertUnwindSafe(|| drop(ManuallyDrop::into_inner(buffers))));
        if let Err(thrown) = freed {
            std::mem::forget(thrown);
            later(|| event!(error, "the buffers of a transfer panicked when they were dropped"));
        }
    }
}
