//! Mapped memory that goes to another process over a socket, on the simulated device, which is that process itself.

use crate::{kernels, support};
use aquifer::ipc::IpcExport;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    CudaResource, Device, DeviceBuffer, DeviceVec, ErrorKind, PoolResource, Stream,
    mr::{Keep, VirtualResource},
};
use bytemuck::Pod;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

const MIB: usize = 1 << 20;
/// Of the messages that go with the descriptors, in bytes.
const MESSAGE: usize = 80;

fn simulated() -> (Device, Simulator, Stream) {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    (device, simulator, stream)
}

fn mapped(device: &Device) -> PoolResource<VirtualResource> {
    PoolResource::new(VirtualResource::new(device).unwrap()).unwrap()
}

fn receive<T: Pod>(stream: &Stream, socket: &UnixStream) -> aquifer::Result<DeviceVec<T>> {
    // SAFETY: these tests keep the sender's memory until they drop this, unless they look for what stays.
    unsafe { aquifer::ipc::receive(stream, socket) }
}

/// A vector as the other process has it. The messages of many handles are more than a socket holds.
fn sent<T: Pod + Send>(vec: &DeviceVec<T>, stream: &Stream) -> DeviceVec<T> {
    let (here, there) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let received = scope.spawn(|| receive(stream, &there).unwrap());
        vec.send_to(&here).unwrap();
        received.join().unwrap()
    })
}

/// Of the whole process, so a test that counts them has one of its own.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn what_one_side_writes_the_other_reads() {
    let (device, simulator, stream) = simulated();
    let pool = mapped(&device);
    let neighbour = DeviceVec::from_slice_in(&stream, &[5_u32; 100], pool.clone()).unwrap();
    let mut vec = DeviceVec::from_slice_in(&stream, &[1_u32, 2, 3], pool.clone()).unwrap();
    let other = device.new_stream().unwrap();
    let mut shared = sent(&vec, &other);
    assert_eq!((shared.len(), shared.capacity()), (3, 3));
    assert_ne!(shared.as_device_ptr(), vec.as_device_ptr(), "an address of its own");
    assert_eq!(shared.to_vec().unwrap(), [1, 2, 3]);
    kernels::add_one(&other, &mut shared).unwrap();
    other.synchronize().unwrap();
    assert_eq!(vec.to_vec().unwrap(), [2, 3, 4]);
    vec.fill(9).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(shared.to_vec().unwrap(), [9; 3]);
    let (here, _there) = UnixStream::pair().unwrap();
    assert_eq!(shared.send_to(&here).unwrap_err().kind(), ErrorKind::Unsupported, "sent on");
    let error = shared.push(1).unwrap_err();
    assert!(error.to_string().contains("cannot grow"), "{error}");
    drop(shared);
    assert_eq!(vec.to_vec().unwrap(), [9; 3], "the sender's memory is still its own");
    assert_eq!(neighbour.to_vec().unwrap(), [5; 100]);
    drop((vec, neighbour, pool));
    assert_eq!((simulator.live_blocks(), simulator.live_bytes()), (0, 0));
    simulator.check().unwrap();
}

/// Of a vector that grew in place, in handles of several sizes; of a slice that begins inside of one; of a buffer; and of
/// memory that has a value only from the other side.
#[test]
fn many_handles_come_in_their_order() {
    let (device, simulator, stream) = simulated();
    let pool = mapped(&device);
    let mut vec = DeviceVec::<u8>::zeroed_in(&stream, 3 * MIB, pool.clone()).unwrap();
    for (value, mib) in [(1, 5), (2, 11), (3, 40)] {
        vec.resize(mib * MIB, value).unwrap();
    }
    let before = simulator.call_count("cuMemExportToShareableHandle");
    let mut shared = sent(&vec, &stream);
    let handles = simulator.call_count("cuMemExportToShareableHandle") - before;
    assert!(handles >= 3, "{handles}");
    let expected: Vec<u8> = [(0, 3), (1, 2), (2, 6), (3, 29)]
        .into_iter()
        .flat_map(|(value, mib)| std::iter::repeat_n(value, mib * MIB))
        .collect();
    assert!(shared.to_vec().unwrap() == expected);
    shared.fill(7).unwrap();
    drop(shared);
    assert!(vec.to_vec().unwrap().iter().all(|&value| value == 7));

    let (here, there) = UnixStream::pair().unwrap();
    let place = 10 * MIB + 3..30 * MIB + 5;
    vec.slice(place.clone()).unwrap().send_to(&here).unwrap();
    let mut part = receive::<u8>(&stream, &there).unwrap();
    assert_eq!(part.len(), place.len());
    part.fill(8).unwrap();
    drop(part);
    let found = vec.to_vec().unwrap();
    let is_right = |(at, value): (usize, &u8)| *value == if place.contains(&at) { 8 } else { 7 };
    assert!(found.iter().enumerate().all(is_right));

    let buffer = DeviceBuffer::zeroed_in(&stream, 100, pool.clone()).unwrap();
    buffer.send_to(&here).unwrap();
    assert_eq!(receive::<u8>(&stream, &there).unwrap().to_vec().unwrap(), [0; 100]);
    // SAFETY: it is written before it is read, by the other process.
    let empty = unsafe { DeviceVec::<u32>::uninit_in(&stream, 10, pool.clone()) }.unwrap();
    let mut filled = sent(&empty, &stream);
    filled.fill(3).unwrap();
    drop(filled);
    assert_eq!(empty.to_vec().unwrap(), [3; 10]);
    drop((vec, buffer, empty, pool));
    assert_eq!(simulator.live_bytes(), 0);
    simulator.check().unwrap();
}

#[test]
fn sending_waits_for_all_uses_of_the_vector() {
    for seed in 0..20 {
        let (device, simulator) = support::simulated(SimConfig::default().seed(seed));
        let [home, other, reader, importer] = [(); 4].map(|()| device.new_stream().unwrap());
        let mut vec = DeviceVec::from_slice_in(&home, &[0_u32; 100], mapped(&device)).unwrap();
        let mut copy = DeviceVec::<u32>::zeroed(&reader, 100).unwrap();
        kernels::add_one(&home, &mut vec).unwrap();
        kernels::add_one(&other, &mut vec).unwrap();
        copy.copy_from(&vec).unwrap(); // on `reader`; the other process must not write before that
        let mut shared = sent(&vec, &importer);
        assert_eq!(shared.get(99).unwrap(), 2);
        shared.fill(7).unwrap();
        drop(shared); // waits for the fill
        assert_eq!((copy.to_vec().unwrap(), vec.to_vec().unwrap()), (vec![2; 100], vec![7; 100]));
        simulator.check().unwrap();
    }
}

/// A block of the resource itself, whose handle is released while it is mapped; and a sender that has let its memory go: its pool
/// gives the handle back, and the device has the memory again when the other process is done.
#[test]
fn the_other_process_keeps_the_memory() {
    let (device, simulator, stream) = simulated();
    let virtual_memory = VirtualResource::new(&device).unwrap();
    let pool: PoolResource<VirtualResource> = mapped(&device);
    let alone = DeviceVec::from_slice_in(&stream, &[4_u8; 10], virtual_memory).unwrap();
    let cut = DeviceVec::from_slice_in(&stream, &[5_u8; 10], pool.clone()).unwrap();
    let shared = [&alone, &cut].map(|vec| sent(vec, &stream));
    drop((alone, cut));
    pool.wait_and_trim(0).unwrap();
    assert_eq!((pool.statistics().reserved, simulator.live_blocks()), (0, 2));
    let values = shared.each_ref().map(|vec| vec.to_vec().unwrap()[9]);
    assert_eq!(values, [4, 5]);
    drop(shared);
    assert_eq!((simulator.live_blocks(), simulator.live_bytes()), (0, 0));
    simulator.check().unwrap();
}

#[test]
fn other_memory_is_refused() {
    let (device, simulator, stream) = simulated();
    let (here, there) = UnixStream::pair().unwrap();
    let plain = DeviceVec::from_slice_in(&stream, &[1_u8], CudaResource::new(&device)).unwrap();
    let error = plain.send_to(&here).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("ipc_handle"), "{error}");
    let pool = mapped(&device);
    let vec = DeviceVec::from_slice_in(&stream, &[1_u8], pool.clone()).unwrap();
    let error = vec.ipc_handle().unwrap_err();
    assert!(error.to_string().contains("send_to"), "{error}");
    let error = vec.slice(..0).unwrap().send_to(&here).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    simulator.start_capture(&stream).unwrap();
    assert_eq!(vec.send_to(&here).unwrap_err().kind(), ErrorKind::Capture);
    assert!(simulator.stop_capture(&stream));
    there.set_nonblocking(true).unwrap();
    assert!((&there).read(&mut [0]).is_err(), "nothing was sent");
    simulator.check().unwrap();

    let config = SimConfig::default().without_virtual_memory_descriptors();
    let (device, simulator) = support::simulated(config);
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::from_slice_in(&stream, &[1_u8], mapped(&device)).unwrap();
    let error = vec.send_to(&here).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("not made to be shared"), "{error}");
    assert!((&there).read(&mut [0]).is_err(), "nothing was sent");
    drop(vec);
    simulator.check().unwrap();
}

#[test]
fn what_does_not_fit_is_refused() {
    let (device, simulator, stream) = simulated();
    let vec = DeviceVec::from_slice_in(&stream, &[1_u8; 30], mapped(&device)).unwrap();
    let (here, there) = UnixStream::pair().unwrap();
    vec.send_to(&here).unwrap();
    let error = receive::<u32>(&stream, &there).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LengthMismatch);
    vec.slice(2..10).unwrap().send_to(&here).unwrap();
    let error = receive::<u64>(&stream, &there).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let another = Device::simulated(SimConfig::default()).new_stream().unwrap();
    vec.send_to(&here).unwrap();
    let error = receive::<u8>(&another, &there).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongDevice);
    vec.send_to(&here).unwrap();
    assert_eq!(receive::<u8>(&stream, &there).unwrap().len(), 30);
    drop(here);
    let error = receive::<u8>(&stream, &there).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("IpcExport::send_to"), "{error}");
    simulator.check().unwrap();
}

/// Each word of a message with other values. What is refused leaves no memory and no descriptor open.
/// Two vectors of one shape, whose messages mix on the way: no half of one is taken for that of the other.
#[test]
fn messages_of_two_vectors_are_told_apart() {
    let (device, simulator, stream) = simulated();
    let [one, two] = [1, 2].map(|value| {
        let mut vec = DeviceVec::<u8>::zeroed_in(&stream, 40 * MIB, mapped(&device)).unwrap();
        vec.fill(value).unwrap();
        vec
    });
    let parts = [&one, &two].map(|vec| {
        let (here, there) = UnixStream::pair().unwrap();
        vec.send_to(&here).unwrap();
        there
    });
    let (from, there) = UnixStream::pair().unwrap();
    // The first of one, then all of the other.
    relay_one(&parts[0], &from, |_| ());
    for part in parts.iter().rev() {
        part.set_nonblocking(true).unwrap();
        while relay_one(part, &from, |_| ()) {}
    }
    drop(from);
    let error = receive::<u8>(&stream, &there).unwrap_err();
    assert!(error.to_string().contains("out of its order"), "{error}");
    drop((one, two));
    assert_eq!(simulator.live_bytes(), 0);
    simulator.check().unwrap();
}

/// An alignment that is more than a granule's.
#[test]
fn elements_may_be_aligned_to_more_than_a_granule() {
    #[derive(Clone, Copy)]
    #[repr(C, align(65536))]
    struct Page([u64; 8192]);
    // SAFETY: numbers alone, and no padding: the size is the alignment.
    unsafe impl bytemuck::Zeroable for Page {}
    // SAFETY: as above.
    unsafe impl Pod for Page {}
    let (device, simulator) = support::simulated(SimConfig::default().granularity(4096));
    let stream = device.new_stream().unwrap();
    let virtual_memory = VirtualResource::new(&device).unwrap();
    for pages in 1..6 {
        let vec = DeviceVec::<Page>::zeroed_in(&stream, pages, virtual_memory.clone()).unwrap();
        let shared = sent(&vec, &stream);
        assert_eq!(shared.len(), pages);
        assert_eq!(shared.as_device_ptr() % 65536, 0);
    }
    assert_eq!(simulator.live_bytes(), 0);
    simulator.check().unwrap();
}

#[test]
fn a_changed_message_is_refused() {
    if !support::in_own_process(module_path!(), "a_changed_message_is_refused") {
        return;
    }
    let (device, simulator, stream) = simulated();
    let vec = DeviceVec::<u8>::zeroed_in(&stream, 40 * MIB, mapped(&device)).unwrap();
    let (bytes, descriptors_before) = (simulator.live_bytes(), descriptors());
    let mut refused = 0;
    for (word, value) in [
        (32, u64::MAX),       // offset
        (32, 41 << 20),       // offset: past the handles
        (40, 0),              // bytes
        (40, u64::MAX),       // bytes
        (40, 1 << 40),        // bytes: past the handles
        (48, 0),              // handles
        (56, u64::MAX),       // the number of the sending
        (64, 1),              // index
        (64, u64::MAX),       // index
        (72, 0),              // bytes of the handle
        (72, u64::MAX << 21), // bytes of the handle
        (72, 1 << 50),        // bytes of the handle: more than it has
        (72, 4097),           // bytes of the handle: no whole granules
        (0, 7),               // what it is
        (8, 7),               // the device
    ] {
        let (here, between) = UnixStream::pair().unwrap();
        let (from, there) = UnixStream::pair().unwrap();
        vec.send_to(&here).unwrap();
        drop(here);
        relay(&between, &from, |message| {
            message[word..word + 8].copy_from_slice(&value.to_le_bytes());
        });
        drop(from);
        let error = receive::<u8>(&stream, &there).unwrap_err();
        assert!(!error.to_string().is_empty());
        refused += 1;
    }
    assert_eq!(refused, 15);
    assert_eq!((simulator.live_bytes(), descriptors()), (bytes, descriptors_before));
    simulator.check().unwrap();
}

/// Hands messages with their descriptors on until the sender's end is closed; the first one is changed.
fn relay(from: &UnixStream, to: &UnixStream, change: impl Fn(&mut [u8])) {
    relay_one(from, to, change);
    while relay_one(from, to, |_| ()) {}
}

/// Whether there was one.
fn relay_one(from: &UnixStream, to: &UnixStream, change: impl Fn(&mut [u8])) -> bool {
    use rustix::net::*;
    use std::mem::MaybeUninit;
    let mut message = [0; MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut place = [std::io::IoSliceMut::new(&mut message)];
    match recvmsg(from, &mut place, &mut control, RecvFlags::CMSG_CLOEXEC) {
        Ok(received) if received.bytes > 0 => assert_eq!(received.bytes, MESSAGE),
        _ => return false,
    }
    let came = control.drain().find_map(|came| match came {
        RecvAncillaryMessage::ScmRights(mut all) => all.next(),
        _ => None,
    });
    let descriptors = [std::os::fd::AsFd::as_fd(came.as_ref().unwrap())];
    change(&mut message);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let sent = [std::io::IoSlice::new(&message)];
    assert_eq!(sendmsg(to, &sent, &mut control, SendFlags::empty()).unwrap(), MESSAGE);
    true
}

/// On each side, at each call that is made there: an error, nothing left open, and the next try is served.
#[test]
fn a_call_that_fails_leaves_nothing_open() {
    if !support::in_own_process(module_path!(), "a_call_that_fails_leaves_nothing_open") {
        return;
    }
    let calls = [
        ("cuMemRetainAllocationHandle", 4),
        ("cuMemGetAddressRange", 2),
        ("cuMemExportToShareableHandle", 2),
        ("cuMemImportFromShareableHandle", 2),
        ("cuMemAddressReserve", 1),
        ("cuMemMap", 2),
        ("cuMemSetAccess", 2),
    ];
    let (device, simulator, stream) = simulated();
    let vec = DeviceVec::<u8>::zeroed_in(&stream, 40 * MIB, mapped(&device)).unwrap();
    let before = (simulator.live_bytes(), simulator.live_blocks(), descriptors());
    for (call, most) in calls {
        for nth in 1..=most {
            let (here, there) = UnixStream::pair().unwrap();
            simulator.fail_call(call, nth, 999).unwrap();
            let both = vec.send_to(&here).and_then(|()| receive::<u8>(&stream, &there));
            let error = both.unwrap_err();
            assert_eq!(error.driver().unwrap().call(), call, "{error}");
            drop((here, there));
            let after = (simulator.live_bytes(), simulator.live_blocks(), descriptors());
            assert_eq!(after, before, "{call} {nth}");
        }
    }
    assert_eq!(sent(&vec, &stream).len(), 40 * MIB);
    let reserved = simulator.call_count("cuMemAddressReserve");
    drop(vec);
    assert_eq!(simulator.live_bytes(), 0);
    assert_eq!(simulator.call_count("cuMemAddressFree") + 1, reserved, "one reservation failed");
    simulator.check().unwrap();
}

/// Messages that the socket cannot take: the sender says so, and keeps nothing.
#[test]
fn a_socket_that_nobody_reads_is_an_error() {
    if !support::in_own_process(module_path!(), "a_socket_that_nobody_reads_is_an_error") {
        return;
    }
    let (device, simulator, stream) = simulated();
    let pool = Arc::new(mapped(&device));
    let vec = DeviceVec::from_slice_in(&stream, &[1_u8; 8], pool).unwrap();
    let (mut here, there) = UnixStream::pair().unwrap();
    here.set_nonblocking(true).unwrap();
    while here.write(&[0; 4096]).is_ok() {}
    let before = descriptors();
    assert_eq!(vec.send_to(&here).unwrap_err().kind(), ErrorKind::Io);
    drop(there);
    assert_eq!(vec.send_to(&here).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(descriptors(), before - 1);
    simulator.check().unwrap();
}

/// Its handles are others then.
#[test]
fn a_vector_is_sent_after_its_pool_has_slept_as_before() {
    let (device, simulator, stream) = simulated();
    let other = device.new_stream().unwrap();
    let pool = mapped(&device);
    let words = |words: usize, value: u32| {
        let mut vec = DeviceVec::<u32>::zeroed_in(&stream, words, pool.clone()).unwrap();
        vec.fill(value).unwrap();
        vec
    };
    for round in 0..3_u32 {
        // Of several handles, with a hole before them, and a small one in the last of them.
        let (hole, vec, small) = (words(MIB, 1), words(5 * MIB + 100, round), words(100, 3));
        drop(hole);
        // SAFETY: this test has no other pointers, and nothing that was sent is left.
        unsafe { pool.sleep(Keep::PageLocked) }.unwrap();
        pool.wake().unwrap();
        for (vec, value) in [(&vec, round), (&small, 3)] {
            let mut shared = sent(vec, &other);
            assert!(shared.to_vec().unwrap().iter().all(|word| *word == value), "{round}");
            shared.set(vec.len() - 1, 77).unwrap();
            other.synchronize().unwrap();
            assert_eq!(vec.get(vec.len() - 1).unwrap(), 77, "both have one memory");
            // SAFETY: it is refused.
            let error = unsafe { pool.sleep(Keep::PageLocked) }.unwrap_err();
            assert!(error.to_string().contains("was sent to another process"), "{error}");
        }
        drop((vec, small));
        pool.wait_and_trim(0).unwrap();
        assert_eq!(simulator.live_bytes(), 0);
    }
    drop(pool);
    simulator.check().unwrap();
}
