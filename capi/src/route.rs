//! The ways by which blocks come and go: a resource, by a number that each of its blocks has.
//!
//! | table | key | holds | until |
//! |---|---|---|---|
//! | `ROUTES` | a route's number | the resource of a stack or of a capture's pool | its stack or its capture is released, and no block came by it |
//! | `ENDING` | - | routes that are out of `ROUTES` | a stack's memory is given back; the device's work is ordered before what a capture's pool gives back |

use crate::capture::OfCapture;
use crate::closing::Closing;
use crate::{cache, page_map, shadowed};
use aquifer_rs::{DeviceResource, ErrorKind, ResourceStack};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

static ROUTES: LazyLock<RwLock<HashMap<u32, Arc<Route>>>> = LazyLock::new(RwLock::default);

/// Where blocks come from, and go back to.
pub(crate) struct Route {
    pub(crate) number: u32,
    resource: Arc<dyn DeviceResource>,
    /// The same with a log around it, while the stack has one.
    logged: RwLock<Option<Arc<dyn DeviceResource>>>,
    /// Its stack is released: it goes with its last block.
    closing: Closing,
    /// Of the stack whose own route this is: what goes back with it. Not what it is over.
    own: Option<ResourceStack>,
    /// Its resource calls code of the program, which may call this library again: no thread's cache keeps its route.
    pub(crate) has_callbacks: bool,
    /// Of a capture's pool. No thread's cache keeps its route.
    pub(crate) capture: Option<OfCapture>,
}

impl Route {
    pub(crate) fn new(
        number: u32,
        resource: Arc<dyn DeviceResource>,
        own: Option<ResourceStack>,
        has_callbacks: bool,
        capture: Option<OfCapture>,
    ) -> Arc<Self> {
        let (logged, closing) = (RwLock::default(), Closing::new());
        let route = Self { number, resource, logged, closing, own, has_callbacks, capture };
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

    pub(crate) fn is_logged(&self) -> bool {
        self.logged.read().is_some()
    }

    pub(crate) fn set_log(&self, logged: Option<Arc<dyn DeviceResource>>) {
        let before = std::mem::replace(&mut *self.logged.write(), logged);
        cache::invalidate();
        drop(before);
    }

    /// The route goes when its last block does.
    pub(crate) fn close(&self) {
        self.closing.begin();
        cache::invalidate();
        sweep();
    }

    /// Has what the route has go back, if it can now.
    fn end(&self) -> bool {
        if let Some(capture) = &self.capture {
            return capture.end(&*self.resource).is_ok();
        }
        // Threads that sleep keep the resource, and nothing in it.
        self.own.as_ref().is_none_or(|own| match own.trim(0) {
            // Beside a capture a pool gives a part back. What is live was leaked.
            Ok(_) => own.pool().is_none_or(|pool| {
                let pool = pool.statistics();
                pool.reserved == 0 || pool.live > 0
            }),
            // Another error is of a device that is gone.
            Err(error) => error.kind() != ErrorKind::Capture,
        })
    }

    /// An allocation begins, which the end of the route waits for. The caller has the lock under which the stack lets go
    /// of the route.
    pub(crate) fn enter(self: Arc<Self>) -> RouteInUse {
        self.closing.begin_allocation();
        RouteInUse(self)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_begun()
    }

    /// A block of it was freed: the last one takes the route with it.
    pub(crate) fn count_free(&self) {
        if self.closing.count_free() {
            sweep();
        }
    }
}

/// A route with an allocation on its way, which is as good as a block.
pub(crate) struct RouteInUse(Arc<Route>);

impl Deref for RouteInUse {
    type Target = Route;

    fn deref(&self) -> &Route {
        &self.0
    }
}

impl Drop for RouteInUse {
    fn drop(&mut self) {
        if self.0.closing.end_allocation() {
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
        if !closing.iter().any(|route| route.closing.is_due()) {
            break;
        }
        closing.iter().for_each(|route| route.closing.begin_count());
        let allocations = |route: &Arc<Route>| (route.number, route.closing.allocations());
        let mut live: HashMap<u32, isize> = closing.iter().map(allocations).collect();
        let mut count = |block: page_map::Block| {
            if let Some(blocks) = live.get_mut(&block.route) {
                *blocks += 1;
            }
        };
        page_map::for_each_live(|_, block| count(block));
        shadowed::for_each(&mut count);
        for route in closing {
            match live.get(&route.number) {
                Some(0) => gone.extend(ROUTES.write().remove(&route.number)),
                Some(blocks) => route.closing.found(*blocks),
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

/// Drops the routes that have no block. Those that cannot end now, as a stream of the device is in capture, are tried
/// again by the next call.
pub(crate) fn end_routes() {
    let ending = std::mem::take(&mut *ENDING.lock());
    // Under no lock: a pool may end here.
    let (ended, left): (Vec<_>, Vec<_>) = ending.into_iter().partition(|route| route.end());
    ENDING.lock().extend(left);
    drop(ended);
}

pub(crate) fn get(number: u32) -> Option<Arc<Route>> {
    ROUTES.read().get(&number).cloned()
}
