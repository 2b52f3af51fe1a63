//! Padded layouts.

use super::*;

#[test]
fn padding_reaches_every_alignment() {
    for alignment in [1, 256, 512, 4096, 1 << 21] {
        let layout = DeviceLayout::with_alignment(1000, alignment).unwrap();
        for base in [0x1000_0100_u64, 0x1000_0200, 0x1020_0000] {
            let block = padded_block(layout, base);
            assert_eq!(block.address() % alignment as u64, 0);
            assert!(block.address() >= base);
            assert!(block.address() + 1000 <= base + padded_bytes(layout) as u64);
            assert_eq!(block.token(), base);
        }
    }
}
