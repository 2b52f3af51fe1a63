//! Errors of NVIDIA's crates as Aquifer's.

use aquifer::{Error, ErrorKind};
use cuda_core::{DriverError, sys};

/// The error of a call of theirs: what was wanted, and which call. Theirs is the source.
#[track_caller]
pub(crate) fn theirs(wanted: impl Into<String>, call: &'static str, error: DriverError) -> Error {
    let name = error.error_name().ok().map(|name| name.to_string_lossy());
    let name = name.unwrap_or_else(|| format!("error {}", error.0).into());
    let what = format!("{}: {call} returned {name}", wanted.into());
    Error::new(kind(error), what).with_cause(error)
}

/// The kind by which a program tells what to do. The rest is the driver's.
fn kind(error: DriverError) -> ErrorKind {
    match error.0 {
        sys::cudaError_enum_CUDA_ERROR_OUT_OF_MEMORY => ErrorKind::OutOfMemory,
        sys::cudaError_enum_CUDA_ERROR_NO_DEVICE
        | sys::cudaError_enum_CUDA_ERROR_INVALID_DEVICE => ErrorKind::NoDevice,
        sys::cudaError_enum_CUDA_ERROR_SHARED_OBJECT_INIT_FAILED => ErrorKind::NoDriver,
        sys::cudaError_enum_CUDA_ERROR_NOT_SUPPORTED => ErrorKind::Unsupported,
        sys::cudaError_enum_CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            ..=sys::cudaError_enum_CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD => ErrorKind::Capture,
        sys::cudaError_enum_CUDA_ERROR_NOT_INITIALIZED
        | sys::cudaError_enum_CUDA_ERROR_DEINITIALIZED
        | sys::cudaError_enum_CUDA_ERROR_ECC_UNCORRECTABLE
        | sys::cudaError_enum_CUDA_ERROR_ILLEGAL_ADDRESS
        | sys::cudaError_enum_CUDA_ERROR_LAUNCH_TIMEOUT
        | sys::cudaError_enum_CUDA_ERROR_CONTEXT_IS_DESTROYED
        | sys::cudaError_enum_CUDA_ERROR_ASSERT
        | sys::cudaError_enum_CUDA_ERROR_HARDWARE_STACK_ERROR
        | sys::cudaError_enum_CUDA_ERROR_ILLEGAL_INSTRUCTION
        | sys::cudaError_enum_CUDA_ERROR_MISALIGNED_ADDRESS
        | sys::cudaError_enum_CUDA_ERROR_INVALID_ADDRESS_SPACE
        | sys::cudaError_enum_CUDA_ERROR_INVALID_PC
        | sys::cudaError_enum_CUDA_ERROR_LAUNCH_FAILED => ErrorKind::ContextLost,
        _ => ErrorKind::Driver,
    }
}

/// The error of an argument that cannot be taken.
#[track_caller]
pub(crate) fn refused(kind: ErrorKind, what: String, advice: &'static str) -> Error {
    Error::new(kind, what).with_advice(advice)
}

#[cfg(test)]
mod tests {
    use super::theirs;
    use aquifer::ErrorKind;
    use cuda_core::{DriverError, sys};
    use std::error::Error as _;

    #[test]
    fn errors_of_theirs_have_a_kind_and_a_source() {
        for (code, kind) in [
            (sys::cudaError_enum_CUDA_ERROR_OUT_OF_MEMORY, ErrorKind::OutOfMemory),
            (sys::cudaError_enum_CUDA_ERROR_STREAM_CAPTURE_ISOLATION, ErrorKind::Capture),
            (sys::cudaError_enum_CUDA_ERROR_LAUNCH_FAILED, ErrorKind::ContextLost),
            (sys::cudaError_enum_CUDA_ERROR_NOT_READY, ErrorKind::Driver),
            (sys::cudaError_enum_CUDA_ERROR_INVALID_VALUE, ErrorKind::Driver),
        ] {
            let error = theirs("doing it", "cuDoIt", DriverError(code));
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().starts_with("doing it: cuDoIt returned "), "{error}");
            let source = error.source().unwrap().downcast_ref::<DriverError>().unwrap();
            assert_eq!(source.0, code);
        }
    }
}
