use super::*;
use std::cell::{Cell, RefCell};

#[derive(Debug, Clone, PartialEq)]
struct Named(&'static str);

/// The timelines that home waits for.
#[derive(Default)]
struct Home {
    waits: RefCell<Vec<&'static str>>,
    fails: Cell<bool>,
}

impl Home {
    fn wait(&self, on: &Named) -> Result<(), ()> {
        if self.fails.get() {
            return Err(());
        }
        self.waits.borrow_mut().push(on.0);
        Ok(())
    }

    fn take(&self) -> Vec<&'static str> {
        self.waits.take()
    }
}

impl Timeline for Named {
    fn same(&self, other: &Self) -> bool {
        self == other
    }
}

#[test]
fn home_waits_for_conflicting_uses_alone() {
    let home = Home::default();
    let wait = |on: &Named| home.wait(on);
    let uses = PendingUses::default();
    uses.wait_and_record(Named("reader"), 0..8, false, wait).unwrap();
    uses.wait_conflicting(&(0..8), false, wait).unwrap();
    assert!(home.take().is_empty(), "two reads");
    uses.wait_and_record(Named("writer"), 16..24, true, wait).unwrap();
    uses.wait_conflicting(&(8..16), true, wait).unwrap();
    assert!(home.take().is_empty(), "elsewhere");
    uses.wait_conflicting(&(4..20), true, wait).unwrap();
    assert_eq!(home.take(), ["reader", "writer"]);
    uses.wait_conflicting(&(0..24), true, wait).unwrap();
    assert!(home.take().is_empty() && uses.is_empty(), "waited for once");
}

#[test]
fn a_use_waits_for_other_timelines_and_not_for_its_own() {
    let home = Home::default();
    let wait = |on: &Named| home.wait(on);
    let uses = PendingUses::default();
    uses.wait_and_record(Named("a"), 0..8, true, wait).unwrap();
    uses.wait_and_record(Named("a"), 0..8, true, wait).unwrap();
    assert!(home.take().is_empty(), "its own order");
    uses.wait_and_record(Named("b"), 0..8, false, wait).unwrap();
    assert_eq!(home.take(), ["a"], "a's write is before b's read, through home");
    uses.wait_and_record(Named("c"), 0..8, false, wait).unwrap();
    uses.wait_and_record(Named("b"), 4..12, false, wait).unwrap();
    uses.wait_conflicting(&(8..12), true, wait).unwrap();
    assert_eq!(home.take(), ["b"], "one entry a stream, over both ranges");
}

#[test]
fn a_wait_for_one_part_leaves_the_others_pending() {
    let home = Home::default();
    let wait = |on: &Named| home.wait(on);
    let uses = PendingUses::default();
    // Two guards on one stream; the second is dropped and its half used at home, and only then
    // is the first one's stream given work.
    uses.wait_and_record(Named("a"), 0..4, true, wait).unwrap();
    uses.wait_and_record(Named("a"), 4..8, true, wait).unwrap();
    uses.wait_conflicting(&(4..8), true, wait).unwrap();
    assert_eq!(home.take(), ["a"]);
    uses.wait_conflicting(&(4..8), true, wait).unwrap();
    assert!(home.take().is_empty(), "that half is waited for");
    uses.wait_conflicting(&(0..8), true, wait).unwrap();
    assert_eq!(home.take(), ["a"], "and the other is not");
    assert!(uses.is_empty());
    // The same around a middle.
    uses.wait_and_record(Named("a"), 0..2, false, wait).unwrap();
    uses.wait_and_record(Named("a"), 6..8, false, wait).unwrap();
    uses.wait_conflicting(&(3..5), true, wait).unwrap();
    home.take();
    uses.wait_conflicting(&(7..8), true, wait).unwrap();
    assert_eq!(home.take(), ["a"]);
    uses.wait_conflicting(&(0..1), true, wait).unwrap();
    assert_eq!(home.take(), ["a"]);
}

#[test]
fn a_failure_leaves_the_use_pending() {
    let home = Home::default();
    let wait = |on: &Named| home.wait(on);
    let uses = PendingUses::default();
    uses.wait_and_record(Named("a"), 0..8, true, wait).unwrap();
    home.fails.set(true);
    assert!(uses.wait_conflicting(&(0..8), false, wait).is_err());
    assert!(uses.wait_and_record(Named("b"), 0..8, false, wait).is_err());
    home.fails.set(false);
    uses.wait_conflicting(&(0..8), false, wait).unwrap();
    assert_eq!(home.take(), ["a"]);
}
