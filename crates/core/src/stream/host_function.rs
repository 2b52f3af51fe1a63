//! Functions of the program that run on the host in the order of a stream.
//!
//! # State table of a launched function
//!
//! | state | held by | becomes |
//! | --- | --- | --- |
//! | waiting | `Launched::function`, whose handle the driver has | taken, by the first of a call and a refused launch |
//! | taken | the driver's thread | called, where the work before it is done; dropped, where that failed |
//! | given back | the caller of `launch_host_fn` | |

use super::deferred;
use super::handle::Stream;
use super::host_panics::HostPanics;
use crate::debug_log::event;
use crate::driver::{CallSite, ErrorContext, HostFunction, StreamOutcome};
use crate::error::{Refused, Result, catch_panic_text};
use crate::sync::Arc;
use crate::sync::trusted::Mutex;
use std::fmt;

/// A function that a stream is to call.
struct Launched<F> {
    function: Mutex<Option<F>>,
    panics: Arc<HostPanics>,
    /// The number of the stream.
    stream: u64,
}

impl<F> Launched<F> {
    fn take(&self) -> Option<F> {
        self.function.lock().take()
    }
}

impl<F: FnOnce() + Send> HostFunction for Launched<F> {
    fn call(&self, outcome: StreamOutcome) {
        // The lock is free again when the function runs.
        let Some(function) = self.take() else { return };
        let stream = self.stream;
        let called = catch_panic_text(|| match outcome {
            StreamOutcome::Done => function(),
            StreamOutcome::Failed => drop(function),
        });
        if outcome == StreamOutcome::Failed {
            event!(warn, stream, "a host function was dropped: the work before it failed");
        }
        if let Err(text) = called {
            let text = text.unwrap_or_else(|| String::from("with no text"));
            event!(error, stream, panic = %text, "a host function panicked");
            self.panics.add(text);
        }
    }
}

impl<F> fmt::Debug for Launched<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launched").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Stream {
    /// Has `function` called on the host when the stream is done with all that it was given so far. What the stream is given
    /// after this waits for the function's end. The call itself returns at once. CUDA calls this `cuLaunchHostFunc`.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    /// use std::sync::mpsc;
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let vec = DeviceVec::from_slice(&stream, &[1_u32, 2, 3])?;
    /// let download = stream.download(vec, vec![0; 3])?;
    ///
    /// let (sender, receiver) = mpsc::channel();
    /// stream.launch_host_fn(move || {
    ///     let _ = sender.send("the copy is done");
    /// })?;
    /// # stream.synchronize()?;
    /// // On another thread, which has no stream and waits for no device:
    /// assert_eq!(receiver.recv().unwrap(), "the copy is done");
    /// let (numbers, _vec) = download.wait()?;
    /// assert_eq!(numbers, [1, 2, 3]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # What the function may do
    ///
    /// It runs on a thread of the driver's, and holds up its stream, maybe other streams, too. It sends, stores, wakes and
    /// returns. It may take a lock that no thread has over a call of this crate or of CUDA: such a call may wait for the
    /// stream, and the stream for the function.
    ///
    /// CUDA may not be called there. Each call of this crate that would reach the driver is refused with
    /// [`ErrorKind::NotPermitted`](crate::ErrorKind::NotPermitted), before it takes a lock. Statistics of a pool are zero
    /// there. Calls of cudarc and of other libraries are refused by the driver, or not at all.
    ///
    /// What the function drops, or owns, is freed by a later call on a thread of the program: vectors, graphs, transfers,
    /// streams, pools, and page-locked memory. The guide's page `tasks` lists the calls that look for it.
    /// New memory of [`PinnedAlloc`](crate::PinnedAlloc) is ordinary memory there, unless the thread had some at hand. Other
    /// allocators refuse. A transfer that is waited for there gives no buffers back. It stores none of these in a thread local,
    /// which the driver's thread would drop when it ends.
    ///
    /// # Panics of the function
    ///
    /// They end at the driver's call. The next [`synchronize`](Self::synchronize) or
    /// [`synchronize_async`](Self::synchronize_async) of the stream, or [`Device::synchronize`](crate::Device::synchronize),
    /// returns [`ErrorKind::Panicked`](crate::ErrorKind::Panicked) with the first one's text. A wait for an event or a
    /// transfer does not. An error event of `tracing` has each.
    ///
    /// # A lost context
    ///
    /// If the work before it fails, the function is not called. It is dropped, on the driver's thread, so that the other end
    /// of a channel that it owns hears of it. For that the launch is `cuStreamAddCallback`, since `cuLaunchHostFunc` drops
    /// nothing.
    ///
    /// # Errors
    ///
    /// Each gives the function back.
    ///
    /// - [`ErrorKind::Capture`](crate::ErrorKind::Capture) while the stream is in capture. Each launch of the graph would
    ///   call the function, which can be called once.
    /// - [`ErrorKind::NotPermitted`](crate::ErrorKind::NotPermitted) inside of a host function.
    /// - The errors of the driver call.
    #[track_caller]
    pub fn launch_host_fn<F: FnOnce() + Send + 'static>(
        &self,
        function: F,
    ) -> Result<(), Refused<F>> {
        let _site = CallSite::enter();
        let launched = Arc::new(Launched {
            function: Mutex::new(Some(function)),
            panics: self.host_panics().clone(),
            stream: self.id(),
        });
        let enqueued = self.enqueue_host_function(launched.clone());
        deferred::collect();
        match enqueued.map_err(|error| (error, launched.take())) {
            Err((error, Some(function))) => Err(Refused::new(error, function)),
            // A driver that failed the call and has the function called all the same.
            Ok(()) | Err((_, None)) => Ok(()),
        }
    }

    fn enqueue_host_function(&self, function: Arc<dyn HostFunction>) -> Result<()> {
        let call = self.begin_call()?;
        call.refuse_capture("a host function, which each launch of the graph would call,")?;
        let launched = self.device().driver().launch_host_function(function, call.raw());
        launched.with_context(|| format!("launching a host function on {self}"))
    }
}
