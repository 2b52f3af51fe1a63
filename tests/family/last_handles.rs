//! Ends: of the last handle while memory is in use, and of the owner of a thread.

use crate::KIB;
use crate::fixture::{Fixture, each_owned};
use crate::kernels::add_one;
use aquifer::DeviceVec;

#[test]
fn vectors_outlive_the_last_handle_and_leave_nothing() {
    each_owned("vectors_outlive_the_last_handle", |fixture| {
        let (stream, length) = (fixture.stream(), fixture.modest(16 * KIB) / 4);
        let vec = |value| {
            let resource = fixture.resource().clone();
            DeviceVec::from_slice_in(&stream, &vec![value; length], resource).unwrap()
        };
        let (mut one, mut two) = (vec(1_u32), vec(2));
        let device = fixture.device.clone();
        // The books have handles, too.
        drop(fixture);
        add_one(&stream, &mut one).unwrap();
        assert!(one.to_vec().unwrap() == vec![2; length]);
        drop(one);
        // With work that is not done, and from a thread that never saw the resource.
        add_one(&stream, &mut two).unwrap();
        let elsewhere = device.new_stream().unwrap();
        two.set_stream(&elsewhere).unwrap();
        drop(stream);
        std::thread::scope(|scope| scope.spawn(move || drop(two)).join().unwrap());
    });
}

#[test]
fn a_resource_that_was_used_and_left_on_another_thread_leaves_nothing() {
    each_owned("a_resource_that_was_left_on_another_thread", |fixture| {
        let bytes = fixture.modest(16 * KIB);
        let use_it = |fixture: &Fixture| {
            let stream = fixture.stream();
            for _ in 0..20 {
                let resource = fixture.resource().clone();
                drop(DeviceVec::<u8>::zeroed_in(&stream, bytes, resource).unwrap());
            }
        };
        use_it(&fixture);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                use_it(&fixture);
                drop(fixture);
            });
        });
    });
}
