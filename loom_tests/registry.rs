#![cfg(aquifer_loom)]
//! The current resource: one default however many ask first, and each that was set is given back
//! once.

mod harness;

use aquifer::models::Current;
use harness::model;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A resource. Its state is the standard library's: loom has no part in it, and each access is
/// between two of loom's switches.
struct Named {
    name: &'static str,
    dropped: Arc<AtomicUsize>,
    /// Asked when it is dropped, as a resource may whose drop frees through others.
    asks: Option<Arc<Current<Named>>>,
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
    /// A handle that one role gives up.
    held: Mutex<Option<Arc<Named>>>,
    made: AtomicUsize,
    dropped: Arc<AtomicUsize>,
}

struct State {
    current: Arc<Current<Named>>,
    seen: Seen,
}

impl State {
    fn new() -> Self {
        Self { current: Arc::new(Current::new()), seen: Seen::default() }
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

    /// One resource for all who got one.
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

/// Of all that is set, each is given back by one call, the last by the last.
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
            // What lives is the default, if it was made.
            s.get(true);
            assert_eq!(
                s.seen.made.load(Relaxed),
                s.dropped() + 1,
                "a resource is kept for nothing"
            );
        },
    );
}

/// The only user of a default that nobody keeps lets go of it while others ask.
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
            assert_eq!(s.seen.made.load(Relaxed), s.dropped(), "nobody keeps it");
        },
    );
}

/// A default whose making sets and asks, and whose drop asks: no lock is held over either.
#[test]
fn makers_and_drops_ask() {
    fn get(state: &State) {
        let make = || {
            // The loser's is dropped by the call.
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
