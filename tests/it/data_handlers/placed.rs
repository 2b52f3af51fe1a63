//! What the ready handlers do to memory, as the kernel sees it.

use super::C;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::{
    ErrorKind,
    nep49::{DataAlloc, DataHandler},
};

#[test]
fn aligned_handlers_align_each_block() {
    for alignment in [1, 2, 16, 32, 64, 256, 4096, 2 << 20] {
        let handler = DataHandler::aligned(alignment).unwrap();
        assert_eq!(handler.name(), format!("aquifer_aligned_{alignment}"));
        let c = C(&handler);
        for size in [0, 1, 63, 64, 1000, 100_000] {
            let blocks = [c.malloc(size), c.calloc(1, size), c.realloc(c.malloc(10), size)];
            for block in blocks {
                assert!(block.addr().is_multiple_of(alignment.max(16)), "{size} at {alignment}");
                c.free(block, size);
            }
        }
    }
    for wrong in [0, 3, 65, 4 << 20] {
        let error = DataHandler::aligned(wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

#[cfg(target_os = "linux")]
mod on_linux {
    use super::*;
    use crate::support::skipped;

    fn filled(handler: &DataHandler, bytes: usize) -> AllocVec<u8, DataAlloc> {
        let mut vec = AllocVec::new_in(DataAlloc::new(handler.clone()));
        vec.resize(bytes, 1);
        vec
    }

    /// The lines of `/proc/self/smaps` on the mapping around an address.
    fn mapping(address: usize) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut found = String::new();
        let mut inside = false;
        for line in smaps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let bounds = range.map(|(start, end)| {
                [start, end].map(|bound| usize::from_str_radix(bound, 16).unwrap_or(usize::MAX))
            });
            if let Some([start, end]) = bounds.filter(|bounds| bounds[1] != usize::MAX) {
                inside = (start..end).contains(&address);
            }
            if inside {
                found.push_str(line);
                found.push('\n');
            }
        }
        found
    }

    fn kilobytes(mapping: &str, field: &str) -> usize {
        let line = mapping.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn large_blocks_lie_in_huge_pages() {
        let handler = match DataHandler::huge_pages() {
            Ok(handler) => handler,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                skipped("large_blocks_lie_in_huge_pages", &error.to_string());
                return;
            }
        };
        let vec = filled(&handler, 32 << 20);
        let address = vec.as_ptr().addr();
        assert!(address % (2 << 20) <= 64, "{address:#x} is at the start of a huge page");
        let seen = mapping(address);
        let flags = seen.lines().find(|line| line.starts_with("VmFlags:")).unwrap();
        assert!(flags.split(' ').any(|flag| flag == "hg"), "not advised: {flags}");
        if kilobytes(&seen, "AnonHugePages") == 0 {
            skipped("large_blocks_lie_in_huge_pages", "the kernel has no huge page free");
        }
        drop(vec);
        assert!(!mapping(address).contains(" hg "), "unmapped when it is freed");
        let small = filled(&handler, 1 << 20);
        assert!(!mapping(small.as_ptr().addr()).contains(" hg "), "the heap's");
    }

    /// The policy of an address, and the node that its page is on.
    fn policy(address: *const u8) -> std::io::Result<(libc::c_int, libc::c_ulong, libc::c_int)> {
        const ON_NODE: libc::c_ulong = 1;
        const OF_ADDRESS: libc::c_ulong = 2;
        let (mut mode, mut node) = (-1, -1);
        let mut mask = [0 as libc::c_ulong; 16];
        let ask = |mode: &mut libc::c_int, mask: *mut libc::c_ulong, flags: libc::c_ulong| {
            let bits: libc::c_ulong = if mask.is_null() { 0 } else { 1024 };
            // SAFETY: writes the mode, and the mask of as many bits.
            let failed = unsafe {
                libc::syscall(libc::SYS_get_mempolicy, mode, mask, bits, address, flags) != 0
            };
            if failed { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        };
        ask(&mut mode, mask.as_mut_ptr(), OF_ADDRESS)?;
        ask(&mut node, std::ptr::null_mut(), OF_ADDRESS | ON_NODE)?;
        Ok((mode, mask[0], node))
    }

    #[test]
    fn large_blocks_lie_on_their_numa_node() {
        const NAME: &str = "large_blocks_lie_on_their_numa_node";
        let handler = match DataHandler::numa(0) {
            Ok(handler) => handler,
            Err(error) => return skipped(NAME, &error.to_string()),
        };
        assert_eq!(handler.name(), "aquifer_numa_0");
        let vec = filled(&handler, 1 << 20);
        let (mode, mask, node) = match policy(&vec[500_000]) {
            Ok(policy) => policy,
            Err(error) => return skipped(NAME, &format!("get_mempolicy: {error}")),
        };
        assert_eq!((mode, mask, node), (libc::MPOL_BIND, 1, 0));
        let small = filled(&handler, 1000);
        let (mode, ..) = policy(small.as_ptr()).unwrap();
        assert_ne!(mode, libc::MPOL_BIND, "the heap's");
    }

    #[test]
    fn a_node_that_there_is_not_is_refused() {
        for node in [1023, 1024, u32::MAX] {
            let error = DataHandler::numa(node).unwrap_err();
            let kinds = [ErrorKind::InvalidArgument, ErrorKind::Unsupported];
            assert!(kinds.contains(&error.kind()), "{error:?}");
            assert!(node < 1024 || error.kind() == ErrorKind::InvalidArgument, "{error:?}");
        }
    }

    #[test]
    fn mappings_are_given_back() {
        let resident = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').next().unwrap().parse::<usize>().unwrap()
        };
        for handler in [DataHandler::huge_pages(), DataHandler::numa(0)].into_iter().flatten() {
            drop(filled(&handler, 4 << 20));
            let before = resident();
            for _ in 0..200 {
                let mut vec: AllocVec<u8, _> = AllocVec::new_in(DataAlloc::new(handler.clone()));
                vec.reserve_exact(64 << 20);
            }
            let mapped = resident().saturating_sub(before) * 4096;
            assert!(mapped < 4 << 30, "{mapped} bytes more after 12 GiB came and went");
        }
    }
}
