//! Blocks that were freed while the device may still use them.
//!
//! `deallocate` of page-locked memory has no stream: another library's copy may still run. So a
//! freed block waits here until a fence, recorded *after* the block came in, is complete. Order is
//! not enough for host memory: a stream wait does not stop the CPU.

#![allow(unreachable_pub, reason = "the models of loom_tests reach it through `models`")]

use crate::sync::{AtomicUsize, Mutex, Ordering};
use std::collections::VecDeque;

/// Blocks of type `B` that wait for fences of type `F`.
#[derive(Debug)]
pub struct Pending<B, F> {
    waiting: Mutex<Waiting<B, F>>,
    count: AtomicUsize,
}

#[derive(Debug)]
struct Waiting<B, F> {
    /// Freed, and covered by no fence yet.
    fresh: Vec<B>,
    /// Covered by a fence that was recorded after they came in; oldest first.
    fenced: VecDeque<(F, Vec<B>)>,
}

/// What a fence's maker or reader can answer besides a fence.
#[derive(Debug, PartialEq, Eq)]
pub enum Unfenced {
    /// Not now: a capture may be running, which a fence would invalidate. The blocks wait.
    Later,
    /// Never: the device cannot say any more. The blocks are leaked.
    Never,
}

impl<B, F> Default for Pending<B, F> {
    fn default() -> Self {
        Self {
            waiting: Mutex::new(Waiting { fresh: Vec::new(), fenced: VecDeque::new() }),
            count: AtomicUsize::new(0),
        }
    }
}

impl<B, F> Pending<B, F> {
    /// Blocks that wait, as of some moment during the call.
    pub fn len(&self) -> usize {
        // Relaxed: a hint whether collecting is worth a lock; the lock orders the blocks.
        self.count.load(Ordering::Relaxed)
    }

    /// Takes a freed block in. Bookkeeping alone: no driver call, no wait.
    pub fn push(&self, block: B) {
        let mut waiting = self.waiting.lock();
        waiting.fresh.push(block);
        #[cfg(aquifer_fault = "block_counted_late")]
        drop(waiting);
        // Still under the lock: whoever takes the block out finds it counted.
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads something off a waiting block, if there is one.
    pub fn peek<R>(&self, read: impl FnOnce(&B) -> R) -> Option<R> {
        let waiting = self.waiting.lock();
        let fenced = waiting.fenced.iter().flat_map(|(_, blocks)| blocks);
        waiting.fresh.iter().chain(fenced).next().map(read)
    }

    /// Takes out what the device has passed. `fence` records one fence for all that came in before;
    /// `passed` asks one. Neither is called under the lock. Blocks whose fence answers
    /// [`Unfenced::Never`] come back in `lost`.
    pub fn collect(
        &self,
        fence: impl FnOnce() -> Result<F, Unfenced>,
        passed: impl Fn(&F) -> Result<bool, Unfenced>,
    ) -> Collected<B> {
        let mut collected = Collected { free: Vec::new(), lost: Vec::new() };
        #[cfg(aquifer_fault = "fence_before_take")]
        let fence = {
            let early = fence();
            || early
        };
        // Blocks leave `fresh` before the fence is recorded: one that comes in meanwhile may have
        // work in flight that this fence does not cover, so it waits for the next.
        let fresh = std::mem::take(&mut self.waiting.lock().fresh);
        let fence = if fresh.is_empty() { Err(Unfenced::Later) } else { fence() };
        match fence {
            Ok(fence) => self.waiting.lock().fenced.push_back((fence, fresh)),
            #[cfg(not(aquifer_fault = "unfenced_lost"))]
            Err(Unfenced::Later) if !fresh.is_empty() => self.waiting.lock().fresh.extend(fresh),
            Err(Unfenced::Later) => {}
            Err(Unfenced::Never) => collected.lost = fresh,
        }
        loop {
            let Some((fence, blocks)) = self.waiting.lock().fenced.pop_front() else { break };
            match passed(&fence) {
                #[cfg(not(aquifer_fault = "free_unpassed"))]
                Ok(false) | Err(Unfenced::Later) => {
                    #[cfg(not(aquifer_fault = "put_back_lost"))]
                    self.waiting.lock().fenced.push_front((fence, blocks));
                    break;
                }
                #[cfg(aquifer_fault = "free_unpassed")]
                Ok(false) | Err(Unfenced::Later) => collected.free.extend(blocks),
                Ok(true) => collected.free.extend(blocks),
                Err(Unfenced::Never) => collected.lost.extend(blocks),
            }
        }
        self.count.fetch_sub(collected.free.len() + collected.lost.len(), Ordering::Relaxed);
        collected
    }
}

/// What [`Pending::collect`] took out.
#[derive(Debug)]
pub struct Collected<B> {
    /// The device has passed every use.
    pub free: Vec<B>,
    /// Nobody can say; leak them.
    pub lost: Vec<B>,
}
