#![cfg(aquifer_loom)]
//! What a thread keeps for itself: its magazines in a pool, remote frees, and the thread's end. The cell of a magazine is `biased.rs`'s.

mod harness;

use aquifer::models::MissStep::{Gather, GrowToMaximum, Wait};
use aquifer::models::{Freed, RemoteFrees, drop_thread_locals};
use harness::pool::{Fixture, plan};
use harness::{large_model, model};
use std::sync::Mutex;

/// A list of remote frees, and what came out of it.
struct Post {
    remote_frees: RemoteFrees,
    out: Mutex<Vec<Freed>>,
}

fn freed(node: u32) -> Freed {
    Freed { node, freed_by: node as u16 + 10, stamp: node as usize + 20 }
}

impl Post {
    fn new(waiting: &[u32]) -> Self {
        let post = Self { remote_frees: RemoteFrees::new(), out: Mutex::default() };
        waiting.iter().for_each(|node| post.push(*node));
        post
    }

    fn push(&self, node: u32) {
        assert!(self.remote_frees.push(freed(node)), "a node's number");
    }

    fn drain(&self) {
        let mut found = Vec::new();
        self.remote_frees.drain(|came| {
            assert_eq!(came, freed(came.node), "what came out of the remote frees");
            found.push(came);
        });
        self.out.lock().unwrap().append(&mut found);
    }

    fn end(&self, nodes: &[u32]) {
        self.drain();
        assert!(self.remote_frees.is_empty(), "a list that was emptied");
        let mut all: Vec<u32> = self.out.lock().unwrap().iter().map(|freed| freed.node).collect();
        all.sort_unstable();
        assert_eq!(all, nodes, "the blocks that came out");
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

/// A block comes out, is handed out and freed again while another thread's free is under way.
#[test]
fn a_block_comes_out_twice() {
    model(
        "a_block_comes_out_twice",
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
            |fixture: &Fixture| {
                fixture.warm_up(0);
                fixture.visit(0);
            },
            |fixture| fixture.visit(1),
        ],
        |fixture| {
            drop_thread_locals();
            fixture.end();
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
            |fixture: &Fixture| {
                fixture.warm_up(0);
                drop_thread_locals();
            },
            |fixture| {
                fixture.visit(1);
                drop_thread_locals();
            },
        ],
        |fixture| {
            assert_eq!(fixture.stats().cached, 0, "bytes that threads keep which are gone");
            fixture.end();
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
            |fixture: &Fixture| {
                fixture.warm_up(0);
                fixture.abandon(0);
                drop_thread_locals();
            },
            |fixture| {
                fixture.visit(1);
                drop_thread_locals();
            },
        ],
        |fixture| {
            assert_eq!(fixture.stats().cached, 0, "bytes that threads keep which are gone");
            let block = fixture.must_take(2);
            fixture.free(2, block);
            fixture.end();
        },
    );
}
