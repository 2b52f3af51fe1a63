//! Memory that someone else allocated, page-locked where it lies.

use super::{PinnedVec, alone, not_ready, pinned_vec, support};
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::SimConfig;
use aquifer::{
    DeviceVec, ErrorKind,
    pinned::{HostBuffer, HostRead, PinnedResource, Registered},
};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A buffer that says when it goes.
#[derive(Debug)]
struct Flagged {
    numbers: Vec<u32>,
    dropped: Arc<AtomicBool>,
}

impl Flagged {
    fn new(length: u32) -> (Self, impl Fn() -> bool) {
        let dropped = Arc::new(AtomicBool::new(false));
        let numbers = (0..length).collect();
        (Self { numbers, dropped: dropped.clone() }, move || dropped.load(Ordering::Relaxed))
    }
}

impl Drop for Flagged {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
    }
}

// SAFETY: the vector's memory, which stays where it is until the owner is dropped.
unsafe impl HostRead for Flagged {
    type Item = u32;

    fn parts(&mut self) -> (NonNull<u32>, usize) {
        self.numbers.parts()
    }
}

// SAFETY: and writable.
unsafe impl HostBuffer for Flagged {}

fn goes_over_and_back<B: HostBuffer<Item = u32>>(owner: B) -> B {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut registered = match Registered::new(&device, owner) {
        Ok(registered) => registered,
        Err(failed) => panic!("{}", failed.error),
    };
    assert_eq!(registered.device(), &*device);
    let address = registered.as_ptr();
    registered.iter_mut().zip(1..).for_each(|(number, value)| *number = value);
    let mut vec = DeviceVec::<u32>::zeroed(&stream, registered.len()).unwrap();
    stream.scope(|s| s.upload(&registered, &mut vec)).unwrap();
    registered.fill(0);
    stream.scope(|s| s.download(&vec, &mut registered)).unwrap();
    assert!(registered.iter().copied().eq(1..=registered.len() as u32));
    let mut owner = registered.into_inner().map_err(|failed| failed.error).unwrap();
    assert_eq!(owner.parts().0.as_ptr().cast_const(), address, "the buffer moved");
    if let Some(simulator) = device.simulator() {
        assert_eq!(simulator.registered_ranges(), 0);
    }
    owner
}

#[test]
fn every_kind_of_buffer_is_locked_where_it_lies() {
    let _alone = alone();
    assert_eq!(goes_over_and_back(vec![0; 1000]).len(), 1000);
    assert_eq!(goes_over_and_back(vec![0; 1].into_boxed_slice())[0], 1);
    let mut vec = AllocVec::new();
    vec.extend([0; 3000]);
    assert_eq!(goes_over_and_back(vec)[2999], 3000);
    let (owner, dropped) = Flagged::new(100);
    let owner = goes_over_and_back(owner);
    assert!(!dropped());
    drop(owner);
    assert!(dropped());
}

#[test]
fn an_empty_buffer_is_refused_and_comes_back() {
    let _alone = alone();
    let device = support::device();
    let failed = Registered::new(&device, Vec::<u32>::with_capacity(10)).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(failed.buffer.unwrap().capacity(), 10);
    let failed = Registered::new(&device, Vec::<[u32; 0]>::from([[]; 5])).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InvalidArgument, "elements without bytes");
    assert_eq!(failed.buffer.unwrap().len(), 5);
}

#[test]
fn a_device_that_cannot_lock_gives_the_buffer_back() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default().without_host_register());
    let (owner, dropped) = Flagged::new(10);
    let failed = Registered::new(&device, owner).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Unsupported);
    assert!(failed.to_string().contains("PinnedAlloc"), "{failed}");
    assert!(format!("{failed:?}").ends_with("; the error has the buffer"), "{failed:?}");
    assert_eq!(simulator.calls(), [], "the driver was asked");
    assert!(!dropped());
    assert_eq!(failed.buffer.as_ref().unwrap().numbers.len(), 10);
}

#[test]
fn what_is_locked_already_comes_back() {
    let _alone = alone();
    let device = support::device();
    let pinned = PinnedResource::new(&device).unwrap();
    let failed = Registered::new(&device, pinned_vec(&pinned, 100)).unwrap_err();
    assert!(failed.error.driver().is_some(), "{}", failed.error);
    let buffer: PinnedVec = failed.buffer.unwrap();
    assert!(buffer.iter().copied().eq(0..100));
}

#[test]
fn a_drop_keeps_the_owner_until_the_device_is_past_its_work() {
    let _alone = alone();
    for seed in 0..10 {
        let (device, simulator) = support::simulated(SimConfig::default().seed(seed));
        let stream = device.new_stream().unwrap();
        let (owner, dropped) = Flagged::new(1000);
        let registered = Registered::new(&device, owner).unwrap();
        let mut target = DeviceVec::<u32>::zeroed(&stream, 1000).unwrap();
        // SAFETY: dropped below, which keeps the owner until the copy has run.
        unsafe { target.copy_from_slice_async(&registered).unwrap() };
        let calls = simulator.calls();
        drop(registered);
        assert_eq!(simulator.calls(), calls, "the drop asked the driver");
        assert!(!dropped());
        not_ready(&simulator);
        drop(pinned_vec(&PinnedResource::new(&device).unwrap(), 1));
        assert!(!dropped() && simulator.registered_ranges() == 1);
        Registered::<Vec<u8>>::trim(&device).unwrap();
        assert!(dropped() && simulator.registered_ranges() == 0);
        assert!(target.to_vec().unwrap().into_iter().eq(0..1000));
        simulator.check().unwrap();
    }
}

#[test]
fn giving_the_buffer_back_waits_for_the_device() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let registered = Registered::new(&device, (0..1000).collect::<Vec<u32>>()).unwrap();
    let mut target = DeviceVec::<u32>::zeroed(&stream, 1000).unwrap();
    // SAFETY: nobody writes or frees it before `into_inner` has waited.
    unsafe { target.copy_from_slice_async(&registered).unwrap() };
    let mut numbers = registered.into_inner().unwrap();
    numbers.fill(0);
    drop(numbers);
    assert!(target.to_vec().unwrap().into_iter().eq(0..1000));
    simulator.check().unwrap();
}

#[test]
fn giving_the_buffer_back_does_not_disturb_a_capture() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let (owner, dropped) = Flagged::new(10);
    let registered = Registered::new(&device, owner).unwrap();
    simulator.start_capture(&stream).unwrap();
    let failed = registered.into_inner().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Capture);
    assert!(failed.buffer.is_none() && !dropped());
    let error = Registered::<Vec<u8>>::trim(&device).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Capture);
    assert!(simulator.stop_capture(&stream), "the capture was invalidated");
    Registered::<Vec<u8>>::trim(&device).unwrap();
    assert!(dropped());
}

#[test]
fn an_owner_that_cannot_be_unlocked_is_not_freed() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let (owner, dropped) = Flagged::new(10);
    let registered = Registered::new(&device, owner).unwrap();
    simulator.fail_call("cuMemHostUnregister", 1, 999).unwrap();
    let failed = registered.into_inner().unwrap_err();
    assert_eq!(failed.error.driver().unwrap().code(), 999);
    assert!(failed.buffer.is_none() && !dropped());
    // The next try succeeds, and then it goes.
    Registered::<Vec<u8>>::trim(&device).unwrap();
    assert!(dropped());

    let (owner, dropped) = Flagged::new(10);
    drop(Registered::new(&device, owner).unwrap());
    simulator.fail_call("cuMemHostUnregister", 1, 999).unwrap();
    Registered::<Vec<u8>>::trim(&device).unwrap();
    assert!(!dropped(), "pages that are still locked were freed");
}

#[test]
fn a_lost_context_leaks_the_owner_and_nothing_panics() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let _stream = device.new_stream().unwrap();
    let (one, one_dropped) = Flagged::new(10);
    let (two, two_dropped) = Flagged::new(10);
    let registered = [one, two].map(|owner| Registered::new(&device, owner).unwrap());
    simulator.lose_context();
    let [one, two] = registered;
    assert_eq!(one[9], 9);
    let failed = one.into_inner().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::ContextLost);
    drop(two);
    let trimmed = Registered::<Vec<u8>>::trim(&device);
    assert_eq!(trimmed.unwrap_err().kind(), ErrorKind::ContextLost);
    assert!(!one_dropped() && !two_dropped());
    let failed = Registered::new(&device, vec![1_u8]).unwrap_err();
    assert_eq!(failed.buffer, Some(vec![1]));
}

#[test]
fn a_registered_buffer_prints_where_it_lies() {
    let _alone = alone();
    let device = support::device();
    let registered = Registered::new(&device, vec![0_u8; 77]).unwrap();
    let text = format!("{registered:?}");
    assert!(text.contains("length: 77") && text.contains("device: Device"), "{text}");
    // It goes to other threads, like its owner.
    let registered = std::thread::spawn(move || registered).join().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(registered.len(), 77));
    });
    drop(registered);
    Registered::<Vec<u8>>::trim(&device).unwrap();
}

#[test]
fn a_trim_unlocks_what_a_dropped_transfer_had() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let registered = Registered::new(&device, vec![7u8; 5000]).unwrap();
    let target = DeviceVec::<u8>::zeroed(&stream, 5000).unwrap();
    drop(stream.upload(registered, target).unwrap());
    assert_eq!(simulator.call_count("cuMemHostUnregister"), 0);
    Registered::<Vec<u8>>::trim(&device).unwrap();
    assert_eq!(simulator.call_count("cuMemHostUnregister"), 1);
}
