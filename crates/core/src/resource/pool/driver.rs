//! The driver under a pool, which is the resource that it takes memory from, with its streams and events.

use super::memory_hooks::MemoryHooks;
use super::options::PoolOwner;
use super::siblings::{is_nested, trim_others};
use super::sleeping::Sleep;
use crate::debug_log::deferred_event;
use crate::device::Device;
use crate::driver::DefaultPoolEnd;
use crate::driver::{DeviceRange, DriverResult, RawHandle, is_forked_child, may_not_call};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::impls::Count;
use crate::layout::DeviceLayout;
use crate::pool::{
    Failure, MapFailure, Mapped, MappedEnd, MappedMemory, Retry, Unserved, Upstream,
};
use crate::resource::block::DeviceBlock;
use crate::resource::cuda::{free_behind, report_failed_free, report_leak};
use crate::resource::device_resource::DeviceResource;
use crate::resource::mapped::VirtualMemory;
use crate::stream::deferred::hold_buffers;
use crate::stream::{PoolHandles, Stream, record_context};
use crate::sync::trusted::{AtomicBool, Mutex, Ordering};
use crate::sync::{OnceLock, assert_unlocked};
use std::time::{Duration, Instant};

type CallBack = Box<dyn Fn(Unserved<'_, Error>) -> Retry + Send + Sync>;

/// The function that calls the user's callback, with the pool's facts. Without one the pool asks nobody.
#[derive(Default)]
pub(super) struct PoolCallback(OnceLock<CallBack>);

impl PoolCallback {
    pub(super) fn set(&self, call: impl Fn(Unserved<'_, Error>) -> Retry + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(call));
    }

    fn call(&self, request: Unserved<'_, Error>) -> Retry {
        match self.0.get() {
            // In a call of a resource around this pool, whose locks the thread may have: the outermost pool asks.
            Some(call) if !is_nested() => call(request),
            _ => Retry::No,
        }
    }
}

/// The upstream resource, and the streams and events of its device.
pub(super) struct PoolDriver<U> {
    pub(super) resource: U,
    /// The alignment of every block of upstream.
    alignment: usize,
    /// The owner, for errors.
    pub(super) owner: PoolOwner,
    /// A stream of the pool's own, for memory that is to be complete.
    own_stream: Mutex<Option<Stream>>,
    device_lost: AtomicBool,
    has_threshold: AtomicBool,
    /// The user's callback.
    pub(super) callback: PoolCallback,
    /// `Some` if the pool maps its memory, handle by handle, and takes no block of the resource.
    pub(super) memory: Option<VirtualMemory>,
    /// `Some` if something follows the pool's memory.
    pub(super) hooks: Option<MemoryHooks>,
    pub(super) sleep: Sleep,
}

impl<U: DeviceResource> PoolDriver<U> {
    pub(super) fn new(
        resource: U,
        alignment: usize,
        owner: PoolOwner,
        memory: Option<VirtualMemory>,
        hooks: Option<MemoryHooks>,
    ) -> Self {
        Self {
            resource,
            alignment,
            owner,
            own_stream: Mutex::new(None),
            device_lost: AtomicBool::new(false),
            has_threshold: AtomicBool::new(false),
            callback: PoolCallback::default(),
            memory,
            hooks,
            sleep: Sleep::default(),
        }
    }

    /// Whether this is the first error of a lost device, since all later calls fail as well.
    pub(super) fn is_first_loss(&self) -> bool {
        // Relaxed: the flag publishes nothing else.
        !self.device_lost.swap(true, Ordering::Relaxed)
    }

    /// Whether the pool has a release threshold for the first time.
    pub(super) fn is_first_threshold(&self) -> bool {
        !self.has_threshold.swap(true, Ordering::Relaxed)
    }

    pub(super) fn own_stream(&self) -> Result<Stream> {
        let mut own_stream = self.own_stream.lock();
        if let Some(stream) = &*own_stream {
            return Ok(stream.clone());
        }
        let stream = self.resource.device().new_stream()?;
        *own_stream = Some(stream.clone());
        Ok(stream)
    }

    /// Waits for the frees on the pool's own stream, which has no other work. A trim of the driver's pool below leaves
    /// memory that was freed on a stream until the program has waited for that stream.
    pub(super) fn wait_for_returns(&self) {
        let own_stream = self.own_stream.lock().clone();
        if let Some(stream) = own_stream {
            // The memory went back. The next call on a lost device tells of that.
            let _ = stream.synchronize_uncaptured();
        }
    }
}

impl<U: DeviceResource + 'static> PoolDriver<U> {
    /// The memory of a pool whose memory is mapped.
    fn memory(&self) -> Result<VirtualMemory> {
        let new = || VirtualMemory::new(self.resource.device());
        self.memory.clone().map_or_else(new, Ok)
    }

    pub(super) fn enable_peer_access(&self, peer: &Device) -> Result<()> {
        match &self.memory {
            Some(memory) => memory.enable_peer_access(peer),
            None => self.resource.enable_peer_access(peer),
        }
    }

    pub(super) fn has_peer_access(&self, peer: &Device) -> bool {
        match &self.memory {
            Some(memory) => memory.has_peer_access(peer),
            None => self.resource.has_peer_access(peer),
        }
    }
}

/// The memory of the upstream resource, handle by handle.
impl<U: DeviceResource + 'static> MappedMemory for PoolDriver<U> {
    type Stream = Stream;
    type Error = Error;

    fn granularity(&self) -> u64 {
        let granularity = self.memory.as_ref().map_or(1, VirtualMemory::granularity);
        // Both are powers of two, and every handle begins where a block may begin.
        granularity.max(self.alignment) as u64
    }

    fn free(&self) -> Option<u64> {
        self.resource.device().memory_info().ok().map(|info| info.free as u64)
    }

    fn total(&self) -> Option<u64> {
        self.resource.device().memory_info().ok().map(|info| info.total as u64)
    }

    fn reserve(&self, bytes: u64) -> Result<u64> {
        let (memory, bytes) = (self.memory()?, bytes as usize);
        let reserved = memory.driver().address_reserve(bytes, self.granularity() as usize);
        memory.in_context(Count(bytes, "byte"), reserved)
    }

    fn create(&self, bytes: u64) -> Result<u64> {
        let memory = self.memory()?;
        let handle = memory.create(bytes as usize);
        memory.in_context(Count(bytes, "byte"), handle).map(|handle| handle.0)
    }

    fn release(&self, handle: u64, bytes: u64) {
        let device = self.resource.device();
        // SAFETY: a handle of `create`, which the pool gives up, and has unmapped.
        let released = unsafe { device.driver().handle_release(RawHandle(handle)) };
        if let Err(error) = released {
            report_failed_free(device, bytes as usize, &error);
        }
    }

    fn map(&self, address: u64, bytes: u64, handle: u64) -> Result<(), MapFailure<Error>> {
        let memory = self.memory().map_err(|error| MapFailure { error, is_mapped: false })?;
        let range = DeviceRange { address, bytes: bytes as usize };
        // SAFETY: the pool maps handles of their size to reserved addresses where nothing is mapped.
        let mapped = unsafe { memory.map(range, RawHandle(handle)) };
        let is_mapped = mapped.as_ref().map_or_else(|failure| failure.is_mapped, |()| true);
        if let Some(hooks) = self.hooks.as_ref().filter(|_| is_mapped) {
            hooks.heap_register(address, range.bytes);
        }
        let mapped = mapped.map_err(|failure| failure.error);
        let mapped = memory.in_context(Count(bytes, "byte"), mapped);
        mapped.map_err(|error| MapFailure { error, is_mapped })
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<()> {
        let (memory, range) = (self.memory()?, DeviceRange { address, bytes: bytes as usize });
        if let Some(hooks) = &self.hooks {
            hooks.heap_unregister(None, address, range.bytes);
        }
        // SAFETY: one mapping of the pool's, whose uses the pool has seen complete.
        let unmapped = memory.in_context(Count(bytes, "byte"), unsafe { memory.unmap(range) });
        if let (Some(hooks), Err(_)) = (&self.hooks, &unmapped) {
            hooks.heap_register(address, range.bytes);
        }
        unmapped
    }

    fn end(&self, stream: Option<&Stream>, mut end: MappedEnd) {
        assert_unlocked("the end of a pool's mapped memory");
        let asleep = self.sleep.end();
        end.handles.retain(|(address, _, _)| !asleep.contains(address));
        let (device, memory) = (self.resource.device().clone(), self.memory());
        let bytes = end.handles.iter().map(|handle| handle.1 as usize).sum();
        if let Some(hooks) = &self.hooks {
            let ranges = end.handles.iter().map(|&(address, bytes, _)| (address, bytes));
            for (address, bytes) in ranges.chain(end.vacated.iter().copied()) {
                hooks.heap_unregister(stream, address, bytes as usize);
            }
        }
        let free = move |passed: Result<()>| match passed.and(memory) {
            // SAFETY: all of it was the pool's, and is past its last use.
            Ok(memory) => match unsafe { unmap_all(&memory, &end) } {
                Ok(()) => {}
                Err(error) => report_failed_free(&device, bytes, &error),
            },
            Err(error) => report_leak(&device, bytes, &error),
        };
        match stream {
            Some(stream) => free_behind(stream, free),
            None => free(Ok(())),
        }
    }
}

/// # Safety
///
/// The memory was a pool's, which has ended, and no work uses it.
unsafe fn unmap_all(memory: &VirtualMemory, end: &MappedEnd) -> DriverResult<()> {
    let driver = memory.driver();
    let range = |address, bytes: u64| DeviceRange { address, bytes: bytes as usize };
    let mut result = Ok(());
    for &(address, bytes) in &end.vacated {
        // SAFETY: the caller's promise.
        result = result.and(unsafe { memory.unmap(range(address, bytes)) });
    }
    for &(address, bytes, handle) in &end.handles {
        // SAFETY: as above.
        let unmapped = unsafe { memory.unmap(range(address, bytes)) };
        // SAFETY: as above.
        result = result.and(unmapped).and(unsafe { driver.handle_release(RawHandle(handle)) });
    }
    for &(address, bytes) in &end.reservations {
        // SAFETY: as above, and nothing is mapped there any more.
        result = result.and(unsafe { driver.address_free(range(address, bytes)) });
    }
    result
}

impl<U: DeviceResource + 'static> Upstream for PoolDriver<U> {
    type Stream = Stream;
    type Event = Event;
    type Block = DeviceBlock;
    type Error = Error;

    fn id(stream: &Stream) -> u64 {
        stream.id()
    }

    fn clone_pool_handle(stream: &Stream) -> Stream {
        stream.clone_for_pool()
    }

    fn is_abandoned(stream: &Stream) -> bool {
        !is_forked_child() && stream.is_abandoned()
    }

    fn drop_pool_handle(stream: Stream) {
        stream.drop_for_pool();
    }

    // The pool may have locks: a capture on another thread is not waited for.
    fn record(&self, stream: &Stream) -> Result<Event> {
        stream.begin_nested_call()?.record()
    }

    fn record_again(&self, stream: &Stream, event: &mut Event) -> Result<()> {
        stream.begin_nested_call()?.record_into(event)
    }

    fn wait(&self, stream: &Stream, event: &Event) -> Result<()> {
        let call = stream.begin_nested_call()?;
        // A graph would keep the event, which the pool records again.
        call.refuse_capture("a wait for another stream's memory")?;
        call.wait(event)
    }

    fn is_passed(&self, event: &Event) -> Result<bool> {
        match &self.hooks {
            Some(hooks) if hooks.follow_device() => event.is_complete_for_pool(),
            _ => event.is_complete(),
        }
    }

    fn is_idle(&self, patience: Duration) -> bool {
        // On a device that works only when it is asked, time decides nothing.
        const QUERIES: usize = 1024;
        let Ok(event) = record_context(self.resource.device()) else { return false };
        let (start, works) = (Instant::now(), self.works_unasked());
        let mut queries = 0..QUERIES;
        loop {
            let passed = self.is_passed(&event);
            let goes_on = if works { start.elapsed() < patience } else { queries.next().is_some() };
            if !matches!(passed, Ok(false)) || !goes_on {
                return passed.unwrap_or(false);
            }
            std::hint::spin_loop();
        }
    }

    fn works_unasked(&self) -> bool {
        self.resource.device().driver().works_unasked()
    }

    fn synchronize(&self, event: &Event) -> Result<()> {
        event.synchronize()
    }

    fn is_capturing(&self, stream: &Stream) -> Result<bool> {
        stream.is_capturing()
    }

    fn is_capturing_for_now(&self, stream: &Stream) -> bool {
        !stream.is_broken() && stream.is_capturing().unwrap_or(false)
    }

    fn check_device(&self, stream: &Stream) -> Result<()> {
        self.resource.device().require(stream.device(), "the stream")
    }

    fn allocate(&self, stream: Option<&Stream>, bytes: usize) -> Result<(u64, DeviceBlock)> {
        assert_unlocked("a call of a pool's upstream");
        let _held = hold_buffers();
        let layout = DeviceLayout::with_alignment(bytes, self.alignment)?;
        let on = stream.cloned().map_or_else(|| self.own_stream(), Ok)?;
        let block = self.resource.allocate(&on, layout)?;
        let (address, got) = (block.address(), block.bytes());
        let checked = if got < bytes || !address.is_multiple_of(self.alignment as u64) {
            let message = format!(
                "{} was asked for {} aligned to {}, and gave {} at {address:#x}",
                self.resource.identity().name(),
                Count(bytes, "byte"),
                self.alignment,
                Count(got, "byte")
            );
            let advice = match got < bytes {
                true => "use a resource that gives all that was asked",
                false => "use a resource that keeps alignments",
            };
            Err(Error::new(ErrorKind::Unsupported, message).with_advice(advice))
        } else if stream.is_none() {
            // A stream-ordered upstream returns memory that its former user may still work on. Not
            // `synchronize`, which runs other owners' destructors: they may allocate from this pool,
            // whose locks the caller may have.
            on.synchronize_uncaptured()
        } else {
            Ok(())
        };
        if let Err(error) = checked {
            // SAFETY: allocated above, in this order, and not used.
            unsafe { self.resource.deallocate(&on, block) };
            return Err(error);
        }
        if let Some(hooks) = &self.hooks {
            hooks.heap_register(address, got);
        }
        Ok((address, block))
    }

    fn is_exhausted(error: &Error) -> bool {
        error.kind() == ErrorKind::OutOfMemory
    }

    fn is_device_full(error: &Error) -> bool {
        Self::is_exhausted(error) && error.driver().is_some()
    }

    fn trim_others(
        &self,
        pool: u64,
        bytes: usize,
        waits: bool,
        is_served: &mut dyn FnMut() -> bool,
    ) {
        // In a call of a resource around this pool, whose locks the thread may have: the outermost pool asks.
        if !is_nested() {
            trim_others(self.resource.device(), pool, (bytes, waits), is_served);
        }
    }

    fn call_back(&self, request: Unserved<'_, Error>) -> Retry {
        self.callback.call(request)
    }

    fn is_captured(error: &Error) -> bool {
        error.kind() == ErrorKind::Capture
    }

    /// The end of a default pool orders nothing for the user, since a GPU keeps its own default pool.
    fn end(&self) -> fn(&mut dyn FnMut()) {
        match self.owner {
            PoolOwner::Default => |end| {
                let _unordered = DefaultPoolEnd::enter();
                end();
            },
            PoolOwner::Pool | PoolOwner::Arena | PoolOwner::FixedSize => |end| end(),
        }
    }

    fn mapped(&self) -> Option<Mapped<'_, Self>> {
        // Asked by allocations that no magazine serves.
        self.memory.is_some().then_some(self as Mapped<'_, Self>)
    }

    fn deallocate(&self, stream: Option<&Stream>, block: DeviceBlock) {
        assert_unlocked("a call of a pool's upstream");
        let _held = hold_buffers();
        if let Some(hooks) = &self.hooks {
            hooks.heap_unregister(stream, block.address(), block.bytes());
        }
        // Complete memory may go back on any stream. The default stream is always there.
        let any = || self.own_stream().unwrap_or_else(|_| self.resource.device().default_stream());
        let stream = stream.cloned().unwrap_or_else(any);
        // SAFETY: `Pool` returns whole free blocks of upstream, whose last work is complete or ordered
        // before this on `stream`.
        unsafe { self.resource.deallocate(&stream, block) }
    }

    fn report_leak(&self, pool: u64, bytes: usize, why: &Failure<Error>) {
        let device = self.resource.device();
        if bytes == 0 || device.memory_info().is_err() {
            // Nothing is lost: there was none, or the device is gone and its memory with it.
            return;
        }
        let name = device.to_string();
        match why {
            Failure::Upstream(error) => report_leak(device, bytes, error),
            Failure::Exhausted(_) => deferred_event!(
                error, device = %name, pool, bytes,
                "leaked device memory: a pool was dropped while blocks of it were in use"
            ),
            _ => deferred_event!(
                error, device = %name, pool, bytes,
                "leaked device memory: no stream could be made to wait for its last use"
            ),
        }
    }

    fn device(&self) -> usize {
        self.resource.device().ordinal()
    }

    fn is_forked(&self) -> bool {
        may_not_call()
    }
}
