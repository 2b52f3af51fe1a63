//! Memory that is shared with other processes, on the simulated device: within one process it is opened, and by
//! another one refused. Two processes on a GPU are in `ipc_on_gpu.rs`.

use crate::{kernels, support};
use aquifer::ipc::IpcExport;
use aquifer::sim::{SimConfig, Simulator, Violation};
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceBuffer, DeviceResource, DeviceVec, ErrorKind,
    PoolResource, Stream,
    ipc::{IpcHandle, IpcKind},
    mr::{
        AsyncResource, Handles, ManagedResource, StatisticsAdaptor, SystemResource, VirtualResource,
    },
    pinned::PinnedResource,
};
use bytemuck::Pod;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

fn simulated() -> (Device, Simulator, Stream) {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    (device, simulator, stream)
}

fn plain<T: Pod>(stream: &Stream, elements: &[T]) -> DeviceVec<T> {
    DeviceVec::from_slice_in(stream, elements, CudaResource::new(stream.device())).unwrap()
}

/// Opens a handle as the other process would.
fn open<T: Pod>(handle: &IpcHandle, stream: &Stream) -> aquifer::Result<DeviceVec<T>> {
    // SAFETY: these tests keep the exporter's memory until they drop this, unless they look for the report.
    unsafe { handle.open(stream) }
}

#[test]
fn what_one_side_writes_the_other_reads() {
    let (device, simulator, stream) = simulated();
    let mut vec = plain(&stream, &[1_u32, 2, 3]);
    let handle = IpcHandle::from_bytes(&vec.ipc_handle().unwrap().to_bytes()).unwrap();
    assert_eq!((handle.kind(), handle.process()), (IpcKind::Plain, std::process::id()));
    assert_eq!((handle.offset(), handle.size_in_bytes()), (0, 12));
    assert_eq!(handle.device_uuid(), device.uuid().unwrap());

    let other = device.new_stream().unwrap();
    let mut shared = open::<u32>(&handle, &other).unwrap();
    assert_ne!(shared.as_device_ptr(), vec.as_device_ptr(), "an address of its own");
    assert_eq!(shared.to_vec().unwrap(), [1, 2, 3]);
    kernels::add_one(&other, &mut shared).unwrap();
    other.synchronize().unwrap();
    assert_eq!(vec.to_vec().unwrap(), [2, 3, 4]);
    vec.fill(9).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(shared.to_vec().unwrap(), [9; 3]);
    drop(shared);
    assert_eq!(vec.to_vec().unwrap(), [9; 3], "the exporter's memory is still its own");
    drop(vec);
    assert_eq!(simulator.live_blocks(), 0);
    simulator.check().unwrap();
}

#[test]
fn an_export_waits_for_all_uses_of_the_vector() {
    for seed in 0..20 {
        let (device, simulator) = support::simulated(SimConfig::default().seed(seed));
        let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let reader = device.new_stream().unwrap();
        let mut vec = plain(&home, &[0_u32; 100]);
        let mut copy = DeviceVec::<u32>::zeroed(&reader, 100).unwrap();
        kernels::add_one(&home, &mut vec).unwrap();
        kernels::add_one(&other, &mut vec).unwrap();
        copy.copy_from(&vec).unwrap(); // on `reader`; an importer must not write before that
        let importer = device.new_stream().unwrap(); // in no order with the others
        let mut shared = open::<u32>(&vec.ipc_handle().unwrap(), &importer).unwrap();
        assert_eq!(shared.get(99).unwrap(), 2);
        shared.fill(7).unwrap();
        drop(shared); // waits for the fill
        assert_eq!((copy.to_vec().unwrap(), vec.to_vec().unwrap()), (vec![2; 100], vec![7; 100]));
        simulator.check().unwrap();
    }
}

#[test]
fn a_block_of_a_pool_has_its_offset_in_the_pools_chunk() {
    let (device, simulator, stream) = simulated();
    let pool = PoolResource::new(StatisticsAdaptor::new(CudaResource::new(&device))).unwrap();
    let vecs: Vec<DeviceVec<u16>> = (0..4)
        .map(|value| DeviceVec::from_slice_in(&stream, &[value; 500], pool.clone()).unwrap())
        .collect();
    let handles: Vec<_> = vecs.iter().map(|vec| vec.ipc_handle().unwrap()).collect();
    let base = vecs[0].as_device_ptr() - handles[0].offset();
    for (vec, handle) in vecs.iter().zip(&handles) {
        assert_eq!(vec.as_device_ptr(), base + handle.offset());
        assert_eq!(handle.driver_bytes(), handles[0].driver_bytes(), "one allocation");
    }
    let shared: Vec<_> =
        handles.iter().map(|handle| open::<u16>(handle, &stream).unwrap()).collect();
    for (value, shared) in shared.iter().enumerate() {
        assert_eq!(shared.to_vec().unwrap(), [value as u16; 500]);
    }
    assert_eq!(simulator.call_count("cuIpcOpenMemHandle"), 1, "opened once");
    assert_eq!(handles[1].openings(&device), 4);
    drop(shared);
    assert_eq!(simulator.call_count("cuIpcCloseMemHandle"), 1, "closed with the last");
    assert_eq!(handles[1].openings(&device), 0);
    let part = vecs[2].slice(100..200).unwrap().ipc_handle().unwrap();
    assert_eq!((part.offset(), part.size_in_bytes()), (handles[2].offset() + 200, 200));
    assert_eq!(open::<u16>(&part, &stream).unwrap().to_vec().unwrap(), [2; 100]);
    simulator.check().unwrap();
}

#[test]
fn buffers_and_raw_blocks_have_handles_as_well() {
    let (device, simulator, stream) = simulated();
    let resource = CudaResource::new(&device);
    let buffer = DeviceBuffer::from_slice_in(&stream, &[1, 2, 3, 4], resource.clone()).unwrap();
    let words = open::<u16>(&buffer.ipc_handle().unwrap(), &stream).unwrap();
    assert_eq!(words.to_vec().unwrap(), [0x0201, 0x0403]);
    drop(words);
    let block = resource.allocate(&stream, support::layout(100)).unwrap();
    let handle = IpcHandle::of_block(&stream, &block).unwrap();
    open::<u8>(&handle, &stream).unwrap().fill(5).unwrap();
    support::free(&resource, &stream, block);
    drop(buffer);
    simulator.check().unwrap();
    assert_eq!(simulator.live_blocks(), 0);
}

#[test]
fn openings_are_counted_over_threads_and_drop_in_any_order() {
    let (device, simulator, stream) = simulated();
    let vec = plain(&stream, &[3_u64; 64]);
    let handle = vec.ipc_handle().unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let stream = device.new_stream().unwrap();
                for turn in 0..50 {
                    let one = open::<u64>(&handle, &stream).unwrap();
                    let two = open::<u32>(&handle, &stream).unwrap();
                    assert_eq!(one.get(63).unwrap(), 3);
                    if turn % 2 == 0 { drop((one, two)) } else { drop((two, one)) }
                }
            });
        }
    });
    assert_eq!(handle.openings(&device), 0);
    let [opened, closed] =
        ["cuIpcOpenMemHandle", "cuIpcCloseMemHandle"].map(|call| simulator.call_count(call));
    assert_eq!(opened, closed);
    assert!((1..=400).contains(&opened));
    simulator.check().unwrap();
}

#[test]
fn a_vector_outlives_its_handle_its_stream_and_its_device() {
    let (device, simulator, stream) = simulated();
    let vec = plain(&stream, &[1_u8; 10]);
    let other = device.new_stream().unwrap();
    let shared = open::<u8>(&vec.ipc_handle().unwrap(), &other).unwrap();
    drop(other);
    assert_eq!(shared.to_vec().unwrap(), [1; 10]);
    // Leaked, it stays open.
    let handle = vec.ipc_handle().unwrap();
    std::mem::forget(open::<u8>(&handle, &stream).unwrap());
    drop(shared);
    assert_eq!(handle.openings(&device), 1);
    // Its parts, dropped, leak it as well.
    drop(open::<u8>(&handle, &stream).unwrap().into_raw_parts().unwrap());
    assert_eq!(handle.openings(&device), 2);
    let (home, block, length, resource) =
        open::<u8>(&handle, &stream).unwrap().into_raw_parts().unwrap();
    // SAFETY: the parts of a vector, put together once.
    drop(unsafe { DeviceVec::<u8>::from_raw_parts(home, block, length, resource) }.unwrap());
    assert_eq!(handle.openings(&device), 2);
    assert_eq!(simulator.call_count("cuIpcCloseMemHandle"), 0);
    simulator.check().unwrap();
    let kept = open::<u8>(&handle, &stream).unwrap();
    drop((device, stream));
    assert_eq!(kept.get(9).unwrap(), 1);
    std::mem::forget(vec); // the exporter's process is gone: what it exported stays
}

#[test]
fn a_vector_in_anothers_memory_can_be_split_and_moved_and_does_not_grow() {
    let (device, simulator, stream) = simulated();
    let vec = plain(&stream, &[0_u32, 1, 2, 3]);
    let handle = vec.ipc_handle().unwrap();
    let mut shared = open::<u32>(&handle, &stream).unwrap();
    for refused in [shared.push(4), shared.try_clone().map(drop), shared.reserve(100)] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("copy_to"), "{error}");
    }
    assert_eq!(shared.to_vec().unwrap(), [0, 1, 2, 3], "as it was");
    shared.truncate(3);
    assert_eq!(shared.len(), 3);
    let other = device.new_stream().unwrap();
    shared.set_stream(&other).unwrap();
    let chunks = shared.into_chunks(2).unwrap();
    assert_eq!(chunks.len(), 2);
    for (index, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk.get(0).unwrap(), 2 * index as u32);
    }
    drop(chunks);
    assert_eq!(handle.openings(&device), 0);
    simulator.check().unwrap();
}

#[test]
fn a_copy_is_the_streams_own_and_leaves_nothing_open() {
    let (device, simulator, stream) = simulated();
    let (peer, other_simulator, other) = simulated();
    let mut vec = plain(&stream, &[1_u32, 2, 3]);
    let handle = vec.ipc_handle().unwrap();
    // SAFETY: the vector outlives the calls, and nothing writes meanwhile.
    let copies: [DeviceVec<u32>; 2] = unsafe {
        [handle.copy_to(&device, &other).unwrap(), handle.copy_to(&device, &stream).unwrap()]
    };
    assert_eq!(handle.openings(&device), 0);
    vec.fill(0).unwrap();
    drop(vec);
    assert_eq!((copies[0].device(), copies[1].device()), (&peer, &device));
    for copy in copies {
        assert_eq!(copy.to_vec().unwrap(), [1, 2, 3]);
    }
    // A copy that fails leaves nothing open either.
    let vec = plain(&stream, &[1_u32; 10]);
    let handle = vec.ipc_handle().unwrap();
    other_simulator.fail_call("cuMemcpyPeerAsync", 1, 999).unwrap();
    // SAFETY: as above.
    assert!(unsafe { handle.copy_to::<u32>(&device, &other) }.is_err());
    // SAFETY: as above; `via` is another device than the memory's.
    let refused = unsafe { handle.copy_to::<u32>(&peer, &other) };
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::WrongDevice);
    assert_eq!(handle.openings(&device), 0);
    simulator.check().unwrap();
    other_simulator.check().unwrap();
}

#[test]
fn memory_that_cannot_be_shared_says_why_and_what_can() {
    let (device, simulator, stream) = simulated();
    let system = SystemResource::new(&device).unwrap();
    let mapped = VirtualResource::new(&device).unwrap();
    let pool = PoolResource::new(mapped.clone()).unwrap();
    let resources: [(Arc<dyn DeviceResource>, &str); 7] = [
        (Arc::new(ManagedResource::new(&device).unwrap()), "managed memory"),
        (Arc::new(PinnedResource::new(&device).unwrap()), "memory of the host"),
        (Arc::new(system), "memory of the host"),
        (Arc::new(AsyncResource::new(&device).unwrap()), "not shareable"),
        (Arc::new(AsyncResource::default_pool(&device).unwrap()), "not shareable"),
        (Arc::new(mapped), "neither of cuMemAlloc nor of a driver pool"),
        (Arc::new(pool), "neither of cuMemAlloc nor of a driver pool"),
    ];
    for (resource, why) in resources {
        let vec = DeviceVec::<u8>::zeroed_in(&stream, 64, resource).unwrap();
        let error = vec.ipc_handle().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for part in [why, "64 bytes", "CudaResource", "shareable(true)"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
    let vec = plain(&stream, &[1_u8]);
    let shared = open::<u8>(&vec.ipc_handle().unwrap(), &stream).unwrap();
    let error = shared.ipc_handle().unwrap_err();
    assert!(error.to_string().contains("another process"), "{error}");
    let empty = vec.slice(..0).unwrap().ipc_handle().unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::InvalidArgument);
    let wild = IpcHandle::of_block(&stream, &DeviceBlock::new(64, 64, 0)).unwrap_err();
    assert_eq!(wild.kind(), ErrorKind::Unsupported, "{wild}");
    // An address that is closed may be anyone's next.
    let closed = DeviceBlock::new(shared.as_device_ptr(), 1, 0);
    drop(shared);
    let error = IpcHandle::of_block(&stream, &closed).unwrap_err();
    assert!(!error.to_string().contains("another process"), "{error}");
    simulator.check().unwrap();
}

#[test]
fn hostile_bytes_are_errors() {
    let (device, simulator, stream) = simulated();
    let vec = plain(&stream, &[1_u32; 16]);
    let good = vec.ipc_handle().unwrap();
    let bytes = good.to_bytes();
    for length in 0..bytes.len() {
        let refused = IpcHandle::from_bytes(&bytes[..length]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }
    assert!(IpcHandle::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    // Each byte, changed: an error when it is read or opened, or the same memory.
    for (index, _) in bytes.iter().enumerate() {
        for flip in [1, 0x80, 0xff] {
            let mut bytes = bytes;
            bytes[index] ^= flip;
            let Ok(handle) = IpcHandle::from_bytes(&bytes) else { continue };
            match open::<u32>(&handle, &stream) {
                // The exporter's number is for messages; a smaller offset or size is inside.
                Ok(shared) => {
                    let end = handle.offset() + handle.size_in_bytes();
                    assert!((8..12).contains(&index) || (end <= 64 && index >= 104), "{index}");
                    assert!(shared.size_in_bytes() <= 64);
                }
                Err(error) => assert_ne!(error.kind(), ErrorKind::Simulation, "{error}"),
            }
        }
    }
    // Whatever else comes over a pipe.
    let mut generator = fastrand::Rng::with_seed(1);
    for _ in 0..1000 {
        let mut random = bytes;
        generator.fill(&mut random[8..]);
        random[12..16].fill(0);
        random[96..104].fill(0);
        random[120..].fill(0);
        if let Ok(handle) = IpcHandle::from_bytes(&random) {
            assert!(open::<u8>(&handle, &stream).is_err());
        }
    }
    // A range that ends past any address is no range.
    for end in [u64::MAX, u64::MAX - 62] {
        let mut bytes = bytes;
        bytes[104..112].copy_from_slice(&end.to_le_bytes());
        let refused = IpcHandle::from_bytes(&bytes).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    }
    let wide = {
        let mut bytes = bytes;
        bytes[112..120].copy_from_slice(&65_u64.to_le_bytes());
        IpcHandle::from_bytes(&bytes).unwrap()
    };
    let refused = open::<u8>(&wide, &stream).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    assert_eq!(good.openings(&device), 0);
    simulator.check().unwrap();
}

#[test]
fn a_vector_that_does_not_fit_its_place_is_refused() {
    let (device, simulator, stream) = simulated();
    let vec = plain(&stream, &[0_u8; 24]);
    let opened = |range: std::ops::Range<usize>| vec.slice(range).unwrap().ipc_handle().unwrap();
    let uneven = open::<u64>(&opened(0..20), &stream).unwrap_err();
    assert_eq!(uneven.kind(), ErrorKind::LengthMismatch, "{uneven}");
    let crooked = open::<u64>(&opened(4..20), &stream).unwrap_err();
    assert_eq!(crooked.kind(), ErrorKind::InvalidArgument, "{crooked}");
    assert_eq!(open::<()>(&opened(0..8), &stream).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(open::<u32>(&opened(4..20), &stream).unwrap().len(), 4);
    let elsewhere = support::simulated(SimConfig::default()).0.new_stream().unwrap();
    assert_eq!(open::<u8>(&opened(0..8), &elsewhere).unwrap_err().kind(), ErrorKind::WrongDevice);
    assert_eq!(opened(0..8).openings(&device), 0);
    simulator.check().unwrap();
}

#[test]
fn driver_calls_that_fail_leave_nothing_open() {
    let (device, simulator, stream) = simulated();
    let vec = plain(&stream, &[1_u8; 100]);
    for call in
        ["cuPointerGetAttributes", "cuMemGetAddressRange", "cuIpcGetMemHandle", "cuDeviceGetUuid"]
    {
        simulator.fail_call(call, 1, 999).unwrap();
        let error = vec.ipc_handle().unwrap_err();
        assert_eq!(error.driver().unwrap().call(), call, "{error}");
    }
    let handle = vec.ipc_handle().unwrap();
    for call in ["cuDeviceGetUuid", "cuIpcOpenMemHandle", "cuMemGetAddressRange"] {
        simulator.fail_call(call, 1, 999).unwrap();
        let error = open::<u8>(&handle, &stream).unwrap_err();
        assert_eq!(error.driver().unwrap().call(), call, "{error}");
        assert_eq!(handle.openings(&device), 0);
    }
    assert_eq!(simulator.call_count("cuIpcOpenMemHandle"), 2);
    assert_eq!(simulator.call_count("cuIpcCloseMemHandle"), 1);
    // A close that fails is told, and the count is right.
    simulator.fail_call("cuIpcCloseMemHandle", 1, 999).unwrap();
    drop(open::<u8>(&handle, &stream).unwrap());
    assert_eq!(handle.openings(&device), 0);
    drop(open::<u8>(&handle, &stream).unwrap());
    simulator.check().unwrap();
}

#[test]
fn memory_that_was_freed_opens_no_more() {
    let (_, simulator, stream) = simulated();
    let vec = plain(&stream, &[1_u8; 100]);
    let handle = vec.ipc_handle().unwrap();
    drop(vec);
    let error = open::<u8>(&handle, &stream).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Driver);
    assert!(error.advice().unwrap().contains("has not freed it"), "{error}");
    simulator.check().unwrap();
}

#[test]
fn a_lost_device_loses_what_it_had_open() {
    let (device, simulator, stream) = simulated();
    let vec = plain(&stream, &[1_u8; 100]);
    let handle = vec.ipc_handle().unwrap();
    let shared = open::<u8>(&handle, &stream).unwrap();
    simulator.lose_context();
    drop(shared);
    assert_eq!(vec.ipc_handle().unwrap_err().kind(), ErrorKind::ContextLost);
    assert_eq!(open::<u8>(&handle, &stream).unwrap_err().kind(), ErrorKind::ContextLost);
    drop((vec, device));
}

#[test]
fn a_capture_exports_nothing_and_a_drop_in_it_closes_later() {
    let (device, simulator, stream) = simulated();
    let vec = plain(&stream, &[1_u8; 100]);
    let handle = vec.ipc_handle().unwrap();
    let other = device.new_stream().unwrap();
    let shared = open::<u8>(&handle, &other).unwrap();
    simulator.start_capture(&stream).unwrap();
    assert_eq!(vec.ipc_handle().unwrap_err().kind(), ErrorKind::Capture);
    let block = DeviceBlock::new(vec.as_device_ptr(), 100, 0);
    assert_eq!(IpcHandle::of_block(&stream, &block).unwrap_err().kind(), ErrorKind::Capture);
    assert!(simulator.stop_capture(&stream), "the capture is whole");
    simulator.start_capture(&other).unwrap();
    // SAFETY: it is refused.
    let copied = unsafe { handle.copy_to::<u8>(&device, &other) };
    assert_eq!(copied.unwrap_err().kind(), ErrorKind::Capture);
    drop(shared);
    assert_eq!(handle.openings(&device), 1, "not in the capture");
    assert!(simulator.stop_capture(&other), "the capture is whole");
    // Once the device has passed it, which takes another thread on a busy machine.
    let start = Instant::now();
    while handle.openings(&device) > 0 && start.elapsed() < Duration::from_secs(10) {
        device.synchronize().unwrap();
    }
    assert_eq!(handle.openings(&device), 0);
    simulator.check().unwrap();
}

#[test]
fn uses_that_break_the_contract_are_reported() {
    // An access that is in no order with the exporter's.
    let (device, simulator, stream) = simulated();
    let mut vec = plain(&stream, &[1_u8; 100]);
    let other = device.new_stream().unwrap();
    let shared = open::<u8>(&vec.ipc_handle().unwrap(), &other).unwrap();
    vec.fill(2).unwrap();
    let _ = shared.to_vec();
    assert_eq!(simulator.take_reports()[0].kind(), Violation::UnorderedAccess);
    device.synchronize().unwrap();

    // A use after the close.
    let address = shared.as_device_ptr();
    drop(shared);
    let resource = CudaResource::new(&device);
    let block = DeviceBlock::new(address, 100, 0);
    // SAFETY: the simulated device reports the use.
    let wild = unsafe { DeviceVec::<u8>::from_raw_parts(other.clone(), block, 100, resource) };
    let wild = wild.unwrap();
    let _ = wild.to_vec();
    assert_eq!(simulator.take_reports()[0].kind(), Violation::UseAfterFree);
    std::mem::forget(wild);

    // A free to the driver while it is open, and the use after that.
    let shared = open::<u8>(&vec.ipc_handle().unwrap(), &other).unwrap();
    drop(vec);
    assert_eq!(simulator.take_reports()[0].kind(), Violation::FreeWhileInUse);
    let _ = shared.to_vec();
    assert_eq!(simulator.take_reports()[0].kind(), Violation::UseAfterFree);
    drop(shared);
    let _ = simulator.take_reports();
}

#[test]
fn an_importers_address_is_the_same_memory_to_a_launch_and_a_copy() {
    let (_, simulator, stream) = simulated();
    let mut vec = plain(&stream, &[1_u32; 100]);
    let mut shared = open::<u32>(&vec.ipc_handle().unwrap(), &stream).unwrap();
    // A host form would get two references to it.
    let refused = kernels::copy(&stream, &vec, &mut shared).unwrap_err();
    assert!(refused.to_string().contains("overlaps another argument"), "{refused}");
    vec.copy_from(&shared).unwrap();
    assert_eq!(simulator.take_reports()[0].kind(), Violation::OverlappingCopy);
    drop(shared);
}

/// A pool on handles says what to build in its place.
#[test]
fn memory_of_a_pool_on_handles_is_refused_with_the_way_out() {
    let (device, _, stream) = simulated();
    let plain = CudaResource::new(&device);
    let pool = PoolResource::builder(plain.clone()).handles(Handles::On).build().unwrap();
    let vec = DeviceVec::from_slice_in(&stream, &[1_u8; 100], pool).unwrap();
    let error = vec.ipc_handle().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.advice().unwrap().contains("handles(Handles::Off)"), "{error}");
    let pool = PoolResource::builder(plain).handles(Handles::Off).build().unwrap();
    let vec = DeviceVec::from_slice_in(&stream, &[1_u8; 100], pool).unwrap();
    assert_eq!(vec.ipc_handle().unwrap().size_in_bytes(), 100);
}

#[test]
fn a_block_that_its_pool_has_back_is_not_the_importers_any_more() {
    if support::pool_checks() == Some(false) {
        return;
    }
    let (device, simulator, stream) = simulated();
    let pool = PoolResource::builder(CudaResource::new(&device)).handles(Handles::Off);
    let pool = pool.build().unwrap();
    let vec = DeviceVec::from_slice_in(&stream, &[1_u8; 100], pool.clone()).unwrap();
    let shared = open::<u8>(&vec.ipc_handle().unwrap(), &stream).unwrap();
    drop(vec);
    let _ = shared.to_vec();
    assert_eq!(simulator.take_reports()[0].kind(), Violation::UseAfterFree);
    drop(shared);
    drop(pool);
    simulator.check().unwrap();
}

const SENT: &str = "AQUIFER_TEST_IPC_SENT";

#[test]
fn another_process_is_told_that_it_cannot_open_simulated_memory() {
    let (device, simulator, stream) = simulated();
    if let Ok(sent) = std::env::var(SENT) {
        let bytes: Vec<u8> = sent.split(',').map(|byte| byte.parse().unwrap()).collect();
        let handle = IpcHandle::from_bytes(&bytes).unwrap();
        assert_ne!(handle.process(), std::process::id());
        let error = open::<u8>(&handle, &stream).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("in that process alone"), "{error}");
        // SAFETY: it is refused.
        let copied = unsafe { handle.copy_to::<u8>(&device, &stream) };
        assert_eq!(copied.unwrap_err().kind(), ErrorKind::Unsupported);
        // Even a process that claims to be the exporter has none of its memory.
        let mut forged = bytes.clone();
        forged[16..32].copy_from_slice(&device.uuid().unwrap());
        let forged = IpcHandle::from_bytes(&forged).unwrap();
        assert_eq!(open::<u8>(&forged, &stream).unwrap_err().kind(), ErrorKind::Driver);
        simulator.check().unwrap();
        return;
    }
    let vec = plain(&stream, &[1_u8; 100]);
    let sent = vec.ipc_handle().unwrap().to_bytes().map(|byte| byte.to_string()).join(",");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ipc::another_process_is_told_that_it_cannot_open_simulated_memory"])
        .args(["--nocapture", "--test-threads=1"])
        .env(SENT, sent)
        .output()
        .unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

#[cfg(unix)]
#[test]
fn the_child_of_a_fork_shares_nothing() {
    if !support::in_own_process(module_path!(), "the_child_of_a_fork_shares_nothing") {
        return;
    }
    let (device, _, stream) = simulated();
    let vec = plain(&stream, &[1_u8; 100]);
    let handle = vec.ipc_handle().unwrap();
    let shared = open::<u8>(&handle, &stream).unwrap();
    // SAFETY: the child calls the crate on the one thread that it has, and leaves by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let forked = |kind| u8::from(kind == ErrorKind::Forked);
            let refused = [
                forked(vec.ipc_handle().unwrap_err().kind()),
                forked(open::<u8>(&handle, &stream).unwrap_err().kind()),
                u8::from(handle.openings(&device) == 0),
            ];
            drop(shared); // makes no call
            // SAFETY: ends the child without the destructors of the parent's objects.
            unsafe { libc::_exit(i32::from(refused != [1; 3])) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child made above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0);
        }
    }
    drop(shared);
    assert_eq!(handle.openings(&device), 0);
}
