//! Calls that begin while another thread's short capture has their stream: they wait for it, and come to their turn.

use crate::player::Player;
use crate::shared::{Step, Stop, Words};
use aquifer::{DeviceVec, ErrorKind, Result, Stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Captures of a program.
const CAPTURES: usize = 40;

/// Where other programs keep the cores a short capture is at times a long one. Not so many in turn.
const MEETINGS: usize = 10;

/// How long a capture takes: a small part of what calls wait.
const SHORT: Duration = Duration::from_micros(100);

/// The number of the capture that the streams are in, from 1.
#[derive(Default)]
pub(crate) struct Turns(AtomicUsize);

impl Turns {
    const OVER: usize = usize::MAX;
}

/// Tells the other threads when the captures are over, however they end.
struct End<'a>(&'a Turns);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.0.store(Turns::OVER, Ordering::Release);
    }
}

impl Player<'_> {
    pub(crate) fn take_turns(&mut self) -> Step {
        let _call = self.shared.call();
        let [home, other] = [0, 1].map(|at| self.shared.stream(at));
        if self.me == 0 { self.give_turns(&home, &other) } else { self.meet([&home, &other]) }
    }

    fn give_turns(&mut self, home: &Stream, other: &Stream) -> Step {
        let shared = self.shared;
        let _end = End(&shared.turns);
        for capture in 1..=CAPTURES {
            let captured = home.capture(&self.pool, |home| {
                shared.turns.0.store(capture, Ordering::Release);
                std::thread::sleep(SHORT);
                home.wait_for(other)
            });
            self.took("captures in turns", captured.map(drop))?;
        }
        Ok(())
    }

    fn meet(&mut self, on: [&Stream; 2]) -> Step {
        let (shared, mut vectors) = (self.shared, None);
        let (mut last, mut met, mut made) = (0, 0, 0);
        loop {
            match shared.turns.0.load(Ordering::Acquire) {
                Turns::OVER => break,
                capture if capture == last => std::thread::yield_now(),
                capture => {
                    (last, met) = (capture, met + 1);
                    match self.copy_in_turn(&mut vectors, on) {
                        Ok(()) => made += 1,
                        Err(error) if error.kind() == ErrorKind::Capture => {}
                        Err(error) => return Err(shared.unexpected("copies in turns", &error)),
                    }
                }
            }
        }
        (0..made).for_each(|_| self.count("copies in turns"));
        match (met, made) {
            (MEETINGS.., 0) => Err(Stop::Failed(format!("no turn in {met} short captures"))),
            _ => Ok(()),
        }
    }

    fn copy_in_turn(&self, vectors: &mut Option<[Words; 2]>, on: [&Stream; 2]) -> Result<()> {
        let [one, two] = match vectors {
            Some(made) => made,
            None => {
                let make = |stream| {
                    let pool = Arc::new(self.pool.clone());
                    DeviceVec::zeroed_in(stream, self.shared.setup.length, pool)
                };
                vectors.insert([make(on[0])?, make(on[1])?])
            }
        };
        one.copy_from(two)
    }
}
