//! A vector as the crate has it (`Buffer` and `MemoryUse`), on the model's driver: block 0, at home on
//! stream 0.

use super::driver::{Access, Driver, Refused, WHOLE};
use aquifer::models::{PendingUses, Timeline};
use std::ops::Range;
use std::sync::Arc;

pub const HOME: usize = 0;
const BLOCK: usize = 0;

/// The stream that waits.
#[derive(Debug)]
pub struct Home {
    pub driver: Arc<Driver>,
}

/// A stream that a vector can be used on.
pub trait OtherStream: Timeline + Clone {
    /// Makes home wait for all that the stream was given so far.
    fn make_wait(&self, home: &Home) -> Result<(), Refused>;

    fn index(&self) -> usize;
}

/// A stream whose last handle is never dropped.
#[derive(Clone, Debug)]
pub struct Plain(pub usize);

impl Timeline for Plain {
    fn same(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl OtherStream for Plain {
    fn make_wait(&self, home: &Home) -> Result<(), Refused> {
        home.driver.wait_for(HOME, self.0)
    }

    fn index(&self) -> usize {
        self.0
    }
}

/// A stream that the crate does not keep alive, as the crate's `UseTimeline::Context`.
#[derive(Clone, Debug)]
pub struct Unknown(pub usize);

impl Timeline for Unknown {
    fn same(&self, _: &Self) -> bool {
        false
    }

    fn covers(&self, _: &Self) -> bool {
        true
    }
}

impl OtherStream for Unknown {
    fn make_wait(&self, home: &Home) -> Result<(), Refused> {
        home.driver.wait(HOME, &home.driver.record_context())
    }

    fn index(&self) -> usize {
        self.0
    }
}

#[derive(Debug)]
pub struct Vector<T: OtherStream> {
    pub home: Home,
    uses: PendingUses<T>,
}

impl<T: OtherStream> Vector<T> {
    pub fn new(driver: &Arc<Driver>) -> Self {
        Self { home: Home { driver: driver.clone() }, uses: PendingUses::default() }
    }

    pub fn driver(&self) -> &Driver {
        &self.home.driver
    }

    /// As the crate's `MemoryUse::order_on`: the guard stands for what it has ordered.
    pub fn order_on(&self, stream: &T, range: Range<usize>, access: Access) -> Result<(), Refused> {
        let wait = |on: &T| on.make_wait(&self.home);
        self.uses.wait_and_record(stream.clone(), range, access != Access::Read, wait)?;
        let event = self.driver().record(HOME);
        self.driver().wait(stream.index(), &event)
    }

    /// Orders the stream, and gives it work.
    pub fn use_on(&self, stream: &T, range: Range<usize>, access: Access) -> Result<(), Refused> {
        self.order_on(stream, range.clone(), access)?;
        self.driver().use_block(stream.index(), BLOCK, range, access);
        Ok(())
    }

    pub fn use_at_home(&self, range: Range<usize>, access: Access) -> Result<(), Refused> {
        self.uses
            .wait_conflicting(&range, access != Access::Read, |on| on.make_wait(&self.home))?;
        self.driver().use_block(HOME, BLOCK, range, access);
        Ok(())
    }

    /// Copies to the host and waits for it.
    pub fn read_on_host(&self, range: Range<usize>) -> Result<(), Refused> {
        self.use_at_home(range.clone(), Access::Read)?;
        self.driver().finish(HOME);
        self.driver().use_on_host(BLOCK, range, Access::Read);
        Ok(())
    }

    /// As `Buffer`'s drop.
    pub fn free(&self) -> Result<(), Refused> {
        self.uses.wait_conflicting(&(0..usize::MAX), true, |on| on.make_wait(&self.home))?;
        self.driver().use_block(HOME, BLOCK, WHOLE, Access::Free);
        Ok(())
    }
}
