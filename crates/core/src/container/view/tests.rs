use super::*;

#[test]
fn ranges_lie_inside_or_are_errors() {
    assert_eq!(check_range(.., 5).unwrap(), 0..5);
    assert_eq!(check_range(2..=4, 5).unwrap(), 2..5);
    assert_eq!(check_range(5.., 5).unwrap(), 5..5);
    let excluded = (Bound::Excluded(usize::MAX), Bound::Unbounded);
    for bad in [
        check_range(0..6, 5),
        check_range(6.., 5),
        check_range(..=usize::MAX, 5),
        check_range(excluded, 5),
        #[allow(clippy::reversed_empty_ranges)]
        check_range(3..2, 5),
    ] {
        assert_eq!(bad.unwrap_err().kind(), ErrorKind::OutOfBounds);
    }
}
