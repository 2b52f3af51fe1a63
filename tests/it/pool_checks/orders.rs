//! Memory is for work that comes after its allocation, and is freed after its uses.

use super::fixture::{LENGTH, alias, each};
use super::kernels::add_one;
use super::support;
use aquifer::sim::Violation;
use aquifer::{DeviceLayout, DeviceResource};

#[test]
fn what_is_handed_out_is_used_elsewhere_after_its_allocation() {
    for is_ordered in [false, true] {
        each(|fixture| {
            // Work that home has not done yet.
            let mut busy = fixture.written();
            busy.fill(3).unwrap();
            let vec = fixture.unwritten(&fixture.stream);
            let mut raw = alias(&vec, &fixture.other, LENGTH);
            if is_ordered {
                fixture.other.wait_for(&fixture.stream).unwrap();
            }
            raw.fill(1).unwrap();
            fixture.stream.wait_for(&fixture.other).unwrap();
            drop(vec);
            let reports = fixture.simulator.take_reports();
            let is_early = |kind| kind == Violation::UseBeforeAllocation;
            if is_ordered {
                assert!(reports.is_empty(), "{}: {reports:?}", fixture.name);
            } else {
                // Its memory may have been used by home before, too.
                assert!(
                    reports.iter().any(|report| is_early(report.kind())),
                    "{}: {reports:?}",
                    fixture.name
                );
            }
        });
    }
}

/// A pool that has no memory at hand for a stream asks how far the others are. What it learns is no order of the
/// user's.
#[test]
fn a_question_of_the_pool_hides_no_missing_wait() {
    each(|fixture| {
        for is_ordered in [false, true] {
            let (mut vec, mut free) = (fixture.written(), fixture.written());
            vec.fill(3).unwrap();
            // Memory that home may still use.
            free.fill(3).unwrap();
            drop(free);
            let mut target = fixture.unwritten(&fixture.other);
            let raw = alias(&vec, &fixture.other, LENGTH);
            if is_ordered {
                fixture.other.wait_for(&fixture.stream).unwrap();
            }
            target.copy_from(&*raw).unwrap();
            fixture.stream.wait_for(&fixture.other).unwrap();
            drop(target);
            drop(vec);
            let reports = fixture.simulator.take_reports();
            let is_race = |kind| kind == Violation::UnorderedAccess;
            if is_ordered {
                assert!(reports.is_empty(), "{}: {reports:?}", fixture.name);
            } else {
                let is_found = reports.iter().any(|report| is_race(report.kind()));
                assert!(is_found, "{}: {reports:?}", fixture.name);
            }
        }
    });
}

/// The ways that the containers have, with work of home under way.
#[test]
fn vectors_that_go_to_other_streams_are_in_order() {
    each(|fixture| {
        for way in 0..3 {
            let mut busy = fixture.written();
            busy.fill(3).unwrap();
            let mut vec = fixture.unwritten(&fixture.stream);
            match way {
                0 => {
                    vec.fill(0).unwrap();
                    add_one(&fixture.other, &mut vec).unwrap();
                }
                1 => {
                    vec.set_stream(&fixture.other).unwrap();
                    vec.fill(1).unwrap();
                }
                _ => {
                    let (home, block, length, resource) = vec.into_raw_parts().unwrap();
                    // SAFETY: the parts of a vector, put together once.
                    let again = unsafe {
                        aquifer::DeviceVec::from_raw_parts(home, block, length, resource)
                    };
                    vec = again.unwrap();
                    vec.fill(1).unwrap();
                }
            }
            assert_eq!(vec.to_vec().unwrap(), [1; LENGTH]);
        }
    });
}

#[test]
fn a_block_that_nothing_used_is_freed_on_any_stream() {
    each(|fixture| {
        let layout = DeviceLayout::new(LENGTH).unwrap();
        fixture.stream.synchronize().unwrap();
        let block = fixture.resource().allocate(&fixture.stream, layout).unwrap();
        support::free(&*fixture.resource(), &fixture.other, block);
    });
}

#[test]
fn a_block_that_is_freed_twice() {
    each(|fixture| {
        // The first refuses the second free, and the count of the other is spoilt by it.
        if ["CheckedAdaptor", "LimitingAdaptor"].contains(&fixture.name) {
            return;
        }
        let layout = DeviceLayout::new(LENGTH).unwrap();
        let block = fixture.resource().allocate(&fixture.stream, layout).unwrap();
        let again = aquifer::DeviceBlock::new(block.address(), block.bytes(), block.token());
        support::free(&*fixture.resource(), &fixture.stream, block);
        fixture.clean();
        support::free(&*fixture.resource(), &fixture.stream, again);
        let report = fixture.saw(Violation::DoubleFree);
        assert_eq!(report.operation(), report.conflicts_with().unwrap());
        // The pool refuses it, too, and serves on.
        let vecs = [(); 3].map(|()| fixture.written());
        assert!(vecs.iter().all(|vec| vec.to_vec().unwrap() == [7; LENGTH]));
    });
}
