use super::*;

#[test]
fn rounding_never_wraps() {
    assert_eq!(align_up(0, 256), Some(0));
    assert_eq!(align_up(1, 256), Some(256));
    assert_eq!(align_up(256, 256), Some(256));
    assert_eq!(align_up(usize::MAX, 1), Some(usize::MAX));
    assert_eq!(align_up(usize::MAX, 2), None);
    assert_eq!(align_up(usize::MAX - 255, 256), Some(usize::MAX - 255));
}

#[test]
fn impossible_layouts_are_errors() {
    for (bytes, alignment) in [(1, 0), (1, 3), (usize::MAX, 256), (isize::MAX as usize, 256)] {
        let error = DeviceLayout::with_alignment(bytes, alignment).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bytes} {alignment}");
    }
    assert!(DeviceLayout::array::<u64>(usize::MAX / 8 + 1).is_err());
    assert_eq!(DeviceLayout::array::<u64>(0).unwrap().bytes(), 0);
}
