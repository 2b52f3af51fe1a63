//! Which vector a byte is part of, as vectors come and go.

use super::*;

fn of(name: &'static str, elements: usize) -> VectorType {
    VectorType { name, elements, bytes: 4 * elements }
}

fn name(vectors: &Vectors, offset: u64) -> Option<&'static str> {
    vectors.at(offset).map(|vector| vector.kind.name)
}

#[test]
fn a_new_vector_takes_the_place_of_those_that_it_touches() {
    let mut vectors = Vectors::default();
    for (start, name) in [(0, "a"), (40, "b"), (80, "c")] {
        vectors.apply((start, start + 40), VectorEvent::Made(of(name, 10)));
    }
    let names = [0, 39, 40, 119].map(|offset| name(&vectors, offset));
    assert_eq!(names, [Some("a"), Some("a"), Some("b"), Some("c")]);
    assert_eq!(name(&vectors, 120), None);
    vectors.apply((20, 60), VectorEvent::Made(of("d", 10)));
    let names = [0, 20, 59, 60, 80].map(|offset| name(&vectors, offset));
    assert_eq!(names, [None, Some("d"), Some("d"), None, Some("c")]);
    vectors.remove((59, 81));
    assert_eq!([20, 80].map(|offset| name(&vectors, offset)), [None, None]);
}

#[test]
fn a_vector_over_a_living_one_is_not_its_owner() {
    let mut vectors = Vectors::default();
    vectors.apply((0, 40), VectorEvent::Made(of("owner", 10)));
    vectors.apply((0, 44), VectorEvent::Assembled(of("alias", 11)));
    assert_eq!(name(&vectors, 0), Some("owner"));
    vectors.apply((0, 40), VectorEvent::TakenApart);
    assert_eq!((name(&vectors, 0), vectors.at(0).unwrap().is_live()), (Some("owner"), false));
    vectors.apply((0, 40), VectorEvent::Assembled(of("next", 10)));
    assert_eq!((name(&vectors, 0), vectors.at(0).unwrap().is_live()), (Some("next"), true));
}

#[test]
fn a_vector_reads_without_its_modules() {
    for (name, expected) in [
        (
            "aquifer::container::device_vec::DeviceVec<f32>",
            "DeviceVec<f32> of 2 elements (8 bytes)",
        ),
        ("a::b::Container<[x::Y<z::W>]>", "Container<[x::Y<z::W>]> of 2 elements (8 bytes)"),
        ("aquifer::container::device_buffer::DeviceBuffer", "DeviceBuffer of 8 bytes"),
        ("Bare", "Bare of 8 bytes"),
    ] {
        assert_eq!(Vector::new(of(name, 2)).to_string(), expected);
    }
}
