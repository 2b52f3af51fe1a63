//! Vectors of the program that are exported, and opened as another process would. The simulated device opens in
//! its own process what it exported; a GPU does not.

use crate::player::Player;
use crate::shared::{Item, Step, lock, unexpected};
use aquifer::ipc::IpcExport;
use aquifer::{DeviceVec, ErrorKind, Stream, ipc::IpcHandle, mr::with_device_resource};
use std::sync::atomic::Ordering;

/// Fails at the first element that is another one.
fn holds(vec: &DeviceVec<u32>, range: std::ops::Range<usize>, tag: u32, whose: &str) -> Step {
    let found = vec.to_vec().map_err(unexpected("reading shared memory"))?;
    match found[range.clone()].iter().position(|&value| value != tag) {
        None => Ok(()),
        Some(at) => {
            let (at, of) = (range.start + at, found.len());
            Err(format!("{whose}: element {at} of {of} is {:#x}, not {tag:#x}", found[at]))
        }
    }
}

fn open(handle: &IpcHandle, stream: &Stream) -> Step<DeviceVec<u32>> {
    // Over a pipe a handle is its bytes.
    let sent = handle.to_bytes();
    let handle = IpcHandle::from_bytes(&sent).map_err(unexpected("reading a handle"))?;
    // SAFETY: the exporter keeps the memory while this is read or written, and makes no access meanwhile.
    unsafe { handle.open(stream) }.map_err(unexpected("opening a handle"))
}

impl Player<'_> {
    /// Exports a vector, and has it read and written by its handle.
    pub(crate) fn share(&mut self) -> Step {
        // A handle is refused in a capture, and a close waits for its end.
        if self.shared.simulator.is_none() || lock(&self.shared.captured).is_some() {
            return self.make();
        }
        let Some(mut item) = self.take() else { return Ok(()) };
        let (Some(tag), Some(stream)) = (item.tag, self.stream()) else {
            self.items.push(item);
            return Ok(());
        };
        let handle = match item.vec.ipc_handle() {
            Ok(handle) if self.shared.setup.is_plain() => handle,
            Err(error) if !self.shared.setup.is_plain() => {
                self.items.push(item);
                if error.kind() != ErrorKind::Unsupported {
                    return Err(unexpected("exporting a driver pool's memory")(error));
                }
                self.shared.count("handles refused");
                return Ok(());
            }
            Ok(_) => {
                return Err("memory of a driver pool that is not shareable was exported".into());
            }
            Err(error) => return Err(unexpected("exporting")(error)),
        };
        self.says(|| {
            let (at, on) = (item.vec.as_device_ptr(), stream.id());
            format!("{at:#x} is opened by its handle on stream {on}")
        });
        self.shared.count("handles opened");
        match self.random.below(4) {
            0 => self.copy_shared(&item, &handle, &stream)?,
            1 => self.write_a_part(&mut item, &handle, &stream)?,
            2 => {
                let mut opened = open(&handle, &stream)?;
                holds(&opened, 0..item.vec.len(), tag, "read by a handle")?;
                let tag = self.shared.tag();
                opened.fill(tag).map_err(unexpected("writing by a handle"))?;
                // Closes when the write is complete.
                drop(opened);
                (item.tag, item.lent) = (Some(tag), Vec::new());
            }
            _ => {
                let opened = open(&handle, &stream)?;
                holds(&opened, 0..item.vec.len(), tag, "read by a handle")?;
                if self.may_free_first() {
                    self.drop_item(item);
                    drop(opened);
                    self.shared.count("handles closed after their memory");
                    return Ok(());
                }
            }
        }
        self.items.push(item);
        Ok(())
    }

    /// Whether what a vector lies in is kept when the vector is freed: no other thread trims, and the pool gives
    /// nothing back.
    fn may_free_first(&self) -> bool {
        self.in_turns && self.pool().is_some() && self.shared.setup.returns_nothing()
    }

    /// A copy has nothing to do with what it was made of.
    fn copy_shared(&mut self, item: &Item, handle: &IpcHandle, stream: &Stream) -> Step {
        let Some((_, resource)) = self.pool() else { return Ok(()) };
        let device = &self.shared.device;
        // SAFETY: the vector outlives the call, and nobody else uses it.
        let copy = || unsafe { handle.copy_to::<u32>(device, stream) };
        match with_device_resource(resource, copy) {
            Ok(vec) => {
                let mut copied = self.shared.item(vec);
                copied.tag = item.tag;
                self.items.push(copied);
                self.shared.count("copies by a handle");
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::OutOfMemory => Ok(()),
            Err(error) => Err(unexpected("copying by a handle")(error)),
        }
    }

    /// The last elements alone are exported and written.
    fn write_a_part(&mut self, item: &mut Item, whole: &IpcHandle, stream: &Stream) -> Step {
        let length = item.vec.len();
        let (Some(before), from) = (item.tag, self.random.below(length)) else { return Ok(()) };
        let part = item.vec.slice(from..).map_err(unexpected("slicing"))?;
        let handle = part.ipc_handle().map_err(unexpected("exporting a part"))?;
        let right = (whole.offset() + (from * size_of::<u32>()) as u64, part.size_in_bytes());
        if (handle.offset(), handle.size_in_bytes()) != (right.0, right.1 as u64) {
            return Err(format!("a part from element {from} is {handle:?} of {whole:?}"));
        }
        let (mut opened, tag) = (open(&handle, stream)?, self.shared.tag());
        opened.fill(tag).map_err(unexpected("writing by a handle"))?;
        drop(opened);
        holds(&item.vec, 0..from, before, "before what was written by a handle")?;
        holds(&item.vec, from..length, tag, "written by a handle")?;
        let tag = self.shared.tag();
        item.vec.fill(tag).map_err(unexpected("filling"))?;
        (item.tag, item.lent) = (Some(tag), Vec::new());
        self.shared.count("parts by a handle");
        if handle.openings(&self.shared.device) != 0
            && self.in_turns
            && !self.shared.may_leak.load(Ordering::Relaxed)
        {
            return Err("what was opened by a handle is open still".into());
        }
        Ok(())
    }
}
