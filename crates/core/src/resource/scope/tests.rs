use super::*;
use crate::device::Device;
use crate::resource::CudaResource;
use crate::sim::SimConfig;
use crate::sync::scope_list::EnteredScope;
use crate::sync::trusted::{AtomicUsize, Mutex, channel};
use crate::sync::{Weak, trusted};

fn device() -> Device {
    Device::simulated(SimConfig::default())
}

type ResourceScope = EnteredScope<ThreadResource>;

fn plain(device: &Device) -> Arc<dyn DeviceResource> {
    Arc::new(CudaResource::new(device))
}

/// A scope as a coroutine holds it that is suspended inside.
fn enter(resource: &Arc<dyn DeviceResource>) -> ResourceScope {
    EnteredScope::enter(&SCOPES, ThreadResource::new(resource.clone()))
}

#[track_caller]
fn is_current(device: &Device, wanted: Option<&Arc<dyn DeviceResource>>) {
    let found = innermost(device.key()).map(|scoped| scoped.resource.clone());
    let same = match (&found, wanted) {
        (Some(found), Some(wanted)) => Arc::ptr_eq(found, wanted),
        (found, wanted) => found.is_none() && wanted.is_none(),
    };
    assert!(same, "{found:?} is current, not {wanted:?}");
}

#[test]
fn scopes_end_in_every_order() {
    let device = device();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let resources = [plain(&device), plain(&device), plain(&device)];
        let mut scopes = resources.each_ref().map(|resource| Some(enter(resource)));
        for next in order {
            scopes[next] = None;
            let left = (0..3).rev().find(|&index| scopes[index].is_some());
            is_current(&device, left.map(|index| &resources[index]));
            assert_eq!(Arc::strong_count(&resources[next]), 1, "{order:?} keeps {next}");
        }
        assert!(SCOPES.with(ScopeList::is_empty), "{order:?}");
    }
}

#[test]
fn the_outer_coroutine_ends_inside_of_the_inner_ones_scope() {
    let device = device();
    let (one, two, called) = (plain(&device), plain(&device), plain(&device));
    let first = enter(&one);
    with_device_resource(called.clone(), || {
        let second = enter(&two);
        drop(first);
        is_current(&device, Some(&two));
        with_device_resource(called.clone(), || is_current(&device, Some(&called)));
        drop(second);
        is_current(&device, Some(&called));
    });
    is_current(&device, None);
}

#[test]
fn a_scope_that_ends_on_another_thread_is_current_on_neither() {
    let device = device();
    let (theirs, mine) = (plain(&device), plain(&device));
    let scope = enter(&theirs);
    is_current(&device, Some(&theirs));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            is_current(&device, None);
            with_device_resource(mine.clone(), || {
                drop(scope);
                is_current(&device, Some(&mine));
            });
            is_current(&device, None);
        });
    });
    is_current(&device, None);
    assert_eq!(
        Arc::strong_count(&theirs),
        2,
        "the list of this thread counts it until the next end"
    );
    with_device_resource(mine.clone(), || is_current(&device, Some(&mine)));
    assert_eq!((Arc::strong_count(&theirs), Arc::strong_count(&mine)), (1, 1));
}

#[test]
fn a_scope_outlives_the_thread_that_entered_it() {
    let device = device();
    let resource = plain(&device);
    let scope = std::thread::scope(|threads| threads.spawn(|| enter(&resource)).join()).unwrap();
    is_current(&device, None);
    drop(scope);
    is_current(&device, None);
}

#[test]
fn a_scope_that_is_forgotten_stays_current_and_others_end_around_it() {
    std::thread::spawn(|| {
        let device = device();
        let (outer, forgotten, inner) = (plain(&device), plain(&device), plain(&device));
        let first = enter(&outer);
        std::mem::forget(enter(&forgotten));
        with_device_resource(inner.clone(), || is_current(&device, Some(&inner)));
        is_current(&device, Some(&forgotten));
        drop(first);
        is_current(&device, Some(&forgotten));
        assert_eq!((Arc::strong_count(&outer), Arc::strong_count(&inner)), (1, 1));
    })
    .join()
    .unwrap();
}

/// Coroutines whose scopes end in any place, some in their turn, some late, some on other threads.
#[test]
fn scopes_that_wander_between_threads() {
    let device = device();
    let resource = plain(&device);
    let (give, take) = channel::unbounded::<ResourceScope>();
    let ended = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for thread in 0..3_usize {
            let (give, take, resource, device, ended) =
                (give.clone(), take.clone(), &resource, &device, &ended);
            threads.spawn(move || {
                for round in 0..2_000_usize {
                    give.send(enter(resource)).unwrap();
                    let own = enter(resource);
                    is_current(device, Some(resource));
                    if (round + thread).is_multiple_of(3) {
                        drop(own);
                    } else {
                        give.send(own).unwrap();
                    }
                    for scope in take.try_iter().take(2) {
                        drop(scope);
                        ended.fetch_add(1, trusted::Ordering::Relaxed);
                    }
                }
                // This thread's next end drops the frames that other threads left.
                take.try_iter().for_each(drop);
                with_device_resource(resource.clone(), || is_current(device, Some(resource)));
            });
        }
    });
    assert!(ended.into_inner() > 0);
    is_current(&device, None);
}

/// A resource that enters a scope as it is dropped.
#[derive(Debug)]
struct Enters {
    plain: CudaResource,
    seen: Arc<Mutex<Vec<bool>>>,
    me: Weak<Self>,
}

impl Drop for Enters {
    fn drop(&mut self) {
        let device = self.plain.device().clone();
        let own = plain(&device);
        with_device_resource(own.clone(), || is_current(&device, Some(&own)));
        self.seen.lock().push(self.me.upgrade().is_none());
    }
}

// SAFETY: all is handed on.
unsafe impl DeviceResource for Enters {
    fn device(&self) -> &Device {
        self.plain.device()
    }

    fn allocate(
        &self,
        stream: &crate::stream::Stream,
        layout: crate::layout::DeviceLayout,
    ) -> crate::error::Result<crate::resource::DeviceBlock> {
        self.plain.allocate(stream, layout)
    }

    unsafe fn deallocate(
        &self,
        stream: &crate::stream::Stream,
        block: crate::resource::DeviceBlock,
    ) {
        // SAFETY: the caller's promise.
        unsafe { self.plain.deallocate(stream, block) };
    }
}

#[test]
fn a_resource_that_enters_scopes_as_it_is_dropped() {
    let device = device();
    let seen = Arc::default();
    let make = || -> Arc<dyn DeviceResource> {
        let (plain, seen) = (CudaResource::new(&device), Arc::clone(&seen));
        Arc::new_cyclic(|me| Enters { plain, seen, me: me.clone() })
    };
    let [one, two, three] = [(); 3].map(|()| enter(&make()));
    std::thread::scope(|threads| {
        threads.spawn(|| drop((two, one)));
    });
    assert!(seen.lock().is_empty(), "this thread's list counts them");
    drop(three);
    assert_eq!(*seen.lock(), [true; 3]);
    is_current(&device, None);
}
