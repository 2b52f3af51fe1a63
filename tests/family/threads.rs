//! Threads: the same tasks in four at once, and blocks that one allocates and others free.

use crate::blocks::Held;
use crate::fixture::{Fixture, each};
use crate::mixes::{mixed, random};
use crate::random::Random;
use crate::{KIB, MIB, support};
use aquifer::Stream;
use std::slice::from_ref;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

const THREADS: u64 = 4;

#[test]
fn four_threads_do_the_same_at_once() {
    each("four_threads_do_the_same_at_once", |fixture| {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let own = fixture.stream();
                    let mut numbers = Random::new(6, thread);
                    random(
                        fixture,
                        from_ref(&own),
                        &mut numbers,
                        if support::on_gpu() { 100 } else { 40 },
                    );
                    mixed(fixture, from_ref(&own), &mut numbers);
                });
            }
        });
    });
}

#[test]
fn four_threads_share_two_streams() {
    each("four_threads_share_two_streams", |fixture| {
        let streams = [fixture.device.default_stream(), fixture.stream()];
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let streams = &streams;
                scope.spawn(move || mixed(fixture, streams, &mut Random::new(7, thread)));
            }
        });
    });
}

/// One thread allocates on `from`; `consumers` others make `to` wait and free there.
fn hand_over(fixture: &Fixture, from: &Stream, to: &Stream, consumers: usize, seed: u64) {
    let most = fixture.modest(if support::on_gpu() { MIB } else { 16 * KIB });
    // Without a bound: who sends does not hang where who receives has failed.
    let (sender, receiver) = channel::<Held>();
    let receiver = Mutex::new(receiver);
    let next = |receiver: &Mutex<Receiver<Held>>| receiver.lock().unwrap().recv().ok();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut random = Random::new(8, seed);
            for tag in 0..100 {
                let bytes = 1 + random.below(most);
                sender.send(Held::take(fixture.resource(), from, bytes, tag).unwrap()).unwrap();
            }
        });
        for _ in 0..consumers {
            scope.spawn(|| {
                while let Some(mut held) = next(&receiver) {
                    held.move_to(to);
                    held.free(fixture.resource());
                }
            });
        }
    });
}

#[test]
fn one_thread_allocates_and_another_frees() {
    each("one_thread_allocates_and_another_frees", |fixture| {
        let (default, a, b) = (fixture.device.default_stream(), fixture.stream(), fixture.stream());
        for (seed, (from, to)) in
            [(&default, &default), (&a, &a), (&a, &b), (&default, &b)].into_iter().enumerate()
        {
            hand_over(fixture, from, to, 1, seed as u64);
        }
    });
}

#[test]
fn one_thread_allocates_and_three_free() {
    each("one_thread_allocates_and_three_free", |fixture| {
        let (a, b) = (fixture.stream(), fixture.stream());
        hand_over(fixture, &a, &b, 3, 9);
    });
}

#[test]
fn blocks_outlive_the_threads_that_allocated_them() {
    each("blocks_outlive_the_threads", |fixture| {
        let bytes = fixture.modest(16 * KIB);
        let live = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for tag in 0..THREADS as u8 {
                let live = &live;
                scope.spawn(move || {
                    let own = fixture.stream();
                    for _ in 0..10 {
                        let held = Held::take(fixture.resource(), &own, bytes, tag).unwrap();
                        live.lock().unwrap().push(held);
                    }
                });
            }
        });
        let here = fixture.stream();
        for mut held in live.into_inner().unwrap() {
            held.move_to(&here);
            held.free(fixture.resource());
        }
        // And what they left is there for who comes later.
        mixed(fixture, from_ref(&here), &mut Random::new(10, 0));
    });
}
