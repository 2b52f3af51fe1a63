//! Handles of stacks and streams: numbers that are never used again, in the shape of pointers.
//!
//! A handle is no address, so a wrong one is an error and never a crash. The tables are behind locks; each thread keeps
//! what it used last, so a warm call takes none.
//!
//! | table | key | holds | until |
//! |---|---|---|---|
//! | `STACKS` | a stack's number | the stack | its last release |
//! | `ROUTES` | a route's number | the resource of a stack or of a capture's pool | its stack or its capture is released, and no block came by it |
//! | `ENDING` | - | routes that are out of `ROUTES` | the device's work is ordered before what a capture's pool gives back |
//! | `STREAMS` | a stream's number | the stream | its last close |
//! | `CACHE`, a thread's | numbers | what it used last | a change of `GENERATION`, seen at the thread's next call |
//! | `LAST`, a thread's | handles | pointers into `CACHE` | the same |

use crate::capture::OfCapture;
use crate::page_map;
use crate::stack::Stack;
use crate::status::{Failure, Result, aquifer_status as Status};
use aquifer_rs::{DeviceResource, Stream};
use parking_lot::{Mutex, RwLock};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

/// Marks a handle of a stack, above its number.
const STACK: u64 = 0xaf51_0000_0000_0000;

/// Marks a handle of a stream.
const STREAM: u64 = 0xaf52_0000_0000_0000;

const MARK: u64 = 0xffff_ffff_0000_0000;

/// A stack of resources. No address: only the functions of the table read it.
#[allow(non_camel_case_types, reason = "a name of C")]
pub struct aquifer_stack {
    _opaque: [u8; 0],
}

/// A stream that is open here. No address, as [`aquifer_stack`].
#[allow(non_camel_case_types, reason = "a name of C")]
pub struct aquifer_stream {
    _opaque: [u8; 0],
}

/// Where blocks come from, and go back to.
pub(crate) struct Route {
    pub(crate) number: u32,
    resource: Arc<dyn DeviceResource>,
    /// The same with a log around it, while the stack has one.
    logged: RwLock<Option<Arc<dyn DeviceResource>>>,
    /// Its stack is released: it goes with its last block.
    is_closing: AtomicBool,
    /// Frees until its blocks are looked for again, once it is closing.
    until_sweep: AtomicIsize,
    /// Of a capture's pool. No thread's cache keeps its route.
    pub(crate) capture: Option<OfCapture>,
}

impl Route {
    pub(crate) fn new(resource: Arc<dyn DeviceResource>, capture: Option<OfCapture>) -> Arc<Self> {
        let (logged, is_closing) = (RwLock::default(), AtomicBool::new(false));
        let (number, until_sweep) = (next(), AtomicIsize::new(0));
        let route = Self { number, resource, logged, is_closing, until_sweep, capture };
        let route = Arc::new(route);
        ROUTES.write().insert(route.number, route.clone());
        route
    }

    pub(crate) fn resource(&self) -> Arc<dyn DeviceResource> {
        self.logged.read().as_ref().unwrap_or(&self.resource).clone()
    }

    /// The resource, without a log.
    pub(crate) fn unlogged(&self) -> &Arc<dyn DeviceResource> {
        &self.resource
    }

    pub(crate) fn set_log(&self, logged: Option<Arc<dyn DeviceResource>>) {
        let before = std::mem::replace(&mut *self.logged.write(), logged);
        invalidate_caches();
        drop(before);
    }

    /// The route goes when its last block does.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        invalidate_caches();
        sweep();
    }

    /// Whether what the route has can go back now.
    fn end(&self) -> bool {
        let Some(capture) = &self.capture else { return true };
        capture.end(&*self.resource).is_ok()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// A block of it was freed: the last one takes the route with it.
    ///
    /// To look for blocks means to read the whole page map, so it is not done at each free: only when half of those are
    /// freed that were found last.
    pub(crate) fn count_free(&self) {
        if self.is_closing() && self.until_sweep.fetch_sub(1, Ordering::AcqRel) <= 1 {
            sweep();
        }
    }
}

/// Drops the table's share of each closing route of which no block is in use.
///
/// A free that was on its way without a lock, as its route began to close, is not counted. Where it was the last one, a
/// later sweep finds its route: of any route.
fn sweep() {
    static SWEEPING: Mutex<()> = Mutex::new(());
    let sweeping = SWEEPING.lock();
    let mut gone = Vec::new();
    loop {
        let routes = ROUTES.read();
        let closing: Vec<_> = routes.values().filter(|route| route.is_closing()).cloned().collect();
        drop(routes);
        let due = |route: &&Arc<Route>| route.until_sweep.load(Ordering::Acquire) <= 0;
        if !closing.iter().any(|route| due(&route)) {
            break;
        }
        // Frees from here on count against what is found.
        closing.iter().for_each(|route| route.until_sweep.store(0, Ordering::Release));
        let mut live: HashMap<u32, isize> = closing.iter().map(|it| (it.number, 0)).collect();
        page_map::for_each_live(|_, block| {
            if let Some(blocks) = live.get_mut(&block.route) {
                *blocks += 1;
            }
        });
        for route in closing {
            match live.get(&route.number) {
                Some(0) => gone.extend(ROUTES.write().remove(&route.number)),
                Some(blocks) => {
                    route.until_sweep.fetch_add((blocks / 2).max(1), Ordering::AcqRel);
                }
                None => {}
            }
        }
    }
    drop(sweeping);
    if !gone.is_empty() {
        ENDING.lock().extend(gone);
        end_routes();
    }
}

/// Routes without a block.
static ENDING: Mutex<Vec<Arc<Route>>> = Mutex::new(Vec::new());

/// Drops the routes that have no block. Those of a capture that cannot end now, as a stream of the device is in capture,
/// are tried again by the next call.
pub(crate) fn end_routes() {
    let ending = std::mem::take(&mut *ENDING.lock());
    // Under no lock: a pool may end here.
    let (ended, left): (Vec<_>, Vec<_>) = ending.into_iter().partition(|route| route.end());
    ENDING.lock().extend(left);
    drop(ended);
}

static STACKS: LazyLock<RwLock<HashMap<u32, Arc<Stack>>>> = LazyLock::new(RwLock::default);
static ROUTES: LazyLock<RwLock<HashMap<u32, Arc<Route>>>> = LazyLock::new(RwLock::default);
static STREAMS: LazyLock<RwLock<OpenStreams>> = LazyLock::new(RwLock::default);

/// Grows with each change of what a number stands for.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// The last number that was given out. They are of all kinds.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// A number that nothing has. It is 0 for nothing.
pub(crate) fn next() -> u32 {
    // Relaxed: only uniqueness is asked. A process that makes four thousand million handles starts anew.
    NUMBERS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1)
}

/// What a thread keeps of a number holds while this is the same.
#[inline(always)]
pub(crate) fn generation() -> u64 {
    // Acquire: pairs with `invalidate_caches`.
    GENERATION.load(Ordering::Acquire)
}

fn invalidate_caches() {
    // Release: a thread that sees it looks into tables that have changed.
    GENERATION.fetch_add(1, Ordering::Release);
    let _ = CACHE.try_with(|cache| cache.try_borrow_mut().map(|mut cache| cache.clear()).ok());
}

/// In the child of a fork no thread's cache holds.
pub(crate) extern "C" fn forget_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

struct OpenStream {
    stream: Stream,
    opened: usize,
}

#[derive(Default)]
struct OpenStreams {
    by_number: HashMap<u32, OpenStream>,
    /// By the stream's own number.
    by_id: HashMap<u64, u32>,
}

/// What a thread used last, so that a call takes no lock. It keeps what it names.
///
/// Each value is in a box, as [`Last`] points to it: what is dropped here is out of `LAST` first.
struct Cache {
    generation: u64,
    routes: [Option<Box<CachedRoute>>; 4],
    streams: [Option<Box<(u32, Stream)>>; 8],
    next_route: usize,
    next_stream: usize,
}

struct CachedRoute {
    /// The stack that allocates by the route now; 0 for a route alone.
    stack: u32,
    number: u32,
    resource: Arc<dyn DeviceResource>,
}

impl Cache {
    const fn new() -> Self {
        Self {
            generation: 0,
            routes: [const { None }; 4],
            streams: [const { None }; 8],
            next_route: 0,
            next_stream: 0,
        }
    }

    fn clear(&mut self) {
        forget_last();
        (self.routes, self.streams) = ([const { None }; 4], [const { None }; 8]);
    }

    fn refresh(&mut self) {
        // Acquire: pairs with `invalidate_caches`.
        let generation = GENERATION.load(Ordering::Acquire);
        if self.generation != generation {
            self.clear();
            self.generation = generation;
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        forget_last();
    }
}

/// The route and the stream of the thread's last call, by pointers into its [`Cache`], and the handles that gave them.
///
/// - INV-1: the pointers are of values that the thread's `Cache` has while `generation` is not 0: what takes a value out of
///   that calls [`forget_last`] first.
/// - INV-2: nothing of this crate is called while they are used: the resources that a text builds call no code of users.
/// - INV-3: route and stream are of one device.
pub(crate) struct Last {
    generation: Cell<u64>,
    stack: Cell<u64>,
    stream: Cell<u64>,
    /// As [`page_map::numbers`] has them.
    numbers: Cell<u64>,
    resource: Cell<*const Arc<dyn DeviceResource>>,
    on: Cell<*const Stream>,
}

thread_local! {
    static CACHE: RefCell<Cache> = const { RefCell::new(Cache::new()) };
    static LAST: Last = const {
        Last {
            generation: Cell::new(0),
            stack: Cell::new(0),
            stream: Cell::new(0),
            numbers: Cell::new(0),
            resource: Cell::new(std::ptr::null()),
            on: Cell::new(std::ptr::null()),
        }
    };
}

fn forget_last() {
    LAST.with(|last| last.generation.set(0));
}

impl Last {
    /// The thread's own, and whether it holds: not after a change of what a number stands for, and not in the child of a
    /// fork.
    #[inline(always)]
    pub(crate) fn with<T>(body: impl FnOnce(&Self) -> Option<T>) -> Option<T> {
        LAST.with(|last| {
            // Acquire: pairs with `invalidate_caches`.
            if last.generation.get() == GENERATION.load(Ordering::Acquire) {
                body(last)
            } else {
                None
            }
        })
    }

    #[inline(always)]
    pub(crate) fn is_stack(&self, stack: *mut aquifer_stack) -> bool {
        stack.addr() as u64 == self.stack.get()
    }

    #[inline(always)]
    pub(crate) fn is_stream(&self, stream: *mut aquifer_stream) -> bool {
        stream.addr() as u64 == self.stream.get()
    }

    #[inline(always)]
    pub(crate) fn numbers(&self) -> u64 {
        self.numbers.get()
    }

    /// The route's resource, and the stream.
    #[inline(always)]
    pub(crate) fn resource_and_stream(&self) -> (&dyn DeviceResource, &Stream) {
        // SAFETY: the generation holds, as `with` has seen: INV-1, and INV-2 keeps it so.
        unsafe { (&**self.resource.get(), &*self.on.get()) }
    }
}

/// The number of a handle of one kind.
fn number(handle: u64, mark: u64, kind: &str) -> Result<u32> {
    if handle & MARK == mark && handle as u32 != 0 {
        return Ok(handle as u32);
    }
    let message = match handle {
        0 => format!("a {kind} is null"),
        _ => format!("{handle:#x} is no {kind} of this library"),
    };
    Err(Failure::new(Status::AQUIFER_ERROR_NOT_OURS, message))
}

fn closed(kind: &str, verb: &str) -> Failure {
    let message = format!("a {kind} was used that is {verb} (keep it as long as it is used)");
    Failure::new(Status::AQUIFER_ERROR_CLOSED, message)
}

pub(crate) fn stack_number(stack: *mut aquifer_stack) -> Result<u32> {
    number(stack.addr() as u64, STACK, "stack")
}

pub(crate) fn stream_number(stream: *mut aquifer_stream) -> Result<u32> {
    number(stream.addr() as u64, STREAM, "stream")
}

pub(crate) fn stack_handle(number: u32) -> *mut aquifer_stack {
    std::ptr::without_provenance_mut((STACK | u64::from(number)) as usize)
}

pub(crate) fn stream_handle(number: u32) -> *mut aquifer_stream {
    std::ptr::without_provenance_mut((STREAM | u64::from(number)) as usize)
}

pub(crate) fn add_stack(number: u32, stack: Arc<Stack>) {
    STACKS.write().insert(number, stack);
}

pub(crate) fn stack(number: u32) -> Result<Arc<Stack>> {
    STACKS.read().get(&number).cloned().ok_or_else(|| closed("stack", "released"))
}

/// Counts one user less; gives the stack where it was the last.
pub(crate) fn release_stack(number: u32) -> Result<Option<Arc<Stack>>> {
    let mut stacks = STACKS.write();
    let Some(stack) = stacks.get(&number) else { return Err(closed("stack", "released")) };
    if !stack.release()? {
        return Ok(None);
    }
    let last = stacks.remove(&number);
    drop(stacks);
    invalidate_caches();
    Ok(last)
}

/// The stack's present route has changed.
pub(crate) fn route_changed() {
    invalidate_caches();
}

pub(crate) fn route(number: u32) -> Option<Arc<Route>> {
    ROUTES.read().get(&number).cloned()
}

/// Opens a stream, or counts one more user of it.
pub(crate) fn open_stream(stream: Stream) -> u32 {
    let mut streams = STREAMS.write();
    let streams = &mut *streams;
    let number = *streams.by_id.entry(stream.id()).or_insert_with(next);
    streams.by_number.entry(number).or_insert(OpenStream { stream, opened: 0 }).opened += 1;
    number
}

/// Takes back the last close of a stream, which failed.
pub(crate) fn reopen_stream(number: u32, stream: Stream) {
    let mut streams = STREAMS.write();
    streams.by_id.insert(stream.id(), number);
    streams.by_number.insert(number, OpenStream { stream, opened: 1 });
}

/// Whether a stream is open.
pub(crate) fn is_open(number: u32) -> bool {
    STREAMS.read().by_number.contains_key(&number)
}

/// The number of a stream that is open, without counting.
pub(crate) fn opened_stream(stream: &Stream) -> Option<u32> {
    STREAMS.read().by_id.get(&stream.id()).copied()
}

/// Counts one user less; gives the stream where it was the last.
pub(crate) fn close_stream(number: u32) -> Result<Option<Stream>> {
    let mut streams = STREAMS.write();
    let Some(open) = streams.by_number.get_mut(&number) else {
        return Err(closed("stream", "closed"));
    };
    open.opened -= 1;
    if open.opened > 0 {
        return Ok(None);
    }
    let last = streams.by_number.remove(&number).map(|open| open.stream);
    if let Some(stream) = &last {
        streams.by_id.remove(&stream.id());
    }
    drop(streams);
    invalidate_caches();
    Ok(last)
}

pub(crate) fn stream(number: u32) -> Result<Stream> {
    let streams = STREAMS.read();
    let open = streams.by_number.get(&number);
    open.map(|open| open.stream.clone()).ok_or_else(|| closed("stream", "closed"))
}

/// Calls `body` with the route by which a stack allocates now, and an open stream.
pub(crate) fn with_stack<T>(
    stack_number: u32,
    stream_number: u32,
    body: impl FnOnce(u32, &dyn DeviceResource, &Stream) -> Result<T>,
) -> Result<T> {
    let cached = CACHE.try_with(|cache| {
        let mut cache = cache.try_borrow_mut().ok()?;
        cache.refresh();
        let route = cache.routes.iter().flatten().find(|route| route.stack == stack_number)?;
        Some((route.number, route.resource.clone()))
    });
    let (number, resource) = match cached {
        Ok(Some(cached)) => cached,
        _ => {
            let route = stack(stack_number)?.present_route(stream_number)?;
            if let Some(capture) = &route.capture {
                let result = body(route.number, &*route.resource(), &capture.side)?;
                // What the pool took from the stack is complete then: a graph is ordered after nothing.
                capture.side.synchronize()?;
                return Ok(result);
            }
            (route.number, route.resource())
        }
    };
    let stream = stream(stream_number)?;
    remember(stack_number, number, &resource, stream_number, &stream);
    body(number, &*resource, &stream)
}

/// As [`with_stack`], with the route that a block came by. A route that is closing is given, too.
pub(crate) fn with_route<T>(
    route_number: u32,
    stream_number: u32,
    body: impl FnOnce(&dyn DeviceResource, &Stream) -> T,
) -> Result<T> {
    let route = route(route_number).ok_or_else(|| closed("stack", "released"))?;
    let stream = stream(stream_number)?;
    let resource = route.resource();
    if !route.is_closing() {
        remember(0, route_number, &resource, stream_number, &stream);
    }
    let result = body(&*resource, &stream);
    route.count_free();
    Ok(result)
}

/// Puts what a call uses into the thread's cache, where its next call looks first.
fn remember(
    stack: u32,
    number: u32,
    resource: &Arc<dyn DeviceResource>,
    stream_number: u32,
    stream: &Stream,
) {
    let _ = CACHE.try_with(|cache| {
        let Ok(mut cache) = cache.try_borrow_mut() else { return };
        cache.refresh();
        let cache = &mut *cache;
        // A route is known with its stack or without; a stack that has another route now was forgotten.
        let known = cache.routes.iter().position(|known| {
            known
                .as_ref()
                .is_some_and(|known| known.number == number && (stack == 0 || known.stack == stack))
        });
        let place = known.unwrap_or_else(|| {
            let place = cache.next_route % cache.routes.len();
            cache.next_route += 1;
            forget_last();
            let resource = resource.clone();
            cache.routes[place] = Some(Box::new(CachedRoute { stack, number, resource }));
            place
        });
        let known = cache
            .streams
            .iter()
            .position(|known| known.as_ref().is_some_and(|known| known.0 == stream_number));
        let stream_place = known.unwrap_or_else(|| {
            let place = cache.next_stream % cache.streams.len();
            cache.next_stream += 1;
            forget_last();
            cache.streams[place] = Some(Box::new((stream_number, stream.clone())));
            place
        });
        let (Some(route), Some(stream)) = (&cache.routes[place], &cache.streams[stream_place])
        else {
            return;
        };
        if stream.1.device() != route.resource.device() {
            // INV-3.
            return;
        }
        LAST.with(|last| {
            last.stack.set(STACK | u64::from(route.stack));
            last.stream.set(STREAM | u64::from(stream_number));
            last.numbers.set(page_map::numbers(number, stream_number));
            last.resource.set(&raw const route.resource);
            last.on.set(&raw const stream.1);
            last.generation.set(cache.generation);
        });
    });
}
