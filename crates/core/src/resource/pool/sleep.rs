//! How a pool falls asleep and wakes, around the copies of what it holds.

use super::PoolResource;
use super::sleeping::{Asleep, Change, Waker};
use crate::driver::{DeviceRange, RawHandle, not_forked};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::pool::{Failure, MappedMemory, MappedPlace};
use crate::resource::asleep::{self, Listed};
use crate::resource::device_resource::DeviceResource;
use crate::resource::mapped::VirtualMemory;
use crate::stream::{deferred, pass_all_gates};
use crate::sync::Arc;
use std::collections::BTreeSet;

/// How much a sleep has given back.
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
        let (mut unmapped, mut bytes, mut used) = (BTreeSet::new(), 0, 0);
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
        change.asleep = Some(Asleep {
            places: unmapped,
            unfilled: BTreeSet::new(),
            contents: Box::new(contents),
            listed: falling.keep(),
        });
        self.pool.upstream().sleep.set_bytes(bytes);
        if let Err(error) = result {
            // What is mapped still is as it was, and the rest comes back.
            return match self.wake_in::<C>(&mut change) {
                Ok(_) => Err(error),
                Err(second) => {
                    let call = error.driver().map_or_else(String::new, |it| format!(": {it}"));
                    let first = error.message();
                    let whole = format!("a pool that fell asleep in part: {first}{call}; then");
                    Err(to_be_woken(second.within(whole)))
                }
            };
        }
        Ok(SleepReport { bytes: bytes as usize, used: used as usize })
    }

    /// Maps memory where it was, and fills it from what [`put_aside`](Self::put_aside) has kept. On an error the pool
    /// sleeps as before.
    pub(crate) fn bring_back<C: Contents>(&self) -> Result<C> {
        not_forked("a pool")?;
        self.wake_in(&mut self.begin_change()?)
    }

    fn wake_in<C: Contents>(&self, change: &mut Change<'_>) -> Result<C> {
        let memory = self.pool.upstream().memory.as_ref();
        let (Some(asleep), Some(memory)) = (change.asleep.as_mut(), memory) else {
            return Err(not_asleep(self));
        };
        let Asleep { places: unmapped, unfilled, contents, .. } = asleep;
        let Some(contents) = contents.downcast_mut::<C>() else {
            return Err(not_asleep(self));
        };
        let places = self.pool.places_to_wake(|address| unmapped.contains(&address));
        let left = self.pool.places_at(|address| unfilled.contains(&address));
        let mut anew = MappedAnew {
            pool: self,
            memory,
            places: &places,
            made: Vec::new(),
            mapped: 0,
            is_past: true,
            unmapped,
            unfilled,
        };
        anew.create()?;
        contents.begin_in()?;
        // Until the wait says so.
        anew.is_past = false;
        let mut fill = || {
            for group in groups(&left) {
                anew.reach(group)?;
                contents.copy_in(group)?;
            }
            groups(&places).into_iter().try_for_each(|group| {
                anew.map_next(group.len())?;
                contents.copy_in(group)
            })
        };
        let filled = fill();
        // Also behind an error: what is copied to may be unmapped then. A wait that fails tells nothing of the copies, but
        // one after it may.
        let waited = contents.wait_in();
        anew.is_past = waited.is_ok() || contents.wait_in().is_ok();
        if let Err(error) = filled.and(waited) {
            return Err(anew.undo_after(error));
        }
        let handles = anew.keep();
        let Some(Asleep { contents, listed, .. }) = change.asleep.take() else {
            return Err(not_asleep(self));
        };
        for (place, handle) in places.iter().zip(handles) {
            self.pool.set_handle(place, handle);
        }
        // Off the list first: what is allocated may be used.
        drop(listed);
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

/// An error after which the pool sleeps.
fn to_be_woken(error: Error) -> Error {
    match error.kind() {
        // It has its advice, or nothing helps.
        ErrorKind::OutOfMemory | ErrorKind::ContextLost => error,
        _ => error.with_advice("call wake when the cause is gone: it sleeps, and nothing is lost"),
    }
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
    /// `None` when it stays awake no more.
    listed: Option<Listed>,
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
        let ranges = pool.pool.reservations();
        let listed = Listed::new(device, pool.pool.id(), ranges.clone());
        let falling = Self { pool, listed: Some(listed) };
        pool.pool.upstream().sleep.set(0, waker);
        let beside = |error: Error| match error.kind() {
            ErrorKind::Capture => error
                .within(format_args!("a pool on {device} cannot sleep beside a capture"))
                .with_advice("let it sleep before the capture or after it"),
            _ => error,
        };
        for device in &devices {
            pass_all_gates(device).map_err(beside)?;
            // One that was given since would be waited for without an end.
            asleep::require_no_collective(&devices)?;
            // A capture of another library is found here. It is lost if it has no stream that is known here.
            device.synchronize_without_drops().map_err(beside)?;
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
    fn keep(mut self) -> Option<Listed> {
        self.listed.take()
    }
}

impl<U: DeviceResource + 'static> Drop for FallingAsleep<'_, U> {
    fn drop(&mut self) {
        if let Some(listed) = self.listed.take() {
            drop(listed);
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

/// Memory of a pool that wakes. Its drop gives all of it back that can go.
struct MappedAnew<'a, U: DeviceResource + 'static> {
    pool: &'a PoolResource<U>,
    memory: &'a VirtualMemory,
    places: &'a [MappedPlace],
    /// The handles of the first places.
    made: Vec<u64>,
    /// How many of these are mapped.
    mapped: usize,
    /// No copy to it is under way.
    is_past: bool,
    /// Those of [`Asleep`].
    unmapped: &'a mut BTreeSet<u64>,
    unfilled: &'a mut BTreeSet<u64>,
}

impl<U: DeviceResource + 'static> MappedAnew<'_, U> {
    /// Memory for the places. Other pools of the device give back for it what they have free and the device is past.
    fn create(&mut self) -> Result<()> {
        let mut has_asked = false;
        for (number, place) in self.places.iter().enumerate() {
            let create = || self.pool.pool.upstream().create(place.bytes);
            let made = create().or_else(|error| {
                if has_asked || error.kind() != ErrorKind::OutOfMemory {
                    return Err(error);
                }
                has_asked = true;
                let missing: u64 = self.places[number..].iter().map(|it| it.bytes).sum();
                self.pool.trim_others(missing as usize);
                create()
            });
            match made {
                Ok(handle) => self.made.push(handle),
                Err(error) => return Err(self.cannot_wake(error)),
            }
        }
        Ok(())
    }

    fn cannot_wake(&self, error: Error) -> Error {
        let bytes = |places: &[MappedPlace]| places.iter().map(|place| place.bytes).sum::<u64>();
        let all = Count(bytes(self.places), "byte");
        let missing = Count(bytes(&self.places[self.made.len()..]), "byte");
        let what = format!("waking a pool, which needs {all}, {missing} of them missing");
        match error.kind() {
            ErrorKind::OutOfMemory => error.within(what).with_advice(
                "call wait_and_trim of another pool, or have another program give memory back, and wake it again: it sleeps as before",
            ),
            _ => error.within(what),
        }
    }

    /// Maps the next places, which are of one reservation.
    fn map_next(&mut self, count: usize) -> Result<()> {
        let next = self.mapped..self.mapped + count;
        let place = |(place, handle): (&MappedPlace, &u64)| {
            (range(place.address, place.bytes), RawHandle(*handle))
        };
        let ranges: Vec<_> =
            self.places[next.clone()].iter().zip(&self.made[next]).map(place).collect();
        let bytes: usize = ranges.iter().map(|it| it.0.bytes).sum();
        // SAFETY: addresses of the pool, at which nothing is mapped while it sleeps; handles of their size.
        let mapped = unsafe { self.memory.map_all(&ranges) };
        self.mapped += mapped.as_ref().map_or_else(|failed| failed.0, |()| count);
        self.memory.in_context(Count(bytes, "byte"), mapped.map_err(|(_, error)| error))
    }

    /// Has the device reach what an earlier wake has left mapped, perhaps out of its reach.
    fn reach(&self, places: &[MappedPlace]) -> Result<()> {
        let ranges: Vec<_> = places.iter().map(|it| range(it.address, it.bytes)).collect();
        let bytes: usize = ranges.iter().map(|it| it.bytes).sum();
        // SAFETY: mapped by that wake, which has noted it; the pool unmaps nothing while it sleeps.
        let reached = unsafe { self.memory.reach_all(&ranges) };
        self.memory.in_context(Count(bytes, "byte"), reached)
    }

    /// The handles, which stay mapped.
    fn keep(mut self) -> Vec<u64> {
        std::mem::take(&mut self.made)
    }

    fn undo_after(mut self, error: Error) -> Error {
        match self.undo() {
            0 => error,
            // There is no next wake.
            _ if error.kind() == ErrorKind::ContextLost => error,
            stuck => to_be_woken(error.within(format_args!(
                "waking a pool, {} of which stay mapped for its next wake",
                Count(stuck, "byte")
            ))),
        }
    }

    /// Gives all of it back that can go, and has the pool keep the rest for the next wake. Returns the bytes of the rest.
    fn undo(&mut self) -> u64 {
        let mut stuck = 0;
        for (number, handle) in std::mem::take(&mut self.made).into_iter().enumerate() {
            let place = &self.places[number];
            if number >= self.mapped || self.unmap(place) {
                self.pool.pool.upstream().release(handle, place.bytes);
                continue;
            }
            self.pool.pool.set_handle(place, handle);
            let is_of_it = place.address..place.address + place.bytes;
            let of_it: Vec<u64> = self.unmapped.range(is_of_it).copied().collect();
            for address in of_it {
                self.unmapped.remove(&address);
            }
            self.unfilled.insert(place.address);
            stuck += place.bytes;
        }
        let sleep = &self.pool.pool.upstream().sleep;
        sleep.set_bytes((sleep.bytes() as u64).saturating_sub(stuck));
        stuck
    }

    /// Unmaps a place, if no copy to it is under way. Whether it is unmapped.
    fn unmap(&self, place: &MappedPlace) -> bool {
        if !self.is_past {
            return false;
        }
        // SAFETY: mapped for the wake alone, and the device is past all work.
        let unmapped = unsafe { self.memory.unmap(range(place.address, place.bytes)) };
        if let Err(error) = &unmapped {
            crate::debug_log::event!(error, %error, "a part of a pool that did not wake stays mapped");
        }
        unmapped.is_ok()
    }
}

impl<U: DeviceResource + 'static> Drop for MappedAnew<'_, U> {
    fn drop(&mut self) {
        self.undo();
    }
}
