//! Tables of C functions: those that a host calls, and those that it brings.

use super::{C, Strict, counted};
use allocator_api2::alloc::Global;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::{
    ErrorKind,
    nep49::{DataAlloc, DataHandler, RawDataAllocator, RawDataHandler},
    pinned::last_error,
};
use std::ffi::{c_char, c_void};
use std::mem::offset_of;
use std::sync::{Arc, Mutex};

fn heap_handlers() -> Vec<DataHandler> {
    vec![
        DataHandler::default(),
        DataHandler::aligned(64).unwrap(),
        DataHandler::new("of the heap", Global).unwrap(),
        DataHandler::new("strict", Strict { blocks: Arc::default() }).unwrap(),
        counted("counted").0,
    ]
}

fn handlers() -> Vec<DataHandler> {
    let placed = [DataHandler::huge_pages(), DataHandler::numa(0)];
    heap_handlers().into_iter().chain(placed.into_iter().flatten()).collect()
}

#[test]
#[cfg(target_pointer_width = "64")]
fn the_table_is_laid_out_as_numpys() {
    assert_eq!((size_of::<RawDataHandler>(), align_of::<RawDataHandler>()), (168, 8));
    assert_eq!(offset_of!(RawDataHandler, name), 0);
    assert_eq!(offset_of!(RawDataHandler, version), 127);
    let allocator = offset_of!(RawDataHandler, allocator);
    let fields = [
        offset_of!(RawDataAllocator, ctx),
        offset_of!(RawDataAllocator, malloc),
        offset_of!(RawDataAllocator, calloc),
        offset_of!(RawDataAllocator, realloc),
        offset_of!(RawDataAllocator, free),
    ];
    assert_eq!(fields.map(|field| allocator + field), [128, 136, 144, 152, 160]);
}

#[test]
fn the_bytes_of_a_table_are_the_name_the_version_and_pointers() {
    let handler = DataHandler::aligned(64).unwrap();
    let raw = handler.as_raw();
    // SAFETY: the name and the version have no padding.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const *raw).cast::<u8>(), 128) };
    let name = b"aquifer_aligned_64";
    assert!(bytes.starts_with(name));
    assert!(bytes[name.len()..127].iter().all(|byte| *byte == 0));
    assert_eq!(bytes[127], 1);
    let clone = handler.clone();
    assert!(std::ptr::eq(raw, clone.as_raw()), "it stays where it is");
}

/// Fills a block of so many bytes, and looks at the first of them.
fn fill(block: *mut u8, bytes: usize, seed: u8) {
    // SAFETY: a block of the test's.
    unsafe { block.write_bytes(seed, bytes) };
}

#[track_caller]
fn holds(block: *mut u8, bytes: usize, seed: u8) {
    assert!(!block.is_null());
    // SAFETY: a block of the test's, written before.
    let bytes = unsafe { std::slice::from_raw_parts(block, bytes) };
    assert!(bytes.iter().all(|byte| *byte == seed));
}

const SIZES: [usize; 12] =
    [0, 1, 15, 16, 17, 1000, 1023, 1024, 4096, 65_535, 3 << 20, (8 << 20) + 3];

#[test]
fn a_c_program_gets_aligned_blocks_of_every_size() {
    for handler in handlers() {
        let c = C(&handler);
        let blocks = SIZES.map(|size| (size, c.malloc(size), c.calloc(size, 1)));
        for (size, one, two) in blocks {
            holds(two, size, 0);
            for block in [one, two] {
                assert!(block.addr().is_multiple_of(16), "{size} of {handler:?}");
                fill(block, size, size as u8);
            }
        }
        for (size, one, two) in blocks {
            holds(one, size, size as u8);
            holds(two, size, size as u8);
            c.free(one, size);
            c.free(two, size);
        }
    }
}

#[test]
fn large_blocks_of_an_allocator_are_aligned_to_64_bytes() {
    for handler in [DataHandler::new("of the heap", Global).unwrap(), DataHandler::pinned()] {
        let c = C(&handler);
        let blocks = [1024, 1100, 2000, 3001].map(|size| (size, c.malloc(size)));
        for (size, block) in blocks {
            assert!(block.addr().is_multiple_of(64), "{size}: {block:?}");
            c.free(block, size);
        }
    }
}

#[test]
fn wrong_sizes_to_free_and_to_realloc_find_the_block_all_the_same() {
    for handler in handlers() {
        let c = C(&handler);
        for size in SIZES {
            for said in [0, 1, size / 2, size + 1, 4096, usize::MAX] {
                let block = c.malloc(size);
                fill(block, size, 7);
                c.free(block, said);
            }
        }
    }
}

#[test]
fn null_and_no_bytes_are_as_in_c() {
    for handler in handlers() {
        let c = C(&handler);
        c.free(std::ptr::null_mut(), 0);
        c.free(std::ptr::null_mut(), 100);
        let [one, two] = [c.malloc(0), c.malloc(0)];
        assert!(!one.is_null() && !two.is_null() && one != two, "{handler:?}");
        let none = [c.calloc(0, 0), c.calloc(0, usize::MAX), c.calloc(usize::MAX, 0)];
        assert!(none.iter().all(|block| !block.is_null()), "{handler:?}");
        let grown = c.realloc(one, 5000);
        fill(grown, 5000, 3);
        let gone = c.realloc(grown, 0);
        assert!(!gone.is_null(), "{handler:?}");
        let back = c.realloc(gone, 100);
        fill(back, 100, 4);
        c.free(back, 100);
        c.free(two, 0);
        none.into_iter().for_each(|block| c.free(block, 0));
        let new = c.realloc(std::ptr::null_mut(), 100);
        fill(new, 100, 5);
        c.free(new, 100);
    }
}

#[test]
fn realloc_keeps_the_bytes_between_all_sizes() {
    for handler in handlers() {
        let c = C(&handler);
        for from in SIZES {
            for to in SIZES {
                let block = c.malloc(from);
                fill(block, from, 9);
                let block = c.realloc(block, to);
                holds(block, from.min(to), 9);
                assert!(block.addr().is_multiple_of(16));
                fill(block, to, 8);
                c.free(block, to);
            }
        }
    }
}

#[test]
fn what_is_too_large_is_null_and_leaves_the_block() {
    for handler in handlers() {
        let c = C(&handler);
        let block = c.malloc(100);
        fill(block, 100, 6);
        for much in [isize::MAX as usize - 4096, isize::MAX as usize, usize::MAX - 63, usize::MAX] {
            assert!(c.malloc(much).is_null(), "{much} of {handler:?}");
            assert!(last_error().is_some());
            assert!(c.calloc(much, 1).is_null(), "{much} of {handler:?}");
            assert!(c.realloc(block, much).is_null(), "{much} of {handler:?}");
        }
        for (count, size) in [(usize::MAX, 2), (1 << 40, 1 << 40), (3, usize::MAX / 2)] {
            assert!(c.calloc(count, size).is_null(), "{count} of {size} of {handler:?}");
            assert_eq!(last_error().unwrap().kind(), ErrorKind::InvalidArgument);
        }
        holds(block, 100, 6);
        c.free(block, 100);
    }
}

#[test]
fn a_block_of_a_container_is_one_of_the_tables() {
    for handler in heap_handlers() {
        let mut vec: AllocVec<u8, _> = AllocVec::new_in(DataAlloc::new(handler.clone()));
        vec.resize(2000, 5);
        let (block, length, capacity, alloc) = vec.into_raw_parts_with_alloc();
        let block = C(&handler).realloc(block, 4000);
        holds(block, length, 5);
        drop(alloc);
        C(&handler).free(block, capacity);
    }
}

#[test]
fn threads_share_a_table() {
    for handler in handlers() {
        let (give, take) = std::sync::mpsc::channel::<(usize, usize)>();
        std::thread::scope(|scope| {
            for seed in 1..4_usize {
                let (give, handler) = (give.clone(), &handler);
                scope.spawn(move || {
                    for round in 0..300_usize {
                        let size = (round * seed * 37) % 5000 + 1;
                        let block = C(handler).malloc(size);
                        fill(block, size, size as u8);
                        give.send((block.expose_provenance(), size)).unwrap();
                    }
                });
            }
            drop(give);
            for (address, size) in take {
                let block = std::ptr::with_exposed_provenance_mut(address);
                holds(block, size, size as u8);
                C(&handler).free(block, 0);
            }
        });
    }
}

#[test]
fn names_of_126_bytes_fit_and_longer_ones_are_refused() {
    let fits = "n".repeat(126);
    let handler = DataHandler::new(fits.clone(), Global).unwrap();
    assert_eq!((handler.name(), handler.as_raw().name_text().unwrap()), (&*fits, &*fits));
    assert_eq!(handler.as_raw().name[126], 0, "C finds the end");
    // 126 bytes of 63 characters, and one character more.
    assert!(DataHandler::new("é".repeat(63), Global).is_ok());
    let table = handler.as_raw().allocator;
    for name in ["n".repeat(127), "n".repeat(1000), "é".repeat(64), "a\0b".into()] {
        let errors = [
            DataHandler::new(name.clone(), Global).unwrap_err(),
            RawDataHandler::new(&name, table).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.kind() == ErrorKind::InvalidArgument), "{name}");
    }
    assert_eq!(DataHandler::new("", Global).unwrap().name(), "");
}

/// Says when it is dropped.
struct Owner(Arc<Mutex<usize>>);

impl Drop for Owner {
    fn drop(&mut self) {
        *self.0.lock().unwrap() += 1;
    }
}

#[test]
fn a_table_with_a_hole_is_refused() {
    let whole = *DataHandler::default().as_raw();
    let drops = Arc::<Mutex<usize>>::default();
    type Edit = fn(&mut RawDataHandler);
    let edits: [(Edit, ErrorKind, &str); 9] = [
        (|raw| raw.allocator.malloc = None, ErrorKind::InvalidArgument, "malloc"),
        (|raw| raw.allocator.calloc = None, ErrorKind::InvalidArgument, "calloc"),
        (|raw| raw.allocator.realloc = None, ErrorKind::InvalidArgument, "realloc"),
        (|raw| raw.allocator.free = None, ErrorKind::InvalidArgument, "free"),
        (|raw| raw.version = 0, ErrorKind::Unsupported, "version 0"),
        (|raw| raw.version = 2, ErrorKind::Unsupported, "version 2"),
        (|raw| raw.name = [b'n' as c_char; 127], ErrorKind::InvalidArgument, "no end"),
        (|raw| raw.name[0] = -1_i8 as c_char, ErrorKind::InvalidArgument, "UTF-8"),
        // SAFETY: null pointers are what the type allows.
        (|raw| *raw = unsafe { std::mem::zeroed() }, ErrorKind::Unsupported, "version 0"),
    ];
    let count = edits.len();
    for (edit, kind, text) in edits {
        let mut raw = whole;
        edit(&mut raw);
        // SAFETY: it is refused.
        let error = unsafe { DataHandler::from_raw(raw, Owner(drops.clone())) }.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    assert_eq!(*drops.lock().unwrap(), count, "the owners are dropped");
    // SAFETY: the default handler stays.
    let handler = unsafe { DataHandler::from_raw(whole, Owner(drops.clone())) }.unwrap();
    let vec: AllocVec<u8, _> = AllocVec::with_capacity_in(10, DataAlloc::new(handler));
    assert_eq!((vec.allocator().handler_version(), *drops.lock().unwrap()), (1, count));
    drop(vec);
    assert_eq!(*drops.lock().unwrap(), count + 1);
}

/// What the functions below were called with.
#[derive(Debug, Default)]
struct Seen(Mutex<Vec<(&'static str, usize, usize)>>);

impl Seen {
    fn note(ctx: *mut c_void, what: &'static str, one: usize, two: usize) {
        // SAFETY: the context of the test.
        let seen = unsafe { &*ctx.cast::<Self>() };
        seen.0.lock().unwrap().push((what, one, two));
    }
}

unsafe extern "C" fn malloc(ctx: *mut c_void, size: usize) -> *mut c_void {
    Seen::note(ctx, "malloc", size, 0);
    // SAFETY: may be called with any size.
    if size > 1 << 20 { std::ptr::null_mut() } else { unsafe { libc::malloc(size) } }
}

unsafe extern "C" fn calloc(ctx: *mut c_void, nelem: usize, elsize: usize) -> *mut c_void {
    Seen::note(ctx, "calloc", nelem, elsize);
    // SAFETY: may be called with any sizes.
    unsafe { libc::calloc(nelem, elsize) }
}

unsafe extern "C" fn realloc(ctx: *mut c_void, ptr: *mut c_void, size: usize) -> *mut c_void {
    Seen::note(ctx, "realloc", size, 0);
    // SAFETY: a block of these functions.
    if size > 1 << 20 { std::ptr::null_mut() } else { unsafe { libc::realloc(ptr, size) } }
}

unsafe extern "C" fn free(ctx: *mut c_void, ptr: *mut c_void, size: usize) {
    Seen::note(ctx, "free", size, 0);
    // SAFETY: a block of these functions.
    unsafe { libc::free(ptr) }
}

#[test]
fn a_c_programs_functions_are_called_as_numpy_calls_them() {
    let seen = Box::leak(Box::<Seen>::default());
    let table = RawDataAllocator {
        ctx: (&raw const *seen).cast_mut().cast(),
        malloc: Some(malloc),
        calloc: Some(calloc),
        realloc: Some(realloc),
        free: Some(free),
    };
    let raw = RawDataHandler::new("theirs", table).unwrap();
    // SAFETY: the functions are C's, and the context stays.
    let handler = unsafe { DataHandler::from_raw(raw, ()) }.unwrap();
    let alloc = DataAlloc::new(handler.clone());
    let mut vec: AllocVec<u32, _> = AllocVec::with_capacity_in(10, alloc.clone());
    vec.reserve_exact(100);
    assert!(vec.try_reserve_exact(1 << 20).is_err(), "null is an error, and leaves the block");
    let error = last_error().unwrap();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("realloc of the data handler \"theirs\""), "{error}");
    drop(vec);
    assert!(AllocVec::<u8, _>::new_in(alloc).try_reserve(2 << 20).is_err());
    let seen = std::mem::take(&mut *seen.0.lock().unwrap());
    let reallocs = [("realloc", 400, 0), ("realloc", 4 << 20, 0)];
    assert_eq!(seen[..3], [("malloc", 40, 0), reallocs[0], reallocs[1]]);
    let rest: Vec<_> = seen[3..].iter().filter(|call| **call != reallocs[1]).collect();
    assert_eq!(*rest[0], ("free", 400, 0));
    // A refused allocation may be tried again, when memory of dropped transfers was found.
    assert!(rest[1..].iter().all(|call| **call == ("malloc", 2 << 20, 0)), "{rest:?}");
}

#[test]
fn a_c_program_keeps_a_handle_in_its_table() {
    let (handler, calls) = counted("in a capsule");
    let table = handler.into_raw();
    // SAFETY: the table stays until its handle is taken back.
    let raw = unsafe { table.as_ref() };
    assert_eq!(raw.name_text().unwrap(), "in a capsule");
    // SAFETY: the handle in the table lives.
    let block = unsafe { raw.allocator.malloc.unwrap()(raw.allocator.ctx, 10) };
    // SAFETY: as above, and the block is the test's.
    unsafe { raw.allocator.free.unwrap()(raw.allocator.ctx, block, 10) };
    assert_eq!((calls.live(), calls.dropped()), (0, 0));
    // SAFETY: the table of `into_raw`, once.
    let handler = unsafe { DataHandler::from_raw_handle(table) };
    assert_eq!(handler.name(), "in a capsule");
    drop(handler);
    assert_eq!(calls.dropped(), 1);
}
