use super::*;

#[test]
fn a_layout_is_placed_inside_its_block_or_not_at_all() {
    let block = vec![0_u8; 1 << 15];
    let start = NonNull::from(block.as_slice()).cast::<u8>();
    for shift in [0, 512, 4096] {
        // SAFETY: a few bytes into a vector of many more.
        let base = unsafe { start.add(shift) };
        for (size, align) in [(1, 1), (4096, 512), (4096, 4096), (100, 8192)] {
            let layout = Layout::from_size_align(size, align).unwrap();
            let padded = padded(size, align).unwrap();
            let pointer = first_fit(base, padded, layout).unwrap().addr().get();
            assert!(pointer.is_multiple_of(align));
            let from = base.addr().get();
            assert!(pointer >= from && pointer + size <= from + padded);
            // Without padding it fits only where the driver happens to align as asked.
            let tight = first_fit(base, size, layout);
            assert_eq!(tight.is_some(), base.addr().get().is_multiple_of(align));
        }
    }
    assert_eq!(padded(isize::MAX as usize, 0), None);
    assert_eq!(padded(usize::MAX, 4096), None);
}
