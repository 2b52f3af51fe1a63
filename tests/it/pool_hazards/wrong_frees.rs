//! Blocks that are freed twice, freed to a pool that is not theirs, or made up. All of it is unsafe and
//! wrong; a pool that notices says so and stays whole, as far as it can know.

use super::fixture::{Fixture, Pool, UNIT, vec, whole};
use super::log::Log;
use crate::support::free;
use aquifer::{DeviceBlock, DeviceLayout, DeviceResource, Stream};
use tracing::Level;

fn block(pool: &Pool, stream: &Stream, bytes: usize) -> DeviceBlock {
    pool.allocate(stream, DeviceLayout::new(bytes).unwrap()).unwrap()
}

fn copy(of: &DeviceBlock) -> DeviceBlock {
    DeviceBlock::new(of.address(), of.bytes(), of.token())
}

/// The pool serves as if nothing had been: no block twice, nothing lost.
fn serves(fixture: &Fixture, pool: &Pool, stream: &Stream, maximum: usize) {
    let vecs: Vec<_> =
        (0..maximum / UNIT).map(|n| (vec(pool, stream, UNIT, n as u8), n as u8)).collect();
    whole(&vecs);
    drop(vecs);
    let found = pool.statistics();
    assert_eq!((found.live, found.live_blocks), (0, 0), "{found:?}");
    assert_eq!(found.free, found.reserved, "{found:?}");
    fixture.clean();
}

/// A second free, at once, would put the block into the lists twice, and so into two hands.
#[test]
fn a_block_freed_twice_is_given_to_one_only() {
    for entries in [0, 1, 8] {
        for bytes in [700, UNIT] {
            let fixture = Fixture::new(0);
            let pool = fixture.options(4 * UNIT).magazine_entries(entries).build().unwrap();
            let [stream, other] = fixture.streams();
            for second in [&stream, &other] {
                let first = block(&pool, &stream, bytes);
                let again = copy(&first);
                let ((), log) = Log::of(|| {
                    free(&pool, &stream, first);
                    free(&pool, second, again);
                    // Whatever the thread keeps for itself goes back to the pool's own books.
                    let _ = pool.wait_and_trim(0);
                });
                assert!(
                    log.count(Level::ERROR, "") > 0,
                    "{bytes} bytes, {entries} entries: nobody noticed"
                );
                serves(&fixture, &pool, &stream, 4 * UNIT);
            }
            drop(pool);
            fixture.all_is_back();
        }
    }
}

/// Both frees come from another stream, before the heap has looked: the way home is a list, and the
/// block would be in it twice.
#[test]
fn a_block_freed_twice_on_its_way_home_is_noticed_once() {
    for between in [false, true] {
        let fixture = Fixture::new(0);
        let pool = fixture.options(4 * UNIT).build().unwrap();
        let [stream, other] = fixture.streams();
        let first = block(&pool, &stream, 700);
        let second = block(&pool, &stream, 700);
        let again = copy(&first);
        let ((), log) = Log::of(|| {
            free(&pool, &other, first);
            if between {
                free(&pool, &other, copy(&second));
            }
            free(&pool, &other, again);
            let _ = pool.wait_and_trim(0);
        });
        assert!(log.count(Level::ERROR, "") > 0, "nobody noticed");
        if !between {
            free(&pool, &other, second);
        }
        serves(&fixture, &pool, &stream, 4 * UNIT);
        drop(pool);
        fixture.all_is_back();
    }
}

/// As before, with the two frees followed by allocations alone: nothing looks through the pool in
/// between.
#[test]
fn a_block_freed_twice_is_not_in_two_hands() {
    for entries in [0, 1, 8] {
        let fixture = Fixture::new(0);
        let pool = fixture.options(8 * UNIT).magazine_entries(entries).build().unwrap();
        let stream = fixture.stream();
        let first = block(&pool, &stream, 1000);
        let again = copy(&first);
        let ((one, two), _log) = Log::of(|| {
            free(&pool, &stream, first);
            free(&pool, &stream, again);
            (block(&pool, &stream, 1000), block(&pool, &stream, 1000))
        });
        assert_ne!(one.address(), two.address(), "{entries} entries");
        free(&pool, &stream, one);
        free(&pool, &stream, two);
    }
}

/// A block of one pool is freed to another: that one has no such block, though it may have one of
/// the same number.
#[test]
fn a_block_of_another_pool_is_refused() {
    for entries in [0, 8] {
        let fixture = Fixture::new(0);
        let stream = fixture.stream();
        let build = || fixture.options(4 * UNIT).magazine_entries(entries).build().unwrap();
        let (own, wrong) = (build(), build());
        let twin = block(&wrong, &stream, 1000);
        let lost = block(&own, &stream, 1000);
        let ((), log) = Log::of(|| {
            free(&wrong, &stream, copy(&lost));
            let _ = wrong.wait_and_trim(0);
        });
        assert_eq!(log.count(Level::ERROR, ""), 1, "{:?}", log.lines());
        assert_eq!(wrong.statistics().live_blocks, 1, "the twin lives");
        free(&own, &stream, lost);
        free(&wrong, &stream, twin);
        serves(&fixture, &own, &stream, 4 * UNIT);
        serves(&fixture, &wrong, &stream, 4 * UNIT);
        drop((own, wrong));
        fixture.all_is_back();
    }
}

/// Blocks that no pool ever made: what a stray write makes of one.
#[test]
fn made_up_blocks_are_refused() {
    for entries in [0, 8] {
        let fixture = Fixture::new(0);
        let stream = fixture.stream();
        let pool = fixture.options(4 * UNIT).magazine_entries(entries).build().unwrap();
        // The stream is known, and so is the size.
        drop(vec(&pool, &stream, 1000, 1));
        let real = block(&pool, &stream, 1000);
        let (address, bytes, token) = (real.address(), real.bytes(), real.token());
        for (what, wrong) in [
            ("a token of nothing", DeviceBlock::new(address, bytes, u64::MAX)),
            ("a token of zero", DeviceBlock::new(address, bytes, 0)),
            ("the next token", DeviceBlock::new(address, bytes, token ^ 1)),
            ("a token with a high bit", DeviceBlock::new(address, bytes, token ^ 1 << 40)),
            ("memory of nobody", DeviceBlock::new(0xdead_0000, 4096, 12345)),
        ] {
            let ((), log) = Log::of(|| {
                free(&pool, &stream, wrong);
                let _ = pool.wait_and_trim(0);
            });
            assert!(log.count(Level::ERROR, "") > 0, "{entries} entries: {what} was taken");
            assert_eq!(pool.statistics().live_blocks, 1, "{entries} entries: {what}");
        }
        free(&pool, &stream, real);
        serves(&fixture, &pool, &stream, 4 * UNIT);
        drop(pool);
        fixture.all_is_back();
    }
}

/// The address and the size that a block is said to have.
type Lie = fn(&DeviceBlock) -> (u64, usize);

/// The block is right, what it says of itself is not. A pool without magazines goes by its own books;
/// magazines sort blocks by what the caller says of their size, so there it is as undefined as the
/// contract says.
#[test]
fn a_block_that_lies_about_its_size_or_place_harms_nobody_without_magazines() {
    let lies: [Lie; 3] = [
        |block| (block.address(), 2 * block.bytes()),
        |block| (block.address(), 256),
        |block| (block.address() + 256, block.bytes()),
    ];
    for lie in lies {
        let fixture = Fixture::new(0);
        let stream = fixture.stream();
        let pool = fixture.options(4 * UNIT).magazine_entries(0).build().unwrap();
        drop((vec(&pool, &stream, 2048, 1), vec(&pool, &stream, 256, 1)));
        drop(vec(&pool, &stream, 1024, 1));
        let real = block(&pool, &stream, 1024);
        let neighbour = vec(&pool, &stream, 1024, 7);
        let (address, bytes) = lie(&real);
        free(&pool, &stream, DeviceBlock::new(address, bytes, real.token()));
        let made: Vec<_> = [bytes, 1024, 256, 2048]
            .into_iter()
            .enumerate()
            .map(|(n, bytes)| (vec(&pool, &stream, bytes, n as u8), n as u8))
            .chain([(neighbour, 7)])
            .collect();
        whole(&made);
        drop(made);
        serves(&fixture, &pool, &stream, 4 * UNIT);
    }
}
