//! A real pool on a simulated device, which knows exactly how far each kernel is.

use crate::play::Subject;
use crate::program::{Caller, STREAMS, THREADS};
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, HostArgs, Kernel,
    LaunchConfig, PoolResource, Stream,
    mr::{Handles, Keep},
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// More than a program with its moves and its waste can take.
const CAPACITY: usize = 1 << 42;

/// How often the device is asked about a stream until it has done what it can.
const QUESTIONS: usize = 500;

/// What a pool takes its memory from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upstream {
    /// Handles that are mapped.
    Mapped,
    /// Blocks of `cuMemAlloc`.
    Chunks,
}

/// The last kernel of each stream that has run. A run has a row, so that a device that ends late says nothing to
/// the next run.
static PAST: [[AtomicU64; STREAMS]; ROWS] =
    [const { [const { AtomicU64::new(0) }; STREAMS] }; ROWS];
const ROWS: usize = 64;
static NEXT_ROW: AtomicUsize = AtomicUsize::new(0);

static MARK: Kernel = Kernel::new(
    "mark",
    r"
    .version 6.4
    .target sm_50
    .address_size 64
    .visible .entry mark(.param .u64 row, .param .u64 stream, .param .u64 number) { ret; }",
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        let (row, stream) = (args.scalar::<u64>()?, args.scalar::<u64>()?);
        let number = args.scalar::<u64>()?;
        // Relaxed: read by the thread that had the device run it.
        PAST[row as usize][stream as usize].store(number, Ordering::Relaxed);
        Ok(())
    },
);

const ONE_THREAD: LaunchConfig =
    LaunchConfig { grid: (1, 1, 1), block: (1, 1, 1), shared_bytes: 0 };

type Erased = PoolResource<Arc<dyn DeviceResource>>;
type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct RealPool {
    row: usize,
    streams: Vec<Stream>,
    /// Has no work.
    idle: Stream,
    pool: Erased,
    is_mapped: bool,
    /// All but the first, which is the caller's.
    threads: [Option<(Sender<Job>, JoinHandle<()>)>; THREADS],
    simulator: Simulator,
    _device: Device,
}

impl RealPool {
    pub(crate) fn new(upstream: Upstream, streams: usize) -> Self {
        let config = SimConfig::default().capacity(CAPACITY).without_poison();
        let device = Device::simulated(config.without_pool_checks());
        let handles = match upstream {
            Upstream::Mapped => Handles::On,
            Upstream::Chunks => Handles::Off,
        };
        let below: Arc<dyn DeviceResource> = Arc::new(CudaResource::new(&device));
        let row = NEXT_ROW.fetch_add(1, Ordering::Relaxed) % ROWS;
        PAST[row].iter().for_each(|past| past.store(0, Ordering::Relaxed));
        Self {
            row,
            streams: (0..streams).map(|_| device.new_stream().unwrap()).collect(),
            idle: device.new_stream().unwrap(),
            pool: PoolResource::builder(below).handles(handles).build().unwrap(),
            is_mapped: upstream == Upstream::Mapped,
            threads: Default::default(),
            simulator: device.simulator().unwrap(),
            _device: device,
        }
    }

    /// Calls on one of the threads, and waits for it.
    fn on<R: Send + 'static>(
        &mut self,
        by: Caller,
        call: impl FnOnce(&Erased, &Stream) -> R + Send + 'static,
    ) -> R {
        let stream = &self.streams[by.stream];
        if by.thread == 0 {
            return call(&self.pool, stream);
        }
        let (jobs, _) = self.threads[by.thread].get_or_insert_with(|| {
            let (send, jobs) = channel::<Job>();
            (send, std::thread::spawn(move || jobs.into_iter().for_each(|job| job())))
        });
        let (pool, stream) = (self.pool.clone(), stream.clone());
        let (send, done) = channel();
        jobs.send(Box::new(move || send.send(call(&pool, &stream)).unwrap())).unwrap();
        done.recv().unwrap()
    }
}

impl Subject for RealPool {
    type Block = DeviceBlock;

    fn allocate(&mut self, by: Caller, bytes: usize) -> (DeviceBlock, Option<u64>) {
        let layout = DeviceLayout::new(bytes).unwrap();
        let block = self.on(by, move |pool, stream| pool.allocate(stream, layout)).unwrap();
        let address = block.address();
        (block, Some(address))
    }

    fn free(&mut self, by: Caller, block: DeviceBlock, _: usize, _: u64) {
        self.on(by, move |pool, stream| {
            // SAFETY: of this pool, freed once; the caller has put the stream behind all uses.
            unsafe { pool.deallocate(stream, block) }
        });
    }

    fn work(&mut self, stream: usize, mark: u64) {
        let launch = self.streams[stream].launch(&MARK).scalar(self.row as u64);
        let launch = launch.and_then(|it| it.scalar(stream as u64)).and_then(|it| it.scalar(mark));
        // SAFETY: the kernel touches no memory of the device.
        unsafe { launch.unwrap().launch(ONE_THREAD) }.unwrap();
    }

    fn is_past(&self, stream: usize, mark: u64) -> bool {
        PAST[self.row][stream].load(Ordering::Relaxed) >= mark
    }

    fn order(&mut self, stream: usize, before: usize) {
        self.streams[stream].wait_for(&self.streams[before]).unwrap();
    }

    fn stall(&mut self, stream: usize, stalled: bool) {
        let stream = &self.streams[stream];
        match stalled {
            true => self.simulator.stall(stream).unwrap(),
            false => self.simulator.resume(stream).unwrap(),
        }
    }

    fn wait(&mut self, stream: usize) {
        self.streams[stream].synchronize().unwrap();
    }

    fn wait_idle(&mut self) {
        self.idle.synchronize().unwrap();
    }

    fn settle(&mut self) {
        for stream in &self.streams {
            let event = stream.record().unwrap();
            // The device works when it is asked. A stream that is held up is never done.
            for _ in 0..QUESTIONS {
                if event.is_complete().unwrap() {
                    break;
                }
            }
        }
    }

    fn trim(&mut self, keep: usize, waits: bool) {
        match waits {
            true => self.pool.wait_and_trim(keep).unwrap(),
            false => self.pool.trim(keep).unwrap(),
        };
    }

    fn sleep(&mut self, keeps: bool) -> bool {
        if !self.is_mapped {
            return false;
        }
        let live = self.pool.statistics().live;
        // SAFETY: the kernels touch no memory of the device.
        let slept =
            unsafe { self.pool.sleep(if keeps { Keep::PageLocked } else { Keep::Nothing }) };
        assert!(slept.unwrap().used >= live);
        assert_eq!(self.simulator.live_bytes(), 0, "a pool that sleeps has nothing of the device");
        self.pool.wake().unwrap();
        true
    }

    fn set_threshold(&mut self, bytes: usize) -> bool {
        self.pool.set_release_threshold(Some(bytes)).unwrap();
        true
    }

    fn reserved(&self) -> usize {
        self.simulator.live_bytes()
    }
}

impl Drop for RealPool {
    fn drop(&mut self) {
        for (jobs, thread) in self.threads.iter_mut().filter_map(Option::take) {
            drop(jobs);
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}
