//! What a GPU takes the simulated device takes, and what it refuses that refuses too.

use crate::{kernels, support};
use aquifer::{
    AsyncResource, CudaResource, Device, DeviceResource, DeviceVec, ErrorKind, HostArgs, Kernel,
    LaunchConfig, ManagedResource, PinnedResource, PoolResource, Result,
};
use bytemuck::{Pod, Zeroable};
use kernels::ADD_ONE;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn a_launch_takes_the_grids_that_cuda_takes() {
    const MOST: u32 = i32::MAX as u32;
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 1).unwrap();
    let mut launch = |grid, block, shared_bytes| {
        let launch = stream.launch(&ADD_ONE).in_out(&mut vec)?.scalar(0_u32)?;
        // SAFETY: it touches none of the elements.
        unsafe { launch.launch(LaunchConfig { grid, block, shared_bytes }) }
    };
    let (one, kib) = ((1, 1, 1), 1024);
    for (grid, block, shared) in [
        ((70_000, 1, 1), one, 0),
        ((1, 65_535, 1), one, 0),
        ((1, 1, 65_535), one, 0),
        (one, (1024, 1, 1), 0),
        (one, (1, 1024, 1), 0),
        (one, (4, 4, 64), 48 * kib),
    ] {
        launch(grid, block, shared).unwrap();
    }
    for (grid, block, shared) in [
        ((0, 1, 1), one, 0),
        ((1, 0, 1), one, 0),
        ((1, 1, 0), one, 0),
        ((MOST + 1, 1, 1), one, 0),
        ((1, 65_536, 1), one, 0),
        ((1, 70_000, 1), one, 0),
        ((1, 1, 65_536), one, 0),
        (one, (0, 1, 1), 0),
        (one, (1, 0, 1), 0),
        (one, (1, 1, 0), 0),
        (one, (2048, 1, 1), 0),
        (one, (1, 1025, 1), 0),
        (one, (1, 1, 65), 0),
        (one, (32, 33, 1), 0),
        (one, (u32::MAX, u32::MAX, u32::MAX), 0),
        (one, one, 48 * kib + 1),
        (one, one, 1 << 30),
    ] {
        let refused = launch(grid, block, shared).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Driver, "{grid:?} {block:?} {shared}: {refused}");
        assert_eq!(refused.driver().unwrap().code(), 1, "{grid:?} {block:?} {shared}");
    }
    stream.synchronize().unwrap();
}

macro_rules! aligned {
    ($($name:ident, $kernel:ident: $bytes:literal;)*) => {
        $(
            #[derive(Clone, Copy, Debug, PartialEq)]
            #[repr(C, align($bytes))]
            struct $name([u32; $bytes / 4]);
            // SAFETY: an array of integers that fills it, without padding.
            unsafe impl Zeroable for $name {}
            // SAFETY: as above.
            unsafe impl Pod for $name {}

            static $kernel: Kernel = Kernel::new(
                "add_one",
                ADD_ONE.ptx(),
                |_: &LaunchConfig, mut args: HostArgs<'_>| -> Result<()> {
                    for element in args.in_out::<$name>()? {
                        element.0.iter_mut().for_each(|value| *value += 1);
                    }
                    args.scalar::<u32>().map(drop)
                },
            );
        )*
    };
}
aligned! {
    Half, ADD_TO_HALF: 512;
    Page, ADD_TO_PAGE: 4096;
    Large, ADD_TO_LARGE: 8192;
}

fn adds_one<T: Pod + PartialEq + std::fmt::Debug>(
    resource: &Arc<dyn DeviceResource>,
    device: &Device,
    kernel: &'static Kernel,
    make: impl Fn(u32) -> T,
) {
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::zeroed_in(&stream, 4, resource.clone()).unwrap();
    vec.copy_from_slice(&[make(1), make(2), make(3), make(4)]).unwrap();
    let mut add = |from: usize, to: usize| {
        let mut part = vec.slice_mut(from..to).unwrap();
        let words = (part.size_in_bytes() / 4) as u32;
        let launch = stream.launch(kernel).in_out(&mut part).unwrap().scalar(words).unwrap();
        // SAFETY: it touches the words that it is given.
        unsafe { launch.launch(LaunchConfig::for_elements(words as usize)) }.unwrap();
    };
    add(0, 4);
    add(1, 2);
    add(2, 2);
    let name = format!("{resource:?}");
    assert_eq!(vec.to_vec().unwrap(), [make(2), make(4), make(4), make(5)], "{name}");
}

#[test]
fn elements_may_be_aligned_further_than_the_driver_aligns() {
    let device = support::device();
    let plain = CudaResource::new(&device);
    let resources: [Arc<dyn DeviceResource>; 5] = [
        Arc::new(PoolResource::builder(plain.clone()).build().unwrap()),
        Arc::new(plain),
        Arc::new(AsyncResource::new(&device).unwrap()),
        Arc::new(ManagedResource::new(&device).unwrap()),
        Arc::new(PinnedResource::new(&device).unwrap()),
    ];
    for resource in &resources {
        adds_one(resource, &device, &ADD_TO_HALF, |value| Half([value; 128]));
        adds_one(resource, &device, &ADD_TO_PAGE, |value| Page([value; 1024]));
        adds_one(resource, &device, &ADD_TO_LARGE, |value| Large([value; 2048]));
    }
}

/// A value of several words is filled in so many rows.
#[test]
fn a_large_fill_of_rows_takes_no_time() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    // SAFETY: written whole by the fill.
    let mut vec = unsafe { DeviceVec::<f64>::uninit(&stream, 1_000_000) }.unwrap();
    let started = Instant::now();
    vec.fill(1.5).unwrap();
    let enqueued = started.elapsed();
    let values = vec.to_vec().unwrap();
    assert!(values.iter().all(|value| *value == 1.5));
    vec.slice_mut(10..999_000).unwrap().fill(2.5).unwrap();
    assert_eq!(vec.get(9).unwrap(), 1.5);
    assert_eq!(vec.get(10).unwrap(), 2.5);
    let taken = started.elapsed();
    assert!(taken < Duration::from_secs(10), "{enqueued:?} to enqueue, {taken:?} in all");
}
