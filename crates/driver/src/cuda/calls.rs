//! The [`Driver`] of a GPU, of which each method is one driver call in this context.

use super::context::Relaxed;
use super::driver::CudaDriver;
use super::launch::enqueue;
#[cfg(unix)]
use super::library::POSIX_FILE_DESCRIPTOR;
use super::library::{Handle, PoolProps, out_param};
use super::open::code_of;
use crate::error::DriverError;
use crate::sync::Arc;
use crate::{
    BackendKind, CaptureStatus, CopyOnDevice, CopyToDevice, CopyToHost, DeviceAddress,
    DeviceProperties, DeviceRange, Driver, DriverResult, FillWord, GraphCalls, HostFlags,
    HostFunction, MemoryCalls, MemoryInfo, MemoryLocation, NewStream, PoolAttribute, PoolCalls,
    PoolSpec, PreferredLocation, RawCopy, RawEvent, RawFill, RawGraph, RawLaunch, RawPool,
    RawStream, StreamCalls, StreamKeeper, StreamOutcome, WorkCalls, has_ended_capture,
    run_in_host_function,
};
use cudarc::driver::result::stream::StreamKind;
use std::any::Any;
use std::ffi::c_void;
use std::mem;
use std::ptr::NonNull;

/// `CU_DEVICE_CPU`.
const HOST: i32 = -1;

fn host_flags(flags: HostFlags) -> u32 {
    u32::from(flags.portable)
        | u32::from(flags.mapped) << 1
        | u32::from(flags.write_combined) << 2
        | u32::from(flags.read_only) << 3
}

/// The answer of a query.
fn is_ready(asked: DriverResult<()>) -> DriverResult<bool> {
    match asked {
        Ok(()) => Ok(true),
        Err(error) if error.code() == DriverError::NOT_READY => Ok(false),
        Err(error) => Err(error),
    }
}

fn pointer(pointer: NonNull<u8>) -> *mut c_void {
    pointer.as_ptr().cast()
}

// SAFETY: the CUDA driver gives out memory once, and a stream is a queue. Every call is made with
// this driver's context current, so that addresses and handles are of that context, or by a handle that
// names it (`by_handle`).
unsafe impl Driver for CudaDriver {
    fn kind(&self) -> BackendKind {
        BackendKind::Cuda
    }

    fn context_id(&self) -> u64 {
        self.context_id.number()
    }

    fn ordinal(&self) -> usize {
        self.context().ordinal()
    }

    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn with_current(&self, body: &mut dyn FnMut()) -> DriverResult<()> {
        let _current = self.current()?;
        body();
        Ok(())
    }

    fn is_page_locked(&self, pointer: *const u8) -> bool {
        self.is_known(pointer.addr() as u64).unwrap_or(true)
    }

    /// Always `false`. On an H200 with driver 580, queued copies of one stream still run after every
    /// synchronising call has returned the fault of another stream's kernel.
    fn has_stopped(&self) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl MemoryCalls for CudaDriver {
    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: both are writable for the call.
        unsafe { self.relaxed()?.mem_get_info(&raw mut free, &raw mut total) }?;
        Ok(MemoryInfo { free, total })
    }

    /// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE` is 0 for memory that the driver does not know. `cuPointerGetAttribute` would fail
    /// for that, which compute-sanitizer reports as an error of the program.
    fn is_known(&self, address: DeviceAddress) -> DriverResult<bool> {
        const MEMORY_TYPE: u32 = 2;
        let library = self.current()?;
        let mut kind = 0_u32;
        // SAFETY: this attribute is an `unsigned int`; the arrays of one and `kind` live over the call.
        unsafe {
            let values = [(&raw mut kind).cast()];
            let attributes = [MEMORY_TYPE];
            library.pointer_get_attributes(1, attributes.as_ptr(), values.as_ptr(), address)
        }?;
        Ok(kind != 0)
    }

    fn mem_alloc(&self, bytes: usize) -> DriverResult<DeviceAddress> {
        // SAFETY: `address` is writable for the call.
        out_param(|address| unsafe { self.relaxed()?.mem_alloc(address, bytes) })
    }

    unsafe fn mem_free(&self, address: DeviceAddress) -> DriverResult<()> {
        // SAFETY: the caller's contract.
        unsafe { self.relaxed()?.mem_free(address) }
    }

    fn mem_alloc_managed(&self, bytes: usize) -> DriverResult<DeviceAddress> {
        const ATTACH_GLOBAL: u32 = 1;
        // SAFETY: `address` is writable for the call.
        out_param(|address| unsafe {
            self.relaxed()?.mem_alloc_managed(address, bytes, ATTACH_GLOBAL)
        })
    }

    unsafe fn prefetch(
        &self,
        range: DeviceRange,
        to: MemoryLocation,
        stream: RawStream,
    ) -> DriverResult<()> {
        let DeviceRange { address, bytes } = range;
        let to = match to {
            MemoryLocation::Device => self.context().cu_device(),
            MemoryLocation::Host => HOST,
        };
        // SAFETY: the caller's contract.
        unsafe { self.current()?.mem_prefetch(address, bytes, to, stream.0) }
    }

    unsafe fn advise(&self, range: DeviceRange, preferred: PreferredLocation) -> DriverResult<()> {
        // `CU_MEM_ADVISE_SET_PREFERRED_LOCATION` and its opposite.
        const SET: u32 = 3;
        const UNSET: u32 = 4;
        let device = self.context().cu_device();
        let (advice, location) = match preferred {
            PreferredLocation::Device => (SET, device),
            PreferredLocation::Host => (SET, HOST),
            PreferredLocation::Any => (UNSET, device),
        };
        // SAFETY: the caller's contract.
        unsafe { self.relaxed()?.mem_advise(range.address, range.bytes, advice, location) }
    }

    unsafe fn pageable_attach(&self, _pointer: NonNull<u8>, _bytes: usize) -> DriverResult<()> {
        Ok(())
    }

    unsafe fn pageable_detach(&self, _pointer: NonNull<u8>) -> DriverResult<()> {
        Ok(())
    }

    fn host_alloc(&self, bytes: usize, flags: HostFlags) -> DriverResult<NonNull<u8>> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: `pointer` is writable for the call.
        unsafe { self.relaxed()?.mem_host_alloc(&raw mut pointer, bytes, host_flags(flags)) }?;
        NonNull::new(pointer.cast())
            .ok_or_else(|| DriverError::new("cuMemHostAlloc", DriverError::OUT_OF_MEMORY))
    }

    unsafe fn host_free(&self, block: NonNull<u8>) -> DriverResult<()> {
        // SAFETY: the caller's contract.
        unsafe { self.relaxed()?.mem_free_host(pointer(block)) }
    }

    unsafe fn host_register(&self, memory: NonNull<[u8]>, flags: HostFlags) -> DriverResult<()> {
        if flags.write_combined {
            // Registering does not change page tables, and this bit has another meaning there.
            return Err(DriverError::new("cuMemHostRegister_v2", DriverError::NOT_SUPPORTED));
        }
        // SAFETY: the caller's contract.
        unsafe {
            self.relaxed()?.mem_host_register(
                pointer(memory.cast()),
                memory.len(),
                host_flags(flags),
            )
        }
    }

    unsafe fn host_unregister(&self, block: NonNull<u8>) -> DriverResult<()> {
        // SAFETY: the caller's contract.
        unsafe { self.relaxed()?.mem_host_unregister(pointer(block)) }
    }

    fn host_device_address(&self, block: NonNull<u8>) -> DriverResult<DeviceAddress> {
        out_param(|address| {
            // SAFETY: `address` is writable for the call; the pointer is looked up, not followed.
            unsafe { self.relaxed()?.mem_host_get_device_pointer(address, pointer(block), 0) }
        })
    }
}

impl PoolCalls for CudaDriver {
    fn pool_create(&self, spec: PoolSpec) -> DriverResult<RawPool> {
        let library = self.relaxed()?;
        let props = PoolProps::on_device(self.context().cu_device(), spec);
        // SAFETY: `pool` is writable and `props` readable for the call.
        let pool = out_param(|pool| unsafe { library.mem_pool_create(pool, &raw const props) });
        let pool = RawPool(pool?);
        let set = self.pool_set(pool, PoolAttribute::ReleaseThreshold, spec.release_threshold);
        set.map(|()| pool).inspect_err(|_| {
            // SAFETY: the pool was made above, and nothing was allocated from it.
            let _ = unsafe { library.mem_pool_destroy(pool.0) };
        })
    }

    fn pool_default(&self) -> DriverResult<RawPool> {
        // SAFETY: `pool` is writable for the call.
        out_param(|pool| unsafe {
            self.relaxed()?.device_get_default_pool(pool, self.context().cu_device())
        })
        .map(RawPool)
    }

    fn pool_get(&self, pool: RawPool, attribute: PoolAttribute) -> DriverResult<u64> {
        // A switch is an `int`: the low half of a `u64` on every machine that CUDA runs on.
        out_param(|value: *mut u64| {
            // SAFETY: `value` is writable for the call, and as wide as any of these attributes.
            unsafe {
                self.relaxed()?.mem_pool_get_attribute(pool.0, attribute as u32, value.cast())
            }
        })
    }

    fn pool_set(
        &self,
        pool: RawPool,
        attribute: PoolAttribute,
        mut value: u64,
    ) -> DriverResult<()> {
        let value = (&raw mut value).cast();
        // SAFETY: `value` is readable for the call, and as wide as any of these attributes.
        unsafe { self.relaxed()?.mem_pool_set_attribute(pool.0, attribute as u32, value) }
    }

    #[cfg(unix)]
    fn pool_export(&self, pool: RawPool) -> DriverResult<i32> {
        out_param(|descriptor: *mut i32| {
            // SAFETY: a handle of this kind is an `int`, and `descriptor` is writable for the call.
            unsafe {
                self.relaxed()?.mem_pool_export(descriptor.cast(), pool.0, POSIX_FILE_DESCRIPTOR, 0)
            }
        })
    }

    unsafe fn pool_destroy(&self, pool: RawPool) -> DriverResult<()> {
        // SAFETY: the caller's contract.
        unsafe { self.relaxed()?.mem_pool_destroy(pool.0) }
    }

    fn pool_trim(&self, pool: RawPool, keep: usize) -> DriverResult<()> {
        // SAFETY: frees nothing that is in use.
        unsafe { self.relaxed()?.mem_pool_trim_to(pool.0, keep) }
    }

    fn mem_alloc_async(
        &self,
        pool: RawPool,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<DeviceAddress> {
        self.on_stream(stream, |library| {
            // SAFETY: `address` is writable for the call.
            out_param(|address| unsafe {
                Relaxed::new(library).mem_alloc_from_pool_async(address, bytes, pool.0, stream.0)
            })
        })
    }

    unsafe fn mem_free_async(&self, address: DeviceAddress, stream: RawStream) -> DriverResult<()> {
        self.on_stream(stream, |library| {
            // SAFETY: the caller's contract; a call that wanted a context freed nothing.
            unsafe { Relaxed::new(library).mem_free_async(address, stream.0) }
        })
    }
}

impl StreamCalls for CudaDriver {
    fn stream_create(&self) -> DriverResult<NewStream> {
        let _guards = self.relaxed()?;
        // The context may hold an old error of another call, which cudarc would return here in place
        // of a stream. It is put back for its own caller.
        let stale = self.context().check_err();
        let made = self.context().new_stream();
        self.context().record_err(stale);
        let stream = made.map_err(|error| DriverError::new("cuStreamCreate", code_of(error)))?;
        let raw = RawStream(stream.cu_stream() as usize as u64);
        self.numbers.note(self.stream_number(raw).ok());
        Ok(NewStream { raw, keep: Some(Box::new(stream)) })
    }

    fn stream_create_blocking(&self) -> DriverResult<NewStream> {
        let _guards = self.relaxed()?;
        let made = cudarc::driver::result::stream::create(StreamKind::Default);
        let stream = made.map_err(|error| DriverError::new("cuStreamCreate", code_of(error)))?;
        let raw = RawStream(stream as usize as u64);
        self.blocking.lock().insert(raw);
        self.numbers.note(self.stream_number(raw).ok());
        // cudarc makes no such stream. It has the handle, and this driver destroys it.
        Ok(NewStream { raw, keep: self.stream_borrow(raw)? })
    }

    fn may_have_foreign_streams(&self) -> bool {
        // Not at its expense where it is known already.
        let is_newest_known = self.numbers.are_all_known() && {
            let newest = self.stream_create();
            newest.map(|stream| self.stream_destroy(stream.raw, stream.keep)).is_ok()
        };
        !(is_newest_known && self.numbers.are_all_known())
    }

    fn stream_destroy(&self, raw: RawStream, keep: StreamKeeper) {
        match self.relaxed() {
            Ok(_guards) => {
                drop(keep);
                // In the child of a fork the lock may be another thread's: the call above is refused there.
                if self.blocking.lock().remove(&raw) {
                    let handle = raw.0 as usize as cudarc::driver::sys::CUstream;
                    // SAFETY: a stream of `stream_create_blocking`, which is destroyed once.
                    let _ = unsafe { cudarc::driver::result::stream::destroy(handle) };
                }
            }
            // cudarc's drop calls the driver, whatever state that is in.
            Err(_) => mem::forget(keep),
        }
    }

    fn stream_borrow(&self, raw: RawStream) -> DriverResult<StreamKeeper> {
        let handle = raw.0 as usize as cudarc::driver::sys::CUstream;
        // SAFETY: by the contract of `Stream::from_handle` the owner keeps the stream for as long as this is used.
        let borrowed = unsafe { self.context().wrap_borrowed_stream(handle) };
        Ok(Some(Box::new(borrowed)))
    }

    fn stream_number(&self, raw: RawStream) -> DriverResult<u64> {
        out_param(|number| {
            // SAFETY: asks for a number, and changes nothing.
            self.on_stream(raw, |library| unsafe { library.stream_get_id(raw.0, number) })
        })
    }

    fn legacy_stream(&self) -> RawStream {
        RawStream(0)
    }

    fn per_thread_stream(&self) -> DriverResult<RawStream> {
        Ok(RawStream(2))
    }

    fn stream_synchronize(&self, stream: RawStream) -> DriverResult<()> {
        // SAFETY: waits, and changes nothing.
        self.on_stream(stream, |library| unsafe {
            Relaxed::new(library).stream_synchronize(stream.0)
        })
    }

    fn stream_query(&self, stream: RawStream) -> DriverResult<bool> {
        // SAFETY: asks, and changes nothing.
        is_ready(
            self.on_stream(stream, |library| unsafe {
                Relaxed::new(library).stream_query(stream.0)
            }),
        )
    }

    fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> DriverResult<()> {
        // SAFETY: both are handles of this driver; a dead one is an error of the driver.
        self.on_stream(stream, |library| unsafe { library.stream_wait_event(stream.0, event.0, 0) })
    }

    fn event_create(&self) -> DriverResult<RawEvent> {
        const DISABLE_TIMING: u32 = 2;
        // SAFETY: `event` is writable for the call.
        out_param(|event| unsafe { self.relaxed()?.event_create(event, DISABLE_TIMING) })
            .map(RawEvent)
    }

    unsafe fn event_destroy(&self, event: RawEvent) -> DriverResult<()> {
        // SAFETY: the caller's contract.
        unsafe { self.relaxed()?.event_destroy(event.0) }
    }

    fn event_record(&self, event: RawEvent, stream: RawStream) -> DriverResult<()> {
        // SAFETY: both are handles of this driver; a dead one is an error of the driver.
        self.on_stream(stream, |library| unsafe { library.event_record(event.0, stream.0) })
    }

    fn event_query(&self, event: RawEvent) -> DriverResult<bool> {
        // SAFETY: asks, and changes nothing.
        is_ready(
            self.by_handle(true, |library| unsafe { Relaxed::new(library).event_query(event.0) }),
        )
    }

    fn event_synchronize(&self, event: RawEvent) -> DriverResult<()> {
        // SAFETY: waits, and changes nothing.
        self.by_handle(true, |library| unsafe { Relaxed::new(library).event_synchronize(event.0) })
    }

    fn context_record(&self, event: RawEvent) -> DriverResult<()> {
        // SAFETY: the context is alive as long as `self`.
        unsafe { self.current()?.ctx_record_event(self.handle, event.0) }
    }

    fn context_synchronize(&self) -> DriverResult<()> {
        // SAFETY: waits, and changes nothing.
        unsafe { self.current()?.ctx_synchronize() }
    }
}

impl GraphCalls for CudaDriver {
    fn capture_status(&self, stream: RawStream) -> DriverResult<CaptureStatus> {
        let status = self.on_stream(stream, |library| {
            // SAFETY: `status` is writable for the call.
            out_param(|status| unsafe { library.stream_is_capturing(stream.0, status) })
        });
        match status {
            Ok(0) => Ok(CaptureStatus::None),
            Ok(1) => Ok(CaptureStatus::Active),
            Ok(_) => Ok(CaptureStatus::Invalidated),
            // The result for the legacy stream while a stream that waits for it captures: work on it
            // would join that graph, or invalidate it.
            Err(error) if error.code() == DriverError::STREAM_CAPTURE_IMPLICIT => {
                Ok(CaptureStatus::Active)
            }
            Err(error) => Err(error),
        }
    }

    fn stream_begin_capture(&self, stream: RawStream) -> DriverResult<()> {
        const RELAXED: u32 = 2;
        // SAFETY: a handle of this driver; the legacy stream is an error of the driver.
        unsafe { self.current()?.stream_begin_capture(stream.0, RELAXED) }
    }

    fn stream_end_capture(&self, stream: RawStream) -> DriverResult<RawGraph> {
        let library = self.relaxed()?;
        // SAFETY: `graph` is writable for the call, which sets it to null if the capture was invalidated.
        let graph = out_param(|graph| unsafe { library.stream_end_capture(stream.0, graph) })?;
        // SAFETY: `executable` is writable for the call; the template came from the line above.
        let made =
            out_param(|executable| unsafe { library.graph_instantiate(executable, graph, 0) });
        // The executable graph is a copy. A template that cannot be destroyed is leaked.
        // SAFETY: the template is not used after this.
        let _ = unsafe { library.graph_destroy(graph) };
        made.map(RawGraph)
    }

    fn stream_abandon_capture(&self, stream: RawStream) -> DriverResult<()> {
        let library = self.relaxed()?;
        // SAFETY: as in `stream_end_capture`.
        match out_param(|graph| unsafe { library.stream_end_capture(stream.0, graph) }) {
            // SAFETY: the template is not used after this.
            Ok(graph) => unsafe { library.graph_destroy(graph) },
            Err(error) if has_ended_capture(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    unsafe fn graph_launch(&self, graph: RawGraph, stream: RawStream) -> DriverResult<()> {
        // SAFETY: the caller's contract.
        unsafe { self.current()?.graph_launch(graph.0, stream.0) }
    }

    unsafe fn graph_destroy(&self, graph: RawGraph) -> DriverResult<()> {
        // SAFETY: the caller's contract.
        unsafe { self.relaxed()?.graph_exec_destroy(graph.0) }
    }
}

impl WorkCalls for CudaDriver {
    unsafe fn copy_to_device(&self, copy: CopyToDevice, stream: RawStream) -> DriverResult<()> {
        // SAFETY: the caller's contract.
        unsafe {
            self.current()?.memcpy_to_device(copy.target, copy.source.cast(), copy.bytes, stream.0)
        }
    }

    unsafe fn copy_to_host(&self, copy: CopyToHost, stream: RawStream) -> DriverResult<()> {
        // SAFETY: the caller's contract.
        unsafe {
            self.current()?.memcpy_to_host(copy.target.cast(), copy.source, copy.bytes, stream.0)
        }
    }

    unsafe fn copy_on_device(&self, copy: CopyOnDevice, stream: RawStream) -> DriverResult<()> {
        // SAFETY: the caller's contract.
        unsafe { self.current()?.memcpy_on_device(copy.target, copy.source, copy.bytes, stream.0) }
    }

    unsafe fn copy_from_peer(
        &self,
        copy: CopyOnDevice,
        from: &dyn Driver,
        stream: RawStream,
    ) -> DriverResult<()> {
        let from = from
            .as_any()
            .downcast_ref::<Self>()
            .ok_or_else(|| DriverError::new("cuMemcpyPeerAsync", DriverError::NOT_SUPPORTED))?;
        let RawCopy { target, source, bytes } = copy;
        // SAFETY: the caller's contract; both contexts are alive as long as their drivers.
        unsafe {
            self.current()?.memcpy_peer(target, self.handle, source, from.handle, bytes, stream.0)
        }
    }

    unsafe fn fill(&self, fill: RawFill, stream: RawStream) -> DriverResult<()> {
        let RawFill { target, stride, word, count } = fill;
        if count == 0 {
            return Ok(());
        }
        let (library, stream) = (self.current()?, stream.0);
        // One word has no stride; ranges without gaps are for the plain functions.
        let dense = stride == word.bytes() || count == 1;
        // SAFETY: the caller's contract. A matrix one word wide has its rows a stride apart.
        unsafe {
            match (word, dense) {
                (FillWord::U8(value), true) => library.memset_8(target, value, count, stream),
                (FillWord::U16(value), true) => library.memset_16(target, value, count, stream),
                (FillWord::U32(value), true) => library.memset_32(target, value, count, stream),
                (FillWord::U8(value), false) => {
                    library.memset_rows_8(target, stride, value, 1, count, stream)
                }
                (FillWord::U16(value), false) => {
                    library.memset_rows_16(target, stride, value, 1, count, stream)
                }
                (FillWord::U32(value), false) => {
                    library.memset_rows_32(target, stride, value, 1, count, stream)
                }
            }
        }
    }

    unsafe fn launch(&self, launch: RawLaunch<'_>, stream: RawStream) -> DriverResult<()> {
        let library = self.current()?;
        let function = self.functions.get(&library, launch.kernel)?;
        // SAFETY: the caller's contract; the function was loaded into this context.
        unsafe { enqueue(&library, function, launch, stream.0) }
    }

    /// By `cuStreamAddCallback`. `cuLaunchHostFunc` would not call the function after a loss of the context, so that what it
    /// owns were lost, and a thread that waits for its message would wait for good.
    fn launch_host_function(
        &self,
        function: Arc<dyn HostFunction>,
        stream: RawStream,
    ) -> DriverResult<()> {
        let data = Box::into_raw(Box::new(function));
        let launched = self.on_stream(stream, |library| {
            // SAFETY: the driver calls the function once with the box, which is that call's, and only if this succeeds.
            unsafe { library.stream_add_callback(stream.0, call_host_function, data.cast(), 0) }
        });
        // After a failure the box is leaked, in case that the driver calls the function all the same. The caller has taken
        // what the program gave out of it.
        launched
    }
}

/// The driver's call of a host function, on a thread of its own.
///
/// # Safety
///
/// `data` is the box of `launch_host_function`, and this call's alone.
unsafe extern "C" fn call_host_function(_stream: Handle, status: u32, data: *mut c_void) {
    // SAFETY: by this function's contract.
    let function = unsafe { Box::from_raw(data.cast::<Arc<dyn HostFunction>>()) };
    let outcome = if status == 0 { StreamOutcome::Done } else { StreamOutcome::Failed };
    run_in_host_function(*function, outcome);
}
