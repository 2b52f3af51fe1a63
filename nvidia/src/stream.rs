//! Streams, by the names of both.

use crate::context::{device, require_same};
use crate::error::{refused, theirs};
use aquifer::{ErrorKind, Result, Stream};
use cuda_core::{Context, IntoResult, sys};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

/// The handle that is another stream on each thread.
const PER_THREAD: usize = 2;

/// Streams of theirs by context and handle.
type Streams = HashMap<(usize, usize), Arc<cuda_core::Stream>>;

/// Those that a stream of Aquifer stands on.
static KEPT: Mutex<Option<Streams>> = Mutex::new(None);

/// Aquifer's stream, as NVIDIA's crates name it. Theirs keeps it alive, unless it is of another library
/// ([`Stream::from_handle`]), whose promise to keep it covers theirs.
///
/// Work that it is given there is in the stream's order. So a vector at home on it needs no other order.
///
/// As with [`Stream::cuda_stream`], no other thread may name it in a call while [`Stream::capture`] has it, and a
/// capture of theirs on it begins while no other thread is in a call on a pool that has the stream.
///
/// ```no_run
/// let device = aquifer::Device::detect()?;
/// let stream = device.new_stream()?;
/// let theirs = aquifer_nvidia::stream(&stream, &aquifer_nvidia::context(&device)?)?;
/// assert_eq!(aquifer_nvidia::from_stream(&theirs)?, stream);
/// # Ok::<(), aquifer::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::WrongDevice`] if the context is not that of the stream's device, and
/// [`ErrorKind::Unsupported`] on a simulated device.
pub fn stream(stream: &Stream, context: &Arc<Context>) -> Result<Arc<cuda_core::Stream>> {
    require_same(stream.device(), context)?;
    let handle = stream.handle() as *mut c_void;
    // SAFETY: the handle is of a stream of this context, which the clone keeps alive as the owner; of a foreign one, its taker has
    // promised that nothing stands on it when it goes.
    Ok(unsafe { cuda_core::Stream::borrow_with_owner(handle, context, Arc::new(stream.clone())) })
}

/// A stream of theirs, as Aquifer's. One stream always gives the same [`Stream`].
///
/// Vectors and pools remember streams for good, so **their stream is kept until the program ends**. For many short
/// streams, call [`Stream::from_handle`], and detach each before it goes.
///
/// # Errors
///
/// [`ErrorKind::InvalidArgument`] for the per-thread default stream, and the errors of
/// [`device`](crate::device) and [`Stream::from_handle`].
pub fn from_stream(theirs: &Arc<cuda_core::Stream>) -> Result<Stream> {
    require_one_stream(theirs)?;
    let device = device(theirs.context())?;
    let key = (theirs.context().cu_ctx() as usize, theirs.cu_stream() as usize);
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    // An earlier `Arc` of the handle keeps the same stream.
    kept.get_or_insert_default().entry(key).or_insert_with(|| theirs.clone());
    drop(kept);
    // SAFETY: a stream of the device's context, which is kept above and so never destroyed.
    unsafe { Stream::from_handle(&device, key.1 as u64) }
}

/// The error of a handle that is many streams.
pub(crate) fn require_one_stream(theirs: &cuda_core::Stream) -> Result<()> {
    if theirs.cu_stream() as usize != PER_THREAD {
        return Ok(());
    }
    Err(refused(
        ErrorKind::InvalidArgument,
        "the per-thread default stream was given, which is another stream on each thread".into(),
        "give a stream of Context::new_stream",
    ))
}

/// The error of a stream that is recording a graph, where an order by events would be the graph's alone.
pub(crate) fn refuse_capture(theirs: &cuda_core::Stream, what: &str) -> Result<()> {
    let failed =
        |error| self::theirs(format!("{what}: asking for a capture"), "cuStreamIsCapturing", error);
    theirs.context().bind_to_thread().map_err(failed)?;
    let mut status = sys::CUstreamCaptureStatus_enum_CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the stream lives, its context is current, and the status is written to a variable here.
    unsafe { sys::cuStreamIsCapturing(theirs.cu_stream(), &raw mut status) }
        .result()
        .map_err(failed)?;
    if status == sys::CUstreamCaptureStatus_enum_CU_STREAM_CAPTURE_STATUS_NONE {
        return Ok(());
    }
    Err(refused(
        ErrorKind::Capture,
        format!("{what} was asked for with a stream of theirs that is in capture"),
        "do it before the capture, or after it",
    ))
}
