#![cfg(aquifer_loom)]
//! Streams that go away: a pending use keeps its stream alive until home has waited for it, on
//! whichever thread the last handle is dropped and the vector freed. And pools tell their own handles on a
//! stream from its users'.

mod harness;

use aquifer::models::{PoolHandles, Timeline};
use harness::driver::{Access::Read, Access::Write, Driver, Refused, WHOLE};
use harness::model;
use harness::vector::{HOME, Home, OtherStream, Vector};
use loom::sync::atomic::{AtomicUsize, Ordering, fence};
use loom::sync::{Arc, Mutex};
use std::sync::Arc as Plain;
use std::sync::atomic::AtomicBool;

/// The driver's stream, destroyed with its last handle.
#[derive(Debug)]
struct Inner {
    driver: Plain<Driver>,
    index: usize,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.driver.destroy(self.index);
    }
}

#[derive(Clone, Debug)]
struct Handle(Arc<Inner>);

impl Handle {
    fn new(driver: &Plain<Driver>, index: usize) -> Self {
        Self(Arc::new(Inner { driver: driver.clone(), index }))
    }
}

/// What a pending use keeps.
#[derive(Clone, Debug)]
struct Kept {
    index: usize,
    _stream: Handle,
}

impl From<&Handle> for Kept {
    fn from(handle: &Handle) -> Self {
        Self { index: handle.0.index, _stream: handle.clone() }
    }
}

impl Timeline for Kept {
    fn same(&self, other: &Self) -> bool {
        self.index == other.index
    }
}

impl OtherStream for Kept {
    fn make_wait(&self, home: &Home) -> Result<(), Refused> {
        home.driver.wait_for(HOME, self.index)
    }

    fn index(&self) -> usize {
        self.index
    }
}

/// A vector that is freed when it is dropped.
struct Owned(Vector<Kept>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.free().unwrap();
    }
}

/// Each role takes what is its own.
struct State {
    driver: Plain<Driver>,
    shares: [Mutex<Option<Arc<Owned>>>; 2],
    sent: Mutex<Option<Owned>>,
}

impl State {
    fn shared() -> Self {
        let driver = Plain::new(Driver::new(1));
        let vector = Arc::new(Owned(Vector::new(&driver)));
        let shares = [Mutex::new(Some(vector.clone())), Mutex::new(Some(vector))];
        Self { driver, shares, sent: Mutex::new(None) }
    }

    fn unshared() -> Self {
        let driver = Plain::new(Driver::new(1));
        Self { driver, shares: Default::default(), sent: Mutex::new(None) }
    }

    fn share(&self, index: usize) -> Arc<Owned> {
        self.shares[index].lock().unwrap().take().unwrap()
    }

    /// A stream of the thread's own, which it drops before the vector.
    fn read_on_own_stream(&self, index: usize) {
        let vector = self.share(index);
        let stream = Handle::new(&self.driver, index + 1);
        vector.0.use_on(&Kept::from(&stream), WHOLE, Read).unwrap();
        drop(stream);
    }

    fn end(&self) {
        drop(self.sent.lock().unwrap().take());
        assert!(self.driver.is_freed(0), "the vector is never freed");
        assert!(self.driver.is_destroyed(1), "stream 1 is kept for good");
    }
}

/// Two threads share a vector, and either may drop the last handle.
#[test]
fn either_thread_frees() {
    model::<State>(
        "either_thread_frees",
        150,
        State::shared,
        &[|s| s.read_on_own_stream(0), |s| s.read_on_own_stream(1)],
        |s| {
            s.end();
            assert!(s.driver.is_destroyed(2), "stream 2 is kept for good");
        },
    );
}

/// As above, where one thread stays at home.
#[test]
fn home_frees_or_the_other() {
    model::<State>(
        "home_frees_or_the_other",
        40,
        State::shared,
        &[
            |s| s.read_on_own_stream(0),
            |s| {
                let vector = s.share(1);
                vector.0.use_at_home(WHOLE, Read).unwrap();
            },
        ],
        State::end,
    );
}

/// A thread writes a vector on a stream, sends it to another that frees it, and drops the stream's
/// last handle meanwhile.
#[test]
fn a_sent_vector() {
    model::<State>(
        "a_sent_vector",
        12,
        State::unshared,
        &[
            |s| {
                let stream = Handle::new(&s.driver, 1);
                let vector = Owned(Vector::new(&s.driver));
                vector.0.use_on(&Kept::from(&stream), WHOLE, Write).unwrap();
                *s.sent.lock().unwrap() = Some(vector);
                drop(stream);
            },
            |s| {
                let sent = s.sent.lock().unwrap().take();
                drop(sent);
            },
        ],
        State::end,
    );
}

/// A stream's handle with its counts in the open: as std's `Arc` counts, of which loom knows nothing.
struct Counted(Plain<Counts>);

struct Counts {
    handles: AtomicUsize,
    pools: AtomicUsize,
    /// Whether the stream is on the table.
    table: Mutex<bool>,
    /// What users have given to the stream. A reader has to come after them.
    work: AtomicUsize,
    /// std's: it is the judge, and orders nothing.
    used: AtomicBool,
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        self.0.handles.fetch_add(1, Ordering::Relaxed);
        Self(self.0.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
        }
    }
}

impl PoolHandles for Counted {
    fn lock_and_unregister_if(&self, condition: impl FnOnce() -> bool) -> bool {
        let mut listed = self.0.table.lock().unwrap();
        let is_abandoned = condition();
        *listed &= !is_abandoned;
        is_abandoned
    }

    fn all_handles(&self) -> usize {
        self.0.handles.load(Ordering::Relaxed)
    }

    fn pool_handles(&self) -> &AtomicUsize {
        &self.0.pools
    }
}

/// A stream that one user has, and one pool.
struct Known {
    counts: Plain<Counts>,
    user: Mutex<Option<Counted>>,
    pool: Mutex<Option<Counted>>,
}

impl Known {
    fn new() -> Self {
        let counts = Plain::new(Counts {
            handles: AtomicUsize::new(1),
            pools: AtomicUsize::new(0),
            table: Mutex::new(true),
            work: AtomicUsize::new(0),
            used: AtomicBool::new(true),
        });
        let user = Counted(counts.clone());
        let pool = Mutex::new(Some(user.clone_for_pool()));
        Self { counts, user: Mutex::new(Some(user)), pool }
    }

    fn user(&self) -> Counted {
        self.user.lock().unwrap().take().unwrap()
    }

    /// A handle from the table, as the driver's handle brought again gives one: counted up from what is
    /// there, which is not 0 while a pool has one.
    fn look_up(&self) -> Option<Counted> {
        let listed = self.counts.table.lock().unwrap();
        listed.then(|| {
            self.counts.used.store(true, std::sync::atomic::Ordering::Relaxed);
            self.counts.handles.fetch_add(1, Ordering::Relaxed);
            Counted(self.counts.clone())
        })
    }

    /// The user's last work on the stream.
    fn end(&self, user: Counted) {
        self.counts.work.store(1, Ordering::Relaxed);
        self.counts.used.store(false, std::sync::atomic::Ordering::Relaxed);
        drop(user);
    }

    /// The pool asks, and gives the stream to no other user while one has it.
    fn ask(&self) {
        let pool = self.pool.lock().unwrap().take().unwrap();
        if pool.is_abandoned() {
            let used = self.counts.used.load(std::sync::atomic::Ordering::Relaxed);
            assert!(!used, "a stream is abandoned whose user is here");
            let work = self.counts.work.load(Ordering::Relaxed);
            assert_eq!(work, 1, "a user's work on an abandoned stream");
        }
        *self.pool.lock().unwrap() = Some(pool);
    }

    fn judge(&self) {
        let pool = self.pool.lock().unwrap().take().unwrap();
        assert!(pool.is_abandoned(), "the pool alone has it");
        pool.drop_for_pool();
        let left = self.counts.handles.load(Ordering::Relaxed);
        assert_eq!((left, self.counts.pools.load(Ordering::Relaxed)), (0, 0), "handles left");
    }
}

/// A second pool comes and goes on the user's thread, then the user goes; the first pool asks meanwhile.
#[test]
fn a_pool_asks_while_another_comes_and_goes() {
    model::<Known>(
        "a_pool_asks_while_another_comes_and_goes",
        90,
        Known::new,
        &[
            |known| {
                let user = known.user();
                user.clone_for_pool().drop_for_pool();
                known.end(user);
            },
            Known::ask,
        ],
        Known::judge,
    );
}

/// The driver's handle is brought again while the user goes, and a pool asks.
#[test]
fn a_pool_asks_while_a_handle_is_looked_up() {
    model::<Known>(
        "a_pool_asks_while_a_handle_is_looked_up",
        36,
        Known::new,
        &[
            |known| {
                let user = known.user();
                known.end(user);
                if let Some(again) = known.look_up() {
                    known.end(again);
                }
            },
            Known::ask,
        ],
        Known::judge,
    );
}
