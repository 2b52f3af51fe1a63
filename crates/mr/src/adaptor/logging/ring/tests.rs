//! A ring by itself, on one thread and on several.

use super::super::record::Action;
use super::*;
use crate::sync::Arc;

fn record(thread: u32, bytes: u64) -> Record {
    let action = [Action::Allocate, Action::Failure, Action::Free, Action::FreeReturned];
    let action = action[bytes as usize % 4];
    let (start, end, address, stream) = (bytes + 1, bytes + 2, !bytes, bytes << 7);
    Record { action, thread, location: !thread, start, end, address, bytes, stream }
}

#[test]
fn records_come_back_as_they_were_and_in_order() {
    for capacity in [1, 2, 3, 100] {
        let ring = Ring::new(capacity);
        let (mut pushed, mut seen) = (0, 0);
        for round in 0..500 {
            while ring.push(record(7, pushed)).is_ok() {
                pushed += 1;
            }
            assert_eq!(ring.len(), capacity);
            let most = round % (capacity + 1);
            let mut check = |found: Record| {
                assert_eq!(found, record(7, seen));
                seen += 1;
            };
            assert_eq!(ring.drain(most, &mut check), most);
            assert_eq!(ring.len(), capacity - most);
        }
        let left = pushed - seen;
        assert_eq!(ring.drain(usize::MAX, |_| seen += 1) as u64, left);
        assert_eq!(ring.drain(usize::MAX, |_| seen += 1), 0);
        assert_eq!(seen, pushed);
    }
}

#[test]
fn a_taken_record_makes_room_for_one_of_the_taker() {
    let ring = Ring::new(1);
    ring.push(record(0, 0)).unwrap();
    let again = |found: Record| ring.push(record(0, found.bytes + 1)).unwrap();
    assert_eq!(ring.drain(10, again), 10);
    assert_eq!(ring.drain(1, |found| assert_eq!(found, record(0, 10))), 1);
}

#[test]
fn threads_lose_nothing_and_keep_their_order() {
    const THREADS: u32 = 4;
    const EACH: u64 = 20_000;
    for capacity in [1, 3, 1000] {
        let ring = Arc::new(Ring::new(capacity));
        let producers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let ring = ring.clone();
                std::thread::spawn(move || {
                    for number in 0..EACH {
                        while ring.push(record(thread, number)).is_err() {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let mut next = [0; THREADS as usize];
        while next.iter().sum::<u64>() < u64::from(THREADS) * EACH {
            let taken = ring.drain(700, |found| {
                let number = &mut next[found.thread as usize];
                assert_eq!(found, record(found.thread, *number));
                *number += 1;
            });
            if taken == 0 {
                std::thread::yield_now();
            }
        }
        for producer in producers {
            producer.join().unwrap();
        }
        assert_eq!(ring.drain(1, |_| ()), 0);
    }
}
