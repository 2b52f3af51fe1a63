//! Freed memory that the device may still use.
//!
//! Page-locked memory is freed without a stream. So a `Vec` may drop while another library's copy still reads from it.
//! A freed block stays in *quarantine* until the devices have passed a *fence* that was recorded after the free. The
//! order of streams is not enough here, since a stream that waits does not stop the CPU.
//!
//! # One fence covers every block that is in quarantine at its record
//!
//! A fence belongs to a point in time and not to a block or a batch. Each record covers all blocks
//! that came in since the record before it, so a thousand frees may cost one fence.
//!
//! `collect_all` needs no fence of its own kind. A fence that passes at once covers all blocks that came in before it
//! was recorded. That includes blocks that wait for an older fence which is wider.
//!
//! # Locks and words
//!
//! | word | what it guards or says | who writes it |
//! | --- | --- | --- |
//! | `lists` | the blocks | every thread that frees or collects; never held over a driver call |
//! | `count` | how many blocks there are, as a hint | `push`, under `lists`; `collect`, for the blocks that it returns |
//!
//! # State table of a block
//!
//! | state | where it lies | next state |
//! | --- | --- | --- |
//! | uncovered: no fence was recorded since the free | `Lists::uncovered` | *taken*, with all other uncovered blocks, by the next `collect` |
//! | taken by `collect_all`, from either list | a local of `collect_all` | *free* if its fence passes; else back where it was |
//! | taken: its fence is being recorded | a local of `collect` | *fenced*; *uncovered* after [`FenceError::NotNow`]; *lost* after [`FenceError::DeviceLost`] |
//! | fenced: the devices may not have passed the fence yet | `Lists::fenced`, the oldest fence first | *queried*, by the next `collect` that comes to it |
//! | queried | a local of `collect` | *free* if the fence has passed; *fenced* if it has not; *lost* after [`FenceError::DeviceLost`] |
//! | free, lost | [`Collected`] | none: they are the caller's |
//!
//! # Invariants
//!
//! - INV-PINNED-1. A block is *taken* before its fence is recorded. Else a block that comes in between the record and
//!   the taking would have a fence that does not cover its last use.
//! - INV-PINNED-2. A block is in one state at any time, so it comes back once.
//! - INV-PINNED-3. `count` is never less than the number of blocks that `lists` shows.
//! - INV-PINNED-4. No lock is held while a fence is recorded or queried.
//!
//! `loom_tests/quarantine.rs` checks them.

#![allow(unreachable_pub, reason = "the models of loom_tests reach it through `models`")]

use crate::sync::{AtomicUsize, Mutex, Ordering};
use std::collections::VecDeque;

/// Blocks of type `B` that wait for fences of type `F`.
#[derive(Debug)]
pub struct Quarantine<B, F> {
    lists: Mutex<Lists<B, F>>,
    count: AtomicUsize,
}

impl<B, F> Default for Lists<B, F> {
    fn default() -> Self {
        Self { uncovered: Vec::new(), fenced: VecDeque::new() }
    }
}

#[derive(Debug)]
struct Lists<B, F> {
    /// The blocks that were freed and that no fence covers yet.
    uncovered: Vec<B>,
    /// The blocks that a fence covers, which was recorded after they came in. The oldest fence is first.
    fenced: VecDeque<(F, Vec<B>)>,
}

/// The reason why a fence could not be recorded or queried.
#[derive(Debug, PartialEq, Eq)]
pub enum FenceError {
    /// A capture may be running, which a fence would invalidate. The blocks stay.
    NotNow,
    /// The device can never answer again. The blocks are leaked.
    DeviceLost,
}

impl<B, F> Default for Quarantine<B, F> {
    fn default() -> Self {
        Self { lists: Mutex::new(Lists::default()), count: AtomicUsize::new(0) }
    }
}

impl<B, F> Quarantine<B, F> {
    /// The number of blocks at some moment during the call.
    pub fn len(&self) -> usize {
        // Relaxed: a hint whether collecting is worth a lock; the lock orders the blocks.
        self.count.load(Ordering::Relaxed)
    }

    /// Takes a freed block in. No driver call, no wait.
    pub fn push(&self, block: B) {
        let mut lists = self.lists.lock();
        lists.uncovered.push(block);
        // INV-PINNED-3: under the lock, so a thread that takes the block out finds it counted.
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// The oldest fence of a block, to wait for. A block that another thread takes out just now is overlooked.
    pub fn oldest_fence(&self) -> Option<F>
    where
        F: Clone,
    {
        self.lists.lock().fenced.front().map(|(fence, _)| fence.clone())
    }

    /// Reads something off any one of the blocks.
    pub fn peek<R>(&self, read: impl FnOnce(&B) -> R) -> Option<R> {
        let lists = self.lists.lock();
        let fenced = lists.fenced.iter().flat_map(|(_, blocks)| blocks);
        lists.uncovered.iter().chain(fenced).next().map(read)
    }

    /// Takes out the blocks whose fence the devices have passed, and those whose fence never will.
    ///
    /// `record` records one fence for all blocks that have none, and is not called if all have one. `query` says
    /// whether the devices have passed a fence.
    pub fn collect(
        &self,
        record: impl FnOnce() -> Result<F, FenceError>,
        query: impl Fn(&F) -> Result<bool, FenceError>,
    ) -> Collected<B> {
        let mut collected = Collected { free: Vec::new(), lost: Vec::new() };
        // INV-PINNED-1: taken first. A block that comes in from here on waits for the next fence.
        let taken = std::mem::take(&mut self.lists.lock().uncovered);
        if !taken.is_empty() {
            match record() {
                Ok(fence) => self.lists.lock().fenced.push_back((fence, taken)),
                Err(FenceError::NotNow) => self.lists.lock().uncovered.extend(taken),
                Err(FenceError::DeviceLost) => collected.lost = taken,
            }
        }
        loop {
            let Some((fence, blocks)) = self.lists.lock().fenced.pop_front() else { break };
            match query(&fence) {
                Ok(false) | Err(FenceError::NotNow) => {
                    self.lists.lock().fenced.push_front((fence, blocks));
                    break;
                }
                Ok(true) => collected.free.extend(blocks),
                Err(FenceError::DeviceLost) => collected.lost.extend(blocks),
            }
        }
        self.count.fetch_sub(collected.free.len() + collected.lost.len(), Ordering::Relaxed);
        collected
    }

    /// Takes out all blocks, if `has_passed`: that records a fence for all that may use one of them, and says whether the
    /// devices have passed it already.
    pub fn collect_all(&self, has_passed: impl FnOnce() -> bool) -> Vec<B> {
        // INV-PINNED-1: taken first.
        let Lists { uncovered, fenced } = std::mem::take(&mut *self.lists.lock());
        let count = uncovered.len() + fenced.iter().map(|(_, blocks)| blocks.len()).sum::<usize>();
        if count == 0 {
            return Vec::new();
        }
        if has_passed() {
            self.count.fetch_sub(count, Ordering::Relaxed);
            return uncovered.into_iter().chain(fenced.into_iter().flat_map(|it| it.1)).collect();
        }
        let mut lists = self.lists.lock();
        lists.uncovered.extend(uncovered);
        // What another thread has fenced meanwhile came in later.
        let later = std::mem::replace(&mut lists.fenced, fenced);
        lists.fenced.extend(later);
        Vec::new()
    }
}

/// The blocks that [`Quarantine::collect`] took out.
#[derive(Debug)]
pub struct Collected<B> {
    /// The devices have passed every use.
    pub free: Vec<B>,
    /// The device is lost and may write to them at any time, so the caller leaks them.
    pub lost: Vec<B>,
}
