//! RMM's random and mixed programs, seeded, with the contents looked at.

use crate::blocks::{Held, disjoint};
use crate::fixture::{Fixture, each};
use crate::random::Random;
use crate::{KIB, MIB, support};
use aquifer::Stream;
use std::slice::from_ref;

/// The most bytes of a request: RMM's 5 MiB on a GPU.
fn most(fixture: &Fixture) -> usize {
    fixture.modest(if support::on_gpu() { 5 * MIB } else { 80 * KIB })
}

/// So many blocks of random sizes at once, freed in the order that they came in.
pub(crate) fn random(fixture: &Fixture, streams: &[Stream], random: &mut Random, blocks: u8) {
    let most = most(fixture);
    let mut live = Vec::new();
    for tag in 0..blocks {
        let bytes = 1 + random.below(most);
        let stream = &streams[random.below(streams.len())];
        live.push(Held::take(fixture.resource(), stream, bytes, tag).unwrap());
    }
    disjoint(&live);
    live.into_iter().for_each(|held| held.free(fixture.resource()));
}

/// 200 steps, 53 of 100 of them allocations while fewer than a hundred blocks live; then the rest is
/// freed. A block goes on on another stream before it is freed, once in three times.
pub(crate) fn mixed(fixture: &Fixture, streams: &[Stream], random: &mut Random) {
    let most = most(fixture);
    let mut live: Vec<Held> = Vec::new();
    for step in 0..200 {
        if live.is_empty() || (random.below(100) < 53 && live.len() < 100) {
            let bytes = 1 + random.below(most);
            let stream = &streams[random.below(streams.len())];
            live.push(Held::take(fixture.resource(), stream, bytes, step as u8).unwrap());
        } else {
            let mut held = live.remove(random.below(live.len()));
            if random.one_in(3) {
                held.move_to(&streams[random.below(streams.len())]);
            }
            held.free(fixture.resource());
        }
        if step % 20 == 0 {
            disjoint(&live);
        }
    }
    disjoint(&live);
    live.into_iter().for_each(|held| held.free(fixture.resource()));
}

#[test]
fn random_sizes_keep_apart_and_keep_their_contents() {
    each("random_sizes", |fixture| {
        let (default, own) = (fixture.device.default_stream(), fixture.stream());
        random(fixture, from_ref(&default), &mut Random::new(1, 0), 100);
        random(fixture, from_ref(&own), &mut Random::new(2, 0), 100);
    });
}

#[test]
fn mixed_calls_keep_apart_and_keep_their_contents() {
    each("mixed_calls", |fixture| {
        let (default, own) = (fixture.device.default_stream(), fixture.stream());
        mixed(fixture, from_ref(&default), &mut Random::new(3, 0));
        mixed(fixture, from_ref(&own), &mut Random::new(4, 0));
    });
}

#[test]
fn mixed_calls_on_four_streams_keep_their_contents() {
    each("mixed_calls_on_four_streams", |fixture| {
        let streams = [(); 4].map(|()| fixture.stream());
        mixed(fixture, &streams, &mut Random::new(5, 0));
    });
}
