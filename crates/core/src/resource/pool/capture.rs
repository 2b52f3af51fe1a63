//! The methods `Stream::capture` and `Stream::capture_in`.

use super::graph_pool::{GraphPool, no_room};
use super::handle::{PoolHandle, WeakHandle};
use super::{Asked, PoolResource};
use crate::debug_log::{defer_events, event};
use crate::driver::CallSite;
use crate::driver::{is_forked_child, may_not_call, not_forked};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::pool::Failure;
use crate::resource::asleep;
use crate::resource::device_resource::DeviceResource;
use crate::stream::capture::Recording;
use crate::stream::graph::{GraphMemory, LaunchOrder};
use crate::stream::{Graph, Stream, deferred};
use crate::sync::Arc;

impl Stream {
    /// Records the work that `body` gives this stream into a [`Graph`] instead of running it. It declares the capture
    /// to `pool`, so that vectors may be made and dropped on the stream meanwhile.
    ///
    /// Vectors that `body` makes on this stream in `pool` live in memory that the graph keeps. Each launch finds it as
    /// it was recorded, whether the vector was dropped or not, and whatever the pool serves to others between launches.
    /// What is dropped in `body` serves the vectors that `body` makes after it. [`capture_in`](Self::capture_in) has
    /// several graphs share such memory. Older vectors of the pool that are dropped on this stream meanwhile are kept
    /// for the graph, too. When the graph is dropped, memory without a user is free again, in the order of this stream,
    /// which waits for the launches. A vector that outlives the graph is an ordinary one, but that it cannot grow in
    /// place.
    ///
    /// The pool serves the capture with memory that this stream had freed before it, and with memory that the device is
    /// done with. It grows if there is none. None of these ever waits in the graph. Other threads may go on to use the
    /// pool on other streams.
    ///
    /// CUDA lets no second thread near the streams of a capture. So the capture has this stream, and those that join it
    /// by waiting for it, to itself. A call of another thread on one of them waits for the capture's end, for 4
    /// milliseconds at most. After that it is an error of kind [`ErrorKind::Capture`], since the capture's body may
    /// wait for that thread. If another thread drops a value that such a stream has to free, it is freed later. The
    /// capture begins when the calls that other threads are making on the stream have returned. If one of them waits
    /// for the stream for longer than that, or copies host memory on it, there is no capture but the same error.
    /// Threads that capture and threads that call in loops take turns. At the end each of the capture's streams waits
    /// for the others, so that work that was ordered in the graph is ordered outside of it, too.
    ///
    /// Keep in mind:
    /// - A launch leaves in a vector that `body` has made what the captured work writes there last. Bytes that it does not
    ///   write are anything after it.
    /// - Nothing that is recorded has run. A vector that was made by [`zeroed`](crate::DeviceVec::zeroed) in a capture
    ///   has contents once the graph was launched. Read before, it gives whatever bytes were there. The simulated
    ///   device reports such a read as [`ErrorKind::Simulation`] if they were never written.
    /// - The capture is declared for this stream and this pool. A stream that joins may use its vectors. Make and drop
    ///   them on this stream. Another pool that is asked for memory on this stream refuses if it would have to wait
    ///   ([`ErrorKind::Capture`]).
    /// - A vector with elements does not move in a capture ([`ErrorKind::Capture`]), since its copy would run at a
    ///   launch, and the vector has its new block at once. One from before the capture may grow [in
    ///   place](crate::DeviceVec::growth).
    /// - A wait for work outside of the capture, as of a vector that another stream used before, is made by each launch
    ///   of the graph, and by the capture's streams when it has ended.
    /// - The graph keeps memory of this pool alone. A vector of another resource that is made in the capture is freed
    ///   there, or after it, as that resource frees. Such a vector has to live as long as the graph is launched, too.
    /// - Vectors that were there before the capture have to live as long as the graph is launched. That is part of the
    ///   contract of [`Graph::launch`].
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, DeviceVec, PoolResource};
    /// use std::sync::Arc;
    ///
    /// let device = Device::detect_or_simulate()?;
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
    /// assert_eq!((graph.held(), pool.statistics().held), (4096, 4096));
    /// drop(graph);
    /// assert_eq!(pool.statistics().held, 0);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - The error of `body`.
    /// - [`ErrorKind::Capture`] if the stream is in capture already or is the default stream, or if something in `body`
    ///   invalidated the capture. The same if a stream that joined and was given work is not waited for at the end.
    /// - [`ErrorKind::WrongDevice`] for a pool on another device.
    /// - [`ErrorKind::Forked`] in the child of a fork.
    /// - [`ErrorKind::Unsupported`] if the pool has 65,536 graphs and graph pools, or 65,534 streams.
    /// - The errors of the driver calls.
    ///
    /// In each case, and if `body` unwinds, the stream is out of capture, there is no graph, and all that was kept for
    /// it is free.
    #[track_caller]
    pub fn capture<U, R>(
        &self,
        pool: &PoolResource<U>,
        body: impl FnOnce(&Stream) -> Result<R>,
    ) -> Result<(Graph, R)>
    where
        U: DeviceResource + 'static,
    {
        record(self, pool, None, body)
    }

    /// As [`capture`](Self::capture), of a graph that shares memory with the others of a [`GraphPool`].
    ///
    /// # Errors
    ///
    /// Those of [`capture`](Self::capture), and [`ErrorKind::Capture`] where another thread launches a graph of the graph
    /// pool on a stream whose queue is full for a second.
    #[track_caller]
    pub fn capture_in<U, R>(
        &self,
        graph_pool: &GraphPool<U>,
        body: impl FnOnce(&Stream) -> Result<R>,
    ) -> Result<(Graph, R)>
    where
        U: DeviceResource + 'static,
    {
        record(self, graph_pool.pool(), Some(graph_pool), body)
    }
}

#[track_caller]
fn record<U, R>(
    stream: &Stream,
    pool: &PoolResource<U>,
    graph_pool: Option<&GraphPool<U>>,
    body: impl FnOnce(&Stream) -> Result<R>,
) -> Result<(Graph, R)>
where
    U: DeviceResource + 'static,
{
    pool.device().require(stream.device(), "the stream")?;
    let site = CallSite::enter();
    // Now, since making a stream may wait for the whole context, which would invalidate the capture.
    pool.pool.upstream().own_stream()?;
    let mut recording = Recording::acquire(stream)?;
    let number = graph_pool.map(GraphPool::number);
    let begun = pool.pool.begin_capture(stream, stream.id(), number, || recording.begin());
    let (number, ()) = begun.map_err(|failure| match failure {
        Failure::Captured => Error::new(
            ErrorKind::Capture,
            format!("{stream} is in capture, and another capture cannot begin on it"),
        )
        .with_advice("end the first, or use another stream"),
        Failure::Crowded => no_room(pool),
        failure => pool.explain(failure, Asked::Capture),
    })?;
    let order = graph_pool.map(GraphPool::order);
    let pool = &pool.pool;
    let mut declared = DeclaredCapture { pool, stream, number, order, recording, open: true };
    drop(site);
    let result = body(stream)?;
    let _site = CallSite::enter();
    let graph = declared.finish()?;
    Ok((graph, result))
}

fn require_awake<U: DeviceResource + 'static>(pool: &PoolHandle<U>) -> Result<()> {
    if pool.is_asleep() {
        return Err(asleep::error_of(pool.upstream().resource.device(), pool.id()));
    }
    Ok(())
}

/// What a graph keeps in a pool.
struct KeptInPool<U: DeviceResource + 'static> {
    pool: WeakHandle<U>,
    graph: usize,
}

impl<U: DeviceResource + 'static> GraphMemory for KeptInPool<U> {
    fn order(&self, stream: &Stream) -> Result<()> {
        let Some(pool) = self.pool.upgrade() else { return Ok(()) };
        let ordered = pool.order_launch(self.graph, stream, stream.id());
        let lost = ordered.map_err(|failure| match failure {
            Failure::Upstream(error) => error,
            _ => Error::new(
                ErrorKind::Capture,
                format!("a launch on {stream} cannot come after the last use of a vector, whose stream is in capture"),
            )
            .with_advice("launch the graph before that capture or after it"),
        })?;
        ensure!(
            lost == 0,
            InvalidArgument,
            "drop them and the graphs that keep them, make them before the captures, or give the graphs two graph pools",
            "launching a graph would write over {} of vectors that captures of other graphs of its graph pool have left",
            Count(lost as usize, "byte")
        );
        Ok(())
    }

    fn require(&self) -> Result<()> {
        self.pool.upgrade().map_or(Ok(()), |pool| require_awake(&pool))
    }

    fn bytes(&self) -> usize {
        // In the child of a fork the lock may be held by a thread that is not here.
        let pool = if may_not_call() { None } else { self.pool.upgrade() };
        pool.map_or(0, |pool| pool.held_by(self.graph))
    }
}

/// A capture that is declared to a pool. Its drop abandons it, unless it is finished.
struct DeclaredCapture<'a, U: DeviceResource + 'static> {
    pool: &'a PoolHandle<U>,
    stream: &'a Stream,
    number: usize,
    order: Option<Arc<LaunchOrder>>,
    recording: Recording,
    open: bool,
}

impl<U: DeviceResource + 'static> DeclaredCapture<'_, U> {
    /// Ends the body, before the driver ends the capture.
    fn end_body(&mut self, may_fail: bool) -> Result<()> {
        let note = || self.pool.note_left_over(self.number);
        // No subscriber runs under the lock.
        let _held = defer_events();
        match &self.order {
            Some(order) => order.end_body(self.stream, may_fail, note),
            // No other graph has its memory, so nothing of it needs an order.
            None => {
                note();
                Ok(())
            }
        }
    }

    fn finish(&mut self) -> Result<Graph> {
        // Before locks that a thread of the parent may hold.
        not_forked("a capture")?;
        self.end_body(true)?;
        let mut graph = self.recording.finish()?;
        self.open = false;
        let (pool, stream, number) = (self.pool.clone(), self.stream.clone(), self.number);
        let memory = KeptInPool { pool: self.pool.downgrade(), graph: number };
        graph.set_memory(Box::new(memory), self.order.take());
        graph.attach(Box::new(move |launched_on| pool.on_graph_drop(number, &stream, launched_on)));
        self.pool.end_capture(self.number);
        deferred::collect();
        Ok(graph)
    }
}

impl<U: DeviceResource + 'static> Drop for DeclaredCapture<'_, U> {
    fn drop(&mut self) {
        if !self.open || is_forked_child() {
            return;
        }
        if let Err(error) = self.end_body(false) {
            let stream = self.stream;
            event!(error, %error, %stream, "vectors of a capture that failed may be written over by graphs of its graph pool");
        }
        self.recording.abandon();
        self.pool.end_capture(self.number);
        self.pool.on_graph_drop(self.number, self.stream, &[]);
        deferred::collect();
    }
}
