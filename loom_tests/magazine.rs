#![cfg(aquifer_loom)]
//! What a thread keeps for itself: its magazine against those who want what is inside, the inbox
//! that other threads put blocks into, and the thread's end.

mod harness;

use aquifer::models::Rung::{Gather, GrowToMaximum, Wait};
use aquifer::models::{Cached, Freed, Inbox, Limits, Magazine, leave_thread};
use harness::ground::{Rig, plan};
use harness::{large_model, model};
use std::iter::once;
use std::sync::Mutex;

const SIZE: u32 = 1;

/// A magazine, and where its blocks went. std's locks: loom need not know of them.
struct Shelf {
    magazine: Box<Magazine>,
    reclaiming: loom::sync::Mutex<()>,
    owner: Mutex<Vec<u64>>,
    reclaimed: Mutex<Vec<u64>>,
}

fn block(token: u64) -> Cached {
    Cached { address: token, token }
}

impl Shelf {
    /// With so many blocks, which the owner holds.
    fn new(blocks: u64) -> Self {
        let magazine = Box::new(Magazine::new(Limits { entries: 1, units: 8 }, 0));
        for _ in 0..2 {
            // SAFETY: no other thread has it yet.
            unsafe { magazine.enter(|shelves| shelves.want(SIZE, |_| ())) };
        }
        Self {
            magazine,
            reclaiming: loom::sync::Mutex::new(()),
            owner: Mutex::new((0..blocks).collect()),
            reclaimed: Mutex::default(),
        }
    }

    /// The owner frees a block: it keeps it, if it is let in.
    fn push(&self) {
        let Some(token) = self.owner.lock().unwrap().pop() else { return };
        // SAFETY: one role alone is the owner.
        let kept = unsafe { self.magazine.enter(|shelves| shelves.push(SIZE, block(token))) };
        if !matches!(kept, Some(Ok(()))) {
            self.owner.lock().unwrap().push(token);
        }
    }

    fn pop(&self) {
        // SAFETY: one role alone is the owner.
        let found = unsafe { self.magazine.enter(|shelves| shelves.pop(SIZE)) };
        self.owner.lock().unwrap().extend(found.flatten().map(|found| found.token));
    }

    fn reclaim(&self) {
        let _one = self.reclaiming.lock().unwrap();
        self.reclaim_alone();
    }

    fn reclaim_alone(&self) {
        let mut found = Vec::new();
        // SAFETY: under the lock, or in the only role that reclaims.
        unsafe {
            Magazine::reclaim(once(&*self.magazine), |_, shelves| {
                shelves.drain(|block| found.push(block.token));
            });
        }
        self.reclaimed.lock().unwrap().append(&mut found);
    }

    /// Each block is somewhere, once.
    fn end(&self, blocks: u64) {
        self.reclaim();
        let mut all = self.owner.lock().unwrap().clone();
        all.append(&mut self.reclaimed.lock().unwrap());
        all.sort_unstable();
        assert_eq!(all, (0..blocks).collect::<Vec<_>>(), "the blocks of a magazine");
    }
}

#[test]
fn owner_and_reclaimer() {
    model(
        "owner_and_reclaimer",
        12_000,
        || Shelf::new(1),
        &[
            |shelf: &Shelf| {
                shelf.push();
                shelf.pop();
                shelf.push();
            },
            |shelf| {
                shelf.reclaim_alone();
                shelf.reclaim_alone();
            },
        ],
        |shelf| shelf.end(1),
    );
}

#[test]
fn owner_and_two_reclaimers() {
    model(
        "owner_and_two_reclaimers",
        63_000,
        || Shelf::new(1),
        &[
            |shelf: &Shelf| {
                shelf.push();
                shelf.pop();
            },
            Shelf::reclaim,
            Shelf::reclaim,
        ],
        |shelf| shelf.end(1),
    );
}

/// After a magazine was retired and emptied, nothing is put there any more.
#[test]
fn a_magazine_is_retired() {
    model(
        "a_magazine_is_retired",
        1_600,
        || Shelf::new(2),
        &[
            |shelf: &Shelf| {
                shelf.push();
                shelf.push();
            },
            |shelf| {
                // SAFETY: the only role that reclaims.
                unsafe { shelf.magazine.retire() };
                shelf.reclaim_alone();
            },
        ],
        |shelf| {
            // SAFETY: the owner's role is over.
            let inside = unsafe { shelf.magazine.enter(|shelves| shelves.contents().0) };
            assert_eq!(inside, None, "a retired magazine lets its owner in");
            let before = shelf.reclaimed.lock().unwrap().len();
            shelf.reclaim_alone();
            let after = shelf.reclaimed.lock().unwrap().len();
            assert_eq!(after, before, "blocks in a magazine that was retired and emptied");
            shelf.end(2);
        },
    );
}

/// An inbox, and what came out of it.
struct Post {
    inbox: Inbox,
    out: Mutex<Vec<Freed>>,
}

fn freed(node: u32) -> Freed {
    Freed { node, tag: node as u16 + 10, stamp: node as usize + 20 }
}

impl Post {
    fn new(waiting: &[u32]) -> Self {
        let post = Self { inbox: Inbox::new(), out: Mutex::default() };
        waiting.iter().for_each(|node| post.push(*node));
        post
    }

    fn push(&self, node: u32) {
        assert!(self.inbox.push(freed(node)), "a node's number");
    }

    fn drain(&self) {
        let mut found = Vec::new();
        self.inbox.drain(|came| {
            assert_eq!(came, freed(came.node), "what came out of the inbox");
            found.push(came);
        });
        self.out.lock().unwrap().append(&mut found);
    }

    fn end(&self, nodes: &[u32]) {
        self.drain();
        assert!(self.inbox.is_empty(), "an inbox that was emptied");
        let mut all: Vec<u32> = self.out.lock().unwrap().iter().map(|freed| freed.node).collect();
        all.sort_unstable();
        assert_eq!(all, nodes, "the blocks that came home");
    }
}

#[test]
fn two_frees_and_the_owner() {
    model(
        "two_frees_and_the_owner",
        4_700,
        || Post::new(&[]),
        &[
            |post: &Post| post.push(1),
            |post| post.push(2),
            |post| {
                post.drain();
                post.drain();
            },
        ],
        |post| post.end(&[1, 2]),
    );
}

/// A block comes home, is handed out and freed again while another thread's free is under way.
#[test]
fn a_block_comes_home_twice() {
    model(
        "a_block_comes_home_twice",
        34,
        || Post::new(&[1]),
        &[
            |post: &Post| post.push(2),
            |post| {
                post.drain();
                if post.out.lock().unwrap().iter().any(|freed| freed.node == 1) {
                    post.push(1);
                }
            },
        ],
        |post| post.end(&[1, 1, 2]),
    );
}

/// A thread that allocates and frees at home, out of its magazine, while another stream gathers.
#[test]
fn warm_and_gather() {
    large_model(
        "warm_and_gather",
        34_000,
        || plan(1, &[Gather, GrowToMaximum]).with_magazines().build().prepared(&[0], 0),
        &[
            |rig: &Rig| {
                rig.warm_up(0);
                rig.visit(0);
            },
            |rig| rig.visit(1),
        ],
        |rig| {
            leave_thread();
            rig.end();
        },
    );
}

/// A thread ends with a block in its magazine, while another stream gathers; whoever comes later
/// finds it without.
#[test]
fn a_thread_ends() {
    large_model(
        "a_thread_ends",
        8_000,
        || plan(1, &[Wait, Gather, GrowToMaximum]).with_magazines().build().prepared(&[0], 0),
        &[
            |rig: &Rig| {
                rig.warm_up(0);
                leave_thread();
            },
            |rig| {
                rig.visit(1);
                leave_thread();
            },
        ],
        |rig| {
            assert_eq!(rig.totals().cached, 0, "bytes that threads keep which are gone");
            rig.end();
        },
    );
}

/// A thread ends while the stream of its magazine goes away and another stream comes.
#[test]
fn a_thread_and_its_stream_end() {
    large_model(
        "a_thread_and_its_stream_end",
        14_000,
        || {
            let plan = plan(1, &[Wait, Gather, GrowToMaximum]);
            plan.with_magazines().with_departures().build().prepared(&[0], 0)
        },
        &[
            |rig: &Rig| {
                rig.warm_up(0);
                rig.abandon(0);
                leave_thread();
            },
            |rig| {
                rig.visit(1);
                leave_thread();
            },
        ],
        |rig| {
            assert_eq!(rig.totals().cached, 0, "bytes that threads keep which are gone");
            let block = rig.must_take(2);
            rig.free(2, block);
            rig.end();
        },
    );
}
