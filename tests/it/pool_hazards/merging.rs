//! Free memory of several streams that is gathered into one piece, or nearly.

use super::fixture::{Fixture, SEEDS, UNIT, holds, policies, try_vec, vec, whole};
use aquifer::ErrorKind;

/// RMM's first: a request of B moves A's blocks to B's list and then runs out of memory all the
/// same. C takes one from there, ordered after B alone, while A still writes it.
#[test]
fn blocks_gathered_for_a_request_that_failed_stay_ordered_after_their_own_stream() {
    for policy in policies() {
        for seed in SEEDS {
            let fixture = Fixture::new(seed);
            let pool = fixture.options(4 * UNIT).initial_size(4 * UNIT).miss_policy(policy.clone());
            let pool = pool.build().unwrap();
            let [a, b, c] = fixture.streams();
            let mut of_a: Vec<_> = (0..4).map(|tag| Some(vec(&pool, &a, UNIT, tag))).collect();
            // B has a list of its own, with an event of its own.
            of_a[3].as_mut().unwrap().set_stream(&b).unwrap();
            // Every other unit is free, so that no two of them join.
            of_a.sort_by_key(|vec| vec.as_ref().map(|vec| vec.as_device_ptr()));
            (of_a[0], of_a[2]) = (None, None);
            let refused = try_vec(&pool, &b, 2 * UNIT, 9).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
            let of_c = [vec(&pool, &c, UNIT, 10), vec(&pool, &c, UNIT, 11)];
            holds(&of_c[0], 10);
            holds(&of_c[1], 11);
            fixture.clean();
        }
    }
}

/// RMM's second: the request succeeds. What is left of the joined block was A's and is handed out
/// under B's stale event.
#[test]
fn the_rest_of_a_gathered_block_stays_ordered_after_all_who_used_it() {
    for policy in policies() {
        for seed in SEEDS {
            let fixture = Fixture::new(seed);
            let pool = fixture.options(4 * UNIT).initial_size(4 * UNIT).miss_policy(policy.clone());
            let pool = pool.build().unwrap();
            let [a, b, c] = fixture.streams();
            let of_a = [vec(&pool, &a, UNIT, 1), vec(&pool, &a, UNIT, 2)];
            let of_b = [vec(&pool, &b, UNIT, 3), vec(&pool, &b, UNIT, 4)];
            drop((of_b, of_a));
            let big = vec(&pool, &b, 3 * UNIT, 5);
            let rest = vec(&pool, &c, UNIT, 6);
            holds(&rest, 6);
            holds(&big, 5);
            fixture.clean();
        }
    }
}

/// A free block joins a neighbour that another stream freed. Whoever takes the whole has to wait
/// for both; whoever takes a part, for those of that part at least.
#[test]
fn neighbours_of_different_streams_keep_both_orders() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        let pool = fixture.options(8 * UNIT).initial_size(8 * UNIT).build().unwrap();
        let streams: [_; 4] = fixture.streams();
        for round in 0..10_u8 {
            let vecs: Vec<_> =
                (0..8).map(|n| vec(&pool, &streams[n % 4], UNIT, round + n as u8)).collect();
            drop(vecs);
            let taker = &streams[usize::from(round) % 4];
            let all = vec(&pool, taker, 8 * UNIT, 100 + round);
            holds(&all, 100 + round);
        }
        fixture.clean();
        drop(pool);
        fixture.all_is_back();
    }
}

/// What is left over when a stolen block is split belongs to the thief from then on, or still to the
/// donor: in either case a third stream has to wait for somebody.
#[test]
fn the_rest_of_a_stolen_block_is_not_free_for_all() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        let pool = fixture.options(8 * UNIT).initial_size(8 * UNIT).build().unwrap();
        let [donor, thief, third] = fixture.streams();
        drop(vec(&pool, &donor, 8 * UNIT, 1));
        let stolen = vec(&pool, &thief, UNIT, 2);
        let rest = vec(&pool, &third, 7 * UNIT, 3);
        holds(&rest, 3);
        holds(&stolen, 2);
        // And back: the donor waits for the thief's use of what was its own.
        drop((stolen, rest));
        holds(&vec(&pool, &donor, 8 * UNIT, 4), 4);
        fixture.clean();
    }
}

/// B waited for A's event before A's last free: the order that B has is older than the free.
#[test]
fn an_order_from_before_the_free_is_not_one_after_it() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        let pool = fixture.options(2 * UNIT).initial_size(2 * UNIT).build().unwrap();
        let [a, b] = fixture.streams();
        // The pool itself makes B wait for A, so it knows B to be ordered after A's first frees.
        drop(vec(&pool, &a, 2 * UNIT, 1));
        let of_b = vec(&pool, &b, UNIT, 2);
        let mut of_a = vec(&pool, &a, UNIT, 3);
        of_a.fill(4).unwrap();
        drop(of_a);
        let again = vec(&pool, &b, UNIT, 5);
        holds(&again, 5);
        holds(&of_b, 2);
        fixture.clean();
    }
}

/// C is ordered after B, and B after A: through B, C may know of A's frees, but of none that came
/// after B's wait.
#[test]
fn orders_through_a_third_stream_reach_no_further_than_its_wait() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        let pool = fixture.options(4 * UNIT).initial_size(4 * UNIT).build().unwrap();
        let [a, b, c] = fixture.streams();
        drop(vec(&pool, &a, 4 * UNIT, 1));
        let of_b = vec(&pool, &b, UNIT, 2);
        let of_a = vec(&pool, &a, UNIT, 3);
        drop(of_a);
        drop(of_b);
        let of_c: Vec<_> = (0..4).map(|tag| (vec(&pool, &c, UNIT, tag), tag)).collect();
        whole(&of_c);
        fixture.clean();
    }
}
