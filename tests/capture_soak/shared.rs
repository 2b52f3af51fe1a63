//! What the threads of a program share, and the vectors that they own.

use crate::counts::Tally;
use crate::random::Random;
use crate::support::foreign::Foreign;
use crate::turns::Turns;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::Simulator;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, Error, ErrorKind,
    Event, PoolResource, Result, Stream, pinned::PinnedResource, stream::Graph,
};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

pub(crate) type Pool = PoolResource<CudaResource>;
pub(crate) type GraphPool = aquifer::mr::GraphPool<CudaResource>;
pub(crate) type Words = DeviceVec<u32>;
pub(crate) type Pinned = AllocVec<u32, PinnedResource>;

/// Why a thread of a program ends early.
pub(crate) enum Stop {
    /// It found something wrong.
    Failed(String),
    /// The context was lost on purpose.
    Lost,
}

pub(crate) type Step<T = ()> = std::result::Result<T, Stop>;

impl From<String> for Stop {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A vector of one thread, and what it has to hold.
pub(crate) struct Item {
    pub(crate) id: u32,
    pub(crate) vec: Words,
    /// The value of every element.
    pub(crate) value: u32,
    /// The stream of a guard that is still in use, through its address.
    pub(crate) guard: Option<Stream>,
}

impl Item {
    pub(crate) fn is_at(&self, stream: &Stream) -> bool {
        self.vec.stream() == stream
    }

    /// Compares what was read.
    pub(crate) fn agrees(&self, how: &str, found: &[u32]) -> Step {
        match found.iter().position(|&value| value != self.value) {
            None => Ok(()),
            Some(at) => Err(Stop::Failed(format!(
                "wrong data by {how}: element {at} of vector {} is {:#x}, not {:#x}",
                self.id, found[at], self.value
            ))),
        }
    }

    /// Adds one by the address, on a stream that a guard allows it on.
    pub(crate) fn work_at(&self, stream: &Stream) -> Result<()> {
        let block = DeviceBlock::new(self.vec.as_device_ptr(), self.vec.size_in_bytes(), 0);
        let resource = NotOwned(stream.device().clone());
        // SAFETY: the address and the length of a living vector, which `stream` may use; the resource
        // frees nothing.
        let mut words =
            unsafe { Words::from_raw_parts(stream.clone(), block, self.vec.len(), resource)? };
        crate::kernels::add_one(stream, &mut words)
    }
}

/// Frees nothing: its blocks belong to others.
#[derive(Debug)]
struct NotOwned(Device);

// SAFETY: it hands nothing out.
unsafe impl DeviceResource for NotOwned {
    fn device(&self) -> &Device {
        &self.0
    }

    fn allocate(&self, _stream: &Stream, _layout: DeviceLayout) -> Result<DeviceBlock> {
        Err(Error::new(ErrorKind::OutOfMemory, "there is none"))
    }

    unsafe fn deallocate(&self, _stream: &Stream, _block: DeviceBlock) {}
}

/// All of it comes from the seed.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) threads: usize,
    pub(crate) streams: usize,
    /// Those of them that another library makes, and destroys once they are detached.
    pub(crate) foreign: usize,
    /// Elements of each vector.
    pub(crate) length: usize,
    /// Of each thread.
    pub(crate) operations: usize,
    /// Every thread uses page-locked memory at random.
    pub(crate) pinned: bool,
    /// The context is lost on the way.
    pub(crate) loses: bool,
    /// The threads try the same again and again.
    pub(crate) takes_turns: bool,
    /// The graphs of all threads share memory.
    pub(crate) shares_memory: bool,
}

impl Setup {
    pub(crate) fn new(random: &mut Random, on_gpu: bool) -> Self {
        let (threads, streams) = (2 + random.below(2), 2 + random.below(3));
        Self {
            threads,
            streams,
            foreign: random.below(2).min(streams - 1),
            length: random.pick(&[8, 16, 32, 64]),
            operations: 6 + random.below(9),
            pinned: !random.one_in(4),
            loses: random.one_in(40) && !on_gpu,
            takes_turns: random.one_in(200),
            shares_memory: random.one_in(2),
        }
    }

    /// A free of page-locked memory asks the whole context. Without one nothing disturbs a capture that
    /// Aquifer was not told of. The host form of a program that loses its context works on such memory.
    pub(crate) fn frees_pinned(&self) -> bool {
        self.pinned || self.loses
    }
}

pub(crate) struct Shared {
    pub(crate) setup: Setup,
    pub(crate) seed: u64,
    pub(crate) device: Device,
    pub(crate) simulator: Option<Simulator>,
    pub(crate) streams: Mutex<Vec<Stream>>,
    /// Those of them that another library owns, by their places.
    pub(crate) foreign: Mutex<Vec<(usize, Foreign)>>,
    pub(crate) pool: Mutex<Option<Pool>>,
    pub(crate) graph_pool: Mutex<Option<GraphPool>>,
    pub(crate) pinned: PinnedResource,
    /// Handed from one thread to another.
    pub(crate) items: Mutex<Vec<Item>>,
    pub(crate) turns: Turns,
    pub(crate) events: Mutex<Vec<Event>>,
    pub(crate) graphs: Mutex<Vec<Graph>>,
    /// Host memory that a host form was lent and that is its owner's again, with its value.
    pub(crate) hosts: Mutex<Vec<(Pinned, u32)>>,
    pub(crate) failure: Mutex<Option<String>>,
    pub(crate) failed: AtomicBool,
    /// From before the context is lost.
    pub(crate) lost: AtomicBool,
    /// The meeting of the thread that runs a host form with the one that loses its context.
    pub(crate) meeting: AtomicUsize,
    /// Read by each thread in its calls, written by one that begins a capture without a word.
    calls: RwLock<()>,
    next: AtomicU32,
    ticket: AtomicUsize,
    pub(crate) tally: Mutex<Tally>,
    pub(crate) trace: Mutex<Vec<(usize, String)>>,
}

impl Shared {
    pub(crate) fn new(seed: u64, setup: Setup, device: Device) -> Result<Self> {
        let mut streams = (setup.foreign..setup.streams)
            .map(|_| device.new_stream())
            .collect::<Result<Vec<_>>>()?;
        let mut foreign = Vec::new();
        for _ in 0..setup.foreign {
            let made = Foreign::new(&device)?;
            streams.push(made.stream()?);
            foreign.push((streams.len() - 1, made));
        }
        let pool = PoolResource::new(CudaResource::new(&device))?;
        let graph_pool = setup.shares_memory.then(|| pool.graph_pool()).transpose()?;
        Ok(Self {
            seed,
            simulator: device.simulator(),
            streams: Mutex::new(streams),
            foreign: Mutex::new(foreign),
            pool: Mutex::new(Some(pool)),
            graph_pool: Mutex::new(graph_pool),
            pinned: PinnedResource::new(&device)?,
            device,
            items: Mutex::default(),
            turns: Turns::default(),
            events: Mutex::default(),
            graphs: Mutex::default(),
            hosts: Mutex::default(),
            failure: Mutex::default(),
            failed: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            meeting: AtomicUsize::new(0),
            calls: RwLock::default(),
            next: AtomicU32::new(1),
            ticket: AtomicUsize::new(0),
            tally: Mutex::default(),
            trace: Mutex::default(),
            setup,
        })
    }

    /// Held over calls of the crate.
    pub(crate) fn call(&self) -> RwLockReadGuard<'_, ()> {
        self.calls.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A moment at which no other thread is in a call: a capture that the crate is not told of begins
    /// at such a one alone.
    pub(crate) fn outside_of_calls(&self) -> RwLockWriteGuard<'_, ()> {
        loop {
            match self.calls.try_write() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
    }

    pub(crate) fn stream(&self, at: usize) -> Stream {
        lock(&self.streams)[at].clone()
    }

    pub(crate) fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A value that no vector of this program was filled with. Additions of one stay below the next.
    pub(crate) fn value(&self) -> u32 {
        (self.seed as u32).wrapping_mul(0x9e37_79b1) ^ (self.number() << 12)
    }

    pub(crate) fn ticket(&self) -> usize {
        self.ticket.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Fails if the simulated device has seen anything that no stream order allows.
    pub(crate) fn verdict(&self) -> Step {
        let Some(simulator) = &self.simulator else { return Ok(()) };
        match simulator.reports().first() {
            None => Ok(()),
            Some(report) => {
                Err(Stop::Failed(format!("the device saw {:?}: {report}", report.kind())))
            }
        }
    }

    /// What an error means that nothing in the program explains.
    pub(crate) fn unexpected(&self, what: &str, error: &Error) -> Stop {
        if self.is_lost() && error.kind() == ErrorKind::ContextLost {
            return Stop::Lost;
        }
        // Errors of all threads follow from a violation of one.
        match self.verdict() {
            Err(stop) => stop,
            Ok(()) => Stop::Failed(format!("{what}: {:?}: {error}", error.kind())),
        }
    }

    pub(crate) fn fail(&self, why: String) {
        self.failed.store(true, Ordering::Relaxed);
        lock(&self.failure).get_or_insert(why);
    }
}
