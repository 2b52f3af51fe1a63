//! Wrong uses of a block.

use crate::impls::Count;
use crate::resource::impls::getters;
use std::fmt;
use std::thread::ThreadId;
use std::time::Duration;

/// The kinds of a [`Misuse`] that a [`CheckedAdaptor`](crate::mr::CheckedAdaptor) finds. Later versions may
/// add more.
///
/// ```
/// use aquifer::mr::MisuseKind;
///
/// assert!(MisuseKind::DoubleFree.is_refused());
/// assert!(!MisuseKind::WrongStream.is_refused());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MisuseKind {
    /// The block was freed before, and its address not handed out since.
    DoubleFree,
    /// The block was freed with a size that is not its own. It stays allocated.
    WrongSize,
    /// The block was freed with a token that is not its own. It stays allocated.
    WrongToken,
    /// No block that starts at this address was handed out here, as far as the adaptor remembers.
    ForeignPointer,
    /// The block was freed on a stream of another device. It stays allocated.
    WrongDevice,
    /// The block was freed on another stream than it was allocated on, with
    /// [`require_same_stream`](crate::mr::CheckedOptions::require_same_stream).
    WrongStream,
    /// The upstream handed out an address that was not freed here. It was freed past the
    /// adaptor, or the upstream is broken.
    HandedOutTwice,
}

impl MisuseKind {
    /// Whether the free was refused, so that the upstream never saw it. The other kinds are sound, and
    /// were passed on.
    pub fn is_refused(self) -> bool {
        !matches!(self, Self::WrongStream | Self::HandedOutTwice)
    }
}

/// One call on a block, with its arguments, thread and time.
///
/// ```
/// use aquifer::mr::BlockUse;
///
/// fn place(known: &BlockUse) -> (u64, usize) {
///     (known.address(), known.bytes())
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockUse {
    pub(super) address: u64,
    pub(super) bytes: usize,
    pub(super) token: u64,
    pub(super) stream_id: u64,
    pub(super) thread_id: ThreadId,
    pub(super) after: Duration,
}

impl BlockUse {
    getters! {
        /// The device's address of the first byte.
        address: u64;

        /// The size in bytes.
        bytes: usize;

        /// The token of the upstream resource.
        token: u64;

        /// The [number](crate::Stream::id) of the stream.
        stream_id: u64;

        /// The thread that called.
        thread_id: ThreadId;

        /// The time of the call, since the adaptor was made.
        after: Duration;
    }
}

impl fmt::Display for BlockUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at {:#x} (token {:#x}) on stream {} by {:?}, after {:?}",
            Count(self.bytes, "byte"),
            self.address,
            self.token,
            self.stream_id,
            self.thread_id,
            self.after
        )
    }
}

/// A wrong use of a block, with its kind, the wrong call, and the earlier call that it contradicts.
///
/// RMM has no counterpart, since its resources trust each pointer, size and stream that they get.
///
/// ```
/// use aquifer::{
///     CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource,
///     mr::{CheckedAdaptor, MisuseKind},
/// };
/// use std::sync::{Arc, Mutex};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let seen = Arc::new(Mutex::new(Vec::new()));
/// let checked = CheckedAdaptor::builder(CudaResource::new(&device))
///     .on_misuse({
///         let seen = seen.clone();
///         move |misuse| seen.lock().unwrap().push(misuse.clone())
///     })
///     .build();
/// let block = checked.allocate(&stream, DeviceLayout::new(4096)?)?;
/// let wrong = DeviceBlock::new(block.address(), 4000, block.token());
/// // SAFETY: wrong by its size alone, which the adaptor checks; then the block itself, once.
/// unsafe { checked.deallocate(&stream, wrong) };
/// unsafe { checked.deallocate(&stream, block) };
/// let seen = seen.lock().unwrap();
/// assert_eq!(seen[0].kind(), MisuseKind::WrongSize);
/// assert_eq!((seen[0].call().bytes(), seen[0].known().unwrap().bytes()), (4000, 4096));
/// assert_eq!(seen.len(), 1);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misuse {
    pub(super) kind: MisuseKind,
    pub(super) call: BlockUse,
    pub(super) known: Option<BlockUse>,
    pub(super) devices: [String; 2],
}

impl Misuse {
    /// The kind.
    pub fn kind(&self) -> MisuseKind {
        self.kind
    }

    /// The wrong call, which is a free, or for [`MisuseKind::HandedOutTwice`] an allocation.
    pub fn call(&self) -> &BlockUse {
        &self.call
    }

    /// The earlier call, which depends on the kind:
    ///
    /// - [`MisuseKind::DoubleFree`] has the first free.
    /// - [`MisuseKind::ForeignPointer`] inside of a live block has the allocation of that block.
    /// - All other kinds have the allocation of the block.
    pub fn known(&self) -> Option<&BlockUse> {
        self.known.as_ref()
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [device, stream_device] = &self.devices;
        let (misuse, known_as) = match self.kind {
            MisuseKind::DoubleFree => ("a block was freed twice", "first freed"),
            MisuseKind::WrongSize => ("a block was freed with a wrong size", "allocated"),
            MisuseKind::WrongToken => ("a block was freed with a wrong token", "allocated"),
            MisuseKind::ForeignPointer => {
                ("a block was freed that was not handed out here", "inside of a block allocated")
            }
            MisuseKind::WrongDevice => {
                ("a block was freed on a stream of another device", "allocated")
            }
            MisuseKind::WrongStream => ("a block was freed on another stream", "allocated"),
            MisuseKind::HandedOutTwice => {
                ("upstream handed out a block that was not freed here", "allocated before")
            }
        };
        write!(f, "{misuse} on {device}: {}", self.call)?;
        if self.kind == MisuseKind::WrongDevice {
            // Two simulated devices may have one ordinal.
            let another = if device == stream_device { "another " } else { "" };
            write!(f, ", of {another}{stream_device}")?;
        }
        match &self.known {
            Some(known) => write!(f, "; {known_as}: {known}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Misuse {}
