//! Wakers that panic, and an executor of one future.

use aquifer::{DeviceVec, Transfer, pinned::HostRead, transfer::TransferError};
use std::future::Future;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

type Ended<B> = Result<(B, DeviceVec<<B as HostRead>::Item>), TransferError<B>>;

/// Which of a waker's functions panics.
#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    Clone,
    Drop,
    Wake,
    None,
}

pub(crate) const COUNT: usize = 4;
static WRONG: [Wrong; COUNT] = [Wrong::Clone, Wrong::Drop, Wrong::Wake, Wrong::None];
static FUNCTIONS: RawWakerVTable = RawWakerVTable::new(
    |data| {
        panic_in(data, Wrong::Clone);
        RawWaker::new(data, &FUNCTIONS)
    },
    |data| {
        panic_in(data, Wrong::Wake);
        panic_in(data, Wrong::Drop);
    },
    |data| panic_in(data, Wrong::Wake),
    |data| panic_in(data, Wrong::Drop),
);

fn panic_in(data: *const (), function: Wrong) {
    // SAFETY: every waker's data is an element of `WRONG`.
    if unsafe { *data.cast::<Wrong>() } == function {
        resume_unwind(Box::new("a waker's panic"));
    }
}

/// Polls with a waker that panics somewhere: `None` if the poll panicked.
pub(crate) fn poll_wrongly<B: HostRead>(
    transfer: &mut Transfer<B>,
    waker: usize,
) -> Option<Option<Ended<B>>> {
    let data = (&raw const WRONG[waker]).cast();
    // SAFETY: the data is a static, which the functions only read. This handle is not dropped.
    let waker = ManuallyDrop::new(unsafe { Waker::from_raw(RawWaker::new(data, &FUNCTIONS)) });
    let poll = || Pin::new(transfer).poll(&mut Context::from_waker(&waker));
    match catch_unwind(AssertUnwindSafe(poll)).ok()? {
        Poll::Ready(ended) => Some(Some(ended)),
        Poll::Pending => Some(None),
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls until it is ready. An old waker that panics when it is dropped may cost a poll.
pub(crate) fn block_on<B: HostRead>(transfer: &mut Transfer<B>) -> Ended<B> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        let poll = || Pin::new(&mut *transfer).poll(&mut Context::from_waker(&waker));
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Ready(ended)) => return ended,
            Ok(Poll::Pending) => std::thread::park_timeout(Duration::from_secs(1)),
            Err(_) => {}
        }
    }
}
