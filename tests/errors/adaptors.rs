//! Adaptors and logs.

use crate::processes;
use crate::resources::Careless;
use crate::support::{layout, simulated};
use crate::table::Table;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, Error, ErrorKind,
    Result, Stream,
    container::MemoryLocation,
    mr::{
        AlignedAdaptor, AsyncResource, FailureCallbackAdaptor, LimitingAdaptor,
        LocalDeviceResource, LogFormat, LoggingAdaptor, ManagedResource, PrefetchAdaptor,
        StatisticsAdaptor, ThreadSafeAdaptor, TrackingAdaptor,
    },
};

use std::sync::{Arc, OnceLock};

pub(crate) fn rows(table: &mut Table) {
    let (device, simulator) = simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let plain = || CudaResource::new(&device);

    let limited = LimitingAdaptor::new(plain(), 1024);
    table.failed("more than a limit", limited.allocate(&stream, layout(2048)));
    let held = limited.allocate(&stream, layout(1)).unwrap();
    table.failed("a limit that is used", limited.allocate(&stream, layout(1024)));
    // SAFETY: allocated above and not used.
    unsafe { limited.deallocate(&stream, held) };
    let small = LimitingAdaptor::new(plain(), 100);
    table.failed("a byte that counts as more than a limit", small.allocate(&stream, layout(1)));
    let odd = LimitingAdaptor::new(plain(), 1000);
    table.failed("a block that counts as more than a limit", odd.allocate(&stream, layout(999)));
    table.failed("a limit in multiples of 3", LimitingAdaptor::with_alignment(plain(), 9, 3));

    let never = FailureCallbackAdaptor::builder(plain()).max_retries(0).build(|_| true);
    table.failed("a callback that is never called", never);
    let statistics = StatisticsAdaptor::new(plain());
    table.failed("no scope of counters", statistics.pop_counters());
    table.failed("no scope of counters of all threads", statistics.pop_shared_counters());
    table.failed("an alignment of 100", AlignedAdaptor::new(plain(), 100, 0));
    let odd = AlignedAdaptor::new(Careless::shifted(plain(), 8), 4096, 0).unwrap();
    table.failed("an alignment that upstream does not keep", odd.allocate(&stream, layout(8)));

    let managed = ManagedResource::new(&device).unwrap();
    let prefetched = PrefetchAdaptor::new(managed);
    simulator.fail_call("cuMemPrefetchAsync", 1, 999).unwrap();
    table.failed("no prefetch", prefetched.allocate(&stream, layout(64)));
    let moved = DeviceVec::<u8>::zeroed_in(&stream, 64, ManagedResource::new(&device).unwrap());
    simulator.fail_call("cuMemPrefetchAsync", 1, 999).unwrap();
    table.failed("no prefetch to the host", moved.unwrap().prefetch(MemoryLocation::Host));
    simulator.fail_call("cuStreamQuery", 1, 999).unwrap();
    table.failed("no answer of a stream", stream.is_idle());
    simulator.fail_call("cuStreamCreate", 1, 999).unwrap();
    table.failed("no blocking stream", device.new_blocking_stream());
    simulator.fail_call("cuPointerGetAttributes", 1, 999).unwrap();
    table.failed("no answer about an address", device.knows_address(0x1000));
    table.failed("no pool for a fabric", AsyncResource::builder(&device).fabric(true).build());

    let tracked = TrackingAdaptor::new(plain());
    let held = tracked.allocate(&stream, layout(64)).unwrap();
    let report = tracked.report();
    table.add("a report of what is outstanding", report.lines().next().unwrap(), "", None);
    // SAFETY: allocated above and not used.
    unsafe { tracked.deallocate(&stream, held) };

    reentered(table);
    logs(table);
}

/// A resource that calls the adaptor that it is in.
#[derive(Debug)]
struct Reentrant {
    device: Device,
    outer: Arc<OnceLock<ThreadSafeAdaptor<Reentrant>>>,
}

// SAFETY: it hands nothing out.
unsafe impl LocalDeviceResource for Reentrant {
    fn device(&self) -> &Device {
        &self.device
    }

    fn allocate(&mut self, stream: &Stream, wanted: DeviceLayout) -> Result<DeviceBlock> {
        match self.outer.get() {
            Some(outer) => outer.allocate(stream, wanted),
            None => Err(Error::new(ErrorKind::OutOfMemory, "empty")),
        }
    }

    unsafe fn deallocate(&mut self, _stream: &Stream, _block: DeviceBlock) {}
}

fn reentered(table: &mut Table) {
    let device = simulated(SimConfig::default()).0;
    let stream = device.new_stream().unwrap();
    let known = Arc::new(OnceLock::new());
    let outer = ThreadSafeAdaptor::new(Reentrant { device, outer: known.clone() });
    known.set(outer.clone()).unwrap();
    table.failed("a resource that calls itself", outer.allocate(&stream, layout(1)));
}

struct Panics;

impl std::io::Write for Panics {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        panic!("out of ideas")
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn logs(table: &mut Table) {
    let plain = CudaResource::new(&simulated(SimConfig::default()).0);
    let stream = plain.device().new_stream().unwrap();
    let with = || LoggingAdaptor::builder(plain.clone());
    table.failed(
        "a log of no records",
        with().writer(Box::new(std::io::sink())).capacity(0).build(),
    );
    let located =
        with().writer(Box::new(std::io::sink())).format(LogFormat::Rmm).locations(true).build();
    table.failed("locations in RMM's format", located);
    table.failed(
        "a log in a folder",
        LoggingAdaptor::new(plain.clone(), "/nonexistent/folder/log.csv"),
    );
    let path = std::env::temp_dir().join(format!("errors-{}.csv", std::process::id()));
    let first = LoggingAdaptor::new(plain.clone(), &path).unwrap();
    table.failed("a log that another has", LoggingAdaptor::new(plain.clone(), &path));
    std::fs::remove_file(&path).unwrap();
    table.failed("a log that was removed", first.flush());
    table.failed("a log of no name", LoggingAdaptor::new(plain.clone(), ""));
    let panics = with().writer(Box::new(Panics)).build().unwrap();
    table.failed("a log whose writer panics", panics.flush());
    let full = LoggingAdaptor::new(plain.clone(), "/dev/full").unwrap();
    let block = full.allocate(&stream, layout(1)).unwrap();
    // SAFETY: allocated above and not used.
    unsafe { full.deallocate(&stream, block) };
    table.failed("a log on a full disk", full.flush());
    processes::rows_of_child(table, "log", &[], "a log without a name");
    let wrong = [("RMM_LOG_FILE", "/nonexistent/folder/log.csv")];
    processes::rows_of_child(table, "log", &wrong, "RMM_LOG_FILE in no folder");
    debug_log(table);
}

fn debug_log(table: &mut Table) {
    use aquifer::debug_log::DebugLog;
    table.failed("a debug log in no folder", DebugLog::open("/nonexistent/folder/log"));
}
