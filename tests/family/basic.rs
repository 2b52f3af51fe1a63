//! RMM's `mr_ref_test`: what every resource does at least.

use crate::blocks::{Held, disjoint, free, layout, lies_on_the_device};
use crate::fixture::{each, each_alone};
use crate::{KIB, MIB};
use aquifer::mr::{current_device_resource, with_device_resource};
use aquifer::{
    DeviceVec,
    mr::{reset_current_device_resource, set_current_device_resource},
};

#[test]
fn memory_is_the_devices_aligned_and_usable() {
    each("memory_is_the_devices_aligned_and_usable", |fixture| {
        for stream in [fixture.device.default_stream(), fixture.stream()] {
            for (tag, bytes) in [4, 100, KIB, MIB].into_iter().enumerate() {
                let bytes = bytes.min(fixture.made.largest);
                let held = Held::take(fixture.resource(), &stream, bytes, tag as u8 + 1).unwrap();
                lies_on_the_device(fixture, &held);
                held.free(fixture.resource());
            }
        }
    });
}

/// RMM's issue 861: small blocks shared an address.
#[test]
fn two_small_blocks_are_two() {
    each("two_small_blocks_are_two", |fixture| {
        for stream in [fixture.device.default_stream(), fixture.stream()] {
            let take = |tag| Held::take(fixture.resource(), &stream, 8, tag).unwrap();
            let live = [take(1), take(2)];
            assert_ne!(live[0].address(), live[1].address());
            disjoint(&live);
            live.into_iter().for_each(|held| held.free(fixture.resource()));
        }
    });
}

#[test]
fn one_handle_frees_what_another_allocated_and_erased_they_are_equal() {
    each("one_handle_frees_what_another_allocated", |fixture| {
        let (one, twin) = (fixture.resource(), &fixture.made.twin);
        assert!(**one == **twin, "handles on one resource are not equal");
        let stream = fixture.stream();
        for (from, to) in [(one, twin), (twin, one)] {
            let block = from.allocate(&stream, layout(KIB)).unwrap();
            free(&**to, &stream, block);
        }
    });
}

#[test]
fn another_one_made_alike_is_equal_only_where_the_driver_keeps_the_books() {
    each("another_one_made_alike", |fixture| {
        let other = (fixture.row.make)(&fixture.device).unwrap();
        assert_eq!(*other.resource == **fixture.resource(), !fixture.made.alone);
        if !fixture.made.alone {
            let stream = fixture.stream();
            let block = other.resource.allocate(&stream, layout(KIB)).unwrap();
            free(&**fixture.resource(), &stream, block);
        }
    });
}

#[test]
fn each_serves_as_the_current_resource_of_a_scope() {
    each("each_serves_as_the_current_resource_of_a_scope", |fixture| {
        let stream = fixture.stream();
        let vec = with_device_resource(fixture.resource().clone(), || {
            assert!(*current_device_resource(&fixture.device).unwrap() == **fixture.resource());
            DeviceVec::from_slice(&stream, &[7_u32; 100]).unwrap()
        });
        assert!(**vec.resource() == **fixture.resource());
        assert_eq!(vec.to_vec().unwrap(), [7; 100]);
    });
}

#[test]
fn each_serves_as_the_current_resource_of_the_process() {
    each_alone("each_serves_as_the_current_resource_of_the_process", |fixture| {
        let (device, stream) = (&fixture.device, fixture.stream());
        let old = current_device_resource(device).unwrap();
        set_current_device_resource(fixture.resource().clone());
        let hundred = Held::take(&old, &stream, 100, 1).unwrap();
        hundred.free(&old);
        // Threads that were never told see it, too.
        std::thread::scope(|scope| {
            for tag in 2..6 {
                scope.spawn(move || {
                    let current = current_device_resource(device).unwrap();
                    let stream = device.new_stream().unwrap();
                    Held::take(&current, &stream, 100, tag).unwrap().free(&current);
                });
            }
        });
        let vec = DeviceVec::<u8>::zeroed(&stream, fixture.made.largest.min(MIB)).unwrap();
        assert!(**vec.resource() == **fixture.resource());
        assert_eq!(vec.get(vec.len() - 1).unwrap(), 0);
        drop(vec);
        reset_current_device_resource(device).unwrap();
        let first = current_device_resource(device).unwrap();
        Held::take(&first, &stream, KIB, 9).unwrap().free(&first);
    });
}
