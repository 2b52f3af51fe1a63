//! Memory that was opened by a handle of this process, as a second address of a block.

use crate::check::OpName;
use std::collections::BTreeMap;

/// A block at another address.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) device: u64,
    /// Where the block begins. No address of device memory is used again, so no other block is ever there.
    pub(crate) block: u64,
    pub(crate) bytes: u64,
    /// The pool that it was opened by, or 0 without one.
    pub(crate) pool: u64,
    /// The call that opened it.
    pub(crate) by: OpName,
    /// How often it was opened and not closed.
    pub(crate) count: u64,
}

/// All imports, by address.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    by_address: BTreeMap<u64, Import>,
}

impl Imports {
    /// The block's own address for one of a block that was opened. Any other address stays as it is.
    pub(crate) fn resolve(&self, address: u64) -> u64 {
        let found = self.around(address);
        found.map_or(address, |(start, import)| import.block + (address - start))
    }

    /// The import around an address, and where it begins.
    pub(crate) fn around(&self, address: u64) -> Option<(u64, &Import)> {
        let (&start, import) = self.by_address.range(..=address).next_back()?;
        (address - start < import.bytes).then_some((start, import))
    }

    /// The import of a block.
    pub(crate) fn of_block(&self, block: u64) -> Option<&Import> {
        self.by_address.values().find(|import| import.block == block)
    }

    /// Counts another opening of a block by the same way. Returns where the import lies.
    pub(crate) fn open_again(&mut self, device: u64, block: u64, pool: u64) -> Option<u64> {
        let same = |import: &Import| (import.device, import.block, import.pool);
        let (&start, import) =
            self.by_address.iter_mut().find(|(_, it)| same(it) == (device, block, pool))?;
        import.count += 1;
        Some(start)
    }

    pub(crate) fn insert(&mut self, address: u64, import: Import) {
        self.by_address.insert(address, import);
    }

    /// Closes an import at `address` by a device, through a pool or not. `None` if there is none. Inside is the import
    /// itself, if that was its last opening.
    pub(crate) fn close(
        &mut self,
        address: u64,
        device: u64,
        by_pool: bool,
    ) -> Option<Option<Import>> {
        let import = self.by_address.get_mut(&address)?;
        if (import.device, import.pool != 0) != (device, by_pool) {
            return None;
        }
        import.count -= 1;
        Some(if import.count == 0 { self.by_address.remove(&address) } else { None })
    }

    pub(crate) fn remove_device(&mut self, device: u64) {
        self.by_address.retain(|_, import| import.device != device);
    }
}
