//! One value on the device: `DeviceScalar`.
//!
//! What RMM's `device_scalar_tests` ask, but for two things. A scalar that was moved from cannot be
//! looked at in Rust. `bool` is no plain data, so there is no scalar of it; the documentation has a
//! test that it does not compile.

use crate::{kernels, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, DeviceResource, DeviceScalar, DeviceVec, ErrorKind, PoolResource, error::Refused,
};
use bytemuck::{Pod, Zeroable};
use kernels::{add_one, kind};
use std::fmt::Debug;
use std::sync::Arc;

/// What holds of a scalar of any type, of two values that differ.
fn behaves<T: Pod + PartialEq + Debug>(one: T, other: T) {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let resource = || Arc::new(CudaResource::new(&device)) as Arc<dyn DeviceResource>;
    // SAFETY: not read before it is written.
    for mut scalar in unsafe {
        [
            DeviceScalar::<T>::uninit(&stream).unwrap(),
            DeviceScalar::<T>::uninit_in(&stream, resource()).unwrap(),
        ]
    } {
        assert_ne!(scalar.as_device_ptr(), 0);
        scalar.set_value(one).unwrap();
        assert_eq!(scalar.value().unwrap(), one);
    }
    for scalar in [
        DeviceScalar::<T>::zeroed(&stream).unwrap(),
        DeviceScalar::<T>::zeroed_in(&stream, resource()).unwrap(),
    ] {
        assert_eq!(scalar.value().unwrap(), T::zeroed());
    }
    for mut scalar in [
        DeviceScalar::new(&stream, one).unwrap(),
        DeviceScalar::new_in(&stream, one, resource()).unwrap(),
    ] {
        assert_eq!((scalar.stream(), scalar.device()), (&stream, &*device));
        assert_eq!(scalar.value().unwrap(), one);
        let copy = scalar.try_clone().unwrap();
        assert_ne!(copy.as_device_ptr(), scalar.as_device_ptr());
        assert!(copy.resource() == scalar.resource());
        scalar.set_value(other).unwrap();
        assert_eq!((scalar.value().unwrap(), copy.value().unwrap()), (other, one));
        scalar.copy_from(&copy).unwrap();
        assert_eq!(scalar.value().unwrap(), one);
        scalar.set_to_zero().unwrap();
        assert_eq!(bytemuck::bytes_of(&scalar.value().unwrap()), vec![0; size_of::<T>()]);
        let moved = scalar;
        assert_eq!(moved.value().unwrap(), T::zeroed());
    }
}

#[test]
fn a_scalar_of_any_plain_type_holds_what_it_is_given() {
    behaves(5_i8, -6);
    behaves(5_i16, -600);
    behaves(5_i32, i32::MIN);
    behaves(0x0102_0304_0506_0708_i64, -1);
    behaves(5_u8, 255);
    behaves(1.5_f32, -0.25);
    behaves(1.1_f64, -2.2);
    behaves([1_u8, 2, 3], [4, 5, 6]);
    behaves([7_u64; 32], std::array::from_fn(|at| at as u64));
}

#[test]
fn minus_zero_is_kept_and_zero_is_not_minus_zero() {
    let stream_of = support::device();
    let stream = stream_of.new_stream().unwrap();
    let mut scalar = DeviceScalar::new(&stream, -0.0_f64).unwrap();
    assert_eq!(scalar.value().unwrap().to_bits(), (-0.0_f64).to_bits());
    scalar.set_to_zero().unwrap();
    assert_eq!(scalar.value().unwrap().to_bits(), 0);
    scalar.set_value(-0.0).unwrap();
    assert_eq!(scalar.value().unwrap().to_bits(), (-0.0_f64).to_bits());
}

/// The value that is set is gone from the host before the device comes to it.
#[test]
fn only_a_read_waits_and_a_value_that_is_set_need_not_live_on() {
    for seed in 0..10 {
        let (device, simulator) = support::simulated(SimConfig::default().seed(seed));
        let stream = device.new_stream().unwrap();
        let set = |scalar: &mut DeviceScalar<[u32; 5]>, base: u32| {
            let short_lived = std::array::from_fn(|at| base + at as u32);
            scalar.set_value(short_lived).unwrap();
        };
        let mut scalar = DeviceScalar::zeroed(&stream).unwrap();
        set(&mut scalar, 10);
        let copy = scalar.try_clone().unwrap();
        set(&mut scalar, 20);
        let first = DeviceScalar::new(&stream, 1_u64).unwrap();
        assert_eq!(simulator.call_count("cuStreamSynchronize"), 0);
        assert_eq!(scalar.value().unwrap(), [20, 21, 22, 23, 24], "seed {seed}");
        assert_eq!(simulator.call_count("cuStreamSynchronize"), 1);
        assert_eq!(copy.value().unwrap(), [10, 11, 12, 13, 14], "seed {seed}");
        assert_eq!(first.value().unwrap(), 1);
        simulator.check().unwrap();
    }
}

#[test]
fn a_scalar_is_an_argument_of_kernels_on_any_stream() {
    for seed in 0..10 {
        let device = support::seeded(seed);
        let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let mut count = DeviceScalar::new(&home, 40_u32).unwrap();
        add_one(&home, &mut count).unwrap();
        add_one(&other, &mut count).unwrap();
        assert_eq!(count.on(&other).unwrap().len(), 1);
        assert_eq!(count.on_mut(&other).unwrap().len(), 1);
        assert_eq!(count.value().unwrap(), 42, "seed {seed}");
        let all = DeviceVec::from_slice(&other, &[7_u32, 8]).unwrap();
        count.copy_from(&all.slice(1..).unwrap()).unwrap();
        count.as_mut_slice().copy_from(&all.slice(..1).unwrap()).unwrap();
        assert_eq!(count.as_slice().to_vec().unwrap(), [7]);
        assert_eq!(count.copy_from(&all).unwrap_err().kind(), ErrorKind::LengthMismatch);
    }
}

#[test]
fn the_home_moves_and_the_old_one_is_waited_for() {
    for seed in 0..10 {
        let device = support::seeded(seed);
        let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let mut count = DeviceScalar::new(&home, 1_u32).unwrap();
        add_one(&home, &mut count).unwrap();
        count.set_stream(&other).unwrap();
        assert_eq!(count.stream(), &other);
        drop(home);
        add_one(&other, &mut count).unwrap();
        assert_eq!(count.value().unwrap(), 3, "seed {seed}");
    }
}

#[test]
fn a_read_that_does_not_wait_owns_or_borrows_what_it_reads() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let sum = DeviceScalar::new(&stream, 9_u16).unwrap();
    let (mut one, mut two) = ([0], [0]);
    stream
        .scope(|scope| {
            scope.download(&sum, &mut one)?;
            scope.download(&sum.as_slice(), &mut two)
        })
        .unwrap();
    assert_eq!((one, two), ([9], [9]));
    let (host, vec) = stream.download(sum.into_vec(), vec![0]).unwrap().wait().unwrap();
    assert_eq!(host, [9]);
    assert_eq!(DeviceScalar::try_from(vec).unwrap().value().unwrap(), 9);
}

#[test]
fn only_a_vector_of_one_element_is_a_scalar() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    for length in [0, 2] {
        let vec = DeviceVec::<u8>::zeroed(&stream, length).unwrap();
        let Refused { error, value } = DeviceScalar::try_from(vec).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LengthMismatch);
        assert_eq!(value.len(), length, "the vector comes back");
    }
}

/// RMM throws `bad_alloc` for a type that wants more than 256 bytes of alignment.
#[test]
fn a_type_may_want_more_alignment_than_the_default() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C, align(512))]
    struct Wide([u8; 512]);
    // SAFETY: 512 bytes aligned to 512 have no padding, and any bytes are a value.
    unsafe impl Zeroable for Wide {}
    // SAFETY: as above.
    unsafe impl Pod for Wide {}

    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let resources: [Arc<dyn DeviceResource>; 2] =
        [Arc::new(CudaResource::new(&device)), Arc::new(pool)];
    for resource in resources {
        // Something before it, so that it does not come to lie well by chance.
        let before = DeviceScalar::new_in(&stream, 1_u8, resource.clone()).unwrap();
        let scalar = DeviceScalar::new_in(&stream, Wide([3; 512]), resource).unwrap();
        assert_eq!(scalar.as_device_ptr() % 512, 0);
        assert_eq!(scalar.value().unwrap(), Wide([3; 512]));
        assert_eq!(before.value().unwrap(), 1);
    }
}

#[test]
fn what_cannot_be_is_an_error() {
    let (one, simulator) = support::simulated(SimConfig::default());
    let (two, _) = support::simulated(SimConfig::default().ordinal(1));
    let stream = one.new_stream().unwrap();
    assert_eq!(kind(DeviceScalar::new(&stream, ())), ErrorKind::InvalidArgument);
    let elsewhere = Arc::new(CudaResource::new(&two));
    assert_eq!(kind(DeviceScalar::new_in(&stream, 1_u8, elsewhere)), ErrorKind::WrongDevice);
    let mut scalar = DeviceScalar::new(&stream, 1_u8).unwrap();
    let foreign = two.new_stream().unwrap();
    assert_eq!(kind(scalar.set_stream(&foreign)), ErrorKind::WrongDevice);
    assert_eq!(kind(scalar.on(&foreign)), ErrorKind::WrongDevice);
    assert_eq!((scalar.stream(), scalar.value().unwrap()), (&stream, 1));
    assert!(format!("{scalar:?}").starts_with("DeviceScalar { element: u8"));
    drop(scalar);
    simulator.check().unwrap();
}
