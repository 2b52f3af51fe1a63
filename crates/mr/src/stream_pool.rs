//! Streams that are made once and taken in turn.

use crate::device::Device;
use crate::error::{Result, ensure};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::trusted::{AtomicUsize, Ordering};

/// Streams of one device, made once and handed out in turn, like RMM's `cuda_stream_pool`.
///
/// It is a handle, whose clones are the same pool and take their turns together. It may be used from any thread. A
/// [`Stream`] that was cloned out of it lives on when the pool is gone. RMM's pool hands out views, which dangle then,
/// and makes its streams on whichever device is current.
///
/// ```
/// use aquifer::{Device, DeviceVec, stream::StreamPool};
///
/// let device = Device::detect_or_simulate()?;
/// let pool = StreamPool::with_size(&device, 4)?;
/// let vecs = (0..8)
///     .map(|_| DeviceVec::<f32>::zeroed(pool.get_stream(), 1000)) // each stream twice
///     .collect::<aquifer::Result<Vec<_>>>()?;
/// assert_eq!(vecs[0].stream(), vecs[4].stream());
/// for stream in &pool {
///     stream.synchronize()?;
/// }
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct StreamPool {
    inner: Arc<StreamPoolInner>,
}

#[derive(Debug)]
struct StreamPoolInner {
    device: Device,
    /// The streams, at least one.
    streams: Box<[Stream]>,
    next: AtomicUsize,
}

impl StreamPool {
    /// The number of streams of [`new`](Self::new), which is 16 as in RMM.
    pub const DEFAULT_SIZE: usize = 16;

    /// The largest number of streams of a pool. A pool of memory can tell as many apart.
    pub const MAXIMUM_SIZE: usize = 65_534;

    /// A pool of [`DEFAULT_SIZE`](Self::DEFAULT_SIZE) streams of `device`. None of them waits for the
    /// legacy default stream.
    ///
    /// # Errors
    ///
    /// The errors of [`Device::new_stream`].
    pub fn new(device: &Device) -> Result<Self> {
        Self::with_size(device, Self::DEFAULT_SIZE)
    }

    /// A pool of `size` streams of `device`, like that of [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if `size` is 0 or above
    /// [`MAXIMUM_SIZE`](Self::MAXIMUM_SIZE), and the errors of [`Device::new_stream`]. The streams that were made
    /// before are gone again then.
    pub fn with_size(device: &Device, size: usize) -> Result<Self> {
        ensure!(
            size > 0,
            InvalidArgument,
            "ask for one stream at least",
            "a pool of no streams was asked, which could hand out none"
        );
        ensure!(
            size <= Self::MAXIMUM_SIZE,
            InvalidArgument,
            "ask for fewer: a few dozen keep a GPU busy",
            "a pool of {size} streams was asked, where {} can be",
            Self::MAXIMUM_SIZE
        );
        let streams = (0..size).map(|_| device.new_stream()).collect::<Result<_>>()?;
        let next = AtomicUsize::new(0);
        Ok(Self { inner: Arc::new(StreamPoolInner { device: device.clone(), streams, next }) })
    }

    /// The next stream in turn. A stream that has work is not passed over.
    pub fn get_stream(&self) -> &Stream {
        // Relaxed: whose turn it is orders nothing else.
        self.get(self.inner.next.fetch_add(1, Ordering::Relaxed))
    }

    /// The stream of a number, which wraps around. So `get(len())` is `get(0)`. The call takes no turn.
    pub fn get(&self, number: usize) -> &Stream {
        &self.inner.streams[number % self.inner.streams.len()]
    }

    /// The number of streams.
    #[allow(clippy::len_without_is_empty, reason = "no pool is empty")]
    pub fn len(&self) -> usize {
        self.inner.streams.len()
    }

    /// The device that the streams run on.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// All streams, each once, in the order of their numbers.
    pub fn iter(&self) -> std::slice::Iter<'_, Stream> {
        self.inner.streams.iter()
    }
}

impl<'a> IntoIterator for &'a StreamPool {
    type Item = &'a Stream;
    type IntoIter = std::slice::Iter<'a, Stream>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
