//! Vectors and kernels on streams in capture, through what is public.

use crate::{kernels, support};
use aquifer::sim::SimConfig;
use aquifer::{CudaResource, DeviceVec, ErrorKind, PoolResource, stream::Graph};
use kernels::{add_one, copy, kind};

#[test]
fn a_graph_goes_where_it_is_wanted() {
    fn anywhere<T: Send + Sync + 'static>() {}
    anywhere::<Graph>();
}

#[test]
fn work_at_home_is_captured_and_costs_no_capture() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::from_slice(&stream, &[1_u32; 8]).unwrap();
    let mut other = DeviceVec::from_slice(&stream, &[2_u32; 8]).unwrap();
    simulator.start_capture(&stream).unwrap();
    let before = simulator.calls();
    add_one(&stream, &mut vec).unwrap();
    copy(&stream, &vec, &mut other).unwrap();
    vec.fill(7).unwrap();
    other.copy_from(&vec).unwrap();
    let after: Vec<_> =
        simulator.calls().into_iter().filter(|call| !before.contains(call)).collect();
    let work = ["cuLaunchKernel", "cuMemcpyDtoDAsync", "cuMemsetAsync"];
    assert_eq!(after.iter().map(|call| call.0).collect::<Vec<_>>(), work);
    // Copies of host memory are refused before the driver hears of them.
    assert_eq!(kind(vec.copy_from_slice(&[0; 8])), ErrorKind::Capture);
    assert_eq!(kind(vec.to_vec()), ErrorKind::Capture);
    assert!(simulator.stop_capture(&stream), "not disturbed");
    assert_eq!((vec.to_vec().unwrap(), other.to_vec().unwrap()), (vec![1; 8], vec![2; 8]));
    simulator.check().unwrap();
}

#[test]
fn a_vector_is_not_lent_inside_where_nobody_was_told_of_the_capture() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut vec = DeviceVec::from_slice(&stream, &[1_u32; 8]).unwrap();
    simulator.start_capture(&stream).unwrap();
    // A guard, or a launch, that is used when the capture is over would be in no order with home.
    assert_eq!(kind(vec.on_mut(&other)), ErrorKind::Capture);
    assert_eq!(kind(add_one(&other, &mut vec)), ErrorKind::Capture);
    assert!(!other.is_capturing().unwrap());
    vec.fill(7).unwrap();
    assert!(simulator.stop_capture(&stream), "not disturbed");
    assert_eq!(vec.to_vec().unwrap(), [1; 8], "nothing ran");
    add_one(&other, &mut vec).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [2; 8]);
    simulator.check().unwrap();
}

#[test]
fn a_vector_at_home_elsewhere_is_no_part_of_a_capture() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (stream, home) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut vec = DeviceVec::from_slice(&home, &[1_u32; 8]).unwrap();
    simulator.start_capture(&stream).unwrap();
    assert_eq!(kind(add_one(&stream, &mut vec)), ErrorKind::Capture);
    assert!(!home.is_capturing().unwrap());
    assert!(simulator.stop_capture(&stream), "not disturbed");
    vec.fill(3).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [3; 8]);
    simulator.check().unwrap();
}

/// A stream that is gone leaves its memory to the capturing stream, which is made to wait for it when the
/// capture has been acquired already.
#[test]
fn a_launch_elsewhere_comes_after_what_the_graphs_memory_was_used_for() {
    let device = support::device();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    for round in 0..20 {
        let gone = device.new_stream().unwrap();
        let vec = DeviceVec::<u8>::zeroed_in(&gone, 4096 << (round % 4), pool.clone()).unwrap();
        drop((vec, gone));
        let [stream, elsewhere] = [(); 2].map(|()| device.new_stream().unwrap());
        let (graph, ()) = stream
            .capture(&pool, |stream| {
                DeviceVec::<u8>::zeroed_in(stream, 4096 << (round % 4), pool.clone()).map(drop)
            })
            .unwrap();
        // SAFETY: the graph works on memory of its own alone.
        unsafe { graph.launch(&elsewhere) }.unwrap();
        device.synchronize().unwrap();
    }
}
