#![cfg(aquifer_loom)]
//! The C library's own protocols: a block's entry in the page map, the end of a route that is closing, and the users of a
//! counted handle. They are taken by their files of `capi/`, with loom's atomics.

mod harness;

/// What `capi/src/atomics.rs` is there.
mod atomics {
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };
}
#[allow(dead_code, unreachable_pub, reason = "a model uses a part of it")]
#[path = "../capi/src/closing.rs"]
mod closing;
#[allow(dead_code, unreachable_pub, reason = "a model uses a part of it")]
#[path = "../capi/src/entry.rs"]
mod entry;
#[path = "../capi/src/references.rs"]
mod references;

use closing::Closing;
use entry::{Block, Entry, FREED, FREEING};
use harness::model;
use loom::sync::Mutex;
use references::{References, Released};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A block whose fields are all of one number.
fn block(number: u64) -> Block {
    Block::new(number, number, number, number)
}

/// The entry of one address, and the resource that hands the address out.
struct Address {
    entry: Entry,
    /// The resource has it.
    is_free: Mutex<bool>,
    /// The number of the block that a user has passed on.
    passed: Mutex<Option<u64>>,
    /// The standard library's, unseen by loom: they have no part in the protocol.
    freed: AtomicUsize,
}

impl Address {
    fn new(is_free: bool) -> Self {
        let entry = Entry::default();
        if !is_free {
            entry.insert(block(1));
        }
        let (passed, freed) = (Mutex::new(None), AtomicUsize::new(0));
        Self { entry, is_free: Mutex::new(is_free), passed, freed }
    }

    /// Allocates the block, if the resource has it, and passes it on.
    fn allocate(&self, number: u64) {
        let taken = std::mem::replace(&mut *self.is_free.lock().unwrap(), false);
        if taken {
            self.entry.insert(block(number));
            *self.passed.lock().unwrap() = Some(number);
        }
    }

    fn give_back(&self) {
        self.freed.fetch_add(1, Relaxed);
        let was_free = std::mem::replace(&mut *self.is_free.lock().unwrap(), true);
        assert!(!was_free, "a block was freed twice");
    }

    /// The way of a warm free, by a user of the block.
    fn take(&self, number: Option<u64>) -> bool {
        let known = self.entry.numbers_and_requested();
        if !self.entry.take() {
            return false;
        }
        self.is_right(number, known);
        let (token, bytes) = self.entry.token_and_bytes();
        self.is_right(number, (token, bytes));
        self.give_back();
        true
    }

    /// The other way.
    fn free(&self, number: Option<u64>) -> bool {
        match self.entry.begin_free() {
            Ok((block, _)) => {
                self.is_right(number, (block.token, block.bytes));
                self.is_right(number, (block.requested, u64::from(block.stream)));
                self.entry.end_free();
                self.give_back();
                true
            }
            Err(state) => {
                assert!(
                    matches!(state, FREEING | FREED),
                    "a block of the user was in state {state}"
                );
                false
            }
        }
    }

    fn is_right(&self, number: Option<u64>, fields: (u64, u64)) {
        if let Some(number) = number {
            assert_eq!(fields, (number, number), "the fields are of another block");
        }
    }

    fn free_passed(&self, by: fn(&Self, Option<u64>) -> bool) {
        let passed = self.passed.lock().unwrap().take();
        if passed.is_some() {
            assert!(by(self, passed), "the user's block was not freed");
        }
    }
}

#[test]
fn two_that_free_one_block() {
    model::<Address>(
        "two_that_free_one_block",
        10,
        || Address::new(false),
        &[
            |address| {
                address.take(Some(1));
            },
            |address| {
                address.free(Some(1));
            },
        ],
        |address| assert_eq!(address.freed.load(Relaxed), 1, "the block was freed"),
    );
}

#[test]
fn two_that_take_one_block() {
    model::<Address>(
        "two_that_take_one_block",
        6,
        || Address::new(false),
        &[
            |address| {
                address.take(Some(1));
            },
            |address| {
                address.take(Some(1));
            },
        ],
        |address| assert_eq!(address.freed.load(Relaxed), 1, "the block was freed"),
    );
}

#[test]
fn a_block_that_is_handed_over() {
    model::<Address>(
        "a_block_that_is_handed_over",
        40,
        || Address::new(true),
        &[
            |address| {
                address.allocate(2);
                address.free_passed(Address::take);
            },
            |address| {
                address.free_passed(Address::free);
                address.allocate(3);
            },
        ],
        |address| address.free_passed(Address::take),
    );
}

#[test]
fn a_second_free_that_meets_the_next_owner() {
    model::<Address>(
        "a_second_free_that_meets_the_next_owner",
        6,
        || Address::new(true),
        &[
            |address| address.allocate(2),
            |address| {
                if address.entry.take() {
                    let (token, bytes) = address.entry.token_and_bytes();
                    assert_eq!((token, bytes), (2, 2), "the fields are of no block");
                }
            },
        ],
        |_| {},
    );
}

#[test]
fn a_free_that_fails_and_one_of_another_thread() {
    model::<Address>(
        "a_free_that_fails_and_one_of_another_thread",
        10,
        || {
            let address = Address::new(false);
            address.entry.set_used_elsewhere();
            address
        },
        &[
            |address| {
                if let Ok((_, is_used_elsewhere)) = address.entry.begin_free() {
                    assert!(is_used_elsewhere, "a use was forgotten");
                    address.entry.cancel_free(is_used_elsewhere);
                }
            },
            |address| {
                assert!(!address.take(Some(1)), "a block was freed without its uses");
                address.free(Some(1));
            },
        ],
        |address| {
            address.free(Some(1));
            assert_eq!(address.freed.load(Relaxed), 1, "the block was freed");
        },
    );
}

/// A route of three blocks, as `capi/src/route.rs` has it: the count is the sweep's.
struct Route {
    closing: Closing,
    blocks: [Entry; 3],
    counting: Mutex<()>,
    gone: AtomicUsize,
}

impl Route {
    fn new() -> Self {
        let blocks = [(); 3].map(|()| Entry::default());
        blocks.iter().for_each(|entry| entry.insert(block(1)));
        let (closing, counting) = (Closing::new(), Mutex::new(()));
        Self { closing, blocks, counting, gone: AtomicUsize::new(0) }
    }

    fn is_in_use(entry: &Entry) -> bool {
        entry.is_live() || entry.state() == FREEING
    }

    fn sweep(&self) {
        let _counting = self.counting.lock().unwrap();
        while self.gone.load(Relaxed) == 0 && self.closing.is_due() {
            self.closing.begin_count();
            let allocations = self.closing.allocations();
            let blocks = self.blocks.iter().filter(|entry| Self::is_in_use(entry)).count() as isize;
            match allocations + blocks {
                0 => {
                    self.gone.fetch_add(1, Relaxed);
                }
                blocks => self.closing.found(blocks),
            }
        }
    }

    fn close(&self) {
        self.closing.begin();
        self.sweep();
    }

    fn free(&self, index: usize) {
        assert!(self.blocks[index].begin_free().is_ok());
        assert_eq!(self.gone.load(Relaxed), 0, "the route of a block was gone");
        self.blocks[index].end_free();
        if self.closing.count_free() {
            self.sweep();
        }
    }
}

#[test]
fn a_route_that_closes_among_frees() {
    model::<Route>(
        "a_route_that_closes_among_frees",
        100,
        || {
            let route = Route::new();
            route.close();
            route
        },
        &[
            |route| route.free(0),
            |route| {
                route.free(1);
                route.free(2);
            },
        ],
        |route| {
            assert_eq!(route.gone.load(Relaxed), 1, "the last free has taken the route with it")
        },
    );
}

#[test]
fn a_route_whose_close_meets_the_last_frees() {
    model::<Route>(
        "a_route_whose_close_meets_the_last_frees",
        100,
        || {
            let route = Route::new();
            route.free(2);
            route
        },
        &[
            |route| route.close(),
            |route| {
                route.free(0);
                route.free(1);
            },
        ],
        |route| {
            // A free that was on its way as the route began to close may be uncounted: the next sweep finds that.
            route.closing.begin_count();
            route.sweep();
            assert_eq!(route.gone.load(Relaxed), 1, "the last free has taken the route with it");
        },
    );
}

#[test]
fn a_route_that_closes_beside_an_allocation() {
    model::<Route>(
        "a_route_that_closes_beside_an_allocation",
        100,
        || {
            let route = Route::new();
            (0..3).for_each(|index| route.free(index));
            route.closing.begin_allocation();
            route
        },
        &[
            |route| route.close(),
            |route| {
                route.blocks[0].insert(block(2));
                if route.closing.end_allocation() {
                    route.sweep();
                }
                route.free(0);
            },
        ],
        |route| {
            // As above: the free may have come before the close.
            route.closing.begin_count();
            route.sweep();
            assert_eq!(route.gone.load(Relaxed), 1, "the last free has taken the route with it");
        },
    );
}

/// A handle that is counted, and the end of what it names.
struct Handle {
    references: References,
    /// Written by each user, and read at the end.
    uses: [loom::cell::UnsafeCell<u32>; 2],
    ended: AtomicUsize,
}

// SAFETY: each user has a cell of its own, and the end comes after all: which the model checks.
unsafe impl Sync for Handle {}

impl Handle {
    fn new(users: usize) -> Self {
        let references = References::new();
        (1..users).for_each(|_| references.retain());
        let uses = [(); 2].map(|()| loom::cell::UnsafeCell::new(0));
        Self { references, uses, ended: AtomicUsize::new(0) }
    }

    fn use_and_release(&self, user: usize) {
        // SAFETY: the user's own cell.
        self.uses[user].with_mut(|uses| unsafe { *uses += 1 });
        self.release();
    }

    fn release(&self) {
        if self.references.release() == Released::Last {
            assert_eq!(self.ended.fetch_add(1, Relaxed), 0, "a handle ended twice");
            for uses in &self.uses {
                // SAFETY: all users have released it.
                uses.with(|uses| assert_eq!(unsafe { *uses }, 1));
            }
        }
    }
}

#[test]
fn a_handle_that_two_release() {
    model::<Handle>(
        "a_handle_that_two_release",
        2,
        || Handle::new(2),
        &[
            |handle| {
                handle.references.retain();
                handle.release();
                handle.use_and_release(0);
            },
            |handle| handle.use_and_release(1),
        ],
        |handle| assert_eq!(handle.ended.load(Relaxed), 1, "the last user has ended the handle"),
    );
}

#[test]
fn a_handle_that_the_process_keeps() {
    model::<Handle>(
        "a_handle_that_the_process_keeps",
        2,
        || {
            let handle = Handle::new(1);
            handle.references.keep();
            handle.references.retain();
            handle
        },
        &[
            |handle| {
                handle.references.release();
            },
            |handle| {
                handle.references.release();
            },
        ],
        |handle| assert_eq!(handle.references.release(), Released::Kept, "the process keeps it"),
    );
}
