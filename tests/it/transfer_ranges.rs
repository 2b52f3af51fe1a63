//! Owned transfers of ranges: which elements move, and what becomes of the buffers.

use crate::support;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{SimConfig, Violation};
use aquifer::{
    DeviceVec, ErrorKind, PinnedAlloc, Result, Transfer,
    pinned::{HostBuffer, PinnedResource},
    transfer::TransferError,
};

fn refused<B: HostBuffer>(
    begun: Result<Transfer<B>, TransferError<B>>,
    kind: ErrorKind,
) -> (B, DeviceVec<B::Item>) {
    let failed = begun.expect_err("it should be refused");
    assert_eq!(failed.error.kind(), kind, "{failed}");
    *failed.buffers.expect("the buffers come back")
}

#[test]
fn ranges_go_up_and_down_and_leave_the_rest() {
    let device = support::device();
    let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut host: AllocVec<u32, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
    host.extend(0..1000);
    let vec = DeviceVec::<u32>::zeroed(&home, 500).unwrap();
    let upload = other.upload_range(host, 100..200, vec, 300..400).unwrap();
    let (host, vec) = upload.wait().unwrap();
    let upload = home.upload_range(host, ..=9, vec, 490..).unwrap();
    let (mut host, vec) = upload.wait().unwrap();
    let expected: Vec<u32> =
        [0; 300].into_iter().chain(100..200).chain([0; 90]).chain(0..10).collect();
    assert_eq!(vec.to_vec().unwrap(), expected);
    host.fill(7);
    let download = other.download_range(vec, 250..350, host, 900..).unwrap();
    let (host, _) = download.wait().unwrap();
    let expected: Vec<u32> = [7; 900].into_iter().chain([0; 50]).chain(100..150).collect();
    assert_eq!(&host[..], expected);
}

#[test]
fn empty_ranges_end() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::from_slice(&stream, &[1_u32, 2]).unwrap();
    let (host, vec) = stream.upload_range(vec![9; 3], 3.., vec, 2..2).unwrap().wait().unwrap();
    let (host, vec) = stream.download_range(vec, ..0, host, 1..1).unwrap().wait().unwrap();
    assert_eq!((host, vec.to_vec().unwrap()), (vec![9; 3], vec![1, 2]));
}

#[test]
fn ranges_outside_of_a_buffer_and_of_two_lengths_give_the_buffers_back() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let (host, vec) = (vec![1_u32; 3], DeviceVec::<u32>::zeroed(&stream, 4).unwrap());
    let out = ErrorKind::OutOfBounds;
    let (host, vec) = refused(stream.upload_range(host, 2..4, vec, 0..2), out);
    let (host, vec) = refused(stream.upload_range(host, 0..2, vec, 3..5), out);
    let (host, vec) = refused(stream.download_range(vec, 4..=4, host, 0..1), out);
    let (host, vec) = refused(stream.download_range(vec, 0..1, host, usize::MAX..), out);
    let kind = ErrorKind::LengthMismatch;
    let (host, vec) = refused(stream.upload_range(host, .., vec, ..), kind);
    let (host, vec) = refused(stream.download_range(vec, 1..2, host, ..0), kind);
    assert_eq!((host, vec.to_vec().unwrap()), (vec![1; 3], vec![0; 4]));
}

#[test]
fn a_stream_in_capture_refuses_ranges() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let (host, vec) = (vec![1_u32; 3], DeviceVec::<u32>::zeroed(&stream, 4).unwrap());
    simulator.start_capture(&stream).unwrap();
    let (host, vec) = refused(stream.upload_range(host, 1.., vec, 2..), ErrorKind::Capture);
    let (host, vec) = refused(stream.upload_range(host, 1..1, vec, 2..2), ErrorKind::Capture);
    assert!(simulator.stop_capture(&stream), "nothing invalidated it");
    let (_, vec) = stream.upload_range(host, 1.., vec, 2..).unwrap().wait().unwrap();
    assert_eq!(vec.to_vec().unwrap(), [0, 0, 1, 1]);
    simulator.check().unwrap();
}

#[test]
fn a_range_is_all_that_a_transfer_writes() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    // SAFETY: wrong on purpose: all but a range is read before it is written.
    let vec = unsafe { DeviceVec::<u32>::uninit(&stream, 100) }.unwrap();
    let (_, vec) = stream.upload_range(vec![1; 100], 10..20, vec, 10..20).unwrap().wait().unwrap();
    assert_eq!(vec.slice(10..20).unwrap().to_vec().unwrap(), [1; 10]);
    simulator.check().unwrap();
    assert!(vec.slice(9..20).unwrap().to_vec().is_err());
    assert_eq!(simulator.take_reports()[0].kind(), Violation::UninitializedRead);
}

#[test]
fn many_ranges_move_in_one_transfer_and_leave_the_rest() {
    let device = support::device();
    let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut host: AllocVec<u32, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
    host.extend(0..100);
    let vec = DeviceVec::<u32>::zeroed(&home, 1000).unwrap();
    let pairs: Vec<_> = (0..10).map(|at| (at * 10..at * 10 + 7, at * 100..at * 100 + 7)).collect();
    let (mut host, vec) = other.upload_ranges(host, pairs.clone(), vec).unwrap().wait().unwrap();
    let up = vec.to_vec().unwrap();
    for (at, number) in up.iter().enumerate() {
        let wanted = if at % 100 < 7 { at / 100 * 10 + at % 100 } else { 0 };
        assert_eq!(*number as usize, wanted, "{at}");
    }
    host.fill(5);
    let swapped = pairs
        .iter()
        .rev()
        .zip(&pairs)
        .map(|((_, device), (host, _))| (device.clone(), host.clone()));
    let (host, vec) = home.download_ranges(vec, swapped, host).unwrap().wait().unwrap();
    for (at, number) in host.iter().enumerate() {
        let wanted = if at % 10 < 7 { 90 - at / 10 * 10 + at % 10 } else { 5 };
        assert_eq!(*number as usize, wanted, "{at}");
    }
    // Later pairs win, empty ones and none at all end.
    let pairs = [(0..2, 0..2), (100..101, 1..2), (3..3, 9..9)];
    let (host, vec) = other.download_ranges(vec, pairs, vec![0; 9]).unwrap().wait().unwrap();
    assert_eq!(host, [0, 10, 0, 0, 0, 0, 0, 0, 0]);
    let (host, _vec) = other.upload_ranges(host, [], vec).unwrap().wait().unwrap();
    assert_eq!(host.len(), 9);
    device.finish().unwrap();
}

#[test]
fn one_wrong_range_of_many_copies_nothing() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let (host, vec) = (vec![1_u32; 3], DeviceVec::<u32>::zeroed(&stream, 4).unwrap());
    let out = ErrorKind::OutOfBounds;
    let (host, vec) = refused(stream.upload_ranges(host, [(0..2, 0..2), (2..4, 0..2)], vec), out);
    let (host, vec) = refused(stream.upload_ranges(host, [(0..2, 0..2), (0..2, 3..5)], vec), out);
    let (host, vec) = refused(stream.download_ranges(vec, [(0..2, 0..2), (3..5, 0..2)], host), out);
    #[expect(clippy::reversed_empty_ranges, reason = "that is the point")]
    let (host, vec) = refused(stream.download_ranges(vec, [(0..2, 0..2), (2..1, 0..0)], host), out);
    let kind = ErrorKind::LengthMismatch;
    let (host, vec) = refused(stream.upload_ranges(host, [(0..2, 0..2), (0..2, 2..3)], vec), kind);
    let (host, vec) =
        refused(stream.download_ranges(vec, [(0..2, 0..2), (1..2, 2..2)], host), kind);
    assert_eq!((host, vec.to_vec().unwrap()), (vec![1; 3], vec![0; 4]));
    device.finish().unwrap();
}

#[test]
fn a_driver_that_fails_between_two_ranges_gives_the_buffers_back() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::from_slice(&stream, &[1_u32, 2, 3, 4]).unwrap();
    simulator.fail_call("cuMemcpyDtoHAsync", 2, 1).unwrap();
    let mut host = AllocVec::new_in(PinnedResource::new(&device).unwrap());
    host.resize(3, 9_u32);
    let pairs = [(0..1, 0..1), (1..2, 1..2), (2..3, 2..3)];
    let (host, vec) = refused(stream.download_ranges(vec, pairs, host), ErrorKind::Driver);
    assert_eq!(&host[..], [1, 9, 9], "the first copy is done");
    simulator.fail_call("cuEventRecord", 1, 1).unwrap();
    let (host, vec) = refused(stream.download_ranges(vec, [(3..4, 2..3)], host), ErrorKind::Driver);
    assert_eq!((&host[..], vec.to_vec().unwrap()), (&[1, 9, 4][..], vec![1, 2, 3, 4]));
    simulator.start_capture(&stream).unwrap();
    let (host, vec) =
        refused(stream.download_ranges(vec, [(0..1, 0..1)], host), ErrorKind::Capture);
    let (_host, _vec) = refused(stream.upload_ranges(host, [], vec), ErrorKind::Capture);
    assert!(simulator.stop_capture(&stream), "nothing invalidated it");
    simulator.check().unwrap();
}
