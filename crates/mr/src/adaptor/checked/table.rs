//! The table of live and freed blocks.
//!
//! # State table
//!
//! The state of an address changes under the lock of its shard.
//!
//! | state | event | next state, or misuse |
//! |---|---|---|
//! | absent | upstream hands it out | live |
//! | absent | free | [`MisuseKind::ForeignPointer`] |
//! | live | free of the right size and token | freed |
//! | live | free of another size or token | [`MisuseKind::WrongSize`] or [`MisuseKind::WrongToken`] |
//! | live | upstream hands it out | live; [`MisuseKind::HandedOutTwice`] |
//! | freed | upstream hands it out | live |
//! | freed | free | [`MisuseKind::DoubleFree`] |
//! | freed | [`REMEMBERED`] later frees in its shard | absent |

use super::misuse::{BlockUse, MisuseKind};
use crate::adaptor::shards::Shards;
use crate::heap::AddressMap;
use std::collections::VecDeque;

/// Freed addresses that each of the shards remembers.
const REMEMBERED: usize = 1024;

enum CheckedBlock {
    /// With its allocation.
    Live(BlockUse),
    /// With its free, and the number of that free in the shard.
    Freed(BlockUse, u64),
}

impl CheckedBlock {
    fn allocation(&self) -> Option<&BlockUse> {
        match self {
            Self::Live(allocation) => Some(allocation),
            Self::Freed(..) => None,
        }
    }
}

/// The error is the misuse, and the earlier call on the block.
type Freed = Result<BlockUse, (MisuseKind, Option<BlockUse>)>;

#[derive(Default)]
struct CheckedShard {
    blocks: AddressMap<u64, CheckedBlock>,
    /// Addresses and numbers of frees, oldest first. An entry is stale if its address was handed out
    /// since. The block is then live, or has another number.
    freed: VecDeque<(u64, u64)>,
    frees: u64,
}

impl CheckedShard {
    /// Gives the allocation that was live at the address.
    fn insert(&mut self, allocation: BlockUse) -> Option<BlockUse> {
        match self.blocks.insert(allocation.address, CheckedBlock::Live(allocation)) {
            Some(CheckedBlock::Live(before)) => Some(before),
            Some(CheckedBlock::Freed(..)) | None => None,
        }
    }

    /// Marks the block as freed and gives its allocation. A misuse changes nothing.
    fn free(&mut self, call: &BlockUse) -> Freed {
        let allocation = match self.blocks.get(&call.address) {
            None => return Err((MisuseKind::ForeignPointer, None)),
            Some(CheckedBlock::Freed(first, _)) => {
                return Err((MisuseKind::DoubleFree, Some(first.clone())));
            }
            Some(CheckedBlock::Live(allocation)) => allocation.clone(),
        };
        if allocation.bytes != call.bytes {
            return Err((MisuseKind::WrongSize, Some(allocation)));
        }
        if allocation.token != call.token {
            return Err((MisuseKind::WrongToken, Some(allocation)));
        }
        self.frees += 1;
        self.blocks.insert(call.address, CheckedBlock::Freed(call.clone(), self.frees));
        self.freed.push_back((call.address, self.frees));
        if self.freed.len() > REMEMBERED
            && let Some((address, number)) = self.freed.pop_front()
            && matches!(self.blocks.get(&address), Some(CheckedBlock::Freed(_, last)) if *last == number)
        {
            self.blocks.remove(&address);
        }
        Ok(allocation)
    }
}

#[derive(Default)]
pub(super) struct CheckedTable {
    shards: Shards<CheckedShard>,
}

impl CheckedTable {
    /// Adds a block, and gives the allocation that was live at its address.
    pub(super) fn add(&self, allocation: BlockUse) -> Option<BlockUse> {
        self.shards.of(allocation.address).insert(allocation)
    }

    /// Marks the block as freed and gives its allocation, or the misuse.
    pub(super) fn free(&self, call: &BlockUse) -> Freed {
        let freed = self.shards.of(call.address).free(call);
        match freed {
            Err((MisuseKind::ForeignPointer, None)) => {
                Err((MisuseKind::ForeignPointer, self.around(call.address)))
            }
            freed => freed,
        }
    }

    /// The allocation of the live block that starts at this address.
    pub(super) fn live(&self, address: u64) -> Option<BlockUse> {
        self.shards.of(address).blocks.get(&address)?.allocation().cloned()
    }

    /// The allocation of the live block around this address. The search goes through all
    /// blocks, so it is for reports alone.
    fn around(&self, address: u64) -> Option<BlockUse> {
        let shards = self.shards.all();
        let mut blocks = shards.iter().flat_map(|shard| shard.blocks.values());
        let around = |block: &BlockUse| {
            address.checked_sub(block.address).is_some_and(|offset| offset < block.bytes as u64)
        };
        blocks.find_map(|block| block.allocation().filter(|block| around(block))).cloned()
    }
}

#[cfg(test)]
mod tests;
