//! A resource that believes nothing it is told about a block.

mod books;
mod misuse;

pub use misuse::{BlockUse, Misuse, MisuseKind};

use super::caught::caught;
use super::handles::{handles, identity_by};
use crate::backend::{FillWord, is_forked_child};
use crate::debug_log::{event, later};
use crate::device::Device;
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::resource::{DeviceBlock, DeviceResource, HostAccessible};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::trusted::{AtomicU64, Ordering};
use books::Books;
use std::fmt;
use std::ptr::NonNull;
use std::thread;
use std::time::Instant;

type Handler = Arc<dyn Fn(&Misuse) + Send + Sync>;

/// The byte that freed blocks are filled with in builds with debug assertions.
const POISON: u8 = 0xDD;

/// Checks every free against what was handed out, before upstream sees it.
///
/// A block that was freed before, has another size or token, was never handed out here, or comes on
/// a stream of another device is a [`Misuse`]: it is reported, by a [`tracing`] error unless
/// [`on_misuse`](CheckedOptions::on_misuse) says otherwise, and leaked instead of passed on. The
/// real block, where there is one, stays allocated and can still be freed right. A free on another
/// stream of the device is legal; [`require_same_stream`](CheckedOptions::require_same_stream) has it
/// reported too, and passes it on.
///
/// What was freed twice is told from what was never here for the last 1024 frees or so in each of 16
/// ranges of addresses. An address that was handed out again in between is its new owner's: a late
/// free of the old block is then seen only if the size or the token differs.
///
/// In builds with debug assertions a block is filled with `0xDD` on the stream that frees it, so that
/// work which uses it too long computes nonsense at once: see [`poison`](CheckedOptions::poison).
///
/// A handle: clones share the books. It goes on top: pools and adaptors that count trust the caller. RMM has
/// nothing like it: each of its resources trusts the pointer, the size and the stream.
///
/// ```
/// use aquifer::{CheckedAdaptor, CudaResource, Device, DeviceVec, PoolResource};
/// use std::sync::Arc;
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let pool = PoolResource::new(CudaResource::new(&device))?;
/// let checked = CheckedAdaptor::new(pool);
/// drop(DeviceVec::<f32>::zeroed_in(&stream, 1000, Arc::new(checked.clone()))?);
/// assert_eq!(checked.misuses(), 0);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct CheckedAdaptor<U> {
    state: Arc<State<U>>,
}

struct State<U> {
    books: Books,
    started: Instant,
    misuses: AtomicU64,
    rules: Rules,
    upstream: U,
}

#[derive(Clone)]
struct Rules {
    poison: Option<u8>,
    same_stream: bool,
    handler: Option<Handler>,
}

/// The options of a [`CheckedAdaptor`].
///
/// ```
/// use aquifer::{CheckedAdaptor, CudaResource, Device};
///
/// let device = Device::detect()?;
/// let checked = CheckedAdaptor::builder(CudaResource::new(&device))
///     .require_same_stream(true)
///     .poison(None)
///     .on_misuse(|misuse| eprintln!("{misuse}"))
///     .build();
/// assert_eq!(checked.misuses(), 0);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "options make nothing until `build`"]
pub struct CheckedOptions<U> {
    upstream: U,
    rules: Rules,
}

impl<U: DeviceResource> CheckedOptions<U> {
    /// Whether a free on another stream than the allocation's is reported. `false` unless set, since
    /// it is legal; where it is reported it is passed on all the same.
    pub fn require_same_stream(mut self, require: bool) -> Self {
        self.rules.same_stream = require;
        self
    }

    /// The byte that a block is filled with before it goes to upstream, by one driver call on the
    /// stream that frees it; `None` for no fill. `Some(0xDD)` with debug assertions and `None` without
    /// unless set. On a stream in capture nothing is filled: the fill would become a part of the
    /// graph, and run again over somebody else's block. A vector that was made in a capture is filled
    /// when it is dropped later, though the graph keeps its memory: `None` is for graphs whose launches
    /// go on with what earlier ones left there.
    pub fn poison(mut self, byte: Option<u8>) -> Self {
        self.rules.poison = byte;
        self
    }

    /// Who is told of a misuse, in place of the [`tracing`] error. Called on the thread that frees,
    /// or allocates ([`MisuseKind::HandedOutTwice`]), with no lock held: it may use the adaptor. If it panics, the panic is logged and ends there.
    pub fn on_misuse(mut self, handler: impl Fn(&Misuse) + Send + Sync + 'static) -> Self {
        self.rules.handler = Some(Arc::new(handler));
        self
    }

    /// The adaptor.
    pub fn build(self) -> CheckedAdaptor<U> {
        let Self { upstream, rules } = self;
        let (books, misuses) = (Books::default(), AtomicU64::new(0));
        let state = State { books, started: Instant::now(), misuses, rules, upstream };
        CheckedAdaptor { state: Arc::new(state) }
    }
}

impl<U: fmt::Debug> fmt::Debug for CheckedOptions<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckedOptions")
            .field("upstream", &self.upstream)
            .field("rules", &self.rules)
            .finish()
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("poison", &self.poison)
            .field("same_stream", &self.same_stream)
            .finish_non_exhaustive()
    }
}

impl<U: DeviceResource> CheckedAdaptor<U> {
    /// Checks what passes to and from `upstream` from here on.
    pub fn new(upstream: U) -> Self {
        Self::builder(upstream).build()
    }

    /// Options to set before the adaptor is made.
    pub fn builder(upstream: U) -> CheckedOptions<U> {
        let poison = cfg!(debug_assertions).then_some(POISON);
        CheckedOptions { upstream, rules: Rules { poison, same_stream: false, handler: None } }
    }
}

impl<U> CheckedAdaptor<U> {
    /// The resource below.
    pub fn upstream(&self) -> &U {
        &self.state.upstream
    }

    /// How many misuses were reported.
    pub fn misuses(&self) -> u64 {
        // Relaxed: a number that orders nothing.
        self.state.misuses.load(Ordering::Relaxed)
    }
}

impl<U: DeviceResource> State<U> {
    fn call(&self, stream: &Stream, block: &DeviceBlock) -> BlockUse {
        BlockUse {
            address: block.address(),
            bytes: block.bytes(),
            token: block.token(),
            stream: stream.id(),
            thread: thread::current().id(),
            after: self.started.elapsed(),
        }
    }

    /// Tells the handler. No lock is held.
    fn report(&self, kind: MisuseKind, call: BlockUse, known: Option<BlockUse>, stream: &Stream) {
        self.misuses.fetch_add(1, Ordering::Relaxed);
        let devices = [self.upstream.device(), stream.device()].map(ToString::to_string);
        let misuse = Misuse { kind, call, known, devices };
        let Some(handler) = &self.rules.handler else {
            let leaked = if kind.is_refused() { ": leaked" } else { "" };
            later(move || event!(error, ?kind, "{misuse}{leaked}"));
            return;
        };
        if caught(|| handler(&misuse)).is_none() {
            later(move || {
                event!(error, ?kind, "{misuse}; and the handler of misuses panicked");
            });
        }
    }

    /// Whether upstream may have the block.
    fn admits(&self, stream: &Stream, block: &DeviceBlock) -> bool {
        let call = self.call(stream, block);
        if stream.device() != self.upstream.device() {
            let known = self.books.live(call.address);
            self.report(MisuseKind::WrongDevice, call, known, stream);
            return false;
        }
        match self.books.free(&call) {
            Err((kind, known)) => {
                self.report(kind, call, known, stream);
                false
            }
            Ok(known) => {
                if self.rules.same_stream && known.stream != call.stream {
                    self.report(MisuseKind::WrongStream, call, Some(known), stream);
                }
                true
            }
        }
    }

    /// Overwrites a block that is on its way to upstream.
    fn poison(&self, stream: &Stream, block: &DeviceBlock) {
        let Some(byte) = self.rules.poison else { return };
        // What cannot be told counts as a capture: the fill is a help, a spoiled graph is harm.
        if stream.is_capturing().unwrap_or(true) {
            return;
        }
        let word = FillWord::U8(byte);
        // SAFETY: the block is upstream's and is freed after this on the same stream; the caller
        // ordered all other use before.
        let filled = unsafe {
            stream.device().driver().fill(block.address(), 1, word, block.bytes(), stream.raw())
        };
        if let Err(error) = filled
            && !error.is_gone()
        {
            let (device, error) = (stream.device().to_string(), error.to_string());
            later(move || event!(warn, %device, %error, "a freed block was not poisoned"));
        }
    }
}

// `frees_with_driver` stays `false`: a block that the driver frees would pass the checks by.
//
// SAFETY: blocks are upstream's own, and go back to it at most once for each allocation, unchanged;
// what does not is leaked.
unsafe impl<U: DeviceResource> DeviceResource for CheckedAdaptor<U> {
    fn device(&self) -> &Device {
        self.state.upstream.device()
    }

    identity_by!(state);

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let state = &*self.state;
        let block = state.upstream.allocate(stream, layout)?;
        // In the child of a fork a lock may be held by a thread that is not there.
        if !block.is_empty() && !is_forked_child() {
            let call = state.call(stream, &block);
            let before = state.books.add(call.clone());
            if let Some(before) = before {
                state.report(MisuseKind::HandedOutTwice, call, Some(before), stream);
            }
        }
        Ok(block)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let state = &*self.state;
        // An empty block has no memory, and its address is nobody's: only if the books know that
        // address is it a block with a wrong size.
        let nothing =
            |block: &DeviceBlock| block.is_empty() && state.books.live(block.address()).is_none();
        if !is_forked_child() && !nothing(&block) {
            if !state.admits(stream, &block) {
                return;
            }
            state.poison(stream, &block);
        }
        // SAFETY: upstream handed this very block out and has not got it back; the order of its use
        // is the caller's promise.
        unsafe { state.upstream.deallocate(stream, block) }
    }
}

// SAFETY: the blocks are upstream's, unchanged.
unsafe impl<U: HostAccessible> HostAccessible for CheckedAdaptor<U> {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        self.state.upstream.host_pointer(block)
    }
}

handles! {
    /// Equal if they are handles on the same books.
    CheckedAdaptor, state
}

impl<U: fmt::Debug> fmt::Debug for CheckedAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckedAdaptor")
            .field("upstream", &self.state.upstream)
            .field("rules", &self.state.rules)
            .field("misuses", &self.misuses())
            .finish_non_exhaustive()
    }
}
