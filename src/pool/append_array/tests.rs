use super::*;

#[test]
fn every_index_has_one_place() {
    let mut next = [0; CHUNKS];
    for index in 0..100_000 {
        let (chunk, offset) = chunk_and_offset(index);
        assert_eq!(offset, next[chunk], "{index}");
        next[chunk] += 1;
    }
    let list = AppendArray::<u8>::new();
    assert!(list.get(40).is_none());
    assert!(list.get_or_make(40).is_some());
    assert!(list.get(40).is_some() && list.get(0).is_none());
    assert!(list.get_or_make(usize::MAX).is_none());
}
