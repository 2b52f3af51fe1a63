//! Captures that were not declared: the pool gives memory or a typed error, disturbs no capture of
//! others, and is whole afterwards.

use crate::player::{Expected, Given, Player};
use crate::shared::{Item, Step, lock, unexpected};

impl Player<'_> {
    pub(crate) fn capture(&mut self) -> Step {
        let Some(simulator) = self.shared.simulator.clone() else { return Ok(()) };
        if lock(&self.shared.captured).is_some() {
            return Ok(());
        }
        let Some(stream) = self.stream() else { return Ok(()) };
        // Whoever works on this stream in another thread would be in the graph.
        let id = stream.id();
        *lock(&self.shared.captured) = Some(id);
        self.says(|| format!("a capture begins on stream {id}"));
        simulator.start_capture(&stream).map_err(unexpected("starting a capture"))?;
        let (mut refused, mut fresh) = (false, Vec::new());
        for _ in 0..=self.random.below(6) {
            match self.random.below(6) {
                0 | 1 => {
                    let length = self.length();
                    match self.allocate(&stream, length, Expected::Capture)? {
                        Given::Memory(item) => {
                            self.shared.count("allocations in captures");
                            fresh.push(item);
                        }
                        Given::Refused => refused = true,
                        Given::NoPool => {}
                    }
                }
                2 => {
                    let free =
                        |item: &Item| item.home() == id && item.lent.iter().all(|&lent| lent == id);
                    if let Some(item) = fresh.pop() {
                        self.drop_item(item);
                    } else if let Some(index) = self.items.iter().position(free) {
                        let item = self.items.swap_remove(index);
                        self.drop_item(item);
                        self.shared.count("frees in captures");
                    }
                }
                3 => {
                    if let Some(other) = self.stream() {
                        self.make_on(&other)?;
                    }
                }
                4 => {
                    if let Some(item) = self.take() {
                        self.drop_item(item);
                    }
                }
                _ => self.participant.pass(),
            }
            self.shared.verdict()?;
        }
        let valid = simulator.stop_capture(&stream);
        *lock(&self.shared.captured) = None;
        self.says(|| format!("the capture on stream {id} ends, valid: {valid}"));
        self.shared.count("captures");
        if valid {
            self.shared.count("captures left valid");
        } else if !refused {
            return Err("a capture was invalidated, and no allocation in it was refused".into());
        }
        for item in fresh {
            self.write(item)?;
        }
        Ok(())
    }
}
