//! Checks of every free against the allocations.

mod misuse;
mod table;

pub use misuse::{BlockUse, Misuse, MisuseKind};

use crate::debug_log::deferred_event;
use crate::driver::{FillWord, RawFill, is_forked_child};
use crate::error::Result;
use crate::error::catch_panic;
use crate::inside::{DeviceInside, StreamInside};
use crate::layout::DeviceLayout;
use crate::resource::asleep::require_awake;
use crate::resource::impls::{adaptor, debug_struct, forward};
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::trusted::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;
use table::CheckedTable;

type Handler = Arc<dyn Fn(&Misuse) + Send + Sync>;

/// The fill of freed blocks in builds with debug assertions.
const POISON: u8 = 0xDD;

/// A resource that checks every free against the allocations, before the upstream sees it.
///
/// A free is a [`Misuse`] in these cases:
///
/// - The block was freed before.
/// - It has another size or token.
/// - It was not handed out here.
/// - The stream is of another device.
///
/// The adaptor reports a misuse, by a [`tracing`](https://docs.rs/tracing) error or to
/// [`on_misuse`](CheckedOptions::on_misuse), and does not pass it on. The real block, if there is one,
/// stays allocated and can still be freed. A free on another stream of the device is legal.
/// [`require_same_stream`](CheckedOptions::require_same_stream) reports that too, and passes it on.
///
/// The adaptor remembers some 1024 frees in each of 16 sets of addresses. It reports an older double
/// free as one of a foreign pointer. Once the upstream hands an address out again, a late free of
/// the old block is found only if the size or the token differs.
///
/// In builds with debug assertions the adaptor fills a freed block with `0xDD` on the freeing stream.
/// So a use after the free computes nonsense at once. See [`poison`](CheckedOptions::poison).
///
/// Clones of the adaptor share the table. Put it on top, since pools and other adaptors trust the
/// caller. RMM has no counterpart, since its resources trust the pointer, the size and the stream.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, PoolResource, mr::CheckedAdaptor};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let pool = PoolResource::new(CudaResource::new(&device))?;
/// let checked = CheckedAdaptor::new(pool);
/// drop(DeviceVec::<f32>::zeroed_in(&stream, 1000, checked.clone())?);
/// assert_eq!(checked.misuses(), 0);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct CheckedAdaptor<U> {
    state: Arc<CheckedState<U>>,
}

adaptor!(CheckedAdaptor, state.upstream, rules, misuses);

struct CheckedState<U> {
    table: CheckedTable,
    started: Instant,
    misuses: AtomicU64,
    rules: CheckedRules,
    upstream: U,
}

#[derive(Clone)]
struct CheckedRules {
    poison: Option<u8>,
    same_stream: bool,
    handler: Option<Handler>,
}

/// The options of a [`CheckedAdaptor`].
///
/// ```
/// use aquifer::{CudaResource, Device, mr::CheckedAdaptor};
///
/// let device = Device::detect_or_simulate()?;
/// let checked = CheckedAdaptor::builder(CudaResource::new(&device))
///     .require_same_stream(true)
///     .poison(None)
///     .on_misuse(|misuse| eprintln!("{misuse}"))
///     .build();
/// assert_eq!(checked.misuses(), 0);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "options make nothing until `build`"]
pub struct CheckedOptions<U> {
    upstream: U,
    rules: CheckedRules,
}

impl<U: DeviceResource> CheckedOptions<U> {
    /// Whether to report a free on another stream than the allocation's. Such a free is legal, and
    /// passed on in any case. The default is `false`.
    pub fn require_same_stream(mut self, require: bool) -> Self {
        self.rules.same_stream = require;
        self
    }

    /// The fill of a block before it goes to the upstream, by one driver call on the freeing stream.
    /// `None` is no fill. The default is `Some(0xDD)` with debug assertions, and `None` without.
    ///
    /// A stream in capture gets no fill, since it would become a part of the graph, and run again
    /// over a later owner's block. A vector that was made in a capture and dropped later is
    /// filled, although the graph keeps its memory. So use `None` for graphs whose launches read
    /// the results of earlier ones there.
    pub fn poison(mut self, byte: Option<u8>) -> Self {
        self.rules.poison = byte;
        self
    }

    /// Calls `handler` for each misuse, in place of the [`tracing`](https://docs.rs/tracing) error.
    /// The handler runs on the thread that frees, or that allocates ([`MisuseKind::HandedOutTwice`]).
    /// No lock is held, so it may use the adaptor. Its panic is caught and logged.
    pub fn on_misuse(mut self, handler: impl Fn(&Misuse) + Send + Sync + 'static) -> Self {
        self.rules.handler = Some(Arc::new(handler));
        self
    }

    /// The adaptor.
    pub fn build(self) -> CheckedAdaptor<U> {
        let Self { upstream, rules } = self;
        let (table, misuses) = (CheckedTable::default(), AtomicU64::new(0));
        let state = CheckedState { table, started: Instant::now(), misuses, rules, upstream };
        CheckedAdaptor { state: Arc::new(state) }
    }
}

debug_struct!(CheckedRules { poison, same_stream, .. });

impl<U: DeviceResource> CheckedAdaptor<U> {
    /// Checks the allocations and frees that pass through from here on.
    pub fn new(upstream: U) -> Self {
        Self::builder(upstream).build()
    }

    /// The options, with their defaults.
    pub fn builder(upstream: U) -> CheckedOptions<U> {
        let poison = cfg!(debug_assertions).then_some(POISON);
        CheckedOptions {
            upstream,
            rules: CheckedRules { poison, same_stream: false, handler: None },
        }
    }
}

impl<U> CheckedAdaptor<U> {
    /// The number of reported misuses.
    pub fn misuses(&self) -> u64 {
        // Relaxed: the number orders no other memory.
        self.state.misuses.load(Ordering::Relaxed)
    }
}

impl<U: DeviceResource> CheckedState<U> {
    fn block_use(&self, stream: &Stream, block: &DeviceBlock) -> BlockUse {
        BlockUse {
            address: block.address(),
            bytes: block.bytes(),
            token: block.token(),
            stream_id: stream.id(),
            thread_id: thread::current().id(),
            after: self.started.elapsed(),
        }
    }

    /// Calls the handler, or logs. No lock is held.
    fn report(&self, kind: MisuseKind, call: BlockUse, known: Option<BlockUse>, stream: &Stream) {
        self.misuses.fetch_add(1, Ordering::Relaxed);
        let devices = [self.upstream.device(), stream.device()].map(ToString::to_string);
        let misuse = Misuse { kind, call, known, devices };
        let Some(handler) = &self.rules.handler else {
            let refused = if kind.is_refused() { ": refused" } else { "" };
            deferred_event!(error, ?kind, "{misuse}{refused}");
            return;
        };
        if catch_panic(|| handler(&misuse)).is_none() {
            deferred_event!(error, ?kind, "{misuse}; and the handler of misuses panicked");
        }
    }

    /// Whether the free may reach the upstream. Reports it if it is a misuse.
    fn allows_free(&self, stream: &Stream, block: &DeviceBlock) -> bool {
        let call = self.block_use(stream, block);
        if stream.device() != self.upstream.device() {
            let known = self.table.live(call.address);
            self.report(MisuseKind::WrongDevice, call, known, stream);
            return false;
        }
        match self.table.free(&call) {
            Err((kind, known)) => {
                self.report(kind, call, known, stream);
                false
            }
            Ok(known) => {
                if self.rules.same_stream && known.stream_id != call.stream_id {
                    self.report(MisuseKind::WrongStream, call, Some(known), stream);
                }
                true
            }
        }
    }

    /// Fills a block that is about to go to the upstream.
    fn poison(&self, stream: &Stream, block: &DeviceBlock) {
        let Some(byte) = self.rules.poison else { return };
        // An unknown state counts as a capture: a missing fill does less harm than a spoiled graph.
        let Ok(entered) = stream.begin_nested_call() else { return };
        // A block of a pool that sleeps has no memory to fill.
        if entered.is_capturing().unwrap_or(true) || require_awake(block.address()).is_err() {
            return;
        }
        let (target, word, count) = (block.address(), FillWord::U8(byte), block.bytes());
        let poison = RawFill { target, stride: 1, word, count };
        // SAFETY: the block is the upstream's, and is freed after this on the same stream; the caller
        // ordered all other use before.
        let filled = unsafe { stream.device().driver().fill(poison, entered.raw()) };
        if let Err(error) = filled
            && !error.is_gone()
        {
            let (device, error) = (stream.device().to_string(), error.to_string());
            deferred_event!(warn, %device, %error, "a freed block was not poisoned");
        }
    }
}

// SAFETY: every block is the upstream's, and goes back to it at most once for each allocation,
// unchanged; a block whose free is refused stays allocated.
unsafe impl<U: DeviceResource> DeviceResource for CheckedAdaptor<U> {
    forward!(device, peer_access, identity);

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let state = &*self.state;
        let block = state.upstream.allocate(stream, layout)?;
        // In the child of a fork a thread of the parent may hold a lock.
        if !block.is_empty() && !is_forked_child() {
            let call = state.block_use(stream, &block);
            let before = state.table.add(call.clone());
            if let Some(before) = before {
                state.report(MisuseKind::HandedOutTwice, call, Some(before), stream);
            }
        }
        Ok(block)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let state = &*self.state;
        // An empty block is not in the table. If its address is, the size is wrong.
        let is_unlisted =
            |block: &DeviceBlock| block.is_empty() && state.table.live(block.address()).is_none();
        if !is_forked_child() && !is_unlisted(&block) {
            if !state.allows_free(stream, &block) {
                return;
            }
            state.poison(stream, &block);
        }
        // SAFETY: the upstream handed this very block out and has not got it back; the caller vouches
        // for the order of its use.
        unsafe { state.upstream.deallocate(stream, block) }
    }
}
