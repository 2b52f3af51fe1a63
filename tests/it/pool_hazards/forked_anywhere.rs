//! Forks in every place of a program, where threads keep blocks ready: the child gets none of them,
//! nothing that it drops hangs, and the parent loses nothing.

use super::fixture::{Fixture, Pool, UNIT, vec};
use super::support;
use allocator_api2::alloc::Allocator;
use aquifer::{
    Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, PoolResource, Result,
    Stream,
    mr::{ArenaResource, BinningResource, FixedSizeResource, ResourceId},
    pinned::{PinnedPool, PinnedResource},
};
use std::alloc::Layout;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::free;
use tracing::span;

/// Runs one test of this file in a process of its own.
fn alone(name: &str, body: impl FnOnce()) {
    if support::in_own_process(module_path!(), name) {
        body();
    }
}

/// What a child found wrong, if anything.
type Found = std::result::Result<(), String>;

/// Ends this process, which is the child of a fork, with what it found.
fn end(found: Found) -> ! {
    let code = match found {
        Ok(()) => 0,
        Err(wrong) => {
            // Another thread of the parent's may have held the lock of std's.
            // SAFETY: the text is there for the call.
            unsafe { libc::write(2, wrong.as_ptr().cast(), wrong.len()) };
            1
        }
    };
    // SAFETY: ends the child, and nothing of the parent's.
    unsafe { libc::_exit(code) }
}

/// Waits for a child.
fn ended_well(child: libc::pid_t) -> Found {
    let mut status = 0;
    // SAFETY: waits for a child of this process.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    match () {
        () if child <= 0 || waited != child => Err("no child".into()),
        () if status != 0 => Err(format!("a child ended with status {status:#x}")),
        () => Ok(()),
    }
}

/// Forks, and waits for the child, which does `body` and ends.
fn fork(body: impl FnOnce() -> Found) -> Found {
    // SAFETY: the child runs `body`, which is what it is about, and never returns.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends a child that hangs.
        unsafe { libc::alarm(20) };
        let body = std::panic::AssertUnwindSafe(body);
        end(std::panic::catch_unwind(body).unwrap_or_else(|_| Err("it panicked".into())));
    }
    ended_well(child)
}

fn refused<T>(what: &str, result: Result<T>) -> Found {
    match result {
        Err(error) if error.kind() == ErrorKind::Forked => Ok(()),
        Err(error) => Err(format!("{what}: {error}\n")),
        Ok(_) => Err(format!("{what}: the child got memory\n")),
    }
}

fn allocate(from: &impl DeviceResource, stream: &Stream, bytes: usize) -> Result<DeviceBlock> {
    from.allocate(stream, DeviceLayout::new(bytes).unwrap())
}

const SIZES: [usize; 3] = [256, 1000, UNIT];

/// A pool that is never short, so that it takes nothing from what its threads keep.
fn ample(fixture: &Fixture) -> Pool {
    fixture.options(512 * UNIT).initial_size(128 * UNIT).build().unwrap()
}

/// Something of every size is kept ready.
fn is_warm(pool: &Pool) {
    let found = pool.statistics();
    assert!(found.cached >= 256 + 1024 + UNIT, "{found:?}");
}

/// Until the thread keeps blocks of the sizes ready for the stream.
fn warm(pool: &impl DeviceResource, stream: &Stream) {
    for bytes in SIZES.repeat(4) {
        let blocks = [(); 2].map(|()| allocate(pool, stream, bytes).unwrap());
        blocks.into_iter().for_each(|block| free(pool, stream, block));
    }
}

/// Every size is refused, more often than blocks are kept.
fn all_refused(what: &str, pool: &impl DeviceResource, stream: &Stream) -> Found {
    SIZES.repeat(4).into_iter().try_for_each(|bytes| {
        refused(&format!("{bytes} bytes of {what}"), allocate(pool, stream, bytes))
    })
}

#[test]
fn every_resource_with_a_warm_way_refuses_what_the_thread_kept_ready() {
    alone("every_resource_with_a_warm_way_refuses_what_the_thread_kept_ready", || {
        let fixture = Fixture::new(0);
        let plain = || fixture.plain();
        let pinned = PinnedResource::new(&fixture.device).unwrap();
        let pool = fixture.options(1024 * UNIT).initial_size(1024 * UNIT).build().unwrap();
        let fixed = FixedSizeResource::builder(plain()).block_size(UNIT).initial_blocks(1024);
        let fixed = fixed.build().unwrap();
        let bins = BinningResource::builder(plain()).fixed_size_bins(8, 16).build().unwrap();
        let arena = ArenaResource::builder(plain()).arena_size(1024 * UNIT).build().unwrap();
        let kinds: [(&str, Arc<dyn DeviceResource>); 5] = [
            ("a pool", Arc::new(pool.clone())),
            ("fixed sizes", Arc::new(fixed.clone())),
            ("bins", Arc::new(bins)),
            ("an arena", Arc::new(arena.clone())),
            ("pinned memory", Arc::new(PinnedPool::new(pinned.clone()).unwrap())),
        ];
        // SAFETY: no device work uses its memory.
        let unfenced = unsafe { PinnedPool::builder(pinned).unfenced() }.build().unwrap();
        let layout = Layout::new::<[u64; 100]>();
        for _ in 0..8 {
            let block = Allocator::allocate(&unfenced, layout).unwrap();
            // SAFETY: allocated above, with this layout.
            unsafe { Allocator::deallocate(&unfenced, block.cast(), layout) };
        }
        // More than the table has ways, so that some were pushed out of it by others.
        let streams: Vec<_> = (0..20).map(|_| fixture.stream()).collect();
        // A new stream takes what others keep, which are then patient before they keep more.
        for _ in 0..12 {
            for (_, kind) in &kinds {
                streams.iter().for_each(|stream| warm(kind, stream));
            }
        }
        for (name, found) in [
            ("a pool", pool.statistics()),
            ("arena", arena.statistics()),
            ("fixed", fixed.statistics()),
        ] {
            assert!(found.cached > 20 * UNIT, "{name}: {found:?}");
        }
        for (name, kind) in &kinds {
            // Those of another may have their place in the table.
            streams.iter().for_each(|stream| warm(kind, stream));
            fork(|| streams.iter().try_for_each(|stream| all_refused(name, kind, stream))).unwrap();
        }
        fork(|| match Allocator::allocate(&unfenced, layout) {
            Ok(_) => Err("an unfenced pool gave memory\n".into()),
            Err(_) => Ok(()),
        })
        .unwrap();
        drop((kinds, pool, fixed, arena, unfenced, streams));
        fixture.clean();
    });
}

#[test]
fn a_thread_forks_that_never_used_the_pool() {
    alone("a_thread_forks_that_never_used_the_pool", || {
        let fixture = Fixture::new(0);
        let pool = ample(&fixture);
        let stream = fixture.stream();
        warm(&pool, &stream);
        is_warm(&pool);
        let held = vec(&pool, &stream, 1000, 1);
        std::thread::scope(|scope| {
            let child = || {
                fork(|| {
                    all_refused("the parent's pool", &pool, &stream)?;
                    // The thread that made it is not there.
                    drop(DeviceVec::<u8>::new(&stream).map_err(|error| error.to_string()));
                    refused("a vector", held.to_vec())
                })
            };
            scope.spawn(child).join().unwrap().unwrap();
        });
        drop(held);
        assert_eq!(pool.statistics().live_blocks, 0);
        drop(pool);
        fixture.all_is_back();
    });
}

#[test]
fn threads_fork_at_once_while_others_are_inside() {
    alone("threads_fork_at_once_while_others_are_inside", || {
        let fixture = Fixture::new(0);
        let pool = ample(&fixture);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Caught inside of their magazines, and in the middle of taking them.
            scope.spawn(|| {
                let stream = fixture.stream();
                while !stop.load(Ordering::Relaxed) {
                    warm(&pool, &stream);
                }
            });
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = (pool.wait_and_trim(0), pool.statistics());
                    std::thread::yield_now();
                }
            });
            let forks = || {
                let stream = fixture.stream();
                (0..15).try_for_each(|_| {
                    warm(&pool, &stream);
                    let held = vec(&pool, &stream, 1000, 1);
                    let block = allocate(&pool, &stream, 256).unwrap();
                    let copy = DeviceBlock::new(block.address(), block.bytes(), block.token());
                    let found = fork(|| {
                        free(&pool, &stream, copy);
                        all_refused("the pool", &pool, &stream)?;
                        drop(pool.clone());
                        let _ = (pool.statistics(), format!("{pool:?}"));
                        refused("a trim", pool.wait_and_trim(0))
                    });
                    free(&pool, &stream, block);
                    drop(held);
                    found
                })
            };
            let threads: [_; 3] = std::array::from_fn(|_| scope.spawn(forks));
            let found = threads.map(|thread| thread.join().unwrap());
            stop.store(true, Ordering::Relaxed);
            found.into_iter().for_each(|found| found.unwrap());
        });
        drop(pool);
        fixture.all_is_back();
    });
}

#[test]
fn a_child_has_threads_and_children_of_its_own() {
    alone("a_child_has_threads_and_children_of_its_own", || {
        let fixture = Fixture::new(0);
        let pool = ample(&fixture);
        let stream = fixture.stream();
        // Threads that are not there in the child, whose stacks and thread locals it uses again.
        let gate = std::sync::Barrier::new(5);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    warm(&pool, &fixture.stream());
                    gate.wait();
                    gate.wait();
                });
            }
            gate.wait();
            warm(&pool, &stream);
            is_warm(&pool);
            let found = fork(|| {
                for _ in 0..2 {
                    std::thread::scope(|scope| {
                        let here = || all_refused("a thread of the child's", &pool, &stream);
                        let threads: [_; 4] = std::array::from_fn(|_| scope.spawn(here));
                        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
                    })?;
                }
                fork(|| {
                    all_refused("a grandchild", &pool, &stream)?;
                    fork(|| all_refused("its child", &pool, &stream))
                })?;
                all_refused("after a grandchild", &pool, &stream)
            });
            gate.wait();
            found.unwrap();
        });
        drop(pool);
        fixture.all_is_back();
    });
}

#[test]
fn a_child_drops_all_that_the_parent_made_and_ends_by_itself() {
    alone("a_child_drops_all_that_the_parent_made_and_ends_by_itself", || {
        let fixture = Fixture::new(0);
        let pool = ample(&fixture);
        let stream = fixture.stream();
        warm(&pool, &stream);
        is_warm(&pool);
        let vecs: Vec<_> = SIZES.map(|bytes| vec(&pool, &stream, bytes, 1)).into();
        // SAFETY: the child does what follows, which is what it is about, and never returns.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends a child that hangs.
            unsafe { libc::alarm(20) };
            drop((vecs, pool, stream));
            drop(fixture);
            // SAFETY: ends the child with the destructors of this thread, whose magazines hold
            // blocks of a pool that is gone.
            unsafe { libc::exit(0) };
        }
        ended_well(child).unwrap();
        drop((vecs, pool));
        fixture.all_is_back();
    });
}

#[test]
fn a_process_forks_before_it_opens_a_device() {
    alone("a_process_forks_before_it_opens_a_device", || {
        let used = || {
            let fixture = Fixture::new(0);
            let pool = ample(&fixture);
            let stream = fixture.stream();
            warm(&pool, &stream);
            is_warm(&pool);
            fork(|| all_refused("a child's child", &pool, &stream))?;
            warm(&pool, &stream);
            drop(pool);
            fixture.all_is_back();
            Ok(())
        };
        // The child is a process like any other: nothing was opened before it was there.
        fork(used).unwrap();
        used().unwrap();
    });
}

/// Forks once, when it is asked to, in the middle of whatever calls it.
#[derive(Debug, Default)]
struct Fork {
    armed: AtomicBool,
}

thread_local! {
    /// In the parent, the child that the hook made; 0 in the child.
    static FORKED: Cell<Option<libc::pid_t>> = const { Cell::new(None) };
}

impl Fork {
    fn here(&self) {
        if self.armed.swap(false, Ordering::Relaxed) {
            // SAFETY: the child goes on as the parent does, and ends where the test says.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends a child that hangs.
                unsafe { libc::alarm(20) };
            }
            FORKED.set(Some(child));
        }
    }
}

/// Calls `body`, inside of which a hook forks; the child then does `after`, and ends.
fn forks_inside(hook: &Fork, body: impl FnOnce(), after: impl FnOnce() -> Found) {
    hook.armed.store(true, Ordering::Relaxed);
    let body = std::panic::AssertUnwindSafe(body);
    let ran = std::panic::catch_unwind(body);
    match FORKED.take() {
        Some(0) => end(ran.map_err(|_| "it panicked".into()).and_then(|()| after())),
        Some(child) => ended_well(child).unwrap(),
        None => panic!("the hook was not called"),
    }
    ran.unwrap();
}

/// A resource whose user forks where the pool asks of which device it is.
#[derive(Debug)]
struct Forking {
    under: Arc<dyn DeviceResource>,
    hook: Arc<Fork>,
}

// SAFETY: blocks are those of the resource below.
unsafe impl DeviceResource for Forking {
    fn device(&self) -> &Device {
        self.hook.here();
        self.under.device()
    }

    fn identity(&self) -> ResourceId {
        self.under.identity()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.under.allocate(stream, layout)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the caller's promise.
        unsafe { self.under.deallocate(stream, block) }
    }
}

/// The call goes on in the child, where it would note where the thread's blocks are.
#[test]
fn a_resource_forks_while_the_pool_looks_for_what_the_thread_keeps() {
    alone("a_resource_forks_while_the_pool_looks_for_what_the_thread_keeps", || {
        let fixture = Fixture::new(0);
        let hook = Arc::<Fork>::default();
        let upstream = Forking { under: fixture.plain(), hook: hook.clone() };
        let pool = PoolResource::builder(upstream).initial_size(512 * UNIT).build().unwrap();
        let (stream, new) = (fixture.stream(), fixture.stream());
        for _ in 0..12 {
            warm(&pool, &stream);
        }
        let found = pool.statistics();
        assert!(found.cached >= 256 + 1024 + UNIT, "{found:?}");
        forks_inside(
            &hook,
            // Whether the call itself is refused, hangs on when it asks the driver.
            || allocate(&pool, &new, 300).into_iter().for_each(|it| free(&pool, &new, it)),
            || all_refused("the pool", &pool, &stream),
        );
        warm(&pool, &stream);
        assert_eq!(pool.statistics().live_blocks, 0);
        drop(pool);
        fixture.all_is_back();
    });
}

/// A subscriber of `tracing` that forks at the next event.
struct Telling(Arc<Fork>);

impl tracing::Subscriber for Telling {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.here();
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_subscriber_forks_when_a_pool_tells_that_it_grew() {
    alone("a_subscriber_forks_when_a_pool_tells_that_it_grew", || {
        let fixture = Fixture::new(0);
        let hook = Arc::<Fork>::default();
        let pool: Pool = ample(&fixture);
        let stream = fixture.stream();
        warm(&pool, &stream);
        is_warm(&pool);
        tracing::subscriber::with_default(Telling(hook.clone()), || {
            forks_inside(
                &hook,
                || free(&pool, &stream, allocate(&pool, &stream, 200 * UNIT).unwrap()),
                || all_refused("the pool", &pool, &stream),
            );
        });
        warm(&pool, &stream);
        drop(pool);
        fixture.all_is_back();
    });
}
