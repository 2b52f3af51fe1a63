//! Blocks that are freed twice where the thread keeps blocks of their size ready: the second free
//! finds the first still in the magazine.

use super::fixture::{Fixture, Pool, UNIT};
use super::log::Log;
use crate::support::free;
use aquifer::{DeviceBlock, DeviceLayout, DeviceResource, Stream};
use std::collections::HashSet;
use tracing::Level;

const BYTES: usize = 1000;

fn block(pool: &Pool, stream: &Stream) -> DeviceBlock {
    pool.allocate(stream, DeviceLayout::new(BYTES).unwrap()).unwrap()
}

fn copy(of: &DeviceBlock) -> DeviceBlock {
    DeviceBlock::new(of.address(), of.bytes(), of.token())
}

/// As many blocks as a magazine keeps of a size, in it.
fn warm(pool: &Pool, stream: &Stream) {
    for _ in 0..3 {
        let blocks: Vec<_> = (0..8).map(|_| block(pool, stream)).collect();
        blocks.into_iter().for_each(|block| free(pool, stream, block));
    }
    assert!(pool.statistics().cached >= 4 * 1024, "{:?}", pool.statistics());
}

/// Blocks of which the one that is freed twice comes back to the place that it was taken from, where
/// nothing is stored, or to another.
#[test]
fn a_block_in_the_magazine_is_freed_again_and_not_in_two_hands() {
    for (taken, first) in [(1, 0), (2, 1), (2, 0), (5, 4), (5, 2), (8, 0), (8, 7)] {
        let fixture = Fixture::new(0);
        let pool = fixture.options(8 * UNIT).build().unwrap();
        let stream = fixture.stream();
        warm(&pool, &stream);
        let mut blocks: Vec<_> = (0..taken).map(|_| block(&pool, &stream)).collect();
        let again = copy(&blocks[first]);
        let (made, log) = Log::of(|| {
            free(&pool, &stream, blocks.remove(first));
            free(&pool, &stream, again);
            (0..12).map(|_| block(&pool, &stream)).collect::<Vec<_>>()
        });
        let live = made.iter().chain(&blocks);
        let addresses: HashSet<_> = live.map(DeviceBlock::address).collect();
        assert_eq!(addresses.len(), made.len() + blocks.len(), "{taken} {first}: in two hands");
        let ((), late) = Log::of(|| {
            made.into_iter().chain(blocks).for_each(|block| free(&pool, &stream, block));
            let _ = pool.wait_and_trim(0);
        });
        let told = log.count(Level::ERROR, "") + late.count(Level::ERROR, "");
        assert!(told > 0, "{taken} {first}: nobody noticed");
    }
}
