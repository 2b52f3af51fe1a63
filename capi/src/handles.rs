//! Handles of stacks and streams: numbers that are never used again, in the shape of pointers.
//!
//! A handle is no address, so a wrong one is an error and never a crash. The tables are behind locks; each thread keeps
//! what it used last, so a warm call takes none.
//!
//! | table | key | holds | until |
//! |---|---|---|---|
//! | `STACKS` | a stack's number | the stack | its last release |
//! | `ROUTES` | a route's number | the resource of a stack or of a capture's pool | its stack is released, and no block came by it |
//! | `STREAMS` | a stream's number | the stream | its last close |
//! | `CACHE`, a thread's | numbers | what it used last | a change of `GENERATION`, seen at the thread's next call |

use crate::stack::Stack;
use crate::status::{Failure, Result, aquifer_status as Status};
use aquifer_rs::{DeviceResource, Stream};
use parking_lot::RwLock;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
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
}

impl Route {
    pub(crate) fn new(resource: Arc<dyn DeviceResource>) -> Arc<Self> {
        let (logged, is_closing) = (RwLock::default(), AtomicBool::new(false));
        let route = Arc::new(Self { number: next(), resource, logged, is_closing });
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
        self.remove_if_idle();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Drops the table's share of a closing route of which no block is in use.
    pub(crate) fn remove_if_idle(&self) {
        let mut live = 0_usize;
        crate::page_map::for_each_live(|_, block| live += usize::from(block.route == self.number));
        if live == 0 {
            let removed = ROUTES.write().remove(&self.number);
            // Not under the lock: a pool may end here.
            drop(removed);
        }
    }
}

static STACKS: LazyLock<RwLock<HashMap<u32, Arc<Stack>>>> = LazyLock::new(RwLock::default);
static ROUTES: LazyLock<RwLock<HashMap<u32, Arc<Route>>>> = LazyLock::new(RwLock::default);
static STREAMS: LazyLock<RwLock<OpenStreams>> = LazyLock::new(RwLock::default);

/// Grows with each change of what a number stands for.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// The last number that was given out. They are of all kinds.
static LAST: AtomicU32 = AtomicU32::new(0);

/// A number that nothing has. It is 0 for nothing.
pub(crate) fn next() -> u32 {
    // Relaxed: only uniqueness is asked. A process that makes four thousand million handles starts anew.
    LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1)
}

fn invalidate_caches() {
    // Release: a thread that sees it looks into tables that have changed.
    GENERATION.fetch_add(1, Ordering::Release);
    let _ = CACHE.try_with(|cache| cache.try_borrow_mut().map(|mut cache| cache.clear()).ok());
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

/// What a thread used last.
struct Cache {
    generation: u64,
    /// The number of a stack, and of the route that it allocates by now; 0 for a route alone.
    routes: [Option<(u32, u32, Arc<dyn DeviceResource>)>; 4],
    streams: [Option<(u32, Stream)>; 8],
    next_route: usize,
    next_stream: usize,
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
        (self.routes, self.streams) = ([const { None }; 4], [const { None }; 8]);
    }

    #[inline]
    fn refresh(&mut self) {
        // Acquire: pairs with `invalidate_caches`.
        let generation = GENERATION.load(Ordering::Acquire);
        if self.generation != generation {
            self.clear();
            self.generation = generation;
        }
    }
}

thread_local! {
    static CACHE: RefCell<Cache> = const { RefCell::new(Cache::new()) };
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
    if !stack.release() {
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
#[inline]
pub(crate) fn with_stack<T>(
    stack_number: u32,
    stream_number: u32,
    body: impl FnOnce(u32, &dyn DeviceResource, &Stream) -> Result<T>,
) -> Result<T> {
    let mut body = Some(body);
    let cached = CACHE.try_with(|cache| {
        let mut cache = cache.try_borrow_mut().ok()?;
        cache.refresh();
        let cache = &*cache;
        let route = cache.routes.iter().flatten().find(|route| route.0 == stack_number)?;
        let stream = cache.streams.iter().flatten().find(|stream| stream.0 == stream_number)?;
        Some(body.take()?(route.1, &*route.2, &stream.1))
    });
    if let Ok(Some(result)) = cached {
        return result;
    }
    let (route, resource) = stack(stack_number)?.present_route();
    let stream = stream(stream_number)?;
    remember(stack_number, route, &resource, Some((stream_number, &stream)));
    match body.take() {
        Some(body) => body(route, &*resource, &stream),
        None => Err(Failure::new(Status::AQUIFER_ERROR_PANIC, "a call was made twice")),
    }
}

/// As [`with_stack`], with the route that a block came by. A route that is closing is given, too.
#[inline]
pub(crate) fn with_route<T>(
    route_number: u32,
    stream_number: u32,
    body: impl FnOnce(&dyn DeviceResource, &Stream) -> T,
) -> Result<T> {
    let mut body = Some(body);
    let cached = CACHE.try_with(|cache| {
        let mut cache = cache.try_borrow_mut().ok()?;
        cache.refresh();
        let cache = &*cache;
        let route = cache.routes.iter().flatten().find(|route| route.1 == route_number)?;
        let stream = cache.streams.iter().flatten().find(|stream| stream.0 == stream_number)?;
        Some(body.take()?(&*route.2, &stream.1))
    });
    if let Ok(Some(result)) = cached {
        return Ok(result);
    }
    let route = route(route_number).ok_or_else(|| closed("stack", "released"))?;
    let stream = stream(stream_number)?;
    let resource = route.resource();
    if !route.is_closing() {
        remember(0, route_number, &resource, Some((stream_number, &stream)));
    }
    let Some(body) = body.take() else {
        return Err(Failure::new(Status::AQUIFER_ERROR_PANIC, "a call was made twice"));
    };
    let result = body(&*resource, &stream);
    if route.is_closing() {
        route.remove_if_idle();
    }
    Ok(result)
}

fn remember(
    stack_number: u32,
    route_number: u32,
    resource: &Arc<dyn DeviceResource>,
    stream: Option<(u32, &Stream)>,
) {
    let _ = CACHE.try_with(|cache| {
        let Ok(mut cache) = cache.try_borrow_mut() else { return };
        cache.refresh();
        let known =
            cache.routes.iter().flatten().any(|route| {
                route.1 == route_number && (stack_number == 0 || route.0 == stack_number)
            });
        if !known {
            let place = cache.next_route % cache.routes.len();
            cache.next_route += 1;
            cache.routes[place] = Some((stack_number, route_number, resource.clone()));
        }
        let Some((number, stream)) = stream else { return };
        if !cache.streams.iter().flatten().any(|known| known.0 == number) {
            let place = cache.next_stream % cache.streams.len();
            cache.next_stream += 1;
            cache.streams[place] = Some((number, stream.clone()));
        }
    });
}
