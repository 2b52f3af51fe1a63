//! Memory that changes hands between streams: by a steal, and from a producer to a consumer.

use crate::kernels::delay;
use crate::rows::{MIB, POOL, median, nanoseconds, number};
use crate::subject::{Bench, Erased, must};
use crate::workloads::Pool;
use aquifer::{CudaResource, DeviceBlock, DeviceResource, Event, PoolResource, Stream};
use crossbeam::channel::bounded;
use std::time::Instant;

/// Steals behind one delaying kernel: far fewer than a stream's queue holds.
const STEALS: u32 = 200;

const DELAY_NS: u64 = 5_000_000;

/// A pool of one block, two streams in turn, behind a kernel that keeps both waiting: each
/// allocation has to steal. Beside it, in the same rounds, the two bare driver calls of a steal. The
/// context is current throughout, so neither pushes it.
pub(crate) fn ping_pong(bench: &Bench) {
    let block = MIB as usize;
    let upstream = CudaResource::new(&bench.device);
    let options = PoolResource::builder(upstream).initial_size(block).maximum_size(block);
    let pool = must(options.build());
    let subject = bench.erased(pool.clone());
    #[cfg(feature = "cuda")]
    let bare = bare::Pair::new(bench);
    let (mut steals, mut bares, mut early) = (Vec::new(), Vec::new(), 0);
    let before = pool.statistics();
    for round in 0..bench.count(51, 3) {
        let mut keep = |times: &mut Vec<f64>, time: f64, busy: bool| match busy {
            // The first round warms up.
            true if round > 0 => times.push(time),
            true => {}
            false => early += 1,
        };
        let (time, busy) = behind_a_kernel(bench, &bench.streams()[0], || steal(&subject));
        keep(&mut steals, time, busy || bench.simulated());
        #[cfg(feature = "cuda")]
        if let Some(bare) = &bare {
            let (time, busy) = behind_a_kernel(bench, &bare.streams[0], || bare.run());
            keep(&mut bares, time, busy);
        }
        #[cfg(not(feature = "cuda"))]
        let _: &mut Vec<f64> = &mut bares;
    }
    if early > 0 {
        println!("# ping-pong: {early} rounds outlasted their kernel and do not count");
    }
    let made = pool.statistics().steals - before.steals;
    println!("# ping-pong: {made} steals by the pool's own count");
    if steals.is_empty() {
        println!("# ping-pong: no round counts");
        return;
    }
    let steal = median(steals);
    nanoseconds(POOL, "ping-pong steal", steal);
    if !bares.is_empty() {
        let bare = median(bares);
        nanoseconds("driver", "bare record and wait", bare);
        number(POOL, "ping-pong steal over bare", steal / bare);
    }
}

/// Nanoseconds of one of the `STEALS` that `run` makes, and whether the kernel outlasted them.
fn behind_a_kernel(bench: &Bench, stream: &Stream, run: impl FnOnce()) -> (f64, bool) {
    delay(stream, DELAY_NS);
    let end = must(stream.record());
    let start = Instant::now();
    run();
    let time = start.elapsed().as_secs_f64() * 1e9 / f64::from(STEALS);
    let busy = !must(end.is_complete());
    bench.synchronize();
    (time, busy)
}

fn steal(subject: &Erased) {
    for turn in 0..STEALS as usize {
        // Stream 0 had the kernel, so stream 1 begins.
        let stream = (turn + 1) % 2;
        let block = subject.allocate(MIB, stream);
        subject.free(block, stream);
    }
}

/// The driver's own calls, without this crate between.
#[cfg(feature = "cuda")]
mod bare {
    use super::STEALS;
    use crate::subject::Bench;
    use aquifer::Stream;
    use aquifer::cudarc::driver::{result, sys};

    /// Takes off what `new` put on, so that later groups find this thread as it was.
    fn pop() {
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut context) };
    }

    pub(super) struct Pair {
        event: sys::CUevent,
        /// Its own: whose raw handle was taken is asked for captures from then on.
        pub(super) streams: [Stream; 2],
        raw: [sys::CUstream; 2],
    }

    impl Pair {
        /// Also makes the context current on this thread until it is dropped. `None` without a GPU.
        pub(super) fn new(bench: &Bench) -> Option<Self> {
            let context = bench.device.cuda_context().ok()?.cu_ctx();
            let streams = [bench.stream(), bench.stream()];
            let raw = |index: usize| Some(streams[index].cuda_stream().ok()?.cu_stream());
            let raw = [raw(0)?, raw(1)?];
            // SAFETY: the device keeps its context.
            if unsafe { sys::cuCtxPushCurrent_v2(context) } as u32 != 0 {
                return None;
            }
            let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
            let event = event.map_err(|_| pop()).ok()?;
            Some(Self { event, streams, raw })
        }

        pub(super) fn run(&self) {
            for turn in 0..STEALS as usize {
                let (from, to) = (self.raw[turn % 2], self.raw[(turn + 1) % 2]);
                // SAFETY: the event and the streams live as long as `self`.
                let codes = unsafe {
                    [
                        sys::cuEventRecord(self.event, from),
                        sys::cuStreamWaitEvent(to, self.event, 0),
                    ]
                };
                assert!(codes.iter().all(|&code| code as u32 == 0), "a bare call failed");
            }
        }
    }

    impl Drop for Pair {
        fn drop(&mut self) {
            // SAFETY: made in `new`, and destroyed here once.
            let _ = unsafe { result::event::destroy(self.event) };
            pop();
        }
    }
}

/// Blocks of 1 MiB that one thread allocates on its stream and another one frees on another stream.
/// Nanoseconds a block. The consumer's stream waits for the producer's once a batch.
pub(crate) fn producer_consumer(bench: &Bench) {
    let pool = bench.pool(2);
    let resource: &dyn DeviceResource = &pool;
    for batch in [1, 64] {
        let batches = bench.count(200_000, 640) / batch;
        let whole =
            median((0..3).map(|_| hand_over(bench, Some(resource), batches, batch)).collect());
        let alone = median((0..3).map(|_| hand_over(bench, None, batches, batch)).collect());
        nanoseconds(POOL, &format!("producer and consumer in batches of {batch}"), whole);
        // What the channel, the events and the waits cost without a pool.
        let workload = format!("producer and consumer in batches of {batch} without memory");
        nanoseconds("driver", &workload, alone);
    }
}

struct Batch {
    blocks: Vec<DeviceBlock>,
    ready: Event,
}

fn hand_over(
    bench: &Bench,
    resource: Option<&dyn DeviceResource>,
    batches: u32,
    batch: u32,
) -> f64 {
    let layout = must(aquifer::DeviceLayout::new(MIB as usize));
    let (producer, consumer): (&Stream, &Stream) = (&bench.streams()[0], &bench.streams()[1]);
    // At most 16 batches are under way, so at most 1 GiB. The emptied lists go back.
    let (full, filled) = bounded::<Batch>(16);
    let (empty, emptied) = bounded::<Vec<DeviceBlock>>(32);
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..batches {
                let mut blocks = emptied.try_recv().unwrap_or_default();
                if let Some(resource) = resource {
                    blocks.extend((0..batch).map(|_| must(resource.allocate(producer, layout))));
                }
                let ready = must(producer.record());
                if full.send(Batch { blocks, ready }).is_err() {
                    return;
                }
            }
        });
        scope.spawn(move || {
            for mut batch in filled {
                must(consumer.wait(&batch.ready));
                for block in batch.blocks.drain(..) {
                    if let Some(resource) = resource {
                        // SAFETY: of this resource, given back once; this stream has waited for
                        // the one that allocated it.
                        unsafe { resource.deallocate(consumer, block) };
                    }
                }
                // A full or closed channel only costs a list.
                let _ = empty.try_send(batch.blocks);
            }
        });
    });
    let time = start.elapsed().as_secs_f64() * 1e9 / f64::from(batches * batch);
    bench.synchronize();
    time
}
