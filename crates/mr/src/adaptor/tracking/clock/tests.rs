//! The clock, beside that of the system.

use super::*;

#[test]
fn times_are_those_of_the_system() {
    const APART: Duration = Duration::from_millis(20);
    let mut clocks = vec![TickClock { started: Instant::now(), counter: None }];
    clocks.push(TickClock::start());
    for clock in clocks {
        let ticks: Vec<_> = (0..4)
            .map(|_| {
                let before = clock.started.elapsed();
                let ticks = clock.ticks();
                let after = clock.started.elapsed();
                std::thread::sleep(APART);
                (before, ticks, after)
            })
            .collect();
        let time = clock.converter();
        // An interrupt between the two reads of a pair shifts the scale.
        const OFF: Duration = Duration::from_millis(5);
        for (before, ticks, after) in ticks {
            let time = time(ticks);
            assert!(time + OFF >= before && time <= after + OFF, "{before:?} {time:?} {after:?}");
        }
        assert_eq!(time(0), Duration::ZERO);
        assert!(time(u64::MAX) <= clock.started.elapsed());
    }
}
