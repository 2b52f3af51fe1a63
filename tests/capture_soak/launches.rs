//! Launches of a graph, ordered as their contract asks, and what they do to the vectors.

use crate::captures::Body;
use crate::player::Player;
use crate::shared::{Item, Step, Stop, lock};
use aquifer::{ErrorKind, Result, stream::Graph};

/// What a launch does to a vector, by its number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    Fill(u32, u32),
    Add(u32),
}

impl Effect {
    pub(crate) fn vector(self) -> u32 {
        match self {
            Self::Fill(id, _) | Self::Add(id) => id,
        }
    }

    fn apply(self, items: &mut [Item]) {
        let Some(item) = items.iter_mut().find(|item| item.id == self.vector()) else { return };
        item.value = match self {
            Self::Fill(_, value) => value,
            Self::Add(_) => item.value.wrapping_add(1),
        };
    }
}

impl Body<'_, '_> {
    /// Launches the graph of the capture, if it has one, and gives the thread its vectors back.
    pub(crate) fn finish(mut self, graph: Option<Graph>) -> Step {
        let mut launched = false;
        if let Some(graph) = graph {
            for item in &self.items {
                if item.guard.is_none() && self.player.random.one_in(8) {
                    // It was recorded and did not run.
                    self.player.read_item(item)?;
                }
            }
            for _ in 0..self.player.random.below(3) {
                launched |= self.launch(&graph, launched)?;
            }
            match self.player.random.one_in(4) {
                true => lock(&self.player.shared.graphs).push(graph),
                false => drop(graph),
            }
        }
        for item in &mut self.items {
            if let Some(stream) = item.guard.clone() {
                self.player.count("guards that leave a capture");
                let worked = item.work_at(&stream);
                if self.player.took("guards used after a capture", worked)?.is_some() {
                    item.value = item.value.wrapping_add(1);
                }
            }
        }
        if launched && !self.hosts.is_empty() {
            self.player.took("waits for launches", self.home.synchronize())?;
        }
        for (host, value) in &self.hosts {
            if host.iter().any(|found| found != value) {
                let why = format!("a graph wrote host memory: {host:x?}, not {value:#x}");
                return Err(Stop::Failed(why));
            }
        }
        for mut item in self.stays {
            // What no launch has written is written by nobody else.
            if launched || self.player.fill_item(&mut item)? {
                self.player.count("vectors that outlive a capture");
                self.items.push(item);
            }
        }
        self.player.items.append(&mut self.items);
        self.player.items.append(&mut self.outside);
        Ok(())
    }

    fn launch(&mut self, graph: &Graph, again: bool) -> Step<bool> {
        let elsewhere = self.player.random.one_in(3);
        let on = if elsewhere { self.player.stream() } else { self.home.clone() };
        let (player, home) = (&mut *self.player, &self.home);
        // What lies outside, the graph's launches wait for.
        let is_free = self.only_outside && !again;
        if !is_free && player.took("launches put behind home", on.wait_for(home))?.is_none() {
            return Ok(false);
        }
        // Where a guard was out, its stream is in no order with the launch.
        for item in &mut self.items {
            if self.effects.iter().any(|effect| effect.vector() == item.id) {
                item.guard = None;
            }
        }
        // SAFETY: what was recorded is kept here, its former uses are before the launch and later ones,
        // at home, after it.
        let launched = unsafe { graph.launch(&on) };
        let stream = on.id();
        player.says(|| format!("launches the graph on stream {stream}"));
        if let Err(error) = &launched
            && error.kind() == ErrorKind::InvalidArgument
            && player.shared.setup.shares_memory
        {
            player.count("launches that would write over a vector");
            return Ok(false);
        }
        if player.took("graphs launched", launched)?.is_none() {
            return Ok(false);
        }
        player.insist("homes put behind a launch", || home.wait_for(&on))?;
        if !self.outside.is_empty() {
            let own = player.own.clone();
            player.insist("homes elsewhere put behind a launch", || own.wait_for(&on))?;
        }
        for effect in &self.effects {
            effect.apply(&mut self.items);
            effect.apply(&mut self.outside);
        }
        Ok(true)
    }
}

impl Player<'_> {
    /// Calls again until no capture of another thread is in the way.
    fn insist(&mut self, what: &'static str, call: impl Fn() -> Result<()>) -> Step {
        loop {
            match call() {
                Err(error) if error.kind() == ErrorKind::Capture => {
                    self.count("calls made again");
                    std::thread::yield_now();
                }
                done => return self.took(what, done).map(drop),
            }
        }
    }
}
