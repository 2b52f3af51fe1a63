//! Pools that sleep.

use crate::support::simulated;
use crate::table::Table;
use aquifer::ipc::IpcExport;
use aquifer::mr::{CudaResource, Keep, SleepReport, StackText, VirtualResource};
use aquifer::pinned::{HostBuffer, HostRead};
use aquifer::sim::SimConfig;
use aquifer::{Device, DeviceVec, Error, PoolResource, Result, Stream};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::mpsc::{Sender, channel};

type Pool = PoolResource<VirtualResource>;

fn sleep(pool: &Pool, keep: Keep) -> Result<SleepReport> {
    // SAFETY: this test has no other pointers, and no graph.
    unsafe { pool.sleep(keep) }
}

fn filled(device: &Device) -> (Stream, Pool, DeviceVec<u8>) {
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(VirtualResource::new(device).unwrap()).unwrap();
    let vec = DeviceVec::zeroed_in(&stream, 1000, pool.clone()).unwrap();
    (stream, pool, vec)
}

/// A buffer of no bytes, which wakes the pool when its address is asked for.
struct Waking(Pool, Sender<Error>);

// SAFETY: no bytes.
unsafe impl HostRead for Waking {
    type Item = u8;

    fn parts(&mut self) -> (NonNull<u8>, usize) {
        self.1.send(self.0.wake().unwrap_err()).unwrap();
        (NonNull::dangling(), 0)
    }
}

// SAFETY: and writable.
unsafe impl HostBuffer for Waking {}

/// Sleeps that unmap one place of two, and do not bring it back.
fn in_part(table: &mut Table) {
    let (device, simulator) = simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
    let new = || DeviceVec::<u8>::zeroed_in(&stream, 2 << 20, pool.clone()).unwrap();
    let (_first, hole, _last) = (new(), new(), new());
    drop(hole);
    stream.synchronize().unwrap();
    pool.trim(0).unwrap();
    for (call, code, times) in [("cuMemMap", 999, 1), ("cuMemCreate", 2, 2)] {
        simulator.fail_call("cuMemUnmap", 2, 999).unwrap();
        // Of memory that lacks, once more when other pools were asked.
        (1..=times).for_each(|nth| simulator.fail_call(call, nth, code).unwrap());
        let what = format!("a sleep in part, whose {call} fails");
        table.failed(&what, sleep(&pool, Keep::PageLocked));
        pool.wake().unwrap();
    }
}

pub(crate) fn rows(table: &mut Table) {
    let (device, simulator) = simulated(SimConfig::default());
    let (stream, pool, vec) = filled(&device);
    table.failed("a wake of what is awake", pool.wake());
    table.failed("a buffer of 100 bytes", sleep(&pool, Keep::Buffer(Box::new(vec![0_u8; 100]))));
    table.failed("a folder that is none", sleep(&pool, Keep::File("/proc/nowhere".into())));
    let (told, errors) = channel();
    let waking = Keep::Buffer(Box::new(Waking(pool.clone(), told)));
    assert!(sleep(&pool, waking).is_err());
    table.row("a wake inside of a sleep", errors.recv().unwrap());
    let in_capture = stream.capture(&pool, |_| sleep(&pool, Keep::Nothing).map(drop));
    table.failed("a sleep in a capture", in_capture.map(drop));
    simulator.fail_call("cuMemcpyDtoHAsync", 1, 999).unwrap();
    table.failed("a copy out that fails", sleep(&pool, Keep::PageLocked));
    sleep(&pool, Keep::PageLocked).unwrap();
    table.failed("a use of what sleeps", vec.get(0));
    table.failed("a second sleep", sleep(&pool, Keep::PageLocked));
    table.failed(
        "a vector of a pool that sleeps",
        DeviceVec::<u8>::zeroed_in(&stream, 9, pool.clone()),
    );
    simulator.fail_call("cuMemcpyHtoDAsync", 1, 999).unwrap();
    table.failed("a copy in that fails", pool.wake());
    // Once more, when other pools have given back what they have free.
    simulator.fail_call("cuMemCreate", 1, 2).unwrap();
    simulator.fail_call("cuMemCreate", 2, 2).unwrap();
    table.failed("a wake without room", pool.wake());
    simulator.fail_call("cuMemMap", 1, 999).unwrap();
    table.failed("a wake that cannot map", pool.wake());
    pool.wake().unwrap();
    sleep(&pool, Keep::PageLocked).unwrap();
    simulator.fail_call("cuMemSetAccess", 1, 999).unwrap();
    simulator.fail_call("cuMemUnmap", 1, 999).unwrap();
    table.failed("a wake that can neither map nor unmap", pool.wake());
    simulator.fail_call("cuMemSetAccess", 1, 999).unwrap();
    table.failed("a wake of what stayed mapped", pool.wake());
    pool.wake().unwrap();
    in_part(table);
    sleep(&pool, Keep::Nothing).unwrap();
    simulator.fail_call("cuMemsetAsync", 1, 999).unwrap();
    table.failed("a fill that fails", pool.wake());
    pool.wake().unwrap();
    drop((vec, pool));

    let (_stream, pool, vec) = filled(&device);
    let (here, _there) = UnixStream::pair().unwrap();
    vec.send_to(&here).unwrap();
    table.failed("a sleep of memory that was sent", sleep(&pool, Keep::Nothing));
    let blocks = PoolResource::new(CudaResource::new(&device)).unwrap();
    // SAFETY: the pool has no memory.
    table.failed("a sleep of a pool of blocks", unsafe { blocks.sleep(Keep::Nothing) });
    let stack = "cuda".parse::<StackText>().unwrap().build(&device).unwrap();
    table.failed("a wake of a stack without a pool", stack.wake());
}
