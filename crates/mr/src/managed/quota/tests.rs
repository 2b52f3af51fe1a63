//! The quota, without a driver.

use super::*;

#[test]
fn untouched_blocks_count() {
    let mut quota = ManagedQuota::default();
    quota.update(100);
    assert!(quota.has_room(100) && !quota.has_room(101));
    quota.insert(1, 60);
    quota.update(100); // untouched, so still free
    assert!(quota.has_room(40) && !quota.has_room(41));
    quota.update(40); // touched
    assert!(quota.has_room(40) && !quota.has_room(41));
    quota.update(30); // another process took ten
    assert!(quota.has_room(30) && !quota.has_room(31));
    quota.update(40); // and freed it
    assert!(quota.has_room(40) && !quota.has_room(41));
    let bytes = quota.begin_free(1);
    quota.end_free(bytes);
    quota.update(100);
    assert!(quota.has_room(100));
}

#[test]
fn memory_that_others_free_raises_the_limit() {
    let mut quota = ManagedQuota::default();
    quota.update(50);
    quota.insert(1, 40);
    quota.update(10);
    quota.update(60);
    assert!(quota.has_room(60) && !quota.has_room(61));
}

#[test]
fn our_own_frees_do_not_raise_the_limit() {
    for ran_at_once in [false, true] {
        let mut quota = ManagedQuota::default();
        quota.update(100);
        quota.insert(1, 30);
        quota.insert(2, 40);
        quota.update(30);
        let bytes = quota.begin_free(1);
        // An update while the driver frees.
        quota.update(if ran_at_once { 60 } else { 30 });
        quota.end_free(bytes);
        quota.update(60);
        assert_eq!(quota.limit, 100, "{ran_at_once}");
        assert!(quota.has_room(60) && !quota.has_room(61), "{ran_at_once}");
    }
}

#[test]
fn blocks_that_are_being_freed_stay_in_the_limit() {
    for ran_at_once in [false, true] {
        let mut quota = ManagedQuota::default();
        quota.update(100);
        quota.insert(1, 60);
        quota.update(40);
        let bytes = quota.begin_free(1);
        // No live block, while the driver frees.
        quota.update(if ran_at_once { 100 } else { 40 });
        quota.insert(2, 10);
        quota.end_free(bytes);
        quota.update(90);
        assert!(quota.has_room(90) && !quota.has_room(91), "{ran_at_once}");
    }
}

#[test]
fn a_block_is_counted_once_by_its_address() {
    let mut quota = ManagedQuota::default();
    quota.update(100);
    quota.insert(1, 30);
    quota.insert(1, 10);
    assert_eq!((quota.live(), quota.begin_free(2), quota.begin_free(1)), (10, 0, 10));
    assert_eq!((quota.live(), quota.begin_free(1)), (0, 0));
    quota.insert(3, u64::MAX);
    assert!(!quota.has_room(1));
}
