//! A thread of a program: draws its operations and knows what its vectors have to hold.

use crate::counts::Tally;
use crate::kernels::add_one;
use crate::random::Random;
use crate::shared::{Item, Pool, Shared, Step, Stop, Words, lock};
use crate::support::foreign::Foreign;
use aquifer::{DeviceVec, Error, ErrorKind, Event, Result, Stream};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Elements of a value whose fill is as many calls of the driver, inside of a gate all of them.
const WIDE: usize = 16;

/// What a thread has begun and ends later.
pub(crate) type Later<'a> = Box<dyn FnOnce(&mut Player<'a>) -> Step + 'a>;

pub(crate) struct Player<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) me: usize,
    pub(crate) random: Random,
    pub(crate) pool: Pool,
    /// A stream that other threads meet as the home of what they are handed, and no capture takes in.
    pub(crate) own: Stream,
    pub(crate) items: Vec<Item>,
    pub(crate) later: Vec<Later<'a>>,
    events: Vec<Event>,
    tally: Tally,
    trace: Vec<(usize, String)>,
}

impl Drop for Player<'_> {
    fn drop(&mut self) {
        lock(&self.shared.tally).join(&self.tally);
        lock(&self.shared.trace).append(&mut self.trace);
    }
}

impl<'a> Player<'a> {
    pub(crate) fn new(shared: &'a Shared, me: usize) -> Step<Self> {
        let own = shared.device.new_stream();
        let own = own.map_err(|error| shared.unexpected("making a stream", &error))?;
        let Some(pool) = lock(&shared.pool).clone() else { return Err(Stop::Lost) };
        Ok(Self {
            shared,
            me,
            random: Random::new(shared.seed, 1 + me as u64),
            pool,
            own,
            items: Vec::new(),
            later: Vec::new(),
            events: Vec::new(),
            tally: Tally::default(),
            trace: Vec::new(),
        })
    }

    pub(crate) fn play(mut self) -> Step {
        if self.shared.setup.takes_turns && !self.shared.setup.loses {
            return self.take_turns();
        }
        let fate = self.random.below(self.shared.setup.operations);
        for at in 0..self.shared.setup.operations {
            if self.shared.failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            if self.shared.setup.loses && self.me < 2 && at == fate {
                self.meet_fate()?;
            }
            self.step()?;
        }
        let shared = self.shared;
        let _call = shared.call();
        for later in std::mem::take(&mut self.later) {
            later(&mut self)?;
        }
        lock(&self.shared.items).append(&mut self.items);
        Ok(())
    }

    fn step(&mut self) -> Step {
        let drawn = self.random.below(34);
        if drawn == 33 && self.shared.simulator.is_some() {
            return self.undeclared();
        }
        let shared = self.shared;
        let _call = shared.call();
        match drawn {
            0 | 1 => self.fill(),
            2..5 => self.kernel(),
            5..7 => self.lend_by_guard(),
            7..9 => self.work_by_guard(),
            9 => self.guard_at_home(),
            10 => self.copy(),
            11 => self.move_home(),
            12..14 => self.read(),
            14 => self.write(),
            15 | 16 => self.transfer(),
            17 => self.scope(),
            18 => self.record(),
            19 => self.event(),
            20 => self.order(),
            21 => self.hand_over(),
            22 => self.take_over(),
            23 => self.fill_wide(),
            24 => self.wait(),
            25 => self.begin_or_end(),
            26 | 27 => self.detach(),
            _ => self.capture(),
        }
    }

    /// The draw of a thread that races is the same in each run; who is refused is not.
    pub(crate) fn says(&mut self, line: impl FnOnce() -> String) {
        let ticket = self.shared.ticket();
        self.trace.push((ticket, format!("{ticket:3} thread {}: {}", self.me, line())));
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        self.tally.add(what, 1);
    }

    /// What a call gave: `None` if a capture was in its way, which changes nothing.
    pub(crate) fn took<T>(&mut self, what: &'static str, result: Result<T>) -> Step<Option<T>> {
        match result {
            Ok(value) => {
                self.count(what);
                self.says(|| what.into());
                Ok(Some(value))
            }
            Err(error) if error.kind() == ErrorKind::Capture => {
                self.count("refused with Capture");
                self.says(|| format!("{what}: {error}"));
                Ok(None)
            }
            Err(error) => Err(self.shared.unexpected(what, &error)),
        }
    }

    /// A call that a capture has to be in the way of.
    pub(crate) fn refused<T>(&mut self, what: &'static str, result: Result<T>) -> Step {
        match self.took(what, result)? {
            None => {
                self.count("refused in a capture, as they must be");
                Ok(())
            }
            Some(_) => Err(Stop::Failed(format!("not refused: {what}"))),
        }
    }

    /// A call that no capture may be in the way of.
    pub(crate) fn sure<T>(&mut self, what: &'static str, result: Result<T>) -> Step<T> {
        result.map_err(|error| self.shared.unexpected(what, &error))
    }

    /// Lets other threads in between.
    pub(crate) fn pause(&mut self) {
        for _ in 0..self.random.below(3) {
            std::thread::yield_now();
        }
    }

    pub(crate) fn shared_stream(&mut self) -> Stream {
        let at = self.random.below(self.shared.setup.streams);
        self.shared.stream(at)
    }

    pub(crate) fn stream(&mut self) -> Stream {
        if self.random.one_in(5) { self.own.clone() } else { self.shared_stream() }
    }

    /// A new vector at home on `stream`.
    pub(crate) fn make(&mut self, stream: &Stream) -> Step<Option<Item>> {
        let Some(vec) = self.allocate(stream)? else { return Ok(None) };
        let mut item = Item { id: self.shared.number(), vec, value: 0, guard: None };
        Ok(self.fill_item(&mut item)?.then_some(item))
    }

    pub(crate) fn allocate(&mut self, stream: &Stream) -> Step<Option<Words>> {
        let (length, pool) = (self.shared.setup.length, Arc::new(self.pool.clone()));
        let made = DeviceVec::zeroed_in(stream, length, pool);
        let made = self.took("vectors made", made)?;
        if let Some(vec) = &made {
            let (home, address) = (vec.stream().id(), vec.as_device_ptr());
            self.says(|| format!("  at {address:#x}, at home on stream {home}"));
        }
        Ok(made)
    }

    pub(crate) fn fill_item(&mut self, item: &mut Item) -> Step<bool> {
        let value = self.shared.value();
        let filled = item.vec.fill(value);
        let id = item.id;
        self.says(|| format!("fills vector {id} with {value:#x}"));
        let filled = self.took("fills", filled)?.is_some();
        if filled {
            item.value = value;
        }
        Ok(filled)
    }

    /// A vector of this thread, by its place; one that is made if there is none.
    pub(crate) fn item(&mut self) -> Step<Option<usize>> {
        if self.items.is_empty() || (self.items.len() < 4 && self.random.one_in(4)) {
            let stream = self.stream();
            let made = self.make(&stream)?;
            self.items.extend(made);
        }
        if self.items.is_empty() {
            return Ok(None);
        }
        let at = self.random.below(self.items.len());
        // Whatever is done with it, a guard is no longer in use.
        self.items[at].guard = None;
        Ok(Some(at))
    }

    fn fill(&mut self) -> Step {
        let Some(at) = self.item()? else { return Ok(()) };
        let mut item = self.items.swap_remove(at);
        let filled = self.fill_item(&mut item);
        self.items.push(item);
        filled.map(drop)
    }

    fn kernel(&mut self) -> Step {
        let (Some(at), stream) = (self.item()?, self.stream()) else { return Ok(()) };
        let on = if self.random.one_in(3) { self.items[at].vec.stream().clone() } else { stream };
        let lent = !self.items[at].is_at(&on);
        let launched = add_one(&on, &mut self.items[at].vec);
        let (id, on) = (self.items[at].id, on.id());
        self.says(|| format!("a kernel on vector {id} on stream {on}"));
        let what = if lent { "kernels away from home" } else { "kernels at home" };
        if self.took(what, launched)?.is_some() {
            self.items[at].value = self.items[at].value.wrapping_add(1);
        }
        Ok(())
    }

    fn lend_by_guard(&mut self) -> Step {
        let (Some(at), stream) = (self.item()?, self.stream()) else { return Ok(()) };
        let id = self.items[at].id;
        if self.shared.setup.pinned && self.random.one_in(8) {
            // It is waited for by an event of the whole context, on another thread at least.
            let mine = self.shared.device.per_thread_stream();
            let mine = self.sure("the thread's own stream", mine)?;
            let lent = self.items[at].vec.on_mut(&mine).map(drop);
            self.says(|| format!("a guard of vector {id} for the thread's own stream"));
            return self.took("guards for a thread's own stream", lent).map(drop);
        }
        let lent = self.items[at].vec.on_mut(&stream).map(drop);
        let on = stream.id();
        self.says(|| format!("a guard of vector {id} for stream {on}"));
        if self.took("guards", lent)?.is_some() {
            self.items[at].guard = Some(stream);
        }
        Ok(())
    }

    fn work_by_guard(&mut self) -> Step {
        let lent = self.items.iter().position(|item| item.guard.is_some());
        let Some(at) = lent else { return self.guard_at_home() };
        let Some(stream) = self.items[at].guard.clone() else { return Ok(()) };
        let worked = self.items[at].work_at(&stream);
        let (id, on) = (self.items[at].id, stream.id());
        self.says(|| format!("work by the guard of vector {id} on stream {on}"));
        if self.took("work by guards", worked)?.is_some() {
            self.items[at].value = self.items[at].value.wrapping_add(1);
        }
        if self.random.one_in(2) {
            self.items[at].guard = None;
        }
        Ok(())
    }

    fn guard_at_home(&mut self) -> Step {
        let Some(at) = self.item()? else { return Ok(()) };
        let home = self.items[at].vec.stream().clone();
        let lent = self.items[at].vec.on_mut(&home).map(drop);
        let id = self.items[at].id;
        self.says(|| format!("a guard of vector {id} at home"));
        if self.took("guards at home", lent)?.is_none() {
            return Ok(());
        }
        self.items[at].guard = Some(home);
        self.work_by_guard()
    }

    fn copy(&mut self) -> Step {
        let (Some(_), Some(_)) = (self.item()?, self.item()?) else { return Ok(()) };
        if self.items.len() < 2 {
            return Ok(());
        }
        let source = self.random.below(self.items.len());
        let mut item = self.items.swap_remove(source);
        let at = self.random.below(self.items.len());
        (item.guard, self.items[at].guard) = (None, None);
        let copied = self.items[at].vec.copy_from(&item.vec);
        let (from, to, value) = (item.id, self.items[at].id, item.value);
        self.items.push(item);
        self.says(|| format!("copies vector {from} to vector {to}"));
        if self.took("copies of the device", copied)?.is_some() {
            self.items[at].value = value;
        }
        Ok(())
    }

    fn move_home(&mut self) -> Step {
        let (Some(at), stream) = (self.item()?, self.stream()) else { return Ok(()) };
        let moved = self.items[at].vec.set_stream(&stream);
        let (id, to) = (self.items[at].id, stream.id());
        self.says(|| format!("moves vector {id} to stream {to}"));
        self.took("homes moved", moved).map(drop)
    }

    fn record(&mut self) -> Step {
        let stream = self.stream();
        let Some(event) = self.took("events recorded", stream.record())? else { return Ok(()) };
        match self.random.one_in(2) {
            true => lock(&self.shared.events).push(event),
            false => self.events.push(event),
        }
        Ok(())
    }

    fn event(&mut self) -> Step {
        let handed = lock(&self.shared.events).pop();
        if handed.is_some() {
            self.count("events of other threads");
        }
        let Some(event) = handed.or_else(|| self.events.pop()) else { return self.record() };
        match self.random.below(4) {
            0 => {
                let stream = self.stream();
                self.took("waits for events", stream.wait(&event))?;
            }
            1 => {
                self.took("questions of events", event.is_complete())?;
            }
            2 => {
                self.took("events waited for", event.synchronize())?;
            }
            _ => {}
        }
        if self.random.one_in(2) {
            lock(&self.shared.events).push(event);
        }
        Ok(())
    }

    fn order(&mut self) -> Step {
        let (stream, other) = (self.stream(), self.stream());
        self.took("streams put in order", stream.wait_for(&other)).map(drop)
    }

    /// Lets go of a stream that another library destroys then. It has made another one, which takes the place.
    fn detach(&mut self) -> Step {
        let Some((at, foreign)) = lock(&self.shared.foreign).pop() else { return self.order() };
        let stream = self.shared.stream(at);
        let on = stream.id();
        self.says(|| format!("detaches stream {on}"));
        if self.took("streams detached", stream.detach())?.is_none() {
            lock(&self.shared.foreign).push((at, foreign));
            return Ok(());
        }
        self.sure("the owner's destroying it", foreign.destroy())?;
        let made = Foreign::new(&self.shared.device);
        let made = self.sure("another library's stream", made)?;
        let stream = self.sure("bringing it", made.stream())?;
        lock(&self.shared.streams)[at] = stream;
        lock(&self.shared.foreign).push((at, made));
        Ok(())
    }

    fn hand_over(&mut self) -> Step {
        let Some(at) = self.item()? else { return Ok(()) };
        let item = self.items.swap_remove(at);
        let id = item.id;
        self.says(|| format!("hands vector {id} over"));
        self.count("vectors handed over");
        lock(&self.shared.items).push(item);
        Ok(())
    }

    fn take_over(&mut self) -> Step {
        let Some(item) = lock(&self.shared.items).pop() else { return self.hand_over() };
        let (id, drops) = (item.id, self.random.one_in(2));
        self.says(|| format!("takes vector {id} over; drops it: {drops}"));
        if drops {
            self.count("vectors dropped by another thread");
        } else {
            self.items.push(item);
        }
        Ok(())
    }

    /// A capture that begins in the middle of it would have a part of it.
    fn fill_wide(&mut self) -> Step {
        let stream = self.shared_stream();
        let pool = Arc::new(self.pool.clone());
        let made = DeviceVec::<[u32; WIDE]>::zeroed_in(&stream, 8, pool);
        let Some(mut vec) = self.took("wide vectors", made)? else { return Ok(()) };
        let first = self.shared.value();
        let value = std::array::from_fn(|at| first.wrapping_add(at as u32));
        let on = stream.id();
        self.says(|| format!("fills a wide vector on stream {on} with {value:x?}"));
        let mut wanted = [0; WIDE];
        for _ in 0..2 {
            if self.took("wide fills", vec.fill(value))?.is_some() {
                wanted = value;
            }
        }
        let Some(found) = self.took("wide reads", vec.to_vec())? else { return Ok(()) };
        match found.iter().find(|found| **found != wanted) {
            Some(found) => Err(Stop::Failed(format!("wrong data: {found:x?}, not {wanted:x?}"))),
            None => Ok(()),
        }
    }

    fn wait(&mut self) -> Step {
        if self.shared.setup.pinned && self.random.one_in(4) {
            let waited = self.shared.device.synchronize();
            return self.took("waits for the device", waited).map(drop);
        }
        let stream = self.stream();
        self.took("waits for streams", stream.synchronize()).map(drop)
    }

    fn begin_or_end(&mut self) -> Step {
        if !self.later.is_empty() {
            let at = self.random.below(self.later.len());
            return self.later.swap_remove(at)(self);
        }
        if let Some(at) = self.item()? {
            let id = self.items[at].id;
            self.says(|| format!("drops vector {id}"));
            drop(self.items.swap_remove(at));
        }
        Ok(())
    }

    /// An error of one's own, to give a capture up with.
    pub(crate) fn own_error() -> Error {
        Error::new(ErrorKind::InvalidArgument, "given up")
    }
}
