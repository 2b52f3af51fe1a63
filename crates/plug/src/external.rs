//! A memory manager as the layers below see it, which is a resource and a source of page-locked memory.

use super::ipc::IpcHandle;
use super::memory_manager::{HostAllocFlags, INTERFACE_VERSION, MemoryManager};
use super::pending::DeferCleanup;
use super::pointers::{MemoryPointer, PinnedMemory};
use crate::debug_log::deferred_event;
use crate::device::Device;
use crate::driver::{HostFlags, MemoryInfo, is_forked_child, not_forked};
use crate::error::{Error, ErrorKind, Result, catch_panic_text};
use crate::impls::{Count, debug_struct};
use crate::layout::DeviceLayout;
use crate::resource::external::{self, ExternalHostMemory, ExternalMemory};
use crate::resource::{DeviceBlock, DeviceResource, ResourceId};
use crate::stream::Stream;
use crate::sync::trusted::Mutex;
use crate::sync::{Arc, assert_unlocked};
use std::any::Any;
use std::collections::HashMap;
use std::ptr::NonNull;

/// A manager's memory of one device.
pub(super) struct ManagerMemory {
    name: String,
    device: Device,
    manager: Arc<dyn MemoryManager>,
    /// Page-locked memory that is in use, by its address. The drop of an entry gives it back to the
    /// manager. Each user of the memory keeps this value.
    pinned: Mutex<HashMap<usize, PinnedMemory>>,
}

impl ManagerMemory {
    /// The memory of a manager of the right version, which is made ready.
    pub(super) fn open(
        name: &str,
        device: &Device,
        manager: Arc<dyn MemoryManager>,
    ) -> Result<Arc<dyn ExternalMemory>> {
        let (name, device, pinned) = (name.into(), device.clone(), Mutex::default());
        let memory = Self { name, device, manager, pinned };
        let version =
            memory.call("to tell its version", || Ok(memory.manager.interface_version()))?;
        if version != INTERFACE_VERSION {
            let what = format!(
                "the memory manager {} has version {version} of the interface, where version \
                 {INTERFACE_VERSION} is required",
                memory.name
            );
            return Err(Error::new(ErrorKind::Unsupported, what)
                .with_advice("use a version of the manager that fits this version of aquifer"));
        }
        memory.call("to initialize", || memory.manager.initialize()).map_err(|error| {
            let (name, device) = (&memory.name, &memory.device);
            error.within(format_args!("initializing the memory manager {name} for {device}"))
        })?;
        Ok(Arc::new(memory))
    }

    /// Runs a call of the manager. A panic is an error, and a call of the manager for
    /// memory does not come back here.
    fn call<T>(&self, what: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        // Its memory and its locks are the parent's.
        not_forked("a memory manager")?;
        assert_unlocked("a call of a memory manager");
        external::inside(|| catch_panic_text(call)).unwrap_or_else(|text| {
            let text = text.as_deref().unwrap_or("it threw no text");
            let what =
                format!("the memory manager {} was asked {what}, and panicked: {text}", self.name);
            Err(Error::new(ErrorKind::Unsupported, what)
                .with_advice("have the memory manager return an Error"))
        })
    }

    /// The error of memory that does not fit the request.
    fn unfit(&self, asked: &str, given: &str) -> Error {
        let what =
            format!("the memory manager {} was asked for {asked}, and gave {given}", self.name);
        Error::new(ErrorKind::Unsupported, what)
            .with_advice("use a memory manager that gives all that was asked")
    }

    fn keep(&self, memory: PinnedMemory) {
        let before = self.pinned.lock().insert(memory.pointer().addr().get(), memory);
        // Not under the lock: a finalizer is the manager's own code.
        drop(before);
    }

    fn release(&self, base: NonNull<u8>) {
        let released = self.pinned.lock().remove(&base.addr().get());
        drop(released);
    }
}

debug_struct!(ManagerMemory { name, device, manager, .. });

// SAFETY: the memory is the manager's, which keeps the contract of `MemoryManager`; what is too small or not aligned is
// refused. A block's token is its share of a `MemoryPointer`, which keeps it valid.
unsafe impl DeviceResource for ManagerMemory {
    fn device(&self) -> &Device {
        &self.device
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_object(self)
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.device.require(stream.device(), "the stream")?;
        if layout.bytes() == 0 {
            return Ok(DeviceBlock::empty(layout));
        }
        if external::is_inside() {
            return Err(external::reentered());
        }
        let asked = || {
            let (bytes, alignment) = (Count(layout.bytes(), "byte"), layout.alignment());
            format!("{bytes} aligned to {alignment}")
        };
        let pointer = self.memalloc(stream, layout)?;
        let (address, bytes) = (pointer.address(), pointer.bytes());
        if bytes < layout.bytes() || address == 0 || address % layout.alignment() as u64 != 0 {
            let given = format!("{} at {address:#x}", Count(bytes, "byte"));
            return Err(self.unfit(&asked(), &given));
        }
        Ok(DeviceBlock::new(address, bytes, pointer.into_token()))
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // In the child of a fork the memory is the parent's.
        if block.is_empty() || is_forked_child() {
            return;
        }
        // SAFETY: the token is from `allocate`, and the caller gives each block back once.
        unsafe { MemoryPointer::free_token_on(block.token(), stream) }
    }
}

// SAFETY: each call is the manager's, which keeps the contract.
unsafe impl MemoryManager for ManagerMemory {
    fn interface_version(&self) -> u32 {
        INTERFACE_VERSION
    }

    fn initialize(&self) -> Result<()> {
        self.call("to initialize", || self.manager.initialize())
    }

    fn memalloc(&self, stream: &Stream, layout: DeviceLayout) -> Result<MemoryPointer> {
        self.call("for device memory", || self.manager.memalloc(stream, layout))
    }

    fn memhostalloc(&self, bytes: usize, flags: HostAllocFlags) -> Result<PinnedMemory> {
        self.call("for page-locked memory", || self.manager.memhostalloc(bytes, flags))
    }

    unsafe fn mempin(&self, memory: NonNull<[u8]>, mapped: bool) -> Result<PinnedMemory> {
        self.call("to pin memory", || {
            // SAFETY: the caller's promise.
            unsafe { self.manager.mempin(memory, mapped) }
        })
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.call("for its memory information", || self.manager.memory_info())
    }

    fn ipc_handle(&self, memory: &MemoryPointer) -> Result<IpcHandle> {
        self.call("for a handle for another process", || self.manager.ipc_handle(memory))
    }

    fn reset(&self) -> Result<()> {
        self.call("to reset", || self.manager.reset())
    }

    fn defer_cleanup(&self) -> DeferCleanup {
        let deferred = self.call("to defer cleanup", || Ok(self.manager.defer_cleanup()));
        let deferred = deferred.unwrap_or_else(|error| {
            let error = error.to_string();
            deferred_event!(error, error, "a memory manager does not defer its cleanup");
            DeferCleanup::none()
        });
        // Its end is a call of the manager, too.
        DeferCleanup::new(|| external::inside(|| drop(deferred)))
    }
}

// SAFETY: `MemoryManager`'s contract, for which its implementation vouches.
unsafe impl ExternalHostMemory for ManagerMemory {
    fn host_alloc(&self, bytes: usize, flags: HostFlags) -> Result<NonNull<u8>> {
        if external::is_inside() {
            return Err(external::reentered());
        }
        let memory = self.memhostalloc(bytes, HostAllocFlags { flags })?;
        let base = memory.pointer();
        if memory.bytes() < bytes {
            let [asked, given] = [bytes, memory.bytes()]
                .map(|bytes| format!("{} of page-locked memory", Count(bytes, "byte")));
            return Err(self.unfit(&asked, &given));
        }
        self.keep(memory);
        Ok(base)
    }

    unsafe fn host_free(&self, base: NonNull<u8>) {
        self.release(base);
    }

    unsafe fn host_register(&self, memory: NonNull<[u8]>, flags: HostFlags) -> Result<()> {
        // SAFETY: the caller's promise.
        let pinned = unsafe { self.mempin(memory, flags.mapped)? };
        if (pinned.pointer(), pinned.bytes()) != (memory.cast(), memory.len()) {
            let name = |pointer: NonNull<u8>, bytes| {
                format!("{} pinned at {pointer:p}", Count(bytes, "byte"))
            };
            let asked = name(memory.cast(), memory.len());
            return Err(self.unfit(&asked, &name(pinned.pointer(), pinned.bytes())));
        }
        self.keep(pinned);
        Ok(())
    }

    unsafe fn host_unregister(&self, base: NonNull<u8>) {
        self.release(base);
    }
}

impl ExternalMemory for ManagerMemory {
    fn name(&self) -> &str {
        &self.name
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}
