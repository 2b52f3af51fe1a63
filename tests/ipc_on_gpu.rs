//! Device memory that two real processes share, on a GPU: each of them reads what the other writes, and each of them
//! dies with the memory open. Run with `--nocapture`: each step is printed with its process.

#![cfg(all(unix, feature = "cuda"))]

#[path = "support/kernels.rs"]
mod kernels;
mod support;

use aquifer::ipc::IpcExport;
use aquifer::{
    CudaResource, Device, DeviceResource, DeviceVec, ErrorKind, PoolResource, Stream,
    ipc::{IpcHandle, IpcKind, IpcPool},
    mr::{AsyncResource, Handles, ManagedResource, VirtualResource},
    pinned::PinnedResource,
};
use std::fmt::Display;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A process that hears nothing for so long fails.
const PATIENCE: Duration = Duration::from_secs(60);
const SOCKET: &str = "AQUIFER_TEST_IPC_SOCKET";
const MIB: usize = 1 << 20;

/// What this process is called in the output.
fn name() -> &'static str {
    if std::env::var_os(SOCKET).is_some() { "second" } else { "first" }
}

fn say(what: impl Display) {
    println!("[{} process, {}] {what}", name(), std::process::id());
}

fn open_device() -> (Device, Stream) {
    let device = Device::open(0).unwrap();
    let stream = device.new_stream().unwrap();
    let uuid = device.uuid().unwrap().map(|byte| format!("{byte:02x}")).concat();
    say(format_args!("{device}, UUID {uuid}, driver {}", device.properties().driver_version));
    (device, stream)
}

/// The other process, by the socket between the two.
struct Other {
    socket: UnixStream,
    child: Option<Child>,
}

impl Other {
    /// Runs `second` in a second process, which is this test again, and `first` here.
    fn pair(test: &str, first: impl FnOnce(Self), second: impl FnOnce(Self)) {
        if !support::on_gpu() {
            return support::skipped(test, "no GPU");
        }
        if let Some(path) = std::env::var_os(SOCKET) {
            let socket = UnixStream::connect(path).unwrap();
            return second(Self { socket, child: None }.patient());
        }
        // What is free is the whole device's: contexts and memory of another test would count.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let path: PathBuf =
            std::env::temp_dir().join(format!("aquifer-ipc-{}-{test}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(SOCKET, &path)
            .spawn()
            .unwrap();
        listener.set_nonblocking(true).unwrap();
        let begun = Instant::now();
        let socket = loop {
            match listener.accept() {
                Ok((socket, _)) => break socket,
                Err(error) => {
                    let ended = child.try_wait().unwrap();
                    assert!(ended.is_none(), "the second process ended: {ended:?}");
                    assert!(begun.elapsed() < PATIENCE, "nobody connects: {error}");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        };
        std::fs::remove_file(&path).unwrap();
        socket.set_nonblocking(false).unwrap();
        first(Self { socket, child: Some(child) }.patient());
        say("done");
    }

    fn patient(self) -> Self {
        self.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        self.socket.set_write_timeout(Some(PATIENCE)).unwrap();
        self
    }

    fn send(&self, handle: &IpcHandle) {
        say(format_args!("sends {handle:?}"));
        (&self.socket).write_all(&handle.to_bytes()).unwrap();
    }

    fn receive(&self) -> IpcHandle {
        let mut bytes = [0; IpcHandle::SIZE];
        (&self.socket).read_exact(&mut bytes).unwrap();
        let handle = IpcHandle::from_bytes(&bytes).unwrap();
        say(format_args!("received {handle:?}"));
        handle
    }

    /// Lets the other process go on.
    fn signal(&self) {
        (&self.socket).write_all(&[1]).unwrap();
    }

    /// Waits for the other process.
    fn wait(&self) {
        (&self.socket).read_exact(&mut [0]).unwrap();
    }

    /// Waits for the end of the second process.
    fn end(mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        let begun = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                say(format_args!("the second process ended: {status}"));
                return status;
            }
            if begun.elapsed() > PATIENCE {
                let _ = child.kill();
                panic!("the second process hangs");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Opens plain memory.
fn open(handle: &IpcHandle, stream: &Stream) -> aquifer::Result<DeviceVec<u32>> {
    // SAFETY: the first process keeps the memory, or dies; both wait for each other.
    unsafe { handle.open(stream) }
}

fn copied_to(handle: &IpcHandle, via: &Device, stream: &Stream) -> Vec<u32> {
    // SAFETY: as above.
    let copy = unsafe { handle.copy_to::<u32>(via, stream) }.unwrap();
    copy.to_vec().unwrap()
}

/// That each element is `value`, in few words where some are not.
#[track_caller]
fn assert_all(values: &[u32], value: u32, what: &str) {
    let wrong = values.iter().enumerate().filter(|(_, found)| **found != value);
    let count = wrong.clone().count();
    let first = wrong.map(|(index, found)| format!("{found} at {index}")).next();
    let length = values.len();
    assert!(count == 0, "{what}: {count} of {length} are not {value}, the first is {first:?}");
}

fn values(vec: &DeviceVec<u32>) -> Vec<u32> {
    vec.to_vec().unwrap()
}

/// That the device serves this process as it should.
fn assert_works(device: &Device, stream: &Stream) {
    let mut vec = DeviceVec::from_slice(stream, &[1_u32; 1000]).unwrap();
    kernels::add_one(stream, &mut vec).unwrap();
    assert_all(&values(&vec), 2, "a kernel after all that");
    let plain = CudaResource::new(device);
    drop(DeviceVec::<u8>::zeroed_in(stream, 64 * MIB, plain).unwrap());
    device.synchronize().unwrap();
    say("the device works");
}

fn free(device: &Device) -> u64 {
    device.memory_info().unwrap().free as u64
}

#[test]
fn a_block_of_a_pool_is_read_and_written_by_another_process() {
    const TEST: &str = "a_block_of_a_pool_is_read_and_written_by_another_process";
    const LENGTH: usize = 300_000;
    let first = |other: Other| {
        let (device, stream) = open_device();
        let pool = PoolResource::builder(CudaResource::new(&device)).initial_size(16 * MIB);
        let pool = pool.handles(Handles::Off).build().unwrap();
        let mut vecs: Vec<DeviceVec<u32>> = (0..3)
            .map(|value| DeviceVec::from_slice_in(&stream, &[value; LENGTH], pool.clone()).unwrap())
            .collect();
        kernels::add_one(&stream, &mut vecs[1]).unwrap(); // 2, and the export waits for it
        let handle = vecs[1].ipc_handle().unwrap();
        assert_eq!(handle.kind(), IpcKind::Plain);
        assert_ne!(handle.offset(), 0, "not the first block of its chunk");
        other.send(&handle);
        other.send(&vecs[2].slice(100..200).unwrap().ipc_handle().unwrap());
        other.wait();
        assert_all(&values(&vecs[1]), 3, "a kernel of the other process");
        assert_all(&values(&vecs[0]), 0, "a neighbour");
        let second = values(&vecs[2]);
        assert_all(&second[100..200], 77, "a fill of the other process");
        assert_all(&second[..100], 2, "before it");
        assert_all(&second[200..], 2, "after it");
        say("has found what the other wrote, and nothing else");
        vecs[1].fill(50).unwrap();
        stream.synchronize().unwrap();
        other.signal();
        other.wait();
        let own = open(&handle, &stream).unwrap_err();
        say(format_args!("its own handle, in itself: {own}"));
        assert!(own.to_string().contains("in its own process"), "{own}");
        assert!(other.end().success());
        drop(vecs);
        pool.wait_and_trim(0).unwrap();
        assert_works(&device, &stream);
    };
    let second = |other: Other| {
        let (device, stream) = open_device();
        let (handle, part) = (other.receive(), other.receive());
        let mut shared = open(&handle, &stream).unwrap();
        let again = open(&handle, &stream).unwrap();
        let mut slice = open(&part, &stream).unwrap();
        assert_eq!(handle.driver_bytes(), part.driver_bytes(), "of one allocation");
        assert_eq!(handle.openings(&device), 3);
        assert_eq!(shared.as_device_ptr(), again.as_device_ptr());
        say(format_args!("has it open at {:#x}", shared.as_device_ptr()));
        assert_eq!((shared.len(), slice.len()), (LENGTH, 100));
        assert_all(&values(&shared), 2, "what the first process wrote");
        assert_all(&values(&slice), 2, "a slice of what the first process wrote");
        assert_all(&copied_to(&handle, &device, &stream), 2, "a copy");
        let error = again.ipc_handle().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        drop(again);
        kernels::add_one(&stream, &mut shared).unwrap();
        slice.fill(77).unwrap();
        device.synchronize().unwrap();
        other.signal();
        other.wait();
        assert_eq!(shared.get(LENGTH - 1).unwrap(), 50);
        match Device::count().unwrap() {
            1 => say("one GPU: nothing is staged to another"),
            _ => {
                let peer = Device::open(1).unwrap().new_stream().unwrap();
                assert_all(&copied_to(&handle, &device, &peer), 50, "a copy on another GPU");
                say("staged to GPU 1");
                // SAFETY: it is refused.
                let wrong = unsafe { handle.open::<u32>(&peer) }.unwrap_err();
                assert_eq!(wrong.kind(), ErrorKind::WrongDevice, "{wrong}");
            }
        }
        drop((shared, slice));
        assert_eq!(handle.openings(&device), 0);
        // What is closed is opened again.
        assert_eq!(open(&handle, &stream).unwrap().get(0).unwrap(), 50);
        say("has closed it");
        other.signal();
    };
    Other::pair(TEST, first, second);
}

#[test]
fn a_driver_pool_goes_to_another_process() {
    const TEST: &str = "a_driver_pool_goes_to_another_process";
    const LENGTH: usize = 100_000;
    let first = |other: Other| {
        let (device, stream) = open_device();
        let shareable = AsyncResource::builder(&device).shareable(true).build().unwrap();
        let shareable = Arc::new(shareable);
        IpcPool::send(&shareable, &other.socket).unwrap();
        let vec = DeviceVec::from_slice_in(&stream, &[7_u32; LENGTH], shareable.clone()).unwrap();
        other.send(&vec.ipc_handle().unwrap());
        let pool = PoolResource::builder(shareable).initial_size(8 * MIB).build().unwrap();
        let cut = [1, 2].map(|value| {
            DeviceVec::from_slice_in(&stream, &[value; LENGTH], pool.clone()).unwrap()
        });
        let handle = cut[1].ipc_handle().unwrap();
        assert_eq!(handle.kind(), IpcKind::Pool);
        assert_ne!(handle.offset(), 0);
        other.send(&handle);
        other.send(&cut[0].ipc_handle().unwrap()); // of the same allocation
        other.wait();
        assert_all(&values(&vec), 8, "a kernel of the other process");
        assert_all(&values(&cut[1]), 9, "a fill of the other process");
        assert_all(&values(&cut[0]), 1, "a neighbour");
        say("has found what the other wrote, and nothing else");
        assert!(other.end().success());
        drop((vec, cut, pool));
        assert_works(&device, &stream);
    };
    let second = |other: Other| {
        let (device, stream) = open_device();
        let pool = IpcPool::receive(&device, &other.socket).unwrap();
        let (whole, part) = (other.receive(), other.receive());
        let neighbour = other.receive();
        let same = part.driver_bytes() == neighbour.driver_bytes();
        say(format_args!("two handles of one allocation have the same bytes: {same}"));
        // SAFETY: the first process keeps the memory, and waits.
        let opened = |handle: &IpcHandle| unsafe { pool.open::<u32>(&stream, handle) }.unwrap();
        let (mut one, mut two) = (opened(&whole), opened(&part));
        let again = opened(&whole);
        assert_eq!(whole.openings(&device), 2);
        say(format_args!(
            "has them open at {:#x}, {:#x}",
            one.as_device_ptr(),
            two.as_device_ptr()
        ));
        assert_all(&values(&one), 7, "a block of the driver pool");
        assert_eq!(again.get(5).unwrap(), 7);
        assert_all(&values(&two), 2, "a block of a pool over the driver pool");
        let three = opened(&neighbour);
        assert_all(&values(&three), 1, "open beside its neighbour");
        assert_eq!(part.openings(&device), if same { 2 } else { 1 });
        // SAFETY: as above.
        let copy = unsafe { pool.copy_to::<u32>(&stream, &part) }.unwrap();
        kernels::add_one(&stream, &mut one).unwrap();
        two.fill(9).unwrap();
        drop((one, two, three, again, pool));
        assert_eq!((whole.openings(&device), part.openings(&device)), (0, 0));
        assert_all(&values(&copy), 2, "a copy");
        say("has closed them and the pool");
        other.signal();
    };
    Other::pair(TEST, first, second);
}

/// In handles of several sizes, and from the middle of one. Then the sender lets its memory go, and the device has it again when
/// the other process is done.
#[test]
fn mapped_memory_goes_to_another_process() {
    const TEST: &str = "mapped_memory_goes_to_another_process";
    const BYTES: usize = 300 * MIB;
    let first = |other: Other| {
        let (device, stream) = open_device();
        let pool = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
        // What the first mapping costs the context is not counted.
        drop(DeviceVec::<u8>::zeroed_in(&stream, 1, pool.clone()).unwrap());
        pool.wait_and_trim(0).unwrap();
        let before = free(&device);
        let mut vec = DeviceVec::<u8>::zeroed_in(&stream, 3 * MIB, pool.clone()).unwrap();
        vec.resize(BYTES, 1).unwrap();
        let neighbour = DeviceVec::from_slice_in(&stream, &[5_u32; 100], pool.clone()).unwrap();
        let words = DeviceVec::from_slice_in(&stream, &[7_u32; 100], pool.clone()).unwrap();
        let (start, place) = (Instant::now(), 100 * MIB + 3..200 * MIB);
        vec.send_to(&other.socket).unwrap();
        say(format_args!("has sent {} MiB in {:?}", BYTES / MIB, start.elapsed()));
        vec.slice(place.clone()).unwrap().send_to(&other.socket).unwrap();
        words.send_to(&other.socket).unwrap();
        other.wait();
        let found = vec.to_vec().unwrap();
        let expected = |at: usize| match at {
            _ if place.contains(&at) => 9,
            at if at < 3 * MIB => 3,
            _ => 1,
        };
        assert!(found.iter().enumerate().all(|(at, value)| *value == expected(at)));
        assert_all(&values(&words), 8, "a kernel of the other process");
        assert_all(&values(&neighbour), 5, "a neighbour");
        let error = vec.ipc_handle().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let plain = DeviceVec::<u8>::zeroed_in(&stream, 9, CudaResource::new(&device)).unwrap();
        let error = plain.send_to(&other.socket).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        drop((vec, words, neighbour, plain));
        pool.wait_and_trim(0).unwrap();
        assert_eq!(pool.statistics().reserved, 0);
        let kept = before.saturating_sub(free(&device));
        assert!(kept >= BYTES as u64, "the other process keeps it: {kept}");
        other.signal();
        assert!(other.end().success());
        let missing = before.saturating_sub(free(&device));
        say(format_args!("{missing} bytes of the device are missing at the end"));
        assert!(missing <= 4 * MIB as u64, "{missing}");
        assert_works(&device, &stream);
    };
    let second = |other: Other| {
        let (_, stream) = open_device();
        let start = Instant::now();
        // SAFETY: the first process keeps the memory, and waits.
        let mut whole = unsafe { aquifer::ipc::receive::<u8>(&stream, &other.socket) }.unwrap();
        say(format_args!("has received {} MiB in {:?}", whole.len() / MIB, start.elapsed()));
        // SAFETY: as above.
        let mut part = unsafe { aquifer::ipc::receive::<u8>(&stream, &other.socket) }.unwrap();
        // SAFETY: as above.
        let mut words = unsafe { aquifer::ipc::receive::<u32>(&stream, &other.socket) }.unwrap();
        let found = whole.to_vec().unwrap();
        let is_right = |(at, value): (usize, &u8)| *value == u8::from(at >= 3 * MIB);
        assert!(found.len() == BYTES && found.iter().enumerate().all(is_right));
        assert_all(&values(&words), 7, "of a pool");
        whole.slice_mut(..3 * MIB).unwrap().fill(3).unwrap();
        part.fill(9).unwrap();
        kernels::add_one(&stream, &mut words).unwrap();
        stream.synchronize().unwrap();
        other.signal();
        other.wait();
        assert_eq!(part.get(5).unwrap(), 9, "its own process has let it go");
        let (here, _there) = UnixStream::pair().unwrap();
        let error = part.send_to(&here).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "sent on: {error}");
        drop((whole, part, words));
        say("has unmapped them");
    };
    Other::pair(TEST, first, second);
}

#[test]
fn a_process_that_dies_with_the_memory_open_leaves_its_owner_whole() {
    const TEST: &str = "a_process_that_dies_with_the_memory_open_leaves_its_owner_whole";
    const LENGTH: usize = 16 * MIB;
    let first = |other: Other| {
        let (device, stream) = open_device();
        let shareable = AsyncResource::builder(&device).shareable(true).build().unwrap();
        let shareable = Arc::new(shareable);
        let plain = PoolResource::builder(CudaResource::new(&device)).handles(Handles::Off);
        let plain = plain.build().unwrap();
        let before = free(&device);
        IpcPool::send(&shareable, &other.socket).unwrap();
        let sevens = vec![7_u32; LENGTH];
        let vecs = [
            DeviceVec::from_slice_in(&stream, &sevens, plain.clone()).unwrap(),
            DeviceVec::from_slice_in(&stream, &sevens, shareable.clone()).unwrap(),
        ];
        for vec in &vecs {
            other.send(&vec.ipc_handle().unwrap());
        }
        other.wait();
        let status = other.end();
        assert!(!status.success(), "it was to die");
        for vec in &vecs {
            let values = vec.to_vec().unwrap();
            let written = values.iter().filter(|&&value| value != 7).count();
            say(format_args!("the dead process has written {written} of {LENGTH} elements"));
            assert!(values.iter().all(|&value| (7..=100_000).contains(&value)));
        }
        let [of_plain, of_shareable] = vecs;
        drop(of_plain);
        let given = plain.wait_and_trim(0).unwrap();
        assert!(given >= 64 * MIB, "{given} bytes went back to the driver");
        assert_eq!((plain.statistics().reserved, plain.statistics().live), (0, 0));
        say(format_args!("free before: {before} bytes, after plain memory: {}", free(&device)));
        drop(of_shareable);
        stream.synchronize().unwrap();
        shareable.trim(0).unwrap();
        let reserved = shareable.statistics().unwrap().reserved_bytes;
        say(format_args!("the driver's pool has {reserved} bytes"));
        assert_eq!(reserved, 0, "the driver's pool gave all back");
        for resource in [Arc::new(plain) as Arc<dyn DeviceResource>, shareable] {
            let vec = DeviceVec::from_slice_in(&stream, &sevens, resource).unwrap();
            assert_eq!(vec.get(LENGTH - 1).unwrap(), 7);
        }
        stream.synchronize().unwrap();
        // Both pools are gone. The driver gives shared memory back when it finds that no process has it.
        let (started, enough) = (Instant::now(), before - (32 * MIB) as u64);
        while free(&device) < enough && started.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(100));
        }
        let (now, waited) = (free(&device), started.elapsed());
        say(format_args!("free before: {before} bytes, at the end: {now}, after {waited:.1?}"));
        assert!(now >= enough, "the memory came back");
        assert_works(&device, &stream);
    };
    let second = |other: Other| {
        let (device, stream) = open_device();
        let pool = IpcPool::receive(&device, &other.socket).unwrap();
        let (plain, pooled) = (other.receive(), other.receive());
        // SAFETY: the first process keeps the memory, and this one dies.
        let mut pooled = unsafe { pool.open::<u32>(&stream, &pooled) }.unwrap();
        let mut plain = open(&plain, &stream).unwrap();
        for _ in 0..200 {
            kernels::add_one(&stream, &mut plain).unwrap();
            kernels::add_one(&stream, &mut pooled).unwrap();
        }
        say("dies in the midst of its work");
        other.signal();
        std::process::abort();
    };
    Other::pair(TEST, first, second);
}

#[test]
fn memory_of_a_process_that_dies_is_data_or_an_error() {
    const TEST: &str = "memory_of_a_process_that_dies_is_data_or_an_error";
    const LENGTH: usize = MIB;
    // Here the second process exports.
    let first = |other: Other| {
        let (device, stream) = open_device();
        let pool = IpcPool::receive(&device, &other.socket).unwrap();
        let handles = [other.receive(), other.receive()];
        let mut vecs = [
            open(&handles[0], &stream).unwrap(),
            // SAFETY: the second process keeps the memory, or dies.
            unsafe { pool.open::<u32>(&stream, &handles[1]) }.unwrap(),
        ];
        for vec in &vecs {
            assert_all(&values(vec), 3, "what the second process wrote");
        }
        other.signal();
        assert!(!other.end().success(), "it was to die");
        for vec in &mut vecs {
            match vec.to_vec() {
                Ok(values) => {
                    let same = values.iter().filter(|&&value| value == 3).count();
                    say(format_args!(
                        "of the dead process's memory {same} of {LENGTH} are the same"
                    ));
                }
                Err(error) => say(format_args!("the memory of the dead process: {error}")),
            }
            match vec.fill(4).and_then(|()| vec.to_vec()) {
                Ok(values) => {
                    let same = values.iter().filter(|&&value| value == 4).count();
                    say(format_args!("{same} of {LENGTH} elements of it can be written"));
                }
                Err(error) => say(format_args!("the memory of the dead process: {error}")),
            }
        }
        drop((vecs, pool));
        assert_eq!((handles[0].openings(&device), handles[1].openings(&device)), (0, 0));
        let late = open(&handles[0], &stream);
        match &late {
            Ok(_) => say("a handle of the dead process still opens"),
            Err(error) => say(format_args!("a handle of the dead process: {error}")),
        }
        drop(late);
        assert_works(&device, &stream);
    };
    let second = |other: Other| {
        let (device, stream) = open_device();
        let shareable = AsyncResource::builder(&device).shareable(true).build().unwrap();
        let shareable = Arc::new(shareable);
        IpcPool::send(&shareable, &other.socket).unwrap();
        let resources: [Arc<dyn DeviceResource>; 2] =
            [Arc::new(CudaResource::new(&device)), shareable];
        let vecs = resources
            .map(|resource| DeviceVec::from_slice_in(&stream, &[3_u32; LENGTH], resource).unwrap());
        for vec in &vecs {
            other.send(&vec.ipc_handle().unwrap());
        }
        other.wait();
        say("dies with its memory open elsewhere");
        std::process::abort();
    };
    Other::pair(TEST, first, second);
}

#[test]
fn what_cannot_be_shared_and_bytes_that_are_no_handle_are_errors() {
    const TEST: &str = "what_cannot_be_shared_and_bytes_that_are_no_handle_are_errors";
    let first = |other: Other| {
        let (device, stream) = open_device();
        let mapped = VirtualResource::new(&device).unwrap();
        let resources: [Arc<dyn DeviceResource>; 6] = [
            Arc::new(PoolResource::new(mapped.clone()).unwrap()),
            Arc::new(mapped),
            Arc::new(ManagedResource::new(&device).unwrap()),
            Arc::new(PinnedResource::new(&device).unwrap()),
            Arc::new(AsyncResource::new(&device).unwrap()),
            Arc::new(AsyncResource::default_pool(&device).unwrap()),
        ];
        for resource in resources {
            let vec = DeviceVec::<u8>::zeroed_in(&stream, 4096, resource).unwrap();
            let error = vec.ipc_handle().unwrap_err();
            say(&error);
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
        let vec = DeviceVec::from_slice_in(&stream, &[1_u32; 1000], CudaResource::new(&device));
        let vec = vec.unwrap();
        other.send(&vec.ipc_handle().unwrap());
        assert!(other.end().success());
        assert_all(&values(&vec), 1, "what was shared");
    };
    let second = |other: Other| {
        let (device, stream) = open_device();
        let good = other.receive();
        assert_eq!(open(&good, &stream).unwrap().get(999).unwrap(), 1);
        let mut wrong = Vec::new();
        // A range past the end of whatever the driver makes of a small allocation.
        let mut wide = good.to_bytes();
        wide[112..120].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        wrong.push(wide);
        let mut far = good.to_bytes();
        far[104..112].copy_from_slice(&(1_u64 << 41).to_le_bytes());
        wrong.push(far);
        // What the driver itself is to refuse.
        for fill in [0, 0xff, 0x5a] {
            let mut bytes = good.to_bytes();
            bytes[32..96].fill(fill);
            wrong.push(bytes);
        }
        // Another device.
        let mut elsewhere = good.to_bytes();
        elsewhere[16] ^= 1;
        wrong.push(elsewhere);
        for bytes in wrong {
            let error = open(&IpcHandle::from_bytes(&bytes).unwrap(), &stream).unwrap_err();
            say(&error);
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        say(IpcPool::import(&device, &null).unwrap_err());
        assert_eq!(open(&good, &stream).unwrap().get(0).unwrap(), 1);
        assert_eq!(good.openings(&device), 0);
        assert_works(&device, &stream);
    };
    Other::pair(TEST, first, second);
}
