//! What a tracking adaptor has handed out and not got back.

use super::allocation::Allocation;
use super::alone::Alone;
use super::book::{Book, Entry, Gone, places};
use super::call_stack::CallStack;
use super::clock::Clock;
use crate::adaptor::shards::Shards;
use crate::backend::is_forked_child;
use crate::debug_log::{event, later};
use crate::device::Device;
use crate::resource::DeviceBlock;
use crate::stream::Stream;
use crate::sync::CachePadded;
use crate::sync::trusted::{AtomicU64, Ordering, thread_local};
use std::cell::Cell;
use std::fmt::Write;
use std::mem;
use std::thread::{self, ThreadId};

/// How many blocks a log's line names: to look up where a block comes from may take milliseconds.
const NAMED: usize = 100;

/// Events that are counted, and warned of the first time.
#[derive(Default)]
struct Odd {
    count: AtomicU64,
}

impl Odd {
    /// Whether this is the one to warn of.
    fn add(&self) -> bool {
        // Relaxed: numbers for people; they order nothing.
        self.count.fetch_add(1, Ordering::Relaxed) == 0
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// The list. While **one thread** calls, it owns a book and writes in it without a locked instruction;
/// others who want to look keep it out for that moment. **The second thread** that calls ends that for
/// good: what is out goes to the shards, each with a lock.
pub(super) struct Ledger {
    device: Device,
    clock: Clock,
    alone: Alone<Book>,
    shards: Shards<Book>,
    /// Entries that were made, once there are shards.
    made: CachePadded<AtomicU64>,
    unknown: Odd,
    wrong_size: Odd,
    bypassed: Odd,
}

thread_local! {
    /// Asking the thread for it costs more than all else.
    static THREAD: Cell<Option<ThreadId>> = const { Cell::new(None) };
}

#[inline]
fn this_thread() -> ThreadId {
    THREAD.try_with(Cell::get).ok().flatten().unwrap_or_else(ask_thread)
}

#[cold]
fn ask_thread() -> ThreadId {
    let id = thread::current().id();
    let _ = THREAD.try_with(|known| known.set(Some(id)));
    id
}

impl Ledger {
    pub(super) fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
            clock: Clock::start(),
            alone: Alone::default(),
            shards: Shards::default(),
            made: CachePadded::default(),
            unknown: Odd::default(),
            wrong_size: Odd::default(),
            bypassed: Odd::default(),
        }
    }

    /// Notes a block that upstream handed out.
    #[inline]
    pub(super) fn add(&self, block: &DeviceBlock, stream: &Stream, backtraces: bool) {
        if block.is_empty() || is_forked_child() {
            return;
        }
        let (address, bytes, stream) = (block.address(), block.bytes(), stream.id());
        let backtrace = if backtraces { Some(CallStack::capture()) } else { None };
        let (ticks, thread) = (self.clock.ticks(), this_thread());
        let entry = Entry { address, number: 0, bytes, stream, thread, ticks, backtrace };
        let mut entry = Some(entry);
        let mut replaced = None;
        let add = |book: &mut Book| {
            if book.has_room()
                && let Some(entry) = entry.take()
            {
                replaced = book.add(entry);
            }
        };
        // SAFETY: `add` calls nobody.
        unsafe { self.alone.enter(add) };
        if let Some(entry) = entry {
            replaced = self.add_cold(entry);
        }
        if let Some(replaced) = replaced {
            self.note_bypassed(address, replaced);
        }
    }

    #[inline(never)]
    fn add_cold(&self, entry: Entry) -> Option<Gone> {
        let mut entry = Some(entry);
        let mut replaced = None;
        let mut wider = places(0);
        loop {
            let add = |book: &mut Book| {
                let wanted = book.wanted();
                if wanted != 0 {
                    if wider.capacity() < wanted {
                        return wanted;
                    }
                    book.widen(&mut wider);
                }
                replaced = entry.take().and_then(|entry| book.add(entry));
                0
            };
            // SAFETY: `add` calls nobody: an entry that it moves is not dropped, nor are places.
            match unsafe { self.alone.claim(add, |book| self.share(book)) } {
                Some(0) => return replaced,
                // Memory of the host is somebody else's, who may call this adaptor.
                Some(wanted) => wider = places(wanted),
                None => return entry.and_then(|entry| self.add_to_shard(entry)),
            }
        }
    }

    /// Puts what one thread had for its own where all find it.
    fn share(&self, mut book: Book) {
        self.made.store(book.made, Ordering::Relaxed);
        for entry in book.take() {
            self.enter_in_shard(entry);
        }
    }

    fn add_to_shard(&self, mut entry: Entry) -> Option<Gone> {
        entry.number = self.made.fetch_add(1, Ordering::Relaxed);
        self.enter_in_shard(entry)
    }

    fn enter_in_shard(&self, entry: Entry) -> Option<Gone> {
        let mut book = self.shards.of(entry.address);
        let wanted = book.wanted();
        if wanted > 0 {
            book.widen(&mut places(wanted));
        }
        book.insert(entry)
    }

    #[cold]
    fn note_bypassed(&self, address: u64, replaced: Gone) {
        if self.bypassed.add() {
            let (device, bytes) = (self.device.to_string(), replaced.bytes);
            later(move || {
                event!(
                    warn, %device, address, bytes,
                    "a tracked block was handed out again: it was freed past its tracking adaptor"
                );
            });
        }
    }

    /// Takes a block off the list, before upstream can hand it out again. Gives the block as it was
    /// handed out: upstream is not to suffer from a size that is wrong.
    #[inline]
    pub(super) fn remove(&self, block: DeviceBlock) -> DeviceBlock {
        // The lock may have been held by a thread that is not there.
        if is_forked_child() {
            return block;
        }
        let address = block.address();
        // SAFETY: `remove` calls nobody.
        let found = match unsafe { self.alone.enter(|book| book.remove(address)) } {
            Some(found) => found,
            None => self.remove_cold(address),
        };
        match found {
            Some(found) if found.bytes == block.bytes() => block,
            found => self.note_odd(block, found.as_ref().map(|found| found.bytes)),
        }
    }

    #[inline(never)]
    fn remove_cold(&self, address: u64) -> Option<Gone> {
        let remove = |book: &mut Book| book.remove(address);
        // SAFETY: `remove` calls nobody.
        let removed = unsafe { self.alone.claim(remove, |book| self.share(book)) };
        removed.unwrap_or_else(|| self.shards.of(address).remove(address))
    }

    /// A block that is not as it was handed out here, or was not.
    #[cold]
    fn note_odd(&self, block: DeviceBlock, allocated: Option<usize>) -> DeviceBlock {
        let (address, bytes) = (block.address(), block.bytes());
        let device = || self.device.to_string();
        match allocated {
            Some(allocated) => {
                if self.wrong_size.add() {
                    let device = device();
                    later(move || {
                        event!(
                            warn, %device, address, bytes, allocated,
                            "a tracked block was freed with a size that is not its own"
                        );
                    });
                }
                DeviceBlock::new(address, allocated, block.token())
            }
            None => {
                if bytes != 0 && self.unknown.add() {
                    let device = device();
                    later(move || {
                        event!(
                            warn, %device, address, bytes,
                            "a block was freed that this tracking adaptor does not know"
                        );
                    });
                }
                block
            }
        }
    }

    /// Goes through the books of all threads, at one moment.
    fn look(&self, mut each: impl FnMut(&Book)) {
        if self.alone.look(&mut each).is_none() {
            self.shards.all().iter().for_each(|book| each(book));
        }
    }

    pub(super) fn outstanding(&self) -> Vec<Allocation> {
        if is_forked_child() {
            return Vec::new();
        }
        let mut entries = Vec::new();
        self.look(|book| entries.extend(book.entries().cloned()));
        entries.sort_unstable_by_key(|entry: &Entry| entry.number);
        let time = self.clock.times();
        let allocation = |entry| {
            let Entry { number, address, bytes, stream, thread, ticks, backtrace } = entry;
            let after = time(ticks);
            Allocation { number, address, bytes, stream, thread, after, backtrace }
        };
        entries.into_iter().map(allocation).collect()
    }

    pub(super) fn bytes(&self) -> usize {
        let mut bytes = 0;
        if !is_forked_child() {
            self.look(|book| bytes += book.bytes());
        }
        bytes
    }

    /// Frees of unknown blocks, of wrong sizes, and past the adaptor.
    pub(super) fn odd(&self) -> [u64; 3] {
        [&self.unknown, &self.wrong_size, &self.bypassed].map(Odd::count)
    }

    /// Names the first `most` of them.
    pub(super) fn report_of(&self, outstanding: &[Allocation], most: usize) -> String {
        let bytes: usize = outstanding.iter().map(Allocation::bytes).sum();
        let mut text = format!(
            "Outstanding Allocations: {} of {bytes} bytes on {}",
            outstanding.len(),
            self.device
        );
        // Writing to a string does not fail.
        for allocation in outstanding.iter().take(most) {
            let _ = write!(text, "\n  {allocation}");
        }
        if let Some(more) = outstanding.len().checked_sub(most).filter(|more| *more > 0) {
            let _ = write!(text, "\n  and {more} more");
        }
        let [unknown, wrong_size, bypassed] = self.odd();
        for (count, what) in [
            (unknown, "of blocks that were not handed out here"),
            (wrong_size, "with a wrong size"),
            (bypassed, "past this adaptor"),
        ] {
            if count != 0 {
                let _ = write!(text, "\n  frees {what}: {count}");
            }
        }
        text
    }

    pub(super) fn log(&self) {
        let outstanding = self.outstanding();
        if outstanding.is_empty() {
            event!(debug, "{}", self.report_of(&outstanding, NAMED));
        } else {
            event!(warn, "{}", self.report_of(&outstanding, NAMED));
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // A child inherits its parent's blocks, and leaks none of its own. Another thread of the parent may
        // have been about to write in the lists: they are as they were in that moment.
        if is_forked_child() {
            mem::forget((mem::take(&mut self.alone), mem::take(&mut self.shards)));
            return;
        }
        let left = self.outstanding();
        if !left.is_empty() {
            event!(
                warn,
                "a tracking adaptor ends before its blocks. {}",
                self.report_of(&left, NAMED)
            );
        }
    }
}
