//! Allocation and free of device memory.

use crate::cache::{self, Recent, Thread};
use crate::capture::OfCapture;
use crate::handles::{self, aquifer_stack, aquifer_stream, closed};
use crate::open_streams;
use crate::page_map::{self, FREED, FREEING, UNIT};
use crate::route::{self, Route};
use crate::shadowed;
use crate::stack::{self, Key, Present, Stack, device};
use crate::status::{Failure, Result, aquifer_status as Status, guard, guarded};
use aquifer_rs::{Device, DeviceBlock, DeviceLayout, DeviceResource, Stream};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

/// Calls that none should make, counted for the process.
#[allow(non_camel_case_types, reason = "a name of C")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct aquifer_misuse {
    /// The size of this structure, which the caller sets: fields after it are left alone.
    pub struct_size: usize,
    /// Frees of pointers that are no block, and no page-locked memory.
    pub unknown: u64,
    /// Frees of blocks that were freed before.
    pub freed_before: u64,
    /// Frees with another size than was asked for. The block is freed, by the size that is known.
    pub wrong_size: u64,
    /// Frees on a stream of another device. The block stays.
    pub wrong_device: u64,
    /// Frees in the child of a fork. Nothing is done.
    pub forked: u64,
}

static UNKNOWN: AtomicU64 = AtomicU64::new(0);
static FREED_BEFORE: AtomicU64 = AtomicU64::new(0);
static WRONG_SIZE: AtomicU64 = AtomicU64::new(0);
static WRONG_DEVICE: AtomicU64 = AtomicU64::new(0);
static FORKED: AtomicU64 = AtomicU64::new(0);

fn count(counter: &AtomicU64) {
    // Relaxed: a number for people.
    counter.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn misuse() -> aquifer_misuse {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    aquifer_misuse {
        struct_size: size_of::<aquifer_misuse>(),
        unknown: read(&UNKNOWN),
        freed_before: read(&FREED_BEFORE),
        wrong_size: read(&WRONG_SIZE),
        wrong_device: read(&WRONG_DEVICE),
        forked: read(&FORKED),
    }
}

/// Streams on which a block was used besides that of its allocation, by the block's address.
static USES: LazyLock<Mutex<HashMap<u64, Vec<Stream>>>> = LazyLock::new(Mutex::default);

/// A block of the thread's magazine, or of the resource by what the thread remembers. `None` where another way has to be
/// taken.
#[inline(always)]
pub(crate) fn allocate_fast(
    stack: *mut aquifer_stack,
    bytes: usize,
    stream: *mut aquifer_stream,
) -> Option<Result<u64>> {
    // SAFETY: of this call.
    let thread = unsafe { Thread::own() };
    // SAFETY: nothing remembers another or invalidates it before its last use, after which a route may end.
    let recent = unsafe { thread.recent(handles::numbers(stack, stream))? };
    if bytes == 0 || !recent.is_of_stack(stack, stream) {
        return None;
    }
    if !recent.blocks().add() {
        end_route_of(recent.count_free());
        return None;
    }
    let Some(block) = recent.allocate_cached(bytes) else {
        let allocated = allocate_recent(recent, bytes);
        if allocated.is_err() {
            end_route_of(recent.count_free());
        }
        return Some(allocated);
    };
    let entry = as_entry(&block, recent.numbers(), bytes);
    if !thread.leaf.insert(block.address(), entry) {
        let refused = no_place(recent, block);
        end_route_of(recent.count_free());
        return Some(refused);
    }
    Some(Ok(block.address()))
}

/// Ends the route of the last block, if it was that. Drops of users may run, and have the thread remember something else:
/// the caller uses nothing after this that the thread remembers.
#[inline(always)]
pub(crate) fn end_route_of(last: Option<u32>) {
    if let Some(route) = last {
        let _ = guarded(|| {
            route::end_empty(route);
            Ok(())
        });
    }
}

/// As [`allocate_fast`], where the magazine has none.
#[inline(never)]
fn allocate_recent(recent: &Recent, bytes: usize) -> Result<u64> {
    guarded(|| {
        let (resource, on) = recent.resource_and_stream();
        let block = resource.allocate(on, DeviceLayout::new(bytes)?)?;
        let address = block.address();
        if !page_map::insert(address, as_entry(&block, recent.numbers(), bytes)) {
            return give_back(resource, on, block);
        }
        recent.find_magazine();
        Ok(address)
    })
}

/// A block as the page map has it.
#[inline(always)]
fn as_entry(block: &DeviceBlock, numbers: u64, requested: usize) -> page_map::Block {
    page_map::Block::new(numbers, block.token(), block.bytes() as u64, requested as u64)
}

/// Gives a block back that has no place in the page map.
#[cold]
fn no_place(recent: &Recent, block: DeviceBlock) -> Result<u64> {
    guarded(|| {
        let (resource, on) = recent.resource_and_stream();
        give_back(resource, on, block)
    })
}

/// Gives a block back that has no place in the page map, and says so.
fn give_back<T>(resource: &dyn DeviceResource, on: &Stream, block: DeviceBlock) -> Result<T> {
    let address = block.address();
    // SAFETY: the caller has just allocated it, and nothing has used it.
    unsafe { resource.deallocate(on, block) };
    let message = format!("a block at {address:#x} has no place in the table of blocks");
    Err(Failure::new(Status::AQUIFER_ERROR_UNSUPPORTED, message))
}

/// Frees a block to the thread's magazine, or to its resource by what the thread remembers. `None` where another way has
/// to be taken.
#[inline(always)]
pub(crate) fn deallocate_fast(
    address: u64,
    bytes: usize,
    stream: *mut aquifer_stream,
) -> Option<Status> {
    // SAFETY: of this call.
    let thread = unsafe { Thread::own() };
    let entry = thread.leaf.entry(address)?;
    let (numbers, requested) = entry.numbers_and_requested();
    let stream = if stream.is_null() { handles::stream_handle(numbers as u32) } else { stream };
    // SAFETY: as in `allocate_fast`.
    let recent = unsafe { thread.recent(handles::with_stream(numbers, stream))? };
    let is_right = bytes as u64 == requested || bytes == 0;
    if !recent.is_of_block(numbers, stream) || !is_right || !entry.take() {
        return None;
    }
    let (token, bytes) = entry.token_and_bytes();
    let block = DeviceBlock::new(address, bytes as usize, token);
    // SAFETY: the block of this address, which `take` gave to this call alone, by the route that it came by; the
    // caller's work on it is before this call in the stream's order, by the contract of the C function.
    let freed = unsafe {
        match recent.deallocate_cached(&block) {
            true => Status::AQUIFER_OK,
            false => deallocate_recent(recent, block),
        }
    };
    end_route_of(recent.count_free());
    Some(freed)
}

/// As [`allocate_fast`], by the driver's handle of a stream, which the driver is asked for.
///
/// # Safety
///
/// As [`stream_of`].
pub(crate) unsafe fn allocate_on_fast(
    stack: *mut aquifer_stack,
    bytes: usize,
    cuda_stream: *mut c_void,
) -> Option<Result<u64>> {
    let stream = cache::last_of_handle(cuda_stream)?;
    // SAFETY: of this call; what is found in it is used before another is remembered or it is invalidated.
    let recent = unsafe { Thread::own().recent(handles::numbers(stack, stream))? };
    // SAFETY: the caller's promise.
    let is_same = recent.is_of_stack(stack, stream) && unsafe { recent.is_behind(cuda_stream) };
    if is_same { allocate_fast(stack, bytes, stream) } else { None }
}

/// As [`deallocate_fast`], likewise.
///
/// # Safety
///
/// As [`stream_of`].
pub(crate) unsafe fn deallocate_on_fast(
    address: u64,
    bytes: usize,
    device: i32,
    cuda_stream: *mut c_void,
) -> Option<Status> {
    let stream = cache::last_of_handle(cuda_stream)?;
    let (numbers, _) = page_map::entry(address)?.numbers_and_requested();
    // SAFETY: of this call; what is found in it is used before another is remembered or it is invalidated.
    let recent = unsafe { Thread::own().recent(handles::with_stream(numbers, stream))? };
    let is_of_both = recent.device() == device && recent.is_of_block(numbers, stream);
    // SAFETY: the caller's promise.
    let is_same = is_of_both && unsafe { recent.is_behind(cuda_stream) };
    if is_same { deallocate_fast(address, bytes, stream) } else { None }
}

/// As [`deallocate_fast`], where the magazine does not take it.
///
/// # Safety
///
/// As [`DeviceResource::deallocate`], on the stream that is remembered.
#[inline(never)]
unsafe fn deallocate_recent(recent: &Recent, block: DeviceBlock) -> Status {
    guard(|| {
        let (resource, on) = recent.resource_and_stream();
        // SAFETY: the caller's promise.
        unsafe { resource.deallocate(on, block) };
        recent.find_magazine();
        Ok(())
    })
}

/// Calls `body`, which allocates a block, with the route by which a stack allocates now, and an open stream.
fn with_stack<T>(
    stack_number: u32,
    stream_number: u32,
    body: impl FnOnce(u32, &dyn DeviceResource, &Stream) -> Result<T>,
) -> Result<T> {
    // Read before the looks into the tables: what a change makes wrong meanwhile is not remembered.
    let generation = cache::generation();
    let Present { route, is_lasting } = stack::get(stack_number)?.present_route(stream_number)?;
    let resource = route.resource();
    if let Some(capture) = &route.capture {
        let result = body(route.number, &*resource, &capture.side)?;
        // What the pool took from the stack is complete then: a graph is ordered after nothing.
        capture.side.synchronize()?;
        route.keep_block();
        return Ok(result);
    }
    let stream = open_streams::get(stream_number)?;
    let result = body(route.number, &*resource, &stream)?;
    // Beside a filter the free of the block is warm, and the next allocation asks again.
    let stack_number = is_lasting.then_some(stack_number);
    remember(generation, stack_number, &route, &resource, stream_number, &stream);
    route.keep_block();
    Ok(result)
}

/// Calls `body` with the route that a block came by, which may be closing, and an open stream.
fn with_route<T>(
    route_number: u32,
    stream_number: u32,
    body: impl FnOnce(&Route, &dyn DeviceResource, &Stream) -> T,
) -> Result<T> {
    let generation = cache::generation();
    let route = route::get(route_number).ok_or_else(|| closed("stack", "released"))?;
    let stream = open_streams::get(stream_number)?;
    let resource = route.resource();
    let result = body(&route, &*resource, &stream);
    remember(generation, None, &route, &resource, stream_number, &stream);
    Ok(result)
}

/// Remembers what a call used, unless the thread would keep what ends while it sleeps: a log, or a stack that is released;
/// or would use what it remembers while a callback of the program makes it remember something else.
fn remember(
    generation: u64,
    stack: Option<u32>,
    route: &Route,
    resource: &Arc<dyn DeviceResource>,
    stream_number: u32,
    stream: &Stream,
) {
    if !route.is_closing() && !route.is_logged() && !route.has_callbacks {
        let blocks = || route.blocks_of_thread();
        cache::remember(generation, stack, route.number, blocks, resource, stream_number, stream);
    }
}

/// Allocates on an open stream. No bytes give null.
pub(crate) fn allocate(stack: u32, bytes: usize, alignment: usize, stream: u32) -> Result<u64> {
    if bytes == 0 {
        return Ok(0);
    }
    let layout = match alignment {
        0 => DeviceLayout::new(bytes)?,
        // A wrong one is refused as it was given.
        _ if !alignment.is_power_of_two() => DeviceLayout::with_alignment(bytes, alignment)?,
        _ => DeviceLayout::with_alignment(bytes, alignment.max(UNIT as usize))?,
    };
    with_stack(stack, stream, |route, resource, on| {
        let block = resource.allocate(on, layout)?;
        let address = block.address();
        shadowed::keep(address);
        if page_map::insert(address, as_entry(&block, page_map::numbers(route, stream), bytes)) {
            return Ok(address);
        }
        give_back(resource, on, block)
    })
}

/// Frees in the order of an open stream, or of the one that the block was allocated on. Null is freed by doing nothing.
pub(crate) fn deallocate(address: u64, bytes: usize, stream: Option<u32>) -> Result<()> {
    if address == 0 {
        return Ok(());
    }
    free_deferred();
    shadowed::restore_in_callback(address);
    let Some(entry) = page_map::entry(address) else {
        count_unknown();
        return Err(unknown(address));
    };
    let (block, is_used_elsewhere) = match entry.begin_free() {
        Ok(taken) => taken,
        Err(FREED | FREEING) => {
            count(&FREED_BEFORE);
            let message = format!("{address:#x} was freed before");
            return Err(Failure::new(Status::AQUIFER_ERROR_FREED_BEFORE, message));
        }
        Err(_) => {
            count_unknown();
            return Err(unknown(address));
        }
    };
    if bytes != 0 && bytes as u64 != block.requested {
        // Hosts pass wrong ones rightly: NumPy does, of empty arrays.
        count(&WRONG_SIZE);
    }
    free_taken(entry, block, address, stream, is_used_elsewhere)
}

/// Frees a block that `begin_free` gave to the caller.
fn free_taken(
    entry: &page_map::Entry,
    block: page_map::Block,
    address: u64,
    stream: Option<u32>,
    is_used_elsewhere: bool,
) -> Result<()> {
    if let Some(route) = route::get(block.route)
        && let Some(capture) = &route.capture
    {
        free_in_capture(entry, &route, capture, block, address, stream, is_used_elsewhere);
        return Ok(());
    }
    let free = |route: &Route, resource: &dyn DeviceResource, on: &Stream| -> Result<()> {
        if on.device() != resource.device() {
            count(&WRONG_DEVICE);
            entry.cancel_free(is_used_elsewhere);
            let message = format!(
                "{address:#x} is memory of {}, and was to be freed on {on}",
                resource.device()
            );
            return Err(Failure::new(Status::AQUIFER_ERROR_WRONG_DEVICE, message));
        }
        if is_used_elsewhere {
            match wait_for_uses(address, on) {
                Ok(true) => {}
                Ok(false) => {
                    DEFERRED.lock().push_back((address, stream));
                    return Ok(());
                }
                Err(failure) => {
                    entry.cancel_free(is_used_elsewhere);
                    return Err(failure);
                }
            }
        }
        entry.end_free();
        let block = DeviceBlock::new(address, block.bytes as usize, block.token);
        // SAFETY: the block of this address, which `begin_free` gave to this call alone, by the route that it came by;
        // the caller's work on it is before this call in the stream's order, by the contract of the C function.
        unsafe { resource.deallocate(on, block) };
        route.count_free();
        Ok(())
    };
    match stream {
        Some(stream) => with_route(block.route, stream, free),
        None => with_route(block.route, block.stream, free)
            // Its stream is closed: what that was given comes before all that this one waits for.
            .or_else(|_| with_orphans(block.route, free)),
    }
    .unwrap_or_else(|failure| {
        entry.cancel_free(is_used_elsewhere);
        Err(failure)
    })
}

/// Frees, by address and stream, that wait for the end of a capture which has a stream that used the block. Their entries
/// are being freed.
static DEFERRED: Mutex<VecDeque<(u64, Option<u32>)>> = Mutex::new(VecDeque::new());

/// Ends the capture of a key, and frees what waited for it.
pub(crate) fn end_capture(stack: &Stack, key: Key) -> Result<()> {
    stack.end_capture(key)?;
    free_deferred();
    Ok(())
}

/// Tries the deferred frees again, until one has to wait on.
fn free_deferred() {
    loop {
        let Some((address, stream)) = DEFERRED.lock().pop_front() else { return };
        let Some(entry) = page_map::entry(address) else { continue };
        // A stream that was closed since is before the one that frees in its place.
        let on = stream.filter(|stream| open_streams::is_open(*stream));
        // Its user is gone, who would be told of a failure: the block is leaked.
        let _ = free_taken(entry, entry.block(), address, on, true);
        if DEFERRED.lock().back() == Some(&(address, on)) {
            return;
        }
    }
}

/// Frees a block of a capture's pool, whose graph may use it again and again.
fn free_in_capture(
    entry: &page_map::Entry,
    route: &Route,
    capture: &OfCapture,
    block: page_map::Block,
    address: u64,
    stream: Option<u32>,
    is_used_elsewhere: bool,
) {
    USES.lock().remove(&address);
    entry.end_free();
    let freed = DeviceBlock::new(address, block.bytes as usize, block.token);
    let is_on_its_own = !is_used_elsewhere && stream.unwrap_or(block.stream) == capture.stream;
    let follows = || open_streams::get(capture.stream).is_ok_and(|own| capture.follow(&own));
    if is_on_its_own && follows() {
        // SAFETY: the block of this address, which `begin_free` gave to this call alone. Its pool serves that one stream,
        // in whose order it is freed and handed out again, in the graph as well.
        unsafe { route.unlogged().deallocate(&capture.side, freed) };
    } else {
        capture.keep(freed);
    }
    route.count_free();
}

#[cold]
fn unknown(address: u64) -> Failure {
    let message = format!("{address:#x} is no block of this library (free what it allocated)");
    Failure::new(Status::AQUIFER_ERROR_NOT_OURS, message)
}

/// Counts a free of what is no block.
pub(crate) fn count_unknown() {
    count(&UNKNOWN);
}

/// Counts a free in the child of a fork.
pub(crate) fn count_forked() {
    count(&FORKED);
}

/// Notes a use of a block on another stream: its free waits for that.
pub(crate) fn record_stream(address: u64, stream: &Stream) -> Result<()> {
    let Some(entry) = page_map::entry(address) else { return Err(unknown(address)) };
    // A free that comes after the exchange waits for the lock, and finds the use.
    let mut uses = USES.lock();
    if !entry.set_used_elsewhere() {
        return Err(unknown(address));
    }
    let streams = uses.entry(address).or_default();
    if !streams.contains(stream) {
        streams.push(stream.clone());
    }
    Ok(())
}

/// Has a stream wait for all uses of a block on others. `false` while one of them is in a capture, which the stream would
/// join.
fn wait_for_uses(address: u64, on: &Stream) -> Result<bool> {
    let Some(streams) = USES.lock().remove(&address) else { return Ok(true) };
    let wait = || -> Result<bool> {
        for stream in &streams {
            if stream.is_capturing()? {
                return Ok(false);
            }
            on.wait_for(stream)?;
        }
        Ok(true)
    };
    let waited = wait();
    if !matches!(waited, Ok(true)) {
        // It is tried again by the next free.
        USES.lock().insert(address, streams);
    }
    waited
}

/// The stream of each device by which blocks are freed whose own stream is closed.
static ORPHANS: Mutex<Vec<Stream>> = Mutex::new(Vec::new());

fn orphans_of(device: &Device) -> Result<Stream> {
    let known = |streams: &[Stream]| streams.iter().find(|it| it.device() == device).cloned();
    if let Some(stream) = known(&ORPHANS.lock()) {
        return Ok(stream);
    }
    // Not under the lock. Of two that are made at once the first stays.
    let made = device.new_stream()?;
    let mut orphans = ORPHANS.lock();
    if let Some(stream) = known(&orphans) {
        return Ok(stream);
    }
    orphans.push(made.clone());
    Ok(made)
}

fn with_orphans(
    route: u32,
    free: impl FnOnce(&Route, &dyn DeviceResource, &Stream) -> Result<()>,
) -> Result<Result<()>> {
    let Some(route) = route::get(route) else {
        let message = "the stack of the block is gone";
        return Err(Failure::new(Status::AQUIFER_ERROR_CLOSED, message));
    };
    let resource = route.resource();
    let stream = orphans_of(resource.device())?;
    Ok(free(&route, &*resource, &stream))
}

/// Closes a stream for one of its users, and lets go of it where it was the last.
pub(crate) fn close_stream(number: u32) -> Result<()> {
    let stream = open_streams::get(number)?;
    if stream.is_capturing()? {
        let message =
            format!("{stream} is in capture, and was to be closed (end the capture first)");
        return Err(Failure::new(Status::AQUIFER_ERROR_CAPTURE, message));
    }
    // First: a failure leaves it open.
    orphans_of(stream.device())?.wait_for(&stream)?;
    if let Some(last) = open_streams::close(number)? {
        last.detach().inspect_err(|_| open_streams::reopen(number, stream))?;
    }
    Ok(())
}

/// The stream behind a driver's handle, opened for good if it was not yet.
///
/// # Safety
///
/// As `Stream::from_handle`.
pub(crate) unsafe fn stream_of(ordinal: i32, handle: *mut c_void) -> Result<u32> {
    let (generation, device) = (cache::generation(), device(ordinal)?);
    // SAFETY: the caller's promise.
    let stream = unsafe { Stream::from_handle(&device, handle.addr() as u64)? };
    let number = open_streams::opened(&stream).unwrap_or_else(|| open_streams::open(stream));
    cache::remember_handle(generation, handle, handles::stream_handle(number));
    Ok(number)
}

/// The number of the device whose memory a block is.
pub(crate) fn device_of(address: u64) -> Result<i32> {
    let entry = page_map::entry(address).filter(|entry| entry.is_live());
    let route = entry.and_then(|entry| route::get(entry.block().route));
    let route = route.ok_or_else(|| unknown(address))?;
    Ok(route.resource().device().ordinal() as i32)
}

/// The ordinal of a stack's device.
pub(crate) fn ordinal(stack: &Stack) -> i32 {
    stack.resources.device().ordinal() as i32
}
