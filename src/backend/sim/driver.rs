//! The simulated device behind the seam.

use super::capture::Recorded;
use super::config::{Schedule, SimConfig};
use super::ledger::Ledger;
use super::random::Random;
use super::simulator::Simulator;
use super::table::Kind;
use super::world::{Device, Held, NOT_PERMITTED, WORLD, world};
use super::{capture, enqueue, graph, managed, memory, order, pool, schedule};
use crate::backend::{
    BackendKind, CaptureStatus, DeviceAddress, DeviceProperties, Driver, DriverResult, FillWord,
    HostFlags, Kernel, LaunchConfig, MemoryInfo, NewStream, PoolAttribute, PoolSpec, PreferredHome,
    RawArg, RawEvent, RawGraph, RawPool, RawStream, StreamKeeper, is_forked_child,
};
use crate::error::DriverError;
use crate::sync::Arc;
use crate::sync::trusted::{Mutex, unique};
use std::any::Any;
use std::ptr::NonNull;
use std::thread::JoinHandle;

/// A simulated device. Its queues, blocks and events live in the world; here is its name there.
#[derive(Debug)]
pub(crate) struct SimDriver {
    ledger: Arc<Ledger>,
    properties: DeviceProperties,
    legacy: RawStream,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl SimDriver {
    /// Opens a new simulated device, distinct from all others.
    pub(crate) fn open(config: SimConfig) -> Arc<Self> {
        let properties = DeviceProperties {
            name: config.name.clone(),
            compute_capability: (0, 0),
            driver_version: 0,
            managed_memory: config.managed_memory,
            concurrent_managed_access: config.managed_memory,
            pageable_memory_access: config.pageable_memory_access,
            memory_pools: config.memory_pools,
            map_host_memory: config.host_mapping,
            host_register: config.host_register,
            virtual_memory: config.virtual_memory,
            context_events: config.context_events,
        };
        let ledger = Arc::new(Ledger::new(unique(), config));
        let (id, background) = (ledger.device, ledger.config.schedule == Schedule::Background);
        let legacy = {
            let mut held = world();
            let device = Device {
                ledger: Arc::clone(&ledger),
                random: Random::new(ledger.config.seed),
                background,
                streams: Vec::new(),
                active: Vec::new(),
                legacy: 0,
                used: 0,
                pending_frees: 0,
                dry: 0,
                default_pool: None,
                next_address: 0,
                last_address: 0,
            };
            held.devices.insert(id, device);
            let legacy = held.add_stream(id);
            if let Some(device) = held.devices.get_mut(&id) {
                device.legacy = legacy;
            }
            RawStream(legacy)
        };
        let worker = if background { Self::start(&ledger) } else { None };
        Arc::new(Self { ledger, properties, legacy, worker: Mutex::new(worker) })
    }

    /// Starts the thread that runs the queues. Without one they run on demand.
    fn start(ledger: &Arc<Ledger>) -> Option<JoinHandle<()>> {
        let books = Arc::clone(ledger);
        let name = String::from("aquifer simulated device");
        let started = std::thread::Builder::new().name(name).spawn(move || schedule::work(&books));
        if started.is_err()
            && let Some(device) = world().devices.get_mut(&ledger.device)
        {
            device.background = false;
        }
        started.ok()
    }

    /// A handle for tests.
    pub(crate) fn simulator(&self) -> Simulator {
        Simulator { ledger: Arc::clone(&self.ledger) }
    }

    /// What every call begins and ends with.
    fn call<T>(
        &self,
        name: &'static str,
        body: impl FnOnce(&mut Held, &Ledger) -> DriverResult<T>,
    ) -> DriverResult<T> {
        // The child of a fork inherited the world's lock as it was, and maybe no one to release it.
        if is_forked_child() {
            return Err(DriverError::new(name, DriverError::FORKED));
        }
        let result = self.locked(name, body);
        self.ledger.tell();
        result
    }

    fn locked<T>(
        &self,
        name: &'static str,
        body: impl FnOnce(&mut Held, &Ledger) -> DriverResult<T>,
    ) -> DriverResult<T> {
        self.ledger.count(name)?;
        let mut held = world();
        self.ledger.alive(name)?;
        if held.is_running_here() {
            return Err(DriverError::new(name, NOT_PERMITTED));
        }
        body(&mut held, &self.ledger)
    }

    /// What a driver is not called for.
    fn uncounted<T>(
        &self,
        name: &'static str,
        body: impl FnOnce(&mut Held, &Ledger) -> DriverResult<T>,
    ) -> DriverResult<T> {
        if is_forked_child() {
            return Err(DriverError::new(name, DriverError::FORKED));
        }
        let result = {
            let mut held = world();
            self.ledger.alive(name).and_then(|()| match held.is_running_here() {
                true => Err(DriverError::new(name, NOT_PERMITTED)),
                false => body(&mut held, &self.ledger),
            })
        };
        self.ledger.tell();
        result
    }

    fn end_capture(&self, stream: RawStream) -> DriverResult<Recorded> {
        let call = "cuStreamEndCapture";
        self.call(call, |held, ledger| {
            let id = held.stream(ledger, call, stream)?;
            capture::end(held, id)
        })
    }

    fn needs(&self, there: bool, call: &'static str) -> DriverResult<()> {
        if there { Ok(()) } else { Err(DriverError::new(call, DriverError::NOT_SUPPORTED)) }
    }
}

impl Drop for SimDriver {
    /// Runs what is queued, then takes the device out of the world. Memory that the host may still
    /// have pointers to is leaked.
    fn drop(&mut self) {
        if is_forked_child() {
            return;
        }
        let id = self.ledger.device;
        let mut held = world();
        if held.is_running_here() {
            // Dropped inside a host form: it cannot be waited for, so its streams stay.
            schedule::abandon(&mut held, id);
            held.devices.remove(&id);
            WORLD.turn.notify_all();
            return;
        }
        let streams = held.devices.get(&id).map(|device| device.streams.clone());
        let streams = streams.unwrap_or_default();
        schedule::drive(&mut held, id, |state| {
            let idle = |id| state.streams.get(id).is_none_or(super::queue::Stream::is_idle);
            streams.iter().all(idle)
        });
        schedule::abandon(&mut held, id);
        held.devices.remove(&id);
        held.streams.retain(|_, stream| stream.device != id);
        held.events.retain(|_, event| event.device != id);
        held.pools.retain(|_, pool| pool.device != id);
        graph::close(&mut held, id);
        held.threads.retain(|(device, _), _| *device != id);
        capture::close(&mut held, id);
        for block in held.table.remove_device(id) {
            if block.kind.is_host_visible() {
                std::mem::forget(block.backing);
            }
        }
        WORLD.turn.notify_all();
        drop(held);
        self.ledger.tell();
        let me = std::thread::current().id();
        if let Some(worker) = self.worker.get_mut().take().filter(|it| it.thread().id() != me) {
            // Its only way to fail is a panic, which has been printed.
            let _ = worker.join();
        }
    }
}

// SAFETY: every block is an allocation of its own, kept until it is freed and every operation that
// holds it has run; queues are first in, first out, and an operation leaves its queue only when it
// has run.
unsafe impl Driver for SimDriver {
    fn kind(&self) -> BackendKind {
        BackendKind::Simulated
    }

    fn key(&self) -> u64 {
        self.ledger.device
    }

    fn ordinal(&self) -> usize {
        self.ledger.config.ordinal
    }

    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.call("cuMemGetInfo", |held, ledger| {
            let used = held.devices.get(&ledger.device).map_or(0, |device| device.used);
            let total = ledger.config.capacity;
            Ok(MemoryInfo { free: total.saturating_sub(used), total })
        })
    }

    fn mem_alloc(&self, bytes: usize) -> DriverResult<DeviceAddress> {
        self.call("cuMemAlloc", |held, ledger| {
            memory::allocate(held, ledger, "cuMemAlloc", bytes, Kind::Device, None)
        })
    }

    unsafe fn mem_free(&self, address: DeviceAddress) -> DriverResult<()> {
        self.call("cuMemFree", |held, ledger| memory::free(held, ledger, address))
    }

    fn mem_alloc_managed(&self, bytes: usize) -> DriverResult<DeviceAddress> {
        let call = "cuMemAllocManaged";
        self.call(call, |held, ledger| {
            self.needs(ledger.config.managed_memory, call)?;
            memory::allocate(held, ledger, call, bytes, Kind::Managed, None)
        })
    }

    unsafe fn prefetch(
        &self,
        address: DeviceAddress,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()> {
        self.call("cuMemPrefetchAsync", |held, ledger| {
            managed::prefetch(held, ledger, address, bytes, stream)
        })
    }

    unsafe fn advise(
        &self,
        address: DeviceAddress,
        bytes: usize,
        _home: PreferredHome,
    ) -> DriverResult<()> {
        self.call("cuMemAdvise", |held, ledger| managed::advise(held, ledger, address, bytes))
    }

    unsafe fn pageable_attach(&self, pointer: NonNull<u8>, bytes: usize) -> DriverResult<()> {
        let name = "pageable memory";
        self.uncounted(name, |held, ledger| {
            self.needs(ledger.config.pageable_memory_access, name)?;
            memory::attach(held, ledger, name, pointer, bytes)
        })
    }

    unsafe fn pageable_detach(&self, pointer: NonNull<u8>) -> DriverResult<()> {
        let name = "pageable memory";
        self.uncounted(name, |held, ledger| memory::detach(held, ledger, name, pointer))
    }

    fn pool_create(&self, spec: PoolSpec) -> DriverResult<RawPool> {
        let call = "cuMemPoolCreate";
        self.call(call, |held, ledger| {
            self.needs(ledger.config.memory_pools, call)?;
            pool::create(held, ledger, call, spec)
        })
    }

    fn pool_default(&self) -> DriverResult<RawPool> {
        let call = "cuDeviceGetDefaultMemPool";
        self.call(call, |held, ledger| {
            self.needs(ledger.config.memory_pools, call)?;
            pool::default(held, ledger, call)
        })
    }

    fn pool_get(&self, pool: RawPool, attribute: PoolAttribute) -> DriverResult<u64> {
        let call = "cuMemPoolGetAttribute";
        self.call(call, |held, ledger| pool::get(held, ledger, call, pool, attribute))
    }

    fn pool_set(&self, pool: RawPool, attribute: PoolAttribute, value: u64) -> DriverResult<()> {
        let call = "cuMemPoolSetAttribute";
        self.call(call, |held, ledger| pool::set(held, ledger, call, pool, attribute, value))
    }

    #[cfg(unix)]
    fn pool_export(&self, _pool: RawPool) -> DriverResult<i32> {
        self.needs(false, "cuMemPoolExportToShareableHandle").map(|()| -1)
    }

    unsafe fn pool_destroy(&self, pool: RawPool) -> DriverResult<()> {
        let call = "cuMemPoolDestroy";
        self.call(call, |held, ledger| {
            self.needs(ledger.config.memory_pools, call)?;
            memory::own_pool(held, ledger, call, pool)?;
            held.pools.remove(&pool.0);
            Ok(())
        })
    }

    fn pool_trim(&self, pool: RawPool, _keep: usize) -> DriverResult<()> {
        // A pool of this device keeps nothing: a free gives its bytes back when it runs.
        let call = "cuMemPoolTrimTo";
        self.call(call, |held, ledger| {
            self.needs(ledger.config.memory_pools, call)?;
            memory::own_pool(held, ledger, call, pool)
        })
    }

    fn mem_alloc_async(
        &self,
        pool: RawPool,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<DeviceAddress> {
        let call = "cuMemAllocFromPoolAsync";
        self.call(call, |held, ledger| {
            self.needs(ledger.config.memory_pools, call)?;
            memory::allocate_async(held, ledger, pool, bytes, stream)
        })
    }

    unsafe fn mem_free_async(&self, address: DeviceAddress, stream: RawStream) -> DriverResult<()> {
        let call = "cuMemFreeAsync";
        self.call(call, |held, ledger| {
            self.needs(ledger.config.memory_pools, call)?;
            memory::free_async(held, ledger, address, stream)
        })
    }

    fn host_alloc(&self, bytes: usize, flags: HostFlags) -> DriverResult<NonNull<u8>> {
        self.call("cuMemHostAlloc", |held, ledger| {
            memory::allocate_host(held, ledger, bytes, flags)
        })
    }

    unsafe fn host_free(&self, pointer: NonNull<u8>) -> DriverResult<()> {
        self.call("cuMemFreeHost", |held, ledger| memory::free_host(held, ledger, pointer))
    }

    unsafe fn host_register(
        &self,
        pointer: NonNull<u8>,
        bytes: usize,
        flags: HostFlags,
    ) -> DriverResult<()> {
        self.call("cuMemHostRegister", |held, ledger| {
            memory::register(held, ledger, pointer, bytes, flags)
        })
    }

    unsafe fn host_unregister(&self, pointer: NonNull<u8>) -> DriverResult<()> {
        self.call("cuMemHostUnregister", |held, ledger| memory::unregister(held, ledger, pointer))
    }

    fn host_device_address(&self, pointer: NonNull<u8>) -> DriverResult<DeviceAddress> {
        self.call("cuMemHostGetDevicePointer", |held, ledger| {
            memory::mapped_address(held, ledger, pointer)
        })
    }

    fn stream_create(&self) -> DriverResult<NewStream> {
        self.call("cuStreamCreate", |held, ledger| {
            Ok(NewStream { raw: RawStream(held.add_stream(ledger.device)), keep: None })
        })
    }

    fn stream_destroy(&self, raw: RawStream, keep: StreamKeeper) {
        let call = "cuStreamDestroy";
        let _ = self.call(call, |held, ledger| {
            let id = held.stream(ledger, call, raw)?;
            if let Some(stream) = held.streams.get_mut(&id) {
                stream.destroyed = true;
            }
            capture::leave(held, id);
            held.prune(id);
            Ok(())
        });
        drop(keep);
    }

    fn legacy_stream(&self) -> RawStream {
        self.legacy
    }

    fn per_thread_stream(&self) -> DriverResult<RawStream> {
        if is_forked_child() {
            return Err(DriverError::new("per-thread stream", DriverError::FORKED));
        }
        let mut held = world();
        self.ledger.alive("per-thread stream")?;
        let key = (self.ledger.device, std::thread::current().id());
        if let Some(&stream) = held.threads.get(&key) {
            return Ok(RawStream(stream));
        }
        let stream = held.add_stream(self.ledger.device);
        held.threads.insert(key, stream);
        Ok(RawStream(stream))
    }

    fn stream_synchronize(&self, stream: RawStream) -> DriverResult<()> {
        self.call("cuStreamSynchronize", |held, ledger| {
            order::synchronize_stream(held, ledger, stream)
        })
    }

    fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> DriverResult<()> {
        self.call("cuStreamWaitEvent", |held, ledger| order::wait(held, ledger, stream, event))
    }

    fn capture_status(&self, stream: RawStream) -> DriverResult<CaptureStatus> {
        let call = "cuStreamIsCapturing";
        self.call(call, |held, ledger| {
            let id = held.stream(ledger, call, stream)?;
            Ok(capture::status(held, id))
        })
    }

    fn stream_begin_capture(&self, stream: RawStream) -> DriverResult<()> {
        let call = "cuStreamBeginCapture";
        self.call(call, |held, ledger| {
            let id = held.stream(ledger, call, stream)?;
            capture::begin(held, ledger.device, id)
        })
    }

    fn stream_end_capture(&self, stream: RawStream) -> DriverResult<RawGraph> {
        let recorded = self.end_capture(stream)?;
        self.call("cuGraphInstantiate", |held, ledger| {
            Ok(graph::instantiate(held, ledger, recorded))
        })
    }

    fn stream_abandon_capture(&self, stream: RawStream) -> DriverResult<()> {
        match self.end_capture(stream) {
            Ok(_) => Ok(()),
            Err(error) => match error.code() {
                DriverError::STREAM_CAPTURE_INVALIDATED | DriverError::STREAM_CAPTURE_UNJOINED => {
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    unsafe fn graph_launch(&self, graph: RawGraph, stream: RawStream) -> DriverResult<()> {
        self.call("cuGraphLaunch", |held, ledger| graph::launch(held, ledger, graph, stream))
    }

    unsafe fn graph_destroy(&self, graph: RawGraph) -> DriverResult<()> {
        self.call("cuGraphExecDestroy", |held, ledger| graph::destroy(held, ledger, graph))
    }

    fn event_create(&self) -> DriverResult<RawEvent> {
        self.call("cuEventCreate", |held, ledger| Ok(order::create(held, ledger)))
    }

    unsafe fn event_destroy(&self, event: RawEvent) -> DriverResult<()> {
        self.call("cuEventDestroy", |held, ledger| order::destroy(held, ledger, event))
    }

    fn event_record(&self, event: RawEvent, stream: RawStream) -> DriverResult<()> {
        self.call("cuEventRecord", |held, ledger| order::record(held, ledger, event, stream))
    }

    fn event_query(&self, event: RawEvent) -> DriverResult<bool> {
        self.call("cuEventQuery", |held, ledger| order::query(held, ledger, event))
    }

    fn event_synchronize(&self, event: RawEvent) -> DriverResult<()> {
        self.call("cuEventSynchronize", |held, ledger| {
            order::synchronize_event(held, ledger, event)
        })
    }

    fn context_record(&self, event: RawEvent) -> DriverResult<()> {
        self.call("cuCtxRecordEvent", |held, ledger| order::record_all(held, ledger, event))
    }

    fn with_current(&self, body: &mut dyn FnMut()) -> DriverResult<()> {
        body();
        Ok(())
    }

    fn context_synchronize(&self) -> DriverResult<()> {
        self.call("cuCtxSynchronize", order::synchronize_device)
    }

    unsafe fn copy_to_device(
        &self,
        target: DeviceAddress,
        source: *const u8,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()> {
        self.call("cuMemcpyHtoDAsync", |held, ledger| {
            // SAFETY: the contract is the same, and our caller keeps it.
            unsafe { enqueue::upload(held, ledger, target, source, bytes, stream) }
        })
    }

    unsafe fn copy_to_host(
        &self,
        target: *mut u8,
        source: DeviceAddress,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()> {
        self.call("cuMemcpyDtoHAsync", |held, ledger| {
            // SAFETY: the contract is the same, and our caller keeps it.
            unsafe { enqueue::download(held, ledger, target, source, bytes, stream) }
        })
    }

    unsafe fn copy_on_device(
        &self,
        target: DeviceAddress,
        source: DeviceAddress,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()> {
        let call = "cuMemcpyDtoDAsync";
        self.call(call, |held, ledger| {
            enqueue::copy(held, ledger, call, target, (source, ledger.device), bytes, stream)
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
        let call = "cuMemcpyPeerAsync";
        self.call(call, |held, ledger| {
            let Some(from) = from.as_any().downcast_ref::<Self>() else {
                return Err(DriverError::new(call, DriverError::NOT_SUPPORTED));
            };
            from.ledger.alive(call)?;
            let source = (source, from.ledger.device);
            enqueue::copy(held, ledger, call, target, source, bytes, stream)
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
        self.call("cuMemsetAsync", |held, ledger| {
            enqueue::fill(held, ledger, target, stride, word, count, stream)
        })
    }

    unsafe fn launch(
        &self,
        kernel: &Kernel,
        config: &LaunchConfig,
        arguments: &[RawArg],
        stream: RawStream,
    ) -> DriverResult<()> {
        self.call("cuLaunchKernel", |held, ledger| {
            enqueue::launch(held, ledger, kernel, config, arguments, stream)
        })
    }

    fn is_page_locked(&self, pointer: *const u8) -> bool {
        is_forked_child() || world().table.is_locked(pointer.addr() as u64, 1)
    }

    fn has_stopped(&self) -> bool {
        // The child of a fork has the queues, and nobody who runs them.
        if is_forked_child() {
            return true;
        }
        let id = self.ledger.device;
        let mut held = world();
        if held.is_running_here() {
            return false;
        }
        let streams = held.devices.get(&id).map(|device| device.streams.clone());
        let streams = streams.unwrap_or_default();
        schedule::drive(&mut held, id, |state| {
            let idle = |id| state.streams.get(id).is_none_or(super::queue::Stream::is_idle);
            streams.iter().all(idle)
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
