//! The arguments of a launch, as a driver and as a host form get them.

use crate::device_copy::DeviceCopy;
use crate::error::{DriverError, Error, ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::sync::Arc;
use bytemuck::checked::{CheckedCastError, try_cast_slice, try_cast_slice_mut};
use bytemuck::{AnyBitPattern, CheckedBitPattern, NoUninit};
use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

/// How a kernel accesses a buffer argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes all of it, and does not read its former content.
    Write,
    /// Reads it and writes it, or writes parts of it.
    ReadWrite,
}

impl Access {
    /// The argument's noun, by the method of launches and of [`HostArgs`] that stands for it.
    fn method(self) -> &'static str {
        match self {
            Self::Read => "a buffer by `input`",
            Self::Write => "a buffer by `output`",
            Self::ReadWrite => "a buffer by `in_out`",
        }
    }
}

/// The most bytes that all parameters of a kernel have, on the GPUs and drivers that take the most.
const MOST_PARAMETER_BYTES: usize = 32_764;

/// One argument of a launch, as a driver gets it.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "for the crates above alone")]
pub enum RawArg {
    /// The kernel gets the address. The length is for checks alone.
    Buffer {
        address: u64,
        bytes: usize,
        access: Access,
    },
    Scalar(ScalarBytes),
    /// A value of a type that may have padding, which only its own type reads.
    Param(Param),
}

/// A value without padding.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "for the crates above alone")]
pub enum ScalarBytes {
    Short { value: [u8; 16], bytes: usize },
    Long(Arc<[u8]>),
}

impl Deref for ScalarBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short { value, bytes } => &value[..*bytes],
            Self::Long(value) => value,
        }
    }
}

/// A value with its type.
#[derive(Clone)]
pub struct Param(Arc<dyn ParamValue>);

trait ParamValue: Any + Send + Sync {
    fn type_name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }
}

impl<T: Any + Send + Sync> ParamValue for T {}

impl Param {
    /// The size of the value.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    fn type_name(&self) -> &'static str {
        (*self.0).type_name()
    }
}

impl fmt::Debug for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Param({})", self.type_name())
    }
}

fn check_parameter_bytes(bytes: usize) -> Result<()> {
    ensure!(
        bytes <= MOST_PARAMETER_BYTES,
        InvalidArgument,
        "pass so much in a buffer",
        "a scalar argument of {} was given, where all arguments of a kernel have {MOST_PARAMETER_BYTES} at most",
        Count(bytes, "byte")
    );
    Ok(())
}

impl RawArg {
    /// The address of a buffer.
    pub fn address(&self) -> Option<u64> {
        match self {
            Self::Buffer { address, .. } => Some(*address),
            Self::Scalar(_) | Self::Param(_) => None,
        }
    }

    /// A pointer to the address or the value that a kernel gets.
    #[cfg(feature = "cuda")]
    #[doc(hidden)]
    pub fn value(&self) -> *const u8 {
        match self {
            Self::Buffer { address, .. } => std::ptr::from_ref(address).cast(),
            // The driver copies the bytes, and asks no alignment.
            Self::Scalar(value) => value.as_ptr(),
            Self::Param(param) => std::ptr::from_ref(&*param.0).cast(),
        }
    }

    #[doc(hidden)]
    pub fn scalar<T: NoUninit>(value: T) -> Result<Self> {
        let given = bytemuck::bytes_of(&value);
        let bytes = given.len();
        check_parameter_bytes(bytes)?;
        let mut value = [0; 16];
        Ok(Self::Scalar(match value.get_mut(..bytes) {
            Some(short) => {
                short.copy_from_slice(given);
                ScalarBytes::Short { value, bytes }
            }
            None => ScalarBytes::Long(given.into()),
        }))
    }

    #[doc(hidden)]
    pub fn param<T: DeviceCopy + Send + Sync>(value: T) -> Result<Self> {
        check_parameter_bytes(size_of::<T>())?;
        Ok(Self::Param(Param(Arc::new(value))))
    }
}

/// One argument of a host form, which is the memory itself.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "for the crates above alone")]
pub enum HostArg<'a> {
    Buffer { pointer: *mut u8, bytes: usize, access: Access },
    Scalar(&'a [u8]),
    Param(&'a Param),
}

/// The arguments of a host form, to be taken in the order of the entry's parameters.
#[derive(Debug)]
pub struct HostArgs<'a> {
    /// Who takes them, for errors.
    taker: &'static str,
    /// The kernel's name, for errors.
    entry: &'static str,
    arguments: &'a [HostArg<'a>],
    next: usize,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> HostArgs<'a> {
    /// # Safety
    ///
    /// Each buffer is valid and initialised memory for `'a`, and no written one overlaps another
    /// argument. No other code accesses the buffers meanwhile.
    #[doc(hidden)]
    pub unsafe fn new(entry: &'static str, arguments: &'a [HostArg<'a>]) -> Self {
        Self { taker: "host form", entry, arguments, next: 0, memory: PhantomData }
    }

    fn take(&mut self, wanted: &str) -> Result<HostArg<'a>> {
        let count = self.arguments.len();
        let Some(&argument) = self.arguments.get(self.next) else {
            return Err(self.mismatch(wanted, &Count(count, "argument").to_string()));
        };
        Ok(argument)
    }

    fn buffer<T>(&mut self, wanted: Access) -> Result<(*mut T, usize)> {
        let (size, method) = (size_of::<T>(), wanted.method());
        let found = match self.take(method)? {
            HostArg::Buffer { access, .. } if access != wanted => access.method().to_owned(),
            HostArg::Buffer { pointer, bytes, .. }
                if size == 0 || bytes % size != 0 || !pointer.cast::<T>().is_aligned() =>
            {
                let (bytes, element) = (Count(bytes, "byte"), std::any::type_name::<T>());
                format!("a buffer of {bytes}, which is no slice of `{element}`")
            }
            HostArg::Buffer { pointer, bytes, .. } => {
                self.next += 1;
                return Ok((pointer.cast(), bytes / size));
            }
            HostArg::Scalar(value) => format!("a scalar of {}", Count(value.len(), "byte")),
            HostArg::Param(param) => format!("a `{}` by `param`", param.type_name()),
        };
        Err(self.mismatch(method, &found))
    }

    /// The error of a next argument that the host form does not take.
    fn mismatch(&mut self, wanted: &str, found: &str) -> Error {
        self.next += 1;
        let Self { taker, entry, next: place, .. } = self;
        let what = format!(
            "the {taker} of {entry} takes {wanted} as argument {place}, counted from 1, and the launch \
             gave {found}"
        );
        Error::new(ErrorKind::InvalidArgument, what)
            .with_advice("take what the launch gives, in its order")
    }

    /// The next argument, a buffer that the launch gave by `Launch::input`. Its bytes
    /// are taken as elements of `T`, whatever the launch's type was.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if that argument is a scalar, was given by another method, or is no whole number
    /// of such elements.
    pub fn input<T: AnyBitPattern>(&mut self) -> Result<&'a [T]> {
        let (pointer, length) = self.buffer::<T>(Access::Read)?;
        // SAFETY: valid, initialised and unwritten for `'a` by the contract of `new`; `buffer`
        // checked length and alignment, and every bit pattern is a `T: AnyBitPattern`.
        Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
    }

    /// The next argument, a buffer that the launch gave by `Launch::output`. It is
    /// taken as [`input`](Self::input) takes one. All of it counts as written, whatever the form writes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if that argument is a scalar, was given by another method, or is no whole number
    /// of such elements.
    pub fn output<T: NoUninit + AnyBitPattern>(&mut self) -> Result<&'a mut [T]> {
        let (pointer, length) = self.buffer::<T>(Access::Write)?;
        // SAFETY: valid, initialised and overlapped by no other argument for `'a` by the contract
        // of `new`; each argument is taken once; `buffer` checked length and alignment.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
    }

    /// The next argument, a buffer that the launch gave by `Launch::in_out`. It is
    /// taken as [`input`](Self::input) takes one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if that argument is a scalar, was given by another method, or is no whole number
    /// of such elements.
    pub fn in_out<T: NoUninit + AnyBitPattern>(&mut self) -> Result<&'a mut [T]> {
        let (pointer, length) = self.buffer::<T>(Access::ReadWrite)?;
        // SAFETY: as in `output`.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
    }

    /// Like [`input`](Self::input), for elements that not every bit pattern is a value of. Each is checked.
    ///
    /// # Errors
    ///
    /// The errors of [`input`](Self::input), and [`ErrorKind::InvalidArgument`] where an element is no value of `T`.
    pub fn input_checked<T: CheckedBitPattern>(&mut self) -> Result<&'a [T]> {
        let bytes = self.input::<u8>()?;
        try_cast_slice(bytes).map_err(|error| self.invalid_element::<T>(error))
    }

    /// Like [`in_out`](Self::in_out), for elements that not every bit pattern is a value of. Each is checked.
    ///
    /// # Errors
    ///
    /// The errors of [`in_out`](Self::in_out), and [`ErrorKind::InvalidArgument`] where an element is no value of `T`.
    pub fn in_out_checked<T: CheckedBitPattern + NoUninit>(&mut self) -> Result<&'a mut [T]> {
        let bytes = self.in_out::<u8>()?;
        try_cast_slice_mut(bytes).map_err(|error| self.invalid_element::<T>(error))
    }

    /// The error of a buffer of whose elements one is no value. The argument was taken.
    fn invalid_element<T>(&self, error: CheckedCastError) -> Error {
        let (entry, place, element) = (self.entry, self.next, std::any::type_name::<T>());
        let what = match error {
            CheckedCastError::InvalidBitPattern => "one of its elements is no value of that type",
            CheckedCastError::PodCastError(_) => "it is no slice of that type",
        };
        Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "the host form of {entry} takes argument {place}, counted from 1, as `{element}`, and {what}"
            ),
        )
        .with_advice("look for what wrote the buffer, or take the element's bits")
    }

    /// The next argument, a value of the size of `T`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if that argument is a buffer, or a scalar of another size.
    pub fn scalar<T: AnyBitPattern>(&mut self) -> Result<T> {
        let wanted = format!("a scalar of {}", Count(size_of::<T>(), "byte"));
        let found = match self.take(&wanted)? {
            HostArg::Scalar(value) if value.len() == size_of::<T>() => {
                self.next += 1;
                return Ok(bytemuck::pod_read_unaligned(value));
            }
            HostArg::Scalar(value) => format!("one of {}", Count(value.len(), "byte")),
            HostArg::Param(param) => format!("a `{}` by `param`", param.type_name()),
            HostArg::Buffer { bytes, .. } => format!("a buffer of {}", Count(bytes, "byte")),
        };
        Err(self.mismatch(&wanted, &found))
    }

    /// The next argument, a value that the launch gave by `Launch::param`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if that argument was given by another method, or is of another type.
    pub fn param<T: DeviceCopy>(&mut self) -> Result<T> {
        let wanted = format!("a `{}` by `param`", std::any::type_name::<T>());
        let found = match self.take(&wanted)? {
            HostArg::Param(param) => match (&*param.0 as &dyn Any).downcast_ref::<T>() {
                Some(&value) => {
                    self.next += 1;
                    return Ok(value);
                }
                None => format!("a `{}`", param.type_name()),
            },
            HostArg::Scalar(value) => format!("a scalar of {}", Count(value.len(), "byte")),
            HostArg::Buffer { bytes, .. } => format!("a buffer of {}", Count(bytes, "byte")),
        };
        Err(self.mismatch(&wanted, &found))
    }
}

/// The arguments of a kernel behind a function, to be taken in the order in which the launch gave them, by the methods that
/// stand for those of [`HostArgs`]. A buffer is its address on the device and its length in elements.
#[derive(Debug)]
pub struct FunctionArgs<'a> {
    stream: u64,
    args: HostArgs<'a>,
}

impl<'a> FunctionArgs<'a> {
    /// `arguments` is where the list of the arguments goes.
    #[doc(hidden)]
    pub fn new(
        entry: &'static str,
        stream: u64,
        given: &'a [RawArg],
        arguments: &'a mut Vec<HostArg<'a>>,
    ) -> Self {
        arguments.extend(given.iter().map(|argument| match *argument {
            RawArg::Scalar(ref value) => HostArg::Scalar(value),
            RawArg::Param(ref param) => HostArg::Param(param),
            RawArg::Buffer { address, bytes, access } => {
                let pointer = std::ptr::without_provenance_mut(address as usize);
                HostArg::Buffer { pointer, bytes, access }
            }
        }));
        // SAFETY: nothing here makes a reference of a buffer.
        let args = unsafe { HostArgs::new(entry, arguments) };
        Self { stream, args: HostArgs { taker: "function", ..args } }
    }

    /// The stream to enqueue on, as a `cudaStream_t` or `CUstream`. Its device is the thread's current one.
    pub fn stream(&self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.stream as usize)
    }

    fn buffer<T>(&mut self, access: Access) -> Result<(*mut T, usize)> {
        self.args.buffer(access)
    }

    /// The next argument, a buffer that the launch gave by `Launch::input`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if that argument is a scalar, was given by another method, or is no whole number
    /// of such elements.
    pub fn input<T>(&mut self) -> Result<(*const T, usize)> {
        self.buffer::<T>(Access::Read).map(|(pointer, length)| (pointer.cast_const(), length))
    }

    /// The next argument, a buffer that the launch gave by `Launch::output`.
    ///
    /// # Errors
    ///
    /// The errors of [`input`](Self::input).
    pub fn output<T>(&mut self) -> Result<(*mut T, usize)> {
        self.buffer(Access::Write)
    }

    /// The next argument, a buffer that the launch gave by `Launch::in_out`.
    ///
    /// # Errors
    ///
    /// The errors of [`input`](Self::input).
    pub fn in_out<T>(&mut self) -> Result<(*mut T, usize)> {
        self.buffer(Access::ReadWrite)
    }

    /// The next argument, a value of the size of `T`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if that argument is a buffer, or a scalar of another size.
    pub fn scalar<T: AnyBitPattern>(&mut self) -> Result<T> {
        self.args.scalar()
    }

    /// The next argument, a value that the launch gave by `Launch::param`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if that argument was given by another method, or is of another type.
    pub fn param<T: DeviceCopy>(&mut self) -> Result<T> {
        self.args.param()
    }

    /// The result of the function, of CUDA's codes, in which 0 is success.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Driver`] with the function's name and any other code.
    pub fn check(&self, code: i32) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let name = self.args.entry;
        let error = DriverError::new(name, code as u32);
        Err(Error::driver_call(format!("calling {name}"), error))
    }
}

#[cfg(test)]
mod tests;
