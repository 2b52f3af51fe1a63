//! The order between a vector's home and streams of NVIDIA's crates, without a wait of the host.
//!
//! A stream of Aquifer's own stands between the two. Aquifer's calls order it with the home, within the home's gate. Theirs
//! order it with their streams. So no call of theirs names a home, which a capture may have, and no stream of theirs has
//! to outlive a vector.
//!
//! | order | calls |
//! | --- | --- |
//! | their stream after home | `between.wait_for(home)`, `theirs.join(between)` |
//! | home after their stream | `between.join(theirs)`, `home.wait_for(between)` |
//! | home after all of the context | `cuCtxRecordEvent`, `between.wait(event)`, `home.wait_for(between)` |
//!
//! A stream between is used by one order at a time. One that still waits is not taken again while there are few, since
//! the next order would wait for that one, too.

use crate::context::context;
use crate::error::theirs;
use crate::stream;
use aquifer::{Device, Result, Stream};
use cuda_core::{IntoResult, sys};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Of each device, as many streams between are made before a waiting one is taken again.
const FEW: usize = 32;

/// The streams between that no order uses, the one that was used longest ago first.
static IDLE: Mutex<VecDeque<Between>> = Mutex::new(VecDeque::new());

/// A stream of Aquifer's own, by the names of both.
pub(crate) struct Between {
    ours: Stream,
    theirs: Arc<cuda_core::Stream>,
}

impl Between {
    /// One that waits for nothing, or the one that was used longest ago.
    pub(crate) fn take(device: &Device) -> Result<Self> {
        let (first, known) = {
            let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
            let is_here = |it: &Between| it.ours.device() == device;
            let known = idle.iter().filter(|it| is_here(it)).count();
            (idle.iter().position(is_here).and_then(|at| idle.remove(at)), known)
        };
        match first {
            Some(first) if known >= FEW || first.is_done() => return Ok(first),
            Some(busy) => busy.give_back(),
            None => {}
        }
        let ours = device.new_stream()?;
        // Not the context of a caller, which may be borrowed for less time than the stream is kept.
        Ok(Self { theirs: stream::stream(&ours, &context(device)?)?, ours })
    }

    fn is_done(&self) -> bool {
        self.theirs.query() == Ok(true)
    }

    /// For the next order.
    pub(crate) fn give_back(self) {
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).push_back(self);
    }

    /// The stream as NVIDIA's crates name it.
    pub(crate) fn theirs(&self) -> &cuda_core::Stream {
        &self.theirs
    }

    /// Orders `stream` after all that `home` was given.
    pub(crate) fn order_theirs(&self, home: &Stream, stream: &cuda_core::Stream) -> Result<()> {
        self.wait_for(home)?;
        stream.join(&self.theirs).map_err(|error| {
            theirs(format!("ordering a stream of theirs after {home}"), "cuStreamWaitEvent", error)
        })
    }

    /// Orders this stream alone after all that `home` was given.
    pub(crate) fn wait_for(&self, home: &Stream) -> Result<()> {
        self.ours.wait_for(home)
    }

    /// Orders `home` after all that `stream` was given.
    pub(crate) fn order_home(&self, home: &Stream, stream: &cuda_core::Stream) -> Result<()> {
        self.theirs.join(stream).map_err(|error| {
            theirs(format!("ordering {home} after a stream of theirs"), "cuStreamWaitEvent", error)
        })?;
        home.wait_for(&self.ours)
    }

    /// Orders `home` after all that the context was given, on any stream. A driver before CUDA 12.5 has no event for that,
    /// so the host waits.
    pub(crate) fn order_home_after_all(&self, home: &Stream) -> Result<()> {
        let context = self.theirs.context();
        let failed = |call| {
            move |error| theirs(format!("ordering {home} after all of its context"), call, error)
        };
        if !home.device().properties().context_events {
            return context.synchronize().map_err(failed("cuCtxSynchronize"));
        }
        let event = context.new_event_with_flags(None).map_err(failed("cuEventCreate"))?;
        // SAFETY: both handles live, and the event is of this context, which is current since it was made.
        unsafe { sys::cuCtxRecordEvent(context.cu_ctx(), event.cu_event()) }
            .result()
            .map_err(failed("cuCtxRecordEvent"))?;
        self.theirs.wait(&event).map_err(failed("cuStreamWaitEvent"))?;
        home.wait_for(&self.ours)
    }
}
