//! `Stream::capture`.

use super::{Ground, PoolResource};
use crate::backend::not_forked;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::pool::{Failure, Pool};
use crate::resource::DeviceResource;
use crate::stream::graph::Attachment;
use crate::stream::{Graph, Stream, graveyard};
use crate::sync::Arc;

impl Stream {
    /// Records what `body` gives this stream into a [`Graph`] instead of running it, and declares
    /// that to `pool`, so that vectors may be made and dropped on the stream meanwhile.
    ///
    /// Vectors that `body` makes on this stream in `pool` live in memory that the graph keeps: each
    /// launch finds it as it was recorded, whether the vector was dropped or not, and whatever the
    /// pool serves to others between launches. Vectors of the pool that are dropped on this stream
    /// meanwhile are kept for the graph, too. When the graph is dropped, what nobody uses any more is
    /// free again, in the order of this stream, which waits for the launches; a vector that outlives
    /// the graph is an ordinary one.
    ///
    /// The pool serves the capture with what this stream had freed before it and with memory that
    /// the device is done with, and grows where there is none: neither ever waits in the graph.
    /// Other threads may go on to use the pool, on this stream and on others; what they give this
    /// stream is recorded with the rest.
    ///
    /// What to keep in mind:
    /// - Nothing that is recorded has run. A vector that was made by
    ///   [`zeroed`](crate::DeviceVec::zeroed) in a capture has contents once the graph was launched;
    ///   read before, it gives whatever bytes were there, which the simulated device reports as
    ///   [`ErrorKind::Simulation`] where nobody ever wrote them.
    /// - The capture is declared for this stream alone, and this pool. A stream that joins by
    ///   waiting for this one may use its vectors; make and drop them on this stream. Another pool,
    ///   asked for memory on this stream, refuses where it would have to wait
    ///   ([`ErrorKind::Capture`]).
    /// - Vectors that were there before the capture have to live as long as the graph is launched:
    ///   that is part of the contract of [`Graph::launch`].
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, DeviceVec, PoolResource};
    /// use std::sync::Arc;
    ///
    /// let device = Device::detect()?;
    /// let stream = device.new_stream()?;
    /// let pool = PoolResource::new(CudaResource::new(&device))?;
    /// let memory = Arc::new(pool.clone());
    ///
    /// let mut sums = DeviceVec::<f32>::zeroed_in(&stream, 1000, memory.clone())?;
    /// let (graph, ()) = stream.capture(&pool, |stream| {
    ///     let mut scratch = DeviceVec::<f32>::zeroed_in(stream, 1000, memory.clone())?;
    ///     scratch.fill(1.5)?;
    ///     sums.copy_from(&scratch) // `scratch` is dropped here; its memory stays the graph's
    /// })?;
    ///
    /// assert_eq!(sums.get(7)?, 0.0, "recorded, not run");
    /// // SAFETY: `sums` is alive, and nothing else uses it meanwhile.
    /// unsafe { graph.launch(&stream)? };
    /// assert_eq!(sums.get(7)?, 1.5);
    ///
    /// assert_eq!(pool.statistics().held, 4096);
    /// drop(graph);
    /// assert_eq!(pool.statistics().held, 0);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// That of `body`. [`ErrorKind::Capture`] if the stream is in capture already or is the default
    /// stream, if something in `body` invalidated the capture, or if a stream that joined was not
    /// waited for at the end; [`ErrorKind::WrongDevice`] for a pool on another device;
    /// [`ErrorKind::Forked`] in the child of a fork; those of the driver calls. In each case, and if
    /// `body` unwinds, the stream is out of capture, there is no graph, and what was kept for it is
    /// free.
    pub fn capture<U, R>(
        &self,
        pool: &PoolResource<U>,
        body: impl FnOnce(&Stream) -> Result<R>,
    ) -> Result<(Graph, R)>
    where
        U: DeviceResource + 'static,
    {
        not_forked("a capture")?;
        pool.device().require(self.device(), "the stream")?;
        self.refuse_capture("another capture")?;
        // Made now: to make a stream may wait for the whole context, which would cost the capture.
        pool.pool.upstream().aside()?;
        let begin = || {
            let before = self.record()?;
            self.start_graph()?;
            Ok(before)
        };
        let (number, before) =
            pool.pool.begin_capture(self, self.id(), begin).map_err(|failure| match failure {
                Failure::Captured => Error::new(
                    ErrorKind::Capture,
                    format!("{self} is in capture, and another capture cannot be"),
                ),
                failure => pool.explain(failure, 0),
            })?;
        let mut declared = Declared { pool: &pool.pool, stream: self, number, open: true };
        let result = body(self)?;
        let graph = declared.finish(before)?;
        Ok((graph, result))
    }
}

/// A capture that was declared. Dropped before it is finished, it is given up.
struct Declared<'a, U: DeviceResource + 'static> {
    pool: &'a Arc<Pool<Ground<U>>>,
    stream: &'a Stream,
    number: usize,
    open: bool,
}

impl<U: DeviceResource + 'static> Declared<'_, U> {
    fn finish(&mut self, before: Event) -> Result<Graph> {
        let mut graph = self.stream.finish_graph(Some(before))?;
        self.open = false;
        let (pool, stream) = (self.pool.clone(), self.stream.clone());
        graph.attach(Box::new(Memory { pool, stream, number: self.number }));
        self.pool.end_capture(self.number);
        graveyard::reap();
        Ok(graph)
    }
}

impl<U: DeviceResource + 'static> Drop for Declared<'_, U> {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        // Where the driver refused to make a graph, the stream is out of capture.
        if self.stream.is_capturing().unwrap_or(false) {
            self.stream.abandon_graph();
        }
        self.pool.end_capture(self.number);
        self.pool.release(self.number, self.stream, &[]);
        graveyard::reap();
    }
}

/// A graph's hold on its memory.
struct Memory<U: DeviceResource + 'static> {
    pool: Arc<Pool<Ground<U>>>,
    stream: Stream,
    number: usize,
}

impl<U: DeviceResource + 'static> Attachment for Memory<U> {
    fn give_back(self: Box<Self>, launched_on: &[Stream]) {
        self.pool.release(self.number, &self.stream, launched_on);
    }
}
