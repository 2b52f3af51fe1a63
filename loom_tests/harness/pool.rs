//! A pool of the crate on the model's driver.

use super::driver::{Driver, Event, STREAMS};
use aquifer::models::{
    Block, Failure, Gate, GateOwner, MapFailure, Mapped, MappedEnd, MappedMemory, MissStep,
    Patience, Pool, PoolStatistics, Settings, SizeLimits, Upstream,
};
use loom::thread::ThreadId;
use std::fmt;
use std::sync::{Arc, Mutex};

/// Bytes of a block, and of a unit of the pool's heaps: no model needs more.
pub const UNIT: usize = 256;

/// What the pool stands on.
pub struct PoolDriver {
    driver: Arc<Driver>,
    /// Whether the pool's question for a capture reaches the driver: it costs a choice of loom's
    /// each time, which only the models of captures need.
    captures: bool,
    /// Whether its memory is apart from its addresses.
    handles: bool,
}

#[derive(Clone)]
pub struct Stream {
    pub index: usize,
    driver: Arc<Driver>,
    /// Its gate, in the models of captures: each call that names the stream enters it.
    gate: Option<Arc<Gate<Owner, ()>>>,
    /// As [`PoolDriver::captures`], for the question whether the stream is abandoned.
    goes: bool,
}

/// A call under way, inside of a stream's gate.
struct Entered<'a>(Option<&'a Gate<Owner, ()>>);

/// The thread of a capture.
#[derive(Debug)]
struct Owner(ThreadId);

impl Owner {
    fn here() -> Self {
        Self(loom::thread::current().id())
    }
}

impl GateOwner for Owner {
    fn is_here(&self) -> bool {
        self.0 == loom::thread::current().id()
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.into_iter().for_each(|gate| gate.end_call(false));
    }
}

impl Stream {
    /// As the crate's streams: an error while another thread's capture has the stream.
    fn enter(&self) -> Result<Entered<'_>, Trouble> {
        let Some(gate) = &self.gate else { return Ok(Entered(None)) };
        // The pool may have locks, so its streams do not wait for a capture.
        let entered = gate.begin_call(&Patience::none()).map_err(|_| Trouble::Captured)?;
        Ok(Entered(entered.owner.is_none().then_some(&**gate)))
    }
}

#[derive(Debug)]
pub enum Trouble {
    NoMemory,
    Refused,
    Captured,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Upstream for PoolDriver {
    type Stream = Stream;
    type Event = Event;
    type Block = u64;
    type Error = Trouble;

    fn id(stream: &Stream) -> u64 {
        stream.index as u64 + 1
    }

    fn clone_pool_handle(stream: &Stream) -> Stream {
        stream.clone()
    }

    fn is_abandoned(stream: &Stream) -> bool {
        stream.goes && stream.driver.is_abandoned(stream.index)
    }

    fn drop_pool_handle(stream: Stream) {
        if stream.goes && stream.driver.is_abandoned(stream.index) {
            stream.driver.destroy(stream.index);
        }
    }

    fn record(&self, stream: &Stream) -> Result<Event, Trouble> {
        let _entered = stream.enter()?;
        self.driver.try_record(stream.index).map_err(|_| Trouble::Refused)
    }

    fn record_again(&self, stream: &Stream, event: &mut Event) -> Result<(), Trouble> {
        *event = self.record(stream)?;
        Ok(())
    }

    fn wait(&self, stream: &Stream, event: &Event) -> Result<(), Trouble> {
        let _entered = stream.enter()?;
        let waited = match self.captures {
            true => self.driver.try_wait(stream.index, event),
            false => self.driver.wait(stream.index, event),
        };
        waited.map_err(|_| Trouble::Refused)
    }

    fn is_passed(&self, event: &Event) -> Result<bool, Trouble> {
        Ok(self.driver.is_complete(event))
    }

    fn synchronize(&self, event: &Event) -> Result<(), Trouble> {
        self.driver.pass(event);
        Ok(())
    }

    fn is_capturing(&self, stream: &Stream) -> Result<bool, Trouble> {
        if !self.captures {
            return Ok(false);
        }
        let Ok(_entered) = stream.enter() else { return Ok(true) };
        Ok(self.driver.is_stream_capturing(stream.index))
    }

    fn check_device(&self, _: &Stream) -> Result<(), Trouble> {
        Ok(())
    }

    fn allocate(&self, stream: Option<&Stream>, bytes: usize) -> Result<(u64, u64), Trouble> {
        let index = stream.map(|stream| stream.index);
        let address = self.driver.allocate(index, bytes).ok_or(Trouble::NoMemory)?;
        Ok((address, address))
    }

    fn is_exhausted(error: &Trouble) -> bool {
        matches!(error, Trouble::NoMemory)
    }

    fn is_captured(error: &Trouble) -> bool {
        matches!(error, Trouble::Captured)
    }

    fn mapped(&self) -> Option<Mapped<'_, Self>> {
        self.handles.then_some(self)
    }

    fn deallocate(&self, stream: Option<&Stream>, address: u64) {
        self.driver.deallocate(stream.map(|stream| stream.index), address);
    }

    fn report_leak(&self, _: u64, bytes: usize, _: &Failure<Trouble>) {
        self.driver.leak(bytes);
    }

    fn is_forked(&self) -> bool {
        false
    }
}

/// Handles of one unit and more.
impl MappedMemory for PoolDriver {
    type Stream = Stream;
    type Error = Trouble;

    fn granularity(&self) -> u64 {
        UNIT as u64
    }

    fn free(&self) -> Option<u64> {
        None
    }

    fn reserve(&self, bytes: u64) -> Result<u64, Trouble> {
        Ok(self.driver.reserve(bytes))
    }

    fn create(&self, bytes: u64) -> Result<u64, Trouble> {
        self.driver.create(bytes as usize).ok_or(Trouble::NoMemory)
    }

    fn release(&self, handle: u64, _: u64) {
        self.driver.release(handle);
    }

    fn map(&self, address: u64, bytes: u64, handle: u64) -> Result<(), MapFailure<Trouble>> {
        self.driver.map(address, bytes as usize, handle);
        Ok(())
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), Trouble> {
        self.driver.unmap(address, bytes as usize);
        Ok(())
    }

    fn end(&self, stream: Option<&Stream>, end: MappedEnd) {
        if let Some(stream) = stream {
            self.driver.finish(stream.index);
        }
        for (address, bytes) in end.vacated {
            self.driver.unmap(address, bytes as usize);
        }
        for (address, bytes, handle) in end.handles {
            self.driver.unmap(address, bytes as usize);
            self.driver.release(handle);
        }
        for (address, bytes) in end.reservations {
            self.driver.unreserve(address, bytes);
        }
    }
}

/// A pool, its streams, and what `begin` took from it for the roles.
pub struct Fixture {
    pub driver: Arc<Driver>,
    pool: Option<Arc<Pool<PoolDriver>>>,
    streams: Vec<Stream>,
    /// Blocks for the roles to free, each one's by its place.
    pub held: Vec<Block>,
    /// A graph that `begin` recorded.
    pub graph: usize,
    /// The graph pool of all captures, if they have one in common.
    graph_pool: Option<u16>,
    /// What captures have allocated and not freed: addresses and bytes. std's lock: loom need not know of it.
    recorded: Mutex<Vec<(u64, usize)>>,
    /// What the roles took for good. std's lock: loom need not know of it.
    taken: Mutex<Vec<(usize, Block)>>,
    /// The gate of all streams, for pools that sleep, and how often the pool has passed it to fall asleep or to wake.
    gate: loom::sync::Mutex<usize>,
}

/// A fixture that is still to be built.
pub struct Plan {
    pub settings: Settings,
    pub captures: bool,
    pub goes: bool,
    pub handles: bool,
}

/// Units of memory that the pool may take, one at a time, by these steps; no magazines.
pub fn plan(units: usize, steps: &[MissStep]) -> Plan {
    let settings = Settings {
        limits: SizeLimits::new(units * UNIT, units * UNIT),
        growth_step: UNIT,
        alignment: UNIT as u64,
        steps: steps.to_vec().into(),
        entries: 0,
        cached_bytes: 0,
        listed: false,
    };
    Plan { settings, captures: false, goes: false, handles: false }
}

impl Plan {
    /// Each magazine keeps one block of a size.
    pub fn with_magazines(mut self) -> Self {
        self.settings.entries = 1;
        self.settings.cached_bytes = 1 << 20;
        self
    }

    pub fn with_growth_step(mut self, units: usize) -> Self {
        self.settings.growth_step = units * UNIT;
        self
    }

    /// Streams may go away.
    pub fn with_departures(mut self) -> Self {
        self.goes = true;
        self
    }

    /// Memory is apart from its addresses.
    pub fn with_handles(mut self) -> Self {
        self.handles = true;
        self
    }

    /// Streams may be in capture.
    pub fn with_captures(mut self) -> Self {
        self.captures = true;
        self
    }

    pub fn build(self) -> Fixture {
        let driver = Arc::new(Driver::new(0));
        driver.set_limit(self.settings.limits.maximum());
        let pool_driver =
            PoolDriver { driver: driver.clone(), captures: self.captures, handles: self.handles };
        let stream = |index| {
            let gate = self.captures.then(|| Arc::new(Gate::new(())));
            Stream { index, driver: driver.clone(), gate, goes: self.goes }
        };
        let streams = (0..STREAMS).map(stream).collect();
        let pool = Some(Pool::new(pool_driver, self.settings));
        Fixture {
            driver,
            pool,
            streams,
            held: Vec::new(),
            graph: 0,
            graph_pool: None,
            recorded: Mutex::default(),
            taken: Mutex::default(),
            gate: loom::sync::Mutex::new(0),
        }
    }
}

impl Fixture {
    pub fn pool(&self) -> &Pool<PoolDriver> {
        self.pool.as_ref().expect("the pool lives as long as the fixture")
    }

    /// A block of one unit for the stream, which works on it.
    pub fn take(&self, stream: usize) -> Option<Block> {
        self.take_units(stream, 1)
    }

    pub fn take_units(&self, stream: usize, units: usize) -> Option<Block> {
        let handle = &self.streams[stream];
        let (id, bytes) = (PoolDriver::id(handle), units * UNIT);
        let pool = self.pool();
        // As a resource does: by the thread's magazine, by the stream's own heap, then by a miss.
        let past = |magazine: Option<_>| {
            // SAFETY: the thread's own magazine of the stream, which lives.
            let own =
                magazine.and_then(|it| unsafe { pool.allocate_own(it, id, bytes, UNIT as u64) });
            own.map_or_else(|| pool.allocate(handle, id, bytes, UNIT as u64), Ok)
        };
        // SAFETY: `past` uses the magazine first.
        match unsafe { pool.allocate_cached_or(id, bytes, UNIT as u64, Ok, past) } {
            Ok(block) => {
                assert_eq!(block.bytes, bytes, "the bytes of a block");
                self.driver.hand_out(stream, block.address, bytes);
                Some(block)
            }
            Err(_) => None,
        }
    }

    /// Has the pool sleep, while its memory is another's, and wake. Whether it did.
    pub fn sleep_and_wake(&self) -> bool {
        let pool = self.pool();
        if pool.begin_sleep().is_err() {
            return false;
        }
        // As the crate does: uses that have begun are the device's by then.
        *self.gate.lock().unwrap() += 1;
        self.driver.finish_all();
        let mut places = pool.places();
        for place in &places {
            self.driver.put_aside(place.address, place.bytes as usize, place.handle);
        }
        self.driver.expect_nothing_mapped();
        places = pool.places_to_wake(|address| places.iter().any(|it| it.address == address));
        for place in &places {
            let handle = self.driver.bring_back(place.address, place.bytes as usize);
            pool.set_handle(place, handle);
        }
        *self.gate.lock().unwrap() += 1;
        pool.end_sleep();
        true
    }

    /// A block of one unit, on which the stream works if the pool is awake, as containers do.
    pub fn take_beside_sleep(&self, stream: usize) -> Option<Block> {
        let handle = &self.streams[stream];
        let id = PoolDriver::id(handle);
        let pool = self.pool();
        let past = |magazine: Option<_>| {
            // SAFETY: the thread's own magazine of the stream, which lives.
            let own =
                magazine.and_then(|it| unsafe { pool.allocate_own(it, id, UNIT, UNIT as u64) });
            own.map_or_else(|| pool.allocate(handle, id, UNIT, UNIT as u64), Ok)
        };
        let before = *self.gate.lock().unwrap();
        // SAFETY: `past` uses the magazine first.
        let block = unsafe { pool.allocate_cached_or(id, UNIT, UNIT as u64, Ok, past) }.ok()?;
        let inside = self.gate.lock().unwrap();
        let slept = before % 2 == 1 && before == *inside;
        assert!(!slept, "a pool that sleeps has handed a block out");
        if !pool.is_asleep() {
            self.driver.hand_out(stream, block.address, block.bytes);
        }
        Some(block)
    }

    /// Frees a block, on which the stream works once more if the pool is awake.
    pub fn free_beside_sleep(&self, stream: usize, block: Block) {
        let handle = &self.streams[stream];
        let (pool, id) = (self.pool(), PoolDriver::id(handle));
        {
            let _inside = self.gate.lock().unwrap();
            match pool.is_asleep() {
                false => self.driver.hand_in(stream, block.address, block.bytes),
                true => self.driver.hand_in_unused(block.address, block.bytes),
            }
        }
        // SAFETY: each model frees a block of its pool once, on the stream of its last work.
        unsafe {
            pool.deallocate_to_cache(id, block, |block, magazine| {
                if !magazine.is_some_and(|it| pool.deallocate_own(it, &block)) {
                    pool.deallocate(handle, id, block);
                }
            });
        }
    }

    /// Has a block that `begin` put there be longer by so many units, where it is, and the stream work on those. Holds it to
    /// the end, however long it is.
    pub fn extend_held_for_good(&self, stream: usize, place: usize, units: usize) {
        let (handle, mut block) = (&self.streams[stream], self.held[place]);
        let (before, bytes) = (block.bytes, block.bytes + units * UNIT);
        let extended = self.pool().extend(handle, PoolDriver::id(handle), &mut block, bytes, false);
        if extended.unwrap_or(false) {
            assert_eq!(block.bytes, bytes, "the bytes of a block");
            self.driver.hand_out(stream, block.address + before as u64, bytes - before);
        }
        self.taken.lock().unwrap().push((stream, block));
    }

    /// The units of what the roles hold to the end.
    pub fn taken_units(&self) -> usize {
        self.taken.lock().unwrap().iter().map(|(_, block)| block.bytes / UNIT).sum()
    }

    /// The last work on a block, and its free.
    pub fn free(&self, stream: usize, block: Block) {
        self.driver.hand_in(stream, block.address, block.bytes);
        let handle = &self.streams[stream];
        let (pool, id) = (self.pool(), PoolDriver::id(handle));
        // SAFETY: each model frees a block of its pool once, on the stream of its last work.
        unsafe {
            pool.deallocate_to_cache(id, block, |block, magazine| {
                if !magazine.is_some_and(|it| pool.deallocate_own(it, &block)) {
                    pool.deallocate(handle, id, block);
                }
            });
        }
    }

    /// Frees what `begin` put there.
    pub fn free_held(&self, stream: usize, place: usize) {
        self.free(stream, self.held[place]);
    }

    /// Takes a block of one unit, if there is one, and holds it to the end.
    pub fn take_for_good(&self, stream: usize) {
        self.take_units_for_good(stream, 1);
    }

    pub fn take_units_for_good(&self, stream: usize, units: usize) {
        let block = self.take_units(stream, units);
        self.taken.lock().unwrap().extend(block.map(|block| (stream, block)));
    }

    /// How many blocks the roles hold to the end.
    pub fn taken(&self) -> usize {
        self.taken.lock().unwrap().len()
    }

    pub fn free_taken(&self) {
        let taken = std::mem::take(&mut *self.taken.lock().unwrap());
        taken.into_iter().for_each(|(stream, block)| self.free(stream, block));
    }

    /// A block that there has to be.
    pub fn must_take(&self, stream: usize) -> Block {
        self.take(stream).unwrap_or_else(|| panic!("stream {stream} is refused memory that fits"))
    }

    /// Takes a block, if there is one, works on it and frees it.
    pub fn visit(&self, stream: usize) {
        if let Some(block) = self.take(stream) {
            self.free(stream, block);
        }
    }

    /// Visits until the thread's magazine keeps the block: a size has to be missed twice in a row,
    /// and the first visit finds no magazine.
    pub fn warm_up(&self, stream: usize) {
        (0..3).for_each(|_| self.visit(stream));
    }

    /// Takes blocks on these streams, and frees them, all but the first `kept`.
    pub fn prepared(mut self, streams: &[usize], kept: usize) -> Self {
        let blocks: Vec<_> = streams.iter().map(|stream| self.must_take(*stream)).collect();
        for (stream, block) in streams.iter().zip(&blocks).skip(kept) {
            self.free(*stream, *block);
        }
        self.held = blocks[..kept].to_vec();
        self
    }

    /// These streams are made to wait for the first one, by the user.
    pub fn lent_to(self, streams: &[usize]) -> Self {
        for stream in streams {
            self.driver.wait_for(*stream, 0).expect("a wait");
        }
        self
    }

    /// Frees what was taken for good. The pool knows that no user holds a block.
    pub fn end(&self) {
        self.free_taken();
        self.expect_idle();
    }

    /// Closes the stream's gate, declares a capture to the pool, and begins it. Returns the graph's
    /// number.
    pub fn capture(&self, stream: usize) -> Option<usize> {
        let handle = &self.streams[stream];
        let gate = handle.gate.as_ref().expect("a model of captures");
        gate.close_and_wait(&Arc::new(Owner::here()), &Patience::none()).ok()?;
        let begin = || {
            self.driver.set_stream_capturing(stream, true);
            Ok(())
        };
        let begun =
            self.pool().begin_capture(handle, PoolDriver::id(handle), self.graph_pool, begin);
        if begun.is_err() {
            gate.open();
        }
        begun.ok().map(|(graph, ())| graph)
    }

    /// Has all captures share memory.
    pub fn with_graph_pool(mut self) -> Self {
        self.graph_pool = self.pool().open_graph_pool().ok();
        assert!(self.graph_pool.is_some(), "a graph pool");
        self
    }

    /// Takes a block in a capture, if there is one, and gives the stream no work, which would be recorded.
    pub fn record(&self, stream: usize) -> Option<Block> {
        let handle = &self.streams[stream];
        let block = self.pool().allocate(handle, PoolDriver::id(handle), UNIT, UNIT as u64).ok()?;
        let mut recorded = self.recorded.lock().unwrap();
        let is_other = |&(address, bytes): &(u64, usize)| {
            address + bytes as u64 <= block.address || block.address + block.bytes as u64 <= address
        };
        assert!(recorded.iter().all(is_other), "a block of a capture is handed out twice");
        recorded.push((block.address, block.bytes));
        Some(block)
    }

    /// Forgets that a capture has a block.
    pub fn forget_recorded(&self, block: Block) {
        self.recorded.lock().unwrap().retain(|(address, _)| *address != block.address);
    }

    /// Frees a block in the capture that has taken it.
    pub fn free_recorded(&self, stream: usize, block: Block) {
        self.forget_recorded(block);
        let handle = &self.streams[stream];
        // SAFETY: each model frees a block of its pool once.
        unsafe { self.pool().deallocate(handle, PoolDriver::id(handle), block) };
    }

    /// The stream works on a block that its capture has left over, and frees it.
    pub fn use_left_over(&self, stream: usize, block: Block) {
        self.forget_recorded(block);
        self.driver.hand_out(stream, block.address, block.bytes);
        self.free(stream, block);
    }

    pub fn end_capture(&self, stream: usize, graph: usize) {
        let _ = self.pool().note_left_over(graph);
        self.driver.set_stream_capturing(stream, false);
        self.streams[stream].gate.iter().for_each(|gate| gate.open());
        self.pool().end_capture(graph);
    }

    /// The graph that `stream` recorded is gone, and was launched on these.
    pub fn end_graph(&self, graph: usize, stream: usize, launched_on: &[usize]) {
        let launched: Vec<_> = launched_on.iter().map(|one| self.streams[*one].clone()).collect();
        self.pool().on_graph_drop(graph, &self.streams[stream], &launched);
    }

    /// Without a wait of the host.
    pub fn trim_now(&self) -> usize {
        self.pool().trim(0)
    }

    pub fn trim(&self) -> usize {
        self.pool().wait_and_trim(0).unwrap_or(0)
    }

    /// The user's last handle of the stream goes away.
    pub fn abandon(&self, stream: usize) {
        self.driver.abandon(stream);
    }

    /// What the pool counts, and that the driver counts the same.
    pub fn stats(&self) -> PoolStatistics {
        self.pool().stats()
    }

    /// No user holds a block, and the pool knows.
    pub fn expect_idle(&self) {
        let stats = self.stats();
        assert_eq!((stats.live, stats.live_blocks), (0, 0), "live bytes of an idle pool");
    }
}

impl Drop for Fixture {
    /// Ends the pool, which has to give everything back.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        drop(self.pool.take());
        self.driver.expect_all_back();
    }
}
