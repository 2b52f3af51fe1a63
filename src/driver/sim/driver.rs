//! The simulated device as a [`Driver`]: each method is one driver call on the shared state.

use super::calls::Call;
use super::run::{discard_queues, has_stopped, run_background, run_until};
use super::simulator::Simulator;
use super::state::{
    BlockKind, CaptureRecording, Schedule, SimConfig, SimContext, SimDevice, lock_state,
    notify_changed,
};
use crate::driver::{
    BackendKind, CaptureStatus, DeviceAddress, DeviceProperties, Driver, DriverResult, FillWord,
    HostFlags, Kernel, LaunchConfig, MemoryInfo, NewStream, PoolAttribute, PoolSpec,
    PreferredLocation, RawArg, RawEvent, RawGraph, RawPool, RawStream, StreamKeeper,
    has_ended_capture, is_forked_child, not_forked,
};
use crate::error::DriverError;
use crate::sync::Arc;
use crate::sync::trusted::Mutex;
use std::any::Any;
use std::ptr::NonNull;
use std::thread::JoinHandle;

/// A simulated device. Its queues, blocks and events are in the shared state, under its context's id.
#[derive(Debug)]
pub(crate) struct SimDriver {
    context: Arc<SimContext>,
    legacy_stream: RawStream,
    background: Mutex<Option<JoinHandle<()>>>,
}

impl SimDriver {
    /// Opens a new simulated device, distinct from all others.
    pub(crate) fn open(config: SimConfig) -> Arc<Self> {
        let is_background = config.schedule == Schedule::Background;
        let context = Arc::new(SimContext::new(config));
        let legacy_stream = {
            let mut state = lock_state();
            let device = SimDevice::new(Arc::clone(&context), is_background);
            state.devices.insert(context.id, device);
            let legacy = state.add_stream(context.id);
            if let Some(device) = state.devices.get_mut(&context.id) {
                device.legacy_stream = Some(legacy);
            }
            RawStream(legacy)
        };
        let thread = if is_background { Self::start_background(&context) } else { None };
        Arc::new(Self { context, legacy_stream, background: Mutex::new(thread) })
    }

    /// Starts the thread that runs the queues. If the system has none, they run on demand.
    fn start_background(context: &Arc<SimContext>) -> Option<JoinHandle<()>> {
        let own = Arc::clone(context);
        let name = String::from("aquifer simulated device");
        let started = std::thread::Builder::new().name(name).spawn(move || run_background(&own));
        if started.is_err()
            && let Some(device) = lock_state().devices.get_mut(&context.id)
        {
            device.background = false;
        }
        started.ok()
    }

    /// A handle for tests.
    pub(crate) fn simulator(&self) -> Simulator {
        Simulator { context: Arc::clone(&self.context) }
    }

    /// One driver call: counted, refused if a failure was injected, run under the lock of the state.
    fn call<T>(
        &self,
        name: &'static str,
        body: impl FnOnce(&mut Call<'_>) -> DriverResult<T>,
    ) -> DriverResult<T> {
        // Before any lock: the child of a fork has inherited them as they were.
        not_forked(name)?;
        let counted = self.context.count_call(name);
        let result = counted.and_then(|()| Call::run(&self.context, name, body));
        self.context.emit_reports();
        result
    }

    /// As [`call`](Self::call), for what is no call of the driver.
    fn uncounted(
        &self,
        name: &'static str,
        body: impl FnOnce(&mut Call<'_>) -> DriverResult<()>,
    ) -> DriverResult<()> {
        not_forked(name)?;
        let result = Call::run(&self.context, name, body);
        self.context.emit_reports();
        result
    }

    /// As [`call`](Self::call), for a call that waits. If the context is lost, it returns when no
    /// operation runs any more: memory that a host form uses may be freed after it.
    fn waiting(
        &self,
        name: &'static str,
        body: impl FnOnce(&mut Call<'_>) -> DriverResult<()>,
    ) -> DriverResult<()> {
        let result = self.call(name, body);
        if self.context.is_lost() {
            self.has_stopped();
        }
        result
    }

    fn end_capture(&self, stream: RawStream) -> DriverResult<CaptureRecording> {
        self.call("cuStreamEndCapture", |call| {
            let id = call.stream(stream)?;
            call.end_capture(id)
        })
    }
}

impl Drop for SimDriver {
    /// Runs the queues, then removes the device from the state. Memory that the host may have pointers
    /// to is leaked.
    fn drop(&mut self) {
        if is_forked_child() {
            return;
        }
        let id = self.context.id;
        let mut state = lock_state();
        if state.is_running_here() {
            // Dropped inside of a host form: it cannot be waited for, so its streams stay.
            discard_queues(&mut state, id);
            state.devices.remove(&id);
            notify_changed();
            return;
        }
        run_until(&mut state, id, |state| has_stopped(state, id));
        discard_queues(&mut state, id);
        state.remove_device(id);
        notify_changed();
        drop(state);
        self.context.emit_reports();
        let this_thread = std::thread::current().id();
        let thread = self.background.get_mut().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != this_thread) {
            // Its only way to fail is a panic, which has been printed.
            let _ = thread.join();
        }
    }
}

// SAFETY: every block is an allocation of its own, which lives until it is freed and every operation
// that touches it has run; queues are first in, first out, and an operation leaves its queue only to
// run.
unsafe impl Driver for SimDriver {
    fn kind(&self) -> BackendKind {
        BackendKind::Simulated
    }

    fn context_id(&self) -> u64 {
        self.context.id
    }

    fn ordinal(&self) -> usize {
        self.context.config.ordinal
    }

    fn properties(&self) -> &DeviceProperties {
        &self.context.config.properties
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.call("cuMemGetInfo", |call| {
            let used = call.state.devices.get(&call.context.id).map_or(0, |device| device.used);
            let total = call.context.config.capacity;
            Ok(MemoryInfo { free: total.saturating_sub(used), total })
        })
    }

    fn mem_alloc(&self, bytes: usize) -> DriverResult<DeviceAddress> {
        self.call("cuMemAlloc", |call| call.allocate(bytes, BlockKind::Device))
    }

    unsafe fn mem_free(&self, address: DeviceAddress) -> DriverResult<()> {
        self.call("cuMemFree", |call| call.free(address))
    }

    fn mem_alloc_managed(&self, bytes: usize) -> DriverResult<DeviceAddress> {
        self.call("cuMemAllocManaged", |call| call.allocate_managed(bytes))
    }

    unsafe fn prefetch(
        &self,
        address: DeviceAddress,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()> {
        self.call("cuMemPrefetchAsync", |call| call.prefetch(address, bytes, stream))
    }

    unsafe fn advise(
        &self,
        address: DeviceAddress,
        bytes: usize,
        _preferred: PreferredLocation,
    ) -> DriverResult<()> {
        self.call("cuMemAdvise", |call| call.advise(address, bytes))
    }

    unsafe fn pageable_attach(&self, pointer: NonNull<u8>, bytes: usize) -> DriverResult<()> {
        self.uncounted("pageable memory", |call| call.attach(pointer, bytes))
    }

    unsafe fn pageable_detach(&self, pointer: NonNull<u8>) -> DriverResult<()> {
        self.uncounted("pageable memory", |call| call.detach(pointer))
    }

    fn pool_create(&self, spec: PoolSpec) -> DriverResult<RawPool> {
        self.call("cuMemPoolCreate", |call| call.create_pool(spec))
    }

    fn pool_default(&self) -> DriverResult<RawPool> {
        self.call("cuDeviceGetDefaultMemPool", |call| call.default_pool())
    }

    fn pool_get(&self, pool: RawPool, attribute: PoolAttribute) -> DriverResult<u64> {
        self.call("cuMemPoolGetAttribute", |call| call.get_pool(pool, attribute))
    }

    fn pool_set(&self, pool: RawPool, attribute: PoolAttribute, value: u64) -> DriverResult<()> {
        self.call("cuMemPoolSetAttribute", |call| call.set_pool(pool, attribute, value))
    }

    #[cfg(unix)]
    fn pool_export(&self, _pool: RawPool) -> DriverResult<i32> {
        let call = "cuMemPoolExportToShareableHandle";
        Err(DriverError::new(call, DriverError::NOT_SUPPORTED))
    }

    unsafe fn pool_destroy(&self, pool: RawPool) -> DriverResult<()> {
        self.call("cuMemPoolDestroy", |call| call.destroy_pool(pool))
    }

    fn pool_trim(&self, pool: RawPool, _keep: usize) -> DriverResult<()> {
        self.call("cuMemPoolTrimTo", |call| call.trim_pool(pool))
    }

    fn mem_alloc_async(
        &self,
        pool: RawPool,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<DeviceAddress> {
        self.call("cuMemAllocFromPoolAsync", |call| call.allocate_async(pool, bytes, stream))
    }

    unsafe fn mem_free_async(&self, address: DeviceAddress, stream: RawStream) -> DriverResult<()> {
        self.call("cuMemFreeAsync", |call| call.free_async(address, stream))
    }

    fn host_alloc(&self, bytes: usize, flags: HostFlags) -> DriverResult<NonNull<u8>> {
        self.call("cuMemHostAlloc", |call| call.allocate_host(bytes, flags))
    }

    unsafe fn host_free(&self, pointer: NonNull<u8>) -> DriverResult<()> {
        self.call("cuMemFreeHost", |call| call.free_host(pointer))
    }

    unsafe fn host_register(
        &self,
        pointer: NonNull<u8>,
        bytes: usize,
        flags: HostFlags,
    ) -> DriverResult<()> {
        self.call("cuMemHostRegister", |call| call.register(pointer, bytes, flags))
    }

    unsafe fn host_unregister(&self, pointer: NonNull<u8>) -> DriverResult<()> {
        self.call("cuMemHostUnregister", |call| call.unregister(pointer))
    }

    fn host_device_address(&self, pointer: NonNull<u8>) -> DriverResult<DeviceAddress> {
        self.call("cuMemHostGetDevicePointer", |call| call.mapped_address(pointer))
    }

    fn stream_create(&self) -> DriverResult<NewStream> {
        self.call("cuStreamCreate", |call| {
            let raw = RawStream(call.state.add_stream(call.context.id));
            Ok(NewStream { raw, keep: None })
        })
    }

    fn stream_destroy(&self, raw: RawStream, keep: StreamKeeper) {
        let _ = self.call("cuStreamDestroy", |call| call.destroy_stream(raw));
        drop(keep);
    }

    fn legacy_stream(&self) -> RawStream {
        self.legacy_stream
    }

    fn per_thread_stream(&self) -> DriverResult<RawStream> {
        let name = "per-thread stream";
        not_forked(name)?;
        let mut state = lock_state();
        self.context.check_alive(name)?;
        let key = (self.context.id, std::thread::current().id());
        if let Some(&stream) = state.thread_streams.get(&key) {
            return Ok(RawStream(stream));
        }
        let stream = state.add_stream(self.context.id);
        state.thread_streams.insert(key, stream);
        Ok(RawStream(stream))
    }

    fn stream_synchronize(&self, stream: RawStream) -> DriverResult<()> {
        self.waiting("cuStreamSynchronize", |call| call.synchronize_stream(stream))
    }

    fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> DriverResult<()> {
        self.call("cuStreamWaitEvent", |call| call.wait_event(stream, event))
    }

    fn capture_status(&self, stream: RawStream) -> DriverResult<CaptureStatus> {
        self.call("cuStreamIsCapturing", |call| Ok(call.capture_status(call.stream(stream)?)))
    }

    fn stream_begin_capture(&self, stream: RawStream) -> DriverResult<()> {
        self.call("cuStreamBeginCapture", |call| call.begin_capture(stream))
    }

    fn stream_end_capture(&self, stream: RawStream) -> DriverResult<RawGraph> {
        let recording = self.end_capture(stream)?;
        self.call("cuGraphInstantiate", |call| Ok(call.instantiate(recording)))
    }

    fn stream_abandon_capture(&self, stream: RawStream) -> DriverResult<()> {
        match self.end_capture(stream) {
            Err(error) if !has_ended_capture(&error) => Err(error),
            _ => Ok(()),
        }
    }

    unsafe fn graph_launch(&self, graph: RawGraph, stream: RawStream) -> DriverResult<()> {
        self.call("cuGraphLaunch", |call| call.launch_graph(graph, stream))
    }

    unsafe fn graph_destroy(&self, graph: RawGraph) -> DriverResult<()> {
        self.call("cuGraphExecDestroy", |call| call.destroy_graph(graph))
    }

    fn event_create(&self) -> DriverResult<RawEvent> {
        self.call("cuEventCreate", |call| Ok(call.create_event()))
    }

    unsafe fn event_destroy(&self, event: RawEvent) -> DriverResult<()> {
        self.call("cuEventDestroy", |call| call.destroy_event(event))
    }

    fn event_record(&self, event: RawEvent, stream: RawStream) -> DriverResult<()> {
        self.call("cuEventRecord", |call| call.record_event(event, stream))
    }

    fn event_query(&self, event: RawEvent) -> DriverResult<bool> {
        let result = self.call("cuEventQuery", |call| call.query_event(event));
        let is_lost = result.is_err() && self.context.is_lost() && !is_forked_child();
        // An event of a lost context has not passed the operation that still runs: its caller may free
        // memory that a host form uses.
        if is_lost && !has_stopped(&lock_state(), self.context.id) {
            return Ok(false);
        }
        result
    }

    fn event_synchronize(&self, event: RawEvent) -> DriverResult<()> {
        self.waiting("cuEventSynchronize", |call| call.synchronize_event(event))
    }

    fn context_record(&self, event: RawEvent) -> DriverResult<()> {
        self.call("cuCtxRecordEvent", |call| call.record_context(event))
    }

    fn with_current(&self, body: &mut dyn FnMut()) -> DriverResult<()> {
        body();
        Ok(())
    }

    fn context_synchronize(&self) -> DriverResult<()> {
        self.waiting("cuCtxSynchronize", |call| call.synchronize_context())
    }

    unsafe fn copy_to_device(
        &self,
        target: DeviceAddress,
        source: *const u8,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()> {
        self.call("cuMemcpyHtoDAsync", |call| {
            // SAFETY: the contract is the same, and our caller keeps it.
            unsafe { call.copy_to_device(target, source, bytes, stream) }
        })
    }

    unsafe fn copy_to_host(
        &self,
        target: *mut u8,
        source: DeviceAddress,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()> {
        self.call("cuMemcpyDtoHAsync", |call| {
            // SAFETY: the contract is the same, and our caller keeps it.
            unsafe { call.copy_to_host(target, source, bytes, stream) }
        })
    }

    unsafe fn copy_on_device(
        &self,
        target: DeviceAddress,
        source: DeviceAddress,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()> {
        self.call("cuMemcpyDtoDAsync", |call| {
            call.copy(target, (source, call.context.id), bytes, stream)
        })
    }

    unsafe fn copy_from_peer(
        &self,
        target: DeviceAddress,
        from: &dyn Driver,
        source: DeviceAddress,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()> {
        self.call("cuMemcpyPeerAsync", |call| {
            let Some(from) = from.as_any().downcast_ref::<Self>() else {
                return Err(DriverError::new(call.name, DriverError::NOT_SUPPORTED));
            };
            from.context.check_alive(call.name)?;
            call.copy(target, (source, from.context.id), bytes, stream)
        })
    }

    unsafe fn fill(
        &self,
        target: DeviceAddress,
        stride: usize,
        word: FillWord,
        count: usize,
        stream: RawStream,
    ) -> DriverResult<()> {
        self.call("cuMemsetAsync", |call| call.fill(target, stride, word, count, stream))
    }

    unsafe fn launch(
        &self,
        kernel: &Kernel,
        config: &LaunchConfig,
        arguments: &[RawArg],
        stream: RawStream,
    ) -> DriverResult<()> {
        self.call("cuLaunchKernel", |call| call.launch(kernel, config, arguments, stream))
    }

    fn is_page_locked(&self, pointer: *const u8) -> bool {
        is_forked_child() || lock_state().blocks.is_page_locked(pointer.addr() as u64, 1)
    }

    fn has_stopped(&self) -> bool {
        // The child of a fork has the queues, and no thread that runs them.
        if is_forked_child() {
            return true;
        }
        let (id, mut state) = (self.context.id, lock_state());
        if state.is_running_here() {
            // A wait could be for the calling thread itself.
            return has_stopped(&state, id);
        }
        run_until(&mut state, id, |state| has_stopped(state, id))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
