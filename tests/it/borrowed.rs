//! Memory and streams of other owners, lent for a while.

#![allow(
    clippy::forget_non_drop,
    clippy::drop_non_drop,
    reason = "that a guard is forgotten has to change nothing"
)]

use crate::support::foreign::Foreign;
use crate::{kernels, support};
use aquifer::container::BorrowedVec;
use aquifer::sim::{SimConfig, Violation};
use aquifer::stream::BorrowedStream;
use aquifer::{DeviceVec, ErrorKind, PoolResource, Stream};
use kernels::{add_one, copy, kind};

/// The whole of a vector, lent. It plays the part of another library's memory.
///
/// # Safety
///
/// The vector outlives the loan, and is left alone meanwhile.
unsafe fn lend(vec: &DeviceVec<u32>) -> BorrowedVec<'_, u32> {
    // SAFETY: the caller's promise.
    unsafe { BorrowedVec::new(vec.stream(), vec.as_device_ptr(), vec.len()).unwrap() }
}

#[test]
fn an_owner_goes_on_after_all_use_of_the_loan_elsewhere() {
    let device = support::device();
    let [theirs, a, b] = [(); 3].map(|()| device.new_stream().unwrap());
    let mut tensor = DeviceVec::from_slice(&theirs, &vec![1_u32; 50_000]).unwrap();
    let address = tensor.as_device_ptr();
    for round in 0..20 {
        add_one(&theirs, &mut tensor).unwrap();
        {
            // SAFETY: it is left alone while the loan lasts.
            let mut lent = unsafe { lend(&tensor) };
            assert_eq!((lent.len(), lent.stream()), (50_000, &theirs));
            assert_eq!(lent.as_device_ptr(), address);
            add_one(&a, &mut lent).unwrap();
            let (mut head, mut tail) = lent.as_mut_slice().into_split_at_mut(20_000).unwrap();
            add_one(&a, &mut head).unwrap();
            add_one(&b, &mut tail).unwrap();
            std::mem::forget(lent.on(&b).unwrap());
            if round % 2 == 0 {
                lent.end().unwrap();
            }
        }
        add_one(&theirs, &mut tensor).unwrap();
    }
    assert!(tensor.to_vec().unwrap().iter().all(|&value| value == 1 + 20 * 4));
}

#[test]
fn copies_scopes_and_transfers_take_what_is_lent() {
    let device = support::device();
    let [theirs, own] = [(); 2].map(|()| device.new_stream().unwrap());
    let tensor = DeviceVec::from_slice(&theirs, &[1_u32, 2, 3, 4]).unwrap();
    // SAFETY: it is left alone while the loan lasts.
    let mut lent = unsafe { lend(&tensor) };
    let mut vec = DeviceVec::zeroed(&own, 4).unwrap();
    vec.copy_from(&lent).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1, 2, 3, 4]);
    lent.copy_from_slice(&[5; 4]).unwrap();
    let mut host = [0; 4];
    own.scope(|s| {
        s.upload(&[6, 7], &mut lent.as_mut_slice().slice_mut(1..3)?)?;
        s.download(&lent, &mut host)
    })
    .unwrap();
    assert_eq!(host, [5, 6, 7, 5]);
    let mut target = DeviceVec::zeroed(&own, 4).unwrap();
    copy(&own, &lent.as_slice(), &mut target).unwrap();
    drop(lent);
    assert_eq!(
        (tensor.to_vec().unwrap(), target.to_vec().unwrap()),
        (host.to_vec(), host.to_vec())
    );
}

#[test]
fn nothing_is_lent_that_is_no_memory() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let lend = |address, length| {
        // SAFETY: it is refused, or has no elements.
        unsafe { BorrowedVec::<u32>::new(&stream, address, length).map(drop) }
    };
    for (address, length) in [(0, 1), (1 << 20 | 2, 1), (1 << 20, usize::MAX)] {
        assert_eq!(kind(lend(address, length)), ErrorKind::InvalidArgument);
    }
    lend(0, 0).unwrap();
    // SAFETY: as above.
    let units = unsafe { BorrowedVec::<()>::new(&stream, 1 << 20, 3).map(drop) };
    assert_eq!(kind(units), ErrorKind::InvalidArgument);
}

#[test]
fn a_loan_that_ends_in_no_order_would_be_seen() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let [theirs, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let mut tensor = DeviceVec::from_slice(&theirs, &[1_u32; 100]).unwrap();
    // SAFETY: broken on purpose: the loan is forgotten before the device has passed its use.
    let mut lent = unsafe { lend(&tensor) };
    add_one(&other, &mut lent).unwrap();
    std::mem::forget(lent);
    add_one(&theirs, &mut tensor).unwrap();
    let _ = device.synchronize();
    let reports = simulator.take_reports();
    assert!(
        reports.iter().any(|report| report.kind() == Violation::UnorderedAccess),
        "{reports:?}"
    );
}

#[test]
fn a_loan_that_a_capture_uses_ends_in_its_order() {
    let device = support::device();
    let [theirs, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = PoolResource::new(aquifer::CudaResource::new(&device)).unwrap();
    let mut tensor = DeviceVec::from_slice(&theirs, &vec![0_u32; 1000]).unwrap();
    let graph = theirs
        .capture(&pool, |_| {
            // SAFETY: the tensor outlives the graph, and is used between launches alone.
            let mut lent = unsafe { lend(&tensor) };
            add_one(&other, &mut lent)?;
            add_one(&theirs, &mut lent)?;
            lent.end()
        })
        .unwrap();
    for _ in 0..3 {
        // SAFETY: the tensor lives, and its home has the launch.
        unsafe { graph.0.launch(&theirs).unwrap() };
        add_one(&theirs, &mut tensor).unwrap();
    }
    assert!(tensor.to_vec().unwrap().iter().all(|&value| value == 9));
}

#[test]
fn a_loan_waits_on_the_host_where_home_cannot_wait() {
    let device = support::device();
    let [theirs, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = PoolResource::new(aquifer::CudaResource::new(&device)).unwrap();
    let mut tensor = DeviceVec::from_slice(&theirs, &vec![1_u32; 50_000]).unwrap();
    // SAFETY: it is left alone while the loan lasts.
    let mut lent = unsafe { lend(&tensor) };
    add_one(&other, &mut lent).unwrap();
    // Home is in a capture on another thread when the loan ends.
    std::thread::scope(|scope| {
        let (begun, wait) = std::sync::mpsc::channel();
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let (theirs, pool) = (&theirs, &pool);
        let capture = scope.spawn(move || {
            theirs.capture(pool, |_| {
                begun.send(()).unwrap();
                end.recv().unwrap();
                Ok(())
            })
        });
        wait.recv().unwrap();
        let used = other.record().unwrap();
        lent.end().unwrap();
        // Its owner may use the memory without a call of this crate, which would do what was put off.
        assert!(used.is_complete().unwrap());
        ended.send(()).unwrap();
        capture.join().unwrap().unwrap();
    });
    add_one(&theirs, &mut tensor).unwrap();
    assert!(tensor.to_vec().unwrap().iter().all(|&value| value == 3));
}

#[test]
fn the_memory_of_a_lost_device_comes_back_with_an_error() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let [theirs, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let tensor = DeviceVec::from_slice(&theirs, &[1_u32; 100]).unwrap();
    for is_dropped in [true, false] {
        // SAFETY: it is left alone while the loan lasts.
        let mut lent = unsafe { lend(&tensor) };
        if !is_dropped {
            add_one(&other, &mut lent).unwrap();
            simulator.lose_context();
            assert_eq!(kind(lent.end()), ErrorKind::ContextLost);
        }
    }
}

#[test]
fn a_borrowed_stream_is_detached_when_it_goes() {
    let device = support::device();
    let foreign = Foreign::new(&device).unwrap();
    let (mut vec, clone): (DeviceVec<u32>, Stream) = {
        // SAFETY: destroyed after the guard is gone.
        let theirs = unsafe { BorrowedStream::new(&device, foreign.handle).unwrap() };
        (DeviceVec::from_slice(&theirs, &[1, 2, 3]).unwrap(), theirs.clone())
    };
    foreign.destroy().unwrap();
    vec.fill(4).unwrap();
    assert_eq!((vec.to_vec().unwrap(), vec.stream()), (vec![4; 3], &clone));
    clone.synchronize().unwrap();
}

#[test]
fn a_borrowed_stream_that_nothing_remembers_costs_no_stream() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let foreign = Foreign::new(&device).unwrap();
    let before = simulator.call_count("cuStreamCreate");
    for _ in 0..3 {
        // SAFETY: destroyed after the guard is gone.
        let theirs = unsafe { BorrowedStream::new(&device, foreign.handle).unwrap() };
        theirs.synchronize().unwrap();
    }
    assert_eq!(simulator.call_count("cuStreamCreate"), before);
    // SAFETY: as above.
    let theirs = unsafe { BorrowedStream::new(&device, foreign.handle).unwrap() };
    let kept = theirs.clone();
    drop(theirs);
    assert_eq!(simulator.call_count("cuStreamCreate"), before + 1);
    foreign.destroy().unwrap();
    kept.synchronize().unwrap();
}

#[test]
fn a_stream_that_several_borrow_is_detached_by_the_last() {
    let device = support::device();
    let foreign = Foreign::new(&device).unwrap();
    // SAFETY: destroyed after both guards are gone.
    let borrow = || unsafe { BorrowedStream::new(&device, foreign.handle).unwrap() };
    let outer = borrow();
    let kept = {
        let inner = borrow();
        assert_eq!(*inner, *outer);
        inner.clone()
    };
    assert_eq!((outer.handle(), kept.handle()), (foreign.handle, foreign.handle));
    drop(outer);
    assert_ne!(kept.handle(), foreign.handle, "a stream of the crate's own");

    // Another one promised to keep the stream.
    let theirs = foreign.stream().unwrap();
    drop((borrow(), theirs.clone()));
    assert_eq!(theirs.handle(), foreign.handle);
    theirs.detach().unwrap();
    foreign.destroy().unwrap();
    theirs.synchronize().unwrap();
}

#[test]
fn guards_on_many_threads_leave_one_stream_or_none() {
    let device = support::device();
    let foreign = Foreign::new(&device).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    // SAFETY: destroyed after all guards are gone.
                    let theirs = unsafe { BorrowedStream::new(&device, foreign.handle).unwrap() };
                    assert_eq!(theirs.handle(), foreign.handle, "while a guard lives");
                    let vec = DeviceVec::from_slice(&theirs, &[1_u32; 10]).unwrap();
                    assert_eq!(vec.to_vec().unwrap(), [1; 10]);
                }
            });
        }
    });
    foreign.destroy().unwrap();
}
