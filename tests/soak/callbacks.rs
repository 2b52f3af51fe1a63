//! An upstream that calls back into the pool above it, as the callback of a `FailureCallbackAdaptor`
//! does that spills.

use crate::counts::Tally;
use crate::random::Random;
use crate::shared::{Current, Failure, Item, Vectors, lock};
use aquifer::{
    Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, Error, ErrorKind, Result, Stream,
};
use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Calls inside of calls.
const DEEPEST: usize = 3;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// What the calls of one program share.
pub(crate) struct Callbacks {
    on: AtomicBool,
    random: Mutex<Random>,
    pool: Arc<Current>,
    vectors: Vectors,
    /// What calls have made and others are to free.
    kept: Mutex<Vec<Item>>,
    pub(crate) tally: Mutex<Tally>,
    pub(crate) failure: Mutex<Option<Failure>>,
}

impl Callbacks {
    pub(crate) fn new(random: Random, pool: Arc<Current>, vectors: Vectors) -> Arc<Self> {
        Arc::new(Self {
            on: AtomicBool::new(true),
            random: Mutex::new(random),
            pool,
            vectors,
            kept: Mutex::default(),
            tally: Mutex::default(),
            failure: Mutex::default(),
        })
    }

    pub(crate) fn over(
        self: &Arc<Self>,
        upstream: Arc<dyn DeviceResource>,
    ) -> Arc<dyn DeviceResource> {
        Arc::new(CallingBack { upstream, calls: self.clone() })
    }

    /// From now on upstream is a plain one. What was made goes.
    pub(crate) fn stop(&self) -> Vec<Item> {
        self.on.store(false, Ordering::Relaxed);
        std::mem::take(&mut *lock(&self.kept))
    }

    /// Uses the pool as its callback. No lock of the soak's is held over that.
    fn call(&self, stream: &Stream) {
        if !self.on.load(Ordering::Relaxed) || DEPTH.get() >= DEEPEST {
            return;
        }
        let Some((pool, resource)) = lock(&self.pool).clone() else { return };
        DEPTH.set(DEPTH.get() + 1);
        let (what, length) = {
            let mut random = lock(&self.random);
            (random.below(20), 1 + random.below(2048))
        };
        let count = |name| lock(&self.tally).add(name, 1);
        match what {
            0..3 => match DeviceVec::<u32>::with_capacity_in(stream, length, resource) {
                Ok(vec) => {
                    count("callbacks that allocate");
                    let item = self.vectors.item(vec);
                    if what > 0 {
                        lock(&self.kept).push(item);
                    }
                }
                Err(error) => self.judge(&error),
            },
            3 | 4 => {
                let item = lock(&self.kept).pop();
                if item.is_some() {
                    count("callbacks that free");
                }
                drop(item);
            }
            5 | 6 => {
                let keep = if what == 5 { 0 } else { 4 * length };
                match pool.wait_and_trim(keep) {
                    Ok(_) => count("callbacks that trim"),
                    Err(error) => self.judge(&error),
                }
            }
            7 => drop(pool.statistics()),
            _ => {}
        }
        DEPTH.set(DEPTH.get() - 1);
    }

    fn judge(&self, error: &Error) {
        if error.kind() != ErrorKind::OutOfMemory {
            let why = format!("inside of upstream: {:?}: {error}", error.kind());
            lock(&self.failure).get_or_insert(why);
        }
    }
}

struct CallingBack {
    upstream: Arc<dyn DeviceResource>,
    calls: Arc<Callbacks>,
}

impl fmt::Debug for CallingBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallingBack").field(&self.upstream).finish()
    }
}

// SAFETY: every block is the upstream's, and goes back to it unchanged.
unsafe impl DeviceResource for CallingBack {
    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.calls.call(stream);
        let found = self.upstream.allocate(stream, layout);
        if found.is_err() {
            self.calls.call(stream);
            return self.upstream.allocate(stream, layout);
        }
        self.calls.call(stream);
        found
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        self.calls.call(stream);
        // SAFETY: the block is the upstream's; our caller vouches for the rest.
        unsafe { self.upstream.deallocate(stream, block) };
        self.calls.call(stream);
    }
}
