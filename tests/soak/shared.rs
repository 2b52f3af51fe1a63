//! What the threads of a program share, and the vectors that they own.

use crate::callbacks::Callbacks;
use crate::counts::Tally;
use crate::foreign_streams::Theirs;
use crate::managers::Managed;
use crate::patterns::Pattern;
use crate::program::Mode;
use crate::random::Random;
use crate::setup::{Pool, Setup};
use crate::waits::Waits;
use aquifer::sim::Simulator;
use aquifer::{Device, DeviceResource, DeviceVec, Error, Event, Stream, mr::PoolStatistics};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Why a program failed.
pub(crate) type Failure = String;
pub(crate) type Step<T = ()> = Result<T, Failure>;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error that nothing in the program explains.
pub(crate) fn unexpected(what: &str) -> impl FnOnce(Error) -> Failure + '_ {
    move |error| format!("{what}: {:?}: {error}", error.kind())
}

/// A vector, and what it has to hold.
pub(crate) struct Item {
    pub(crate) vec: DeviceVec<u32>,
    /// The value of every element; none before they are written.
    pub(crate) tag: Option<u32>,
    /// Streams that it was lent to since home last waited for all of them.
    pub(crate) lent: Vec<u64>,
    alive: Alive,
}

/// Counts the vectors that hold memory, and the most of them at once.
#[derive(Clone, Default)]
pub(crate) struct Vectors(Arc<[AtomicUsize; 2]>);

/// A vector that is counted.
pub(crate) struct Alive(Vectors);

impl Vectors {
    pub(crate) fn item(&self, vec: DeviceVec<u32>) -> Item {
        let now = self.0[0].fetch_add(1, Ordering::Relaxed) + 1;
        self.0[1].fetch_max(now, Ordering::Relaxed);
        Item { vec, tag: None, lent: Vec::new(), alive: Alive(self.clone()) }
    }

    fn now(&self) -> usize {
        self.0[0].load(Ordering::Relaxed)
    }

    fn peak(&self) -> usize {
        self.0[1].load(Ordering::Relaxed)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.0[0].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The pool that a program has, and what its vectors come from.
pub(crate) type Current = Mutex<Option<(Pool, Arc<dyn DeviceResource>)>>;

impl Item {
    /// The vector, and what counts it as long as that is kept.
    pub(crate) fn into_parts(self) -> (DeviceVec<u32>, Alive) {
        (self.vec, self.alive)
    }

    pub(crate) fn home(&self) -> u64 {
        self.vec.stream().id()
    }

    /// Whether any use of it may involve `stream`.
    pub(crate) fn knows(&self, stream: u64) -> bool {
        self.home() == stream || self.lent.contains(&stream)
    }

    /// Reads it back and compares.
    pub(crate) fn check(&self) -> Step {
        let Some(tag) = self.tag else { return Ok(()) };
        let found = self.vec.to_vec().map_err(unexpected("reading a vector"))?;
        match found.iter().position(|&value| value != tag) {
            None => Ok(()),
            Some(at) => Err(format!(
                "wrong data: element {at} of {} at {:#x} is {:#x}, not {tag:#x}",
                found.len(),
                self.vec.as_device_ptr(),
                found[at]
            )),
        }
    }
}

pub(crate) struct Shared {
    pub(crate) seed: u64,
    pub(crate) setup: Setup,
    pub(crate) device: Device,
    pub(crate) simulator: Option<Simulator>,
    pub(crate) streams: Arc<Mutex<Vec<Stream>>>,
    /// Of those that other libraries own, what is not destroyed.
    pub(crate) foreign: Mutex<Vec<Theirs>>,
    pub(crate) events: Mutex<Vec<Event>>,
    pub(crate) mailbox: Mutex<Vec<Item>>,
    pub(crate) pool: Arc<Current>,
    /// Of a program whose upstream calls back.
    pub(crate) callbacks: Option<Arc<Callbacks>>,
    /// Of a program with a memory manager, until it lets go of its pool.
    pub(crate) managed: Mutex<Option<Arc<Managed>>>,
    /// Of a program whose upstream waits.
    waits: OnceLock<Arc<Waits>>,
    /// How often all work has moved to the next stream.
    pub(crate) phase: AtomicUsize,
    /// The stream that is in capture.
    pub(crate) captured: Mutex<Option<u64>>,
    pub(crate) tally: Mutex<Tally>,
    pub(crate) failure: Mutex<Option<Failure>>,
    pub(crate) failed: AtomicBool,
    /// A driver call failed whose failure may cost memory, said aloud.
    pub(crate) may_leak: AtomicBool,
    vectors: Vectors,
    next_tag: AtomicU32,
    trace: Option<Mutex<Vec<String>>>,
}

impl Shared {
    pub(crate) fn new(seed: u64, setup: Setup, device: Device, mode: Mode) -> Step<Self> {
        let (pool, vectors) = (Arc::<Current>::default(), Vectors::default());
        let streams = Vec::with_capacity(setup.streams);
        let calls_back = setup.pattern == Some(Pattern::Callbacks);
        let callbacks = calls_back
            .then(|| Callbacks::new(Random::new(seed, 98), pool.clone(), vectors.clone()));
        let shared = Self {
            seed,
            simulator: device.simulator(),
            device,
            setup,
            streams: Arc::new(Mutex::new(streams)),
            foreign: Mutex::default(),
            events: Mutex::default(),
            mailbox: Mutex::default(),
            pool,
            callbacks,
            managed: Mutex::default(),
            waits: OnceLock::new(),
            phase: AtomicUsize::new(0),
            captured: Mutex::default(),
            tally: Mutex::default(),
            failure: Mutex::default(),
            failed: AtomicBool::new(false),
            may_leak: AtomicBool::new(false),
            vectors,
            next_tag: AtomicU32::new(1),
            trace: mode.trace.then(Mutex::default),
        };
        for number in 0..shared.setup.streams {
            let stream = match number < shared.setup.foreign {
                true => shared.bring()?,
                false => shared.device.new_stream().map_err(unexpected("making a stream"))?,
            };
            lock(&shared.streams).push(stream);
        }
        if shared.setup.waits {
            shared.waits.get_or_init(|| Waits::new(&shared, !mode.free));
        }
        Ok(shared)
    }

    pub(crate) fn waits(&self) -> Option<Arc<Waits>> {
        self.waits.get().cloned()
    }

    /// What is between the pool and its upstream.
    pub(crate) fn over(&self, upstream: Arc<dyn DeviceResource>) -> Arc<dyn DeviceResource> {
        match (&self.callbacks, self.waits.get()) {
            (Some(callbacks), _) => callbacks.over(upstream),
            (None, Some(waits)) => waits.over(upstream),
            (None, None) => upstream,
        }
    }

    /// A value that no vector of this program was filled with; those of programs differ, too.
    pub(crate) fn tag(&self) -> u32 {
        let number = self.next_tag.fetch_add(1, Ordering::Relaxed);
        (self.seed as u32).wrapping_mul(0x9e37_79b1) ^ number.wrapping_mul(0x0100_0193)
    }

    pub(crate) fn count(&self, name: &'static str) {
        lock(&self.tally).add(name, 1);
    }

    pub(crate) fn alive(&self) -> usize {
        self.vectors.now()
    }

    pub(crate) fn item(&self, vec: DeviceVec<u32>) -> Item {
        self.vectors.item(vec)
    }

    /// Fails if more is reserved than the policy of a program that sets nothing lets it be.
    ///
    /// All vectors are of one size, so what is free serves whatever is asked. Growth comes first while
    /// no more is free than 2 MiB or an eighth of what is live, and is itself 2 MiB or an eighth.
    /// Caches are let alone up to 8 MiB or an eighth of what is reserved. What the end of a range has
    /// too little for a block comes on top: less than a half of what a growth is.
    pub(crate) fn judge_reserved(&self, found: &PoolStatistics) -> Step {
        let Some(size) = self.setup.one_size() else { return Ok(()) };
        // What a thread asks for it has before it is counted.
        let live = (self.vectors.peak() + self.setup.threads) * size;
        let bound = live + live / 2 + (16 << 20);
        if found.peak_reserved <= bound {
            return Ok(());
        }
        Err(format!("{live} bytes were live at most, {bound} allow for: {found:?}"))
    }

    /// Fails if the simulated device has seen anything that no stream order allows.
    pub(crate) fn verdict(&self) -> Step {
        let Some(simulator) = &self.simulator else { return Ok(()) };
        match simulator.reports().first() {
            None => Ok(()),
            Some(report) => Err(format!("the device saw {:?}: {report}", report.kind())),
        }
    }

    pub(crate) fn fail(&self, failure: Failure) {
        self.failed.store(true, Ordering::Relaxed);
        lock(&self.failure).get_or_insert(failure);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub(crate) fn says(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            lock(trace).push(line());
        }
    }

    pub(crate) fn trace(&self) -> Vec<String> {
        self.trace.as_ref().map(|trace| lock(trace).clone()).unwrap_or_default()
    }
}
