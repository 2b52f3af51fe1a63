//! Kernels behind functions of the program.

use crate::{kernels, support};
use aquifer::kernel::FunctionArgs;
use aquifer::pinned::PinnedResource;
use aquifer::sim::{SimConfig, Violation};
use aquifer::{
    CudaResource, DeviceVec, ErrorKind, HostArgs, Kernel, LaunchConfig, PoolResource, Result,
    Stream,
};
use kernels::kind;

static FILL: Kernel = Kernel::from_function("fill", |_: &LaunchConfig, mut args: HostArgs<'_>| {
    let (data, value) = (args.output::<u32>()?, args.scalar::<u32>()?);
    data.fill(value);
    Ok(())
});

/// What a `.cu` file would have, by a call of the driver that enqueues.
fn fill(args: &mut FunctionArgs<'_>) -> Result<()> {
    let ((data, length), value) = (args.output::<u32>()?, args.scalar::<u32>()?);
    args.check(driver::fill(args.stream(), data, value, length))
}

#[cfg(feature = "cuda")]
mod driver {
    use aquifer::cudarc::driver::sys::cuMemsetD32Async;
    use std::ffi::c_void;

    pub(super) fn fill(stream: *mut c_void, data: *mut u32, value: u32, length: usize) -> i32 {
        // SAFETY: the arguments of a launch that was declared so.
        unsafe { cuMemsetD32Async(data as u64, value, length, stream.cast()) as i32 }
    }
}

#[cfg(not(feature = "cuda"))]
mod driver {
    pub(super) fn fill(_: *mut std::ffi::c_void, _: *mut u32, _: u32, _: usize) -> i32 {
        unreachable!("there is no GPU without the feature")
    }
}

fn launch(stream: &Stream, data: &mut DeviceVec<u32>, value: u32) -> Result<()> {
    let launch = stream.launch(&FILL).output(data)?.scalar(value)?;
    // SAFETY: the function writes the buffer whole, on the stream that it is given.
    unsafe { launch.launch_with(|mut args| fill(&mut args)) }
}

#[test]
fn a_function_is_in_order_with_the_vectors_that_it_was_given() {
    let device = support::device();
    let [home, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let mut vec = DeviceVec::<u32>::zeroed(&home, 50_000).unwrap();
    for round in 0..20 {
        launch(&other, &mut vec, round).unwrap();
        kernels::add_one(&home, &mut vec).unwrap();
        launch(&home, &mut vec.try_clone().unwrap(), 9).unwrap();
    }
    assert!(vec.to_vec().unwrap().iter().all(|&value| value == 20));
    launch(&home, &mut DeviceVec::new(&home).unwrap(), 0).unwrap();
}

#[test]
fn the_simulated_device_checks_what_a_function_was_given() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 10).unwrap();
    // Read by the host form, and never written.
    // SAFETY: wrong on purpose.
    let unwritten = unsafe { DeviceVec::<u32>::uninit(&stream, 10).unwrap() };
    static READS: Kernel =
        Kernel::from_function("reads", |_, mut args: HostArgs<'_>| args.input::<u32>().map(drop));
    let launch = stream.launch(&READS).input(&unwritten).unwrap();
    // SAFETY: the simulated device calls no function.
    let enqueued: Result<()> = unsafe { launch.launch_with(|_| unreachable!()) };
    assert!(enqueued.and_then(|()| stream.synchronize()).is_err());
    assert_eq!(simulator.take_reports()[0].kind(), Violation::UninitializedRead);

    // The host form takes a buffer where a scalar was given.
    let launch = stream.launch(&FILL).scalar(1_u32).unwrap().output(&mut vec).unwrap();
    // SAFETY: as above.
    let enqueued: Result<()> = unsafe { launch.launch_with(|_| unreachable!()) };
    assert!(enqueued.and_then(|()| stream.synchronize()).is_err());
    assert!(!simulator.take_reports().is_empty());
}

#[test]
fn a_kernel_behind_a_function_has_no_other_launch() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 10).unwrap();
    let launch = stream.launch(&FILL).output(&mut vec).unwrap().scalar(1_u32).unwrap();
    // SAFETY: it is refused.
    let refused = unsafe { launch.launch(LaunchConfig::for_elements(10)) };
    assert_eq!(kind(refused), ErrorKind::InvalidArgument);
    assert_eq!((FILL.entry(), FILL.ptx()), ("fill", None));
}

#[test]
fn a_function_becomes_a_part_of_a_graph() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 1000).unwrap();
    let graph = stream
        .capture(&pool, |_| {
            launch(&stream, &mut vec, 5)?;
            kernels::add_one(&stream, &mut vec)
        })
        .unwrap()
        .0;
    for _ in 0..3 {
        vec.fill(0).unwrap();
        // SAFETY: the vector lives, and its home has the launch.
        unsafe { graph.launch(&stream).unwrap() };
        assert_eq!(vec.to_vec().unwrap(), [6; 1000]);
    }
}

static ADD: Kernel = Kernel::from_function("add", |_, mut args: HostArgs<'_>| {
    let (data, value) = (args.in_out::<u32>()?, args.scalar::<u32>()?);
    data.iter_mut().for_each(|element| *element += value);
    Ok(())
});

#[test]
fn mapped_memory_of_a_scope_is_an_argument_that_no_graph_gets() {
    let (device, _simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let mut host = allocator_api2::vec::Vec::new_in(PinnedResource::new(&device).unwrap());
    host.resize(100, 1_u32);
    stream
        .scope(|s| {
            let mut data = s.map_mut(&mut host)?;
            let add = || stream.launch(&ADD);
            // SAFETY: the simulated device calls no function.
            unsafe {
                let launch = add().mapped_in_out(&mut data)?.scalar(7_u32)?;
                launch.launch_with(|_| -> Result<()> { unreachable!() })?;
            }
            let pool = PoolResource::new(CudaResource::new(&device))?;
            let captured = stream.capture(&pool, |_| {
                // SAFETY: as above.
                unsafe {
                    let launch = add().mapped_in_out(&mut data)?.scalar(7_u32)?;
                    launch.launch_with(|_| -> Result<()> { unreachable!() })
                }
            });
            assert_eq!(captured.map(drop).unwrap_err().kind(), ErrorKind::Capture);
            Ok(())
        })
        .unwrap();
    assert!(host.iter().all(|&value| value == 8));
}
