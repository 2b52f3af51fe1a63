//! Declared captures: what a thread does in them, and what must be refused there.

use crate::kernels::add_one;
use crate::launches::Effect;
use crate::player::Player;
use crate::shared::{Item, Pinned, Step, Stop, lock};
use aquifer::{ErrorKind, Result, Stream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Whole,
    Fails,
    Unwinds,
}

/// What a body throws, and nothing else does.
struct OnPurpose;

/// A capture of a thread, inside of its body.
pub(crate) struct Body<'p, 'a> {
    pub(crate) player: &'p mut Player<'a>,
    pub(crate) home: Stream,
    /// Vectors at home on the stream in capture.
    pub(crate) items: Vec<Item>,
    /// What a launch does to them.
    pub(crate) effects: Vec<Effect>,
    /// Made inside, and written by a launch alone.
    pub(crate) stays: Vec<Item>,
    /// Of other homes, which the capture waits for and is not told of.
    pub(crate) outside: Vec<Item>,
    /// It records work on these alone.
    pub(crate) only_outside: bool,
    /// What the graph must not touch.
    pub(crate) hosts: Vec<(Pinned, u32)>,
    /// Streams with recorded work that the capturing one has not waited for.
    unjoined: Vec<Stream>,
    ran: bool,
    ending: Ending,
    stop: Option<Stop>,
}

impl<'a> Player<'a> {
    pub(crate) fn capture(&mut self) -> Step {
        let home = self.shared_stream();
        let only_outside = self.random.one_in(8);
        let busy = !only_outside && !self.random.one_in(4);
        if only_outside {
            let own = self.own.clone();
            let made = self.make(&own)?;
            self.items.extend(made);
        }
        if busy && self.random.one_in(2) {
            let made = self.make(&home)?;
            self.items.extend(made);
        }
        if busy {
            self.lend_before(&home)?;
        }
        let ready = |item: &mut Item| busy && item.is_at(&home) && item.guard.is_none();
        let items: Vec<Item> = self.items.extract_if(.., ready).collect();
        let ending = match self.random.below(8) {
            0 => Ending::Fails,
            1 => Ending::Unwinds,
            _ => Ending::Whole,
        };
        let on = home.id();
        self.says(|| format!("begins a capture on stream {on}; it ends {ending:?}"));
        let pool = self.pool.clone();
        let graph_pool = lock(&self.shared.graph_pool).clone();
        let mut body = Body {
            player: self,
            home: home.clone(),
            items,
            effects: Vec::new(),
            stays: Vec::new(),
            outside: Vec::new(),
            only_outside,
            hosts: Vec::new(),
            unjoined: Vec::new(),
            ran: false,
            ending,
            stop: None,
        };
        let captured = catch_unwind(AssertUnwindSafe(|| {
            let captured = match &graph_pool {
                Some(graph_pool) => home.capture_in(graph_pool, |_| body.run(busy)),
                None => home.capture(&pool, |_| body.run(busy)),
            };
            captured.map(|(graph, ())| graph)
        }));
        body.player.says(|| format!("the capture on stream {on} is over"));
        if let Some(stop) = body.stop.take() {
            return Err(stop);
        }
        let (ran, unjoined) = (body.ran, !body.unjoined.is_empty());
        match captured {
            Err(panic) if panic.is::<OnPurpose>() => {
                body.player.count("captures that unwound");
                body.finish(None)
            }
            Err(panic) => resume_unwind(panic),
            Ok(Ok(_)) if ending != Ending::Whole => {
                Err(Stop::Failed(format!("a graph of a capture that ended {ending:?}")))
            }
            Ok(Ok(graph)) => {
                body.player.count("captures declared");
                body.finish(Some(graph))
            }
            Ok(Err(error)) => {
                let what = match (ran, error.kind()) {
                    (false, ErrorKind::Capture) => "captures refused",
                    (true, ErrorKind::InvalidArgument) if ending == Ending::Fails => {
                        "captures that failed"
                    }
                    (true, ErrorKind::Capture) if unjoined => "captures with a stream unjoined",
                    (true, ErrorKind::Capture) => {
                        let why = format!("a capture that nothing spoiled was lost: {error}");
                        return Err(Stop::Failed(why));
                    }
                    _ => return Err(body.player.shared.unexpected("a capture", &error)),
                };
                body.player.says(|| format!("{what}: {error}"));
                body.player.count(what);
                body.finish(None)
            }
        }
    }

    /// A vector from elsewhere that was lent to the stream, and comes home while it is in capture.
    fn lend_before(&mut self, stream: &Stream) -> Step {
        let own = self.own.clone();
        let Some(mut item) = self.make(&own)? else { return Ok(()) };
        let (id, on) = (item.id, stream.id());
        self.says(|| {
            format!("lends vector {id} to stream {on}, to be used while that is in capture")
        });
        let lent = add_one(stream, &mut item.vec);
        if self.took("vectors lent before a capture", lent)?.is_some() {
            item.value = item.value.wrapping_add(1);
        }
        self.items.push(item);
        Ok(())
    }
}

impl Body<'_, '_> {
    fn run(&mut self, busy: bool) -> Result<()> {
        self.ran = true;
        let steps =
            if busy { 1 + self.player.random.below(6) } else { self.player.random.below(3) };
        for _ in 0..steps {
            let done = match busy {
                true => self.step(),
                false if self.only_outside => self.outside(),
                false => self.order(),
            };
            self.player.pause();
            if let Err(stop) = done {
                self.stop = Some(stop);
                break;
            }
        }
        if !self.player.random.one_in(8) {
            for stream in self.unjoined.clone() {
                if let Err(stop) = self.join_back(&stream) {
                    self.stop.get_or_insert(stop);
                }
            }
        }
        match self.ending {
            Ending::Whole => Ok(()),
            Ending::Fails => Err(crate::player::Player::own_error()),
            Ending::Unwinds => resume_unwind(Box::new(OnPurpose)),
        }
    }

    fn step(&mut self) -> Step {
        match self.player.random.below(17) {
            16 => self.outside(),
            0 | 1 => self.fill(),
            2 => self.kernel(),
            3..5 => self.lend(),
            5 => self.scratch(),
            6 => self.order(),
            7 => self.guard(),
            8 | 9 => self.host_copy(),
            10..12 => self.elsewhere(),
            12 => self.event(),
            13 => self.drop_one(),
            14 => self.nested(),
            _ => self.stay(),
        }
    }

    /// Another stream that threads share.
    fn other(&mut self) -> Option<Stream> {
        let stream = self.player.shared_stream();
        (stream != self.home).then_some(stream)
    }

    /// A vector that no guard is out for.
    fn item(&mut self) -> Option<usize> {
        let free = |at: &usize| self.items[*at].guard.is_none();
        let free: Vec<usize> = (0..self.items.len()).filter(free).collect();
        (!free.is_empty()).then(|| free[self.player.random.below(free.len())])
    }

    fn fill(&mut self) -> Step {
        let Some(at) = self.item() else { return Ok(()) };
        let (value, id) = (self.player.shared.value(), self.items[at].id);
        let filled = self.items[at].vec.fill(value);
        self.player.says(|| format!("records a fill of vector {id} with {value:#x}"));
        if self.player.took("fills in captures", filled)?.is_some() {
            self.effects.push(Effect::Fill(id, value));
        }
        Ok(())
    }

    fn kernel(&mut self) -> Step {
        let Some(at) = self.item() else { return Ok(()) };
        let id = self.items[at].id;
        let launched = add_one(&self.home, &mut self.items[at].vec);
        self.player.says(|| format!("records a kernel on vector {id}"));
        if self.player.took("kernels in captures", launched)?.is_some() {
            self.effects.push(Effect::Add(id));
        }
        Ok(())
    }

    fn joined(&mut self, stream: &Stream) {
        self.player.count("streams joined");
        if !self.unjoined.contains(stream) {
            self.unjoined.push(stream.clone());
        }
    }

    fn join_back(&mut self, stream: &Stream) -> Step {
        let on = stream.id();
        self.player.says(|| format!("the capturing stream waits for stream {on}"));
        let waited = self.home.wait_for(stream);
        if self.player.took("streams joined back", waited)?.is_some() {
            self.unjoined.retain(|other| other != stream);
        }
        Ok(())
    }

    fn lend(&mut self) -> Step {
        let (Some(at), Some(other)) = (self.item(), self.other()) else { return Ok(()) };
        let (id, on) = (self.items[at].id, other.id());
        let launched = add_one(&other, &mut self.items[at].vec);
        self.player.says(|| format!("records a kernel on vector {id} on stream {on}"));
        if self.player.took("kernels on streams that join", launched)?.is_some() {
            self.effects.push(Effect::Add(id));
            self.joined(&other);
        }
        Ok(())
    }

    fn scratch(&mut self) -> Step {
        let home = self.home.clone();
        let Some(mut vec) = self.player.allocate(&home)? else { return Ok(()) };
        let value = self.player.shared.value();
        let filled = vec.fill(value);
        if self.player.took("fills in captures", filled)?.is_none() {
            return Ok(());
        }
        self.player.count("vectors made and dropped in captures");
        let Some(at) = self.item() else { return Ok(()) };
        let (id, copied) = (self.items[at].id, self.items[at].vec.copy_from(&vec));
        self.player.says(|| format!("records a copy of {value:#x} to vector {id}"));
        if self.player.took("copies of the device in captures", copied)?.is_some() {
            self.effects.push(Effect::Fill(id, value));
        }
        Ok(())
    }

    fn order(&mut self) -> Step {
        let Some(other) = self.other() else { return Ok(()) };
        if self.player.random.one_in(3) {
            return self.join_back(&other);
        }
        let (waited, on) = (other.wait_for(&self.home), other.id());
        self.player.says(|| format!("stream {on} waits for the capturing one"));
        if self.player.took("streams that wait for a capture", waited)?.is_some() {
            self.joined(&other);
        }
        Ok(())
    }

    /// A guard that is used when the capture is over.
    fn guard(&mut self) -> Step {
        let (Some(at), Some(other)) = (self.item(), self.other()) else { return Ok(()) };
        let lent = self.items[at].vec.on_mut(&other).map(drop);
        let (id, on) = (self.items[at].id, other.id());
        self.player.says(|| format!("a guard of vector {id} for stream {on} in the capture"));
        if self.player.took("guards in captures", lent)?.is_some() {
            self.joined(&other);
            self.items[at].guard = Some(other);
        }
        Ok(())
    }

    /// A vector whose home is no part of the capture, though it was lent to it before.
    fn elsewhere(&mut self) -> Step {
        let own = self.player.own.clone();
        let outside = |item: &Item| item.is_at(&own) && item.guard.is_none();
        let Some(at) = self.player.items.iter().position(outside) else { return Ok(()) };
        let mut item = self.player.items.swap_remove(at);
        let done = match self.player.random.below(4) {
            0 => self.player.fill_item(&mut item).map(drop),
            1 => {
                let id = item.id;
                self.player.says(|| format!("drops vector {id}, which is at home elsewhere"));
                self.player.count("vectors dropped beside a capture");
                return Ok(());
            }
            _ => self.player.read_item(&item),
        };
        self.player.count("vectors used beside a capture");
        self.player.items.push(item);
        done
    }

    /// A kernel by the address of a vector that is at home elsewhere, behind a wait for its home.
    fn outside(&mut self) -> Step {
        let own = self.player.own.clone();
        let outside = |item: &Item| item.is_at(&own) && item.guard.is_none();
        let Some(at) = self.player.items.iter().position(outside) else { return Ok(()) };
        // Its home comes after all its uses, and the capture after its home.
        let ordered = self.player.items[at].vec.on_mut(&own).map(drop);
        let ordered = self.player.took("guards beside a capture", ordered)?;
        let waited = self.home.wait_for(&own);
        let waited = self.player.took("waits for what is outside of a capture", waited)?;
        if ordered.is_none() || waited.is_none() {
            return Ok(());
        }
        let item = self.player.items.swap_remove(at);
        let (id, worked) = (item.id, item.work_at(&self.home));
        self.player.says(|| format!("records a kernel on vector {id}, which is outside"));
        if self.player.took("kernels on what is outside of a capture", worked)?.is_some() {
            self.effects.push(Effect::Add(id));
        }
        self.outside.push(item);
        Ok(())
    }

    fn event(&mut self) -> Step {
        let recorded = self.home.record();
        let Some(event) = self.player.took("events in captures", recorded)? else {
            return Ok(());
        };
        self.player.refused("asking for a point of a graph", event.is_complete())?;
        self.player.refused("waiting for a point of a graph", event.synchronize())?;
        lock(&self.player.shared.events).push(event);
        Ok(())
    }

    fn drop_one(&mut self) -> Step {
        let Some(at) = self.item() else { return Ok(()) };
        let item = self.items.swap_remove(at);
        self.player.says(|| format!("drops vector {} in the capture", item.id));
        self.player.count("vectors dropped in captures");
        self.effects.retain(|effect| effect.vector() != item.id);
        Ok(())
    }

    fn nested(&mut self) -> Step {
        let (home, own, pool) =
            (self.home.clone(), self.player.own.clone(), self.player.pool.clone());
        self.player.refused("a wait for a stream in capture", home.synchronize())?;
        let nested = home.capture(&pool, |_| Ok(()));
        self.player.refused("a capture in a capture", nested)?;
        let beside = own.capture(&pool, |_| Ok(()));
        self.player.took("captures inside of others", beside).map(drop)
    }

    fn stay(&mut self) -> Step {
        let home = self.home.clone();
        let Some(mut vec) = self.player.allocate(&home)? else { return Ok(()) };
        let (id, value) = (self.player.shared.number(), self.player.shared.value());
        let filled = vec.fill(value);
        self.player.says(|| format!("records a fill of vector {id}, which stays, with {value:#x}"));
        if self.player.took("fills in captures", filled)?.is_some() {
            self.stays.push(Item { id, vec, value, guard: None });
        }
        Ok(())
    }

    /// A copy between the host and a vector of the capture: by another stream, which it would take
    /// in, by home, or by a scope. Each must be refused.
    fn host_copy(&mut self) -> Step {
        let Some(at) = self.item() else { return Ok(()) };
        let stream = self.other().unwrap_or_else(|| self.home.clone());
        let value = self.player.shared.value();
        let mut host = self.player.host(value)?;
        let (id, on) = (self.items[at].id, stream.id());
        self.player.says(|| format!("tries to copy vector {id} and host memory on stream {on}"));
        match self.player.random.below(4) {
            0 => {
                let read = self.items[at].vec.to_vec();
                self.player.refused("a read in a capture", read)?;
            }
            1 => {
                let written = self.items[at].vec.copy_from_slice(&host);
                self.player.refused("a write in a capture", written)?;
            }
            2 => {
                let (item, upload) = (&mut self.items[at], self.player.random.one_in(2));
                let copied = stream.scope(|scope| match upload {
                    true => scope.upload(&host, &mut item.vec),
                    false => scope.download(&item.vec, &mut host),
                });
                self.player.refused("a copy of a scope in a capture", copied)?;
            }
            _ => {
                let Item { id, vec, value, guard } = self.items.swap_remove(at);
                let begun = match self.player.random.one_in(2) {
                    true => stream.upload(host, vec),
                    false => stream.download(vec, host),
                };
                match begun {
                    Ok(_) => {
                        return Err(Stop::Failed("not refused: a transfer in a capture".into()));
                    }
                    Err(failed) => {
                        let Some(buffers) = failed.buffers else {
                            return Err(Stop::Failed("a refused transfer kept its buffers".into()));
                        };
                        let (back, vec) = *buffers;
                        self.items.push(Item { id, vec, value, guard });
                        host = back;
                        let refused = Err::<(), _>(failed.error);
                        self.player.refused("a transfer in a capture", refused)?;
                    }
                }
            }
        }
        self.player.count("copies of host memory tried in captures");
        self.hosts.push((host, value));
        Ok(())
    }
}
