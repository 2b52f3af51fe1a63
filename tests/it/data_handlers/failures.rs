//! Handlers that fail, panic, and allocate.

use super::{C, counted};
use allocator_api2::alloc::{AllocError, Allocator};
use allocator_api2::vec::Vec as AllocVec;
use aquifer::{
    Error, ErrorKind,
    nep49::{
        DataAlloc, DataHandler, HandlerFunctions, current_data_handler, set_data_handler,
        with_data_handler,
    },
    pinned::last_error,
};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// The heap, but for the function that is to panic.
struct Panics {
    inside: DataHandler,
    function: Arc<Mutex<&'static str>>,
}

impl Panics {
    fn may_panic(&self, function: &'static str) {
        let panics = *self.function.lock().unwrap() == function;
        if panics {
            panic!("{function} had a bad day");
        }
    }
}

// SAFETY: the blocks of another handler.
unsafe impl HandlerFunctions for Panics {
    fn malloc(&self, bytes: usize) -> aquifer::Result<NonNull<u8>> {
        self.may_panic("malloc");
        Ok(NonNull::new(C(&self.inside).malloc(bytes)).unwrap())
    }

    unsafe fn realloc(&self, block: NonNull<u8>, bytes: usize) -> aquifer::Result<NonNull<u8>> {
        self.may_panic("realloc");
        Ok(NonNull::new(C(&self.inside).realloc(block.as_ptr(), bytes)).unwrap())
    }

    unsafe fn free(&self, block: NonNull<u8>, bytes: usize) {
        self.may_panic("free");
        C(&self.inside).free(block.as_ptr(), bytes);
    }
}

#[test]
fn a_panic_of_a_handler_is_an_error_for_rust_and_null_for_c() {
    let function = Arc::new(Mutex::new("none"));
    let inside = DataHandler::default();
    let functions = Panics { inside, function: function.clone() };
    let handler = DataHandler::from_functions("panics", functions).unwrap();
    let (alloc, c) = (DataAlloc::new(handler.clone()), C(&handler));
    let mut vec: AllocVec<u8, _> = AllocVec::new_in(alloc.clone());
    vec.extend(0..100);
    let block = c.malloc(10);

    *function.lock().unwrap() = "malloc";
    assert!(AllocVec::<u8, _>::new_in(alloc.clone()).try_reserve(10).is_err());
    let error = last_error().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(text.contains("\"panics\"") && text.contains("malloc had a bad day"), "{text}");
    // `calloc` is `malloc` and zeros, unless the handler has its own.
    assert!(alloc.allocate_zeroed(Layout::new::<u64>()).is_err());
    assert!(c.malloc(10).is_null() && c.calloc(10, 10).is_null());
    assert!(c.realloc(std::ptr::null_mut(), 10).is_null());
    assert!(last_error().unwrap().to_string().contains("malloc had a bad day"));

    *function.lock().unwrap() = "realloc";
    assert!(vec.try_reserve(1000).is_err());
    assert!(c.realloc(block, 1000).is_null());
    assert!(vec.iter().copied().eq(0..100), "the block is as it was");

    *function.lock().unwrap() = "free";
    c.free(block, 10);
    drop(vec); // leaked, and nothing unwinds
}

#[test]
fn calloc_is_zeroed_without_a_function_of_its_own() {
    let functions = Panics { inside: DataHandler::default(), function: Arc::new(Mutex::new("")) };
    let handler = DataHandler::from_functions("zeros", functions).unwrap();
    let (alloc, c) = (DataAlloc::new(handler.clone()), C(&handler));
    for _ in 0..20 {
        let dirty = c.malloc(1000);
        // SAFETY: a block of as many bytes.
        unsafe { dirty.write_bytes(0xff, 1000) };
        c.free(dirty, 1000);
        let block = c.calloc(10, 100);
        // SAFETY: a zeroed block of as many bytes.
        assert!(unsafe { std::slice::from_raw_parts(block, 1000) }.iter().all(|it| *it == 0));
        c.free(block, 1000);
    }
    assert!(c.calloc(usize::MAX, 2).is_null());
    let layout = Layout::new::<[u64; 16]>();
    let block = alloc.allocate_zeroed(layout).unwrap();
    // SAFETY: a zeroed block, freed once.
    unsafe {
        assert!(block.as_ref().iter().all(|it| *it == 0));
        alloc.deallocate(block.cast(), layout);
    }
}

/// Panics when it is dropped.
struct BadOwner;

impl Drop for BadOwner {
    fn drop(&mut self) {
        panic!("an owner that does not go in peace");
    }
}

#[test]
fn an_owner_that_panics_when_it_is_dropped_unwinds_nothing() {
    let raw = *DataHandler::default().as_raw();
    // SAFETY: the default handler stays.
    let handler = unsafe { DataHandler::from_raw(raw, BadOwner) }.unwrap();
    let mut vec: AllocVec<u8, _> = AllocVec::new_in(DataAlloc::new(handler));
    vec.push(1);
    drop(vec);
}

/// Allocates from what is current, under a lock, in each of its functions.
struct Allocates {
    lock: Mutex<AllocVec<usize, DataAlloc>>,
    seen: Arc<Mutex<Vec<String>>>,
    default: DataHandler,
}

impl Allocates {
    fn work(&self) {
        // A handler that called itself would find its lock taken.
        let mut lock = self.lock.try_lock().unwrap();
        lock.push(1);
        let current: AllocVec<u64, _> = AllocVec::with_capacity_in(100, DataAlloc::current());
        self.seen.lock().unwrap().push(current.allocator().handler_name().into());
    }
}

// SAFETY: the default handler's blocks.
unsafe impl HandlerFunctions for Allocates {
    fn malloc(&self, bytes: usize) -> aquifer::Result<NonNull<u8>> {
        self.work();
        Ok(NonNull::new(C(&self.default).malloc(bytes)).unwrap())
    }

    unsafe fn realloc(&self, block: NonNull<u8>, bytes: usize) -> aquifer::Result<NonNull<u8>> {
        self.work();
        Ok(NonNull::new(C(&self.default).realloc(block.as_ptr(), bytes)).unwrap())
    }

    unsafe fn free(&self, block: NonNull<u8>, bytes: usize) {
        self.work();
        C(&self.default).free(block.as_ptr(), bytes);
    }
}

#[test]
fn a_handler_that_allocates_from_what_is_current_does_not_call_itself() {
    let (default, seen) = (DataHandler::default(), Arc::<Mutex<Vec<String>>>::default());
    let lock = Mutex::new(AllocVec::new_in(DataAlloc::new(default.clone())));
    let functions = Allocates { lock, seen: seen.clone(), default };
    let handler = DataHandler::from_functions("allocates", functions).unwrap();
    with_data_handler(handler.clone(), || {
        let mut vec: AllocVec<u64, _> = AllocVec::new_in(DataAlloc::current());
        vec.extend(0..1000);
        assert_eq!(vec.allocator().handler(), &handler);
        drop(vec);
        // As C calls it, too.
        let c = C(&handler);
        c.free(c.realloc(c.malloc(10), 20), 0);
        assert_eq!(current_data_handler(), handler);
    });
    let seen = seen.lock().unwrap();
    assert!(seen.len() >= 5 && seen.iter().all(|name| name == "aquifer_default"), "{seen:?}");
}

/// Sets another handler in its first call.
struct Sets {
    calls: AtomicUsize,
    other: DataHandler,
}

// SAFETY: the other handler's blocks.
unsafe impl HandlerFunctions for Sets {
    fn malloc(&self, bytes: usize) -> aquifer::Result<NonNull<u8>> {
        if self.calls.fetch_add(1, SeqCst) == 0 {
            let before = set_data_handler(Some(self.other.clone()));
            assert_eq!((before.name(), current_data_handler()), ("sets", DataHandler::default()));
        }
        Ok(NonNull::new(C(&self.other).malloc(bytes)).unwrap())
    }

    unsafe fn realloc(&self, _block: NonNull<u8>, _bytes: usize) -> aquifer::Result<NonNull<u8>> {
        Err(Error::new(ErrorKind::OutOfMemory, "it never grows"))
    }

    unsafe fn free(&self, block: NonNull<u8>, bytes: usize) {
        C(&self.other).free(block.as_ptr(), bytes);
    }
}

#[test]
fn what_a_function_sets_shows_when_it_has_returned() {
    let other = counted("other").0;
    let functions = Sets { calls: AtomicUsize::new(0), other: other.clone() };
    let handler = DataHandler::from_functions("sets", functions).unwrap();
    with_data_handler(handler, || {
        let vec: AllocVec<u8, _> = AllocVec::with_capacity_in(10, DataAlloc::current());
        assert_eq!((vec.allocator().handler_name(), current_data_handler()), ("sets", other));
    });
}

/// An allocator that has no room.
struct Full;

// SAFETY: no block is ever there.
unsafe impl Allocator for Full {
    fn allocate(&self, _layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        Err(AllocError)
    }

    unsafe fn deallocate(&self, _block: NonNull<u8>, _layout: Layout) {}
}

#[test]
fn an_allocator_without_room_has_a_reason() {
    let handler = DataHandler::new("full", Full).unwrap();
    let mut vec: AllocVec<u8, _> = AllocVec::new_in(DataAlloc::new(handler.clone()));
    assert!(vec.try_reserve(100).is_err());
    let error = last_error().unwrap();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("the data handler \"full\""), "{error}");
    assert!(C(&handler).malloc(10).is_null());
}

#[test]
fn a_handler_within_a_handler() {
    let (inner, calls) = counted("inner");
    let outer = DataHandler::new("outer", DataAlloc::new(inner)).unwrap();
    let mut vec: AllocVec<u32, _> = AllocVec::new_in(DataAlloc::new(outer));
    vec.extend(0..10_000);
    assert_eq!((vec.allocator().handler_name(), calls.live()), ("outer", 1));
    vec.truncate(10);
    vec.shrink_to_fit();
    assert!(vec.iter().copied().eq(0..10));
    drop(vec);
    assert_eq!((calls.live(), calls.dropped()), (0, 1));
}

/// The heap, which panics when it has freed a block.
#[derive(Clone, Default)]
struct PanicsAtFree {
    live: Arc<Mutex<Vec<usize>>>,
    freed_twice: Arc<AtomicUsize>,
}

// SAFETY: Rust's heap; a block that is freed twice is counted, and not freed again.
unsafe impl Allocator for PanicsAtFree {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let block = allocator_api2::alloc::Global.allocate(layout)?;
        self.live.lock().unwrap().push(block.cast::<u8>().addr().get());
        Ok(block)
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        let mut live = self.live.lock().unwrap();
        let Some(place) = live.iter().position(|address| *address == block.addr().get()) else {
            self.freed_twice.fetch_add(1, SeqCst);
            return;
        };
        live.remove(place);
        drop(live);
        // SAFETY: the caller's promise, of a block of the heap.
        unsafe { allocator_api2::alloc::Global.deallocate(block, layout) };
        panic!("at the end of a free");
    }
}

#[test]
fn a_block_that_moved_is_not_freed_again_where_its_free_panicked() {
    let allocator = PanicsAtFree::default();
    let handler = DataHandler::new("panics", allocator.clone()).unwrap();
    let mut vec: AllocVec<u8, _> = AllocVec::with_capacity_in(100, DataAlloc::new(handler));
    vec.extend(0..100);
    // Large blocks have another header.
    vec.try_reserve_exact(5000).unwrap();
    assert!(vec.iter().copied().eq(0..100));
    drop(vec);
    assert_eq!(allocator.freed_twice.load(SeqCst), 0);
    assert_eq!(*allocator.live.lock().unwrap(), []);
}
