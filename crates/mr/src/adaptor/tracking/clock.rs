//! A clock that costs a few nanoseconds a read. It reads the processor's counter, and converts it
//! to a time when a list is asked for.

use std::time::{Duration, Instant};

pub(super) struct TickClock {
    started: Instant,
    /// The counter's value at `started`, or `None` if the processor has no counter of a constant rate.
    counter: Option<u64>,
}

impl TickClock {
    pub(super) fn start() -> Self {
        // The counter is read on both sides of the time: the closest pair of eight was not interrupted.
        let read = || {
            let (before, started) = (counter::read(), Instant::now());
            (counter::read().saturating_sub(before), before, started)
        };
        let reads = (0..8).map(|_| read()).min_by_key(|(apart, ..)| *apart);
        let (_, first, started) = reads.unwrap_or_else(read);
        Self { counter: counter::is_steady().then_some(first), started }
    }

    /// The present, for [`converter`](Self::converter).
    #[inline(always)]
    pub(super) fn ticks(&self) -> u64 {
        match self.counter {
            Some(_) => counter::read(),
            None => self.started.elapsed().as_nanos() as u64,
        }
    }

    /// Converts ticks that were read before this call to the time since the start. The rate is the
    /// average since the start, so no calibration is needed.
    pub(super) fn converter(&self) -> impl Fn(u64) -> Duration + use<> {
        let elapsed = self.started.elapsed();
        // Without a counter, ticks are nanoseconds.
        let (first, passed) = match self.counter {
            Some(first) => (first, counter::read().saturating_sub(first)),
            None => (0, elapsed.as_nanos() as u64),
        };
        move |ticks| {
            // Clamped, as the counters of two processors may differ by a little.
            let since = ticks.saturating_sub(first).min(passed);
            let part = u128::from(since) * elapsed.as_nanos() / u128::from(passed.max(1));
            Duration::from_nanos(part as u64)
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::arch::x86_64::{__cpuid, _rdtsc};

    /// Whether the counter has a constant rate in all power states.
    pub(super) fn is_steady() -> bool {
        const POWER: u32 = 0x8000_0007;
        __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & 1 << 8 != 0
    }

    #[inline(always)]
    pub(super) fn read() -> u64 {
        // SAFETY: all x86-64 processors have the instruction, which reads a register alone.
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
mod tests;
