#![cfg(aquifer_loom)]
//! The current resource: one default at a time, each resource that was set is returned once (INV-1 and
//! INV-2 of `current_resource.rs`), and a scope is its thread's alone (INV-1 and INV-3 of `scope_list.rs`).

mod harness;

use aquifer::models::{CurrentResource, EnteredScope, enter_scope, scoped_resource};
use aquifer::sim::SimConfig;
use aquifer::{
    Device, DeviceBlock, DeviceLayout, DeviceResource, Error, ErrorKind, Result, Stream,
    mr::with_device_resource,
};
use harness::model;
use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex};

/// A resource. Its state is the standard library's, unseen by loom: each access is between two of
/// loom's switches.
struct Named {
    name: &'static str,
    dropped: Arc<AtomicUsize>,
    /// Asked by the drop, as that of a resource may which frees through others.
    asks: Option<Arc<CurrentResource<Named>>>,
}

impl Drop for Named {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Relaxed);
        if let Some(current) = &self.asks {
            let _ = current.get(false, || Err(()));
        }
    }
}

#[derive(Default)]
struct Seen {
    got: Mutex<Vec<Arc<Named>>>,
    previous: Mutex<Vec<Option<Arc<Named>>>>,
    /// A handle that one role drops.
    held: Mutex<Option<Arc<Named>>>,
    made: AtomicUsize,
    dropped: Arc<AtomicUsize>,
}

struct State {
    current: Arc<CurrentResource<Named>>,
    seen: Seen,
}

impl State {
    fn new() -> Self {
        Self { current: Arc::new(CurrentResource::new()), seen: Seen::default() }
    }

    fn make(&self, name: &'static str) -> Arc<Named> {
        self.seen.made.fetch_add(1, Relaxed);
        Arc::new(Named { name, dropped: self.seen.dropped.clone(), asks: None })
    }

    fn get(&self, keep: bool) {
        let make = || Ok::<_, Infallible>(self.make("default"));
        let Ok(got) = self.current.get(keep, make);
        self.seen.got.lock().unwrap().push(got);
    }

    fn replace(&self, resource: Option<Arc<Named>>) {
        let previous = self.current.replace(resource);
        self.seen.previous.lock().unwrap().push(previous);
    }

    /// All threads got one resource.
    fn agree(&self) {
        let got = self.seen.got.lock().unwrap();
        let same = got.iter().all(|one| Arc::ptr_eq(one, &got[0]));
        assert!(same, "two threads got two defaults");
    }

    fn dropped(&self) -> usize {
        self.seen.dropped.load(Relaxed)
    }
}

fn get_for_good(state: &State) {
    state.get(true);
}

fn get_while_used(state: &State) {
    state.get(false);
}

#[test]
fn two_first_gets() {
    model::<State>("two_first_gets", 20, State::new, &[get_for_good, get_for_good], |state| {
        state.agree();
        state.get(true);
        state.agree();
        assert_eq!(state.seen.made.load(Relaxed), state.dropped() + 1, "one default stays");
    });
}

#[test]
fn three_first_gets() {
    model::<State>(
        "three_first_gets",
        500,
        State::new,
        &[get_while_used, get_while_used, get_while_used],
        State::agree,
    );
}

/// Each resource that is set is returned by one call, the last one by the last.
#[test]
fn gets_and_replacements() {
    model::<State>(
        "gets_and_replacements",
        400,
        State::new,
        &[
            |s| s.replace(Some(s.make("x"))),
            |s| s.replace(Some(s.make("y"))),
            |s| {
                s.get(true);
                s.get(true);
            },
        ],
        |s| {
            s.replace(None);
            let mut names: Vec<_> = s
                .seen
                .previous
                .lock()
                .unwrap()
                .drain(..)
                .map(|previous| previous.map_or("nothing", |resource| resource.name))
                .collect();
            names.sort_unstable();
            assert_eq!(names, ["nothing", "x", "y"], "what was set comes back once");
            let got: Vec<_> = s.seen.got.lock().unwrap().drain(..).collect();
            let went_back = got[0].name != "default" && got[1].name == "default";
            assert!(!went_back, "the default is current while another is set");
            drop(got);
            // The default alone lives, if it was made.
            s.get(true);
            assert_eq!(
                s.seen.made.load(Relaxed),
                s.dropped() + 1,
                "a resource is kept without a user"
            );
        },
    );
}

/// The only user of a weakly kept default drops it while others ask.
#[test]
fn a_default_dies() {
    fn begin() -> State {
        let state = State::new();
        let Ok(held) = state.current.get(false, || Ok::<_, Infallible>(state.make("default")));
        *state.seen.held.lock().unwrap() = Some(held);
        state
    }
    model::<State>(
        "a_default_dies",
        220,
        begin,
        &[
            |s| {
                // The lock that the others take, too: else loom sees no reason to try another moment.
                s.replace(None);
                let held = s.seen.held.lock().unwrap().take();
                drop(held);
            },
            get_while_used,
            get_while_used,
        ],
        |s| {
            s.agree();
            s.seen.got.lock().unwrap().clear();
            assert_eq!(s.seen.made.load(Relaxed), s.dropped(), "the process keeps it");
        },
    );
}

/// A default whose making and whose drop ask for the current resource: no lock is held over either.
#[test]
fn makers_and_drops_ask() {
    fn get(state: &State) {
        let make = || {
            // The call drops the second default.
            let _ = state.current.get(false, || Err(()));
            let (dropped, asks) = (state.seen.dropped.clone(), Some(state.current.clone()));
            Ok::<_, Infallible>(Arc::new(Named { name: "default", dropped, asks }))
        };
        let Ok(got) = state.current.get(false, make);
        state.seen.got.lock().unwrap().push(got);
    }
    model::<State>("makers_and_drops_ask", 25, State::new, &[get, get], |state| {
        state.agree();
        state.seen.got.lock().unwrap().clear();
    });
}

/// A device's resource that has no memory.
struct OfDevice {
    name: &'static str,
    device: Device,
    dropped: Arc<AtomicUsize>,
}

impl fmt::Debug for OfDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Drop for OfDevice {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Relaxed);
    }
}

// SAFETY: it hands out nothing.
unsafe impl DeviceResource for OfDevice {
    fn device(&self) -> &Device {
        &self.device
    }

    fn allocate(&self, _stream: &Stream, _layout: DeviceLayout) -> Result<DeviceBlock> {
        Err(Error::new(ErrorKind::OutOfMemory, self.name))
    }

    unsafe fn deallocate(&self, _stream: &Stream, _block: DeviceBlock) {}
}

type Erased = Arc<dyn DeviceResource>;

/// The process's current resource of a device, and what threads with and without a scope got.
struct Scoped {
    device: Device,
    current: CurrentResource<dyn DeviceResource>,
    /// The scope of a coroutine that one role suspends, and whether another has ended it.
    suspended: Mutex<Option<EnteredScope>>,
    ended: loom::sync::atomic::AtomicBool,
    kept: Mutex<Vec<Erased>>,
    made: AtomicUsize,
    dropped: Arc<AtomicUsize>,
}

impl Scoped {
    fn new() -> Self {
        Self {
            device: Device::simulated(SimConfig::default()),
            current: CurrentResource::new(),
            suspended: Mutex::new(None),
            ended: loom::sync::atomic::AtomicBool::new(false),
            kept: Mutex::default(),
            made: AtomicUsize::new(0),
            dropped: Arc::default(),
        }
    }

    fn make(&self, name: &'static str) -> Erased {
        self.made.fetch_add(1, Relaxed);
        let (device, dropped) = (self.device.clone(), self.dropped.clone());
        Arc::new(OfDevice { name, device, dropped })
    }

    /// A handle on the calling thread's current resource, as a container takes one.
    fn take(&self) -> Erased {
        let make = || Ok::<_, Infallible>(self.make("default"));
        let Ok(taken) =
            scoped_resource(&self.device).map_or_else(|| self.current.get(true, make), Ok);
        self.kept.lock().unwrap().push(taken.clone());
        taken
    }

    /// Takes a handle that has to be the process's: one of `names`, and never of a scope.
    fn take_outside(&self, names: &[&str]) {
        let taken = self.take();
        let name = name(&taken);
        assert!(names.contains(&&*name), "outside of every scope, {name} is current");
    }

    fn within(&self, resource: &Erased, body: impl FnOnce()) {
        with_device_resource(resource.clone(), || {
            self.is_current(resource);
            body();
            self.is_current(resource);
        });
    }

    fn is_current(&self, resource: &Erased) {
        let taken = self.take();
        assert!(Arc::ptr_eq(&taken, resource), "in the scope of another, {} is", name(&taken));
    }

    /// The process unsets its resource, and the threads drop their handles.
    fn nothing_is_kept_but_a_default(&self) {
        self.take_outside(&["default"]);
        self.kept.lock().unwrap().clear();
        let alive = self.made.load(Relaxed) - self.dropped.load(Relaxed);
        assert_eq!(alive, 1, "a scope that was left keeps its resource");
    }
}

/// The name, which is the `Debug` text.
fn name(resource: &Erased) -> String {
    format!("{resource:?}")
}

/// One thread sets and resets, while another enters a scope, takes a handle and leaves.
#[test]
fn a_scope_while_another_thread_sets() {
    model::<Scoped>(
        "a_scope_while_another_thread_sets",
        60,
        Scoped::new,
        &[
            |s| {
                s.current.replace(Some(s.make("set")));
                s.take_outside(&["set"]);
                s.current.replace(None);
                s.take_outside(&["default"]);
            },
            |s| {
                let mine = s.make("mine");
                s.within(&mine, || {
                    // The registry's lock: else loom sees no reason to stop inside of the scope.
                    s.current.is_kept();
                });
                s.take_outside(&["set", "default"]);
            },
        ],
        Scoped::nothing_is_kept_but_a_default,
    );
}

/// Two threads in scopes of their own, one of them in two.
#[test]
fn two_scopes() {
    model::<Scoped>(
        "two_scopes",
        50,
        Scoped::new,
        &[
            |s| {
                let (mine, inner) = (s.make("mine"), s.make("inner"));
                s.within(&mine, || {
                    s.current.is_kept();
                    s.within(&inner, || {
                        s.current.is_kept();
                    });
                });
                s.take_outside(&["default"]);
            },
            |s| {
                let yours = s.make("yours");
                s.within(&yours, || {
                    s.current.is_kept();
                });
                s.take_outside(&["default"]);
            },
        ],
        Scoped::nothing_is_kept_but_a_default,
    );
}

/// A coroutine enters a scope on one thread and ends it on another, while the first looks, enters one
/// of its own and leaves it.
#[test]
fn a_scope_that_ends_on_another_thread() {
    model::<Scoped>(
        "a_scope_that_ends_on_another_thread",
        50,
        Scoped::new,
        &[
            |s| {
                let (theirs, mine) = (s.make("theirs"), s.make("mine"));
                let entered = enter_scope(theirs);
                *s.suspended.lock().unwrap() = Some(entered);
                s.current.is_kept();
                let ended = s.ended.load(Acquire);
                let name = name(&s.take());
                assert!(!ended || name != "theirs", "a scope that has ended is current");
                assert!(["theirs", "default"].contains(&&*name), "{name} is current");
                s.within(&mine, || {});
                let left = s.suspended.lock().unwrap().take();
                drop(left);
                s.take_outside(&["theirs", "default"]);
            },
            |s| {
                s.current.is_kept();
                let entered = s.suspended.lock().unwrap().take();
                if let Some(entered) = entered {
                    drop(entered);
                    s.ended.store(true, Release);
                }
                s.take_outside(&["default"]);
            },
        ],
        |s| {
            // Takes what has ended meanwhile out of this thread's list, if it is in that.
            s.kept.lock().unwrap().clear();
        },
    );
}
