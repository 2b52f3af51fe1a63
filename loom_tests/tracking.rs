#![cfg(aquifer_loom)]
//! What a tracking adaptor's first thread has for its own: exact while it enters, others look, and a
//! second thread makes it everyone's.

mod harness;

use aquifer::models::Alone;
use harness::{large_model, model};
use loom::sync::Mutex;

#[derive(Default)]
struct State {
    alone: Alone<u32>,
    /// Where all reach it.
    shared: Mutex<u32>,
}

/// Nobody has come.
fn fresh() -> State {
    State::default()
}

/// The first role's thread has it for its own.
fn owned() -> State {
    let state = State::default();
    state.add();
    state
}

impl State {
    fn add(&self) {
        let add = |value: &mut u32| *value += 1;
        // SAFETY: `add` calls nobody.
        let entered = unsafe { self.alone.enter(add) };
        if entered.is_some() {
            return;
        }
        let share = |value| *self.shared.lock().unwrap() += value;
        // SAFETY: `add` calls nobody.
        let claimed = unsafe { self.alone.claim(add, share) };
        if claimed.is_none() {
            *self.shared.lock().unwrap() += 1;
        }
    }

    fn read(&self) -> u32 {
        self.alone.look(|value| *value).unwrap_or_else(|| *self.shared.lock().unwrap())
    }

    fn look(&self, most: u32) {
        let (before, after) = (self.read(), self.read());
        assert!(before <= after && after <= most, "{before} was seen, then {after} of {most}");
    }

    fn end(&self, all: u32) {
        assert_eq!(self.read(), all, "what was added");
        self.add();
        assert_eq!(self.read(), all + 1, "what was added, and one more");
    }
}

#[test]
fn two_first_threads() {
    model("two_first_threads", 20, fresh, &[State::add, State::add], |s| s.end(2));
}

#[test]
fn the_owner_is_in_the_middle() {
    let owner: fn(&State) = |s| {
        s.add();
        s.add();
    };
    model("the_owner_is_in_the_middle", 300, owned, &[owner, State::add], |s| s.end(4));
}

#[test]
fn one_looks_at_another() {
    let owner: fn(&State) = |s| {
        s.add();
        s.add();
    };
    model("one_looks_at_another", 800, owned, &[owner, |s| s.look(3)], |s| s.end(3));
}

#[test]
fn one_looks_while_it_becomes_everyones() {
    let roles: [fn(&State); 3] = [State::add, State::add, |s| s.look(3)];
    large_model("one_looks_while_it_becomes_everyones", 40_000, owned, &roles, |s| s.end(3));
}
