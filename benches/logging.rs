//! What a log costs an allocation or a free: hot pairs of a pool on the simulated device, with and
//! without a log.
//!
//! Bursts fit in the queue: that is the hot path alone. Without a pause the thread that writes has to
//! keep up, and the processor that runs it counts.

use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceLayout, DeviceResource, PoolResource, Stream,
    mr::{LogFormat, LoggingAdaptor},
};
use std::time::{Duration, Instant};

const BURST: usize = 10_000;
const BURSTS: usize = 60;
const SUSTAINED: usize = 2_000_000;

/// Nanoseconds of one operation, a pair being two.
fn pairs(resource: &impl DeviceResource, stream: &Stream, pairs: usize) -> f64 {
    let layout = DeviceLayout::new(1024).expect("a small layout");
    let begin = Instant::now();
    for _ in 0..pairs {
        let block = resource.allocate(stream, layout).expect("room for a block");
        // SAFETY: allocated above on this stream; nothing uses it.
        unsafe { resource.deallocate(stream, std::hint::black_box(block)) };
    }
    begin.elapsed().as_nanos() as f64 / (2 * pairs) as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn bursts(resource: &impl DeviceResource, stream: &Stream, settle: impl Fn()) -> f64 {
    let burst = |_| {
        settle();
        // Time for the writer to fall asleep.
        std::thread::sleep(Duration::from_millis(2));
        pairs(resource, stream, BURST)
    };
    median((0..BURSTS).map(burst).collect())
}

fn main() {
    let device = Device::simulated(SimConfig::default().without_pool_checks());
    let stream = device.new_stream().expect("a stream");
    let pool = PoolResource::new(CudaResource::new(&device)).expect("a pool");
    pairs(&pool, &stream, SUSTAINED);
    let plain = bursts(&pool, &stream, || {});
    println!("plain pool: {plain:.1} ns an operation");
    for format in [LogFormat::Rmm, LogFormat::Events] {
        let path = std::env::temp_dir().join(format!("aquifer-bench-{}.csv", std::process::id()));
        let logged = LoggingAdaptor::builder(pool.clone())
            .path(&path)
            .format(format)
            .build()
            .expect("a log");
        pairs(&logged, &stream, BURST);
        let settle = || logged.flush().expect("a log that is written");
        let burst = bursts(&logged, &stream, settle) - plain;
        settle();
        let sustained = pairs(&logged, &stream, SUSTAINED) - plain;
        drop(logged);
        let rows = std::fs::read_to_string(&path).expect("the log").lines().count();
        let _ = std::fs::remove_file(&path);
        println!(
            "{format:?}: {burst:.1} ns an operation more in bursts, {sustained:.1} ns sustained; \
             {rows} rows"
        );
    }
}
