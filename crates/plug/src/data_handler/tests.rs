//! Pointers between the functions, the headers and the containers, for Miri.

use super::*;
use allocator_api2::alloc::{Allocator, Global};
use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr::NonNull;

fn handlers() -> [DataHandler; 4] {
    let theirs = DataHandler::aligned(64).unwrap();
    [
        DataHandler::default(),
        DataHandler::new("of the heap", Global).unwrap(),
        DataHandler::aligned(256).unwrap(),
        // SAFETY: the functions of a handler that the owner keeps.
        unsafe { DataHandler::from_raw(*theirs.as_raw(), theirs) }.unwrap(),
    ]
}

const SIZES: [usize; 5] = [0, 1, 100, 1024, 3000];

#[test]
fn blocks_of_the_c_functions_are_whole() {
    for handler in handlers() {
        let table = handler.into_raw();
        // SAFETY: the handle in the table lives.
        let raw = unsafe { table.as_ref() }.allocator;
        let (malloc, calloc) = (raw.malloc.unwrap(), raw.calloc.unwrap());
        let (realloc, free) = (raw.realloc.unwrap(), raw.free.unwrap());
        for from in SIZES {
            for to in SIZES {
                // SAFETY: each block is used within its size, and freed once while the handle lives.
                unsafe {
                    let block: *mut c_void = malloc(raw.ctx, from);
                    block.cast::<u8>().write_bytes(7, from);
                    let block = realloc(raw.ctx, block, to).cast::<u8>();
                    let kept = std::slice::from_raw_parts(block, from.min(to));
                    assert!(kept.iter().all(|byte| *byte == 7));
                    block.write_bytes(8, to);
                    free(raw.ctx, block.cast(), from);
                    let zeroed = calloc(raw.ctx, from, 1).cast::<u8>();
                    let bytes = std::slice::from_raw_parts(zeroed, from);
                    assert!(bytes.iter().all(|byte| *byte == 0));
                    free(raw.ctx, zeroed.cast(), to);
                }
            }
        }
        // SAFETY: from `into_raw`, once.
        drop(unsafe { DataHandler::from_raw_handle(table) });
    }
}

#[test]
fn blocks_of_containers_are_whole_at_every_alignment() {
    for handler in handlers() {
        let alloc = DataAlloc::new(handler);
        for (from, to) in [1, 16, 64, 4096].into_iter().flat_map(|a| [1, 64, 512].map(|b| (a, b))) {
            let layout = |size, align| Layout::from_size_align(size, align).unwrap();
            let (old, new) = (layout(100, from), layout(300, to));
            // SAFETY: each block goes back once, with its layout.
            unsafe {
                let block: NonNull<u8> = alloc.allocate_zeroed(old).unwrap().cast();
                let grown = alloc.grow_zeroed(block, old, new).unwrap();
                assert!(grown.as_ref().iter().all(|byte| *byte == 0));
                assert!(grown.cast::<u8>().addr().get().is_multiple_of(to));
                let shrunk = alloc.shrink(grown.cast(), new, old).unwrap();
                alloc.deallocate(shrunk.cast(), old);
            }
        }
    }
}

#[test]
fn scopes_and_threads_drop_their_handlers() {
    for handler in handlers() {
        let name = handler.name().to_owned();
        with_data_handler(handler.clone(), || {
            assert_eq!(data_handler_name(), name);
            drop(set_data_handler(None));
        });
        std::thread::spawn(move || drop(set_data_handler(Some(handler)))).join().unwrap();
        assert_eq!(data_handler_version(), 1);
    }
}
