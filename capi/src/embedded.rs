//! For a library in Rust that contains this one, as Python's does: stacks of resources that no text describes, the choice
//! of the process's own stack, and streams of other libraries.
//!
//! Nothing here is of the C interface, and it changes as that library needs.

use crate::handles::{self, aquifer_stack};
use crate::stack::{self, Stack};
use crate::table::forked;
use crate::{fork, host, memory, open_streams, shadowed, status};
use aquifer_rs::{Device, Stream, mr::ResourceStack, pinned::PinnedPool};

pub use crate::status::Failure;

/// What a call of this library returns.
pub type Result<T> = std::result::Result<T, Failure>;

/// Whether the resources of a stack call code of the program, which may call this library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callbacks {
    /// As the resources of a text.
    None,
    /// A callback of the program allocates, or is told of failures.
    Some,
}

/// A stack of resources that C functions can use as well, as long as this is there or blocks of it are.
#[derive(Debug)]
pub struct OwnStack {
    number: u32,
    resources: ResourceStack,
}

impl OwnStack {
    /// Makes a stack of resources.
    pub fn new(resources: ResourceStack, callbacks: Callbacks) -> Self {
        let number = Stack::register(resources.clone(), callbacks == Callbacks::Some);
        Self { number, resources }
    }

    /// The process's own stack of a device: what was set, or what `AQUIFER_STACK` describes, or a pool.
    ///
    /// # Errors
    ///
    /// Of the device, of the variable, and of building the stack.
    pub fn default_of(ordinal: i32) -> Result<Self> {
        not_forked()?;
        let number = Stack::default_of(ordinal)?;
        let stack = stack::get(number)?;
        stack.retain();
        Ok(Self { number, resources: stack.resources.clone() })
    }

    /// Makes this the process's own stack of its device, from which hosts allocate.
    ///
    /// # Errors
    ///
    /// While the one before is in a capture that a host began.
    pub fn set_default(&self) -> Result<()> {
        not_forked()?;
        Stack::set_default(self.number)
    }

    /// Whether its resources call code of the program.
    pub fn has_callbacks(&self) -> bool {
        stack::get(self.number).is_ok_and(|stack| stack.has_callbacks())
    }

    /// Its resources.
    pub fn resources(&self) -> &ResourceStack {
        &self.resources
    }

    /// Its handle in C.
    pub fn handle(&self) -> *mut aquifer_stack {
        handles::stack_handle(self.number)
    }

    /// Memory for work on a stream, which [`deallocate`] frees. No bytes give 0.
    ///
    /// # Errors
    ///
    /// Of the resources.
    pub fn allocate(&self, bytes: usize, stream: &OpenStream) -> Result<u64> {
        not_forked()?;
        status::guarded(|| memory::allocate(self.number, bytes, 0, stream.number))
    }
}

impl Drop for OwnStack {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        let _ = status::guard(|| {
            if let Some(last) = stack::release(self.number)? {
                last.close();
            }
            Ok(())
        });
    }
}

/// The pool of page-locked memory, which the C functions have as well.
///
/// # Errors
///
/// Of the device, and in the child of a fork.
pub fn host_pool() -> Result<&'static PinnedPool> {
    not_forked()?;
    host::pool()
}

/// Calls a callback of a resource, which may allocate by this library what it hands out, and free it.
pub fn in_callback<T>(body: impl FnOnce() -> T) -> T {
    shadowed::in_callback(body)
}

/// Frees a block in the order of a stream, or of the one that it was allocated on.
///
/// # Errors
///
/// For what is no block, and one that was freed before.
///
/// # Safety
///
/// Work that uses the block was given to the stream before, or is ordered before that.
pub unsafe fn deallocate(address: u64, bytes: usize, stream: Option<&OpenStream>) -> Result<()> {
    not_forked()?;
    status::guarded(|| memory::deallocate(address, bytes, stream.map(|stream| stream.number)))
}

/// A stream that is open: what was allocated on it goes on without it after the last [`OpenStream`] of it is dropped.
#[derive(Debug)]
pub struct OpenStream {
    /// 0 once it is closed.
    number: u32,
    stream: Stream,
}

impl OpenStream {
    /// Opens a stream.
    pub fn new(stream: Stream) -> Self {
        Self { number: open_streams::open(stream.clone()), stream }
    }

    /// Opens another library's stream by its handle.
    ///
    /// # Errors
    ///
    /// As `Stream::from_handle`.
    ///
    /// # Safety
    ///
    /// The handle is of a stream of the device's primary context, which is not destroyed before this and all other open
    /// ones of it are dropped.
    pub unsafe fn from_handle(device: &Device, handle: u64) -> Result<Self> {
        // SAFETY: the caller's promise.
        Ok(Self::new(unsafe { Stream::from_handle(device, handle)? }))
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Closes it, as a drop does. It comes back where it cannot be closed now, as the stream is in capture: its owner keeps
    /// it until then.
    ///
    /// # Errors
    ///
    /// This, open still.
    pub fn close(mut self) -> std::result::Result<(), Self> {
        if !fork::is_child() && status::guarded(|| memory::close_stream(self.number)).is_err() {
            return Err(self);
        }
        self.number = 0;
        Ok(())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        if self.number == 0 || fork::is_child() {
            return;
        }
        // One that is in capture stays open: it is not destroyed while that lasts.
        let _ = status::guard(|| memory::close_stream(self.number));
    }
}

/// From now on device 0 is a simulated one where there is no GPU. A device that was asked for before stays what it was.
///
/// # Errors
///
/// Where there is no device all the same.
pub fn simulate() -> Result<Device> {
    not_forked()?;
    stack::simulate();
    stack::device(0)
}

/// A device by its number. With `AQUIFER_BACKEND=sim`, or after [`simulate`] where there is no GPU, 0 is the simulated
/// device.
///
/// # Errors
///
/// Where there is none of the number.
pub fn device(ordinal: i32) -> Result<Device> {
    not_forked()?;
    stack::device(ordinal)
}

/// Whether this is the child of a fork whose parent had opened a device: another thread of that may have had any lock.
pub fn is_forked_child() -> bool {
    fork::is_child()
}

fn not_forked() -> Result<()> {
    if fork::is_child() { Err(forked()) } else { Ok(()) }
}
