//! The sample of NEP 49: each block begins behind a header of 64 bytes that has its size. The header of a block that was
//! resized has the new size here; the sample leaves the old one.

use crate::contract;
use aquifer::nep49::{DataAlloc, DataHandler, RawDataAllocator, RawDataHandler};
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const HEADER: usize = 64;

/// What the sample prints as `uh-oh`.
static UNMATCHED: AtomicUsize = AtomicUsize::new(0);
static OTHER_SIZES: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Writes the header, and returns the block behind it.
///
/// # Safety
///
/// `real` is null, or a block of the header's size and more.
unsafe fn behind_header(real: *mut c_void, size: usize, how: &CStr) -> *mut c_void {
    if real.is_null() {
        return real;
    }
    // SAFETY: the caller's promise; the text is shorter than the header.
    unsafe {
        libc::snprintf(
            real.cast(),
            HEADER,
            c"originally allocated %ld%s".as_ptr(),
            size as libc::c_long,
            how.as_ptr(),
        );
        real.byte_add(HEADER)
    }
}

fn counted(block: *mut c_void) -> *mut c_void {
    LIVE.fetch_add(usize::from(!block.is_null()), SeqCst);
    block
}

unsafe extern "C" fn shift_alloc(_: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: a new block.
    unsafe { counted(behind_header(libc::malloc(size + HEADER), size, c"")) }
}

/// The sample multiplies the number of bytes and the header. It is right for elements of one byte.
unsafe extern "C" fn shift_zero(_: *mut c_void, size: usize, count: usize) -> *mut c_void {
    // SAFETY: a new block.
    unsafe { counted(behind_header(libc::calloc(size + HEADER, count), size, c" via zero")) }
}

unsafe extern "C" fn shift_free(_: *mut c_void, block: *mut c_void, size: usize) {
    if block.is_null() {
        return;
    }
    LIVE.fetch_sub(1, SeqCst);
    // SAFETY: a block of the functions above, which has a header.
    unsafe {
        let real = block.byte_sub(HEADER).cast::<c_char>();
        if libc::strncmp(real, c"originally allocated".as_ptr(), 20) != 0 {
            UNMATCHED.fetch_add(1, SeqCst);
            return;
        }
        if libc::atol(real.add(20)) as usize != size {
            OTHER_SIZES.fetch_add(1, SeqCst);
        }
        libc::free(real.cast());
    }
}

unsafe extern "C" fn shift_realloc(
    ctx: *mut c_void,
    block: *mut c_void,
    size: usize,
) -> *mut c_void {
    if block.is_null() {
        // SAFETY: as the caller.
        return unsafe { shift_alloc(ctx, size) };
    }
    // SAFETY: a block of the functions above, which has a header.
    unsafe {
        let real = block.byte_sub(HEADER);
        if libc::strncmp(real.cast(), c"originally allocated".as_ptr(), 20) != 0 {
            UNMATCHED.fetch_add(1, SeqCst);
            return libc::realloc(block, size);
        }
        behind_header(libc::realloc(real, size + HEADER), size, c" via realloc")
    }
}

#[test]
fn the_sample_of_nep_49_serves_containers_and_finds_each_size_right() {
    let mut name = [0; 127];
    for (to, from) in name.iter_mut().zip(b"secret_data_allocator") {
        *to = *from as c_char;
    }
    let allocator = RawDataAllocator {
        ctx: std::ptr::null_mut(),
        malloc: Some(shift_alloc),
        calloc: Some(shift_zero),
        realloc: Some(shift_realloc),
        free: Some(shift_free),
    };
    // SAFETY: the functions keep the contract, and are the program's own.
    let handler =
        unsafe { DataHandler::from_raw(RawDataHandler { name, version: 1, allocator }, ()) };
    let handler = handler.unwrap();
    assert_eq!((handler.name(), handler.version()), ("secret_data_allocator", 1));
    contract::check(|| DataAlloc::new(handler.clone()));
    assert_eq!([&UNMATCHED, &OTHER_SIZES, &LIVE].map(|count| count.load(SeqCst)), [0, 0, 0]);
}
