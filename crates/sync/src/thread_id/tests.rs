use super::*;

#[test]
fn a_thread_has_one_number_and_no_other_thread_has_it() {
    let here = assign();
    assert_eq!((current_or_none(), assign()), (here, here));
    let there = || {
        let before = current_or_none();
        (before, assign(), current_or_none())
    };
    let mut numbers: Vec<_> = (0..100)
        .map(|_| {
            let (before, assigned, after) = std::thread::spawn(there).join().unwrap();
            assert_eq!((before, assigned), (NO_THREAD, after));
            assigned
        })
        .chain([here])
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 101);
}
