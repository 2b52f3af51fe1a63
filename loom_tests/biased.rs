#![cfg(aquifer_loom)]
//! A cell with a biased lock, of magazines, and the mutex on it, of statistics and tracking.

mod harness;

use aquifer::models::{Bias, Biased, BiasedMutex};
use harness::{large_model, model};
use std::iter::once;
use std::sync::Mutex;

const OWNER: u64 = 1;

/// A cell of tokens, and where they went. std's locks: loom need not know of them.
struct Cell {
    cell: Biased<Vec<u64>>,
    revokers: loom::sync::Mutex<()>,
    owner: Mutex<Vec<u64>>,
    revoked: Mutex<Vec<u64>>,
}

impl Cell {
    /// With so many tokens, which the owner has.
    fn new(tokens: u64) -> Self {
        Self {
            cell: Biased::with_owner(OWNER, Vec::new()),
            revokers: loom::sync::Mutex::new(()),
            owner: Mutex::new((0..tokens).collect()),
            revoked: Mutex::default(),
        }
    }

    /// The owner puts a token into the cell, if it is let in.
    fn push(&self) {
        let Some(token) = self.owner.lock().unwrap().pop() else { return };
        // SAFETY: one role alone is the owner.
        let pushed = unsafe { self.cell.try_with(OWNER, |tokens| tokens.push(token)) };
        if pushed.is_none() {
            self.owner.lock().unwrap().push(token);
        }
    }

    fn pop(&self) {
        // SAFETY: one role alone is the owner.
        let popped = unsafe { self.cell.try_with(OWNER, Vec::pop) };
        self.owner.lock().unwrap().extend(popped.flatten());
    }

    fn revoke(&self) {
        let _revoker = self.revokers.lock().unwrap();
        self.revoke_alone();
    }

    fn revoke_alone(&self) {
        let mut taken = Vec::new();
        // SAFETY: under the lock, or in the only role that revokes.
        unsafe { Biased::with_revoked(once((&self.cell, ())), |(), tokens| taken.append(tokens)) };
        self.revoked.lock().unwrap().append(&mut taken);
    }

    /// Each token is somewhere, once.
    fn end(&self, tokens: u64) {
        self.revoke();
        let mut all = self.owner.lock().unwrap().clone();
        all.append(&mut self.revoked.lock().unwrap());
        all.sort_unstable();
        assert_eq!(all, (0..tokens).collect::<Vec<_>>(), "the tokens of a cell");
    }
}

#[test]
fn owner_and_revoker() {
    model(
        "owner_and_revoker",
        12_000,
        || Cell::new(1),
        &[
            |cell: &Cell| {
                cell.push();
                cell.pop();
                cell.push();
            },
            |cell| {
                cell.revoke_alone();
                cell.revoke_alone();
            },
        ],
        |cell| cell.end(1),
    );
}

#[test]
fn owner_and_two_revokers() {
    model(
        "owner_and_two_revokers",
        63_000,
        || Cell::new(1),
        &[
            |cell: &Cell| {
                cell.push();
                cell.pop();
            },
            Cell::revoke,
            Cell::revoke,
        ],
        |cell| cell.end(1),
    );
}

/// While a cell is suspended, what revokers do lets no owner in; afterwards it comes in again.
#[test]
fn a_cell_is_suspended() {
    model(
        "a_cell_is_suspended",
        10_000,
        || Cell::new(2),
        &[
            |cell: &Cell| {
                cell.push();
                cell.push();
            },
            |cell| {
                // SAFETY: the only role that revokes.
                unsafe { cell.cell.suspend() };
                cell.revoke_alone();
                let before = cell.revoked.lock().unwrap().len();
                cell.revoke_alone();
                let after = cell.revoked.lock().unwrap().len();
                assert_eq!(after, before, "tokens in a cell that was suspended and emptied");
                // SAFETY: as above.
                unsafe { cell.cell.resume() };
            },
        ],
        |cell| {
            // SAFETY: the owner's role is over.
            let inside = unsafe { cell.cell.try_with(OWNER, |tokens| tokens.len()) };
            assert!(inside.is_some(), "a resumed cell keeps its owner out");
            cell.end(2);
        },
    );
}

/// After a cell was retired and emptied, nothing is put there any more.
#[test]
fn a_cell_is_retired() {
    model(
        "a_cell_is_retired",
        2_000,
        || Cell::new(2),
        &[
            |cell: &Cell| {
                cell.push();
                cell.push();
            },
            |cell| {
                // SAFETY: the only role that revokes.
                unsafe { cell.cell.retire() };
                cell.revoke_alone();
            },
        ],
        |cell| {
            // SAFETY: the owner's role is over.
            let inside = unsafe { cell.cell.try_with(OWNER, |tokens| tokens.len()) };
            assert_eq!(inside, None, "a retired cell lets its owner in");
            let before = cell.revoked.lock().unwrap().len();
            cell.revoke_alone();
            let after = cell.revoked.lock().unwrap().len();
            assert_eq!(after, before, "tokens in a cell that was retired and emptied");
            cell.end(2);
        },
    );
}

/// A sum that is one thread's until a second one comes, and then, as a tracking adaptor's list, lies
/// where all threads reach it without the biased mutex.
#[derive(Default)]
struct Sum {
    first: BiasedMutex<u32>,
    shared: loom::sync::Mutex<u32>,
}

/// No thread has come.
fn fresh() -> Sum {
    Sum::default()
}

/// The first role's thread has it for its own.
fn owned() -> Sum {
    let sum = Sum::default();
    sum.add();
    sum
}

impl Sum {
    fn add(&self) {
        // SAFETY: the body uses no mutex.
        let owned = unsafe { self.first.try_owned(|value| *value += 1) };
        if owned.is_none() && (self.first.bias() == Bias::Ended || !self.add_locked()) {
            *self.shared.lock().unwrap() += 1;
        }
    }

    fn add_locked(&self) -> bool {
        // SAFETY: the body does not use the biased mutex.
        unsafe {
            self.first.lock(|value, bias| {
                match bias {
                    Bias::One => *value += 1,
                    Bias::Ended => *self.shared.lock().unwrap() += std::mem::take(value),
                }
                bias == Bias::One
            })
        }
    }

    fn read(&self) -> u32 {
        if self.first.bias() == Bias::Ended {
            return *self.shared.lock().unwrap();
        }
        // SAFETY: the body uses no mutex.
        let first = unsafe { self.first.read(|value, bias| (bias == Bias::One).then_some(*value)) };
        first.unwrap_or_else(|| *self.shared.lock().unwrap())
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
    model("two_first_threads", 20, fresh, &[Sum::add, Sum::add], |s| s.end(2));
}

#[test]
fn the_bias_ends_while_the_owner_is_inside() {
    let owner: fn(&Sum) = |s| {
        s.add();
        s.add();
    };
    let roles = &[owner, Sum::add];
    model("the_bias_ends_while_the_owner_is_inside", 600, owned, roles, |s| s.end(4));
}

/// Two threads end the bias, of which the second finds it done.
#[test]
fn two_threads_end_the_bias() {
    let roles: [fn(&Sum); 3] = [Sum::add, Sum::add, Sum::add];
    large_model("two_threads_end_the_bias", 7_000, owned, &roles, |s| s.end(4));
}

#[test]
fn a_reader_and_the_owner() {
    let owner: fn(&Sum) = |s| {
        s.add();
        s.add();
    };
    model("a_reader_and_the_owner", 1_300, owned, &[owner, |s| s.look(3)], |s| s.end(3));
}

#[test]
fn a_reader_while_the_bias_ends() {
    let roles: [fn(&Sum); 3] = [Sum::add, Sum::add, |s| s.look(3)];
    large_model("a_reader_while_the_bias_ends", 18_000, owned, &roles, |s| s.end(3));
}
