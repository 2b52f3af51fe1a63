//! Every check is proven by a test that commits the fault and a twin that does not.

mod access;
mod check;
mod failure;
mod host;
mod host_functions;
mod lifetime;
mod mapped_memory;
mod regions;
mod replays;
mod schedule;
mod soak;

use super::{Report, SimConfig, SimDriver, Simulator, Violation};
use aquifer_driver::error::{DriverError, Error, ErrorKind, Result};
use aquifer_driver::{
    Access, DeviceAddress, Driver, FillWord, HostFlags, Kernel, LaunchConfig, RawArg, RawCopy,
    RawEvent, RawFill, RawLaunch, RawPool, RawStream,
};
use aquifer_sync::Arc;
use aquifer_sync::trusted::{Mutex, unique};
use std::ptr::NonNull;

/// The text of the kernels here. Their host forms do the work.
const TEXT: &str = ".version 6.4\n.target sm_50\n.address_size 64\n\
    .entry increment(.param .u64 data) { ret; }\n\
    .entry move(.param .u64 from, .param .u64 to) { ret; }\n\
    .entry fail() { ret; }\n.entry panic() { ret; }\n.entry call_back() { ret; }\n\
    .entry note(.param .u64 run, .param .u64 number) { ret; }";

/// Adds one to every element.
static INCREMENT: Kernel = Kernel::new("increment", TEXT, |_, mut args| {
    args.in_out::<u32>()?.iter_mut().for_each(|value| *value += 1);
    Ok(())
});

/// Copies its first argument to its second.
static MOVE: Kernel = Kernel::new("move", TEXT, |_, mut args| {
    let source = args.input::<u32>()?;
    args.output::<u32>()?.copy_from_slice(source);
    Ok(())
});

static FAIL: Kernel = Kernel::new("fail", TEXT, |_, _| {
    Err(Error::new(ErrorKind::InvalidArgument, "this kernel always fails"))
});

static PANIC: Kernel = Kernel::new("panic", TEXT, |_, _| panic!("a panic on purpose"));

/// Appends its second argument to the log of the run that its first one names.
static NOTE: Kernel = Kernel::new("note", TEXT, |_, mut args| {
    let entry = (args.scalar::<u64>()?, args.scalar::<u64>()?);
    NOTES.lock().push(entry);
    Ok(())
});

static NOTES: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

fn notes(run: u64) -> Vec<u64> {
    NOTES.lock().iter().filter(|note| note.0 == run).map(|note| note.1).collect()
}

/// A device and short names for its calls. The raw calls are unsafe, and these tests break their
/// contracts on purpose. The simulated device has to survive that.
struct Fixture {
    driver: Arc<dyn Driver>,
    sim: Simulator,
    run: u64,
}

fn fixture() -> Fixture {
    Fixture::new(SimConfig::default())
}

impl Fixture {
    fn new(config: SimConfig) -> Self {
        let driver = SimDriver::open(config);
        let sim = driver.simulator();
        Self { driver, sim, run: unique() }
    }

    fn stream(&self) -> RawStream {
        self.driver.stream_create().unwrap().raw
    }

    fn event(&self) -> RawEvent {
        self.driver.event_create().unwrap()
    }

    fn alloc(&self, bytes: usize) -> DeviceAddress {
        self.driver.mem_alloc(bytes).unwrap()
    }

    fn pool(&self) -> RawPool {
        self.driver.pool_create(aquifer_driver::PoolSpec::keeping(0)).unwrap()
    }

    fn pinned(&self, bytes: usize) -> NonNull<u8> {
        let flags = HostFlags { mapped: true, portable: true, ..HostFlags::default() };
        self.driver.host_alloc(bytes, flags).unwrap()
    }

    /// Makes `waiter` wait for everything on `stream`.
    fn order(&self, stream: RawStream, waiter: RawStream) {
        let event = self.event();
        self.driver.event_record(event, stream).unwrap();
        self.driver.stream_wait_event(waiter, event).unwrap();
        // SAFETY: not used again.
        unsafe { self.driver.event_destroy(event).unwrap() };
    }

    fn sync(&self, stream: RawStream) -> Result<(), DriverError> {
        self.driver.stream_synchronize(stream)
    }

    fn fill(&self, at: DeviceAddress, bytes: usize, value: u8, stream: RawStream) {
        self.try_fill(at, bytes, value, stream).unwrap();
    }

    fn try_fill(
        &self,
        at: DeviceAddress,
        bytes: usize,
        value: u8,
        stream: RawStream,
    ) -> Result<(), DriverError> {
        // SAFETY: the simulated device checks the range.
        unsafe {
            self.driver.fill(
                RawFill { target: at, stride: 1, word: FillWord::U8(value), count: bytes },
                stream,
            )
        }
    }

    fn copy(&self, target: DeviceAddress, source: DeviceAddress, bytes: usize, stream: RawStream) {
        // SAFETY: the simulated device checks the ranges.
        unsafe { self.driver.copy_on_device(RawCopy { target, source, bytes }, stream).unwrap() };
    }

    fn upload(&self, target: DeviceAddress, source: &[u8], stream: RawStream) {
        // SAFETY: a borrowed slice, staged before the call returns if it is pageable.
        unsafe {
            self.driver
                .copy_to_device(
                    RawCopy { target, source: source.as_ptr(), bytes: source.len() },
                    stream,
                )
                .unwrap();
        }
    }

    fn download(&self, source: DeviceAddress, bytes: usize, stream: RawStream) -> Vec<u8> {
        let mut target = vec![0; bytes];
        // SAFETY: pageable memory: complete when the call returns.
        unsafe {
            self.driver
                .copy_to_host(RawCopy { target: target.as_mut_ptr(), source, bytes }, stream)
                .unwrap();
        }
        target
    }

    fn launch(&self, kernel: &Kernel, arguments: &[RawArg], stream: RawStream) {
        self.try_launch(kernel, arguments, stream).unwrap();
    }

    fn try_launch(
        &self,
        kernel: &Kernel,
        arguments: &[RawArg],
        stream: RawStream,
    ) -> Result<(), DriverError> {
        // SAFETY: the simulated device checks the ranges.
        unsafe {
            self.driver.launch(
                RawLaunch { kernel, config: &LaunchConfig::for_elements(1), arguments },
                stream,
            )
        }
    }

    fn note(&self, number: u64, stream: RawStream) {
        let arguments = [RawArg::scalar(self.run).unwrap(), RawArg::scalar(number).unwrap()];
        self.launch(&NOTE, &arguments, stream);
    }

    /// The only report is of this kind, and the next synchronisation says so.
    #[track_caller]
    fn saw(&self, kind: Violation) -> Report {
        let reports = self.sim.reports();
        assert_eq!(reports.len(), 1, "{reports:?}");
        assert_eq!(reports[0].kind(), kind, "{}", reports[0]);
        assert_eq!(self.sim.check().unwrap_err().kind(), ErrorKind::Simulation);
        let error = self.driver.context_synchronize().unwrap_err();
        assert_eq!(error.code(), DriverError::LAUNCH_FAILED);
        self.sim.take_reports().remove(0)
    }

    #[track_caller]
    fn clean(&self) {
        self.driver.context_synchronize().unwrap();
        self.sim.check().unwrap();
    }
}

fn buffer(address: DeviceAddress, bytes: usize, access: Access) -> RawArg {
    RawArg::Buffer { address, bytes, access }
}
