//! The host memory behind a block, and watchpoints over the parts with a copy in flight.

use aquifer_sync::trusted::Mutex;
use std::alloc::Layout;
use std::ptr::NonNull;

/// The value of bytes that were never written.
pub(crate) const POISON: u8 = 0xa5;

/// Larger blocks stay zero, so that the system provides their pages as they are touched.
const POISON_LIMIT: usize = 64 << 20;

/// A watchpoint over a range with a copy that has not run yet. Only the device may write there.
#[derive(Debug)]
struct WatchedRange {
    id: u64,
    start: usize,
    bytes: usize,
    /// `None` while a running operation writes to this memory. The operation takes the sum at its end.
    sum: Option<u64>,
    broken: bool,
}

impl WatchedRange {
    fn overlaps(&self, start: usize, bytes: usize) -> bool {
        self.start < start + bytes && start < self.start + self.bytes
    }

    fn compare(&mut self) {
        if self.sum.is_some_and(|sum| sum != checksum(self.start as *const u8, self.bytes)) {
            self.broken = true;
        }
    }
}

/// Memory of the simulator, and how it is freed.
#[derive(Debug)]
enum OwnedMemory {
    Heap(NonNull<u8>, Layout),
    #[cfg(target_os = "linux")]
    Pages(NonNull<u8>, usize),
}

/// A live range of host memory. It is the simulator's, or the caller's, who registered it.
#[derive(Debug)]
pub(crate) struct Backing {
    pointer: NonNull<u8>,
    /// Freed on drop. `None` for memory of the caller.
    _owned: Option<OwnedMemory>,
    /// A number that every backing of the same bytes has. 0 for memory of its own.
    shared: usize,
    watches: Mutex<Vec<WatchedRange>>,
}

// SAFETY: the memory is reached through raw pointers alone, by operations that the scheduler runs
// one at a time for each backing; the fields never change but for the watches under their lock.
unsafe impl Send for Backing {}
// SAFETY: as above.
unsafe impl Sync for Backing {}

impl Backing {
    /// Allocates memory aligned to `alignment`, a power of two. `None` if the host has too little. With
    /// `poison`, blocks of up to 64 MiB are filled. The pages of others are taken as they are touched.
    pub(crate) fn allocate(bytes: usize, alignment: usize, poison: bool) -> Option<Self> {
        let poison = poison && bytes <= POISON_LIMIT;
        // Aligned by hand: the allocator clears memory of a small alignment without touching it,
        // and that of a large one by writing to all of it.
        let padded = bytes.checked_add(alignment)?;
        let (base, owned) = if poison { heap_zeroed(padded)? } else { untouched_pages(padded)? };
        let mut memory =
            Self { pointer: base, _owned: Some(owned), shared: 0, watches: Mutex::default() };
        let skip = base.as_ptr().align_offset(alignment);
        if skip > alignment {
            return None;
        }
        // SAFETY: there are `alignment` bytes more than `bytes`, and `skip` is no more.
        let pointer = unsafe { base.add(skip) };
        if poison {
            // SAFETY: `bytes` from `pointer` lie inside the allocation made above.
            unsafe { pointer.as_ptr().write_bytes(POISON, bytes) };
        }
        memory.pointer = pointer;
        Some(memory)
    }

    /// Memory that the caller keeps alive until it unregisters it.
    pub(crate) fn registered(pointer: NonNull<u8>) -> Self {
        Self { pointer, _owned: None, shared: 0, watches: Mutex::default() }
    }

    /// Addresses that show nothing yet. `shared` is the device whose memory they come to show.
    #[cfg(target_os = "linux")]
    pub(crate) fn addresses(bytes: usize, shared: usize) -> Option<Self> {
        let (pointer, owned) = map_pages(bytes)?;
        Some(Self { pointer, _owned: Some(owned), shared, watches: Mutex::default() })
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn addresses(_: usize, _: usize) -> Option<Self> {
        None
    }

    /// Has a part of [`addresses`](Self::addresses) show a part of a file, or zeroed memory of its own. In that, an
    /// operation that was reported does no harm. Both are multiples of the page.
    #[cfg(target_os = "linux")]
    pub(crate) fn show(
        &self,
        start: usize,
        bytes: usize,
        part: Option<(&std::fs::File, u64)>,
    ) -> std::io::Result<()> {
        use std::os::fd::AsRawFd;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let nothing = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let (flags, file, offset) = match part {
            Some((file, offset)) => (libc::MAP_SHARED, file.as_raw_fd(), offset),
            None => (nothing, -1, 0),
        };
        let offset = libc::off_t::try_from(offset).map_err(std::io::Error::other)?;
        let at = self.pointer.as_ptr().wrapping_add(start).cast();
        // SAFETY: the range lies in the addresses that this block owns, whose bytes operations reach by raw pointers.
        let shown = unsafe { libc::mmap(at, bytes, access, flags | libc::MAP_FIXED, file, offset) };
        if shown == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Identifies the bytes among all that are alive.
    pub(crate) fn memory_id(&self) -> usize {
        if self.shared == 0 { std::ptr::from_ref(self) as usize } else { self.shared }
    }

    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// Sets a watchpoint until [`unwatch`](Self::unwatch). `quiet` says that no running operation
    /// writes to this memory.
    pub(crate) fn watch(&self, id: u64, start: *const u8, bytes: usize, quiet: bool) {
        let sum = quiet.then(|| checksum(start, bytes));
        let watch = WatchedRange { id, start: start as usize, bytes, sum, broken: false };
        self.watches.lock().push(watch);
    }

    /// Removes a watchpoint. Returns whether the host wrote meanwhile, as far as is known. With `look`, the range
    /// itself is compared.
    pub(crate) fn unwatch(&self, id: u64, look: bool) -> bool {
        let mut watches = self.watches.lock();
        let Some(index) = watches.iter().position(|watch| watch.id == id) else { return false };
        let mut watch = watches.swap_remove(index);
        drop(watches);
        if look {
            watch.compare();
        }
        watch.broken
    }

    /// Notes that the device is about to write. Any change until now was the host's.
    pub(crate) fn before_write(&self, start: usize, bytes: usize) {
        for watch in self.watches.lock().iter_mut().filter(|watch| watch.overlaps(start, bytes)) {
            watch.compare();
        }
    }

    /// Notes that the device has written. Also completes the watchpoints that were set meanwhile.
    pub(crate) fn after_write(&self, start: usize, bytes: usize) {
        for watch in self.watches.lock().iter_mut() {
            if watch.sum.is_none() || watch.overlaps(start, bytes) {
                watch.sum = Some(checksum(watch.start as *const u8, watch.bytes));
            }
        }
    }
}

/// Zeroed memory of the allocator.
fn heap_zeroed(bytes: usize) -> Option<(NonNull<u8>, OwnedMemory)> {
    let layout = Layout::from_size_align(bytes, 16).ok()?;
    // SAFETY: the layout is not of zero bytes, since an alignment is at least one.
    let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
    Some((base, OwnedMemory::Heap(base, layout)))
}

/// Zeroed memory that takes pages as they are touched, and may be larger than the host's. So a device of 80 GB can be
/// simulated on a laptop.
#[cfg(all(target_os = "linux", not(miri)))]
fn untouched_pages(bytes: usize) -> Option<(NonNull<u8>, OwnedMemory)> {
    /// Smaller blocks are not worth a system call.
    const SMALL: usize = 1 << 20;
    if bytes < SMALL { heap_zeroed(bytes) } else { map_pages(bytes) }
}

#[cfg(target_os = "linux")]
fn map_pages(bytes: usize) -> Option<(NonNull<u8>, OwnedMemory)> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the system's choice overlaps no other memory.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return None;
    }
    let base = NonNull::new(base.cast())?;
    Some((base, OwnedMemory::Pages(base, bytes)))
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn untouched_pages(bytes: usize) -> Option<(NonNull<u8>, OwnedMemory)> {
    heap_zeroed(bytes)
}

impl Drop for OwnedMemory {
    fn drop(&mut self) {
        match *self {
            // SAFETY: `heap_zeroed` made it with this layout; it is freed here alone.
            Self::Heap(base, layout) => unsafe { std::alloc::dealloc(base.as_ptr(), layout) },
            #[cfg(target_os = "linux")]
            Self::Pages(base, bytes) => {
                // SAFETY: `map_pages` mapped these bytes; they are unmapped here alone.
                unsafe { libc::munmap(base.as_ptr().cast(), bytes) };
            }
        }
    }
}

/// The machine's physical memory in bytes. Page-locked memory cannot exceed it, since it stays in place. `None` if that
/// is not known.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn physical_memory() -> Option<u64> {
    // SAFETY: a question that takes and changes no memory.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    // SAFETY: as above.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(pages).ok()?.checked_mul(u64::try_from(bytes).ok()?)
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn physical_memory() -> Option<u64> {
    None
}

/// Whether a range is memory of this process as a whole, as far as the system tells. A range that goes around the
/// end of the address space is not.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn is_mapped(pointer: NonNull<u8>, bytes: usize) -> bool {
    // SAFETY: a question that takes and changes no memory.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let start = pointer.as_ptr() as usize;
    let (Some(end), Ok(page)) = (start.checked_add(bytes), usize::try_from(page)) else {
        return false;
    };
    let first = start - start % page.max(1);
    // It looks at mappings, not at their pages, so that a large range costs no more than a small one.
    // SAFETY: on Linux, an asynchronous `msync` writes nothing: it looks whether all of the range is mapped.
    unsafe {
        libc::msync(std::ptr::without_provenance_mut(first), end - first, libc::MS_ASYNC) == 0
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn is_mapped(pointer: NonNull<u8>, bytes: usize) -> bool {
    /// No system maps the first page.
    const FIRST_PAGE: usize = 4096;
    let start = pointer.as_ptr() as usize;
    start >= FIRST_PAGE && start.checked_add(bytes).is_some()
}

/// A checksum of a range, which the caller of its copy keeps readable.
fn checksum(start: *const u8, bytes: usize) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    // The optimiser must not connect this range with memory whose bytes it knows to be unwritten.
    let start = std::hint::black_box(start);
    // Four lanes, so that the multiplications do not wait for each other.
    let mut lanes = [BASIS, BASIS ^ 1, BASIS ^ 2, BASIS ^ 3];
    let (words, rest) = (bytes / 8, bytes % 8);
    for index in 0..words {
        // SAFETY: inside the range, which stays readable until the copy has run: its `SimOp` keeps the
        // block alive, or the contract of the registration does.
        let word = unsafe { start.cast::<u64>().add(index).read_unaligned() };
        let lane = &mut lanes[index % 4];
        *lane = (*lane ^ word).wrapping_mul(PRIME).rotate_left(29);
    }
    for index in 0..rest {
        // SAFETY: as above.
        let byte = unsafe { start.add(words * 8 + index).read() };
        lanes[index % 4] = (lanes[index % 4] ^ u64::from(byte)).wrapping_mul(PRIME);
    }
    lanes.iter().fold(bytes as u64, |sum, lane| (sum ^ lane).wrapping_mul(PRIME).rotate_left(17))
}

#[cfg(test)]
mod tests;
