//! What a pool of page-locked memory does when the calling thread has nothing ready.

use super::lane::{Batch, Block, UNIT_SHIFT, bytes_of, pointer_to, take, units_of, with_lane};
use super::pending::{Collected, Unfenced};
use super::slabs::{Core, Growth, Numbered};
use super::source::{fence, no_capture, passed, report_lost, too_large, wait};
use crate::backend::not_forked;
use crate::error::{Error, ErrorKind, Result};
use crate::pool::magazine::Magazine;
use crate::stream::Stream;
use crate::sync::trusted::Ordering;
use crate::sync::yield_now;
use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// How long a fence is asked again and again before the pool grows, which takes the driver a third
/// of a millisecond for each megabyte.
const PATIENCE: Duration = Duration::from_micros(20);

/// Bytes that a fenced pool may have beside what is in use, however little that is.
const SLACK: usize = 64 << 20;

/// How a pool asks after the blocks that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// A fence for what has none, and a question about the older ones.
    Once,
    /// Questions alone.
    Again,
    /// A fence for what has none, and the host waits for the oldest.
    Wait,
}

impl Core {
    /// A block of `layout`, which has a size.
    pub(super) fn obtain(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        not_forked("page-locked memory")?;
        let (size, align) = (layout.size(), layout.align());
        let Some(units) = units_of(size) else {
            return Err(too_much(size, align));
        };
        let address = self.find_block(units, layout)?;
        let pointer = pointer_to(address).ok_or_else(|| too_large(size, align))?;
        Ok(NonNull::slice_from_raw_parts(pointer, size))
    }

    fn find_block(&self, units: u32, layout: Layout) -> Result<usize> {
        let align = layout.align();
        let own = self.own();
        let own = own.as_deref();
        // The thread's table may only just have learnt of its magazine.
        let ready = || take(self.key(), layout).map(|block| block.cast::<u8>().addr().get());
        if let Some(address) = ready() {
            return Ok(address);
        }
        self.tune(own, units);
        self.hold_the_cap();
        if self.news.swap(false, Ordering::Relaxed) {
            self.is_short();
            self.bring_home(Ask::Once, own);
            if let Some(address) = ready() {
                return Ok(address);
            }
        }
        if let Some(address) = self.take_free(units, align) {
            return Ok(address);
        }
        // Not what other threads keep, at first.
        if self.waiting.len() > 0 {
            self.bring_home(Ask::Once, own);
            if let Some(address) = ready().or_else(|| self.take_free(units, align)) {
                return Ok(address);
            }
        }
        if self.is_short()
            && let Ok(Growth::Block(address)) = self.grow(units, align)
        {
            return Ok(address);
        }
        loop {
            if let Some(address) = self.gather(units, align) {
                return Ok(address);
            }
            let refused = match self.grow(units, align) {
                Ok(Growth::Block(address)) => return Ok(address),
                Ok(Growth::Busy) => {
                    yield_now();
                    continue;
                }
                Ok(Growth::Full) => None,
                Err(error) if error.kind() == ErrorKind::OutOfMemory => Some(error),
                Err(error) => return Err(error),
            };
            while self.wait_for_the_oldest() {
                if let Some(address) = self.take_free(units, align) {
                    return Ok(address);
                }
            }
            // Whole slabs that are free and too small, or where upstream has no more room.
            let least = layout.size() + if align > 4096 { align } else { 0 };
            if self.room_if_unpinned(least)
                && self.unpin(usize::MAX) > 0
                && let Ok(Growth::Block(address)) = self.grow(units, align)
            {
                return Ok(address);
            }
            // Between the look and the growth another thread may have freed.
            return match self.take_free(units, align) {
                Some(address) => Ok(address),
                None => Err(refused.unwrap_or_else(|| self.is_full(layout))),
            };
        }
    }

    /// Makes room in the magazine for blocks of this size, and batches as large as the pool can
    /// spare: the blocks of a few wait at any time.
    fn tune(&self, own: Option<&Magazine>, units: u32) {
        let Some(magazine) = own else { return };
        let (fenced, share) = (self.key().fenced, self.share());
        let mut evicted = Vec::new();
        // SAFETY: this thread's magazine; nothing below enters one.
        let _ = unsafe {
            magazine.enter(|shelves| {
                if !fenced {
                    shelves.want(units, |old| evicted.push(Block::at(old.address as usize)));
                }
                // SAFETY: inside the magazine.
                with_lane(magazine.home(), |lane| lane.batch_at(share))
            })
        };
        if !evicted.is_empty() {
            self.settle(&evicted);
        }
    }

    /// Plans how large the pool should be: it grows to that before it waits, so that a fence serves
    /// many frees. Whether it is smaller.
    fn is_short(&self) -> bool {
        if !self.key().fenced {
            return false;
        }
        let counts = self.counts();
        let batches = self.settings.magazine_bytes.saturating_mul(4 * self.threads());
        let slack = counts.live.saturating_mul(3).min(batches).max(SLACK);
        let crowded = self.crowded.load(Ordering::Relaxed);
        let most = if crowded { counts.reserved } else { self.settings.maximum };
        let planned = counts.live.saturating_add(slack).max(counts.reserved).min(most);
        self.planned.store(planned, Ordering::Relaxed);
        counts.reserved < planned
    }

    /// What the device has passed goes to the calling thread, as far as it has room, and to the heap.
    fn bring_home(&self, ask: Ask, own: Option<&Magazine>) -> bool {
        let mut batches = self.collect(ask).free;
        let any = !batches.is_empty();
        if let Some(magazine) = own {
            let mut offered = batches.pop();
            // SAFETY: this thread's magazine; nothing below enters one.
            let _ = unsafe {
                magazine.enter(|_| {
                    // SAFETY: inside the magazine.
                    with_lane(magazine.home(), |lane| {
                        offered = offered.take().and_then(|batch| lane.refill(batch));
                    })
                })
            };
            batches.extend(offered);
        }
        if !batches.is_empty() {
            self.settle(batches.iter().flat_map(|batch| batch.blocks()));
        }
        any
    }

    fn collect(&self, ask: Ask) -> Collected<Box<Batch>> {
        self.queue_strays();
        let (recorded, waited) = (Cell::new(0), Cell::new(false));
        let device = self.source.device();
        let collected = self.waiting.collect(
            || {
                if ask == Ask::Again {
                    return Err(Unfenced::Later);
                }
                let fence = fence(device)?;
                recorded.set(self.fences.fetch_add(1, Ordering::Relaxed) + 1);
                Ok(Numbered { number: recorded.get(), fence })
            },
            |Numbered { number, fence }| match ask {
                Ask::Wait if !waited.replace(true) => wait(fence),
                // Hardly passed when it has just been recorded; the next miss asks.
                Ask::Once if *number == recorded.get() => Ok(false),
                _ => passed(fence),
            },
        );
        let units = |batches: &[Box<Batch>]| batches.iter().map(|batch| batch.units()).sum::<u64>();
        let lost = units(&collected.lost);
        self.waiting_units.fetch_sub(units(&collected.free) + lost, Ordering::Relaxed);
        if lost > 0 {
            report_lost(device, bytes_of(lost));
        }
        collected
    }

    /// All that the threads keep, and all that the device passes within a moment.
    fn gather(&self, units: u32, align: usize) -> Option<usize> {
        if self.in_magazines() != [0; 2] {
            self.reclaim();
        }
        self.bring_home(Ask::Once, None);
        let mut until = None;
        loop {
            if let Some(address) = self.take_free(units, align) {
                return Some(address);
            }
            let now = Instant::now();
            if self.waiting.len() == 0 || now > *until.get_or_insert(now + PATIENCE) {
                return None;
            }
            self.bring_home(Ask::Again, None);
            std::hint::spin_loop();
        }
    }

    /// Waits on the host for the oldest fence. `false` if nothing came of it: nothing waits, or a
    /// capture is in the way.
    fn wait_for_the_oldest(&self) -> bool {
        self.waiting.len() > 0 && !self.may_capture() && self.bring_home(Ask::Wait, None)
    }

    fn may_capture(&self) -> bool {
        self.source.device().sharing_host_memory().iter().any(Stream::any_capturing)
    }

    /// Past the cap of what waits, an allocation waits too.
    fn hold_the_cap(&self) {
        let cap = self.settings.quarantine_bytes;
        let over = || bytes_of(self.waiting_units.load(Ordering::Relaxed)) > cap;
        while over() && self.wait_for_the_oldest() {}
    }

    fn is_full(&self, layout: Layout) -> Error {
        let counts = self.counts();
        let message = format!(
            "{} bytes of page-locked memory were asked of a pool that holds {} of at most {}, {} of \
             them in use and {} waiting for the device",
            layout.size(),
            counts.reserved,
            self.settings.maximum,
            counts.live,
            counts.waiting,
        );
        let error = Error::new(ErrorKind::OutOfMemory, message);
        if counts.waiting > 0 && self.may_capture() {
            return error.advise("what waits can be had again when the capture has ended");
        }
        error.advise("free memory, ask for less, or build the pool with a larger maximum_size")
    }

    /// Waits for the devices, and unpins every slab of which nothing is in use.
    pub(super) fn trim(&self) -> Result<usize> {
        not_forked("page-locked memory")?;
        self.reclaim();
        self.queue_strays();
        if self.waiting.len() > 0 {
            // The fence goes before the wait, and is asked after.
            self.bring_home(Ask::Once, None);
            for device in self.source.device().sharing_host_memory() {
                no_capture(&device)?;
                // A broken context is reported when its fence is asked, and its blocks are leaked.
                let _ = device.synchronize();
            }
            self.bring_home(Ask::Once, None);
        }
        Ok(self.unpin(usize::MAX))
    }
}

fn too_much(size: usize, align: usize) -> Error {
    let most = bytes_of(u64::from(u32::MAX));
    if size.checked_add(align).is_none_or(|bytes| bytes > isize::MAX as usize - 4096) {
        return too_large(size, align);
    }
    Error::new(
        ErrorKind::InvalidArgument,
        format!("{size} bytes were asked of a pool whose largest block is {most}"),
    )
    .advise("take so large a block from a PinnedResource")
}

/// The largest `maximum_size`: whole pages of an address space.
pub(super) const LARGEST: usize = usize::MAX >> UNIT_SHIFT << UNIT_SHIFT & !4095;
