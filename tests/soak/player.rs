//! One thread of a program: it draws operations and checks what comes of each.

use crate::ballast::Ballast;
use crate::kernels;
use crate::random::Random;
use crate::setup::Pool;
use crate::shared::{Item, Shared, Step, lock, unexpected};
use crate::tally::add_statistics;
use crate::turns::Participant;
use aquifer::{DeviceResource, DeviceVec, Error, ErrorKind, Stream};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

thread_local! {
    /// Vectors that are dropped while the thread is torn down, before or after the pool's own.
    static STASH: RefCell<Vec<Item>> = const { RefCell::new(Vec::new()) };
}

/// Elements that are written of a vector which is one of many large ones.
const HEAD: usize = 64;

/// Which errors an allocation may give, besides running out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Room,
    /// A capture runs.
    Capture,
    /// A driver call was made to fail.
    Trouble,
}

/// What an allocation came to.
pub(crate) enum Given {
    Memory(Item),
    Refused,
    /// The program has let go of its pool.
    NoPool,
}

pub(crate) struct Player<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) random: Random,
    pub(crate) items: Vec<Item>,
    ballast: Ballast,
    pub(crate) participant: Participant<'a>,
    pub(crate) me: usize,
    pub(crate) in_turns: bool,
}

impl<'a> Player<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        participant: Participant<'a>,
        me: usize,
        in_turns: bool,
    ) -> Self {
        let mut random = Random::new(shared.seed, me as u64 + 2);
        if random.one_in(2) {
            // Registered before anything of the pool's, so torn down on the other side of it.
            STASH.with(|_| ());
        }
        Self {
            shared,
            random,
            items: Vec::new(),
            ballast: Ballast::default(),
            participant,
            me,
            in_turns,
        }
    }

    pub(crate) fn play(&mut self) -> Step {
        for number in 0..self.shared.setup.operations[self.me] {
            if self.shared.has_failed() {
                return Ok(());
            }
            self.operation()
                .and_then(|()| self.shared.verdict())
                .map_err(|failure| format!("thread {}, operation {number}: {failure}", self.me))?;
            if let (true, Some(waits)) = (self.in_turns, self.shared.waits()) {
                waits.join();
            }
            self.participant.pass();
        }
        // What is left goes to others, or with this thread.
        let captured = *lock(&self.shared.captured);
        for item in std::mem::take(&mut self.items) {
            match self.random.below(3) {
                _ if captured.is_some_and(|stream| item.knows(stream)) => {
                    lock(&self.shared.mailbox).push(item);
                }
                0 => lock(&self.shared.mailbox).push(item),
                1 => {
                    self.shared.count("dropped by a thread's end");
                    STASH.with(|stash| stash.borrow_mut().push(item));
                }
                _ => self.drop_item(item),
            }
        }
        Ok(())
    }

    pub(crate) fn says(&self, line: impl FnOnce() -> String) {
        self.shared.says(|| format!("thread {}: {}", self.me, line()));
    }

    fn operation(&mut self) -> Step {
        if self.shared.setup.captures && self.random.one_in(10) {
            return self.capture();
        }
        if self.shared.setup.injects && self.random.one_in(6) {
            return self.trouble();
        }
        #[cfg(unix)]
        if self.shared.setup.forks && self.random.one_in(12) {
            return self.fork();
        }
        let pattern = self.shared.setup.pattern;
        if let Some(pattern) = pattern.filter(|_| !self.random.one_in(4)) {
            return self.pattern(pattern);
        }
        let drawn = self.random.below(74);
        // Those draw sizes of their own.
        if let (Some(pattern), Some(_)) = (pattern, self.shared.setup.one_size())
            && matches!(drawn, 18..20 | 59 | 61..63)
        {
            return self.pattern(pattern);
        }
        match drawn {
            0..18 => self.make(),
            18..20 => self.churn(),
            20..28 => {
                if let Some(item) = self.take() {
                    self.drop_item(item);
                }
                Ok(())
            }
            28..31 => self.fill(),
            31..35 => self.kernel(),
            35..38 => self.copy(),
            38..41 => self.guard(),
            41..44 => self.move_home(),
            44..47 => self.read(),
            47..49 => self.order(),
            49..51 => self.wait(),
            51..56 => self.hand_over(),
            56 => self.replace_stream(),
            57 => self.trim(),
            58 => self.drop_the_pool(),
            59 => self.ask_for_too_much(),
            60 => self.statistics(),
            61..63 => self.grow(),
            63 => self.drop_many(),
            64 | 65 if self.shared.setup.foreign > 0 => self.detach(),
            66 | 67 => self.share(),
            68 | 69 if self.shared.setup.waits => self.upload(),
            70..74 if self.shared.setup.managed => self.manage(),
            _ => self.make(),
        }
    }

    /// A stream that is not in capture.
    pub(crate) fn stream(&mut self) -> Option<Stream> {
        let captured = *lock(&self.shared.captured);
        let free: Vec<Stream> = lock(&self.shared.streams)
            .iter()
            .filter(|stream| Some(stream.id()) != captured)
            .cloned()
            .collect();
        (!free.is_empty()).then(|| free[self.random.below(free.len())].clone())
    }

    pub(crate) fn pool(&self) -> Option<(Pool, Arc<dyn DeviceResource>)> {
        lock(&self.shared.pool).clone()
    }

    /// Takes one of its vectors that has nothing to do with a capture.
    pub(crate) fn take(&mut self) -> Option<Item> {
        let captured = *lock(&self.shared.captured);
        let free: Vec<usize> = (0..self.items.len())
            .filter(|&index| captured.is_none_or(|stream| !self.items[index].knows(stream)))
            .collect();
        (!free.is_empty()).then(|| self.items.swap_remove(free[self.random.below(free.len())]))
    }

    /// Elements of a request. Most programs have a few sizes that come back, as programs do.
    pub(crate) fn length(&mut self) -> usize {
        let scale = self.shared.setup.scale / size_of::<u32>();
        let sizes = &self.shared.setup.lengths;
        if self.shared.setup.one_size().is_some() {
            return sizes[0];
        }
        if !sizes.is_empty() && !self.random.one_in(6) {
            return sizes[self.random.below(sizes.len())];
        }
        let bound = match self.random.below(24) {
            0..14 => scale / 32,
            14..20 => scale / 8,
            20..23 => scale / 2,
            _ => return scale,
        };
        1 + self.random.below(bound)
    }

    pub(crate) fn allocate(
        &mut self,
        stream: &Stream,
        length: usize,
        expected: Expected,
    ) -> Step<Given> {
        let Some((pool, resource)) = self.pool() else { return Ok(Given::NoPool) };
        match DeviceVec::with_capacity_in(stream, length, resource) {
            Ok(vec) => {
                self.says(|| {
                    let (bytes, at) = (vec.capacity() * 4, vec.as_device_ptr());
                    format!("{bytes} bytes at {at:#x} for stream {}", stream.id())
                });
                self.shared.count("vectors made");
                Ok(Given::Memory(self.shared.item(vec)))
            }
            Err(error) => {
                self.says(|| format!("no {} bytes for {stream}: {error}", length * 4));
                self.judge(&pool, &error, length * size_of::<u32>(), expected)?;
                Ok(Given::Refused)
            }
        }
    }

    /// Whether a refusal is one that the pool may give.
    fn judge(&self, pool: &Pool, error: &Error, bytes: usize, expected: Expected) -> Step {
        let setup = &self.shared.setup;
        let kind = error.kind();
        let unexplained =
            |why: &str| Err(format!("{bytes} bytes were refused though {why}: {kind:?}: {error}"));
        match (kind, expected) {
            (ErrorKind::Simulation, _) => return unexplained("nothing is wrong"),
            (ErrorKind::OutOfMemory, _) => self.shared.count("out of memory"),
            (ErrorKind::Capture, Expected::Capture) => {
                self.shared.count("allocations refused in captures");
                return Ok(());
            }
            (_, Expected::Trouble) => return Ok(()),
            _ => return unexplained("only memory can be short"),
        }
        let exact = self.in_turns
            && expected == Expected::Room
            && lock(&self.shared.captured).is_none()
            && !self.shared.may_leak.load(Ordering::Relaxed)
            // An upstream that calls back frees and trims while the pool looks.
            && self.shared.callbacks.is_none()
            && !self.shared.waits().is_some_and(|waits| waits.has_company())
            && setup.climbs_all();
        if !exact {
            return Ok(());
        }
        let statistics = pool.statistics();
        if bytes <= statistics.largest_free {
            return unexplained(&format!("{} lie free in one piece", statistics.largest_free));
        }
        if let Some(maximum) = setup.maximum.filter(|_| setup.maximum_is_the_limit()) {
            if bytes.saturating_add(statistics.reserved) <= maximum {
                return unexplained(&format!("{} of {maximum} are reserved", statistics.reserved));
            }
            if bytes <= maximum && self.shared.alive() == 0 {
                return unexplained("nobody holds anything");
            }
        }
        Ok(())
    }

    /// Writes a vector for the first time.
    pub(crate) fn write(&mut self, mut item: Item) -> Step {
        let (tag, mut length) = (self.shared.tag(), item.vec.capacity());
        if self.shared.setup.one_size().is_some() {
            length = HEAD;
        }
        if self.shared.simulator.is_none() && self.random.one_in(3) {
            let home = item.vec.stream().clone();
            self.ballast.load(self.shared, &home)?;
        }
        item.vec.resize(length, tag).map_err(unexpected("writing a new vector"))?;
        item.tag = Some(tag);
        self.items.push(item);
        Ok(())
    }

    pub(crate) fn make(&mut self) -> Step {
        let Some(stream) = self.stream() else { return Ok(()) };
        self.make_on(&stream)
    }

    /// One size, made and dropped again and again on one stream: what a thread keeps for itself.
    fn churn(&mut self) -> Step {
        let Some(stream) = self.stream() else { return Ok(()) };
        let length = 1 + self.length() / 4;
        let expected = self.expected();
        for _ in 0..2 + self.random.below(5) {
            let Given::Memory(item) = self.allocate(&stream, length, expected)? else {
                return Ok(());
            };
            self.write(item)?;
            if !self.random.one_in(4)
                && let Some(item) = self.items.pop()
            {
                self.drop_item(item);
            }
        }
        Ok(())
    }

    fn expected(&self) -> Expected {
        match *lock(&self.shared.captured) {
            Some(_) => Expected::Capture,
            None => Expected::Room,
        }
    }

    pub(crate) fn make_on(&mut self, stream: &Stream) -> Step {
        let length = self.length();
        let expected = self.expected();
        match self.allocate(stream, length, expected)? {
            Given::Memory(item) => self.write(item),
            Given::Refused | Given::NoPool => Ok(()),
        }
    }

    pub(crate) fn drop_item(&self, item: Item) {
        self.says(|| format!("{:#x} is freed on stream {}", item.vec.as_device_ptr(), item.home()));
        drop(item);
    }

    fn drop_many(&mut self) -> Step {
        for _ in 0..self.items.len() {
            if let Some(item) = self.take() {
                self.drop_item(item);
            }
        }
        Ok(())
    }

    fn fill(&mut self) -> Step {
        let Some(mut item) = self.take() else { return Ok(()) };
        let tag = self.shared.tag();
        item.vec.fill(tag).map_err(unexpected("filling"))?;
        (item.tag, item.lent) = (Some(tag), Vec::new());
        self.items.push(item);
        Ok(())
    }

    /// A kernel at home, or on another stream that the vector is lent to.
    fn kernel(&mut self) -> Step {
        let Some(mut item) = self.take() else { return Ok(()) };
        let Some(stream) = self.stream() else { return Ok(()) };
        kernels::add_one(&stream, &mut item.vec).map_err(unexpected("a kernel"))?;
        self.shared.count("kernels");
        item.tag = item.tag.map(|tag| tag.wrapping_add(1));
        item.lent.push(stream.id());
        self.items.push(item);
        Ok(())
    }

    fn copy(&mut self) -> Step {
        let (Some(mut a), Some(mut b)) = (self.take(), self.take()) else { return Ok(()) };
        if a.vec.len() > b.vec.len() {
            std::mem::swap(&mut a, &mut b);
        }
        let length = a.vec.len();
        let source = b.vec.slice(..length).map_err(unexpected("slicing"))?;
        a.vec.copy_from(&source).map_err(unexpected("copying"))?;
        self.shared.count("copies");
        b.lent.push(a.home());
        (a.tag, a.lent) = (b.tag, Vec::new());
        self.items.extend([a, b]);
        Ok(())
    }

    /// A reader's guard that is dropped or forgotten; its use stays pending.
    fn guard(&mut self) -> Step {
        let Some(mut item) = self.take() else { return Ok(()) };
        let Some(stream) = self.stream() else { return Ok(()) };
        let guard = item.vec.on(&stream).map_err(unexpected("lending"))?;
        self.shared.count("guards");
        if self.random.one_in(2) {
            std::mem::forget(guard);
        }
        item.lent.push(stream.id());
        if self.random.one_in(2) {
            let other = self.random.one_in(2);
            if let Some(stream) = if other { self.stream() } else { None } {
                std::mem::forget(item.vec.on_mut(&stream).map_err(unexpected("lending to write"))?);
                item.lent.push(stream.id());
            }
        }
        self.items.push(item);
        Ok(())
    }

    fn move_home(&mut self) -> Step {
        let Some(mut item) = self.take() else { return Ok(()) };
        let Some(stream) = self.stream() else { return Ok(()) };
        if item.home() != stream.id() {
            item.vec.set_stream(&stream).map_err(unexpected("moving the home"))?;
            self.shared.count("homes moved");
            item.lent.clear();
        }
        self.items.push(item);
        Ok(())
    }

    fn read(&mut self) -> Step {
        let Some(item) = self.take() else { return Ok(()) };
        item.check()?;
        self.shared.count("reads that agreed");
        self.items.push(item);
        Ok(())
    }

    /// One stream is ordered after another by the program itself.
    fn order(&mut self) -> Step {
        let Some(from) = self.stream() else { return Ok(()) };
        if self.random.one_in(2) {
            let event = from.record().map_err(unexpected("recording"))?;
            lock(&self.shared.events).push(event);
        }
        let Some(to) = self.stream() else { return Ok(()) };
        let mut events = lock(&self.shared.events);
        match events.len() {
            0 => to.wait_for(&from).map_err(unexpected("waiting for a stream")),
            count => {
                let event = events.swap_remove(self.random.below(count));
                drop(events);
                // A question lets the simulated device run a little.
                event.is_complete().map_err(unexpected("asking"))?;
                to.wait(&event).map_err(unexpected("waiting for an event"))
            }
        }
    }

    /// The host waits.
    fn wait(&mut self) -> Step {
        if self.random.one_in(3) {
            let captured = lock(&self.shared.captured);
            return match *captured {
                None => self.shared.device.synchronize().map_err(unexpected("waiting for all")),
                Some(_) => Ok(()),
            };
        }
        let Some(stream) = self.stream() else { return Ok(()) };
        stream.synchronize().map_err(unexpected("waiting"))
    }

    fn hand_over(&mut self) -> Step {
        let captured = *lock(&self.shared.captured);
        if self.random.one_in(2) {
            if let Some(item) = self.take() {
                lock(&self.shared.mailbox).push(item);
            }
            return Ok(());
        }
        let mut mailbox = lock(&self.shared.mailbox);
        let free = |item: &Item| captured.is_none_or(|stream| !item.knows(stream));
        let Some(index) = mailbox.iter().position(free) else { return Ok(()) };
        let item = mailbox.swap_remove(index);
        drop(mailbox);
        self.shared.count("handed to a thread");
        if self.random.one_in(2) {
            self.drop_item(item);
        } else {
            self.items.push(item);
        }
        Ok(())
    }

    /// A stream goes, with whatever is pending on it.
    fn replace_stream(&mut self) -> Step {
        let Some(old) = self.stream() else { return Ok(()) };
        let new = self.shared.device.new_stream().map_err(unexpected("making a stream"))?;
        self.says(|| format!("stream {} is dropped for stream {}", old.id(), new.id()));
        self.replace(&old, &new);
        self.shared.count("streams replaced");
        Ok(())
    }

    /// Whether the program had `old`, which it has no more.
    pub(crate) fn replace(&self, old: &Stream, new: &Stream) -> bool {
        let mut streams = lock(&self.shared.streams);
        let mut found = false;
        for stream in streams.iter_mut().filter(|stream| *stream == old) {
            *stream = new.clone();
            found = true;
        }
        found
    }

    pub(crate) fn trim(&mut self) -> Step {
        let Some((pool, _)) = self.pool() else { return Ok(()) };
        let keep = self.random.below(self.shared.setup.scale);
        let keep = if self.random.one_in(2) { 0 } else { keep };
        let captured = lock(&self.shared.captured).is_some();
        self.says(|| format!("trim to {keep} bytes"));
        let trimmed = match self.random.one_in(2) {
            true => pool.trim(keep),
            false => pool.wait_and_trim(keep),
        };
        match trimmed {
            Ok(_) => self.shared.count("trims"),
            Err(error) if captured && error.kind() == ErrorKind::Capture => {}
            Err(error) => return Err(unexpected("trimming")(error)),
        }
        Ok(())
    }

    /// The program lets go of the pool; its vectors live on.
    fn drop_the_pool(&mut self) -> Step {
        // Not with captures: a pool that goes while a stream of its frees is in one can only leak.
        if self.random.one_in(8) && !self.shared.setup.captures {
            *lock(&self.shared.managed) = None;
            // An upstream may ask for the pool as it goes.
            let Some((pool, _resource)) = lock(&self.shared.pool).take() else { return Ok(()) };
            let found = pool.statistics();
            add_statistics(&mut lock(&self.shared.tally), &found);
            self.shared.judge_reserved(&found)?;
            self.shared.count("pools dropped first");
        }
        Ok(())
    }

    fn ask_for_too_much(&mut self) -> Step {
        let (Some(stream), Some((_, resource))) = (self.stream(), self.pool()) else {
            return Ok(());
        };
        let scale = self.shared.setup.scale;
        // A GPU has room for what is too much for the simulated device.
        let bounded = self.shared.setup.maximum.is_some() || self.shared.simulator.is_some();
        let least = if bounded { 8 * scale } else { 1 << 41 };
        let bytes = self.random.pick(&[least, 1 << 41, isize::MAX as usize - 4096, usize::MAX]);
        let error = match DeviceVec::<u8>::with_capacity_in(&stream, bytes, resource) {
            Ok(_) => return Err(format!("{bytes} bytes were given")),
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::OutOfMemory | ErrorKind::InvalidArgument => Ok(()),
            ErrorKind::Capture if lock(&self.shared.captured).is_some() => Ok(()),
            _ => Err(unexpected("asking for too much")(error)),
        }
    }

    fn statistics(&mut self) -> Step {
        let Some((pool, _)) = self.pool() else { return Ok(()) };
        let found = pool.statistics();
        if found.cached > 0 {
            self.shared.count("blocks kept by a thread");
        }
        let mut wrong = Vec::new();
        if self.in_turns && !self.shared.may_leak.load(Ordering::Relaxed) {
            let alive = self.shared.alive();
            for (what, right) in [
                ("free is not reserved less live", found.free + found.live == found.reserved),
                ("more cached than free", found.cached <= found.free),
                ("a free block larger than all", found.largest_free <= found.free),
                (
                    "live blocks are not those alive",
                    found.live_blocks == alive + self.shared.waiting(),
                ),
                ("the peak was passed", found.reserved <= found.peak_reserved),
            ] {
                if !right {
                    wrong.push(what);
                }
            }
        }
        if self.shared.setup.maximum.is_some_and(|maximum| found.peak_reserved > maximum) {
            wrong.push("the maximum was passed");
        }
        if wrong.is_empty() {
            return self.shared.judge_reserved(&found);
        }
        Err(format!("{}: {found:?}, {} alive", wrong.join(", "), self.shared.alive()))
    }

    /// A vector outgrows its memory.
    fn grow(&mut self) -> Step {
        let Some(mut item) = self.take() else { return Ok(()) };
        let (Some(tag), Some((pool, _))) = (item.tag, self.pool()) else {
            self.items.push(item);
            return Ok(());
        };
        let length = item.vec.len() + 1 + self.random.below(item.vec.len());
        let expected = self.expected();
        let before = item.vec.as_device_ptr();
        match item.vec.resize(length, tag) {
            // The old memory was freed, and its uses waited for. What fits in it waits for what it writes.
            Ok(()) if item.vec.as_device_ptr() != before => item.lent.clear(),
            Ok(()) => {}
            Err(error) => self.judge(&pool, &error, length * size_of::<u32>(), expected)?,
        }
        self.items.push(item);
        Ok(())
    }
}
