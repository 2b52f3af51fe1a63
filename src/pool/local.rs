//! Which magazines the calling thread has: a small table without a destructor, so that the warm way
//! is one comparison, and the list that owns them, whose destructor gives the blocks back.

use super::magazine::Magazine;
use crate::sync::{Arc, Weak, thread_local};
use std::cell::{Cell, RefCell};
use std::ptr;

/// Magazines that a thread finds at the first look.
const WAYS: usize = 64;

/// The pool, as a leaving thread sees it.
pub(crate) trait Leave: Send + Sync {
    /// Takes what the magazine holds; its thread is going away.
    fn leave(&self, magazine: &Arc<Magazine>);
}

#[derive(Clone, Copy)]
struct Way {
    pool: u64,
    stream: u64,
    magazine: *const Magazine,
}

/// No pool has the number 0.
const NOWHERE: Way = Way { pool: 0, stream: 0, magazine: ptr::null() };

struct Owned {
    pool: u64,
    stream: u64,
    magazine: Arc<Magazine>,
    owner: Weak<dyn Leave>,
}

#[derive(Default)]
struct List(Vec<Owned>);

impl Drop for List {
    fn drop(&mut self) {
        // What is freed from here on, by destructors that run later, goes to the heap.
        let _ = CLOSED.try_with(|closed| closed.set(true));
        forget_ways();
        for owned in self.0.drain(..) {
            if let Some(owner) = owned.owner.upgrade() {
                owner.leave(&owned.magazine);
            }
        }
    }
}

thread_local! {
    static TABLE: [Cell<Way>; WAYS] = const { [const { Cell::new(NOWHERE) }; WAYS] };
    static CLOSED: Cell<bool> = const { Cell::new(false) };
    static LIST: RefCell<List> = RefCell::default();
}

#[inline(always)]
fn way(pool: u64, stream: u64) -> usize {
    // Streams are numbered one after the other, as they are made.
    (pool ^ stream) as usize % WAYS
}

fn forget_ways() {
    let _ = TABLE.try_with(|table| table.iter().for_each(|way| way.set(NOWHERE)));
}

/// The calling thread's magazine of this pool and stream, if the table has it.
///
/// # Safety
///
/// The reference is not used after the thread's next call of [`find_or_make`], nor sent elsewhere.
#[inline(always)]
pub(crate) unsafe fn find<'a>(pool: u64, stream: u64) -> Option<&'a Magazine> {
    // The table has no destructor, so it is always there.
    let found = TABLE.try_with(|table| table[way(pool, stream)].get()).ok()?;
    if found.pool == pool && found.stream == stream {
        // SAFETY: this thread's list owns the magazine. Only `find_or_make` and the thread's end
        // take one off the list, and they take it off the table first.
        return Some(unsafe { &*found.magazine });
    }
    None
}

/// Finds the thread's magazine in its list, or makes one, and puts it in the table. `None` while
/// the thread is going away.
pub(crate) fn find_or_make(
    pool: u64,
    stream: u64,
    make: impl FnOnce() -> Option<(Arc<Magazine>, Weak<dyn Leave>)>,
) -> Option<Arc<Magazine>> {
    if CLOSED.try_with(Cell::get).unwrap_or(true) {
        return None;
    }
    let known = LIST
        .try_with(|list| {
            let list = list.try_borrow().ok()?;
            let same = |owned: &&Owned| {
                owned.pool == pool && owned.stream == stream && !owned.magazine.is_retired()
            };
            list.0.iter().find(same).map(|owned| owned.magazine.clone())
        })
        .ok()?;
    let magazine = match known {
        Some(magazine) => magazine,
        None => {
            // Not under the borrow: whatever it calls may allocate.
            let (magazine, owner) = make()?;
            let entry = Owned { pool, stream, magazine: magazine.clone(), owner };
            let dead: Vec<Owned> = LIST
                .try_with(|list| {
                    let mut list = list.try_borrow_mut().ok()?;
                    let gone = |owned: &mut Owned| {
                        owned.magazine.is_retired() || owned.owner.strong_count() == 0
                    };
                    // An entry of the table may name one of these.
                    forget_ways();
                    let dead = list.0.extract_if(.., gone).collect();
                    list.0.push(entry);
                    Some(dead)
                })
                .ok()
                .flatten()?;
            drop(dead);
            magazine
        }
    };
    let found = Way { pool, stream, magazine: Arc::as_ptr(&magazine) };
    let _ = TABLE.try_with(|table| table[way(pool, stream)].set(found));
    Some(magazine)
}

/// Goes through the thread's other magazines of this pool. `body` makes none and drops no pool.
pub(crate) fn each_sibling(pool: u64, but: u64, mut body: impl FnMut(&Magazine)) {
    let _ = LIST.try_with(|list| {
        let Ok(list) = list.try_borrow() else { return };
        let same = |owned: &&Owned| owned.pool == pool && owned.stream != but;
        list.0.iter().filter(same).for_each(|owned| body(&owned.magazine));
    });
}
