//! Which allocations a capture takes.
//!
//! | scope | it takes | an allocation that it does not take |
//! |---|---|---|
//! | [`Scope::AllStreams`] | all of the stack: no other capture is active beside it | - |
//! | [`Scope::Streams`] | those on the streams that it names, which stay open until its end | is warm, as ever |
//! | [`Scope::Filtered`] | those for which a filter says so, which is asked each time | goes the slow way |

use crate::open_streams::StreamsOfCapture;
use crate::status::Result;
use aquifer_rs::Stream;
use parking_lot::RwLock;
use std::cell::Cell;
use std::sync::Arc;

/// Whether a capture takes an allocation of the calling thread, on a stream by the driver's handle. The answer may
/// differ from thread to thread and from call to call. Threads ask at once.
pub(crate) type Filter = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// Which allocations a capture takes.
pub(crate) enum Scope {
    AllStreams,
    Streams(StreamsOfCapture),
    Filtered(Arc<Asked>),
}

impl Scope {
    /// # Errors
    ///
    /// Where one of the streams is closed.
    pub(crate) fn of_streams(numbers: &[u32]) -> Result<Self> {
        StreamsOfCapture::new(numbers).map(Self::Streams)
    }

    pub(crate) fn filtered(filter: Filter) -> Self {
        Self::Filtered(Arc::new(Asked(RwLock::new(Some(filter)))))
    }

    /// Whether it takes all allocations on a stream, without being asked each time.
    pub(crate) fn names(&self, stream: u32) -> bool {
        match self {
            Self::AllStreams => true,
            Self::Streams(streams) => streams.has(stream),
            Self::Filtered(_) => false,
        }
    }

    /// The streams that it names.
    pub(crate) fn streams(&self) -> &[u32] {
        if let Self::Streams(streams) = self { streams.numbers() } else { &[] }
    }

    pub(crate) fn filter(&self) -> Option<&Arc<Asked>> {
        if let Self::Filtered(asked) = self { Some(asked) } else { None }
    }

    /// The end: no thread is in its filter after this, which is gone. In a filter, as of a stack that one releases,
    /// that would wait for itself: it goes when all have returned. The caller has no lock.
    pub(crate) fn end(self) {
        if let Self::Filtered(asked) = self
            && !is_in_filter()
        {
            let ended = asked.0.write().take();
            // Not under the lock: it is code of the program.
            drop(ended);
        }
    }
}

/// A filter, until its capture ends.
///
/// A call of it has the lock shared, and the end alone takes it exclusively. So the end waits for the calls that are
/// under way, and nothing else does: the program may destroy what the filter reads when the end has returned.
pub(crate) struct Asked(RwLock<Option<Filter>>);

thread_local! {
    static IS_IN_FILTER: Cell<bool> = const { Cell::new(false) };
}

/// Whether a filter has called the library.
pub(crate) fn is_in_filter() -> bool {
    IS_IN_FILTER.get()
}

impl Asked {
    /// Whether the capture takes an allocation on a stream. Not those of the filter itself, which is not asked again.
    ///
    /// # Errors
    ///
    /// Where the driver does not say whether the stream is in capture. The filter is not asked then: PyTorch's asks the
    /// driver as well, and throws what it answers, which ends the process.
    pub(crate) fn takes(&self, stream: &Stream) -> Result<bool> {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                IS_IN_FILTER.set(false);
            }
        }
        if is_in_filter() {
            return Ok(false);
        }
        let is_default = *stream == stream.device().default_stream();
        // CUDA's own handle of the default stream is null. Asked for, others may begin a capture on a stream.
        let handle = if is_default { 0 } else { stream.handle() };
        // The default stream is never in capture. It counts as such where work on it would join one, and there the
        // driver refuses the question that PyTorch's filter asks.
        if stream.is_capturing()? && is_default {
            return Ok(false);
        }
        let filter = self.0.read();
        // `None`: the capture has ended meanwhile.
        let Some(filter) = &*filter else { return Ok(false) };
        IS_IN_FILTER.set(true);
        let _leave = Leave;
        Ok(filter(handle))
    }
}
