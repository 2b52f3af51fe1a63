//! Fresh memory that the driver can page-lock at once: huge pages that several threads touch.
//!
//! `cuMemHostAlloc` touches and locks small pages on one thread, 2 GB/s on an H200 machine with driver 580. Eight threads
//! touch huge pages at 25 GB/s, and the driver locks them at 40 GB/s. A block is one registration, since a copy over two
//! fails.
//!
//! - The mapping is private, since only private memory has huge pages by default. At a fork the kernel copies such pages
//!   for the child where they are locked, so that the parent keeps those that the device knows. Linux before 5.12 gives
//!   them to whichever writes first. There nothing is mapped.

use crate::sync::LazyLock;
use crate::sync::trusted::{AtomicUsize, Ordering};
use std::fmt;
use std::io;
use std::ptr::NonNull;

const HUGE_PAGE: usize = 2 << 20;
const SMALL_PAGE: usize = 4096;

/// What a thread touches at a time.
const PART: usize = 16 << 20;

/// The nodes that a mask names. Linux has up to 1024.
const NODES: usize = 1024;

/// Smaller blocks gain little: they are slabs of pools, of which few are made.
pub(super) const LEAST: usize = 16 << 20;

/// The threads that touch by default. More gain less than they take from the program.
pub(super) fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(8)
}

/// The NUMA node that pages should be on. Pages of another serve where it has none left.
#[derive(Clone, Copy, Debug)]
pub(super) enum Placement {
    Anywhere,
    /// The device's. A refusal changes nothing.
    Near(u32),
    /// The one that the program names.
    Named(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MappingStep {
    Kernel,
    Mapping,
    /// The machine has no such node.
    NoNode,
    /// The system binds no memory, as in some containers.
    Node,
}

/// The step that failed, and why.
#[derive(Debug)]
pub(super) struct NotMapped(MappingStep, String);

impl NotMapped {
    pub(super) fn step(&self) -> MappingStep {
        self.0
    }
}

impl fmt::Display for NotMapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = match self.0 {
            MappingStep::Kernel => "a fork",
            MappingStep::Mapping => "mapping",
            MappingStep::NoNode | MappingStep::Node => "a NUMA node",
        };
        write!(f, "{step}: {}", self.1)
    }
}

/// A private mapping whose pages are all there. Its drop unmaps it.
#[derive(Debug)]
pub(super) struct HugePages {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is this value's alone, and is unmapped on whatever thread.
unsafe impl Send for HugePages {}

impl HugePages {
    /// Maps and touches `bytes`, a multiple of 4096, on up to `threads` threads, this one included.
    pub(super) fn map(
        bytes: usize,
        threads: usize,
        placement: Placement,
    ) -> Result<Self, NotMapped> {
        static KERNEL: LazyLock<bool> = LazyLock::new(keeps_pages_at_a_fork);
        if !*KERNEL {
            let why = String::from("Linux before 5.12 may move locked pages");
            return Err(NotMapped(MappingStep::Kernel, why));
        }
        let pages = Self::reserve(bytes)?;
        // SAFETY: the whole mapping, which nothing else uses. What the system refuses changes nothing.
        unsafe {
            let start = pages.base.as_ptr().cast();
            libc::madvise(start, bytes, libc::MADV_HUGEPAGE);
            match placement {
                Placement::Anywhere => {}
                Placement::Near(node) => drop(prefer_node(pages.base, bytes, node)),
                Placement::Named(node) => prefer_node(pages.base, bytes, node)?,
            }
        }
        pages.touch(threads);
        Ok(pages)
    }

    /// A mapping that begins at a multiple of a huge page.
    fn reserve(bytes: usize) -> Result<Self, NotMapped> {
        let failed = || NotMapped(MappingStep::Mapping, io::Error::last_os_error().to_string());
        let padded = bytes.checked_add(HUGE_PAGE).ok_or_else(failed)?;
        let (read_write, private) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address of the system's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), padded, read_write, private, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(failed());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(failed)?;
        let before = start.addr().get().next_multiple_of(HUGE_PAGE) - start.addr().get();
        let behind = HUGE_PAGE - before;
        // SAFETY: both parts lie in the mapping, in whole pages, and nothing uses them.
        unsafe {
            let base = start.add(before);
            if before > 0 {
                libc::munmap(start.as_ptr().cast(), before);
            }
            if behind > 0 {
                libc::munmap(base.as_ptr().add(bytes).cast(), behind);
            }
            Ok(Self { base, bytes })
        }
    }

    /// Writes to each page. This thread takes part, and touches all where no other can be started.
    fn touch(&self, threads: usize) {
        let (next, bytes) = (AtomicUsize::new(0), self.bytes);
        let base = self.base.expose_provenance().get();
        let work = || {
            loop {
                let at = next.fetch_add(PART, Ordering::Relaxed);
                if at >= bytes {
                    break;
                }
                for offset in (at..bytes.min(at + PART)).step_by(SMALL_PAGE) {
                    let page = std::ptr::with_exposed_provenance_mut::<u8>(base + offset);
                    // SAFETY: a page of this mapping, in a part that is this thread's alone.
                    unsafe { page.write_volatile(0) };
                }
            }
        };
        let others = threads.min(bytes.div_ceil(PART)).saturating_sub(1);
        std::thread::scope(|scope| {
            for _ in 0..others {
                let thread = std::thread::Builder::new().name(String::from("aquifer pages"));
                if thread.spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
    }

    pub(super) fn memory(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.base, self.bytes)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which is this value's alone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Whether the kernel copies locked pages for the child of a fork, as Linux does from 5.12 on.
fn keeps_pages_at_a_fork() -> bool {
    // SAFETY: numbers and texts, for which all zeros are valid; the call fills them.
    let release = unsafe {
        let mut name: libc::utsname = std::mem::zeroed();
        if libc::uname(&raw mut name) != 0 {
            return false;
        }
        std::ffi::CStr::from_ptr(name.release.as_ptr()).to_string_lossy().into_owned()
    };
    is_from_5_12(&release)
}

fn is_from_5_12(release: &str) -> bool {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok()).unwrap_or(0);
    (next(), next()) >= (5, 12)
}

/// Asks for pages of a NUMA node, or of another where it has none left.
///
/// # Safety
///
/// The range is a mapping of the caller's.
unsafe fn prefer_node(base: NonNull<u8>, bytes: usize, node: u32) -> Result<(), NotMapped> {
    const MPOL_PREFERRED: libc::c_int = 1;
    let mut mask = [0_u64; NODES / u64::BITS as usize];
    let Some(word) = mask.get_mut((node / u64::BITS) as usize) else {
        return Err(NotMapped(MappingStep::NoNode, format!("Linux has nodes 0 to {}", NODES - 1)));
    };
    *word = 1 << (node % u64::BITS);
    // SAFETY: the caller's range; the mask has so many bits. A refusal leaves the policy of the thread.
    let bound = unsafe {
        let (start, mask) = (base.as_ptr(), mask.as_ptr());
        // The kernel takes one bit less than it is told.
        libc::syscall(libc::SYS_mbind, start, bytes, MPOL_PREFERRED, mask, NODES + 1, 0)
    };
    if bound == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let is_none = error.raw_os_error() == Some(libc::EINVAL);
    let step = if is_none { MappingStep::NoNode } else { MappingStep::Node };
    Err(NotMapped(step, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pages_are_there_and_zero_and_go_again() {
        for (bytes, threads) in [(SMALL_PAGE, 1), (LEAST, 3), (LEAST + 5 * SMALL_PAGE, 0)] {
            let pages = HugePages::map(bytes, threads, Placement::Near(0)).unwrap();
            let memory = pages.memory();
            assert_eq!((memory.len(), memory.cast::<u8>().addr().get() % HUGE_PAGE), (bytes, 0));
            let mut there = vec![0_u8; bytes / SMALL_PAGE];
            // SAFETY: one byte a page of the mapping.
            let asked = unsafe { libc::mincore(memory.cast().as_ptr(), bytes, there.as_mut_ptr()) };
            assert_eq!(asked, 0);
            assert!(there.iter().all(|page| page & 1 == 1), "{bytes} by {threads}");
            // SAFETY: the mapping is this test's.
            assert!(unsafe { memory.as_ref() }.iter().all(|byte| *byte == 0));
            drop(pages);
            // SAFETY: as above; the range is of no mapping now.
            let asked = unsafe { libc::mincore(memory.cast().as_ptr(), bytes, there.as_mut_ptr()) };
            assert_eq!(
                (asked, io::Error::last_os_error().raw_os_error()),
                (-1, Some(libc::ENOMEM))
            );
        }
    }

    #[test]
    fn a_size_that_no_address_space_has_is_refused() {
        let refused =
            HugePages::map(isize::MAX as usize & !(SMALL_PAGE - 1), 8, Placement::Anywhere);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.starts_with("mapping: "), "{refused}");
    }

    #[test]
    fn a_kernel_that_moves_locked_pages_at_a_fork_is_known() {
        for (release, keeps) in [
            ("5.11.22-generic", false),
            ("5.12.0", true),
            ("6.18.44-fc", true),
            ("4.18.0-553.el8", false),
            ("10.0", true),
            ("", false),
        ] {
            assert_eq!(is_from_5_12(release), keeps, "{release}");
        }
    }

    #[test]
    fn a_node_that_is_none_is_refused_where_it_is_named_alone() {
        for node in [63, 1023, 1024, u32::MAX] {
            let refused = HugePages::map(SMALL_PAGE, 1, Placement::Named(node)).unwrap_err();
            // A container may not bind memory at all.
            assert!(matches!(refused.step(), MappingStep::NoNode | MappingStep::Node), "{refused}");
            drop(HugePages::map(SMALL_PAGE, 1, Placement::Near(node)).unwrap());
        }
    }
}
