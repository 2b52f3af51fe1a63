//! The host memory behind a block, and the watches over what copies of it are in flight.

use crate::sync::trusted::Mutex;
use std::alloc::Layout;
use std::ptr::NonNull;

/// What reads of bytes that nobody wrote will see.
pub(super) const POISON: u8 = 0xa5;

/// Larger blocks stay zero, so that their pages are taken from the system as they are touched.
const POISON_LIMIT: usize = 64 << 20;

/// A range of host memory under a copy that has not run yet. Only the device may write there.
#[derive(Debug)]
struct Watch {
    id: u64,
    start: usize,
    bytes: usize,
    /// `None` while a running operation writes there; it takes the sum when it is done.
    sum: Option<u64>,
    broken: bool,
}

impl Watch {
    fn overlaps(&self, start: usize, bytes: usize) -> bool {
        self.start < start + bytes && start < self.start + self.bytes
    }

    fn compare(&mut self) {
        if self.sum.is_some_and(|sum| sum != checksum(self.start as *const u8, self.bytes)) {
            self.broken = true;
        }
    }
}

/// What to give back, and to whom.
#[derive(Debug)]
enum Owned {
    Heap(NonNull<u8>, Layout),
    #[cfg(all(target_os = "linux", not(miri)))]
    Pages(NonNull<u8>, usize),
}

/// A live range of host memory: our own, or the caller's that was registered.
#[derive(Debug)]
pub(super) struct Backing {
    pointer: NonNull<u8>,
    /// `None` for memory of the caller. Given back when it is dropped.
    _owned: Option<Owned>,
    watches: Mutex<Vec<Watch>>,
}

// SAFETY: the memory is reached through raw pointers alone, by operations that the scheduler runs
// one at a time for each backing; the fields never change but for the watches under their lock.
unsafe impl Send for Backing {}
// SAFETY: as above.
unsafe impl Sync for Backing {}

impl Backing {
    /// Memory aligned to `alignment`, a power of two. `None` if the host has none. With `poison`,
    /// blocks up to a size are filled; the pages of others are taken as they are touched.
    pub(super) fn allocate(bytes: usize, alignment: usize, poison: bool) -> Option<Self> {
        let poison = poison && bytes <= POISON_LIMIT;
        // Aligned by hand: the allocator clears memory of a small alignment without touching it,
        // and that of a large one by writing to all of it.
        let room = bytes.checked_add(alignment)?;
        let (base, owned) = if poison { heap(room)? } else { untouched(room)? };
        let mut memory =
            Self { pointer: base, _owned: Some(owned), watches: Mutex::new(Vec::new()) };
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

    /// Memory that the caller keeps alive until it is unregistered.
    pub(super) fn registered(pointer: NonNull<u8>) -> Self {
        Self { pointer, _owned: None, watches: Mutex::new(Vec::new()) }
    }

    pub(super) fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// Watches a range of this memory until [`unwatch`](Self::unwatch). `quiet`: no running
    /// operation writes to this memory.
    pub(super) fn watch(&self, id: u64, start: *const u8, bytes: usize, quiet: bool) {
        let sum = quiet.then(|| checksum(start, bytes));
        let watch = Watch { id, start: start as usize, bytes, sum, broken: false };
        self.watches.lock().push(watch);
    }

    /// Ends a watch and says whether the host wrote meanwhile.
    pub(super) fn unwatch(&self, id: u64, look: bool) -> bool {
        let mut watches = self.watches.lock();
        let Some(index) = watches.iter().position(|watch| watch.id == id) else { return false };
        let mut watch = watches.swap_remove(index);
        drop(watches);
        if look {
            watch.compare();
        }
        watch.broken
    }

    /// The device is about to write here: what changed before was the host.
    pub(super) fn before_write(&self, start: usize, bytes: usize) {
        for watch in self.watches.lock().iter_mut().filter(|watch| watch.overlaps(start, bytes)) {
            watch.compare();
        }
    }

    /// The device has written here. Also completes the watches that began meanwhile.
    pub(super) fn after_write(&self, start: usize, bytes: usize) {
        for watch in self.watches.lock().iter_mut() {
            if watch.sum.is_none() || watch.overlaps(start, bytes) {
                watch.sum = Some(checksum(watch.start as *const u8, watch.bytes));
            }
        }
    }
}

/// Zeroes of the allocator.
fn heap(bytes: usize) -> Option<(NonNull<u8>, Owned)> {
    let layout = Layout::from_size_align(bytes, 16).ok()?;
    // SAFETY: the layout is not of zero bytes, since an alignment is at least one.
    let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
    Some((base, Owned::Heap(base, layout)))
}

/// Zeroes that take no memory before they are touched, and of which there may be more than the host
/// has: a device of 80 GB is simulated on a laptop.
#[cfg(all(target_os = "linux", not(miri)))]
fn untouched(bytes: usize) -> Option<(NonNull<u8>, Owned)> {
    /// Smaller ones are not worth a call of the system.
    const SMALL: usize = 1 << 20;
    if bytes < SMALL {
        return heap(bytes);
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the system's choice, which nobody else has.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return None;
    }
    let base = NonNull::new(base.cast())?;
    Some((base, Owned::Pages(base, bytes)))
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn untouched(bytes: usize) -> Option<(NonNull<u8>, Owned)> {
    heap(bytes)
}

impl Drop for Owned {
    fn drop(&mut self) {
        match *self {
            // SAFETY: `heap` made it with this layout, and nobody else frees it.
            Self::Heap(base, layout) => unsafe { std::alloc::dealloc(base.as_ptr(), layout) },
            #[cfg(all(target_os = "linux", not(miri)))]
            Self::Pages(base, bytes) => {
                // SAFETY: `untouched` mapped these bytes, and nobody else unmaps them.
                unsafe { libc::munmap(base.as_ptr().cast(), bytes) };
            }
        }
    }
}

/// A sum of the bytes of a range that a copy's caller keeps readable.
fn checksum(start: *const u8, bytes: usize) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    // The optimiser must not connect this range with memory whose bytes it knows to be unwritten.
    let start = std::hint::black_box(start);
    // Four lanes, or the multiplications wait for each other.
    let mut lanes = [BASIS, BASIS ^ 1, BASIS ^ 2, BASIS ^ 3];
    let (words, rest) = (bytes / 8, bytes % 8);
    for index in 0..words {
        // SAFETY: inside the range, which the caller of the copy keeps readable (backed by `Op`s
        // that hold the block, or by the contract of the registration) until the copy has run.
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
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_poisoned() {
        for (bytes, alignment) in [(1, 256), (1000, 4096), (100 << 20, 4096)] {
            let memory = Backing::allocate(bytes, alignment, true).unwrap();
            assert_eq!(memory.pointer().as_ptr() as usize % alignment, 0);
            // SAFETY: the last byte of live memory.
            let last = unsafe { memory.pointer().add(bytes - 1).read() };
            assert_eq!(last, if bytes <= POISON_LIMIT { POISON } else { 0 });
        }
        assert!(Backing::allocate(usize::MAX, 256, true).is_none());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn pages_of_big_blocks_are_not_touched() {
        for (bytes, poison) in [(1_usize << 30, true), (1 << 30, false), (32 << 20, false)] {
            touches_few(bytes, poison);
        }
        // More than any host of ours has.
        assert!(Backing::allocate(1 << 42, 4096, false).is_some());
    }

    #[cfg(target_os = "linux")]
    fn touches_few(bytes: usize, poison: bool) {
        let pages = bytes / 4096;
        let memory = Backing::allocate(bytes, 4096, poison).unwrap();
        let mut resident = vec![0_u8; pages];
        // SAFETY: asks about live memory, with one byte of room for each of its pages.
        let code = unsafe {
            libc::mincore(memory.pointer().as_ptr().cast(), bytes, resident.as_mut_ptr().cast())
        };
        assert_eq!(code, 0);
        let touched = resident.iter().filter(|&&page| page & 1 == 1).count();
        assert!(touched < pages / 100, "{touched} of {pages} pages");
    }

    #[test]
    fn every_byte_counts() {
        let mut bytes = [7_u8; 61];
        let sum = checksum(bytes.as_ptr(), 61);
        for index in 0..61 {
            bytes[index] ^= 1;
            assert_ne!(checksum(bytes.as_ptr(), 61), sum, "{index}");
            bytes[index] ^= 1;
        }
        assert_eq!(checksum(bytes.as_ptr(), 61), sum);
    }

    #[test]
    fn writes_of_the_device_are_not_the_hosts() {
        let memory = Backing::allocate(64, 256, true).unwrap();
        let start = memory.pointer().as_ptr();
        let write = |value: u8| {
            // SAFETY: live memory that nobody else touches.
            unsafe { start.write(value) }
        };
        memory.watch(1, start, 64, true);
        memory.before_write(start as usize, 8);
        write(1);
        memory.after_write(start as usize, 8);
        assert!(!memory.unwatch(1, true));
        memory.watch(2, start, 64, true);
        write(2);
        memory.before_write(start as usize, 8);
        memory.after_write(start as usize, 8);
        assert!(memory.unwatch(2, true), "the write before the device's own is the host's");
        assert!(!memory.unwatch(2, true), "a watch ends once");
    }
}
