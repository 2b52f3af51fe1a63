//! What each thread used last, so that a warm call takes no lock.
//!
//! | table | key | holds | until |
//! |---|---|---|---|
//! | `CACHE`, a thread's | numbers | what it used last | a change of `GENERATION`, seen at the thread's next call |
//! | `LAST`, a thread's | handles | pointers into `CACHE` | the same |

use crate::handles::{STACK, STREAM, aquifer_stack, aquifer_stream};
use crate::page_map;
use aquifer_rs::{DeviceResource, Stream};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Grows with each change of what a number stands for.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// What a thread keeps of a number holds while this is the same.
#[inline(always)]
pub(crate) fn generation() -> u64 {
    // Acquire: pairs with `invalidate`.
    GENERATION.load(Ordering::Acquire)
}

/// What threads keep holds no longer.
pub(crate) fn invalidate() {
    // Release: a thread that sees it looks into tables that have changed.
    GENERATION.fetch_add(1, Ordering::Release);
    let _ = CACHE.try_with(|cache| cache.try_borrow_mut().map(|mut cache| cache.clear()).ok());
}

/// In the child of a fork no thread's cache holds.
pub(crate) extern "C" fn forget_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
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
        // Acquire: pairs with `invalidate`.
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
            // Acquire: pairs with `invalidate`.
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

/// The route by which a stack allocates, if the thread knows it: its number and its resource.
pub(crate) fn route_of_stack(stack: u32) -> Option<(u32, Arc<dyn DeviceResource>)> {
    CACHE
        .try_with(|cache| {
            let mut cache = cache.try_borrow_mut().ok()?;
            cache.refresh();
            let route = cache.routes.iter().flatten().find(|route| route.stack == stack)?;
            Some((route.number, route.resource.clone()))
        })
        .ok()
        .flatten()
}

/// Puts what a call uses into the thread's cache, where its next call looks first: unless something has changed since it
/// was looked up in `generation`.
pub(crate) fn remember(
    generation: u64,
    stack: u32,
    number: u32,
    resource: &Arc<dyn DeviceResource>,
    stream_number: u32,
    stream: &Stream,
) {
    let _ = CACHE.try_with(|cache| {
        let Ok(mut cache) = cache.try_borrow_mut() else { return };
        cache.refresh();
        if cache.generation != generation {
            return;
        }
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
