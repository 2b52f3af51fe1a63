//! How a pool falls asleep and wakes, around the copies of what it holds.

use super::PoolResource;
use super::sleeping::{Asleep, Change, Waker};
use crate::driver::{DeviceRange, RawHandle, not_forked};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::pool::{Failure, MappedMemory, MappedPlace};
use crate::resource::asleep;
use crate::resource::device_resource::DeviceResource;
use crate::resource::mapped::VirtualMemory;
use crate::stream::{deferred, pass_all_gates};
use crate::sync::Arc;
use std::collections::HashSet;

/// What a pool that sleeps does not have of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SleepReport {
    /// Bytes of device memory that went back.
    pub bytes: usize,
    /// Of these, bytes in blocks that are in use, which are copied or dropped.
    pub used: usize,
}

/// What a pool holds, which is copied out and in. The groups of [`put_aside`](PoolResource::put_aside) come in order.
pub(crate) trait Contents: Send + 'static {
    /// Waits until the group of a number is copied out.
    fn wait_out(&mut self, group: usize) -> Result<()>;

    /// Begins, or begins anew, to copy in.
    fn begin_in(&mut self) -> Result<()>;

    /// Begins to copy to these places, which are mapped.
    fn copy_in(&mut self, group: &[MappedPlace]) -> Result<()>;

    /// Waits until all is copied in.
    fn wait_in(&mut self) -> Result<()>;
}

/// Groups of places are so many, and so large at least.
const GROUPS: u64 = 64;
const LEAST_GROUP: u64 = 256 << 20;

impl<U: DeviceResource + 'static> PoolResource<U> {
    /// Whether the pool sleeps: it has given the device's memory back and keeps its addresses.
    pub fn is_asleep(&self) -> bool {
        self.pool.is_asleep()
    }

    /// Waits for all work of the device, has `copy_out` begin to copy what is in use, group by group, and gives the memory
    /// of each back when it is copied. So the calls to the driver cost no time of their own.
    pub(crate) fn put_aside<C: Contents>(
        &self,
        waker: Option<fn(&Self) -> Result<()>>,
        copy_out: impl FnOnce(&[&[MappedPlace]]) -> Result<C>,
    ) -> Result<SleepReport> {
        not_forked("a pool")?;
        let Some(memory) = &self.pool.upstream().memory else { return Err(self.has_blocks()) };
        deferred::collect_all();
        let mut change = self.begin_change()?;
        let waker = waker.map(|wake| self.waker(wake));
        let falling = FallingAsleep::begin(self, change.asleep.is_some(), waker)?;
        let places = self.pool.places();
        let groups = groups(&places);
        let mut contents = copy_out(&groups)?;
        let (mut unmapped, mut bytes, mut used) = (HashSet::new(), 0, 0);
        let mut result = Ok(());
        for (number, group) in groups.into_iter().enumerate() {
            result = contents.wait_out(number);
            if result.is_err() {
                break;
            }
            let ranges: Vec<_> = group.iter().map(|it| range(it.address, it.bytes)).collect();
            // SAFETY: the pool moves and unmaps nothing while it sleeps, and the device is past all work but the copies, and
            // past those of this group, whose places are of one reservation.
            let stuck = unsafe { memory.unmap_all(&ranges) };
            let is_stuck = |place: &&MappedPlace| stuck.iter().any(|(it, _)| holds(it, place));
            for place in group.iter().filter(|place| !is_stuck(place)) {
                self.pool.upstream().release(place.handle, place.bytes);
                unmapped.insert(place.address);
                bytes += place.bytes;
                used += place.used.iter().map(|(_, bytes)| bytes).sum::<u64>();
            }
            if let Some((range, error)) = stuck.into_iter().next() {
                result = memory.in_context(Count(range.bytes, "byte"), Err(error));
                break;
            }
        }
        if result.is_err() && unmapped.is_empty() {
            // Nothing has changed.
            return result.map(|()| SleepReport { bytes: 0, used: 0 });
        }
        falling.keep();
        let contents = Box::new(contents);
        change.asleep = Some(Asleep { places: unmapped, contents });
        self.pool.upstream().sleep.set_bytes(bytes);
        if let Err(error) = result {
            drop(change);
            // What is mapped still is as it was, and the rest comes back.
            return match self.bring_back::<C>() {
                Ok(_) => Err(error),
                Err(lost) => {
                    Err(lost.within(format_args!("a pool that fell asleep in part: {error}")))
                }
            };
        }
        Ok(SleepReport { bytes: bytes as usize, used: used as usize })
    }

    /// Maps memory where it was, and fills it from what [`put_aside`](Self::put_aside) has kept. On an error the pool
    /// sleeps as before.
    pub(crate) fn bring_back<C: Contents>(&self) -> Result<C> {
        not_forked("a pool")?;
        let mut change = self.begin_change()?;
        let memory = self.pool.upstream().memory.as_ref();
        let (Some(asleep), Some(memory)) = (change.asleep.as_mut(), memory) else {
            return Err(not_asleep(self));
        };
        let places = self.pool.places_to_wake(|address| asleep.places.contains(&address));
        let Some(contents) = asleep.contents.downcast_mut::<C>() else {
            return Err(not_asleep(self));
        };
        let mut anew =
            MappedAnew { pool: self, memory, made: Vec::new(), mapped: 0, is_in_use: false };
        anew.create(&places)?;
        contents.begin_in()?;
        let mut fill = || {
            groups(&places).into_iter().try_for_each(|group| {
                anew.map_next(group.len())?;
                contents.copy_in(group)
            })
        };
        let filled = fill();
        // Also behind an error: what is copied to may be unmapped then.
        let waited = contents.wait_in();
        if waited.is_err() {
            anew.is_in_use = true;
        }
        filled.and(waited)?;
        let Some(Asleep { contents, .. }) = change.asleep.take() else {
            return Err(not_asleep(self));
        };
        for (place, handle) in places.iter().zip(anew.keep()) {
            self.pool.set_handle(place, handle);
        }
        // Off the list first: what is allocated may be used.
        asleep::unlist(self.pool.id());
        self.pool.end_sleep();
        self.pool.upstream().sleep.set(0, None);
        contents.downcast::<C>().map(|contents| *contents).map_err(|_| not_asleep(self))
    }

    fn begin_change(&self) -> Result<Change<'_>> {
        self.pool.upstream().sleep.change().ok_or_else(|| {
            let message = format!(
                "a pool on {} was to sleep or to wake in a callback of its own sleep or waking",
                self.device()
            );
            Error::new(ErrorKind::Asleep, message).with_advice("do that when the call has returned")
        })
    }

    /// A function that wakes the pool, if it is there still.
    fn waker(&self, wake: fn(&Self) -> Result<()>) -> Waker {
        let weak = self.pool.downgrade();
        Arc::new(move || weak.upgrade().map_or(Ok(()), |pool| wake(&Self { pool })))
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

fn holds(range: &DeviceRange, place: &MappedPlace) -> bool {
    place.address.wrapping_sub(range.address) < range.bytes as u64
}

fn range(address: u64, bytes: u64) -> DeviceRange {
    DeviceRange { address, bytes: bytes as usize }
}

/// Places of one reservation each, whose calls to the driver take little beside their copies.
fn groups(places: &[MappedPlace]) -> Vec<&[MappedPlace]> {
    let total: u64 = places.iter().map(|place| place.bytes).sum();
    let most = (total / GROUPS).max(LEAST_GROUP);
    let (mut groups, mut begin, mut bytes) = (Vec::new(), 0, 0);
    for (at, place) in places.iter().enumerate() {
        let goes_on = bytes < most && places[begin].reservation == place.reservation;
        if at > begin && !goes_on {
            groups.push(&places[begin..at]);
            (begin, bytes) = (at, 0);
        }
        bytes += place.bytes;
    }
    groups.extend((begin < places.len()).then(|| &places[begin..]));
    groups
}

/// A pool that is about to sleep. Its drop has it stay awake.
struct FallingAsleep<'a, U: DeviceResource + 'static> {
    pool: &'a PoolResource<U>,
    stays: bool,
}

impl<'a, U: DeviceResource + 'static> FallingAsleep<'a, U> {
    /// Has nothing use the pool's memory from now on, and waits until nothing does.
    fn begin(pool: &'a PoolResource<U>, sleeps: bool, waker: Option<Waker>) -> Result<Self> {
        let device = pool.device();
        if sleeps {
            let error = asleep::error_of(device, pool.pool.id());
            return Err(error.with_advice("wake it before it sleeps again"));
        }
        let devices = device.sharing_host_memory();
        asleep::require_no_collective(&devices)?;
        pool.pool.begin_sleep().map_err(|failure| match failure {
            Failure::Captured => in_capture(pool),
            failure => pool.explain(failure, super::Asked::Trim),
        })?;
        let falling = Self { pool, stays: true };
        pool.pool.upstream().sleep.set(0, waker);
        let ranges = pool.pool.reservations();
        asleep::list(device, pool.pool.id(), ranges.clone());
        for device in &devices {
            pass_all_gates(device)?;
            // One that was given since would be waited for without an end.
            asleep::require_no_collective(&devices)?;
            // A capture of another library is found here.
            device.synchronize_without_drops()?;
        }
        let kept = asleep::reason_to_stay_awake(device, &ranges);
        ensure!(
            kept.is_none(),
            InvalidArgument,
            "drop that memory and trim the pool first",
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
            asleep::unlist(self.pool.pool.id());
            self.pool.pool.end_sleep();
            self.pool.pool.upstream().sleep.set(0, None);
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
    /// Copies to it may be under way for good, as the device is lost: it stays as it is.
    is_in_use: bool,
}

impl<U: DeviceResource + 'static> MappedAnew<'_, U> {
    /// Memory for these places.
    fn create(&mut self, places: &[MappedPlace]) -> Result<()> {
        for place in places {
            match self.pool.pool.upstream().create(place.bytes) {
                Ok(handle) => self.made.push((place.address, place.bytes, handle)),
                Err(error) => return Err(self.cannot_wake(places, error)),
            }
        }
        Ok(())
    }

    fn cannot_wake(&self, places: &[MappedPlace], error: Error) -> Error {
        let made: u64 = self.made.iter().map(|it| it.1).sum();
        let all: u64 = places.iter().map(|place| place.bytes).sum();
        let (all, missing) = (Count(all, "byte"), Count(all - made, "byte"));
        let what = format!("waking a pool, which needs {all}, {missing} of them missing");
        match error.kind() {
            ErrorKind::OutOfMemory => error.within(what).with_advice(
                "have another pool or program give memory back, and wake it again: it sleeps as before",
            ),
            _ => error.within(what),
        }
    }

    /// Maps the next places, which are of one reservation.
    fn map_next(&mut self, count: usize) -> Result<()> {
        let next = &self.made[self.mapped..self.mapped + count];
        let place = |&(address, bytes, handle): &(u64, u64, u64)| {
            (range(address, bytes), RawHandle(handle))
        };
        let ranges: Vec<_> = next.iter().map(place).collect();
        let bytes: u64 = next.iter().map(|it| it.1).sum();
        // SAFETY: addresses of the pool, at which nothing is mapped while it sleeps; handles of their size.
        let mapped = unsafe { self.memory.map_all(&ranges) };
        self.mapped += mapped.as_ref().map_or_else(|failed| failed.0, |()| count);
        self.memory.in_context(Count(bytes, "byte"), mapped.map_err(|(_, error)| error))
    }

    /// The handles, which stay mapped.
    fn keep(mut self) -> Vec<u64> {
        std::mem::take(&mut self.made).into_iter().map(|(_, _, handle)| handle).collect()
    }
}

impl<U: DeviceResource + 'static> Drop for MappedAnew<'_, U> {
    fn drop(&mut self) {
        let made = std::mem::take(&mut self.made);
        if self.is_in_use {
            return;
        }
        for (number, (address, bytes, handle)) in made.into_iter().enumerate() {
            let range = range(address, bytes);
            // SAFETY: mapped for the sleep alone, and the device is past all work.
            let unmap = || unsafe { self.memory.unmap(range) };
            if number < self.mapped
                && let Err(error) = unmap()
            {
                crate::debug_log::event!(error, %error, "a part of a pool that did not wake stays mapped");
                continue;
            }
            self.pool.pool.upstream().release(handle, bytes);
        }
    }
}
