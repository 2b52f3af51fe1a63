//! Captures that Aquifer was not told of, on a stream that one thread alone uses.

use crate::kernels::add_one;
use crate::player::Player;
use crate::shared::{Item, Step, Stop};
use aquifer::Stream;

impl Player<'_> {
    pub(crate) fn undeclared(&mut self) -> Step {
        let shared = self.shared;
        let Some(simulator) = shared.simulator.clone() else { return Ok(()) };
        let call = shared.call();
        let alone = self.shared.device.new_stream();
        let alone = self.sure("making a stream", alone)?;
        let (Some(mut item), Some(mut other)) = (self.make(&alone)?, self.make(&self.own.clone())?)
        else {
            return Ok(());
        };
        drop(call);
        let outside = shared.outside_of_calls();
        let started = simulator.start_capture(&alone);
        drop(outside);
        let _call = shared.call();
        self.sure("beginning a capture behind the crate's back", started)?;
        let on = alone.id();
        self.says(|| format!("begins a capture on stream {on} without a word"));
        let inside = self.inside_undeclared(&alone, &mut item, &mut other);
        let valid = simulator.stop_capture(&alone);
        self.says(|| format!("that capture is over; it was valid: {valid}"));
        inside?;
        self.count("captures undeclared");
        if valid {
            self.count("captures undeclared that stayed valid");
        } else if !self.shared.setup.frees_pinned() {
            // Elsewhere the free of page-locked memory asked the context, which was not told of it.
            return Err(Stop::Failed("a capture behind the crate's back was disturbed".into()));
        }
        let stream = self.stream();
        let launched = add_one(&stream, &mut item.vec);
        if self.took("kernels after undeclared captures", launched)?.is_some() {
            item.value = item.value.wrapping_add(1);
        }
        self.read_item(&item)?;
        self.items.extend([item, other]);
        Ok(())
    }

    fn inside_undeclared(&mut self, alone: &Stream, item: &mut Item, other: &mut Item) -> Step {
        for _ in 0..1 + self.random.below(3) {
            let stream = self.stream();
            match self.random.below(6) {
                0 => {
                    let lent = item.vec.on_mut(&stream).map(drop);
                    self.refused("a guard out of an undeclared capture", lent)?;
                }
                1 => {
                    let lent = add_one(&stream, &mut item.vec);
                    self.refused("a kernel out of an undeclared capture", lent)?;
                }
                2 => {
                    let lent = other.vec.on_mut(alone).map(drop);
                    self.refused("a guard into an undeclared capture", lent)?;
                }
                3 => self.refused("a read in an undeclared capture", item.vec.to_vec())?,
                4 => self.refused("a wait for an undeclared capture", alone.synchronize())?,
                // Recorded, and thrown away.
                _ => {
                    let filled = item.vec.fill(self.shared.value());
                    self.took("fills in undeclared captures", filled)?;
                }
            }
            self.pause();
        }
        Ok(())
    }
}
