//! What containers carry.

use super::{Strict, counted};
use crate::contract;
use allocator_api2::alloc::{Allocator, Global};
use allocator_api2::boxed::Box as AllocBox;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::nep49::{DataAlloc, DataHandler, set_data_handler, with_data_handler};
use std::alloc::Layout;
use std::sync::{Arc, Mutex};

#[test]
fn every_ready_handler_keeps_the_contract() {
    let handlers = [
        Some(DataHandler::default()),
        Some(DataHandler::new("of the heap", Global).unwrap()),
        Some(DataHandler::aligned(1).unwrap()),
        Some(DataHandler::aligned(64).unwrap()),
        Some(DataHandler::aligned(4096).unwrap()),
        DataHandler::huge_pages().ok(),
        DataHandler::numa(0).ok(),
        Some(counted("counted").0),
    ];
    for handler in handlers.into_iter().flatten() {
        contract::check(|| DataAlloc::new(handler.clone()));
    }
}

#[test]
fn a_table_from_c_keeps_the_contract() {
    let (handler, calls) = counted("theirs");
    let raw = *handler.as_raw();
    // SAFETY: the functions of a handler, which the owner keeps.
    let theirs = unsafe { DataHandler::from_raw(raw, handler) }.unwrap();
    contract::check(|| DataAlloc::new(theirs.clone()));
    assert_eq!((calls.live(), calls.dropped()), (0, 0));
    drop(theirs);
    assert_eq!(calls.dropped(), 1);
}

#[test]
fn an_allocator_gets_its_blocks_back_with_their_layouts() {
    let blocks = Arc::<Mutex<Vec<_>>>::default();
    let handler = DataHandler::new("strict", Strict { blocks: blocks.clone() }).unwrap();
    contract::check(|| DataAlloc::new(handler.clone()));
    assert!(blocks.lock().unwrap().is_empty());
}

#[test]
fn a_container_is_freed_by_the_handler_that_made_it() {
    let ((first, first_calls), (second, second_calls)) = (counted("first"), counted("second"));
    let before = set_data_handler(Some(first));
    let mut vec: AllocVec<u64, _> = AllocVec::with_capacity_in(10, DataAlloc::current());
    drop(set_data_handler(Some(second)));
    vec.extend(0..1000);
    let other: AllocVec<u64, _> = AllocVec::with_capacity_in(10, DataAlloc::current());
    assert_eq!((vec.allocator().handler_name(), vec.allocator().handler_version()), ("first", 1));
    assert_eq!(other.allocator().handler_name(), "second");
    assert_eq!((first_calls.live(), second_calls.live()), (1, 1));
    assert_eq!((first_calls.counts()[2] > 0, second_calls.counts()[2]), (true, 0), "grown");
    // On another thread, after the handlers were replaced.
    set_data_handler(Some(before));
    std::thread::spawn(move || {
        assert_eq!(vec.iter().sum::<u64>(), 499_500);
        drop((vec, other));
    })
    .join()
    .unwrap();
    for calls in [first_calls, second_calls] {
        assert_eq!((calls.live(), calls.dropped()), (0, 1));
    }
}

#[test]
fn a_handler_lives_as_long_as_the_last_container() {
    let (handler, calls) = counted("kept");
    let made = with_data_handler(handler, || {
        let alloc = DataAlloc::current();
        let vec: AllocVec<u8, _> = AllocVec::with_capacity_in(100, alloc.clone());
        let clone = vec.clone();
        let boxed = AllocBox::new_in(5_u32, alloc);
        (vec, clone, boxed)
    });
    let (vec, clone, boxed) = made;
    assert_eq!(clone.allocator(), vec.allocator());
    drop(vec);
    drop(clone);
    assert_eq!((calls.dropped(), *boxed), (0, 5));
    drop(boxed);
    assert_eq!((calls.dropped(), calls.live()), (1, 0));
}

#[test]
fn no_bytes_never_reach_the_handler() {
    let (handler, calls) = counted("none");
    let alloc = DataAlloc::new(handler);
    let mut empty: AllocVec<u32, _> = AllocVec::new_in(alloc.clone());
    empty.shrink_to_fit();
    let units: AllocVec<(), _> = AllocVec::with_capacity_in(1000, alloc.clone());
    let unit = AllocBox::new_in((), alloc.clone());
    let zeroed = alloc.allocate_zeroed(Layout::new::<()>()).unwrap();
    // SAFETY: of this allocator.
    unsafe { alloc.deallocate(zeroed.cast(), Layout::new::<()>()) };
    drop((empty, units, unit));
    assert_eq!(calls.counts(), [0; 4]);

    let mut vec: AllocVec<u32, _> = AllocVec::with_capacity_in(8, alloc.clone());
    vec.shrink_to_fit();
    assert_eq!(calls.counts(), [1, 0, 0, 1], "shrunk to no bytes is freed");
}

#[test]
fn each_kind_of_call_is_the_handlers_own() {
    let (handler, calls) = counted("own");
    let alloc = DataAlloc::new(handler);
    let layout = |size, align| Layout::from_size_align(size, align).unwrap();
    // SAFETY: each block is this allocator's, and goes back with its layout.
    unsafe {
        let block = alloc.allocate_zeroed(layout(100, 8)).unwrap();
        assert_eq!(calls.counts(), [0, 1, 0, 0]);
        let block = alloc.grow(block.cast(), layout(100, 8), layout(200, 16)).unwrap();
        let block = alloc.shrink(block.cast(), layout(200, 16), layout(50, 1)).unwrap();
        assert_eq!(calls.counts(), [0, 1, 2, 0]);
        // Above the handler's alignment, the block moves.
        let block = alloc.grow(block.cast(), layout(50, 1), layout(60, 4096)).unwrap();
        assert_eq!(calls.counts(), [1, 1, 2, 1]);
        alloc.deallocate(block.cast(), layout(60, 4096));
    }
    assert_eq!((calls.counts(), calls.live()), ([1, 1, 2, 2], 0));
    assert_eq!(*calls.freed.lock().unwrap(), [50, 60 + 4096], "the sizes that were allocated");
}

#[test]
fn handles_of_one_handler_are_equal_and_others_are_not() {
    let handler = DataHandler::new("same", Global).unwrap();
    let other = DataHandler::new("same", Global).unwrap();
    assert_eq!((handler == handler.clone(), handler == other), (true, false));
    let allocs = [&handler, &handler.clone(), &other].map(|it| DataAlloc::from(it.clone()));
    assert_eq!((allocs[0] == allocs[1], allocs[0] == allocs[2]), (true, false));
    let shown = format!("{:?}", allocs[0]);
    assert!(shown.contains("\"same\"") && shown.contains("version: 1"), "{shown}");
    assert_eq!(DataHandler::pinned(), DataHandler::pinned());
}
