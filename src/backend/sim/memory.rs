//! Allocating and freeing: capacity, addresses, and the checks that a free asks for.

use super::backing::Backing;
use super::capture;
use super::clock::Stamp;
use super::enqueue::unmapped;
use super::ledger::Ledger;
use super::queue::{Hold, Op, Work};
use super::report::{OpName, Violation};
use super::schedule::{self, Progress};
use super::shadow::Shadow;
use super::table::{ADDRESS_RANGE, Block, Kind};
use super::world::{Held, State, UNKNOWN, WORLD, is_seen};
use crate::backend::{DeviceAddress, DriverResult, HostFlags, RawPool, RawStream};
use crate::error::DriverError;
use crate::sync::Arc;
use std::ptr::NonNull;

/// Device memory is aligned to this, as a GPU's is.
const ALIGNMENT: usize = 256;
/// Page-locked host memory and managed memory are aligned to a page.
const PAGE: usize = 4096;
/// Between two blocks, so that one byte past the end of one is not the next one.
const GAP: u64 = 256;

/// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`.
const ALREADY_REGISTERED: u32 = 712;
/// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED`.
const NOT_REGISTERED: u32 = 713;

fn invalid<T>(call: &'static str) -> DriverResult<T> {
    Err(DriverError::new(call, DriverError::INVALID_VALUE))
}

fn no_room(call: &'static str) -> DriverError {
    DriverError::new(call, DriverError::OUT_OF_MEMORY)
}

/// Takes `bytes` of the device's capacity. Frees in stream order that have not run give theirs
/// back late, so these are waited for before it is too little, as a driver does.
fn reserve(held: &mut Held, ledger: &Ledger, call: &'static str, bytes: u64) -> DriverResult<()> {
    loop {
        ledger.alive(call)?;
        let Some(device) = held.devices.get_mut(&ledger.device) else {
            return Err(DriverError::new(call, UNKNOWN));
        };
        match device.used.checked_add(bytes) {
            Some(used) if used <= ledger.config.capacity => {
                device.used = used;
                return Ok(());
            }
            _ if device.pending_frees == 0 || bytes > ledger.config.capacity => {
                return Err(no_room(call));
            }
            _ => match schedule::advance(held, ledger.device) {
                Progress::Ran => {}
                Progress::Busy => WORLD.turn.wait(held),
                Progress::Idle => return Err(no_room(call)),
            },
        }
    }
}

fn unreserve(state: &mut State, device: u64, bytes: u64) {
    if let Some(device) = state.devices.get_mut(&device) {
        device.used = device.used.saturating_sub(bytes);
    }
}

/// The next free address of a device. Addresses are never used again.
fn address(state: &mut State, device: u64, bytes: u64) -> Option<u64> {
    let own = state.devices.get_mut(&device)?;
    let taken = bytes.checked_add(GAP)?.checked_next_multiple_of(ALIGNMENT as u64)?;
    if taken > own.last_address - own.next_address {
        if taken > ADDRESS_RANGE {
            return None;
        }
        own.next_address = state.table.address_range()?;
        own.last_address = own.next_address + ADDRESS_RANGE;
    }
    let address = own.next_address;
    own.next_address += taken;
    Some(address)
}

/// Allocates device memory of any kind.
pub(super) fn allocate(
    held: &mut Held,
    ledger: &Ledger,
    call: &'static str,
    bytes: usize,
    kind: Kind,
    born: Option<Stamp>,
) -> DriverResult<DeviceAddress> {
    if bytes == 0 {
        return invalid(call);
    }
    let size = bytes as u64;
    reserve(held, ledger, call, size)?;
    let alignment = if kind == Kind::Managed { PAGE } else { ALIGNMENT };
    let Some(backing) = Backing::allocate(bytes, alignment, ledger.config.poison) else {
        unreserve(held, ledger.device, size);
        return Err(no_room(call));
    };
    let address = match kind {
        Kind::Managed => Some(backing.pointer().as_ptr() as u64),
        _ => address(held, ledger.device, size),
    };
    let Some(address) = address else {
        unreserve(held, ledger.device, size);
        return Err(no_room(call));
    };
    let block = Block {
        device: ledger.device,
        bytes: size,
        kind,
        born,
        backing: Arc::new(backing),
        shadow: Shadow::new(size, kind.is_host_visible()),
    };
    held.table.insert(address, block);
    Ok(address)
}

/// Checks a pool that a call of `ledger`'s device names.
pub(super) fn own_pool(
    state: &State,
    ledger: &Ledger,
    call: &'static str,
    pool: RawPool,
) -> DriverResult<()> {
    match state.pools.get(&pool.0) {
        Some(pool) if pool.device == ledger.device => Ok(()),
        _ => Err(DriverError::new(call, DriverError::INVALID_HANDLE)),
    }
}

/// Allocates in stream order.
pub(super) fn allocate_async(
    held: &mut Held,
    ledger: &Ledger,
    pool: RawPool,
    bytes: usize,
    stream: RawStream,
) -> DriverResult<DeviceAddress> {
    let call = "cuMemAllocFromPoolAsync";
    let id = held.stream(ledger, call, stream)?;
    // In a capture this would be a node of the graph, and the memory the graph's.
    capture::forbid(held, id, call)?;
    own_pool(held, ledger, call, pool)?;
    // The stamp is taken after the room: waiting for it lets others enqueue on this stream.
    let address = allocate(held, ledger, call, bytes, Kind::Pool(pool.0), None)?;
    if let Some(pool) = held.pools.get_mut(&pool.0) {
        pool.hand_out(bytes as u64);
    }
    let (name, tick) = (OpName::on(call, id), held.tick(id));
    let op = Op { name, tick, work: Work::Nothing, holds: Vec::new(), watched: None };
    held.push(id, op);
    if let Some(block) = held.table.get_mut(address) {
        block.born = Some(Stamp { stream: id, tick, name });
    }
    Ok(address)
}

/// Reports why nothing that can be freed begins at `address`.
fn not_live(state: &State, ledger: &Ledger, name: OpName, address: u64) -> DriverError {
    match state.table.freed_by(address) {
        Some(by) => {
            let kind = Violation::DoubleFree;
            let report = ledger.report(kind, name, Some(by), (address, 0), None);
            DriverError::with_detail(name.call, DriverError::INVALID_VALUE, report)
        }
        None => unmapped(ledger, name, address, 0),
    }
}

/// Finds the block to be freed; an error if it is none of this device's that may be freed so.
fn find(
    state: &State,
    ledger: &Ledger,
    name: OpName,
    address: u64,
    right: impl Fn(Kind) -> bool,
) -> DriverResult<()> {
    match state.table.get(address) {
        None => Err(not_live(state, ledger, name, address)),
        Some(block) if block.device != ledger.device || !right(block.kind) => invalid(name.call),
        Some(_) => Ok(()),
    }
}

/// Waits until no operation holds a block that is out of the table.
fn settle(held: &mut Held, backing: &Arc<Backing>) {
    let block = Arc::as_ptr(backing) as usize;
    while Arc::strong_count(backing) > 1 {
        let holder = held.streams.values().find(|stream| {
            stream.queue.iter().any(|op| op.holds.iter().any(|hold| hold.block() == block))
        });
        let progress = match holder.map(|stream| stream.device) {
            Some(device) => schedule::advance(held, device),
            None => Progress::Busy,
        };
        match progress {
            Progress::Ran => {}
            Progress::Busy => WORLD.turn.wait(held),
            Progress::Idle => return,
        }
    }
}

/// Frees at once: what the host has not seen complete may still use it.
fn free_now(held: &mut Held, ledger: &Ledger, name: OpName, address: u64) -> Option<Block> {
    let complete = |former: &Stamp| held.is_seen(former);
    if let Some(block) = held.table.get(address) {
        let born = block.born.filter(|born| !complete(born));
        let found = block.shadow.unordered(&complete);
        let other = found.and_then(|found| found.other).or(born.map(|born| born.name));
        if other.is_some() {
            let range = found.map_or((0, block.bytes), |found| (found.start, found.end));
            let range = (address + range.0, range.1 - range.0);
            ledger.report(Violation::FreeWhileInUse, name, other, range, None);
        }
    }
    // Out of the table first: while we wait, nobody may begin to use it.
    let block = held.table.bury(address, name)?;
    settle(held, &block.backing);
    Some(block)
}

/// Frees device memory at once.
pub(super) fn free(held: &mut Held, ledger: &Ledger, address: u64) -> DriverResult<()> {
    let name = OpName::call("cuMemFree");
    find(held, ledger, name, address, Kind::is_device_memory)?;
    if let Some(block) = free_now(held, ledger, name, address) {
        unreserve(held, ledger.device, block.bytes);
        if let Kind::Pool(pool) = block.kind
            && let Some(pool) = held.pools.get_mut(&pool)
        {
            pool.take_back(block.bytes);
        }
    }
    Ok(())
}

/// Frees in stream order: everything before has to be ordered before.
pub(super) fn free_async(
    held: &mut Held,
    ledger: &Ledger,
    address: u64,
    stream: RawStream,
) -> DriverResult<()> {
    let call = "cuMemFreeAsync";
    let id = held.stream(ledger, call, stream)?;
    capture::forbid(held, id, call)?;
    let name = OpName::on(call, id);
    find(held, ledger, name, address, |kind| matches!(kind, Kind::Pool(_)))?;
    let Some(block) = held.table.bury(address, name) else { return invalid(call) };
    if let Some(stream) = held.streams.get(&id) {
        let ordered = |former: &Stamp| {
            stream.follows(id, former) || is_seen(&held.streams, former.stream, former.tick)
        };
        if let Some(born) = block.born.filter(|born| !ordered(born)) {
            let range = (address, block.bytes);
            ledger.report(Violation::UseBeforeAllocation, name, Some(born.name), range, None);
        }
        if let Some(found) = block.shadow.unordered(&ordered) {
            let range = (address + found.start, found.end - found.start);
            ledger.report(found.violation, name, found.other, range, None);
        }
    }
    let hold = Hold {
        start: block.backing.pointer().as_ptr() as usize,
        backing: block.backing,
        bytes: block.bytes as usize,
        writes: true,
        host_visible: false,
    };
    let tick = held.tick(id);
    let pool = if let Kind::Pool(pool) = block.kind { pool } else { 0 };
    let work = Work::Free { bytes: block.bytes, pool };
    held.push(id, Op { name, tick, work, holds: vec![hold], watched: None });
    Ok(())
}

/// Allocates page-locked host memory.
pub(super) fn allocate_host(
    held: &mut Held,
    ledger: &Ledger,
    bytes: usize,
    flags: HostFlags,
) -> DriverResult<NonNull<u8>> {
    let call = "cuMemHostAlloc";
    if bytes == 0 {
        return invalid(call);
    }
    if flags.mapped && !ledger.config.host_mapping {
        return Err(DriverError::new(call, DriverError::NOT_SUPPORTED));
    }
    let Some(backing) = Backing::allocate(bytes, PAGE, ledger.config.poison) else {
        return Err(no_room(call));
    };
    let pointer = backing.pointer();
    lock(held, ledger, pointer, bytes, Kind::Host(flags), backing);
    Ok(pointer)
}

fn lock(
    state: &mut State,
    ledger: &Ledger,
    pointer: NonNull<u8>,
    bytes: usize,
    kind: Kind,
    backing: Backing,
) {
    let block = Block {
        device: ledger.device,
        bytes: bytes as u64,
        kind,
        born: None,
        backing: Arc::new(backing),
        shadow: Shadow::new(bytes as u64, true),
    };
    state.table.insert(pointer.as_ptr() as u64, block);
}

/// Frees page-locked host memory.
pub(super) fn free_host(
    held: &mut Held,
    ledger: &Ledger,
    pointer: NonNull<u8>,
) -> DriverResult<()> {
    let (name, address) = (OpName::call("cuMemFreeHost"), pointer.as_ptr() as u64);
    find(held, ledger, name, address, |kind| matches!(kind, Kind::Host(_)))?;
    free_now(held, ledger, name, address);
    Ok(())
}

/// Page-locks memory of the caller.
pub(super) fn register(
    held: &mut Held,
    ledger: &Ledger,
    pointer: NonNull<u8>,
    bytes: usize,
    flags: HostFlags,
) -> DriverResult<()> {
    let call = "cuMemHostRegister";
    if !ledger.config.host_register || (flags.mapped && !ledger.config.host_mapping) {
        return Err(DriverError::new(call, DriverError::NOT_SUPPORTED));
    }
    if bytes == 0 {
        return invalid(call);
    }
    if held.table.is_taken(pointer.as_ptr() as u64, bytes as u64) {
        return Err(DriverError::new(call, ALREADY_REGISTERED));
    }
    lock(held, ledger, pointer, bytes, Kind::Registered(flags), Backing::registered(pointer));
    Ok(())
}

/// Ends a registration.
pub(super) fn unregister(
    held: &mut Held,
    ledger: &Ledger,
    pointer: NonNull<u8>,
) -> DriverResult<()> {
    let (name, address) = (OpName::call("cuMemHostUnregister"), pointer.as_ptr() as u64);
    match held.table.get(address) {
        Some(block)
            if block.device == ledger.device && matches!(block.kind, Kind::Registered(_)) => {}
        Some(_) => return invalid(name.call),
        None if held.table.freed_by(address).is_some() => {
            return Err(not_live(held, ledger, name, address));
        }
        None => return Err(DriverError::new(name.call, NOT_REGISTERED)),
    }
    free_now(held, ledger, name, address);
    Ok(())
}

/// Makes ordinary memory of the host known to the device, at its own address.
pub(super) fn attach(
    held: &mut Held,
    ledger: &Ledger,
    name: &'static str,
    pointer: NonNull<u8>,
    bytes: usize,
) -> DriverResult<()> {
    if bytes == 0 || held.table.is_taken(pointer.as_ptr() as u64, bytes as u64) {
        return invalid(name);
    }
    lock(held, ledger, pointer, bytes, Kind::Pageable, Backing::registered(pointer));
    Ok(())
}

/// Takes such memory from the device again: all that uses it has to be complete.
pub(super) fn detach(
    held: &mut Held,
    ledger: &Ledger,
    name: &'static str,
    pointer: NonNull<u8>,
) -> DriverResult<()> {
    let (name, address) = (OpName::call(name), pointer.as_ptr() as u64);
    find(held, ledger, name, address, |kind| kind == Kind::Pageable)?;
    free_now(held, ledger, name, address);
    Ok(())
}

/// The address by which kernels reach a mapped host block: the pointer itself.
pub(super) fn mapped_address(
    state: &State,
    ledger: &Ledger,
    pointer: NonNull<u8>,
) -> DriverResult<DeviceAddress> {
    let call = "cuMemHostGetDevicePointer";
    if !ledger.config.host_mapping {
        return Err(DriverError::new(call, DriverError::NOT_SUPPORTED));
    }
    let address = pointer.as_ptr() as u64;
    match state.table.around(address) {
        Some((_, block)) if block.kind.is_host_visible() && block.reaches(ledger.device) => {
            Ok(address)
        }
        _ => invalid(call),
    }
}
