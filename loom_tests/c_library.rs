#![cfg(aquifer_loom)]
//! The C library's own protocols: a block's entry in the page map, the blocks of a route that is closing, and the users of a
//! counted handle. They are taken by their files of `capi/`, with loom's atomics.

mod harness;

/// What `capi/src/atomics.rs` is there.
mod atomics {
    pub(crate) use loom::sync::atomic::{
        AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };

    /// As two full fences, which is what they are together.
    pub(crate) mod barrier {
        pub(crate) fn light() {
            super::fence(super::Ordering::SeqCst);
        }

        pub(crate) fn heavy() {
            super::fence(super::Ordering::SeqCst);
        }
    }

    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}
#[allow(dead_code, unreachable_pub, reason = "a model uses a part of it")]
#[path = "../capi/src/entry.rs"]
mod entry;
#[allow(dead_code, unreachable_pub, reason = "a model uses a part of it")]
#[path = "../capi/src/live_blocks.rs"]
mod live_blocks;
#[path = "../capi/src/references.rs"]
mod references;

use atomics::Mutex;
use entry::{Block, Entry, FREED, FREEING};
use harness::model;
use live_blocks::{LiveBlocks, ThreadBlocks};
use loom::cell::UnsafeCell;
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
        let taken = std::mem::replace(&mut *self.is_free.lock(), false);
        if taken {
            self.entry.insert(block(number));
            *self.passed.lock() = Some(number);
        }
    }

    fn give_back(&self) {
        self.freed.fetch_add(1, Relaxed);
        let was_free = std::mem::replace(&mut *self.is_free.lock(), true);
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
        let passed = self.passed.lock().take();
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

/// A use on another stream, as `capi/src/memory.rs` notes it, and the free of the block.
struct Used {
    address: Address,
    uses: Mutex<bool>,
}

impl Used {
    fn record(&self) {
        let mut uses = self.uses.lock();
        if self.address.entry.set_used_elsewhere() {
            *uses = true;
        }
    }

    fn free(&self) -> bool {
        let Ok((_, is_used_elsewhere)) = self.address.entry.begin_free() else { return false };
        if is_used_elsewhere {
            let is_known = std::mem::replace(&mut *self.uses.lock(), false);
            assert!(is_known, "the free did not wait for the use");
        }
        self.address.entry.end_free();
        self.address.give_back();
        true
    }
}

#[test]
fn a_use_that_meets_the_free_of_its_block() {
    model::<Used>(
        "a_use_that_meets_the_free_of_its_block",
        6,
        || Used { address: Address::new(false), uses: Mutex::new(false) },
        &[Used::record, |used| {
            if !used.address.take(Some(1)) {
                used.free();
            }
        }],
        |used| {
            assert!(!used.free(), "a block was freed twice");
            assert!(!*used.uses.lock(), "a use was left for the next block of the address");
        },
    );
}

/// A route whose blocks two threads count by themselves, and other calls together, as `capi/src/route.rs` has it.
struct Route {
    live: std::sync::Arc<LiveBlocks>,
    by_thread: [Mutex<Option<ThreadBlocks>>; 2],
    /// Written by each free of a block, and read at the end of the route.
    blocks: [UnsafeCell<bool>; 3],
    /// The standard library's, unseen by loom: they have no part in the protocol.
    left: AtomicUsize,
    gone: AtomicUsize,
}

// SAFETY: a block has one user, and the end of the route comes after all: which the model checks.
unsafe impl Sync for Route {}

impl Route {
    /// The last block is of the first thread's own count, the others are of the common one.
    fn new() -> Self {
        let live = LiveBlocks::new();
        let by_thread = [(); 2].map(|()| live.of_thread());
        live.add();
        live.add();
        assert!(by_thread[0].add(), "it is open");
        let by_thread = by_thread.map(|own| Mutex::new(Some(own)));
        let blocks = [(); 3].map(|()| UnsafeCell::new(true));
        Self { live, by_thread, blocks, left: AtomicUsize::new(3), gone: AtomicUsize::new(0) }
    }

    fn closed() -> Self {
        let route = Self::new();
        route.close();
        route
    }

    fn end_if(&self, is_empty: bool) {
        if is_empty {
            assert_eq!(self.left.load(Relaxed), 0, "the route of a block was gone");
            for block in &self.blocks {
                // SAFETY: the users have freed it.
                block.with(|block| assert!(!unsafe { *block }));
            }
            self.gone.fetch_add(1, Relaxed);
        }
    }

    fn close(&self) {
        self.end_if(self.live.close());
    }

    fn give_back(&self, index: usize) {
        // SAFETY: its one user.
        self.blocks[index].with_mut(|block| unsafe { *block = false });
        self.left.fetch_sub(1, Relaxed);
    }

    fn free(&self, index: usize) {
        self.give_back(index);
        self.end_if(self.live.remove());
    }

    /// By the thread's own count, which no other thread reaches by this lock.
    fn by_thread<R>(&self, thread: usize, body: impl FnOnce(&ThreadBlocks) -> R) -> R {
        let own = self.by_thread[thread].lock();
        body(own.as_ref().expect("the thread counts"))
    }

    fn free_warm(&self, thread: usize, index: usize) {
        self.give_back(index);
        self.end_if(self.by_thread(thread, ThreadBlocks::remove));
    }

    /// A warm allocation of the second thread, and its free.
    fn use_warm(&self) {
        if self.by_thread(1, ThreadBlocks::add) {
            self.left.fetch_add(1, Relaxed);
            assert_eq!(self.gone.load(Relaxed), 0, "a block of a route that is gone");
            self.left.fetch_sub(1, Relaxed);
        }
        self.end_if(self.by_thread(1, ThreadBlocks::remove));
    }

    /// The thread remembers the route no longer.
    fn forget(&self, thread: usize) {
        drop(self.by_thread[thread].lock().take());
    }

    fn is_gone(&self) {
        assert!(self.gone.load(Relaxed) > 0, "the last free has taken the route with it");
    }
}

#[test]
fn a_route_that_closes_among_frees() {
    model::<Route>(
        "a_route_that_closes_among_frees",
        20,
        Route::closed,
        &[
            |route| route.free(0),
            |route| {
                route.free(1);
                route.free(2);
            },
        ],
        Route::is_gone,
    );
}

#[test]
fn a_route_whose_close_meets_the_last_frees() {
    model::<Route>(
        "a_route_whose_close_meets_the_last_frees",
        20,
        || {
            let route = Route::new();
            route.free(2);
            route
        },
        &[Route::close, |route| {
            route.free(0);
            route.free(1);
        }],
        Route::is_gone,
    );
}

#[test]
fn a_route_whose_close_meets_warm_frees() {
    model::<Route>(
        "a_route_whose_close_meets_warm_frees",
        20,
        || {
            let route = Route::new();
            route.free(1);
            route
        },
        &[Route::close, |route| {
            route.free_warm(1, 0);
            route.free_warm(1, 2);
        }],
        Route::is_gone,
    );
}

#[test]
fn warm_frees_of_two_threads_after_the_close() {
    model::<Route>(
        "warm_frees_of_two_threads_after_the_close",
        10,
        || {
            let route = Route::closed();
            route.free(1);
            route
        },
        &[|route| route.free_warm(0, 0), |route| route.free_warm(1, 2)],
        Route::is_gone,
    );
}

#[test]
fn a_warm_allocation_that_meets_the_close() {
    model::<Route>(
        "a_warm_allocation_that_meets_the_close",
        10,
        || {
            let route = Route::new();
            (0..3).for_each(|index| route.free(index));
            route
        },
        &[Route::close, Route::use_warm],
        Route::is_gone,
    );
}

#[test]
fn a_thread_that_stops_to_count_among_frees() {
    model::<Route>(
        "a_thread_that_stops_to_count_among_frees",
        20,
        Route::closed,
        &[
            |route| route.forget(0),
            |route| {
                route.free(0);
                route.free(1);
            },
        ],
        |route| {
            route.free(2);
            route.is_gone();
        },
    );
}

/// A handle that is counted, and the end of what it names.
struct Handle {
    references: References,
    /// Written by each user, and read at the end.
    uses: [UnsafeCell<u32>; 2],
    ended: AtomicUsize,
}

// SAFETY: each user has a cell of its own, and the end comes after all: which the model checks.
unsafe impl Sync for Handle {}

impl Handle {
    fn new(users: usize) -> Self {
        let references = References::new();
        (1..users).for_each(|_| references.retain());
        let uses = [(); 2].map(|()| UnsafeCell::new(0));
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
