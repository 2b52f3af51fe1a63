//! The addresses of pools that sleep, where nothing is mapped, and of memory that has to stay where it is.
//!
//! A use asks inside of its stream's gate. A pool that falls asleep lists its addresses first and passes all gates then.
//! So a use either finds the list, or has given the device its work by the time that the pool waits for the device.

use crate::device::Device;
use crate::driver::{BackendKind, DeviceRange, is_forked_child};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::sync::Weak;
use crate::sync::trusted::{AtomicUsize, Backoff, Mutex, Ordering};
use std::time::{Duration, Instant};

type DeviceKey = (BackendKind, u64);

/// The pools that sleep, or are about to. With none, a use pays one load.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static ASLEEP: Mutex<Vec<Asleep>> = Mutex::new(Vec::new());
static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());
/// Of those, the ones that stay until their memory is unmapped.
static EXPORTS: AtomicUsize = AtomicUsize::new(0);
static COLLECTIVES: Mutex<Vec<(DeviceKey, Weak<dyn Collectives>)>> = Mutex::new(Vec::new());
/// How long a pool that falls asleep asks for collectives that are about to be complete.
const BRIEFLY: Duration = Duration::from_millis(2);

/// The addresses of one pool.
#[derive(Debug)]
struct Asleep {
    device: Device,
    pool: u64,
    ranges: Vec<(u64, u64)>,
    since: Instant,
}

#[derive(Debug)]
struct Kept {
    device: DeviceKey,
    address: u64,
    bytes: u64,
    why: &'static str,
    is_export: bool,
}

/// While it lives, uses of a pool's memory are refused. So an end of the pool by any way takes it off the list.
#[derive(Debug)]
#[must_use]
pub(super) struct Listed {
    pool: u64,
}

impl Listed {
    /// Lists the addresses of a pool: addresses and bytes. Uses that begin from now on are refused.
    pub(super) fn new(device: &Device, pool: u64, ranges: Vec<(u64, u64)>) -> Self {
        ASLEEP.lock().push(Asleep { device: device.clone(), pool, ranges, since: Instant::now() });
        // Relaxed: the gates order it.
        COUNT.fetch_add(1, Ordering::Relaxed);
        Self { pool }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        // The lock may be one that a thread of the parent had.
        if is_forked_child() {
            return;
        }
        let ended = {
            let mut asleep = ASLEEP.lock();
            let at = asleep.iter().position(|other| other.pool == self.pool);
            at.map(|at| asleep.swap_remove(at))
        };
        if ended.is_some() {
            COUNT.fetch_sub(1, Ordering::Relaxed);
        }
        // Not under the lock: the last handle of a device makes calls.
        drop(ended);
    }
}

/// Whether uses pay for a look at the list.
#[doc(hidden)]
pub fn any_asleep() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// The error of a use of memory at an address, if its pool sleeps. No two devices have one address.
#[inline]
pub fn require_awake(address: u64) -> Result<()> {
    // Relaxed: the gates order it.
    if COUNT.load(Ordering::Relaxed) == 0 { Ok(()) } else { require_unlisted(address) }
}

#[cold]
fn require_unlisted(address: u64) -> Result<()> {
    let holds = |ranges: &[(u64, u64)]| {
        ranges.iter().any(|(start, bytes)| address.wrapping_sub(*start) < *bytes)
    };
    let asleep = ASLEEP.lock();
    let found = asleep.iter().find(|it| holds(&it.ranges));
    found.map_or(Ok(()), |it| Err(error_since(&it.device, it.since)))
}

/// The error of what needs a pool that sleeps.
pub(super) fn error_of(device: &Device, pool: u64) -> Error {
    let found = ASLEEP.lock().iter().find(|it| it.pool == pool).map(|it| it.since);
    // One that has woken meanwhile was asleep.
    error_since(device, found.unwrap_or_else(Instant::now))
}

fn error_since(device: &Device, since: Instant) -> Error {
    let seconds = since.elapsed().as_secs();
    let message = format!("the pool of this memory of {device} has been asleep for {seconds} s");
    Error::new(ErrorKind::Asleep, message).with_advice("call its wake first")
}

/// While it lives, the pool of some memory does not sleep: another process, or a library, knows it by its handle.
#[derive(Debug)]
#[must_use]
pub struct KeptAwake {
    device: DeviceKey,
    address: u64,
}

impl KeptAwake {
    /// Keeps the pool of `bytes` at an address awake. `why` ends the sentence "the memory ...".
    pub fn new(device: &Device, address: u64, bytes: usize, why: &'static str) -> Self {
        let (device, bytes) = (device.key(), bytes as u64);
        KEPT.lock().push(Kept { device, address, bytes, why, is_export: false });
        Self { device, address }
    }
}

impl Drop for KeptAwake {
    fn drop(&mut self) {
        // The lock may be one that a thread of the parent had.
        if is_forked_child() {
            return;
        }
        let mut kept = KEPT.lock();
        let is_this =
            |it: &Kept| !it.is_export && (it.device, it.address) == (self.device, self.address);
        if let Some(at) = kept.iter().position(is_this) {
            kept.swap_remove(at);
        }
    }
}

/// Notes that another process has the memory that is mapped to a range. Its pool does not sleep until that is unmapped: the
/// device would not get it back, and the two would no longer share it.
pub fn note_export(device: &Device, range: DeviceRange) {
    let (device, address, bytes) = (device.key(), range.address, range.bytes as u64);
    let why = "was sent to another process";
    let mut kept = KEPT.lock();
    let is_this =
        |it: &Kept| it.is_export && (it.device, it.address, it.bytes) == (device, address, bytes);
    // One entry, however often it is sent.
    if kept.iter().any(is_this) {
        return;
    }
    kept.push(Kept { device, address, bytes, why, is_export: true });
    // Relaxed: it is read by who unmaps the memory, after this.
    EXPORTS.fetch_add(1, Ordering::Relaxed);
}

/// Memory is unmapped, which other processes may have still.
pub(super) fn note_unmapped(device: &Device, range: DeviceRange) {
    if EXPORTS.load(Ordering::Relaxed) == 0 {
        return;
    }
    let key = device.key();
    let is_over = |it: &Kept| {
        it.is_export
            && it.device == key
            && it.address.wrapping_sub(range.address) < range.bytes as u64
    };
    let mut kept = KEPT.lock();
    let before = kept.len();
    kept.retain(|it| !is_over(it));
    EXPORTS.fetch_sub(before - kept.len(), Ordering::Relaxed);
}

/// Why a pool with these addresses has to stay awake, if it has.
pub(super) fn reason_to_stay_awake(device: &Device, ranges: &[(u64, u64)]) -> Option<&'static str> {
    let key = device.key();
    let overlaps = |it: &Kept| {
        ranges.iter().any(|(start, bytes)| {
            it.address < start.saturating_add(*bytes)
                && *start < it.address.saturating_add(it.bytes)
        })
    };
    KEPT.lock().iter().find(|it| it.device == key && overlaps(it)).map(|it| it.why)
}

/// The collectives of one communicator on a device. One whose other ranks do not come is never complete, so no pool waits for
/// it.
pub trait Collectives: Send + Sync {
    /// Whether the device may not be past one, or what its stream was given behind it. The caller has no lock and is inside
    /// of no gate.
    fn are_under_way(&self) -> bool;
}

/// Has pools of a device not fall asleep beside these collectives.
pub fn watch_collectives(device: &Device, collectives: Weak<dyn Collectives>) {
    let mut watched = COLLECTIVES.lock();
    watched.retain(|(_, other)| other.strong_count() > 0);
    watched.push((device.key(), collectives));
}

/// An error if a collective of one of these devices is under way, and its stream has not passed it in a moment.
pub(super) fn require_no_collective(devices: &[Device]) -> Result<()> {
    let has_device = |key: &DeviceKey| devices.iter().any(|device| device.key() == *key);
    let watched: Vec<_> = {
        let watched = COLLECTIVES.lock();
        let own = watched.iter().filter(|(key, _)| has_device(key));
        own.filter_map(|(_, collectives)| collectives.upgrade()).collect()
    };
    let (begun, backoff) = (Instant::now(), Backoff::new());
    while watched.iter().any(|collectives| collectives.are_under_way()) {
        ensure!(
            begun.elapsed() < BRIEFLY,
            InvalidArgument,
            "wait for its communicators first",
            "a pool cannot fall asleep while the stream of a communicator is at work, in which other ranks may be missing"
        );
        backoff.snooze();
    }
    Ok(())
}
