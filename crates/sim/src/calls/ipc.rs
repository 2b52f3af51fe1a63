//! Sharing memory with other processes, as far as this process goes. It alone can open its handles. Opened memory is a
//! second address of the block, so that accesses by either are checked against each other.

use super::call::Call;
use crate::check::OpName;
use crate::driver::SimDriver;
use crate::state::{BlockKind, Import};
use aquifer_driver::ipc::SIMULATED_UUID;
use aquifer_driver::{
    AllocationKind, DeviceAddress, DeviceRange, DriverResult, IpcBytes, IpcCalls, RawHandle,
    RawPool,
};
use aquifer_sync::OnceLock;
#[cfg(unix)]
use aquifer_sync::trusted::unique;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
#[cfg(unix)]
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};

/// A number that no other process has. It is not the process id, since those are used again.
fn process_number() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| RandomState::new().build_hasher().finish())
}

/// The content of a handle, which is what it is of and where that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Exported {
    what: u64,
    device: u64,
    /// The pool, or 0 without one.
    pool: u64,
    /// The block or the handle, or 0 for the pool itself.
    block: u64,
}

const PLAIN: u64 = u64::from_le_bytes(*b"simplain");
#[cfg(unix)]
const POOL: u64 = u64::from_le_bytes(*b"sim pool");
#[cfg(unix)]
const HANDLE: u64 = u64::from_le_bytes(*b"sim hndl");
const IN_POOL: u64 = u64::from_le_bytes(*b"sim ptr\0");

impl Exported {
    fn to_bytes(self) -> IpcBytes {
        let mut bytes = [0; 64];
        let words = [self.what, process_number(), self.device, self.pool, self.block];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None` if the bytes are no handle of this kind and this process.
    fn from_bytes(bytes: &IpcBytes, what: u64) -> Option<Self> {
        let mut words = [0; 8];
        for (word, place) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*place);
        }
        let [found, process, device, pool, block, 0, 0, 0] = words else { return None };
        let is_ours = found == what && process == process_number();
        is_ours.then_some(Self { what, device, pool, block })
    }

    /// Reads a file of [`Call::descriptor`], with [`from_bytes`](Self::from_bytes).
    #[cfg(unix)]
    fn read(descriptor: BorrowedFd<'_>, what: u64) -> Option<Self> {
        let mut bytes = [0; 64];
        // From the start of a file, so that a descriptor serves often; of what is no file, an error at once.
        let read = rustix::io::pread(descriptor, &mut bytes, 0);
        Self::from_bytes(&bytes, what).filter(|_| read == Ok(bytes.len()))
    }
}

impl IpcCalls for SimDriver {
    fn uuid(&self) -> DriverResult<[u8; 16]> {
        let call = self.call("cuDeviceGetUuid")?;
        let mut uuid = [0; 16];
        uuid[..4].copy_from_slice(&SIMULATED_UUID);
        uuid[4..8].copy_from_slice(&std::process::id().to_le_bytes());
        uuid[8..].copy_from_slice(&call.context.id.to_le_bytes());
        Ok(uuid)
    }

    fn allocation_kind(&self, address: DeviceAddress) -> DriverResult<AllocationKind> {
        let call = self.call("cuPointerGetAttributes")?;
        let id = call.context.id;
        let found = call.state.blocks.around(address).filter(|(_, block)| block.device == id);
        Ok(match found.map(|(_, block)| block.kind) {
            Some(BlockKind::Device) => AllocationKind::Plain,
            Some(BlockKind::Pool(pool)) => AllocationKind::Pool(RawPool(pool)),
            Some(BlockKind::Managed) => AllocationKind::Managed,
            Some(BlockKind::Host(_) | BlockKind::Registered(_) | BlockKind::Pageable) => {
                AllocationKind::Host
            }
            Some(BlockKind::Reserved) | None => AllocationKind::Other,
        })
    }

    fn allocation_range(&self, address: DeviceAddress) -> DriverResult<DeviceRange> {
        let call = self.call("cuMemGetAddressRange")?;
        let blocks = &call.state.blocks;
        let imported = || blocks.imports.around(address).map(|(start, it)| (start, it.bytes));
        let own = blocks.around(address).and_then(|(start, block)| match block.kind {
            BlockKind::Reserved => {
                let (at, mapping) = block.mappings.around(address - start)?;
                Some((start + at, mapping.bytes))
            }
            _ => Some((start, block.bytes)),
        });
        match own.or_else(imported) {
            Some((address, bytes)) => Ok(DeviceRange { address, bytes: bytes as usize }),
            None => call.invalid(),
        }
    }

    fn ipc_export(&self, base: DeviceAddress) -> DriverResult<IpcBytes> {
        let call = self.call("cuIpcGetMemHandle")?;
        let device = call.context.id;
        match call.state.blocks.get(base) {
            Some(block) if (block.device, block.kind) == (device, BlockKind::Device) => {
                Ok(Exported { what: PLAIN, device, pool: 0, block: base }.to_bytes())
            }
            _ => call.invalid(),
        }
    }

    fn ipc_open(&self, exported: &IpcBytes) -> DriverResult<DeviceAddress> {
        let mut call = self.call("cuIpcOpenMemHandle")?;
        match Exported::from_bytes(exported, PLAIN) {
            Some(found) if (found.device, found.pool) == (call.context.id, 0) => {
                call.open(found.block, BlockKind::Device, 0)
            }
            _ => call.invalid(),
        }
    }

    unsafe fn ipc_close(&self, base: DeviceAddress) -> DriverResult<()> {
        self.call("cuIpcCloseMemHandle")?.close(base, false)
    }

    fn pool_export_pointer(&self, base: DeviceAddress) -> DriverResult<IpcBytes> {
        let mut call = self.call("cuMemPoolExportPointer")?;
        let device = call.context.id;
        let found = call.state.blocks.get(base).filter(|block| block.device == device);
        let Some(BlockKind::Pool(pool)) = found.map(|block| block.kind) else {
            return call.invalid();
        };
        if !call.pool(RawPool(pool)).is_ok_and(|pool| pool.shareable) {
            return call.invalid();
        }
        Ok(Exported { what: IN_POOL, device, pool, block: base }.to_bytes())
    }

    #[cfg(unix)]
    fn pool_import(&self, descriptor: BorrowedFd<'_>) -> DriverResult<RawPool> {
        let mut call = self.call("cuMemPoolImportFromShareableHandle")?;
        match Exported::read(descriptor, POOL) {
            Some(found) if found.device == call.context.id => {
                let imported = unique();
                call.state.imported_pools.insert(imported, (found.device, found.pool));
                Ok(RawPool(imported))
            }
            _ => call.invalid(),
        }
    }

    fn pool_import_pointer(
        &self,
        pool: RawPool,
        exported: &IpcBytes,
    ) -> DriverResult<DeviceAddress> {
        let mut call = self.call("cuMemPoolImportPointer")?;
        let imported = call.state.imported_pools.get(&pool.0).copied();
        match Exported::from_bytes(exported, IN_POOL) {
            Some(found) if imported == Some((call.context.id, found.pool)) => {
                call.open(found.block, BlockKind::Pool(found.pool), pool.0)
            }
            _ => call.invalid(),
        }
    }

    unsafe fn pool_close_pointer(&self, base: DeviceAddress) -> DriverResult<()> {
        self.call("cuMemFree")?.close(base, true)
    }
}

impl Call<'_> {
    #[cfg(unix)]
    pub(super) fn pool_descriptor(&self, pool: RawPool) -> DriverResult<i32> {
        let (device, pool) = (self.context.id, pool.0);
        let made = self.descriptor(Exported { what: POOL, device, pool, block: 0 });
        made.map(IntoRawFd::into_raw_fd)
    }

    #[cfg(unix)]
    pub(super) fn handle_descriptor(&self, handle: RawHandle) -> DriverResult<OwnedFd> {
        let (device, block) = (self.context.id, handle.0);
        self.descriptor(Exported { what: HANDLE, device, pool: 0, block })
    }

    /// The handle of this device behind a descriptor.
    #[cfg(unix)]
    pub(super) fn handle_of(&self, descriptor: BorrowedFd<'_>) -> Option<RawHandle> {
        let found = Exported::read(descriptor, HANDLE);
        found.filter(|it| it.device == self.context.id).map(|it| RawHandle(it.block))
    }

    /// A descriptor of a file without a name, which has the bytes of the handle.
    #[cfg(target_os = "linux")]
    fn descriptor(&self, exported: Exported) -> DriverResult<OwnedFd> {
        use rustix::fs::{MemfdFlags, memfd_create};

        let written = memfd_create("aquifer simulated memory", MemfdFlags::CLOEXEC)
            .and_then(|file| rustix::io::write(&file, &exported.to_bytes()).map(|_| file));
        match written {
            Ok(file) => Ok(file),
            Err(_) => self.refuse(aquifer_driver::error::DriverError::OPERATING_SYSTEM),
        }
    }

    #[cfg(all(unix, not(target_os = "linux")))]
    fn descriptor(&self, _exported: Exported) -> DriverResult<OwnedFd> {
        self.refuse(aquifer_driver::error::DriverError::NOT_SUPPORTED)
    }

    /// Forgets an imported pool of this device. `false` if the pool is no such one.
    pub(super) fn forget_imported_pool(&mut self, pool: RawPool) -> bool {
        let own = self.context.id;
        let imported = &mut self.state.imported_pools;
        let is_own = imported.get(&pool.0).is_some_and(|(device, _)| *device == own);
        is_own && imported.remove(&pool.0).is_some()
    }

    /// Gives a block of this device another address. A second opening gives the same one, as the manual
    /// has it.
    fn open(&mut self, base: u64, kind: BlockKind, pool: u64) -> DriverResult<DeviceAddress> {
        let device = self.context.id;
        let found = self.state.blocks.get(base).filter(|it| (it.device, it.kind) == (device, kind));
        let Some(block) = found else { return self.invalid() };
        let (bytes, pointer) = (block.bytes, block.backing.pointer());
        if let Some(address) = self.state.blocks.imports.open_again(device, base, pool) {
            return Ok(address);
        }
        let Some(address) = self.next_address(bytes, pointer) else {
            return self.out_of_memory();
        };
        let by = OpName::call(self.name);
        let import = Import { device, block: base, bytes, pool, by, count: 1 };
        self.state.blocks.imports.insert(address, import);
        Ok(address)
    }

    fn close(&mut self, address: u64, by_pool: bool) -> DriverResult<()> {
        let (name, device) = (OpName::call(self.name), self.context.id);
        match self.state.blocks.imports.close(address, device, by_pool) {
            Some(closed) => {
                if let Some(import) = closed {
                    self.state.blocks.forget_import(address, import.bytes, name);
                }
                Ok(())
            }
            None => self.invalid(),
        }
    }
}
