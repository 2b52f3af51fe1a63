//! When: a counter that is read in a few nanoseconds, and made a time when somebody asks.

use std::time::{Duration, Instant};

/// What the processor's counter said when the clock was made, and whether there is one to trust.
pub(super) struct Clock {
    started: Instant,
    counter: Option<u64>,
}

impl Clock {
    pub(super) fn start() -> Self {
        // Read on both sides of the time, until nothing came in between.
        let both = || {
            let (before, started) = (counter::read(), Instant::now());
            (counter::read().saturating_sub(before), before, started)
        };
        let reads = (0..8).map(|_| both()).min_by_key(|(apart, ..)| *apart);
        let (_, first, started) = reads.unwrap_or_else(both);
        Self { counter: counter::is_steady().then_some(first), started }
    }

    /// The present, for [`times`](Self::times).
    #[inline(always)]
    pub(super) fn ticks(&self) -> u64 {
        match self.counter {
            Some(_) => counter::read(),
            None => self.started.elapsed().as_nanos() as u64,
        }
    }

    /// What makes a time since the start of ticks that were read before this call. The counter's rate
    /// is that of all the time since the start: nothing has to be measured beforehand.
    pub(super) fn times(&self) -> impl Fn(u64) -> Duration + use<> {
        let elapsed = self.started.elapsed();
        // Without a counter, ticks are nanoseconds.
        let (first, passed) = match self.counter {
            Some(first) => (first, counter::read().saturating_sub(first)),
            None => (0, elapsed.as_nanos() as u64),
        };
        move |ticks| {
            // Counters of two processors may differ by a little: never before the start, nor after now.
            let since = ticks.saturating_sub(first).min(passed);
            let part = u128::from(since) * elapsed.as_nanos() / u128::from(passed.max(1));
            Duration::from_nanos(part as u64)
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::arch::x86_64::{__cpuid, _rdtsc};

    /// Whether it counts at one rate in all states of the processor.
    pub(super) fn is_steady() -> bool {
        const POWER: u32 = 0x8000_0007;
        __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & 1 << 8 != 0
    }

    #[inline(always)]
    pub(super) fn read() -> u64 {
        // SAFETY: all x86-64 processors have it, and it reads a counter alone.
        unsafe { _rdtsc() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod counter {
    pub(super) fn is_steady() -> bool {
        false
    }

    pub(super) fn read() -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_system() {
        const APART: Duration = Duration::from_millis(20);
        let mut clocks = vec![Clock { started: Instant::now(), counter: None }];
        clocks.push(Clock::start());
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
            let times = clock.times();
            // A counter is scaled by two pairs of reads, of which either may be interrupted between
            // the two.
            const OFF: Duration = Duration::from_millis(5);
            for (before, ticks, after) in ticks {
                let time = times(ticks);
                assert!(
                    time + OFF >= before && time <= after + OFF,
                    "{before:?} {time:?} {after:?}"
                );
            }
            assert_eq!(times(0), Duration::ZERO);
            assert!(times(u64::MAX) <= clock.started.elapsed());
        }
    }
}
