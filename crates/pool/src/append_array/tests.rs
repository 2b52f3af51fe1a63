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

#[test]
fn its_elements_end_with_it() {
    use crate::sync::trusted::AtomicUsize;
    static ALIVE: AtomicUsize = AtomicUsize::new(0);
    struct Element;
    impl Default for Element {
        fn default() -> Self {
            ALIVE.fetch_add(1, Ordering::Relaxed);
            Self
        }
    }
    impl Drop for Element {
        fn drop(&mut self) {
            ALIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let list = AppendArray::<Element>::new();
    list.get_or_make(40);
    list.get_or_make(1000);
    assert!(ALIVE.load(Ordering::Relaxed) > 0);
    drop(list);
    assert_eq!(ALIVE.load(Ordering::Relaxed), 0);
}
