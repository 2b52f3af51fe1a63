//! Owners: what lives in the memory of each resource keeps it, and gives it back once.

use crate::KIB;
use crate::fixture::{Fixture, each};
use aquifer::bytemuck::Pod;
use aquifer::{DeviceBuffer, DeviceScalar, DeviceVec, Stream};

#[test]
fn every_container_lives_in_memory_of_every_resource() {
    each("every_container_lives_in_memory_of_every_resource", |fixture| {
        let (stream, resource) = (fixture.stream(), || fixture.resource().clone());
        let vec = DeviceVec::from_slice_in(&stream, &[1_u64, 2, 3], resource()).unwrap();
        assert_eq!(vec.to_vec().unwrap(), [1, 2, 3]);
        let scalar = DeviceScalar::new_in(&stream, -0.0_f64, resource()).unwrap();
        assert!(scalar.value().unwrap().is_sign_negative());
        let buffer = DeviceBuffer::from_slice_in(&stream, &[9_u8; 100], resource()).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [9; 100]);
    });
}

#[test]
fn a_vector_grows_shrinks_and_is_copied_in_its_own_memory() {
    each("a_vector_grows_shrinks_and_is_copied", |fixture| {
        let stream = fixture.stream();
        let most = fixture.modest(16 * KIB) / 4;
        let mut vec = DeviceVec::<u32>::new_in(&stream, fixture.resource().clone()).unwrap();
        let mut model = Vec::new();
        for value in 0.. {
            let more = vec![value; 1 + model.len() / 2];
            if model.len() + more.len() > most {
                break;
            }
            vec.extend_from_slice(&more).unwrap();
            model.extend(more);
        }
        assert!(vec.to_vec().unwrap() == model);
        let copy = vec.try_clone().unwrap();
        vec.truncate(model.len() / 3);
        vec.shrink_to_fit().unwrap();
        assert!(vec.to_vec().unwrap() == model[..model.len() / 3]);
        drop(vec);
        assert!(copy.to_vec().unwrap() == model);
        assert!(**copy.resource() == **fixture.resource());
    });
}

/// RMM's `array_tester`: so many elements of 3.2, there, across and back.
fn array<T: Pod + PartialEq + std::fmt::Debug>(fixture: &Fixture, stream: &Stream, value: T) {
    for count in [1, 2, 7, 8, 9, 32, 128] {
        let expected = vec![value; count];
        let resource = || fixture.resource().clone();
        let first = DeviceVec::from_slice_in(stream, &expected, resource()).unwrap();
        let mut second = DeviceVec::<T>::zeroed_in(stream, count, resource()).unwrap();
        second.copy_from(&first).unwrap();
        drop(first);
        assert_eq!(second.to_vec().unwrap(), expected, "{}", std::any::type_name::<T>());
    }
}

#[test]
fn arrays_of_every_element_go_there_across_and_back() {
    each("arrays_of_every_element_go_there_across_and_back", |fixture| {
        for stream in [fixture.device.default_stream(), fixture.stream()] {
            array(fixture, &stream, 3_i8);
            array(fixture, &stream, -3_i16);
            array(fixture, &stream, 3_i32);
            array(fixture, &stream, i64::MIN);
            array(fixture, &stream, 3.2_f32);
            array(fixture, &stream, 3.2_f64);
            array(fixture, &stream, 1_u8);
        }
    });
}
