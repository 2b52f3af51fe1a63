//! A pool that sleeps keeps its addresses and none of the device's memory. The caller copies what is in use, and brings
//! it back.
//!
//! # State table
//!
//! | state | `asleep` | allocations | frees | trims, growth, captures | handles |
//! | --- | --- | --- | --- | --- | --- |
//! | awake | no | served | as ever | as ever | mapped |
//! | falling asleep | yes | [`Failure::Asleep`] | into the heaps, past magazines | nothing, `Failure::Asleep` | mapped; after `places` no thread moves or releases one |
//! | asleep | yes | the same | the same | the same | gone: each place has the number of a former one |
//! | waking | yes | the same | the same | the same | made and mapped, place by place |
//!
//! | from | to | by |
//! | --- | --- | --- |
//! | awake | falling asleep | `begin_sleep` |
//! | falling asleep | asleep | the caller unmaps all places |
//! | asleep | waking | `places_to_wake` |
//! | waking | awake | `set_handle` for each place, then `end_sleep` |
//! | falling asleep | awake | the caller gives up: `end_sleep` |
//! | waking | asleep | the caller gives up: `set_handle` for each place that it cannot unmap, which is mapped from then on |
//!
//! - `INV-1`. A request that has begun before may take a block still, of a place that is in use in part and comes back.
//!   The block has no contents then. Its user finds `asleep` set at the first work on it, inside of a gate that the caller
//!   has passed.
//! - `INV-2`. Who maps, moves or releases handles has read `asleep` under `in_transit`, which `places` writes once. So
//!   nobody does from then on.
//! - `INV-3`. Magazines are suspended and empty, under `reclaim_lock`, and one that is made meanwhile is suspended.

use super::core::Pool;
use super::handles::{LARGEST_HANDLE, Last};
use super::upstream::{Failure, Mapped, Upstream, count};
use super::upstream_blocks::{Handle, Origin};
use crate::debug_log::defer_events;
use crate::sync::Ordering;
use crate::sync::trusted::unique;

/// Where a handle is mapped, or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedPlace {
    /// The number of the reservation that the address is of.
    pub reservation: u32,
    pub address: u64,
    pub bytes: u64,
    pub handle: u64,
    /// The parts that blocks in use have: addresses and bytes, in order. Adjacent ones are one.
    pub used: Vec<(u64, u64)>,
}

impl<U: Upstream> Pool<U> {
    /// Has the pool allocate and move nothing from now on.
    ///
    /// # Errors
    ///
    /// [`Failure::Asleep`] if it sleeps already, and [`Failure::Captured`] while a capture was declared to it.
    pub fn begin_sleep(&self) -> Result<(), Failure<U::Error>> {
        let _deferred = defer_events();
        self.free_deferred_graphs();
        let reclaim = self.reclaim_lock.lock();
        self.require_awake()?;
        if self.stream_slots().any(|slot| slot.recording_graph() != 0) {
            return Err(Failure::Captured);
        }
        // Relaxed: as in `is_asleep`.
        self.asleep.store(true, Ordering::Relaxed);
        let magazines = self.magazines();
        // SAFETY: INV-POOL-4.
        magazines.iter().for_each(|magazine| unsafe { magazine.suspend() });
        self.revoke(&reclaim, &magazines, |magazine, classes| self.drain(magazine, classes));
        Ok(())
    }

    /// Ends the sleep, or the attempt at one: all places are mapped.
    pub fn end_sleep(&self) {
        let _reclaim = self.reclaim_lock.lock();
        self.asleep.store(false, Ordering::Relaxed);
        // SAFETY: INV-POOL-4.
        self.magazines().iter().for_each(|magazine| unsafe { magazine.resume() });
    }

    /// What is mapped, when free memory has gone back. The device is past all work that was given to it before
    /// [`begin_sleep`](Self::begin_sleep).
    pub fn places(&self) -> Vec<MappedPlace> {
        let _deferred = defer_events();
        let Some(mapped) = self.upstream.mapped() else { return Vec::new() };
        // INV-2: who came before has done what it does.
        drop(self.in_transit.write());
        self.close_and_poll_all(None);
        self.release_and_merge(mapped, 0);
        self.mapped_places()
    }

    /// The reservations in which places may lie: addresses and bytes.
    pub fn reservations(&self) -> Vec<(u64, u64)> {
        self.upstream_blocks.lock().reservations()
    }

    /// The places that are still in use, of those that sleep. Those that are free by now are the pool's no more, and only
    /// their addresses are. Places that adjoin, and that blocks in use have as a whole, are one: the calls for a handle
    /// take as long for a large one as for a small one.
    pub fn places_to_wake(&self, sleeps: impl Fn(u64) -> bool) -> Vec<MappedPlace> {
        let _deferred = defer_events();
        if let Some(mapped) = self.upstream.mapped() {
            // What was freed by several streams is one free block then.
            self.close_and_poll_all(None);
            self.merge_ready();
            self.forget_free_places(mapped, &sleeps);
        }
        merged(self.places_at(sleeps))
    }

    /// The places that begin at these addresses.
    pub fn places_at(&self, is_one: impl Fn(u64) -> bool) -> Vec<MappedPlace> {
        let _deferred = defer_events();
        let mut places = self.mapped_places();
        places.retain(|place| is_one(place.address));
        places
    }

    /// Notes that a place of [`places_to_wake`](Self::places_to_wake) has another handle.
    pub fn set_handle(&self, place: &MappedPlace, memory: u64) {
        let MappedPlace { reservation, address, bytes, .. } = *place;
        let handle = Handle { memory, id: unique() };
        self.upstream_blocks.lock().replace_handles(reservation, (address, bytes), handle);
    }

    fn mapped_places(&self) -> Vec<MappedPlace> {
        let mut free: Vec<(u64, u64)> = Vec::new();
        self.each_heap(|slot| {
            let heap = slot.heap();
            free.extend(heap.free_blocks_from(1).map(|block| (block.address, block.bytes)));
        });
        free.sort_unstable();
        let blocks = self.upstream_blocks.lock();
        let places = blocks.handles().map(|(reservation, address, bytes, handle)| MappedPlace {
            reservation,
            address,
            bytes,
            handle: handle.memory,
            used: used_parts(&free, address, address + bytes),
        });
        places.collect()
    }

    /// Handles that no block in use lies in have gone when the pool fell asleep, or are not mapped again.
    fn forget_free_places(&self, mapped: Mapped<'_, U>, sleeps: &impl Fn(u64) -> bool) {
        let mut free = Vec::new();
        self.each_heap(|source| {
            let heap = source.heap();
            let blocks = heap.free_blocks_from(mapped.granularity());
            free.extend(blocks.map(|block| (block, source.id)));
        });
        for (block, source) in free {
            for piece in self.take_handles(source, block, &mut block.bytes.clone(), Last::Fits) {
                if !sleeps(piece.address) {
                    // Mapped still, as a sleep in part has left it.
                    if let Some(slot) = self.slot(source) {
                        self.add(slot, &mut slot.heap(), block.tag, piece);
                    }
                    continue;
                }
                let removed = {
                    let mut blocks = self.upstream_blocks.lock();
                    blocks.remove_reserved(piece.upstream_block, piece.address)
                };
                let Some(removed) = removed else { continue };
                if let Origin::Handle(_) = removed.origin {
                    count(&self.counters().returns);
                }
                self.upstream_blocks.lock().unreserve(removed.bytes as usize);
                self.give_addresses(source, &piece);
            }
        }
    }
}

/// A handle of places that were several is at most this part of all that is mapped.
const MERGED_DIVISOR: u64 = 512;

fn merged(places: Vec<MappedPlace>) -> Vec<MappedPlace> {
    let total: u64 = places.iter().map(|place| place.bytes).sum();
    let most = (total / MERGED_DIVISOR).min(LARGEST_HANDLE);
    let mut all: Vec<MappedPlace> = Vec::new();
    for place in places {
        let is_whole = place.used == [(place.address, place.bytes)];
        match all.last_mut() {
            Some(last)
                if is_whole
                    && last.used == [(last.address, last.bytes)]
                    && last.reservation == place.reservation
                    && last.address + last.bytes == place.address
                    && last.bytes + place.bytes <= most =>
            {
                last.bytes += place.bytes;
                last.used = vec![(last.address, last.bytes)];
            }
            _ => all.push(place),
        }
    }
    all
}

/// The parts of a range that lie in none of the `free` ones, which are in order: addresses and bytes.
fn used_parts(free: &[(u64, u64)], start: u64, end: u64) -> Vec<(u64, u64)> {
    let first = free.partition_point(|(address, bytes)| address + bytes <= start);
    let (mut used, mut at) = (Vec::new(), start);
    for &(address, bytes) in free[first..].iter().take_while(|(address, _)| *address < end) {
        if address > at {
            used.push((at, address - at));
        }
        at = at.max(address + bytes);
    }
    if at < end {
        used.push((at, end - at));
    }
    used
}

#[cfg(test)]
mod tests {
    use super::{MappedPlace, merged, used_parts};

    const MIB: u64 = 1 << 20;

    #[test]
    fn whole_places_that_adjoin_are_one_up_to_a_part_of_all() {
        let place = |reservation, address: u64, bytes: u64, is_whole| MappedPlace {
            reservation,
            address: address * MIB,
            bytes: bytes * MIB,
            handle: address,
            used: vec![(address * MIB, if is_whole { bytes * MIB } else { 256 })],
        };
        let sizes = |places| merged(places).iter().map(|it| it.bytes / MIB).collect::<Vec<_>>();
        // All of it is 8 GiB: 16 MiB are one.
        let rest = place(9, 1 << 20, 8192 - 26, true);
        for (places, wanted) in [
            (vec![place(1, 0, 4, true), place(1, 4, 4, true), place(1, 8, 18, true)], vec![8, 18]),
            (
                vec![place(1, 0, 8, true), place(1, 8, 8, true), place(1, 16, 10, true)],
                vec![16, 10],
            ),
            (
                vec![place(1, 0, 8, true), place(1, 8, 8, false), place(1, 16, 10, true)],
                vec![8, 8, 10],
            ),
            (
                vec![place(1, 0, 8, true), place(2, 8, 8, true), place(2, 17, 10, true)],
                vec![8, 8, 10],
            ),
        ] {
            let all = places.into_iter().chain([rest.clone()]).collect();
            assert_eq!(sizes(all), wanted.into_iter().chain([8192 - 26]).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_is_not_free_is_used() {
        let free = [(0, 10), (20, 5), (25, 5), (50, 100)];
        for (range, used) in [
            ((0, 10), vec![]),
            ((0, 20), vec![(10, 10)]),
            ((5, 40), vec![(10, 10), (30, 10)]),
            ((30, 50), vec![(30, 20)]),
            ((60, 70), vec![]),
            ((140, 170), vec![(150, 20)]),
            ((22, 23), vec![]),
        ] {
            assert_eq!(used_parts(&free, range.0, range.1), used, "{range:?}");
        }
        assert_eq!(used_parts(&[], 3, 9), [(3, 6)]);
    }
}
