//! The ways by which blocks come and go: a resource, by a number that each of its blocks has.
//!
//! | table | key | holds | until |
//! |---|---|---|---|
//! | `ROUTES` | a route's number | the resource of a stack or of a capture's pool | its stack or its capture is released, and no block came by it |
//! | `ENDING` | - | routes that are out of `ROUTES` | a stack's memory is given back; the device's work is ordered before what a capture's pool gives back |

use crate::cache;
use crate::capture::OfCapture;
use crate::live_blocks::{LiveBlocks, ThreadBlocks};
use aquifer_rs::{DeviceResource, ErrorKind, mr::ResourceStack};
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
    /// It goes with the last of them, once its stack is released.
    live: Arc<LiveBlocks>,
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
        let (logged, live) = (RwLock::default(), LiveBlocks::new());
        let route = Self { number, resource, logged, live, own, has_callbacks, capture };
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
        let is_empty = self.live.close();
        cache::invalidate();
        if is_empty {
            end(self.number);
        }
        end_routes();
    }

    /// Has what the route has go back, if it can now.
    fn end(&self) -> bool {
        if let Some(capture) = &self.capture {
            return capture.end(&*self.resource).is_ok();
        }
        // Threads that sleep keep the resource, and nothing in it.
        self.own.as_ref().is_none_or(|own| match own.wait_and_trim(0) {
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
        self.live.add();
        RouteInUse { route: self, is_block: false }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.live.is_closing()
    }

    /// A block of it was freed: the last one takes the route with it.
    pub(crate) fn count_free(&self) {
        if self.live.remove() {
            end_empty(self.number);
        }
    }

    /// The calling thread counts its warm allocations and frees by itself.
    pub(crate) fn blocks_of_thread(&self) -> ThreadBlocks {
        self.live.of_thread()
    }
}

/// A route with an allocation on its way, which is as good as a block.
pub(crate) struct RouteInUse {
    route: Arc<Route>,
    is_block: bool,
}

impl RouteInUse {
    /// The allocation has become a block.
    pub(crate) fn keep_block(mut self) {
        self.is_block = true;
    }
}

impl Deref for RouteInUse {
    type Target = Route;

    fn deref(&self) -> &Route {
        &self.route
    }
}

impl Drop for RouteInUse {
    fn drop(&mut self) {
        if !self.is_block {
            self.route.count_free();
        }
    }
}

/// Ends a closing route that has no block left.
#[cold]
pub(crate) fn end_empty(number: u32) {
    end(number);
    end_routes();
}

fn end(number: u32) {
    let gone = ROUTES.write().remove(&number);
    ENDING.lock().extend(gone);
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
