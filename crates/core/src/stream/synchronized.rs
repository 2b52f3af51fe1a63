//! A wait for a stream or an event that blocks no thread.

use super::deferred;
use super::handle::Stream;
use super::poller::Watched;
use crate::driver::CallSite;
use crate::driver::ErrorContext;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::impls::debug_struct;
use crate::sync::Arc;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A wait for a point of a stream that blocks no thread. One thread of the process asks the device, from the first
/// future that has to wait on.
///
/// It comes from [`Stream::synchronize_async`], or from an [`Event`] that is awaited. It may be dropped at any time,
/// which changes nothing for the stream. Polled after its end, it repeats its result.
///
/// ```
/// use aquifer::{Device, DeviceVec, Result};
/// // `block_on` is an executor's, such as `futures::executor::block_on`.
/// # use std::{future::Future, pin::pin, task::{Context, Poll, Waker}};
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     let mut future = pin!(future);
/// #     loop {
/// #         match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
/// #             Poll::Ready(done) => return done,
/// #             Poll::Pending => std::thread::yield_now(),
/// #         }
/// #     }
/// # }
///
/// async fn sum() -> Result<u32> {
///     let stream = Device::detect_or_simulate()?.new_stream()?;
///     let mut vec = DeviceVec::zeroed(&stream, 3)?;
///     vec.fill(2_u32)?;
///     stream.record()?.await?; // what the stream was given before the event
///     stream.synchronize_async().await?; // what it was given so far
///     Ok(vec.to_vec()?.iter().sum())
/// }
///
/// assert_eq!(block_on(sum())?, 6);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[must_use = "a future does nothing unless it is polled"]
pub struct Synchronized {
    /// The event to wait for, or the reason why there is none.
    event: Result<Arc<Watched>>,
    /// The stream whose host functions' panics it reports.
    stream: Option<Stream>,
}

impl Synchronized {
    fn new(event: Result<Event>, stream: Option<Stream>) -> Self {
        Self { event: event.map(Watched::new), stream }
    }
}

impl Future for Synchronized {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let watched = match &self.event {
            Ok(watched) => watched,
            Err(error) => return Poll::Ready(Err(Error::clone(error))),
        };
        let Poll::Ready(asked) = watched.poll(context) else { return Poll::Pending };
        let ended = watched.event().end(asked);
        deferred::collect_all();
        // Taken: it is told once by this, and then again from `event`.
        let stream = self.stream.take();
        let told = stream.map_or(Ok(()), |stream| stream.host_panics().report(&stream));
        if let (Ok(()), Err(panic)) = (&ended, &told) {
            self.event = Err(panic.clone());
        }
        Poll::Ready(ended.and(told))
    }
}

debug_struct!(Synchronized { .. });

/// The future resolves when the device has passed the event.
///
/// # Errors
///
/// The errors of [`Event::synchronize`].
impl IntoFuture for Event {
    type Output = Result<()>;
    type IntoFuture = Synchronized;

    fn into_future(self) -> Synchronized {
        Synchronized::new(Ok(self), None)
    }
}

impl Stream {
    /// Returns a future that resolves when the stream has done all it was given before this call. It is
    /// [`synchronize`](Self::synchronize) for tasks, and blocks no thread.
    ///
    /// # Errors
    ///
    /// The future has the errors of [`synchronize`](Self::synchronize), and
    /// [`ErrorKind::Capture`](crate::ErrorKind::Capture) while a capture on another thread has the stream.
    #[track_caller]
    pub fn synchronize_async(&self) -> Synchronized {
        let _site = CallSite::enter();
        Synchronized::new(self.record_to_wait(), Some(self.clone()))
    }

    fn record_to_wait(&self) -> Result<Event> {
        let call = self.begin_call()?;
        call.refuse_capture("waiting for the stream")?;
        call.record().or_else(|error| {
            // As `synchronize`: a report that was not taken goes before the loss.
            if error.kind() == ErrorKind::ContextLost {
                self.device().driver().check().with_context(|| format!("waiting for {self}"))?;
            }
            Err(error)
        })
    }
}
