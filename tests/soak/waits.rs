//! An upstream that takes its time: it sleeps, waits for the device, or waits for another thread, which uses the
//! pool above meanwhile.

use crate::counts::Tally;
use crate::player::Player;
use crate::random::Random;
use crate::shared::{Alive, Current, Failure, Shared, Step, lock, unexpected};
use aquifer::{
    DeviceLayout, DeviceResource, Error, ErrorKind, PoolResource, Stream,
    mr::CallbackResource,
    pinned::{HostBuffer, HostRead},
};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long upstream waits for another thread. That one may wait for the growth which upstream is called for, so it
/// is not waited for to its end.
const SHORT: Duration = Duration::from_millis(5);

/// A thread that waits for another one's growth goes on without it after a second. Once in a program that knows, it
/// is waited for.
const LONG: Duration = Duration::from_secs(8);

thread_local! {
    static IS_IN_UPSTREAM: Cell<bool> = const { Cell::new(false) };
    /// Upstream waits for this thread, which is not to wait in turn.
    static IS_AWAITED: Cell<bool> = const { Cell::new(false) };
}

/// What the calls of one program's upstream share.
pub(crate) struct Waits {
    on: AtomicBool,
    in_turns: bool,
    /// No driver call is made to fail.
    is_judged: bool,
    /// The next thread is waited for to its end.
    is_patient: AtomicBool,
    random: Mutex<Random>,
    pool: Arc<Current>,
    streams: Arc<Mutex<Vec<Stream>>>,
    others: Mutex<Vec<JoinHandle<()>>>,
    tally: Mutex<Tally>,
    failure: Mutex<Option<Failure>>,
}

impl Waits {
    pub(crate) fn new(shared: &Shared, in_turns: bool) -> Arc<Self> {
        Arc::new(Self {
            on: AtomicBool::new(true),
            in_turns,
            is_judged: !shared.setup.injects,
            is_patient: AtomicBool::new(shared.setup.is_patient),
            random: Mutex::new(Random::new(shared.seed, 97)),
            pool: shared.pool.clone(),
            streams: shared.streams.clone(),
            others: Mutex::default(),
            tally: Mutex::default(),
            failure: Mutex::default(),
        })
    }

    pub(crate) fn over(
        self: &Arc<Self>,
        upstream: Arc<dyn DeviceResource>,
    ) -> Arc<dyn DeviceResource> {
        let (device, from, waits) = (upstream.device().clone(), upstream.clone(), self.clone());
        let (to, also_waits) = (upstream, self.clone());
        // SAFETY: every block is the upstream's, and goes back to it unchanged.
        Arc::new(unsafe {
            CallbackResource::new(
                &device,
                move |stream, layout| {
                    waits.wait(stream, true);
                    let given = from.allocate(stream, layout);
                    waits.wait(stream, false);
                    given
                },
                move |stream, block| {
                    also_waits.wait(stream, false);
                    to.deallocate(stream, block);
                },
            )
        })
    }

    /// Whether a thread used the pool beside the operation that runs.
    pub(crate) fn has_company(&self) -> bool {
        !lock(&self.others).is_empty()
    }

    /// Waits for those that upstream did not wait for to their end.
    pub(crate) fn join(&self) {
        for other in std::mem::take(&mut *lock(&self.others)) {
            if other.join().is_err() {
                self.fail("a thread that upstream waits for panicked".into());
            }
        }
    }

    /// From now on upstream is a plain one. What became of its waits so far.
    pub(crate) fn stop(&self) -> Step<Tally> {
        self.on.store(false, Ordering::Relaxed);
        self.join();
        lock(&self.failure).take().map_or_else(|| Ok(lock(&self.tally).clone()), Err)
    }

    fn fail(&self, why: Failure) {
        lock(&self.failure).get_or_insert(why);
    }

    fn judge(&self, what: &str, error: &Error) {
        if self.is_judged {
            self.fail(format!("{what}: {:?}: {error}", error.kind()));
        }
    }

    fn count(&self, name: &'static str) {
        lock(&self.tally).add(name, 1);
    }

    /// Waits for something, now and then. No lock of the soak's is held over that.
    fn wait(&self, stream: &Stream, grows: bool) {
        if !self.on.load(Ordering::Relaxed) || IS_AWAITED.get() || IS_IN_UPSTREAM.get() {
            return;
        }
        let (what, duration) = {
            let mut random = lock(&self.random);
            let most = if self.in_turns && !random.one_in(8) { 100 } else { 2000 };
            (random.below(64), Duration::from_micros(random.below(most) as u64))
        };
        IS_IN_UPSTREAM.set(true);
        match what {
            _ if grows && self.is_patient.load(Ordering::Relaxed) => {
                self.wait_for_another(stream, LONG);
            }
            0..3 => {
                std::thread::sleep(duration);
                self.count("sleeps of upstream");
            }
            3..11 => {
                // Whoever has the streams may drop one, and with it memory.
                let picked = self.streams.try_lock().ok().and_then(|streams| {
                    let count = streams.len();
                    (count > 0).then(|| streams[lock(&self.random).below(count)].clone())
                });
                let waited = picked.map(|stream| stream.synchronize());
                if let Some(Err(error)) = waited {
                    self.judge("a wait of upstream for a stream", &error);
                }
                self.count("waits of upstream for a stream");
            }
            11..14 => {
                if let Err(error) = stream.device().synchronize() {
                    self.judge("a wait of upstream for the device", &error);
                }
                self.count("waits of upstream for the device");
            }
            14 => self.wait_for_another(stream, SHORT),
            _ => {}
        }
        IS_IN_UPSTREAM.set(false);
    }

    /// Waits until another thread has used the pool.
    fn wait_for_another(&self, stream: &Stream, patience: Duration) {
        let Some((pool, _)) = lock(&self.pool).clone() else { return };
        let (stream, (says_done, done)) = (stream.clone(), mpsc::channel());
        let found = pool.statistics();
        let mut random = Random::new(lock(&self.random).below(1 << 20) as u64, 96);
        // One byte more than lies free is what the pool has to grow for.
        let bytes = match patience == LONG {
            true => found.largest_free + 1,
            false => 1 + random.below(2 * found.largest_free + 4096),
        };
        let what = if patience == LONG { 0 } else { random.below(4) };
        let other = std::thread::spawn(move || {
            IS_AWAITED.set(true);
            let used = match what {
                0..3 => take_and_free(&pool, &stream, bytes),
                _ => pool.wait_and_trim(bytes).map(drop),
            };
            // Before the one that waits may let go of it.
            drop((pool, stream));
            let _ = says_done.send(used);
        });
        match done.recv_timeout(patience) {
            Ok(Err(error)) if error.kind() != ErrorKind::OutOfMemory => {
                self.judge("a thread that upstream waits for", &error);
            }
            Ok(_) => {}
            Err(_) if patience == LONG => {
                self.fail("another thread hangs while upstream waits for it".into());
            }
            Err(_) => self.count("threads that upstream left behind"),
        }
        if patience == LONG {
            self.is_patient.store(false, Ordering::Relaxed);
            self.count("long waits of upstream for a thread");
        }
        self.count("waits of upstream for a thread");
        lock(&self.others).push(other);
    }
}

fn take_and_free<U: DeviceResource + 'static>(
    pool: &PoolResource<U>,
    stream: &Stream,
    bytes: usize,
) -> aquifer::Result<()> {
    let block = pool.allocate(stream, DeviceLayout::new(bytes)?)?;
    // SAFETY: the block is the pool's, and no work uses it.
    unsafe { pool.deallocate(stream, block) };
    Ok(())
}

/// A user's buffer. Its drop may ask for what a user of the pool holds while upstream waits, so it must not run there.
struct Buffer {
    words: Vec<u32>,
    waits: Arc<Waits>,
    /// The vector goes with the buffer.
    _alive: Alive,
}

// SAFETY: the vector's elements, which stay where they are.
unsafe impl HostRead for Buffer {
    type Item = u32;

    fn parts(&mut self) -> (NonNull<u32>, usize) {
        (NonNull::from(&mut *self.words).cast(), self.words.len())
    }
}

// SAFETY: and writable.
unsafe impl HostBuffer for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        if IS_IN_UPSTREAM.get() {
            self.waits.fail("a user's buffer was dropped in a call of a pool's upstream".into());
        }
    }
}

impl Player<'_> {
    /// A copy from the host that nobody waits for: its buffer goes when the device has passed it.
    pub(crate) fn upload(&mut self) -> Step {
        let (Some(waits), Some(item)) = (self.shared.waits(), self.take()) else {
            return self.make();
        };
        let (vec, _alive) = item.into_parts();
        let words = vec![self.shared.tag(); vec.len()];
        let stream = vec.stream().clone();
        let transfer = stream.upload(Buffer { words, waits, _alive }, vec);
        drop(transfer.map_err(|error| unexpected("uploading")(error.error))?);
        self.shared.count("buffers left to the device");
        Ok(())
    }
}
