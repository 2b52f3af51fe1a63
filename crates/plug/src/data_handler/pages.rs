//! Whole pages of Linux, which are huge ones, and those of one NUMA node.

use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::inside::allocator::log_and_set_last_error;
use allocator_api2::alloc::{AllocError, Allocator};
use std::alloc::Layout;
use std::io;
use std::ptr::{NonNull, null_mut};

/// The huge page of x86-64, and of others with pages of 4 KiB.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// The nodes that a mask names. Linux has up to 1024.
const NODES: usize = 1024;

/// The kind that the pages of a block are to have.
#[derive(Clone, Copy, Debug)]
pub(super) enum Placement {
    /// In huge pages, as far as there are any.
    HugePages,
    /// On the NUMA node.
    Node(u32),
}

/// Maps each block by itself, and has its pages placed before one is touched.
pub(super) struct Pages {
    placement: Placement,
}

/// Owns a mapping.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Pages {
    /// An allocator of pages of this kind, if the kernel places one of them so.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if it does not, or [`ErrorKind::InvalidArgument`]
    /// for a node that does not exist.
    pub(super) fn new(placement: Placement) -> Result<Self> {
        match placement {
            Placement::HugePages => ensure!(
                !huge_pages_are_off(),
                Unsupported,
                "write `madvise` into /sys/kernel/mm/transparent_hugepage/enabled",
                "huge pages were asked, which the system has turned off"
            ),
            Placement::Node(node) => ensure!(
                (node as usize) < NODES,
                InvalidArgument,
                "give a node that /sys/devices/system/node/online names",
                "memory of NUMA node {node} was asked, where Linux has nodes 0 to {}",
                NODES - 1
            ),
        }
        let this = Self { placement };
        this.place(&Mapping::new(page_size(), page_size())?)?;
        Ok(this)
    }

    fn alignment(&self) -> usize {
        match self.placement {
            Placement::HugePages => HUGE_PAGE,
            Placement::Node(_) => page_size(),
        }
    }

    fn map(&self, layout: Layout) -> Result<Mapping> {
        let mapping = Mapping::new(layout.size(), layout.align().max(self.alignment()))?;
        self.place(&mapping)?;
        Ok(mapping)
    }

    fn place(&self, mapping: &Mapping) -> Result<()> {
        let start = mapping.start.as_ptr();
        let (failed, asked) = match self.placement {
            Placement::HugePages => {
                // SAFETY: advice on a mapping of ours changes no bytes.
                let failed =
                    unsafe { libc::madvise(start.cast(), mapping.bytes, libc::MADV_HUGEPAGE) != 0 };
                (failed, "huge pages".to_owned())
            }
            Placement::Node(node) => {
                (bind(mapping, node as usize), format!("memory of NUMA node {node}"))
            }
        };
        if !failed {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        let no_node = matches!(self.placement, Placement::Node(_))
            && error.raw_os_error() == Some(libc::EINVAL);
        let (kind, advice) = match self.placement {
            Placement::Node(_) if no_node => (
                ErrorKind::InvalidArgument,
                "give a node with memory: /sys/devices/system/node/has_memory names them",
            ),
            Placement::Node(_) => {
                (ErrorKind::Unsupported, "a container may need the capability SYS_NICE for mbind")
            }
            Placement::HugePages => {
                (ErrorKind::Unsupported, "use a kernel with transparent huge pages")
            }
        };
        let what = format!("{asked} was asked, which the kernel refuses: {error}");
        Err(Error::new(kind, what).with_advice(advice))
    }
}

/// Binds a mapping to a node. Returns whether that failed.
fn bind(mapping: &Mapping, node: usize) -> bool {
    const BITS: usize = libc::c_ulong::BITS as usize;
    let mut mask = [0 as libc::c_ulong; NODES / BITS];
    if let Some(word) = mask.get_mut(node / BITS) {
        *word |= 1 << (node % BITS);
    }
    // SAFETY: the policy of a mapping of ours changes no bytes. The kernel reads one bit less than it is told.
    let bound = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            mapping.start.as_ptr(),
            mapping.bytes,
            libc::MPOL_BIND as libc::c_ulong,
            mask.as_ptr(),
            NODES + 1,
            0 as libc::c_ulong,
        )
    };
    bound != 0
}

/// Whether the system gives huge pages to nobody, whatever a program advises.
fn huge_pages_are_off() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|enabled| enabled.contains("[never]"))
}

fn page_size() -> usize {
    // SAFETY: only asks.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(1 << 16)
}

/// The size of a mapping that holds so many bytes.
fn whole_pages(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(page_size())
}

impl Mapping {
    /// Maps zeroed pages for `bytes` bytes at a multiple of `alignment`, a power of two.
    fn new(bytes: usize, alignment: usize) -> Result<Self> {
        let full = || {
            let what = format!("mapping {} of host memory", Count(bytes, "byte"));
            Error::new(ErrorKind::OutOfMemory, what).with_advice("ask for less, or free memory")
        };
        let bytes = whole_pages(bytes).ok_or_else(full)?;
        // A mapping begins at a page.
        let spare = alignment.saturating_sub(page_size());
        let whole = bytes.checked_add(spare).ok_or_else(full)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at an address that the system chooses.
        let base = unsafe { libc::mmap(null_mut(), whole, access, flags, -1, 0) };
        let base = Some(base).filter(|base| *base != libc::MAP_FAILED);
        let base = base.and_then(|base| NonNull::new(base.cast::<u8>())).ok_or_else(full)?;
        let before = base.addr().get().next_multiple_of(alignment) - base.addr().get();
        // SAFETY: `before` is no more than `spare`.
        let start = unsafe { base.add(before) };
        // SAFETY: `bytes` lie behind the start.
        let end = unsafe { start.add(bytes) };
        // Of what is not given back, nothing is touched.
        // SAFETY: these parts of the mapping above are ours, and not used.
        unsafe { unmap(base, before) };
        // SAFETY: as above.
        unsafe { unmap(end, spare - before) };
        Ok(Self { start, bytes })
    }

    fn into_block(self, bytes: usize) -> NonNull<[u8]> {
        let block = NonNull::slice_from_raw_parts(self.start, bytes);
        std::mem::forget(self);
        block
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the only owner.
        unsafe { unmap(self.start, self.bytes) };
    }
}

/// # Safety
///
/// The caller owns these pages.
unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    if bytes > 0 {
        // What cannot be unmapped stays, unused.
        // SAFETY: the caller's promise.
        let _ = unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
    }
}

// SAFETY: each block is a mapping of its own, which stays until it is freed, through whichever handle.
unsafe impl Allocator for Pages {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return Ok(NonNull::slice_from_raw_parts(layout.dangling_ptr(), 0));
        }
        match self.map(layout) {
            Ok(mapping) => Ok(mapping.into_block(layout.size())),
            Err(error) => {
                log_and_set_last_error(error);
                Err(AllocError)
            }
        }
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // A new mapping is zero.
        self.allocate(layout)
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if let Some(bytes) = whole_pages(layout.size()) {
            // SAFETY: the mapping of `allocate`, which the caller gives up. None for no bytes.
            unsafe { unmap(block, bytes) };
        }
    }
}
