//! The magazines of the calling thread: a small table without a destructor, for a warm way of one
//! comparison, and the list that owns them, whose destructor gives the blocks back.

use super::magazine::Magazine;
use crate::heap::AddressHasher;
use crate::sync::trusted::{UNIQUE_BITS, unique_pool};
use crate::sync::{Arc, MODELLED, Weak, thread_local};
use aquifer_sync::fork::forget_in_child;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::rc::Rc;

/// Entries of the table: a thread that uses more streams in turn looks them up in its list. A model's threads
/// use few.
const TABLE_SIZE: usize = if MODELLED { 16 } else { 1024 };

/// A pool, for a thread that ends.
pub trait OnThreadExit: Send + Sync {
    /// Takes the blocks of a magazine whose thread ends.
    fn on_thread_exit(&self, magazine: &Arc<Magazine>);
}

/// A pool, as the threads' tables and lists know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolId {
    /// No other pool of the process has it. From 1.
    number: u64,
    /// The pool's part of the keys of tables: the number above [`STREAM_BITS`], and a hash of it in the bits of
    /// the index, since pools share streams, and both are numbered one after the other.
    key: u64,
}

/// The bits of a key that tell streams apart: their numbers are of [`unique`](crate::sync::trusted::unique).
const STREAM_BITS: u32 = UNIQUE_BITS;

/// The first number that has no room in a key. A pool of it and each later one is in lists alone, and so is
/// one that asks for it.
const NO_KEY: u64 = (1 << (u64::BITS - STREAM_BITS)) - 1;

impl PoolId {
    /// The one of no pool.
    pub const NONE: Self = Self { number: 0, key: 0 };

    /// The one of a new pool.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        Self::of(unique_pool())
    }

    /// The one of a new pool that is in lists alone.
    pub fn new_listed() -> Self {
        Self { number: unique_pool(), key: NO_KEY << STREAM_BITS }
    }

    fn of(number: u64) -> Self {
        let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let index = hash >> (u64::BITS - TABLE_SIZE.trailing_zeros());
        let key =
            if number < NO_KEY { number << STREAM_BITS | index } else { NO_KEY << STREAM_BITS };
        Self { number, key }
    }

    pub fn number(self) -> u64 {
        self.number
    }

    /// The pool and the stream, in one number: of no other pool or stream, if the pool's number has
    /// room in it. A stream's number is less than `2^STREAM_BITS - 1`, as [`unique`](crate::sync::trusted::unique)
    /// gives them.
    #[inline(always)]
    fn key_with(self, stream: u64) -> u64 {
        self.key ^ stream
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// [`PoolId::key_with`] the stream.
    key: u64,
    magazine: *const Magazine,
}

/// Of no pool and stream: [`set_in_table`] puts none of [`NO_KEY`] in, and no stream has
/// a number of ones alone.
const NO_ENTRY: Entry = Entry { key: u64::MAX, magazine: ptr::null() };

/// A thread's table. Not a part of the thread's own memory, which every thread of the process would have,
/// with its stack. Its [`Place`]s share it.
type Table = [Cell<Entry>; TABLE_SIZE];

/// The entries of all threads that have no table. Only read.
struct NoTable([Entry; TABLE_SIZE]);

// SAFETY: nothing writes to it, and its pointers are null.
unsafe impl Sync for NoTable {}

static NO_TABLE: NoTable = NoTable([NO_ENTRY; TABLE_SIZE]);

struct ListEntry {
    pool: PoolId,
    stream: u64,
    magazine: Arc<Magazine>,
    owner: Weak<dyn OnThreadExit>,
}

/// The thread's magazines. A thread may use thousands of streams: no lookup goes through all.
#[derive(Default)]
struct List {
    owned: Vec<ListEntry>,
    /// The index of the latest one of a pool and stream.
    places: HashMap<(u64, u64), usize, BuildHasherDefault<AddressHasher>>,
    /// By pool, those that may hold blocks.
    stocked: HashMap<u64, Vec<Arc<Magazine>>, BuildHasherDefault<AddressHasher>>,
    /// Length of `owned` at which the next sweep is due.
    sweep_at: usize,
}

/// Magazines of a thread below which no sweep is due.
const MIN_SWEEP: usize = 16;

impl List {
    fn get(&self, pool: PoolId, stream: u64) -> Option<&Arc<Magazine>> {
        let place = self.places.get(&(pool.number, stream))?;
        self.owned.get(*place).map(|owned| &owned.magazine)
    }

    /// Takes one in. Returns those that are done with where a sweep is due: when there are twice as many
    /// as after the last one, so that sweeping costs each a constant.
    fn add(&mut self, entry: ListEntry) -> Vec<ListEntry> {
        // A retired one is of a stream that is gone, or a trim has retired all.
        let is_retired = self.get(entry.pool, entry.stream).is_some();
        let dead = if self.owned.len() < self.sweep_at.max(MIN_SWEEP) && !is_retired {
            Vec::new()
        } else {
            self.sweep()
        };
        self.places.insert((entry.pool.number, entry.stream), self.owned.len());
        self.owned.push(entry);
        dead
    }

    /// Takes the thread's magazines off its table.
    fn clear_table(&self) {
        if let Some(table) = own_table() {
            // SAFETY: the thread's own, and it stays until `drop_table`.
            let table = unsafe { table.as_ref() };
            let keys = self.owned.iter().map(|owned| owned.pool.key_with(owned.stream));
            keys.for_each(|key| table[index(key)].set(NO_ENTRY));
        }
    }

    /// Takes out those that are done with.
    fn sweep(&mut self) -> Vec<ListEntry> {
        // The table may name one of them.
        self.clear_table();
        let gone =
            |owned: &mut ListEntry| owned.magazine.is_retired() || owned.owner.strong_count() == 0;
        let dead = self.owned.extract_if(.., gone).collect();
        self.places.clear();
        let keys = self.owned.iter().map(|owned| (owned.pool.number, owned.stream));
        self.places.extend(keys.enumerate().map(|(place, key)| (key, place)));
        self.stocked.retain(|_, magazines| {
            magazines.retain(|magazine| !magazine.is_retired());
            !magazines.is_empty()
        });
        self.sweep_at = self.owned.len() * 2;
        dead
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // What is freed from here on, by destructors that run later, goes to the heap.
        let _ = DISABLED.try_with(|closed| closed.set(true));
        // For the places that share the table.
        self.clear_table();
        drop_table();
        self.stocked.clear();
        for owned in self.owned.drain(..) {
            if let Some(owner) = owned.owner.upgrade() {
                owner.on_thread_exit(&owned.magazine);
            }
        }
    }
}

thread_local! {
    /// [`NO_TABLE`]'s entries, or those of a [`Table`] of this thread, with a share of it.
    static TABLE: Cell<*const Entry> = const { Cell::new(NO_TABLE.0.as_ptr()) };
    static DISABLED: Cell<bool> = const { Cell::new(false) };
    static LIST: RefCell<List> = RefCell::default();
}

#[inline(always)]
fn index(key: u64) -> usize {
    // Streams are numbered one after the other, as they are made.
    key as usize % TABLE_SIZE
}

/// Runs first in the child of a fork, on its one thread.
fn disable_in_child() {
    // The thread may be inside of a call that would fill the table again.
    let _ = DISABLED.try_with(|closed| closed.set(true));
    // Forgotten: the parent may have been in the middle of whatever frees memory.
    if let Some(table) = own_table() {
        let _ = TABLE.try_with(|table| table.set(NO_TABLE.0.as_ptr()));
        // SAFETY: it stays, as nothing drops it any more.
        unsafe { table.as_ref() }.iter().for_each(|entry| entry.set(NO_ENTRY));
    }
}

/// The thread's own table, if it has one.
fn own_table() -> Option<NonNull<Table>> {
    let entries = TABLE.try_with(Cell::get).ok().filter(|it| *it != NO_TABLE.0.as_ptr())?;
    NonNull::new(entries.cast_mut().cast())
}

/// Gives the thread a table.
fn make_table() -> NonNull<Table> {
    let table: Rc<Table> = Rc::new([const { Cell::new(NO_ENTRY) }; TABLE_SIZE]);
    let table = Rc::into_raw(table);
    let _ = TABLE.try_with(|place| place.set(table.cast()));
    // SAFETY: an `Rc` is not null.
    unsafe { NonNull::new_unchecked(table.cast_mut()) }
}

fn drop_table() {
    let Some(table) = own_table() else { return };
    let _ = TABLE.try_with(|place| place.set(NO_TABLE.0.as_ptr()));
    // SAFETY: the share of `make_table`, which nothing names any more.
    drop(unsafe { Rc::from_raw(table.as_ptr()) });
}

/// Whether a [`Place`] has a share of the thread's table.
fn is_table_shared() -> bool {
    // SAFETY: the share of `make_table`, which stays.
    let shares = |table: NonNull<Table>| ManuallyDrop::new(unsafe { Rc::from_raw(table.as_ptr()) });
    own_table().is_some_and(|table| Rc::strong_count(&shares(table)) > 1)
}

/// The calling thread's place for the magazine of a pool and a stream, for one who looks there again and again. It
/// stays on its thread, and may outlive the thread's magazines.
#[derive(Debug)]
pub struct Place {
    key: u64,
    entry: NonNull<Cell<Entry>>,
    /// Keeps the entry.
    _table: Rc<Table>,
}

impl Place {
    /// The place where the table has a magazine of this pool and stream.
    pub fn find(pool: PoolId, stream: u64) -> Option<Self> {
        let (table, key) = (own_table()?.as_ptr(), pool.key_with(stream));
        // SAFETY: the thread's own table has the share of `make_table`.
        let table = unsafe {
            Rc::increment_strong_count(table);
            Rc::from_raw(table)
        };
        let place = Self { key, entry: NonNull::from(&table[index(key)]), _table: table };
        place.magazine().is_some().then_some(place)
    }

    /// The magazine, while the table has it.
    #[inline(always)]
    pub fn magazine(&self) -> Option<NonNull<Magazine>> {
        // SAFETY: of the table, of which this has a share.
        let found = unsafe { self.entry.as_ref() }.get();
        // SAFETY: no key is that of `NO_ENTRY`, so there is a magazine.
        (found.key == self.key)
            .then(|| unsafe { NonNull::new_unchecked(found.magazine.cast_mut()) })
    }
}

/// The calling thread's magazine of this pool and stream, if the table has it. It has none in the
/// child of a fork, so that the warm way need not ask.
///
/// # Safety
///
/// The reference is not used after the thread's next call of [`find_or_make`] or [`sweep`], nor sent elsewhere.
#[inline(always)]
pub unsafe fn find<'a>(pool: PoolId, stream: u64) -> Option<&'a Magazine> {
    // SAFETY: the caller's promise; what the table names lives.
    unsafe { find_in_table_or_none(pool, stream, |magazine| magazine.map(|found| found.as_ref())) }
}

/// What `body` makes of the magazine that [`find`] finds, or of none: with no [`Option`] to come back, which the
/// compiler would make and look into again. A pointer: `body` may go on to what frees the magazine, when it has done
/// with it.
///
/// # Safety
///
/// As [`find`], of the pointer.
#[inline(always)]
pub unsafe fn find_in_table_or_none<R>(
    pool: PoolId,
    stream: u64,
    body: impl FnOnce(Option<NonNull<Magazine>>) -> R,
) -> R {
    // It has no destructor, so it is always there.
    let table = TABLE.try_with(Cell::get).unwrap_or(NO_TABLE.0.as_ptr());
    let key = pool.key_with(stream);
    // SAFETY: `TABLE_SIZE` entries, of which this thread alone writes.
    let found = unsafe { *table.add(index(key)) };
    if found.key != key {
        return body(None);
    }
    // SAFETY: no key is that of `NO_ENTRY`, so there is a magazine, and this thread's list owns it. Only
    // `find_or_make`, `sweep` and the thread's end take one off the list, and they take it off the table first.
    body(Some(unsafe { NonNull::new_unchecked(found.magazine.cast_mut()) }))
}

/// As [`find`], past the table: in the thread's list, which has all. Puts it in the table, unless the pool has
/// no key.
///
/// # Safety
///
/// As [`find`].
#[cold]
pub unsafe fn find_in_list<'a>(pool: PoolId, stream: u64) -> Option<&'a Magazine> {
    if is_disabled() {
        return None;
    }
    let magazine = LIST
        .try_with(|list| {
            let list = list.try_borrow().ok()?;
            list.get(pool, stream).filter(|magazine| !magazine.is_retired()).map(Arc::as_ptr)
        })
        .ok()??;
    set_in_table(pool, stream, magazine);
    // SAFETY: this thread's list owns the magazine, as in `find_in_table_or_none`.
    Some(unsafe { &*magazine })
}

fn set_in_table(pool: PoolId, stream: u64, magazine: *const Magazine) {
    let key = pool.key_with(stream);
    if key >> STREAM_BITS == NO_KEY {
        return;
    }
    // SAFETY: the thread's own, and it stays until `drop_table`.
    let table = unsafe { own_table().unwrap_or_else(make_table).as_ref() };
    table[index(key)].set(Entry { key, magazine });
}

fn is_disabled() -> bool {
    DISABLED.try_with(Cell::get).unwrap_or(true)
}

/// Finds the thread's magazine in its list, or makes one, and puts it in the table, as above. `None` while
/// the thread is going away, and in the child of a fork.
pub fn find_or_make(
    pool: PoolId,
    stream: u64,
    make: impl FnOnce() -> Option<(Arc<Magazine>, Weak<dyn OnThreadExit>)>,
) -> Option<Arc<Magazine>> {
    if is_disabled() {
        return None;
    }
    let known = LIST
        .try_with(|list| {
            let list = list.try_borrow().ok()?;
            list.get(pool, stream).filter(|magazine| !magazine.is_retired()).cloned()
        })
        .ok()?;
    let magazine = match known {
        Some(magazine) => magazine,
        None => {
            // Before there is anything to be forgotten.
            forget_in_child(disable_in_child);
            // Not under the borrow: whatever it calls may allocate.
            let (magazine, owner) = make()?;
            let entry = ListEntry { pool, stream, magazine: magazine.clone(), owner };
            let dead: Vec<ListEntry> = LIST
                .try_with(|list| {
                    let mut list = list.try_borrow_mut().ok()?;
                    Some(list.add(entry))
                })
                .ok()
                .flatten()?;
            drop(dead);
            magazine
        }
    };
    // `make` may have forked, and this be the child.
    if is_disabled() {
        return None;
    }
    set_in_table(pool, stream, Arc::as_ptr(&magazine));
    Some(magazine)
}

/// Drops the calling thread's magazines that are retired, or whose pools are gone, and its table where that
/// leaves none, and no [`Place`] keeps it.
pub fn sweep() {
    let dead = LIST.try_with(|list| {
        let mut list = list.try_borrow_mut().ok()?;
        let dead = list.sweep();
        if list.owned.is_empty() && !is_table_shared() {
            drop_table();
        }
        Some(dead)
    });
    drop(dead);
}

/// Notes that the thread's magazine of this pool and stream may hold blocks from now on.
#[cold]
pub fn note_stocked(pool: PoolId, stream: u64) {
    let _ = LIST.try_with(|list| {
        let mut list = list.try_borrow_mut().ok()?;
        let magazine = list.get(pool, stream)?.clone();
        list.stocked.entry(pool.number).or_default().push(magazine);
        Some(())
    });
}

/// Goes through the thread's magazines of this pool that may hold blocks. `body` makes none and drops
/// no pool; it says whether it has emptied the magazine, which then is off the list.
pub fn remove_stocked_if(pool: PoolId, mut body: impl FnMut(&Magazine) -> bool) {
    let _ = LIST.try_with(|list| {
        let Ok(mut list) = list.try_borrow_mut() else { return };
        if let Some(magazines) = list.stocked.get_mut(&pool.number) {
            magazines.retain(|magazine| !magazine.is_retired() && !body(magazine));
        }
    });
}

#[cfg(test)]
mod tests;
