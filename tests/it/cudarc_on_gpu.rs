//! Vectors in cudarc's own functions and launches, on a GPU.

#![cfg(feature = "cuda")]
#![allow(clippy::forget_non_drop, reason = "that a guard is forgotten has to change nothing")]

use crate::{kernels, support};
use aquifer::cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use aquifer::cudarc::nvrtc::Ptx;
use aquifer::{Device, DeviceVec, Stream, interop, mr::AsyncResource};
use kernels::ADD_ONE;
use std::sync::Arc;

const N: usize = 1 << 20;

/// cudarc's form of the kernel that the other tests launch, or `None` without a GPU.
fn kernel(device: &Device, name: &str) -> Option<CudaFunction> {
    let Ok(context) = device.cuda_context() else {
        support::skipped(name, "no GPU");
        return None;
    };
    let module = context.load_module(Ptx::from_src(ADD_ONE.ptx().unwrap())).unwrap();
    Some(module.load_function(ADD_ONE.entry()).unwrap())
}

/// Adds one `times` times, on `stream`, with one guard for all launches.
fn add(kernel: &CudaFunction, stream: &Stream, vec: &mut DeviceVec<u32>, times: usize) {
    let n = vec.len() as u32;
    let mut guard = vec.on_mut(stream).unwrap();
    for _ in 0..times {
        let mut launch = stream.cuda_stream().unwrap().launch_builder(kernel);
        launch.arg(&mut guard).arg(&n);
        // SAFETY: the kernel touches the first n elements, and the guard is for this stream.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }.unwrap();
    }
}

#[test]
fn launches_through_guards_are_ordered_with_home_and_each_other() {
    let device = support::device();
    let name = "launches_through_guards_are_ordered_with_home_and_each_other";
    let Some(kernel) = kernel(&device, name) else { return };
    let streams: Vec<Stream> = (0..4).map(|_| device.new_stream().unwrap()).collect();
    let mut vec = DeviceVec::<u32>::zeroed(&streams[0], N).unwrap();
    let mut expected = 0;
    for round in 0..200_usize {
        let times = 1 + round % 3;
        add(&kernel, &streams[round % 4], &mut vec, times);
        expected += times as u32;
        if round % 50 == 49 {
            assert!(vec.to_vec().unwrap().iter().all(|&value| value == expected), "{round}");
        }
    }
}

#[test]
fn launches_at_home_come_after_use_elsewhere() {
    let device = support::device();
    let Some(kernel) = kernel(&device, "launches_at_home_come_after_use_elsewhere") else { return };
    let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut vec = DeviceVec::<u32>::zeroed(&home, N).unwrap();
    let n = N as u32;
    {
        for _ in 0..10 {
            add(&kernel, &other, &mut vec, 1);
            let mut argument = vec.on_mut(&home).unwrap();
            let mut launch = home.cuda_stream().unwrap().launch_builder(&kernel);
            launch.arg(&mut argument).arg(&n);
            // SAFETY: the kernel touches the first n elements, on the vector's home.
            unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }.unwrap();
        }
    }
    assert_eq!(vec.to_vec().unwrap(), [20; N]);
}

#[test]
fn cudarcs_copies_on_its_own_streams_are_ordered_with_home() {
    let device = support::device();
    let name = "cudarcs_copies_on_its_own_streams_are_ordered_with_home";
    let Some(kernel) = kernel(&device, name) else { return };
    let home = device.new_stream().unwrap();
    let unknown = home.cuda_stream().unwrap().fork().unwrap();
    let default = device.cuda_context().unwrap().default_stream();
    let mut vec = DeviceVec::<u32>::zeroed(&home, N).unwrap();
    // Memory that cudarc can free, when it becomes a `CudaSlice`.
    let resource = Arc::new(AsyncResource::new(&device).unwrap());
    let mut copy = DeviceVec::<u32>::zeroed_in(&home, N, resource).unwrap();
    for round in 1..100_u32 {
        add(&kernel, &home, &mut vec, 1);
        let stream = if round % 2 == 0 { &unknown } else { &default };
        stream.memcpy_dtod(&vec.cuda().unwrap(), &mut copy.cuda_mut().unwrap()).unwrap();
        // At home at once: only the order that the references left keeps these apart.
        add(&kernel, &home, &mut vec, 1);
        add(&kernel, &home, &mut copy, 1);
        assert_eq!(copy.get(N - 1).unwrap(), 2 * round, "{round}");
    }
    assert_eq!(unknown.clone_dtoh(&copy.cuda().unwrap()).unwrap(), copy.to_vec().unwrap());
    let slice = copy.into_cuda_slice().unwrap();
    assert_eq!(home.cuda_stream().unwrap().clone_dtoh(&slice).unwrap()[0], 198);
    let mut back = DeviceVec::from_cuda_slice(slice).unwrap();
    back.push(7).unwrap();
    assert_eq!(back.get(N).unwrap(), 7);
}

#[test]
fn slices_of_cudarc_are_lent_and_cudarc_goes_on_after_all_use() {
    let device = support::device();
    let name = "slices_of_cudarc_are_lent_and_cudarc_goes_on_after_all_use";
    let Some(kernel) = kernel(&device, name) else { return };
    let context = device.cuda_context().unwrap();
    let (theirs, another) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let ours = device.new_stream().unwrap();
    let mut slice = theirs.clone_htod(&vec![0_u32; N]).unwrap();
    for round in 0..50 {
        // On another stream of cudarc's, which it orders by its own events.
        another.memcpy_htod(&vec![round; N / 2], &mut slice.slice_mut(..N / 2)).unwrap();
        interop::lend_mut(&mut slice, |mut view| {
            let mut guard = view.on_mut(&ours)?;
            let n = N as u32;
            let mut launch = ours.cuda_stream()?.launch_builder(&kernel);
            launch.arg(&mut guard).arg(&n);
            // SAFETY: the kernel touches the first n elements, and the guard is for this stream.
            unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }.unwrap();
            std::mem::forget(guard);
            Ok(())
        })
        .unwrap();
        let copy = interop::lend(&slice.slice(N / 2 - 1..N / 2 + 1), |view| view.to_vec()).unwrap();
        assert_eq!(copy, [round + 1; 2]);
        let back = another.clone_dtoh(&slice).unwrap();
        assert!(back[..N / 2].iter().all(|&value| value == round + 1), "{round}");
        assert!(back[N / 2..].iter().all(|&value| value == round + 1), "{round}");
    }
    // An error and a panic of the body end the loan, too.
    let failed: aquifer::Result<()> = interop::lend(&slice, |view| view.copy_to_slice(&mut [0; 3]));
    assert_eq!(kernels::kind(failed), aquifer::ErrorKind::LengthMismatch);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        interop::lend_mut(&mut slice, |mut view| -> aquifer::Result<()> {
            view.on_mut(&ours)?;
            panic!("on purpose")
        })
    }));
    assert!(panicked.is_err());
    drop(slice);
}
