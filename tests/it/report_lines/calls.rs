//! Each call that gives a device work names its own line.

use super::alias;
use super::fixture::{Fixture, LENGTH, VECTOR, Wanted, here};
use super::kernels::{ADD_ONE, COPY};
use aquifer::allocator_api2::alloc::Global;
use aquifer::sim::Violation;
use aquifer::{
    DeviceBlock, DeviceBuffer, DeviceLayout, DeviceRead, DeviceScalar, DeviceVec, LaunchConfig,
    Result,
};
use bytemuck::Pod;
use std::any::Any;
use std::mem::ManuallyDrop;

type Vector = DeviceVec<u32>;

/// A call on a vector that another stream writes, in no order with it; and a vector of no such kind. The
/// line, whatever the call returned.
type Call = fn(&Fixture, Vector, Vector) -> u32;

/// The line of a call.
fn line<T>((line, _): (u32, T)) -> u32 {
    line
}

const CALLS: &[(&str, Call)] = &[
    ("fill", |_, mut vec, _| line(here!(vec.fill(1)))),
    ("fill of a view", |_, mut vec, _| line(here!(vec.as_mut_slice().fill(1)))),
    ("copy_from_slice", |_, mut vec, _| line(here!(vec.copy_from_slice(&[1; LENGTH])))),
    ("copy_from_slice of a view", |_, mut vec, _| {
        let mut view = vec.as_mut_slice();
        line(here!(view.copy_from_slice(&[1; LENGTH])))
    }),
    ("copy_to_slice", |_, vec, _| line(here!(vec.copy_to_slice(&mut [1; LENGTH])))),
    ("copy_to_slice of a view", |_, vec, _| {
        let view = vec.as_slice();
        line(here!(view.copy_to_slice(&mut [1; LENGTH])))
    }),
    ("to_vec", |_, vec, _| line(here!(vec.to_vec()))),
    ("to_vec of a view", |_, vec, _| line(here!(vec.as_slice().to_vec()))),
    ("to_vec of a writable view", |_, mut vec, _| line(here!(vec.as_mut_slice().to_vec()))),
    ("to_vec_in", |_, vec, _| line(here!(vec.to_vec_in(Global)))),
    ("to_vec_in of a view", |_, vec, _| line(here!(vec.as_slice().to_vec_in(Global)))),
    ("get", |_, vec, _| line(here!(vec.get(1)))),
    ("set", |_, mut vec, _| line(here!(vec.set(1, 1)))),
    ("copy_from", |_, mut vec, clean| line(here!(vec.copy_from(&clean)))),
    ("copy_from, as the source", |_, vec, mut clean| line(here!(clean.copy_from(&vec)))),
    ("copy_from of a view", |_, vec, mut clean| {
        let mut view = clean.as_mut_slice();
        line(here!(view.copy_from(&vec)))
    }),
    ("try_clone", |_, vec, _| line(here!(vec.try_clone()))),
    ("reserve", |_, mut vec, _| line(here!(vec.reserve(LENGTH)))),
    ("reserve_exact", |_, mut vec, _| line(here!(vec.reserve_exact(1)))),
    ("resize", |_, mut vec, _| line(here!(vec.resize(LENGTH + 1, 0)))),
    ("push", |_, mut vec, _| line(here!(vec.push(0)))),
    ("extend_from_slice", |_, mut vec, _| line(here!(vec.extend_from_slice(&[1, 2])))),
    ("shrink_to_fit", |_, mut vec, _| {
        vec.truncate(10);
        line(here!(vec.shrink_to_fit()))
    }),
    ("DeviceBuffer::copy_of_in", |fixture, vec, _| {
        let (stream, pool) = (&fixture.stream, fixture.pool.clone());
        line(here!(DeviceBuffer::copy_of_in(stream, &vec, pool)))
    }),
    ("DeviceBuffer::copy_from", |fixture, vec, _| {
        let mut buffer = DeviceBuffer::zeroed(&fixture.stream, LENGTH * 4).unwrap();
        line(here!(buffer.copy_from(&vec)))
    }),
    ("DeviceBuffer::reserve", |_, vec, _| {
        let mut buffer = DeviceBuffer::from(vec);
        line(here!(buffer.reserve(1)))
    }),
    ("DeviceBuffer::shrink_to_fit", |_, mut vec, _| {
        vec.truncate(10);
        let mut buffer = DeviceBuffer::from(vec);
        line(here!(buffer.shrink_to_fit()))
    }),
    ("DeviceBuffer::resize_zeroed", |_, vec, _| {
        let mut buffer = DeviceBuffer::from(vec);
        line(here!(buffer.resize_zeroed(LENGTH * 8)))
    }),
    ("DeviceBuffer::resize_uninit", |_, vec, _| {
        let mut buffer = DeviceBuffer::from(vec);
        // SAFETY: never read.
        unsafe { line(here!(buffer.resize_uninit(LENGTH * 8))) }
    }),
    ("DeviceBuffer::try_clone", |_, vec, _| {
        let buffer = DeviceBuffer::from(vec);
        line(here!(buffer.try_clone()))
    }),
    ("DeviceBuffer::to_vec", |_, vec, _| {
        let buffer = DeviceBuffer::from(vec);
        line(here!(buffer.to_vec()))
    }),
    ("DeviceScalar::value", |_, vec, _| {
        let scalar = scalar(vec);
        line(here!(scalar.value()))
    }),
    ("DeviceScalar::set_value", |_, vec, _| {
        let mut scalar = scalar(vec);
        line(here!(scalar.set_value(1)))
    }),
    ("DeviceScalar::set_to_zero", |_, vec, _| {
        let mut scalar = scalar(vec);
        line(here!(scalar.set_to_zero()))
    }),
    ("DeviceScalar::copy_from", |_, vec, clean| {
        let mut scalar = scalar(vec);
        line(here!(scalar.copy_from(&clean.slice(..1).unwrap())))
    }),
    ("DeviceScalar::try_clone", |_, vec, _| {
        let scalar = scalar(vec);
        line(here!(scalar.try_clone()))
    }),
    ("Launch::launch", |fixture, mut vec, _| {
        let launch = fixture.stream.launch(&ADD_ONE).in_out(&mut vec).unwrap();
        let launch = launch.scalar(LENGTH as u32).unwrap();
        let config = LaunchConfig::for_elements(LENGTH);
        // SAFETY: the kernel touches `LENGTH` elements alone.
        unsafe { line(here!(launch.launch(config))) }
    }),
    ("Launch::launch, of an input", |fixture, vec, mut clean| {
        let launch = fixture.stream.launch(&COPY).input(&vec).unwrap();
        let launch = launch.output(&mut clean).unwrap().scalar(LENGTH as u32).unwrap();
        let config = LaunchConfig::for_elements(LENGTH);
        // SAFETY: the kernel touches `LENGTH` elements of each alone.
        unsafe { line(here!(launch.launch(config))) }
    }),
    ("Stream::upload", |fixture, vec, _| {
        let (stream, host) = (&fixture.stream, vec![1_u32; LENGTH]);
        line(here!(stream.upload(host, vec)))
    }),
    ("Stream::download", |fixture, vec, _| {
        let (stream, host) = (&fixture.stream, vec![1_u32; LENGTH]);
        line(here!(stream.download(vec, host)))
    }),
    ("Scope::upload", |fixture, mut vec, _| {
        let host = [1; LENGTH];
        let mut at = 0;
        let _ = fixture.stream.scope(|scope| {
            at = line(here!(scope.upload(&host, &mut vec)));
            Ok(())
        });
        at
    }),
    ("Scope::download", |fixture, vec, _| {
        let mut host = [1; LENGTH];
        let mut at = 0;
        let _ = fixture.stream.scope(|scope| {
            at = line(here!(scope.download(&vec, &mut host)));
            Ok(())
        });
        at
    }),
    ("copy_from_slice_async", |_, mut vec, _| {
        let host = [1; LENGTH];
        // SAFETY: pageable memory, which is read before the call returns.
        unsafe { line(here!(vec.copy_from_slice_async(&host))) }
    }),
    ("copy_to_slice_async", |_, vec, _| {
        let mut host = [1; LENGTH];
        // SAFETY: pageable memory, which is written before the call returns.
        unsafe { line(here!(vec.copy_to_slice_async(&mut host))) }
    }),
];

/// A scalar in the memory of a vector.
fn scalar(mut vec: Vector) -> DeviceScalar<u32> {
    vec.truncate(1);
    DeviceScalar::try_from(vec).unwrap()
}

#[test]
fn each_call_names_its_own_line() {
    for (name, call) in CALLS {
        let fixture = Fixture::new();
        let (stream, pool) = (&fixture.stream, fixture.pool.clone());
        let (made, vec) = here!(DeviceVec::zeroed_in(stream, LENGTH, pool));
        let (vec, clean) = (vec.unwrap(), fixture.zeroed());
        let mut raw = alias(&vec, &fixture.other, LENGTH);
        fixture.other.wait_for(stream).unwrap();
        let (beside, filled) = here!(raw.fill(1));
        filled.unwrap();
        let operation = Some(call(&fixture, vec, clean));
        let reports = fixture.simulator.take_reports();
        assert!(!reports.is_empty(), "{name}");
        let vector = Some((VECTOR, made));
        Wanted { file: file!(), operation, other: Some(beside), vector, words: &[] }
            .check(&reports[0]);
    }
}

/// What a constructor made, as a report names it: the line, the address.
type Made = (&'static str, u32, u64, Box<dyn Any>);

fn made<E: Pod, T: DeviceRead<E> + 'static>(
    name: &'static str,
    (line, made): (u32, Result<T>),
) -> Made {
    let made = made.unwrap();
    (name, line, made.as_device_slice().as_device_ptr(), Box::new(made))
}

const FIVE: &str = "DeviceVec<u32> of 5 elements (20 bytes)";
const THREE: &str = "DeviceVec<u32> of 3 elements (12 bytes)";
const SCALAR: &str = "DeviceScalar<u64> of 1 element (8 bytes)";

#[test]
fn each_constructor_names_its_own_line() {
    let fixture = Fixture::new();
    let (s, p) = (&fixture.stream, || fixture.pool.clone());
    let clean = fixture.zeroed();
    // The default pool lives as long as a vector of it.
    let _kept = DeviceVec::<u8>::zeroed(s, 1).unwrap();
    let size = DeviceLayout::new(12).unwrap();
    let made = [
        made(FIVE, here!(DeviceVec::<u32>::zeroed(s, 5))),
        made(FIVE, here!(DeviceVec::<u32>::with_capacity(s, 5))),
        made(FIVE, here!(DeviceVec::<u32>::with_capacity_in(s, 5, p()))),
        made(THREE, here!(DeviceVec::from_slice(s, &[1_u32, 2, 3]))),
        made(THREE, here!(DeviceVec::from_slice_in(s, &[1_u32; 3], p()))),
        // SAFETY: never read.
        made("DeviceVec<u8> of 1 element (1 byte)", unsafe {
            here!(DeviceVec::<u8>::uninit(s, 1))
        }),
        made(SCALAR, here!(DeviceScalar::new(s, 1_u64))),
        made(SCALAR, here!(DeviceScalar::<u64>::zeroed(s))),
        // SAFETY: never read.
        made(SCALAR, unsafe { here!(DeviceScalar::<u64>::uninit(s)) }),
        made("DeviceBuffer of 9 bytes", here!(DeviceBuffer::zeroed(s, 9))),
        made("DeviceBuffer of 12 bytes", here!(DeviceBuffer::with_layout(s, size))),
        // SAFETY: never read.
        made("DeviceBuffer of 12 bytes", unsafe {
            here!(DeviceBuffer::uninit_with_layout_in(s, size, p()))
        }),
        made("DeviceBuffer of 4 bytes", here!(DeviceBuffer::from_slice(s, &[1; 4]))),
        made("DeviceBuffer of 4000 bytes", here!(DeviceBuffer::copy_of(s, &clean))),
        // SAFETY: never read.
        made("DeviceBuffer of 4 bytes", unsafe { here!(DeviceBuffer::uninit(s, 4)) }),
        made("DeviceVec<u32> of 1000 elements (4000 bytes)", here!(clean.try_clone())),
    ];
    for (name, line, address, made) in made {
        let block = DeviceBlock::new(address, 1, 0);
        let (stream, pool) = (fixture.stream.clone(), fixture.pool.clone());
        // SAFETY: it is never dropped.
        let raw = unsafe { DeviceVec::<u8>::from_raw_parts(stream, block, 1, pool) };
        let mut raw = ManuallyDrop::new(raw.unwrap());
        drop(made);
        let (used, filled) = here!(raw.fill(1));
        filled.unwrap();
        let report = fixture.saw(Violation::UseAfterFree);
        let vector = Some((name, line));
        Wanted { file: file!(), operation: Some(used), other: None, vector, words: &["by a drop"] }
            .check(&report);
    }
}
