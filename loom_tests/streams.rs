#![cfg(aquifer_loom)]
//! Streams that go away: a debt keeps its stream alive until home has waited for it, whoever drops
//! the last handle and on whichever thread the vector is freed.

mod harness;

use aquifer::models::Lender;
use harness::driver::{Access::Read, Access::Write, Driver, Refused, WHOLE};
use harness::model;
use harness::vector::{Foreign, HOME, Home, Vector};
use loom::sync::{Arc, Mutex};
use std::sync::Arc as Plain;

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

/// What a debt keeps.
#[derive(Clone, Debug)]
struct Kept {
    index: usize,
    #[cfg(not(aquifer_fault = "stream_not_kept"))]
    _stream: Handle,
}

impl From<&Handle> for Kept {
    fn from(handle: &Handle) -> Self {
        Self {
            index: handle.0.index,
            #[cfg(not(aquifer_fault = "stream_not_kept"))]
            _stream: handle.clone(),
        }
    }
}

impl Lender for Kept {
    type Home = Home;
    type Error = Refused;

    fn make_wait(&self, home: &Home) -> Result<(), Refused> {
        home.driver.wait_for(HOME, self.index)
    }

    fn same(&self, other: &Self) -> bool {
        self.index == other.index
    }
}

impl Foreign for Kept {
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

/// Two threads share a vector, and either may be the last to let go of it.
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
