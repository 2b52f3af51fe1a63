//! Graph pools: memory that graphs share.

use super::PoolResource;
use crate::driver::{is_in_host_function, may_not_call, not_forked};
use crate::error::{Error, ErrorKind, Result};
use crate::resource::cuda::CudaResource;
use crate::resource::device_resource::DeviceResource;
use crate::resource::impls::debug_struct;
use crate::stream::deferred;
use crate::stream::graph::LaunchOrder;
use crate::sync::Arc;

/// Memory that graphs share, as PyTorch's graph pools: what one capture has freed serves the others, though all their
/// graphs exist. From [`PoolResource::graph_pool`], for [`Stream::capture_in`](crate::Stream::capture_in).
///
/// Sixteen graphs with 64 MiB of scratch memory each then take 64 MiB of the pool, and not 1 GiB. In return:
///
/// - Launches of these graphs run one after the other, on whatever streams they are. Each comes after the last one, by a
///   wait of its stream.
/// - A vector that a capture makes and that outlives it may lie where the graphs of former captures work. While it lives,
///   launches of those are refused ([`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument)). So make such
///   vectors before the captures.
///
/// It is a handle, whose clones are the same graph pool. It may be dropped before its graphs. Its memory goes back to the
/// pool with the graphs that use it, and with the last vector in it.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, PoolResource};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let pool = PoolResource::new(CudaResource::new(&device))?;
/// let graph_pool = pool.graph_pool()?;
///
/// let mut sums = DeviceVec::<f32>::zeroed_in(&stream, 1000, pool.clone())?;
/// let mut graphs = Vec::new();
/// for value in [1.5, 2.5] {
///     let (graph, ()) = stream.capture_in(&graph_pool, |stream| {
///         let mut scratch = DeviceVec::<f32>::zeroed_in(stream, 1000, pool.clone())?;
///         scratch.fill(value)?;
///         sums.copy_from(&scratch)
///     })?;
///     graphs.push(graph);
/// }
/// assert_eq!((graphs[0].held(), graphs[1].held()), (4096, 4096));
/// assert_eq!(graph_pool.held(), 4096, "the same bytes");
///
/// // SAFETY: `sums` is alive, and nothing else uses it meanwhile.
/// unsafe { graphs[1].launch(&stream)? };
/// assert_eq!(sums.get(7)?, 2.5);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct GraphPool<U: DeviceResource + 'static = CudaResource> {
    shared: Arc<Shared<U>>,
}

struct Shared<U: DeviceResource + 'static> {
    pool: PoolResource<U>,
    number: u16,
    order: Arc<LaunchOrder>,
}

impl<U: DeviceResource + 'static> PoolResource<U> {
    /// A new graph pool, whose memory comes from this pool.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if there are 65,536, with the graphs of [`Stream::capture`](crate::Stream::capture), which
    /// have one each. [`ErrorKind::Forked`] in the child of a fork.
    pub fn graph_pool(&self) -> Result<GraphPool<U>> {
        not_forked("a pool")?;
        let number = self.pool.open_graph_pool().map_err(|_| no_room(self))?;
        let order = Arc::new(LaunchOrder::default());
        Ok(GraphPool { shared: Arc::new(Shared { pool: self.clone(), number, order }) })
    }
}

/// The error of a pool that cannot tell another graph pool apart, or another stream.
pub(super) fn no_room<U: DeviceResource + 'static>(pool: &PoolResource<U>) -> Error {
    let device = pool.device();
    let message = format!(
        "a pool on {device} has no room for another graph or stream: it tells 65,536 graph pools and 65,534 streams apart"
    );
    Error::new(ErrorKind::Unsupported, message)
        .with_advice("drop graphs, graph pools or streams that are not used")
}

impl<U: DeviceResource + 'static> GraphPool<U> {
    /// The pool that its memory comes from.
    pub fn pool(&self) -> &PoolResource<U> {
        &self.shared.pool
    }

    /// The bytes that it has from the pool.
    pub fn held(&self) -> usize {
        self.used().0
    }

    /// Of these bytes, those that the next capture may take.
    pub fn free(&self) -> usize {
        self.used().1
    }

    /// The graphs that have memory of it, with the captures that are under way.
    pub fn graphs(&self) -> usize {
        self.used().2
    }

    fn used(&self) -> (usize, usize, usize) {
        // In the child of a fork the lock may be held by a thread that is not here.
        if may_not_call() {
            return (0, 0, 0);
        }
        self.shared.pool.pool.graph_pool_use(self.shared.number)
    }

    pub(super) fn number(&self) -> u16 {
        self.shared.number
    }

    pub(super) fn order(&self) -> Arc<LaunchOrder> {
        self.shared.order.clone()
    }
}

impl<U: DeviceResource + 'static> Clone for GraphPool<U> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<U: DeviceResource + 'static> Drop for Shared<U> {
    fn drop(&mut self) {
        // In the child of a fork the lock may be held by a thread that is not here.
        if !may_not_call() {
            self.pool.pool.close_graph_pool(self.number);
        } else if is_in_host_function() {
            let (pool, number) = (self.pool.clone(), self.number);
            deferred::defer(None, move || pool.pool.close_graph_pool(number));
        }
    }
}

debug_struct!([U: DeviceResource + 'static] GraphPool<U> { held(), free(), graphs() });
