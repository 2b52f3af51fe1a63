//! Data handlers.

use crate::support::simulated;
use crate::table::Table;
use allocator_api2::alloc::{AllocError, Allocator, Global};
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::SimConfig;
use aquifer::{
    nep49::{DataAlloc, DataHandler, HandlerFunctions, RawDataHandler},
    pinned::{
        PinnedResource, last_error, reset_current_pinned_resource, set_current_pinned_resource,
    },
};
use std::alloc::Layout;
use std::ffi::{c_char, c_void};
use std::ptr::NonNull;

/// An allocator that has no room.
struct Full;

// SAFETY: no block is ever there.
unsafe impl Allocator for Full {
    fn allocate(&self, _layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        Err(AllocError)
    }

    unsafe fn deallocate(&self, _block: NonNull<u8>, _layout: Layout) {}
}

/// Functions that panic.
struct Panics;

// SAFETY: no block is ever there.
unsafe impl HandlerFunctions for Panics {
    fn malloc(&self, _bytes: usize) -> aquifer::Result<NonNull<u8>> {
        panic!("a bad day")
    }

    unsafe fn realloc(&self, _block: NonNull<u8>, _bytes: usize) -> aquifer::Result<NonNull<u8>> {
        panic!("a bad day")
    }

    unsafe fn free(&self, _block: NonNull<u8>, _bytes: usize) {}
}

unsafe extern "C" fn null(_ctx: *mut c_void, _size: usize) -> *mut c_void {
    std::ptr::null_mut()
}

pub(crate) fn rows(table: &mut Table) {
    table.failed("a handler's name of 127 bytes", DataHandler::new("n".repeat(127), Global));
    table.failed("a handler's name with a zero byte", DataHandler::new("a\0b", Global));
    let whole = *DataHandler::default().as_raw();
    type Edit = fn(&mut RawDataHandler);
    let edits: [(&str, Edit); 4] = [
        ("a handler of version 2", |raw| raw.version = 2),
        ("a handler without calloc", |raw| raw.allocator.calloc = None),
        ("a handler's name without an end", |raw| raw.name = [b'n' as c_char; 127]),
        ("a handler's name that is no text", |raw| raw.name[0] = -1_i8 as c_char),
    ];
    for (title, edit) in edits {
        let mut raw = whole;
        edit(&mut raw);
        // SAFETY: it is refused.
        table.failed(title, unsafe { DataHandler::from_raw(raw, ()) });
    }
    table.failed("a handler with an alignment of 48", DataHandler::aligned(48));
    #[cfg(target_os = "linux")]
    table.failed("a handler of NUMA node 5000", DataHandler::numa(5000));

    let mut failed = |title: &str, handler: DataHandler, bytes: usize| {
        let mut vec = AllocVec::<u8, _>::new_in(DataAlloc::new(handler));
        assert!(vec.try_reserve_exact(bytes).is_err(), "{title}");
        table.row(title, last_error().unwrap());
    };
    const VAST: usize = isize::MAX as usize - 4096;
    failed("more than the system's heap has", DataHandler::default(), VAST);
    failed("more than a handler's address space", DataHandler::aligned(8192).unwrap(), VAST);
    failed("a handler's allocator that is full", DataHandler::new("mine", Full).unwrap(), 100);
    let panics = DataHandler::from_functions("mine", Panics).unwrap();
    failed("a handler that panics", panics.clone(), 100);
    let mut raw = whole;
    raw.allocator.malloc = Some(null);
    // SAFETY: null is an error, and the others are the default handler's.
    let theirs = unsafe { DataHandler::from_raw(raw, ()) }.unwrap();
    failed("a handler of C that returns null", theirs, 100);

    let (device, simulator) = simulated(SimConfig::default());
    set_current_pinned_resource(PinnedResource::new(&device).unwrap());
    simulator.fail_call("cuMemHostAlloc", 1, 2).unwrap();
    failed("no page-locked memory for a handler", DataHandler::pinned(), 10_000);
    reset_current_pinned_resource();

    let functions = panics.as_raw().allocator;
    // SAFETY: the handle lives.
    assert!(unsafe { functions.malloc.unwrap()(functions.ctx, 100) }.is_null());
    table.row("a handler that panics when C calls it", last_error().unwrap());
    // SAFETY: the handle lives.
    assert!(unsafe { functions.calloc.unwrap()(functions.ctx, 1 << 40, 1 << 40) }.is_null());
    table.row("more elements than a handler's address space", last_error().unwrap());
}
