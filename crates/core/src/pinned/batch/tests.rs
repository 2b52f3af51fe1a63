use super::*;

#[test]
fn sizes_are_rounded_to_a_line_and_never_wrap() {
    assert_eq!(units_of(0), None);
    assert_eq!([1, 64, 65, 1 << 20].map(units_of), [Some(1), Some(1), Some(2), Some(1 << 14)]);
    assert_eq!(units_of(isize::MAX as usize), None);
    assert_eq!(units_of((u32::MAX as usize) << UNIT_SHIFT), Some(u32::MAX));
    assert_eq!(units_of(((u32::MAX as usize) << UNIT_SHIFT) + 1), None);
}
