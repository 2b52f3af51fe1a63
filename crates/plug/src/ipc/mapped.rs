//! Vectors in mapped memory, which go to another process over a socket, with a
//! descriptor for each handle behind them.

use super::export::{begin, sharing};
use super::imported::{ImportedHandles, export_mapping, mappings_of};
use super::memory::{Opened, require_uuid, require_whole, vector};
use super::socket::{Payload, receive_descriptor, send_descriptor};
use crate::container::DeviceVec;
use crate::device::Device;
use crate::driver::CallSite;
use crate::driver::{DeviceRange, ErrorContext, not_forked};
use crate::error::{DriverError, Error, ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::inside::StreamCall;
use crate::inside::refuse_zero_sized;
use crate::resource::asleep::note_export;
use crate::stream::Stream;
use crate::sync::trusted::unique;
use bytemuck::Pod;
use std::fmt;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

const PAYLOAD: Payload = Payload { what: "mapped memory", sender: "IpcExport::send_to" };

/// Waits for a vector that another process sends by
/// [`IpcExport::send_to`](crate::ipc::IpcExport::send_to), and maps its memory. The result is a vector
/// at home on `stream`, which cannot grow. Its drop waits for `stream` and unmaps the memory.
///
/// # Errors
///
/// - [`ErrorKind::Io`] if the socket fails or something else comes.
/// - [`ErrorKind::WrongDevice`] if the memory is of another device than `stream`.
/// - [`ErrorKind::Unsupported`] for a simulated device of another process.
/// - [`ErrorKind::LengthMismatch`] if the bytes are no whole number of `T`s.
/// - [`ErrorKind::InvalidArgument`] for a `T` that does not fit its place.
/// - The errors of the driver.
///
/// After an error the rest of the message may be on its way, so close the socket.
///
/// # Safety
///
/// The message was sent by `send_to`. Until the vector is dropped its sender keeps the memory.
/// In that time no two accesses from different processes touch the same bytes at once if one of
/// them writes. Each process waits for its own work before it tells the other to go on. The
/// simulated device does not check this.
#[track_caller]
pub unsafe fn receive<T: Pod>(stream: &Stream, socket: &UnixStream) -> Result<DeviceVec<T>> {
    let _site = CallSite::enter();
    not_forked("memory of another process")?;
    refuse_zero_sized::<T>()?;
    let device = stream.device();
    let (message, handles) = receive_handles(device, socket)?;
    let Message { process, offset, bytes, .. } = message;
    require_whole::<T>(&message, bytes)?;
    message.require_aligned(align_of::<T>())?;
    let memory = handles.map(align_of::<T>())?;
    let range = (memory.address() + offset, bytes);
    // SAFETY: the range is in what was mapped, and aligned as that is; the caller's promise.
    unsafe { vector(stream, range, process, Opened::Mapped(memory)) }
}

/// Sends the mappings that hold a range. `order` gives the stream that is ordered after all its uses.
pub(super) fn send<'s>(
    device: &Device,
    range: DeviceRange,
    order: impl FnOnce() -> Result<StreamCall<'s>>,
    socket: &UnixStream,
) -> Result<()> {
    let wanted = sharing(device, range.bytes);
    let stream = begin(device, range, order)?;
    let refused = |error: DriverError, what: &str, advice: &'static str| {
        let what = format!("{}: {what}", wanted());
        Error::new(ErrorKind::Unsupported, what).with_driver(error).with_advice(advice)
    };
    let mappings = match mappings_of(device, range) {
        Err(error) if error.is_not_shareable() => {
            let advice = "send memory of a VirtualResource or of a pool on handles; other memory goes by ipc_handle";
            return Err(refused(error, "the memory is not mapped", advice));
        }
        mappings => mappings.with_context(&wanted)?,
    };
    stream.synchronize()?;
    // Inside of the gate still: the pool is awake.
    note_export(device, range);
    drop(stream);
    let first = mappings.first().map_or(range.address, |first| first.address);
    let mut message = Message {
        uuid: device.uuid()?,
        process: std::process::id(),
        offset: range.address - first,
        bytes: range.bytes as u64,
        handles: mappings.len() as u64,
        sending: unique(),
        index: 0,
        handle_bytes: 0,
    };
    for (index, mapping) in (0..).zip(mappings) {
        let descriptor = match export_mapping(device, mapping) {
            Err(error) if error.is_not_shareable() => {
                let advice = "share memory of CudaResource, by ipc_handle";
                return Err(refused(error, "it was not made to be shared", advice));
            }
            exported => exported.with_context(&wanted)?,
        };
        (message.index, message.handle_bytes) = (index, mapping.bytes as u64);
        // Closed then: each descriptor keeps the memory.
        send_descriptor(socket, &message.to_bytes(), descriptor.as_fd(), &PAYLOAD)?;
    }
    Ok(())
}

/// The handles of a vector that another process sends. The last message.
fn receive_handles(device: &Device, socket: &UnixStream) -> Result<(Message, ImportedHandles)> {
    let (mut handles, mut index) = (None, 0);
    let mut first: Option<Message> = None;
    loop {
        let (bytes, descriptor) = receive_descriptor::<MESSAGE>(socket, MAGIC, &PAYLOAD)?;
        let message = Message::from_bytes(&bytes);
        let known = *first.get_or_insert(message);
        require_uuid(&message.uuid, device, || message.to_string())?;
        let handles = match &mut handles {
            Some(handles) => handles,
            none => none.insert(ImportedHandles::new(device)?),
        };
        let is_next = message.index == index
            && message.is_of(&known)
            && index < known.handles
            && !message.fits(handles.bytes());
        if !is_next || !handles.has_room_for(message.handle_bytes) {
            return Err(PAYLOAD.missing("a message came out of its order, or was changed"));
        }
        // A size that a vector can have.
        let imported = handles.import(descriptor.as_fd(), message.handle_bytes as usize);
        imported.with_context(|| format!("opening {message} on {device}"))?;
        index += 1;
        if index == known.handles {
            break;
        }
    }
    match (first, handles) {
        (Some(message), Some(handles)) if message.fits(handles.bytes()) => Ok((message, handles)),
        _ => Err(PAYLOAD.missing("the vector is not inside of its handles")),
    }
}

/// The message that goes with each descriptor.
#[derive(Clone, Copy)]
struct Message {
    uuid: [u8; 16],
    process: u32,
    /// The offset of the memory in the first handle.
    offset: u64,
    /// The size of the memory. It is not zero.
    bytes: u64,
    /// The number of handles.
    handles: u64,
    /// The number of this vector's messages, in its process.
    sending: u64,
    index: u64,
    handle_bytes: u64,
}

const MESSAGE: usize = 80;
const MAGIC: &[u8; 8] = b"AQ-MEM\0\x01";

impl Message {
    fn to_bytes(self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..24].copy_from_slice(&self.uuid);
        let words = [
            u64::from(self.process),
            self.offset,
            self.bytes,
            self.handles,
            self.sending,
            self.index,
            self.handle_bytes,
        ];
        for (place, word) in bytes[24..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; MESSAGE]) -> Self {
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[8..24]);
        let mut words = [0; 7];
        for (word, place) in words.iter_mut().zip(bytes[24..].as_chunks().0) {
            *word = u64::from_le_bytes(*place);
        }
        let [process, offset, bytes, handles, sending, index, handle_bytes] = words;
        Self { uuid, process: process as u32, offset, bytes, handles, sending, index, handle_bytes }
    }

    /// Checks the offset alone, since handles are mapped to an address that is aligned so.
    fn require_aligned(&self, alignment: usize) -> Result<()> {
        ensure!(
            self.offset.is_multiple_of(alignment as u64),
            InvalidArgument,
            "open it as `u8`, or as what it was sent as",
            "{self} is at {:#x} of its handles, and was to have an alignment of {}",
            self.offset,
            Count(alignment, "byte")
        );
        Ok(())
    }

    /// Whether both are of one vector.
    fn is_of(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.uuid, it.process, it.offset, it.bytes, it.handles, it.sending);
        of(self) == of(other)
    }

    /// Whether the memory lies in handles of so many bytes.
    fn fits(&self, bytes: usize) -> bool {
        let end = self.offset.checked_add(self.bytes);
        self.bytes > 0 && end.is_some_and(|end| end <= bytes as u64)
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a vector of {} of process {}", Count(self.bytes, "byte"), self.process)
    }
}
