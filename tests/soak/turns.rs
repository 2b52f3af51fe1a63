//! Real threads that take turns: which one runs next is decided by the seed, so that a program of
//! several threads, with all that a thread keeps for itself, replays exactly.
//!
//! A thread that ends gives its turn to the one that started it, which joins it before anyone else
//! runs: what happens when a thread's own memory is torn down is part of the order, too.

use crate::random::Random;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub(crate) struct Turns {
    /// Nobody waits for anybody: the threads race.
    free: bool,
    state: Mutex<State>,
    /// One for each thread, and one for the thread that joins them.
    signals: Vec<Condvar>,
}

struct State {
    random: Random,
    /// Whose turn it is; none while a thread that ended is being joined.
    now: Option<usize>,
    running: Vec<usize>,
    ended: Vec<usize>,
}

impl Turns {
    pub(crate) fn new(threads: usize, random: Random, free: bool) -> Self {
        Self {
            free,
            state: Mutex::new(State {
                random,
                now: None,
                running: (0..threads).collect(),
                ended: Vec::new(),
            }),
            signals: (0..=threads).map(|_| Condvar::new()).collect(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_turn(&self, mut state: MutexGuard<'_, State>, me: usize) {
        while !self.free && state.now != Some(me) {
            state = self.signals[me].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn choose(&self, state: &mut State) {
        if self.free || state.running.is_empty() {
            return;
        }
        let next = state.running[state.random.below(state.running.len())];
        state.now = Some(next);
        self.signals[next].notify_one();
    }

    /// Waits for the first turn of thread `me`.
    pub(crate) fn begin(&self, me: usize) {
        self.wait_for_turn(self.state(), me);
    }

    /// Lets any thread run, this one too, and returns when it is this one's turn again.
    pub(crate) fn pass(&self, me: usize) {
        if self.free {
            return;
        }
        let mut state = self.state();
        self.choose(&mut state);
        if state.now != Some(me) {
            self.wait_for_turn(state, me);
        }
    }

    /// Thread `me` will not come back.
    pub(crate) fn leave(&self, me: usize) {
        let mut state = self.state();
        state.running.retain(|&other| other != me);
        state.ended.push(me);
        state.now = None;
        if let Some(joiner) = self.signals.last() {
            joiner.notify_one();
        }
    }

    /// Gives a turn to one of the threads.
    pub(crate) fn go(&self) {
        self.choose(&mut self.state());
    }

    /// Waits until a thread has left, and says which.
    pub(crate) fn ended(&self) -> usize {
        let joiner = &self.signals[self.signals.len() - 1];
        let mut state = self.state();
        loop {
            if let Some(who) = state.ended.pop() {
                return who;
            }
            state = joiner.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Leaves when the thread's own code is done, also by a panic.
pub(crate) struct Participant<'a> {
    turns: &'a Turns,
    me: usize,
}

impl<'a> Participant<'a> {
    pub(crate) fn take(turns: &'a Turns, me: usize) -> Self {
        turns.begin(me);
        Self { turns, me }
    }

    pub(crate) fn pass(&self) {
        self.turns.pass(self.me);
    }
}

impl Drop for Participant<'_> {
    fn drop(&mut self) {
        self.turns.leave(self.me);
    }
}
