//! Pools of the driver over a socket, on the simulated device.

use crate::support;
use aquifer::ipc::IpcExport;
use aquifer::sim::{SimConfig, Simulator, Violation};
use aquifer::{
    CudaResource, Device, DeviceVec, ErrorKind, PoolResource, Stream,
    ipc::{IpcHandle, IpcKind, IpcPool},
    mr::AsyncResource,
};
use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

fn simulated() -> (Device, Simulator, Stream) {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    (device, simulator, stream)
}

fn shareable(device: &Device) -> Arc<AsyncResource> {
    Arc::new(AsyncResource::builder(device).shareable(true).build().unwrap())
}

/// A pool as the other process gets it.
fn sent(pool: &AsyncResource, device: &Device) -> IpcPool {
    let (here, there) = UnixStream::pair().unwrap();
    IpcPool::send(pool, &here).unwrap();
    IpcPool::receive(device, &there).unwrap()
}

fn open(pool: &IpcPool, handle: &IpcHandle, stream: &Stream) -> aquifer::Result<DeviceVec<u32>> {
    // SAFETY: these tests keep the exporter's memory until they drop this, unless they look for the report.
    unsafe { pool.open(stream, handle) }
}

#[test]
fn a_pool_goes_over_a_socket_and_its_memory_by_handles() {
    let (device, simulator, stream) = simulated();
    let pool = shareable(&device);
    let imported = sent(&pool, &device);
    let mut vec = DeviceVec::from_slice_in(&stream, &[1_u32, 2, 3], pool.clone()).unwrap();
    let handle = IpcHandle::from_bytes(&vec.ipc_handle().unwrap().to_bytes()).unwrap();
    assert_eq!((handle.kind(), handle.offset()), (IpcKind::Pool, 0));
    let other = device.new_stream().unwrap();
    let mut shared = open(&imported, &handle, &other).unwrap();
    assert_eq!(shared.to_vec().unwrap(), [1, 2, 3]);
    let again = open(&imported.clone(), &handle, &other).unwrap();
    assert_eq!((handle.openings(&device), again.len()), (2, 3));
    assert_eq!(simulator.call_count("cuMemPoolImportPointer"), 1);
    shared.fill(7).unwrap();
    drop((shared, again));
    assert_eq!(handle.openings(&device), 0);
    assert_eq!(vec.to_vec().unwrap(), [7; 3]);
    vec.fill(8).unwrap();
    // SAFETY: the vector outlives the call; its work is ordered by the wait of the export.
    let copy = unsafe { imported.copy_to::<u32>(&stream, &vec.ipc_handle().unwrap()) }.unwrap();
    drop((vec, pool));
    assert_eq!(copy.to_vec().unwrap(), [8; 3]);
    drop(imported);
    drop(copy);
    device.synchronize().unwrap();
    assert_eq!(simulator.call_count("cuMemPoolDestroy"), 2);
    simulator.check().unwrap();
}

#[test]
fn a_pool_above_shares_its_blocks_with_their_offsets() {
    let (device, simulator, stream) = simulated();
    let shared = shareable(&device);
    let imported = sent(&shared, &device);
    let pool = PoolResource::new(shared).unwrap();
    let _first = DeviceVec::<u32>::zeroed_in(&stream, 1000, pool.clone()).unwrap();
    let vec = DeviceVec::from_slice_in(&stream, &[5_u32; 10], pool).unwrap();
    let handle = vec.slice(4..).unwrap().ipc_handle().unwrap();
    assert_ne!(handle.offset(), 0);
    assert_eq!(open(&imported, &handle, &stream).unwrap().to_vec().unwrap(), [5; 6]);
    simulator.check().unwrap();
}

#[test]
fn vectors_keep_the_pool_that_they_came_by() {
    let (device, simulator, stream) = simulated();
    let pool = shareable(&device);
    let vec = DeviceVec::from_slice_in(&stream, &[1_u32; 4], pool.clone()).unwrap();
    let handle = vec.ipc_handle().unwrap();
    let shared = open(&sent(&pool, &device), &handle, &stream).unwrap();
    assert_eq!(simulator.call_count("cuMemPoolDestroy"), 0);
    assert_eq!(shared.to_vec().unwrap(), [1; 4]);
    drop(shared);
    assert_eq!(simulator.call_count("cuMemPoolDestroy"), 1);
    // By the manual, not before the importer has closed it.
    let shared = open(&sent(&pool, &device), &handle, &stream).unwrap();
    drop(vec);
    assert_eq!(simulator.take_reports()[0].kind(), Violation::FreeWhileInUse);
    drop(shared);
}

#[test]
fn a_handle_is_opened_by_its_own_pool_alone() {
    let (device, simulator, stream) = simulated();
    let (one, two) = (shareable(&device), shareable(&device));
    let (first, second) = (sent(&one, &device), sent(&two, &device));
    let vec = DeviceVec::from_slice_in(&stream, &[1_u32; 4], one.clone()).unwrap();
    let handle = vec.ipc_handle().unwrap();
    let wrong = open(&second, &handle, &stream).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::InvalidArgument, "{wrong}");
    // SAFETY: it is refused.
    let without = unsafe { handle.open::<u32>(&stream) }.unwrap_err();
    assert!(without.to_string().contains("IpcPool::open"), "{without}");
    let plain = CudaResource::new(&device);
    let plain = DeviceVec::from_slice_in(&stream, &[1_u32; 4], plain).unwrap();
    let refused = open(&first, &plain.ipc_handle().unwrap(), &stream).unwrap_err();
    assert!(refused.to_string().contains("IpcHandle::open"), "{refused}");
    let (other, _, elsewhere) = simulated();
    assert_eq!(open(&first, &handle, &elsewhere).unwrap_err().kind(), ErrorKind::WrongDevice);
    // By a descriptor alone nobody knows whose it is: the driver finds it out.
    let unnamed = IpcPool::import(&device, &two.export().unwrap()).unwrap();
    assert_eq!(open(&unnamed, &handle, &stream).unwrap_err().kind(), ErrorKind::Driver);
    let unnamed = IpcPool::import(&device, &one.export().unwrap()).unwrap();
    assert_eq!(open(&unnamed, &handle, &stream).unwrap().to_vec().unwrap(), [1; 4]);
    let foreign = IpcPool::import(&other, &one.export().unwrap()).unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::InvalidArgument, "{foreign}");
    let (here, there) = UnixStream::pair().unwrap();
    IpcPool::send(&one, &here).unwrap();
    let foreign = IpcPool::receive(&other, &there).unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::WrongDevice, "{foreign}");
    simulator.check().unwrap();
}

const SOCKET: &str = "AQUIFER_TEST_IPC_POOLS_SOCKET";

#[test]
fn another_process_is_told_that_it_cannot_import_a_simulated_pool() {
    const NAME: &str = "another_process_is_told_that_it_cannot_import_a_simulated_pool";
    let (device, simulator, _) = simulated();
    if let Some(path) = std::env::var_os(SOCKET) {
        let socket = UnixStream::connect(path).unwrap();
        let error = IpcPool::receive(&device, &socket).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        // By the bare descriptor, too.
        let error = IpcPool::import(&device, &std::io::stdin()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        return simulator.check().unwrap();
    }
    let pool = shareable(&device);
    let path = std::env::temp_dir().join(format!("aquifer-ipc-pools-{}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("ipc_pools::{NAME}"), "--nocapture", "--test-threads=1"])
        .env(SOCKET, &path)
        .stdin(pool.export().unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (socket, _) = listener.accept().unwrap();
    std::fs::remove_file(&path).unwrap();
    IpcPool::send(&pool, &socket).unwrap();
    let output = child.wait_with_output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_socket_that_brings_something_else_is_an_error_and_leaks_no_descriptor() {
    const NAME: &str = "a_socket_that_brings_something_else_is_an_error_and_leaks_no_descriptor";
    if !support::in_own_process(module_path!(), NAME) {
        return;
    }
    let (device, simulator, _) = simulated();
    let pool = shareable(&device);
    let before = descriptors();
    let send = |bytes: &[u8], count: usize| {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        let (here, there) = UnixStream::pair().unwrap();
        let files: Vec<File> = (0..count).map(|_| File::open("/dev/null").unwrap()).collect();
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if count > 0 {
            assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        }
        sendmsg(&here, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
        drop(here);
        IpcPool::receive(&device, &there).unwrap_err()
    };
    let message = {
        let (here, mut there) = UnixStream::pair().unwrap();
        IpcPool::send(&pool, &here).unwrap();
        let mut message = [0; 40];
        there.read_exact(&mut message).unwrap(); // the descriptor is lost with this kind of read
        message
    };
    for (bytes, count, why) in [
        (&message[..], 0, "0 descriptors"),
        (&message[..], 2, "2 descriptors"),
        (&message[..], 100, "descriptors, not one"),
        (&message[..20], 1, "closed"),
        (&[0; 40][..], 1, "another message"),
    ] {
        let error = send(bytes, count);
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(descriptors(), before, "{why}");
    }
    assert_eq!(send(&message, 1).kind(), ErrorKind::InvalidArgument, "no pool's descriptor");
    // A short one is not waited for to its end, which may never come.
    let (here, there) = UnixStream::pair().unwrap();
    (&here).write_all(b"no pool").unwrap();
    let error = IpcPool::receive(&device, &there).unwrap_err();
    assert!(error.to_string().contains("another message"), "{error}");
    drop((here, there));
    let (here, there) = UnixStream::pair().unwrap();
    there.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let error = IpcPool::receive(&device, &there).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("nothing came in the time"), "{error}");
    drop(there);
    assert_eq!(IpcPool::send(&pool, &here).unwrap_err().kind(), ErrorKind::Io, "nobody there");
    drop(here);
    // In pieces, and behind a signal's interruption, it is whole.
    let (here, mut there) = UnixStream::pair().unwrap();
    IpcPool::send(&pool, &here).unwrap();
    let imported = IpcPool::receive(&device, &there).unwrap();
    there.set_nonblocking(true).unwrap();
    assert!(there.read(&mut [0]).is_err(), "all of the message is read");
    (&here).write_all(&[1]).unwrap();
    drop((here, there, imported));
    assert_eq!(descriptors(), before);
    for call in ["cuMemPoolImportFromShareableHandle", "cuMemPoolExportToShareableHandle"] {
        simulator.fail_call(call, 1, 999).unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        let failed = IpcPool::send(&pool, &here).and_then(|()| IpcPool::receive(&device, &there));
        assert_eq!(failed.unwrap_err().driver().unwrap().call(), call);
        drop((here, there));
        assert_eq!(descriptors(), before, "{call}");
    }
    simulator.check().unwrap();
}

#[test]
fn descriptors_do_not_go_to_programs_that_are_started() {
    let (device, simulator, _) = simulated();
    let pool = shareable(&device);
    let is_closed = |descriptor: &OwnedFd| {
        let flags = rustix::io::fcntl_getfd(descriptor).unwrap();
        flags.contains(rustix::io::FdFlags::CLOEXEC)
    };
    let exported = pool.export().unwrap();
    assert!(exported.as_raw_fd() >= 0 && is_closed(&exported));
    simulator.check().unwrap();
}

#[test]
fn an_export_that_fails_for_another_reason_says_that() {
    let (device, simulator, stream) = simulated();
    let vec = DeviceVec::from_slice_in(&stream, &[1_u32], shareable(&device)).unwrap();
    simulator.fail_call("cuMemPoolExportPointer", 1, 2).unwrap(); // CUDA_ERROR_OUT_OF_MEMORY
    assert_eq!(vec.ipc_handle().unwrap_err().kind(), ErrorKind::OutOfMemory);
    // CUDA_ERROR_INVALID_VALUE of plain memory is not that of a pool which is not shareable.
    let plain = DeviceVec::from_slice_in(&stream, &[1_u32], CudaResource::new(&device)).unwrap();
    simulator.fail_call("cuIpcGetMemHandle", 1, 1).unwrap();
    let error = plain.ipc_handle().unwrap_err();
    assert!(!error.to_string().contains("driver pool"), "{error}");
}
