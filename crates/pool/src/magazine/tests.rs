use super::*;

#[test]
fn a_class_gives_what_is_aligned_as_asked_and_keeps_the_rest_in_order() {
    let magazine = Magazine::new(Limits { entries: 8, units: 1000 }, 1);
    let block = |address| Cached { address, token: address };
    // SAFETY: one thread, and the body enters nothing.
    let entered = unsafe {
        magazine.try_with(|classes| {
            (0..2).for_each(|_| classes.note_miss(4, |_| ()));
            for address in [0x1000, 0x2000, 0x2400, 0x4000, 0x4400] {
                assert_eq!(classes.push(4, block(address)), Ok(()));
            }
            assert_eq!(classes.pop_aligned(4, 0x8000), None);
            assert_eq!(classes.pop_aligned(3, 1), None);
            for (align, address) in [(0x1000, 0x4000), (0x400, 0x4400), (0x2000, 0x2000)] {
                assert_eq!(classes.pop_aligned(4, align), Some(block(address)));
            }
            assert_eq!(classes.pop(4), Some(block(0x2400)));
            assert_eq!(classes.pop(4), Some(block(0x1000)));
            assert_eq!((classes.pop(4), classes.totals()), (None, (0, 0)));
        })
    };
    assert!(entered.is_some());
}
