//! What a thread waits while another one trims behind a long kernel. Microseconds would be right for
//! these; the rows are nanoseconds, as all times are.

use crate::kernels::delay;
use crate::rows::{MIB, POOL, nanoseconds};
use crate::subject::{Bench, Plain, must};
use aquifer::{DeviceLayout, DeviceResource, PoolResource, Stream, mr::VirtualResource};
use std::time::{Duration, Instant};

const KERNEL: Duration = Duration::from_millis(400);

/// From the trim's begin on, until it waits for the device.
const HEAD_START: Duration = Duration::from_millis(40);

fn take_and_free(pool: &Plain, stream: &Stream, bytes: usize) {
    let block = must(pool.allocate(stream, must(DeviceLayout::new(bytes))));
    // SAFETY: of this pool, given back once, and used by no work.
    unsafe { pool.deallocate(stream, block) };
}

/// A pool of mapped memory gives back what one stream freed, while a kernel of another one runs.
fn trim_beside_a_kernel(bench: &Bench) {
    let Ok(upstream) = VirtualResource::new(&bench.device) else { return };
    let pool = must(PoolResource::new(upstream));
    let (busy, other) = (&bench.streams()[0], &bench.streams()[1]);
    let before = must(bench.device.memory_info()).free;
    let bytes = if bench.quick { MIB } else { 512 * MIB } as usize;
    let blocks: Vec<_> =
        (0..8).map(|_| must(pool.allocate(other, must(DeviceLayout::new(bytes))))).collect();
    bench.synchronize();
    delay(busy, if bench.quick { Duration::from_millis(1) } else { KERNEL }.as_nanos() as u64);
    let end = must(busy.record());
    // SAFETY: of this pool, each given back once, and used by no work.
    blocks.into_iter().for_each(|block| unsafe { pool.deallocate(other, block) });
    let start = Instant::now();
    let given = must(pool.trim(0));
    let took = start.elapsed();
    let beside = if must(end.is_complete()) { ", and the kernel had ended" } else { "" };
    let missing = before.saturating_sub(must(bench.device.memory_info()).free);
    println!(
        "# trim: {} MiB went back, {} MiB of the device missing{beside}",
        given >> 20,
        missing >> 20
    );
    nanoseconds(POOL, "trim of 4 GiB beside a kernel", took.as_secs_f64() * 1e9);
    bench.synchronize();
}

pub(crate) fn stalls(bench: &Bench) {
    trim_beside_a_kernel(bench);
    type Call = fn(&Bench, &Plain, &Stream);
    let calls: [(&str, Call); 3] = [
        ("a first small allocation", |_, pool, stream| take_and_free(pool, stream, 768)),
        ("statistics", |_, pool, _| {
            let _ = pool.statistics();
        }),
        ("a new stream's first 256 bytes", |bench, pool, _| {
            take_and_free(pool, &bench.stream(), 256);
        }),
    ];
    for (what, call) in calls {
        let pool = bench.pool_of(0);
        let (busy, other) = (&bench.streams()[0], &bench.streams()[1]);
        for stream in [busy, other] {
            take_and_free(&pool, stream, 16 * MIB as usize);
        }
        take_and_free(&pool, other, 4096);
        bench.synchronize();
        let block = must(pool.allocate(busy, must(DeviceLayout::new(64 * MIB as usize))));
        let kernel = if bench.quick { Duration::from_millis(1) } else { KERNEL };
        delay(busy, kernel.as_nanos() as u64);
        // SAFETY: of this pool, given back once; the kernel, which touches nothing, is before.
        unsafe { pool.deallocate(busy, block) };
        let (took, trimmed) = std::thread::scope(|scope| {
            let trim = scope.spawn(|| {
                let start = Instant::now();
                must(pool.wait_and_trim(0));
                start.elapsed()
            });
            std::thread::sleep(if bench.quick { Duration::ZERO } else { HEAD_START });
            let start = Instant::now();
            call(bench, &pool, other);
            (start.elapsed(), trim.join().unwrap_or_default())
        });
        nanoseconds(POOL, &format!("{what} beside a trim"), took.as_secs_f64() * 1e9);
        nanoseconds(POOL, &format!("{what} beside a trim: the trim"), trimmed.as_secs_f64() * 1e9);
        bench.synchronize();
    }
}
