//! Page-locked memory on a NUMA node that the program names.

#![cfg(target_os = "linux")]

use crate::support;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::pinned::{PinnedPool, PinnedResource};
use aquifer::{DeviceVec, ErrorKind};
use std::io;

/// The policy of the pages around an address, and the node of the first word of its mask.
fn policy_at(address: *const u8) -> (i32, u64) {
    const MPOL_F_ADDR: usize = 2;
    let (mut mode, mut mask) = (0_i32, [0_u64; 17]);
    // SAFETY: both are written, for no more bits than there are, and the address is only looked up.
    let asked = unsafe {
        let (mode, mask) = (&raw mut mode, mask.as_mut_ptr());
        libc::syscall(libc::SYS_get_mempolicy, mode, mask, 1088_usize, address, MPOL_F_ADDR)
    };
    assert_eq!(asked, 0, "{}", io::Error::last_os_error());
    (mode, mask[0])
}

#[test]
fn blocks_of_any_size_are_on_the_named_node() {
    const MPOL_PREFERRED: i32 = 1;
    let name = "blocks_of_any_size_are_on_the_named_node";
    let device = support::device();
    let on_node = match PinnedResource::builder(&device).numa_node(0).build() {
        Ok(on_node) => on_node,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            return support::skipped(name, "the system places no memory");
        }
    };
    let stream = device.new_stream().unwrap();
    let pool = PinnedPool::new(on_node.clone()).unwrap();
    for bytes in [1, 5000, 3 << 20, 17 << 20] {
        let mut own = AllocVec::<u8, _>::new_in(on_node.clone());
        own.resize(bytes, 3);
        assert_eq!(policy_at(own.as_ptr()), (MPOL_PREFERRED, 1), "{bytes} of the resource");
        let mut pooled = AllocVec::<u8, _>::new_in(pool.clone());
        pooled.resize(bytes, 4);
        assert_eq!(policy_at(pooled.as_ptr()), (MPOL_PREFERRED, 1), "{bytes} of the pool");
        let vec = DeviceVec::<u8>::zeroed(&stream, bytes).unwrap();
        let (_pooled, vec) = stream.upload(pooled, vec).unwrap().wait().unwrap();
        let (own, _vec) = stream.download(vec, own).unwrap().wait().unwrap();
        assert!(own.iter().all(|byte| *byte == 4));
    }
    pool.trim().unwrap();
    on_node.trim().unwrap();
    device.finish().unwrap();
}

#[test]
fn a_node_that_is_none_and_memory_that_is_the_drivers_are_refused() {
    let device = support::device();
    for node in [1000, 1024, u32::MAX] {
        let refused = PinnedResource::builder(&device).numa_node(node).build().unwrap_err();
        let kinds = [ErrorKind::InvalidArgument, ErrorKind::Unsupported];
        assert!(kinds.contains(&refused.kind()), "{refused}");
        assert!(refused.to_string().contains(&format!("NUMA node {node}")), "{refused}");
    }
    let builder = PinnedResource::builder(&device).write_combined(true).numa_node(0);
    assert_eq!(builder.build().unwrap_err().kind(), ErrorKind::Unsupported);
    device.finish().unwrap();
}
