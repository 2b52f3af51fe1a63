//! The kinds of errors.

/// The kind of an `Error`. More kinds may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No CUDA driver is installed, or the crate was built without the `cuda` feature.
    NoDriver,
    /// A driver is there, but the device that was asked for is not.
    NoDevice,
    /// The driver is too old and lacks a function that this call needs.
    MissingSymbol,
    /// The device, the host or a configured limit has no room for the request.
    OutOfMemory,
    /// An argument can never be right, such as an alignment that is no power of two or a size that overflows. Or it is
    /// not right now, such as a part whose other parts are missing or a second log for the process.
    InvalidArgument,
    /// An index or a range lies outside a vector, or a stack of counters has no more.
    OutOfBounds,
    /// Two buffers of a copy differ in length, or a cast leaves a remainder.
    LengthMismatch,
    /// A stream, a vector or a resource belongs to another device than the call.
    WrongDevice,
    /// The device or the backend cannot do this.
    Unsupported,
    /// The stream is in capture, where this call would invalidate the graph. Or the capture was
    /// invalidated before, and there is no graph.
    Capture,
    /// The context or the driver is gone or broken, and everything on this device fails from here on. Where a kernel's
    /// fault broke a simulated device, its `Report` is the source.
    ContextLost,
    /// The process was forked after a device was opened, and the child cannot use it.
    Forked,
    /// The driver may not be called here, inside of a host function (`Stream::launch_host_fn`) or a kernel's host form.
    NotPermitted,
    /// A host function of the stream panicked. The error has what it said.
    Panicked,
    /// The simulated device found a `Violation`. It may be an access that no stream order
    /// allows, a read of what was never written, a fault of a kernel or another. The source is the
    /// `Report`.
    Simulation,
    /// A resource that serves one call at a time was called from inside of its own call.
    Reentered,
    /// An environment variable holds a value that means nothing.
    Environment,
    /// A file, or another place that a log goes to, could not be written. Or a socket brought no pool of another
    /// process, or took none.
    Io,
    /// A communicator is of no use any more, since another rank failed, left or did not answer in time, or this one was
    /// aborted. The results of its collectives may be written in part. All else of the device goes on.
    CommunicatorLost,
    /// The pool of this memory sleeps, and keeps its addresses alone. The error says for how long.
    Asleep,
    /// Any other failure of a driver call. `Error::driver` has its number.
    Driver,
}
