//! How a pool falls asleep and wakes, around the copies of what it holds.

use super::PoolResource;
use super::driver::PoolDriver;
use crate::driver::{DeviceRange, RawHandle, not_forked};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::pool::{Failure, MapFailure, MappedMemory, MappedPlace};
use crate::resource::asleep;
use crate::resource::device_resource::DeviceResource;
use crate::resource::mapped::VirtualMemory;
use crate::stream::{deferred, pass_all_gates};
use crate::sync::trusted::{AtomicUsize, Mutex, Ordering};
use crate::sync::{Condvar, WaitMutex};
use std::any::Any;
use std::collections::HashSet;

/// Wakes a pool, for an allocation.
pub(crate) type Waker<U> = fn(&PoolResource<U>) -> Result<()>;

/// The sleep of a pool.
pub(super) struct Sleep<U: DeviceResource + 'static> {
    state: WaitMutex<State>,
    /// One thread has the pool fall asleep or wake no more.
    changed: Condvar,
    waker: Mutex<Option<Waker<U>>>,
    /// The bytes that went back, for those that ask without the lock.
    bytes: AtomicUsize,
}

impl<U: DeviceResource + 'static> Default for Sleep<U> {
    fn default() -> Self {
        Self {
            state: WaitMutex::new(State::Awake),
            changed: Condvar::default(),
            waker: Mutex::default(),
            bytes: AtomicUsize::new(0),
        }
    }
}

/// Whether a pool sleeps, as those see it that change it.
enum State {
    Awake,
    Asleep(Asleep),
    /// A thread changes it, and has what it was.
    Changing,
}

/// The right to change whether a pool sleeps. Its drop says how it is then.
struct Change<'a, U: DeviceResource + 'static> {
    sleep: &'a Sleep<U>,
    asleep: Option<Asleep>,
}

impl<U: DeviceResource + 'static> Sleep<U> {
    /// Waits for a thread that changes it.
    fn change(&self) -> Change<'_, U> {
        let mut state = self.state.lock();
        loop {
            match std::mem::replace(&mut *state, State::Changing) {
                State::Awake => return Change { sleep: self, asleep: None },
                State::Asleep(asleep) => return Change { sleep: self, asleep: Some(asleep) },
                State::Changing => state = self.changed.wait(state),
            }
        }
    }
}

impl<U: DeviceResource + 'static> Drop for Change<'_, U> {
    fn drop(&mut self) {
        *self.sleep.state.lock() = self.asleep.take().map_or(State::Awake, State::Asleep);
        self.sleep.changed.notify_all();
    }
}

struct Asleep {
    /// The addresses at which nothing is mapped.
    places: HashSet<u64>,
    contents: Box<dyn Any + Send>,
}

/// What a pool that sleeps does not have of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SleepReport {
    /// Bytes of device memory that went back.
    pub bytes: usize,
    /// Of these, bytes in blocks that are in use, which are copied or dropped.
    pub used: usize,
}

impl<U: DeviceResource + 'static> PoolDriver<U> {
    /// The addresses of places that a pool has put aside, when it ends. It is not asleep any more.
    pub(super) fn end_sleep(&self, pool: u64) -> HashSet<u64> {
        let ended = self.sleep.change().asleep.take();
        let places = ended.map(|asleep| asleep.places).unwrap_or_default();
        if !places.is_empty() {
            asleep::unlist(pool);
        }
        places
    }

    /// The function that wakes the pool, if an allocation is to.
    pub(super) fn waker(&self) -> Option<Waker<U>> {
        *self.sleep.waker.lock()
    }
}

impl<U: DeviceResource + 'static> PoolResource<U> {
    /// Whether the pool sleeps: it has given the device's memory back and keeps its addresses.
    pub fn is_asleep(&self) -> bool {
        self.pool.is_asleep()
    }

    /// The error of what a pool that sleeps does not do.
    pub(super) fn asleep(&self) -> Error {
        asleep::error_of(self.device(), self.pool.id())
    }

    /// Waits for all work of the device, has `copy_out` copy what is in use, and gives all memory back.
    pub(crate) fn put_aside<C: Send + 'static>(
        &self,
        waker: Option<Waker<U>>,
        copy_out: impl FnOnce(&[MappedPlace]) -> Result<C>,
    ) -> Result<SleepReport> {
        not_forked("a pool")?;
        let Some(memory) = &self.pool.upstream().memory else { return Err(self.has_blocks()) };
        deferred::collect_all();
        let mut change = self.pool.upstream().sleep.change();
        let falling = FallingAsleep::begin(self, change.asleep.is_some())?;
        let places = self.pool.places();
        let contents = copy_out(&places)?;
        let (mut unmapped, mut bytes, mut used) = (HashSet::new(), 0, 0);
        for place in &places {
            // SAFETY: the pool moves and unmaps nothing while it sleeps, and the device is past all work.
            match unsafe { unmap(memory, place.address, place.bytes) } {
                Ok(()) => {}
                // Nothing has changed.
                Err(error) if unmapped.is_empty() => return Err(error),
                // What could not be unmapped stays as it is.
                Err(error) => {
                    crate::debug_log::event!(error, %error, "a part of a pool that falls asleep stays mapped");
                    continue;
                }
            }
            self.pool.upstream().release(place.handle, place.bytes);
            unmapped.insert(place.address);
            bytes += place.bytes;
            used += place.used.iter().map(|(_, bytes)| bytes).sum::<u64>();
        }
        falling.keep();
        let contents = Box::new(contents);
        change.asleep = Some(Asleep { places: unmapped, contents });
        // Relaxed: a number for people.
        self.pool.upstream().sleep.bytes.store(bytes as usize, Ordering::Relaxed);
        *self.pool.upstream().sleep.waker.lock() = waker;
        Ok(SleepReport { bytes: bytes as usize, used: used as usize })
    }

    /// Maps memory where it was, and has `copy_in` fill it from what `copy_out` has made. On an error the pool sleeps as
    /// before.
    pub(crate) fn bring_back<C: Send + 'static>(
        &self,
        copy_in: impl FnOnce(&mut C, &[MappedPlace]) -> Result<()>,
    ) -> Result<C> {
        not_forked("a pool")?;
        let mut change = self.pool.upstream().sleep.change();
        let memory = self.pool.upstream().memory.as_ref();
        let (Some(asleep), Some(memory)) = (change.asleep.as_mut(), memory) else {
            return Err(not_asleep(self));
        };
        let mut places = self.pool.places_to_wake();
        places.retain(|place| asleep.places.contains(&place.address));
        let Some(contents) = asleep.contents.downcast_mut::<C>() else {
            return Err(not_asleep(self));
        };
        let mapped = self.map_anew(memory, &places)?;
        copy_in(contents, &places)?;
        let Some(Asleep { contents, .. }) = change.asleep.take() else {
            return Err(not_asleep(self));
        };
        for (place, handle) in places.iter().zip(mapped.keep()) {
            self.pool.set_handle(place.address, handle);
        }
        *self.pool.upstream().sleep.waker.lock() = None;
        self.pool.upstream().sleep.bytes.store(0, Ordering::Relaxed);
        self.pool.end_sleep();
        asleep::unlist(self.pool.id());
        contents.downcast::<C>().map(|contents| *contents).map_err(|_| not_asleep(self))
    }

    /// The bytes that the device has back while the pool sleeps.
    pub(super) fn asleep_bytes(&self) -> usize {
        self.pool.upstream().sleep.bytes.load(Ordering::Relaxed)
    }

    /// New memory at these places. All of them or none.
    fn map_anew<'a>(
        &'a self,
        memory: &'a VirtualMemory,
        places: &[MappedPlace],
    ) -> Result<MappedAnew<'a, U>> {
        let mut anew = MappedAnew { pool: self, memory, made: Vec::new(), mapped: 0 };
        for place in places {
            match self.pool.upstream().create(place.bytes) {
                Ok(handle) => anew.made.push((place.address, place.bytes, handle)),
                Err(error) => {
                    let made: u64 = anew.made.iter().map(|it| it.1).sum();
                    let all: u64 = places.iter().map(|place| place.bytes).sum();
                    let (all, missing) = (Count(all, "byte"), Count(all - made, "byte"));
                    let what =
                        format!("waking a pool, which needs {all}, {missing} of them missing");
                    return Err(match error.kind() {
                        ErrorKind::OutOfMemory => error.within(what).with_advice(
                            "have another pool or program give memory back, and wake it again: it sleeps as before",
                        ),
                        _ => error.within(what),
                    });
                }
            }
        }
        for (number, &(address, bytes, handle)) in anew.made.clone().iter().enumerate() {
            let range = DeviceRange { address, bytes: bytes as usize };
            // SAFETY: addresses of the pool, at which nothing is mapped while it sleeps; a handle of their size.
            let mapped = unsafe { memory.map(range, RawHandle(handle)) };
            if let Err(MapFailure { error, is_mapped }) = mapped {
                anew.mapped = number + usize::from(is_mapped);
                return Err(Error::driver_call(
                    format!("mapping {} of a pool that wakes", Count(bytes, "byte")),
                    error,
                ));
            }
            anew.mapped = number + 1;
        }
        Ok(anew)
    }

    fn has_blocks(&self) -> Error {
        let name = self.upstream().identity().name();
        let message = format!(
            "a pool on {} cannot sleep, since it takes blocks of {name}, whose addresses go with their memory",
            self.device()
        );
        Error::new(ErrorKind::Unsupported, message).with_advice(
            "put the pool over VirtualResource, or build it with Handles::On: the stack is `pool(virtual)` or \
             `pool(cuda, handles=on)`, whose memory cuIpcGetMemHandle does not share",
        )
    }
}

fn not_asleep<U: DeviceResource + 'static>(pool: &PoolResource<U>) -> Error {
    let message = format!("a pool on {} was to wake, and does not sleep", pool.device());
    Error::new(ErrorKind::InvalidArgument, message).with_advice("call sleep before")
}

/// # Safety
///
/// It is mapped, and no work uses it.
unsafe fn unmap(memory: &VirtualMemory, address: u64, bytes: u64) -> Result<()> {
    let range = DeviceRange { address, bytes: bytes as usize };
    // SAFETY: the caller's promise.
    let unmapped = unsafe { memory.unmap(range) };
    memory.in_context(Count(bytes, "byte"), unmapped)
}

/// A pool that is about to sleep. Its drop has it stay awake.
struct FallingAsleep<'a, U: DeviceResource + 'static> {
    pool: &'a PoolResource<U>,
    stays: bool,
}

impl<'a, U: DeviceResource + 'static> FallingAsleep<'a, U> {
    /// Has nothing use the pool's memory from now on, and waits until nothing does.
    fn begin(pool: &'a PoolResource<U>, sleeps: bool) -> Result<Self> {
        let device = pool.device();
        if sleeps {
            let error = pool.asleep();
            return Err(error.with_advice("wake it before it sleeps again"));
        }
        pool.pool.begin_sleep().map_err(|failure| match failure {
            Failure::Captured => in_capture(pool),
            failure => pool.explain(failure, super::Asked::Trim),
        })?;
        let falling = Self { pool, stays: true };
        let ranges = pool.pool.reservations();
        asleep::list(device, pool.pool.id(), ranges.clone());
        for device in device.sharing_host_memory() {
            pass_all_gates(&device)?;
            // A capture of another library is found here.
            device.synchronize_without_drops()?;
        }
        let kept = asleep::reason_to_stay_awake(device, &ranges);
        ensure!(
            kept.is_none(),
            InvalidArgument,
            "end that first",
            "a pool on {device} cannot sleep: its memory {}",
            kept.unwrap_or_default()
        );
        Ok(falling)
    }

    /// It sleeps.
    fn keep(mut self) {
        self.stays = false;
    }
}

impl<U: DeviceResource + 'static> Drop for FallingAsleep<'_, U> {
    fn drop(&mut self) {
        if self.stays {
            self.pool.pool.end_sleep();
            asleep::unlist(self.pool.pool.id());
        }
    }
}

fn in_capture<U: DeviceResource + 'static>(pool: &PoolResource<U>) -> Error {
    let message = format!("a pool on {} cannot sleep while a capture uses it", pool.device());
    Error::new(ErrorKind::Capture, message)
        .with_advice("let it sleep before the capture or after it")
}

/// Memory of a pool that wakes. Its drop gives all of it back.
struct MappedAnew<'a, U: DeviceResource + 'static> {
    pool: &'a PoolResource<U>,
    memory: &'a VirtualMemory,
    /// Addresses, bytes and handles.
    made: Vec<(u64, u64, u64)>,
    /// How many of these are mapped.
    mapped: usize,
}

impl<U: DeviceResource + 'static> MappedAnew<'_, U> {
    /// The handles, which stay mapped.
    fn keep(mut self) -> Vec<u64> {
        std::mem::take(&mut self.made).into_iter().map(|(_, _, handle)| handle).collect()
    }
}

impl<U: DeviceResource + 'static> Drop for MappedAnew<'_, U> {
    fn drop(&mut self) {
        let made = std::mem::take(&mut self.made);
        if made.is_empty() {
            return;
        }
        // Copies to it may be under way.
        let _ = self.pool.device().synchronize_without_drops();
        for (number, (address, bytes, handle)) in made.into_iter().enumerate() {
            if number < self.mapped {
                // SAFETY: mapped for the sleep alone, and the device is past all work.
                if let Err(error) = unsafe { unmap(self.memory, address, bytes) } {
                    crate::debug_log::event!(error, %error, "a part of a pool that did not wake stays mapped");
                    continue;
                }
            }
            self.pool.pool.upstream().release(handle, bytes);
        }
    }
}
