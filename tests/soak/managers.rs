//! A memory manager between the program and its pool, as NBEP 7 has it: what is freed waits in a list, and longer
//! in a scope that defers cleanup.
//!
//! The process's own choice of a manager (`set_memory_manager`) is made once and is for all devices, so it is no
//! program's: this one is called for its resource's memory.

use crate::player::Player;
use crate::shared::{Failure, Shared, Step, lock, unexpected};
use aquifer::{
    Device, DeviceBlock, DeviceLayout, DeviceResource, ErrorKind, Result, Stream,
    device::MemoryInfo,
    nbep7::{
        DeferCleanup, DeviceMemoryManager, HostOnly, MemoryManager, MemoryPointer,
        PendingDeallocations, ResourceMemoryManager,
    },
};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What waits at most.
const MOST: usize = 3;

/// A pool's memory, whose deallocations wait.
struct Deferring {
    pool: ResourceMemoryManager,
    pending: PendingDeallocations,
    scopes: Arc<Scopes>,
}

/// The scopes that the program has open.
#[derive(Default)]
struct Scopes {
    open: AtomicUsize,
    /// Memory has run out, so that no scope defers anything.
    is_clearing: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl fmt::Debug for Deferring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Deferring").field(&self.pending).finish()
    }
}

impl Deferring {
    fn clear(&self) {
        self.scopes.is_clearing.store(true, Ordering::Relaxed);
        self.pending.clear();
        self.scopes.is_clearing.store(false, Ordering::Relaxed);
    }
}

// SAFETY: the memory is the pool's, and goes back to it when its finalizer runs.
unsafe impl DeviceMemoryManager for Deferring {
    fn memalloc(&self, stream: &Stream, layout: DeviceLayout) -> Result<MemoryPointer> {
        self.pool.memalloc(stream, layout).or_else(|error| match error.kind() {
            ErrorKind::OutOfMemory => {
                self.clear();
                self.pool.memalloc(stream, layout)
            }
            _ => Err(error),
        })
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.pool.memory_info()
    }

    fn reset(&self) -> Result<()> {
        self.clear();
        Ok(())
    }

    fn defer_cleanup(&self) -> DeferCleanup {
        self.pending.defer_cleanup()
    }
}

/// A program's manager, as a resource of the program's vectors.
pub(crate) struct Managed {
    device: Device,
    /// Whose memory it is: a child of a fork leaves it alone.
    process: u32,
    in_turns: bool,
    manager: HostOnly<Deferring>,
    /// What the vectors have, by its address.
    pointers: Mutex<HashMap<u64, MemoryPointer>>,
    open: Mutex<Vec<DeferCleanup>>,
}

impl Managed {
    /// The manager of what comes from `pool`.
    pub(crate) fn new(pool: Arc<dyn DeviceResource>, in_turns: bool) -> Result<Arc<Self>> {
        let device = pool.device().clone();
        let device_memory = Deferring {
            pool: ResourceMemoryManager::new(pool),
            pending: PendingDeallocations::new(MOST, 1 << 20),
            scopes: Arc::default(),
        };
        Ok(Arc::new(Self {
            manager: HostOnly::new(&device, device_memory)?,
            device,
            process: std::process::id(),
            in_turns,
            pointers: Mutex::default(),
            open: Mutex::default(),
        }))
    }

    fn deferring(&self) -> &Deferring {
        self.manager.device_memory()
    }

    /// Deallocations that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.deferring().pending.len()
    }

    /// Fails if a deallocation did not wait as long as it had to.
    pub(crate) fn verdict(&self) -> Step {
        lock(&self.deferring().scopes.failure).take().map_or(Ok(()), Err)
    }

    /// A scope begins.
    fn defer(&self) {
        let scope = self.manager.defer_cleanup();
        self.deferring().scopes.open.fetch_add(1, Ordering::Relaxed);
        lock(&self.open).push(scope);
    }

    /// A scope ends, if one is open. At the end of the last one what is too much goes.
    fn go_on(&self) -> bool {
        let Some(scope) = lock(&self.open).pop() else { return false };
        let scopes = &self.deferring().scopes;
        let left = scopes.open.fetch_sub(1, Ordering::Relaxed) - 1;
        drop(scope);
        let waiting = self.waiting();
        if self.in_turns && left == 0 && waiting > MOST {
            let why = format!("{waiting} deallocations wait, and no scope is open");
            lock(&scopes.failure).get_or_insert(why);
        }
        true
    }

    /// Ends all scopes, and has all that waits go.
    pub(crate) fn reset(&self) -> Step {
        while self.go_on() {}
        self.manager.reset().map_err(unexpected("resetting a memory manager"))?;
        match self.waiting() {
            0 => self.verdict(),
            left => Err(format!("{left} deallocations wait after a reset")),
        }
    }

    fn free(&self, stream: &Stream, block: DeviceBlock) {
        let Some(memory) = lock(&self.pointers).remove(&block.address()) else { return };
        // SAFETY: all work on the block was given to this stream, or is ordered before.
        unsafe { memory.clone().free_on(stream) };
        let (scopes, in_turns) = (self.deferring().scopes.clone(), self.in_turns);
        self.deferring().pending.push(block.bytes(), move || {
            // A thread that races may have taken this out before the scope began.
            if in_turns
                && scopes.open.load(Ordering::Relaxed) > 0
                && !scopes.is_clearing.load(Ordering::Relaxed)
            {
                let why = "a deallocation did not wait for the end of its scope";
                lock(&scopes.failure).get_or_insert(why.into());
            }
            drop(memory);
        });
    }
}

impl fmt::Debug for Managed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Managed").field(self.deferring()).finish()
    }
}

// SAFETY: every block is the manager's, which has it once.
unsafe impl DeviceResource for Managed {
    fn device(&self) -> &Device {
        &self.device
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        if layout.bytes() == 0 {
            return Ok(DeviceBlock::empty(layout));
        }
        let memory = self.manager.memalloc(stream, layout)?;
        let block = DeviceBlock::new(memory.address(), memory.bytes(), 0);
        lock(&self.pointers).insert(memory.address(), memory);
        Ok(block)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        if !block.is_empty() && std::process::id() == self.process {
            self.free(stream, block);
        }
    }
}

impl Shared {
    /// Deallocations that the program's manager lets wait.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.managed).as_ref().map_or(0, |managed| managed.waiting())
    }
}

impl Player<'_> {
    /// Asks something of the program's memory manager.
    pub(crate) fn manage(&mut self) -> Step {
        let Some(managed) = lock(&self.shared.managed).clone() else { return self.make() };
        match self.random.below(5) {
            0 | 1 => {
                self.says(|| "cleanup is deferred".into());
                managed.defer();
                self.shared.count("scopes of deferred cleanup");
            }
            2 | 3 => {
                let waiting = managed.waiting();
                self.says(|| format!("a scope of cleanup ends, {waiting} wait"));
                if managed.go_on() && managed.waiting() < waiting {
                    self.shared.count("cleanups at a scope's end");
                }
            }
            _ => {
                self.says(|| "the manager is reset".into());
                managed.manager.reset().map_err(unexpected("resetting a memory manager"))?;
                self.shared.count("managers reset");
            }
        }
        managed.verdict()
    }
}
