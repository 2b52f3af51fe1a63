//! What is measured: a resource and the streams that the workloads name.

use crate::rows::Options;
use crate::workloads::{Pool, STREAMS};
use aquifer::sim::Simulator;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, Error, PoolResource, Result,
    Stream, device::BackendKind, mr::Handles,
};
use std::array;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The default pool, on handles or on blocks.
pub(crate) type Plain = PoolResource;

/// Ends the program, from any thread: a bench that could not allocate has nothing to say.
#[cold]
#[inline(never)]
pub(crate) fn fail(error: &Error) -> ! {
    eprintln!("error: {error}");
    std::process::exit(1)
}

/// The value, or the end of the program.
#[inline(always)]
pub(crate) fn must<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => fail(&error),
    }
}

/// A resource under the workloads. With `R = Arc<dyn DeviceResource>` no call is inlined, as in the
/// peers; with a concrete type the compiler may do as it likes.
pub(crate) struct Subject<R> {
    pub(crate) resource: R,
    pub(crate) streams: Arc<[Stream; STREAMS]>,
}

/// A subject behind a pointer.
pub(crate) type Erased = Subject<Arc<dyn DeviceResource>>;

impl<R: DeviceResource> Pool for Subject<R> {
    type Block = DeviceBlock;

    #[inline(always)]
    fn allocate(&self, bytes: u64, stream: usize) -> DeviceBlock {
        let layout = must(DeviceLayout::new(bytes as usize));
        // The remainder spares the check of the index.
        must(self.resource.allocate(&self.streams[stream % STREAMS], layout))
    }

    #[inline(always)]
    fn free(&self, block: DeviceBlock, stream: usize) {
        // SAFETY: `Pool` is given each of its blocks back once, with the block's own stream, and
        // the workloads give the streams no other work.
        unsafe { self.resource.deallocate(&self.streams[stream % STREAMS], block) }
    }
}

/// A resource for each stream: threads that share nothing.
pub(crate) struct Private {
    pub(crate) resources: [Arc<dyn DeviceResource>; STREAMS],
    pub(crate) pools: [Plain; STREAMS],
    pub(crate) streams: Arc<[Stream; STREAMS]>,
}

impl Pool for Private {
    type Block = DeviceBlock;

    #[inline(always)]
    fn allocate(&self, bytes: u64, stream: usize) -> DeviceBlock {
        let layout = must(DeviceLayout::new(bytes as usize));
        let stream = stream % STREAMS;
        must(self.resources[stream].allocate(&self.streams[stream], layout))
    }

    #[inline(always)]
    fn free(&self, block: DeviceBlock, stream: usize) {
        let stream = stream % STREAMS;
        // SAFETY: as in `Subject`.
        unsafe { self.resources[stream].deallocate(&self.streams[stream], block) }
    }
}

/// The device, its streams, and how much to run.
pub(crate) struct Bench {
    pub(crate) device: Device,
    /// Whether pools map handles, or take blocks.
    pub(crate) handles: Handles,
    /// Made on first use: a group that comes before that has none.
    streams: OnceLock<Arc<[Stream; STREAMS]>>,
    /// Small counts: a smoke test whose times mean nothing.
    pub(crate) quick: bool,
    /// Where the programs of the footprint are written for the peers.
    pub(crate) traces: Option<PathBuf>,
    /// Bytes that this process takes for the group `card` of another one.
    pub(crate) take: Option<u64>,
}

impl Bench {
    pub(crate) fn new(device: Device, quick: bool, options: &Options) -> Result<Self> {
        let handles = if options.handles { Handles::On } else { Handles::Auto };
        let traces = options.traces.clone();
        let take = options.take;
        Ok(Self { device, handles, streams: OnceLock::new(), quick, traces, take })
    }

    pub(crate) fn streams(&self) -> &Arc<[Stream; STREAMS]> {
        self.streams.get_or_init(|| Arc::new(array::from_fn(|_| self.stream())))
    }

    pub(crate) fn simulated(&self) -> bool {
        self.device.kind() == BackendKind::Simulated
    }

    /// How often to do something.
    pub(crate) fn count(&self, full: u32, quick: u32) -> u32 {
        if self.quick { quick } else { full }
    }

    /// A pool that starts with one part in `parts` of the free memory.
    pub(crate) fn pool(&self, parts: usize) -> Plain {
        self.pool_of(self.part(parts))
    }

    /// One part in `parts` of the free memory, in whole MiB.
    pub(crate) fn part(&self, parts: usize) -> usize {
        let memory = match (self.simulated(), self.quick) {
            // It takes its memory from the host, which may have less than the traces' 16000 MiB.
            (true, true) => 2 << 30,
            (true, false) => 36 << 30,
            (false, _) => must(self.device.memory_info()).free,
        };
        (memory / parts) & !0xF_FFFF
    }

    /// A pool that starts with so many bytes.
    pub(crate) fn pool_of(&self, initial: usize) -> Plain {
        let options = PoolResource::builder(CudaResource::new(&self.device)).handles(self.handles);
        must(options.initial_size(initial).build())
    }

    pub(crate) fn subject<R>(&self, resource: R) -> Subject<R> {
        Subject { resource, streams: self.streams().clone() }
    }

    pub(crate) fn erased(&self, resource: impl DeviceResource + 'static) -> Erased {
        self.subject(Arc::new(resource))
    }

    /// Sixteen pools that share half of the free memory.
    pub(crate) fn private(&self) -> Private {
        let pools: [Plain; STREAMS] = array::from_fn(|_| self.pool(2 * STREAMS));
        let resources = pools.each_ref().map(|pool| Arc::new(pool.clone()) as Arc<_>);
        Private { pools, resources, streams: self.streams().clone() }
    }

    /// A stream that no pool knows yet.
    pub(crate) fn stream(&self) -> Stream {
        must(self.device.new_stream())
    }

    pub(crate) fn synchronize(&self) {
        must(self.device.synchronize());
    }
}

/// Counts the driver calls that a pool makes: all calls on a simulated device; on a GPU, where
/// nothing counts them, those that the pool's statistics list, which are all but the questions to
/// events and streams.
pub(crate) struct Calls<'a> {
    pool: &'a Plain,
    simulator: Option<Simulator>,
    before: Vec<(&'static str, u64)>,
}

impl<'a> Calls<'a> {
    pub(crate) fn begin(bench: &Bench, pool: &'a Plain) -> Self {
        let mut calls = Self { pool, simulator: bench.device.simulator(), before: Vec::new() };
        calls.before = calls.now();
        calls
    }

    fn now(&self) -> Vec<(&'static str, u64)> {
        match &self.simulator {
            Some(simulator) => simulator.calls(),
            None => {
                let now = self.pool.statistics();
                vec![
                    ("records", now.records as u64),
                    ("waits", now.waits as u64),
                    ("growths", now.growths as u64),
                    ("returns", now.returns as u64),
                ]
            }
        }
    }

    /// Calls since the beginning, by name.
    pub(crate) fn made(&self) -> Vec<(&'static str, u64)> {
        let before =
            |name| self.before.iter().find(|(known, _)| *known == name).map_or(0, |one| one.1);
        let mut made: Vec<_> =
            self.now().into_iter().map(|(name, count)| (name, count - before(name))).collect();
        made.retain(|(_, count)| *count > 0);
        made
    }
}
