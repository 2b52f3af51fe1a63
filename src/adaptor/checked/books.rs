//! Which blocks are out, and which came back lately.

use super::misuse::{BlockUse, MisuseKind};
use crate::adaptor::shards::Shards;
use std::collections::{HashMap, VecDeque};

/// Freed addresses that each of the shards remembers.
const REMEMBERED: usize = 1024;

enum Entry {
    Live(BlockUse),
    /// The number tells it from a later entry of the same address.
    Freed(BlockUse, u64),
}

#[derive(Default)]
struct Shard {
    entries: HashMap<u64, Entry>,
    freed: VecDeque<(u64, u64)>,
    frees: u64,
}

impl Shard {
    fn insert(&mut self, known: BlockUse) -> Option<BlockUse> {
        match self.entries.insert(known.address, Entry::Live(known)) {
            Some(Entry::Live(before)) => Some(before),
            Some(Entry::Freed(..)) | None => None,
        }
    }

    /// Marks the block as freed, or says what is wrong and leaves it as it is.
    fn free(&mut self, call: &BlockUse) -> Result<BlockUse, (MisuseKind, Option<BlockUse>)> {
        let known = match self.entries.get(&call.address) {
            None => return Err((MisuseKind::ForeignPointer, None)),
            Some(Entry::Freed(first, _)) => {
                return Err((MisuseKind::DoubleFree, Some(first.clone())));
            }
            Some(Entry::Live(known)) => known.clone(),
        };
        if known.bytes != call.bytes {
            return Err((MisuseKind::WrongSize, Some(known)));
        }
        if known.token != call.token {
            return Err((MisuseKind::WrongToken, Some(known)));
        }
        self.frees += 1;
        self.entries.insert(call.address, Entry::Freed(call.clone(), self.frees));
        self.freed.push_back((call.address, self.frees));
        if self.freed.len() > REMEMBERED
            && let Some((address, number)) = self.freed.pop_front()
            && matches!(self.entries.get(&address), Some(Entry::Freed(_, last)) if *last == number)
        {
            self.entries.remove(&address);
        }
        Ok(known)
    }
}

#[derive(Default)]
pub(super) struct Books {
    shards: Shards<Shard>,
}

impl Books {
    /// Enters a block; gives the one that was still out at its address.
    pub(super) fn add(&self, known: BlockUse) -> Option<BlockUse> {
        self.shards.of(known.address).insert(known)
    }

    /// Marks the block as freed and gives its allocation, or says what is wrong.
    pub(super) fn free(&self, call: &BlockUse) -> Result<BlockUse, (MisuseKind, Option<BlockUse>)> {
        let found = self.shards.of(call.address).free(call);
        match found {
            Err((MisuseKind::ForeignPointer, None)) => {
                Err((MisuseKind::ForeignPointer, self.around(call.address)))
            }
            found => found,
        }
    }

    /// The block that is out at this very address.
    pub(super) fn live(&self, address: u64) -> Option<BlockUse> {
        match self.shards.of(address).entries.get(&address) {
            Some(Entry::Live(known)) => Some(known.clone()),
            Some(Entry::Freed(..)) | None => None,
        }
    }

    /// The block that is out and holds this address. Looks at all of them: for reports alone.
    fn around(&self, address: u64) -> Option<BlockUse> {
        let shards = self.shards.all();
        let live =
            shards.iter().flat_map(|shard| shard.entries.values()).filter_map(
                |entry| match entry {
                    Entry::Live(known) => Some(known),
                    Entry::Freed(..) => None,
                },
            );
        let holds = |known: &&BlockUse| {
            address.checked_sub(known.address).is_some_and(|offset| offset < known.bytes as u64)
        };
        live.into_iter().find(holds).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    fn call(address: u64) -> BlockUse {
        let thread = thread::current().id();
        BlockUse { address, bytes: 256, token: address, stream: 0, thread, after: Duration::ZERO }
    }

    #[test]
    fn what_is_remembered_is_bounded_and_living_blocks_stay() {
        let mut shard = Shard::default();
        assert!(shard.insert(call(1)).is_none());
        for address in 2..3 * REMEMBERED as u64 {
            // One address again and again, among others: its stale notes must not remove it.
            for address in [address, 2] {
                assert!(shard.insert(call(address)).is_none());
                assert_eq!(shard.free(&call(address)).unwrap(), call(address));
                assert!(matches!(
                    shard.free(&call(address)),
                    Err((MisuseKind::DoubleFree, Some(_)))
                ));
            }
            assert!(shard.freed.len() <= REMEMBERED && shard.entries.len() <= REMEMBERED + 1);
        }
        assert!(matches!(shard.free(&call(5)), Err((MisuseKind::ForeignPointer, None))));
        assert!(shard.free(&call(1)).is_ok());
    }
}
