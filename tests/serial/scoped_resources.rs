//! Resources that are current for a call of one thread, or for one task.

use crate::{alone, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceResource, DeviceVec,
    mr::{
        current_device_resource, reset_current_device_resource, set_current_device_resource,
        with_device_resource, with_device_resource_async,
    },
};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Waker};

fn plain(device: &Device) -> Arc<dyn DeviceResource> {
    Arc::new(CudaResource::new(device))
}

/// Asserts that each way of making a vector, and the question itself, come to `wanted` here.
#[track_caller]
fn is_current(wanted: &Arc<dyn DeviceResource>) {
    let device = wanted.device();
    let stream = device.new_stream().unwrap();
    let current = current_device_resource(device).unwrap();
    assert!(Arc::ptr_eq(&current, wanted), "{current:?} is current, not {wanted:?}");
    for vec in [
        DeviceVec::<u8>::zeroed(&stream, 1).unwrap(),
        DeviceVec::with_capacity(&stream, 1).unwrap(),
        DeviceVec::from_slice(&stream, &[1]).unwrap(),
    ] {
        let resource = vec.resource();
        assert!(Arc::ptr_eq(resource, wanted), "taken from {resource:?}, not {wanted:?}");
    }
}

#[test]
fn the_innermost_scope_wins_and_each_is_left() {
    let _alone = alone();
    let device = support::device();
    let default = current_device_resource(&device).unwrap();
    let (one, two) = (plain(&device), plain(&device));
    is_current(&default);
    let returned = with_device_resource(one.clone(), || {
        is_current(&one);
        with_device_resource(two.clone(), || is_current(&two));
        is_current(&one);
        with_device_resource(one.clone(), || is_current(&one));
        is_current(&one);
        "what the body returns"
    });
    assert_eq!(returned, "what the body returns");
    is_current(&default);
    assert_eq!((Arc::strong_count(&one), Arc::strong_count(&two)), (1, 1), "nothing is kept");
}

#[test]
fn a_body_that_unwinds_leaves_its_scope() {
    let _alone = alone();
    let device = support::device();
    let default = current_device_resource(&device).unwrap();
    let (one, two) = (plain(&device), plain(&device));
    with_device_resource(one.clone(), || {
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            with_device_resource(two.clone(), || std::panic::resume_unwind(Box::new(())))
        }));
        assert!(unwound.is_err());
        is_current(&one);
    });
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        with_device_resource(one.clone(), || {
            with_device_resource(two.clone(), || std::panic::resume_unwind(Box::new(())))
        })
    }));
    assert!(unwound.is_err());
    is_current(&default);
    assert_eq!((Arc::strong_count(&one), Arc::strong_count(&two)), (1, 1));
}

#[test]
fn what_is_set_for_the_process_meanwhile_is_seen_when_the_scope_ends() {
    let _alone = alone();
    let device = support::device();
    let (one, set, again) = (plain(&device), plain(&device), plain(&device));
    set_current_device_resource(set.clone());
    with_device_resource(one.clone(), || {
        is_current(&one);
        let before = set_current_device_resource(again.clone()).unwrap();
        assert!(Arc::ptr_eq(&before, &set), "a scope is nothing that was set");
        is_current(&one);
    });
    is_current(&again);
    with_device_resource(one.clone(), || {
        assert!(Arc::ptr_eq(&reset_current_device_resource(&device).unwrap(), &again));
        is_current(&one);
    });
    assert!(!Arc::ptr_eq(&current_device_resource(&device).unwrap(), &one));
}

#[test]
fn threads_see_nothing_of_each_others_scopes() {
    let _alone = alone();
    let device = support::device();
    let default = current_device_resource(&device).unwrap();
    let resources = [plain(&device), plain(&device)];
    let together = Barrier::new(3);
    std::thread::scope(|scope| {
        for resource in &resources {
            let (together, default) = (&together, &default);
            scope.spawn(move || {
                with_device_resource(resource.clone(), || {
                    together.wait();
                    is_current(resource);
                    together.wait();
                });
                is_current(default);
            });
        }
        together.wait();
        is_current(&default);
        std::thread::scope(|inner| inner.spawn(|| is_current(&default)).join()).unwrap();
        together.wait();
    });
}

#[test]
fn devices_see_nothing_of_each_others_scopes() {
    let _alone = alone();
    let device = support::device();
    let (elsewhere, _) = support::simulated(SimConfig::default());
    let defaults = [&*device, &elsewhere].map(|device| current_device_resource(device).unwrap());
    let (here, there) = (plain(&device), plain(&elsewhere));
    with_device_resource(here.clone(), || {
        is_current(&here);
        is_current(&defaults[1]);
        with_device_resource(there.clone(), || {
            is_current(&here);
            is_current(&there);
        });
        is_current(&defaults[1]);
    });
    defaults.iter().for_each(is_current);
}

#[test]
fn a_vector_outlives_its_scope_and_keeps_what_it_came_from() {
    let _alone = alone();
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let resource = plain(&device);
    let weak = Arc::downgrade(&resource);
    let mut vec = with_device_resource(resource, || {
        DeviceVec::<u32>::from_slice(&stream, &[1, 2, 3]).unwrap()
    });
    assert!(weak.upgrade().is_some_and(|resource| Arc::ptr_eq(&resource, vec.resource())));
    vec.reserve(1000).unwrap();
    assert!(weak.upgrade().is_some_and(|resource| Arc::ptr_eq(&resource, vec.resource())));
    assert_eq!(vec.to_vec().unwrap(), [1, 2, 3]);
    drop(vec);
    assert_eq!(weak.strong_count(), 0);
}

/// Enters a scope when its thread's locals go.
struct AtTheEnd(Option<(Arc<dyn DeviceResource>, Seen)>);

type Seen = Arc<Mutex<bool>>;

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        let Some((resource, seen)) = self.0.take() else { return };
        let current = with_device_resource(resource.clone(), || {
            current_device_resource(resource.device()).unwrap()
        });
        *seen.lock().unwrap() = Arc::ptr_eq(&current, &resource);
    }
}

thread_local! {
    static AT_THE_END: std::cell::RefCell<AtTheEnd> = const { std::cell::RefCell::new(AtTheEnd(None)) };
}

#[test]
fn a_thread_that_ends_can_still_enter_a_scope() {
    let _alone = alone();
    let device = support::device();
    let resource = plain(&device);
    let seen = Arc::new(Mutex::new(false));
    let (there, tell) = (resource.clone(), seen.clone());
    std::thread::spawn(move || {
        AT_THE_END.with_borrow_mut(|end| end.0 = Some((there.clone(), tell)));
        with_device_resource(there.clone(), || is_current(&there));
    })
    .join()
    .unwrap();
    assert!(*seen.lock().unwrap());
}

/// Is ready at the second poll.
#[derive(Default)]
struct Turn {
    taken: bool,
}

impl Future for Turn {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.taken, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

type Task<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

fn poll(task: &mut Task<'_>) -> Poll<()> {
    task.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Looks at what is current three times, and lets others run between.
fn task(resource: &Arc<dyn DeviceResource>) -> Task<'_> {
    Box::pin(with_device_resource_async(resource.clone(), async move {
        for _ in 0..3 {
            is_current(resource);
            Turn::default().await;
        }
    }))
}

#[test]
fn tasks_that_take_turns_on_a_thread_see_their_own() {
    let _alone = alone();
    let device = support::device();
    let default = current_device_resource(&device).unwrap();
    let (one, two) = (plain(&device), plain(&device));
    let mut tasks = [task(&one), task(&two), task(&one)];
    for _ in 0..3 {
        for task in &mut tasks {
            assert!(poll(task).is_pending());
            is_current(&default);
        }
    }
    assert!(tasks.iter_mut().all(|task| poll(task).is_ready()));
    is_current(&default);
    drop(tasks);
    assert_eq!((Arc::strong_count(&one), Arc::strong_count(&two)), (1, 1));
}

#[test]
fn a_task_takes_its_resource_along_to_another_thread() {
    let _alone = alone();
    let device = support::device();
    let default = current_device_resource(&device).unwrap();
    let resource = plain(&device);
    let mut moving = task(&resource);
    assert!(poll(&mut moving).is_pending());
    is_current(&default);
    for _ in 0..2 {
        std::thread::scope(|scope| {
            let there = || {
                is_current(&default);
                assert!(poll(&mut moving).is_pending());
                is_current(&default);
            };
            scope.spawn(there).join().unwrap();
        });
    }
    assert!(poll(&mut moving).is_ready());
    is_current(&default);
}

#[test]
fn scopes_of_tasks_and_calls_nest() {
    let _alone = alone();
    let device = support::device();
    let default = current_device_resource(&device).unwrap();
    let (one, two, three) = (plain(&device), plain(&device), plain(&device));
    let inner = with_device_resource_async(two.clone(), async {
        is_current(&two);
        with_device_resource(three.clone(), || is_current(&three));
        Turn::default().await;
        is_current(&two);
    });
    let mut outer: Task<'_> = Box::pin(with_device_resource_async(one.clone(), async {
        is_current(&one);
        inner.await;
        is_current(&one);
    }));
    let pending = with_device_resource(three.clone(), || {
        let pending = poll(&mut outer).is_pending();
        is_current(&three);
        pending
    });
    assert!(pending);
    is_current(&default);
    assert!(poll(&mut outer).is_ready(), "out of the call's scope this time");
    is_current(&default);
}

#[test]
fn a_task_that_unwinds_leaves_its_scope() {
    let _alone = alone();
    let device = support::device();
    let default = current_device_resource(&device).unwrap();
    let mut task: Task<'_> = Box::pin(with_device_resource_async(plain(&device), async {
        std::panic::resume_unwind(Box::new(()))
    }));
    assert!(catch_unwind(AssertUnwindSafe(|| poll(&mut task))).is_err());
    is_current(&default);
}
