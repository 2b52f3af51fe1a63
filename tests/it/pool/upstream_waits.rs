//! Upstreams that wait: for another thread, which needs the same pool, and for a stream.

use super::log::Log;
use super::{MIB, allocate};
use crate::support;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, PoolResource,
    Result, Stream,
    mr::CallbackResource,
    pinned::{HostBuffer, HostRead},
};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::time::Duration;
use support::free;
use tracing::Level;

type Pool = PoolResource<Arc<Waiting>>;

/// The driver's memory, for which a call waits, once, until another thread has used the pool above.
#[derive(Debug)]
struct Waiting {
    memory: CudaResource,
    pool: OnceLock<Weak<Pool>>,
    /// What the other thread does meanwhile.
    in_allocate: Mutex<Option<Body>>,
    in_deallocate: Mutex<Option<Body>>,
}

type Body = fn(&Pool, &Stream);

impl Waiting {
    fn wait_for(&self, once: &Mutex<Option<Body>>) {
        let Some(body) = once.lock().unwrap().take() else { return };
        let Some(pool) = self.pool.get().and_then(Weak::upgrade) else { return };
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let stream = pool.device().new_stream().unwrap();
                body(&pool, &stream);
            });
        });
    }
}

// SAFETY: every block is of the driver's memory, and goes back to it unchanged.
unsafe impl DeviceResource for Waiting {
    fn device(&self) -> &Device {
        self.memory.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.wait_for(&self.in_allocate);
        self.memory.allocate(stream, layout)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        self.wait_for(&self.in_deallocate);
        // SAFETY: the block is of the memory below; our caller vouches for the rest.
        unsafe { self.memory.deallocate(stream, block) }
    }
}

fn pool(maximum: Option<usize>) -> (Arc<Pool>, Stream) {
    let device = support::device();
    let upstream = Arc::new(Waiting {
        memory: CudaResource::new(&device),
        pool: OnceLock::new(),
        in_allocate: Mutex::default(),
        in_deallocate: Mutex::default(),
    });
    let options = PoolResource::builder(upstream.clone()).growth_step(2 * MIB);
    let options = maximum.into_iter().fold(options, |options, bytes| options.maximum_size(bytes));
    let pool = Arc::new(options.build().unwrap());
    upstream.pool.set(Arc::downgrade(&pool)).unwrap();
    (pool, device.new_stream().unwrap())
}

/// Fails where the body hangs.
fn ends<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(body()));
    receiver.recv_timeout(Duration::from_secs(60)).expect("it waits for itself")
}

fn grow_and_free(pool: &Pool, stream: &Stream) {
    grow_and_free_in(pool, stream);
}

fn grow_and_free_in(pool: &impl DeviceResource, stream: &Stream) {
    let block = allocate(pool, stream, 2 * MIB).unwrap();
    free(pool, stream, block);
}

#[test]
fn growth_waits_for_a_thread_that_grows_the_same_pool() {
    ends(|| {
        let (pool, stream) = pool(None);
        *pool.upstream().in_allocate.lock().unwrap() = Some(|pool, stream| {
            let ((), log) = Log::of(|| grow_and_free(pool, stream));
            assert_eq!(log.count(Level::WARN, "growth_lock"), 1, "{:?}", log.lines());
        });
        grow_and_free(&pool, &stream);
        assert_eq!(pool.statistics().growths, 2);
    });
}

#[test]
fn a_trim_waits_for_a_thread_that_needs_the_memory() {
    ends(|| {
        let (pool, stream) = pool(Some(4 * MIB));
        let blocks = [(); 2].map(|()| allocate(&*pool, &stream, 2 * MIB).unwrap());
        blocks.into_iter().for_each(|block| free(&*pool, &stream, block));
        *pool.upstream().in_deallocate.lock().unwrap() = Some(|pool, stream| {
            // A part of it may be on its way back to the driver.
            let ((), log) = Log::of(|| match allocate(pool, stream, 4 * MIB) {
                Ok(block) => free(pool, stream, block),
                Err(error) => assert_eq!(error.kind(), aquifer::ErrorKind::OutOfMemory),
            });
            assert_eq!(log.count(Level::WARN, "trim_lock"), 1, "{:?}", log.lines());
        });
        pool.wait_and_trim(0).unwrap();
        let block = allocate(&*pool, &stream, 4 * MIB).unwrap();
        free(&*pool, &stream, block);
    });
}

thread_local! {
    static IS_IN_UPSTREAM: Cell<bool> = const { Cell::new(false) };
}

/// A user's buffer, whose drop may ask for a lock that another user of the pool has.
struct Buffer {
    bytes: Vec<u8>,
    dropped: Arc<AtomicUsize>,
}

// SAFETY: the vector's elements, which stay where they are.
unsafe impl HostRead for Buffer {
    type Item = u8;

    fn parts(&mut self) -> (NonNull<u8>, usize) {
        (NonNull::from(&mut *self.bytes).cast(), self.bytes.len())
    }
}

// SAFETY: and writable.
unsafe impl HostBuffer for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        assert!(
            !IS_IN_UPSTREAM.get(),
            "a user's buffer was dropped in a call of a pool's upstream"
        );
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn an_upstream_that_waits_for_a_stream_drops_no_buffer_of_a_user() {
    let device = support::device();
    let (stream, waited) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let memory = CudaResource::new(&device);
    let from = memory.clone();
    // SAFETY: every block is of the driver's memory, and goes back to it unchanged.
    let upstream = unsafe {
        CallbackResource::new(
            &device,
            move |stream, layout| {
                IS_IN_UPSTREAM.set(true);
                waited.synchronize()?;
                waited.device().synchronize()?;
                IS_IN_UPSTREAM.set(false);
                from.allocate(stream, layout)
            },
            move |stream, block| memory.deallocate(stream, block),
        )
    };
    let pool = PoolResource::new(upstream).unwrap();
    let dropped = Arc::new(AtomicUsize::new(0));
    let buffer = Buffer { bytes: vec![0; 1000], dropped: dropped.clone() };
    drop(stream.upload(buffer, DeviceVec::zeroed(&stream, 1000).unwrap()).unwrap());
    grow_and_free_in(&pool, &stream);
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    stream.synchronize().unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}
