//! Arguments of host forms, and grids.

use super::*;

#[test]
fn arguments_are_checked_and_taken_in_order() {
    let mut memory = [1_u32, 2, 3];
    let list = [
        HostArg::Buffer {
            pointer: memory.as_mut_ptr().cast(),
            bytes: 12,
            access: Access::ReadWrite,
        },
        HostArg::Scalar(&[7]),
    ];
    // SAFETY: one live array, borrowed by nothing else.
    let mut args = unsafe { HostArgs::new("test", &list) };
    let data = args.in_out::<u32>().unwrap();
    assert_eq!(data, [1, 2, 3]);
    assert!(args.scalar::<u32>().is_err(), "of another size");
    assert!(args.scalar::<u8>().is_err(), "past the end");
    // SAFETY: as above.
    let mut args = unsafe { HostArgs::new("test", &list) };
    assert!(args.input::<u32>().is_err(), "declared otherwise");
}

#[test]
fn grids_cover_their_elements() {
    assert_eq!(LaunchConfig::for_elements(0).grid.0, 1);
    assert_eq!(LaunchConfig::for_elements(257).grid.0, 2);
    assert_eq!(LaunchConfig::for_elements(usize::MAX).grid.0, i32::MAX as u32);
    assert!(RawArg::scalar([0_u64; 2048]).is_ok());
    assert!(RawArg::scalar([0_u64; 4096]).is_err());
}
