//! Addresses and handles of memory.

use super::*;
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd};

/// What addresses and handles of memory are multiples of.
const GRANULE: usize = 2 << 20;

fn is_whole(bytes: usize) -> bool {
    bytes > 0 && bytes.is_multiple_of(GRANULE)
}

/// Addresses, which the host has memory for when they are touched.
fn reserve(bytes: usize, alignment: usize) -> Result<u64, u32> {
    if !is_whole(bytes) || !alignment.is_power_of_two() {
        return Err(INVALID_VALUE);
    }
    let alignment = alignment.max(GRANULE);
    let Some(all) = bytes.checked_add(alignment) else { return Err(OUT_OF_MEMORY) };
    // SAFETY: a new range, at no address that anything else has.
    let base = unsafe { mmap(std::ptr::null_mut(), all, READ_WRITE, PRIVATE_AND_LAZY, -1, 0) };
    let base = base as usize as u64;
    if base == u64::MAX {
        return Err(OUT_OF_MEMORY);
    }
    let address = base.next_multiple_of(alignment as u64);
    state().reservations.insert(address, (bytes, (base, all)));
    Ok(address)
}

const READ_WRITE: i32 = 1 | 2;
/// `MAP_PRIVATE`, `MAP_ANONYMOUS` and `MAP_NORESERVE`.
const PRIVATE_AND_LAZY: i32 = 0x2 | 0x20 | 0x4000;

unsafe extern "C" {
    fn mmap(
        at: *mut c_void,
        bytes: usize,
        access: i32,
        how: i32,
        file: i32,
        offset: i64,
    ) -> *mut c_void;
    fn munmap(at: *mut c_void, bytes: usize) -> i32;
}

/// Notes a `CUmemAllocationProp`: type, handle types, location and ordinal, and the words behind them.
///
/// # Safety
///
/// `prop` is readable.
unsafe fn note_prop(prop: *const u32) {
    // SAFETY: eight words, by the contract.
    let words = [0, 1, 2, 3, 4, 5, 6, 7].map(|word| unsafe { *prop.add(word) }.to_string());
    note(format!("prop={}", words.join(",")));
}

exported! {
    cuMemGetAllocationGranularity[context](bytes: *mut usize, prop: *const u32, option: u32)
        => "option={option}"
    {
        note_prop(prop);
        // RECOMMENDED
        if option != 1 {
            return INVALID_VALUE;
        }
        *bytes = GRANULE;
        0
    }
    cuMemAddressReserve[context](
        address: *mut u64, bytes: usize, alignment: usize, wanted: u64, flags: u64,
    ) => "bytes={bytes} alignment={alignment} wanted={wanted:#x} flags={flags}" {
        if wanted != 0 || flags != 0 {
            return INVALID_VALUE;
        }
        give(address, reserve(bytes, alignment))
    }
    cuMemAddressFree[context](address: u64, bytes: usize) => "address={address:#x} bytes={bytes}" {
        let mut state = state();
        let is_all = state.reservations.get(&address).is_some_and(|all| all.0 == bytes);
        if !is_all || state.is_mapped(address, bytes) {
            return INVALID_VALUE;
        }
        let Some((_, (base, all))) = state.reservations.remove(&address) else { return INVALID_VALUE };
        munmap(base as usize as *mut c_void, all);
        0
    }
    cuMemCreate[context](handle: *mut u64, bytes: usize, prop: *const u32, flags: u64)
        => "bytes={bytes} flags={flags}"
    {
        note_prop(prop);
        if !is_whole(bytes) || flags != 0 {
            return INVALID_VALUE;
        }
        let mut state = state();
        *handle = state.handle();
        state.memory.insert(*handle, bytes);
        0
    }
    cuMemRelease[context](handle: u64) => "handle={handle:#x}" {
        if state().memory.contains_key(&handle) { retire(handle) } else { INVALID_VALUE }
    }
    // A number of its own for each: so a release that is missing shows.
    cuMemRetainAllocationHandle[context](handle: *mut u64, address: u64) => "address={address:#x}" {
        let mut state = state();
        let around = state.mappings.range(..=address).next_back();
        let found = around.filter(|(start, mapping)| address - *start < mapping.0 as u64);
        let Some(bytes) = found.map(|(_, mapping)| mapping.0) else { return INVALID_VALUE };
        *handle = state.handle();
        state.memory.insert(*handle, bytes);
        0
    }
    cuMemExportToShareableHandle[context](shareable: *mut i32, handle: u64, kind: u32, flags: u64)
        => "handle={handle:#x} kind={kind} flags={flags}"
    {
        let bytes = state().memory.get(&handle).copied();
        let Some(bytes) = bytes.filter(|_| kind == 1 && flags == 0) else { return INVALID_VALUE };
        // The read end of a pipe in which the size is.
        let Ok((reader, mut writer)) = std::io::pipe() else { return INVALID_VALUE };
        if writer.write_all(&bytes.to_le_bytes()).is_err() {
            return INVALID_VALUE;
        }
        *shareable = OwnedFd::from(reader).into_raw_fd();
        0
    }
    cuMemImportFromShareableHandle[context](handle: *mut u64, shareable: usize, kind: u32)
        => "descriptor={shareable} kind={kind}"
    {
        if kind != 1 {
            return INVALID_VALUE;
        }
        // It stays the caller's.
        let mut reader = ManuallyDrop::new(std::fs::File::from_raw_fd(shareable as i32));
        let mut bytes = [0; 8];
        if reader.read_exact(&mut bytes).is_err() {
            return INVALID_VALUE;
        }
        let mut state = state();
        *handle = state.handle();
        state.memory.insert(*handle, usize::from_le_bytes(bytes));
        0
    }
    cuMemMap[context](address: u64, bytes: usize, offset: usize, handle: u64, flags: u64)
        => "address={address:#x} bytes={bytes} offset={offset} handle={handle:#x} flags={flags}"
    {
        let mut state = state();
        let is_free = state.is_reserved(address, bytes) && !state.is_mapped(address, bytes);
        let is_its = state.handles.contains(&handle) && state.memory.get(&handle) == Some(&bytes);
        if !is_free || !is_its || offset != 0 || flags != 0 {
            return INVALID_VALUE;
        }
        state.mappings.insert(address, (bytes, handle));
        0
    }
    cuMemSetAccess[context](address: u64, bytes: usize, access: *const u32, count: usize)
        => "address={address:#x} bytes={bytes} count={count}"
    {
        let [location, ordinal, flags] = [0, 1, 2].map(|word| *access.add(word));
        note(format!("access={location},{ordinal},{flags}"));
        let is_whole = !state().whole_mappings(address, bytes).is_empty();
        // DEVICE, READ and WRITE
        let is_right = count == 1 && location == 1 && (ordinal as i32) < devices() && flags == 3;
        if is_whole && is_right { 0 } else { INVALID_VALUE }
    }
    cuMemUnmap[context](address: u64, bytes: usize) => "address={address:#x} bytes={bytes}" {
        let mut state = state();
        let whole = state.whole_mappings(address, bytes);
        state.mappings.retain(|at, _| !whole.contains(at));
        if whole.is_empty() { INVALID_VALUE } else { 0 }
    }
}
