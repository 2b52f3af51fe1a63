//! A block that is freed twice is told when the pool's locks are released, on every way on which a pool
//! notices it: the subscriber here does with the pool whatever it likes.

use crate::{MIB, give, hurry, is_child, is_in, support, take};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, PoolResource, Stream,
    mr::CallbackResource,
    pinned::{PinnedPool, PinnedResource},
};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

type Pool = PoolResource<Arc<dyn DeviceResource>>;

/// What the subscriber uses.
static POOL: OnceLock<(Pool, [Stream; 2])> = OnceLock::new();

/// Blocks of [`BYTES`] that the subscriber keeps, one for each time that it was called.
static KEPT: Mutex<Vec<DeviceBlock>> = Mutex::new(Vec::new());

const BYTES: usize = 1024;

struct Uses;

impl<S: Subscriber> Layer<S> for Uses {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() != Level::ERROR {
            return;
        }
        // What a log file of the pools' events has.
        assert!(event.metadata().target().starts_with("aquifer::"), "{:?}", event.metadata());
        let (pool, streams) = POOL.get().unwrap();
        KEPT.lock().unwrap().push(take(pool, &streams[0], BYTES));
        for stream in streams {
            for bytes in [256, 3 * MIB, 256 * MIB] {
                if let Ok(block) = pool.allocate(stream, DeviceLayout::new(bytes).unwrap()) {
                    give(pool, stream, block);
                }
            }
        }
        let new = pool.device().new_stream().unwrap();
        give(pool, &new, take(pool, &new, 256));
        let _ = pool.wait_and_trim(0);
        assert!(pool.statistics().reserved <= 64 * MIB);
    }
}

fn copy(of: &DeviceBlock) -> DeviceBlock {
    DeviceBlock::new(of.address(), of.bytes(), of.token())
}

/// Frees a block twice in a row.
fn twice(pool: &Pool, stream: &Stream, block: DeviceBlock) {
    let again = copy(&block);
    give(pool, stream, block);
    give(pool, stream, again);
}

/// Has the calling thread keep a block ready for the stream that the pool counts as free, and above it
/// one that is right. Neighbours of it stay in use, so that nothing merges with it.
fn keep_freed_twice(pool: &Pool, stream: &Stream) {
    let mut blocks: Vec<_> = (0..5).map(|_| take(pool, stream, BYTES)).collect();
    let freed_twice = blocks.remove(2);
    // There is room for two blocks of a size.
    for block in [&blocks[0], &blocks[3]] {
        give(pool, stream, copy(block));
    }
    give(pool, stream, copy(&freed_twice));
    let ready = [take(pool, stream, BYTES), take(pool, stream, BYTES)];
    assert!(ready.iter().all(|block| block.address() != freed_twice.address()));
    give(pool, stream, freed_twice);
    let [one, _] = ready;
    give(pool, stream, one);
    assert_eq!(pool.statistics().cached, 2 * BYTES, "the test is about this");
}

/// A size that takes the place of [`BYTES`] where a thread keeps blocks ready.
fn rival() -> usize {
    let place = |bytes: usize| ((bytes / 256) as u32).wrapping_mul(0x9E37_79B1) >> 26;
    (5..).map(|units| units * 256).find(|bytes| place(*bytes) == place(BYTES)).unwrap()
}

type Way = (&'static str, fn(&Pool, &[Stream; 2]));

const WAYS: [Way; 12] = [
    ("kept ready", |pool, [own, _]| {
        let blocks = [(); 3].map(|()| take(pool, own, BYTES));
        blocks.into_iter().take(1).for_each(|block| twice(pool, own, block));
    }),
    ("at home", |pool, [own, _]| twice(pool, own, take(pool, own, MIB))),
    ("on its way home", |pool, [own, other]| {
        twice(pool, other, take(pool, own, BYTES));
        give(pool, own, take(pool, own, 2 * BYTES));
    }),
    ("on its way home, counted", |pool, [own, other]| {
        twice(pool, other, take(pool, own, BYTES));
        let _ = pool.statistics();
    }),
    ("in a capture", |pool, [own, _]| {
        let block = take(pool, own, BYTES);
        own.capture(pool, |own| {
            twice(pool, own, copy(&block));
            Ok(())
        })
        .unwrap();
    }),
    ("of a graph", |pool, [own, _]| {
        let (_graph, block) = own.capture(pool, |own| Ok(take(pool, own, BYTES))).unwrap();
        twice(pool, own, block);
    }),
    ("of a graph that is gone", |pool, [own, _]| {
        let (graph, block) = own.capture(pool, |own| Ok(take(pool, own, BYTES))).unwrap();
        give(pool, own, copy(&block));
        drop(graph);
        give(pool, own, block);
    }),
    ("as a graph goes", |pool, [own, _]| {
        let block = take(pool, own, BYTES);
        let fence = take(pool, own, BYTES);
        give(pool, own, copy(&block));
        let record = |own: &Stream| {
            give(pool, own, block);
            Ok(())
        };
        drop(own.capture(pool, record).unwrap());
        give(pool, own, fence);
    }),
    ("as a size makes room", |pool, [own, _]| {
        keep_freed_twice(pool, own);
        for _ in 0..2 {
            let _in_use = take(pool, own, rival());
        }
    }),
    ("as its thread ends", |pool, [own, _]| {
        std::thread::scope(|scope| {
            scope.spawn(|| keep_freed_twice(pool, own)).join().unwrap();
        });
    }),
    ("as its stream ends", |pool, _| {
        let short = pool.device().new_stream().unwrap();
        keep_freed_twice(pool, &short);
        drop(short);
        let new = pool.device().new_stream().unwrap();
        give(pool, &new, take(pool, &new, 256));
    }),
    ("as a capture begins", |pool, [own, _]| {
        keep_freed_twice(pool, own);
        own.capture(pool, |_| Ok(())).unwrap();
    }),
];

const CHILD: &str = "AQUIFER_TEST_FREED_TWICE";

/// Runs a test of this file in a process of its own for one of its ways.
fn run(name: &str, way: &str) -> Result<(), String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env("AQUIFER_TEST_DEBUG_LOG_CHILD", "1")
        .env(CHILD, way)
        .output()
        .unwrap();
    let passed = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    if output.status.success() && passed { Ok(()) } else { Err(format!("{way}: {output:?}")) }
}

/// From here on, the subscriber of the whole process uses the pool.
fn listen(pool: &Pool, streams: &[Stream; 2]) {
    POOL.set((pool.clone(), streams.clone())).unwrap();
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Uses)).unwrap();
}

#[test]
fn a_subscriber_may_allocate_where_a_block_is_freed_twice() {
    if !is_child() {
        let name = "double_frees::a_subscriber_may_allocate_where_a_block_is_freed_twice";
        let failed: Vec<_> = WAYS.iter().filter_map(|(way, _)| run(name, way).err()).collect();
        assert!(failed.is_empty(), "{}", failed.join("\n"));
        return;
    }
    hurry();
    let way = std::env::var(CHILD).unwrap();
    let device = support::unfollowed();
    let streams = [device.new_stream().unwrap(), device.new_stream().unwrap()];
    let upstream: Arc<dyn DeviceResource> = Arc::new(CudaResource::new(&device));
    let pool = PoolResource::builder(upstream)
        .growth_step(MIB)
        .maximum_size(64 * MIB)
        .magazine_entries(2)
        .build()
        .unwrap();
    listen(&pool, &streams);
    let (_, body) = WAYS.iter().find(|(name, _)| *name == way).unwrap();
    body(&pool, &streams);
    let mut kept = std::mem::take(&mut *KEPT.lock().unwrap());
    assert_eq!(kept.is_empty(), !is_in(Level::ERROR), "how often it was told");
    // What the subscriber has is nobody else's.
    kept.extend((0..20).map(|_| take(&pool, &streams[0], BYTES)));
    let mut starts: Vec<u64> = kept.iter().map(DeviceBlock::address).collect();
    starts.sort_unstable();
    assert!(starts.windows(2).all(|two| two[0] + BYTES as u64 <= two[1]), "{starts:x?}");
}

/// A pool whose upstream gives other pools blocks twice, while the upper one has its locks.
#[test]
fn a_subscriber_may_allocate_where_pools_below_notice() {
    if !is_child() {
        run("double_frees::a_subscriber_may_allocate_where_pools_below_notice", "").unwrap();
        return;
    }
    hurry();
    // A device that follows pools would notice first.
    let device = Device::simulated(SimConfig::default().without_pool_checks());
    let streams = [device.new_stream().unwrap(), device.new_stream().unwrap()];
    let lower = PoolResource::builder(CudaResource::new(&device)).growth_step(MIB).build().unwrap();
    let other = PoolResource::new(CudaResource::new(&device)).unwrap();
    let pinned = PinnedPool::new(PinnedResource::new(&device).unwrap()).unwrap();
    let from = lower.clone();
    let allocate = move |stream: &Stream, layout| from.allocate(stream, layout);
    let deallocate = move |stream: &Stream, block: DeviceBlock| {
        give(&other, stream, copy(&block));
        give(&lower, stream, copy(&block));
        give(&lower, stream, block);
        // It is on its way home, and noticed when its heap is looked at.
        let _ = lower.statistics();
        let on_host = take(&pinned, stream, 4096);
        give(&pinned, stream, copy(&on_host));
        give(&pinned, stream, on_host);
        pinned.trim().unwrap();
    };
    // SAFETY: the blocks are a pool's; that they go back more than once harms nobody, as it notices.
    let careless = unsafe { CallbackResource::new(&device, allocate, deallocate) };
    let careless: Arc<dyn DeviceResource> = Arc::new(careless);
    let pool = PoolResource::builder(careless).growth_step(MIB).maximum_size(64 * MIB).build();
    let pool = pool.unwrap();
    listen(&pool, &streams);
    give(&pool, &streams[0], take(&pool, &streams[0], MIB));
    pool.wait_and_trim(0).unwrap();
    let told = KEPT.lock().unwrap().len();
    assert_eq!(told, if is_in(Level::ERROR) { 3 } else { 0 }, "what each of them noticed");
}
