//! The parts of the checks that need no device.

use crate::check::VectorClock;
use crate::state::Random;

#[test]
fn joining_takes_the_later_of_each() {
    let (mut left, mut right) = (VectorClock::default(), VectorClock::default());
    left.raise(3, 5);
    left.raise(1, 2);
    right.raise(3, 4);
    right.raise(2, 7);
    left.join(&right);
    assert_eq!(left.entries().collect::<Vec<_>>(), [(1, 2), (2, 7), (3, 5)]);
    left.remove_seen(|stream, _| stream == 2);
    assert_eq!((left.get(2), left.get(3)), (0, 5));
}

#[test]
fn numbers_stay_below_their_bound_and_repeat() {
    let draw = |seed| {
        let mut random = Random::new(seed);
        (0..100).map(|_| random.below(7)).collect::<Vec<_>>()
    };
    assert!(draw(1).iter().all(|&number| number < 7));
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    assert_eq!(Random::new(3).below(0), 0);
}
