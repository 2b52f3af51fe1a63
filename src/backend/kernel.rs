//! A kernel in two forms: PTX for a GPU, a host function for the simulated device.

use crate::error::{Error, ErrorKind, Result};
use crate::sync::{OnceLock, trusted};
use bytemuck::Pod;
use std::marker::PhantomData;

/// The host form of a kernel. It runs on the simulated device in stream order, once for the whole
/// grid, and may touch nothing but its arguments.
pub type HostForm = fn(&LaunchConfig, HostArgs<'_>) -> Result<()>;

/// A kernel that launches on a GPU and on the simulated device alike.
///
/// It names a PTX text, an entry in it, and a host function that does the same. The PTX is loaded
/// by the driver on first use on each device; no toolkit and no NVRTC are needed.
///
/// ```
/// use aquifer::{HostArgs, Kernel, LaunchConfig, Result};
///
/// static DOUBLE: Kernel = Kernel::new(
///     "double",
///     r#"
///     .version 6.4
///     .target sm_50
///     .address_size 64
///     .visible .entry double(.param .u64 data, .param .u32 n) {
///         .reg .pred %p; .reg .u32 %r<5>; .reg .u64 %rd<3>;
///         ld.param.u64 %rd1, [data];
///         ld.param.u32 %r1, [n];
///         mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
///         mad.lo.u32 %r2, %r2, %r3, %r4;
///         setp.ge.u32 %p, %r2, %r1;
///         @%p bra done;
///         cvta.to.global.u64 %rd1, %rd1;
///         mul.wide.u32 %rd2, %r2, 4;
///         add.u64 %rd1, %rd1, %rd2;
///         ld.global.u32 %r3, [%rd1];
///         shl.b32 %r3, %r3, 1;
///         st.global.u32 [%rd1], %r3;
///     done:
///         ret;
///     }"#,
///     |_config: &LaunchConfig, mut args: HostArgs<'_>| -> Result<()> {
///         let data = args.in_out::<u32>()?;
///         let n = args.scalar::<u32>()? as usize;
///         data[..n].iter_mut().for_each(|value| *value *= 2);
///         Ok(())
///     },
/// );
/// assert_eq!(DOUBLE.entry(), "double");
/// ```
#[derive(Debug)]
pub struct Kernel {
    entry: &'static str,
    ptx: &'static str,
    host: HostForm,
    id: OnceLock<u64>,
}

impl Kernel {
    /// A kernel from its entry's name, its PTX text and its host form. Nothing is loaded yet.
    pub const fn new(entry: &'static str, ptx: &'static str, host: HostForm) -> Self {
        Self { entry, ptx, host, id: OnceLock::new() }
    }

    /// The name of the entry in the PTX text.
    pub const fn entry(&self) -> &'static str {
        self.entry
    }

    /// The PTX text.
    pub const fn ptx(&self) -> &'static str {
        self.ptx
    }

    pub(crate) fn host(&self) -> HostForm {
        self.host
    }

    /// Names this kernel in the backends' tables of loaded functions.
    pub(crate) fn id(&self) -> u64 {
        *self.id.get_or_init(trusted::unique)
    }
}

/// The grid of a launch: blocks, threads of a block, and dynamic shared memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y and z.
    pub grid: (u32, u32, u32),
    /// Threads of each block in x, y and z.
    pub block: (u32, u32, u32),
    /// Dynamic shared memory of each block, in bytes.
    pub shared_bytes: u32,
}

impl LaunchConfig {
    /// One thread an element, in blocks of 256 threads, at least one block and at most
    /// `2^31 - 1` of them, which is what a grid holds.
    pub fn for_elements(elements: usize) -> Self {
        let blocks = elements.div_ceil(256).clamp(1, i32::MAX as usize);
        Self { grid: (blocks as u32, 1, 1), block: (256, 1, 1), shared_bytes: 0 }
    }
}

/// What a kernel does with a buffer argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes all of it and reads none of what was there.
    Write,
    /// Reads it and writes it, or writes parts of it.
    ReadWrite,
}

/// One argument of a launch, as the backends see it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RawArg {
    /// The address is pushed; the length is for the declared range alone.
    Buffer { address: u64, bytes: usize, access: Access },
    /// Up to 16 bytes, pushed as they are.
    Scalar { value: [u8; 16], bytes: usize },
}

impl RawArg {
    pub(crate) fn scalar<T: Pod>(value: T) -> Result<Self> {
        let bytes = bytemuck::bytes_of(&value);
        if bytes.len() > 16 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("a scalar argument of {} bytes was given", bytes.len()),
            )
            .advise("pass up to 16 bytes by value, more in a buffer"));
        }
        let mut raw = [0; 16];
        raw[..bytes.len()].copy_from_slice(bytes);
        Ok(Self::Scalar { value: raw, bytes: bytes.len() })
    }
}

/// One argument on the simulated device: the memory itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostArg {
    Buffer { pointer: *mut u8, bytes: usize, access: Access },
    Scalar { value: [u8; 16], bytes: usize },
}

/// The arguments of a host form, taken one after the other in the order of the entry's parameters.
#[derive(Debug)]
pub struct HostArgs<'a> {
    arguments: &'a [HostArg],
    next: usize,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> HostArgs<'a> {
    /// # Safety
    ///
    /// Each buffer is valid memory for `'a`, initialised, and no written one overlaps another
    /// argument; nobody else touches them meanwhile.
    pub(crate) unsafe fn new(arguments: &'a [HostArg]) -> Self {
        Self { arguments, next: 0, memory: PhantomData }
    }

    fn take(&mut self, wanted: &str) -> Result<(usize, HostArg)> {
        let index = self.next;
        let argument = self.arguments.get(index).copied().ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the host form takes a {wanted} as argument {index}, the launch gave {}",
                    self.arguments.len()
                ),
            )
        })?;
        self.next += 1;
        Ok((index, argument))
    }

    fn buffer<T: Pod>(&mut self, wanted: Access) -> Result<(*mut T, usize)> {
        let (index, argument) = self.take("buffer")?;
        let wrong = |found: String| {
            Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the host form takes argument {index} as {wanted:?}, the launch gave {found}"
                ),
            ))
        };
        match argument {
            HostArg::Buffer { pointer, bytes, access } => {
                if access != wanted {
                    return wrong(format!("a buffer declared {access:?}"));
                }
                if size_of::<T>() == 0
                    || bytes % size_of::<T>() != 0
                    || !pointer.cast::<T>().is_aligned()
                {
                    return wrong(format!(
                        "{bytes} bytes at {pointer:p}, no slice of elements of {} bytes",
                        size_of::<T>()
                    ));
                }
                Ok((pointer.cast(), bytes / size_of::<T>()))
            }
            HostArg::Scalar { bytes, .. } => wrong(format!("a scalar of {bytes} bytes")),
        }
    }

    /// The next argument: a buffer that the launch declared [`Access::Read`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if the launch gave something else there.
    pub fn input<T: Pod>(&mut self) -> Result<&'a [T]> {
        let (pointer, length) = self.buffer::<T>(Access::Read)?;
        // SAFETY: valid, initialised and unwritten for `'a` by the contract of `new`; `buffer`
        // checked length and alignment, and every bit pattern is a `T: Pod`.
        Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
    }

    /// The next argument: a buffer that the launch declared [`Access::Write`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if the launch gave something else there.
    pub fn output<T: Pod>(&mut self) -> Result<&'a mut [T]> {
        let (pointer, length) = self.buffer::<T>(Access::Write)?;
        // SAFETY: valid, initialised and overlapped by no other argument for `'a` by the contract
        // of `new`; each argument is taken once; `buffer` checked length and alignment.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
    }

    /// The next argument: a buffer that the launch declared [`Access::ReadWrite`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if the launch gave something else there.
    pub fn in_out<T: Pod>(&mut self) -> Result<&'a mut [T]> {
        let (pointer, length) = self.buffer::<T>(Access::ReadWrite)?;
        // SAFETY: as in `output`.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
    }

    /// The next argument: a value of the size of `T`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if the launch gave something else there.
    pub fn scalar<T: Pod>(&mut self) -> Result<T> {
        let (index, argument) = self.take("scalar")?;
        match argument {
            HostArg::Scalar { value, bytes } if bytes == size_of::<T>() => {
                Ok(bytemuck::pod_read_unaligned(&value[..bytes]))
            }
            other => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the host form takes argument {index} as a scalar of {} bytes, the launch gave {other:?}",
                    size_of::<T>()
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked_and_taken_in_order() {
        let mut memory = [1_u32, 2, 3];
        let list = [
            HostArg::Buffer {
                pointer: memory.as_mut_ptr().cast(),
                bytes: 12,
                access: Access::ReadWrite,
            },
            HostArg::Scalar { value: [7; 16], bytes: 1 },
        ];
        // SAFETY: one live array, borrowed by nothing else.
        let mut args = unsafe { HostArgs::new(&list) };
        let data = args.in_out::<u32>().unwrap();
        assert_eq!(data, [1, 2, 3]);
        assert!(args.scalar::<u32>().is_err(), "of another size");
        assert!(args.scalar::<u8>().is_err(), "past the end");
        // SAFETY: as above.
        let mut args = unsafe { HostArgs::new(&list) };
        assert!(args.input::<u32>().is_err(), "declared otherwise");
    }

    #[test]
    fn grids_cover_their_elements() {
        assert_eq!(LaunchConfig::for_elements(0).grid.0, 1);
        assert_eq!(LaunchConfig::for_elements(257).grid.0, 2);
        assert_eq!(LaunchConfig::for_elements(usize::MAX).grid.0, i32::MAX as u32);
        assert!(RawArg::scalar([0_u8; 17]).is_err());
    }
}
