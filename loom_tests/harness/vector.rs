//! A vector as the crate has it (`Buffer` and `lend`), on the model's driver: block 0, at home on
//! stream 0.

use super::driver::{Access, Driver, Refused, WHOLE};
use aquifer::models::{Debts, Lender};
use std::ops::Range;
use std::sync::Arc;

pub const HOME: usize = 0;
const BLOCK: usize = 0;

/// The stream that waits.
#[derive(Debug)]
pub struct Home {
    pub driver: Arc<Driver>,
}

/// A stream that a vector can be lent to.
pub trait Foreign: Lender<Home = Home, Error = Refused> + Clone {
    fn index(&self) -> usize;
}

/// A stream of which nobody drops the last handle.
#[derive(Clone, Debug)]
pub struct Plain(pub usize);

impl Lender for Plain {
    type Home = Home;
    type Error = Refused;

    fn make_wait(&self, home: &Home) -> Result<(), Refused> {
        home.driver.wait_for(HOME, self.0)
    }

    fn same(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Foreign for Plain {
    fn index(&self) -> usize {
        self.0
    }
}

/// A stream that nobody here knows, as the crate's `Borrower::Context`.
#[derive(Clone, Debug)]
pub struct Unknown(pub usize);

impl Lender for Unknown {
    type Home = Home;
    type Error = Refused;

    fn make_wait(&self, home: &Home) -> Result<(), Refused> {
        home.driver.wait(HOME, &home.driver.record_context())
    }

    fn same(&self, _: &Self) -> bool {
        false
    }

    fn covers(&self, _: &Self) -> bool {
        true
    }
}

impl Foreign for Unknown {
    fn index(&self) -> usize {
        self.0
    }
}

#[derive(Debug)]
pub struct Vector<L: Foreign> {
    pub home: Home,
    debts: Debts<L>,
}

impl<L: Foreign> Vector<L> {
    pub fn new(driver: &Arc<Driver>) -> Self {
        Self { home: Home { driver: driver.clone() }, debts: Debts::default() }
    }

    pub fn driver(&self) -> &Driver {
        &self.home.driver
    }

    /// As the crate's `lend`: what it returns before, the guard stands for afterwards.
    pub fn lend(&self, stream: &L, range: Range<usize>, access: Access) -> Result<(), Refused> {
        self.debts.enter(&self.home, stream.clone(), range, access != Access::Read)?;
        let event = self.driver().record(HOME);
        self.driver().wait(stream.index(), &event)
    }

    /// Lends, and gives the stream work.
    pub fn use_on(&self, stream: &L, range: Range<usize>, access: Access) -> Result<(), Refused> {
        self.lend(stream, range.clone(), access)?;
        self.driver().use_block(stream.index(), BLOCK, range, access);
        Ok(())
    }

    pub fn use_at_home(&self, range: Range<usize>, access: Access) -> Result<(), Refused> {
        self.debts.pay(&self.home, &range, access != Access::Read)?;
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
        self.debts.pay(&self.home, &(0..usize::MAX), true)?;
        self.driver().use_block(HOME, BLOCK, WHOLE, Access::Free);
        Ok(())
    }
}
