//! Memory that processes share: handles of blocks, and the blocks of other processes that are open here.

use crate::open_streams;
use crate::page_map;
use crate::status::{Failure, Result, aquifer_status as Status};
use aquifer_rs::{DeviceBlock, DeviceVec, ipc::IpcHandle};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The bytes of a handle, for any pipe.
pub const AQUIFER_IPC_HANDLE_BYTES: usize = 128;

const _: () = assert!(AQUIFER_IPC_HANDLE_BYTES == IpcHandle::SIZE);

/// Blocks of other processes, by their addresses here. One allocation may be open more than once.
static OPEN: LazyLock<Mutex<HashMap<u64, Vec<DeviceVec<u8>>>>> = LazyLock::new(Mutex::default);

/// The handle of a block. It blocks until the stream has done all that it was given.
pub(crate) fn export(address: u64, stream: u32) -> Result<[u8; AQUIFER_IPC_HANDLE_BYTES]> {
    let entry = page_map::entry(address).filter(|entry| entry.is_live());
    let Some(block) = entry.map(page_map::Entry::block) else {
        let message = format!("{address:#x} is no block of this library (share what it allocated)");
        return Err(Failure::new(Status::AQUIFER_ERROR_NOT_OURS, message));
    };
    let block = DeviceBlock::new(address, block.requested as usize, block.token);
    Ok(IpcHandle::of_block(&open_streams::get(stream)?, &block)?.to_bytes())
}

/// Opens a block of another process, for work on a stream: its address here, and its bytes.
///
/// # Safety
///
/// As `IpcHandle::open`: its owner keeps the block until it is closed here, and both order their work on it.
pub(crate) unsafe fn open(
    handle: &[u8; AQUIFER_IPC_HANDLE_BYTES],
    stream: u32,
) -> Result<(u64, usize)> {
    let handle = IpcHandle::from_bytes(handle)?;
    let stream = open_streams::get(stream)?;
    // SAFETY: the caller's promise.
    let opened = unsafe { handle.open::<u8>(&stream)? };
    let (address, bytes) = (opened.as_device_ptr() as u64, opened.len());
    OPEN.lock().entry(address).or_default().push(opened);
    Ok((address, bytes))
}

/// Closes a block that was opened, after all that its stream was given.
pub(crate) fn close(address: u64) -> Result<()> {
    let mut open = OPEN.lock();
    let closed = open.get_mut(&address).and_then(Vec::pop);
    if open.get(&address).is_some_and(Vec::is_empty) {
        open.remove(&address);
    }
    drop(open);
    match closed {
        // Not under the lock: it waits.
        Some(block) => {
            drop(block);
            Ok(())
        }
        None => {
            let message = format!("{address:#x} is no block of another process that is open here");
            Err(Failure::new(Status::AQUIFER_ERROR_NOT_OURS, message))
        }
    }
}
