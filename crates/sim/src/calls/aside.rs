//! What pools put aside while they sleep: the bytes by the host, and what is known of them here.

use crate::check::ShadowMemory;
use crate::driver::SimDriver;
use crate::state::SimState;
use aquifer_driver::{AsideCalls, DeviceRange, DriverResult};

impl AsideCalls for SimDriver {
    unsafe fn put_aside(&self, range: DeviceRange, target: *mut u8) -> DriverResult<()> {
        let mut call = self.call("cuMemcpyDtoHAsync")?;
        let key = (call.context.id, range.address);
        let SimState { blocks, virtual_memory, .. } = &mut *call.state;
        let Some((block, at)) = blocks.around_mut(range) else { return call.invalid() };
        if block.mappings.check(at, None).is_err() {
            return call.invalid();
        }
        // SAFETY: the range is mapped, and lies in the block; the caller's promise of the target.
        unsafe {
            let source = block.backing.pointer().as_ptr().add(at.0 as usize);
            target.copy_from_nonoverlapping(source, range.bytes);
        }
        virtual_memory.aside.insert(key, block.shadow.copy_of(at));
        Ok(())
    }

    unsafe fn bring_back(&self, range: DeviceRange, source: *const u8) -> DriverResult<()> {
        let name = if source.is_null() { "cuMemsetAsync" } else { "cuMemcpyHtoDAsync" };
        let mut call = self.call(name)?;
        let key = (call.context.id, range.address);
        let SimState { blocks, virtual_memory, .. } = &mut *call.state;
        let Some((block, at)) = blocks.around_mut(range) else { return call.invalid() };
        if block.mappings.check(at, None).is_err() {
            return call.invalid();
        }
        let bytes = range.bytes;
        // SAFETY: the range is mapped, and lies in the block; the caller's promise of the source.
        unsafe {
            let target = block.backing.pointer().as_ptr().add(at.0 as usize);
            match source.is_null() {
                true => clear(target, bytes),
                false => target.copy_from_nonoverlapping(source, bytes),
            }
        }
        let aside = virtual_memory.aside.get(&key).map(ShadowMemory::all_of);
        match aside.filter(|_| !source.is_null()) {
            Some(mut aside) => block.shadow.replace(at, &mut aside),
            None => block.shadow.note_writes(at),
        }
        Ok(())
    }
}

/// Has bytes be zero. Whole pages go back to the system where it can: a program that never writes them pays nothing.
///
/// # Safety
///
/// The bytes are writable, and nothing else uses them.
unsafe fn clear(target: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        let head = target.align_offset(PAGE).min(bytes);
        let whole = (bytes - head) & !(PAGE - 1);
        // SAFETY: whole pages of the caller's bytes, which the file behind them shows as zero from then on.
        let is_clear =
            unsafe { libc::madvise(target.add(head).cast(), whole, libc::MADV_REMOVE) } == 0;
        if is_clear {
            // SAFETY: what lies around those pages is the caller's, too.
            unsafe {
                target.write_bytes(0, head);
                target.add(head + whole).write_bytes(0, bytes - head - whole);
            }
            return;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { target.write_bytes(0, bytes) }
}
