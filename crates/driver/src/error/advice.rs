//! What to do about a failed driver call, by the call and its number.

use super::driver::DriverError;
use super::kind::ErrorKind;

const AFTER_A_FAULT: &str = "the source of this error is the fault: mend that first";
const CONTEXT_FAULTED: &str = "a kernel faulted, here or on another stream: restart the process, and run it \
                               under compute-sanitizer, or on the simulated device";
const CONTEXT_DESTROYED: &str = "another library destroyed the context, or the device was lost: keep a context alive as long as its memory";
const HARDWARE: &str = "the hardware reported an error: see nvidia-smi -q and the system's log, and restart the process";
const SHUT_DOWN: &str =
    "the driver is shut down, as at the end of a process: drop what uses the device before that";
const WRONG_IMAGE: &str = "the kernel's text does not fit this GPU or its driver: compile it for the GPU's compute \
                           capability or a lower one, with a toolkit no newer than the driver";
/// The images that a kernel is made of.
const IMAGES: &str = "Kernel::new takes a PTX text, as `nvcc --ptx` makes it, Kernel::from_cubin a whole cubin, as \
                      `nvcc --cubin` does, and kernel::compile_cuda (feature nvrtc) CUDA C++";
/// Advice for any use of this crate in the child of a fork.
pub const FORKED_ADVICE: &str = "start the child with exec, or open devices in the child alone";
/// Advice for any use of this crate inside of a host function that would call the driver.
pub const HOST_FUNCTION_ADVICE: &str =
    "send it, or what it waits for, to another thread by a channel, and use it there";
/// Advice for a split past the end.
pub const SPLIT_ADVICE: &str = "split at the length at most";
const IN_CAPTURE: &str =
    "do it before the capture or after it; Stream::capture keeps other calls out of a capture";

/// Advice for `driver`, a clause without a full stop. It is empty where there is none.
pub(super) fn advice(driver: &DriverError) -> &'static str {
    use DriverError as D;

    match driver.kind() {
        // The simulated device says that the host lacks it.
        ErrorKind::OutOfMemory if driver.log().is_some() => {
            return "ask for less, or free memory of the host: a SimConfig may have more capacity than the host";
        }
        ErrorKind::OutOfMemory => return no_room(driver.call()),
        ErrorKind::MissingSymbol => return "install a newer CUDA driver",
        ErrorKind::Forked => return FORKED_ADVICE,
        ErrorKind::Simulation => {
            return "run with the same seed to see it again; sim::Violation says what each kind means";
        }
        ErrorKind::Capture => return IN_CAPTURE,
        _ => {}
    }
    match driver.code() {
        D::NOT_INITIALIZED | D::DEINITIALIZED => SHUT_DOWN,
        D::ECC_UNCORRECTABLE | D::NVLINK_UNCORRECTABLE | D::CONTAINED | D::TENSOR_MEMORY_LEAK => {
            HARDWARE
        }
        _ if driver.is_consequence() => AFTER_A_FAULT,
        D::CONTEXT_IS_DESTROYED => CONTEXT_DESTROYED,
        _ if driver.kind() == ErrorKind::ContextLost => CONTEXT_FAULTED,
        D::INVALID_IMAGE => IMAGES,
        // A text with a zero byte.
        D::INVALID_VALUE if driver.call() == "cuModuleLoadDataEx" => IMAGES,
        // The simulated device's words, before any compiler's.
        D::INVALID_PTX if driver.log().is_some_and(|log| log.starts_with("the PTX text ")) => {
            "mend the text if it is written by hand, else compile it again"
        }
        D::INVALID_PTX => "compile the text again: the driver's own compiler refuses it",
        D::NO_BINARY_FOR_GPU | D::UNSUPPORTED_PTX_VERSION => WRONG_IMAGE,
        // An empty name is an invalid value.
        D::NOT_FOUND | D::INVALID_VALUE if driver.call() == "cuModuleGetFunction" => {
            "name an entry of the PTX or the cubin: `.visible .entry NAME` in PTX, an extern \"C\" function in CUDA C++"
        }
        // The simulated device says which it is.
        D::INVALID_VALUE if driver.call() == "cuLaunchKernel" => match driver.log() {
            Some(log) if log.starts_with("the entry ") => {
                "give the launch the arguments of the entry, in its order"
            }
            Some(log) if log.starts_with("a buffer ") => {
                "give the launch each buffer once: the host form would get two references to it"
            }
            Some(_) => "give the launch another LaunchConfig",
            None => {
                "check the grid, the block, the shared memory, and the number and sizes of the arguments"
            }
        },
        // Only unsafe code has the crate name other memory than it has allocated.
        D::INVALID_VALUE if is_access(driver.call()) => {
            "check the addresses and sizes that unsafe code gave, such as DeviceVec::from_raw_parts or a \
             resource of your own: the memory is not there, or was freed"
        }
        D::ILLEGAL_STATE if driver.call() == "cuStreamBeginCapture" => {
            "the stream is in a capture already: end that first, or capture another stream"
        }
        D::OPERATING_SYSTEM => {
            "see the system's log (dmesg) and the limits of the process (ulimit -a)"
        }
        D::INVALID_CONTEXT => {
            "another library destroyed the context: keep it alive as long as what was made in it"
        }
        D::INVALID_HANDLE => {
            "another library destroyed a stream, an event, a graph or a pool that was shared with it: keep \
             that alive"
        }
        D::UNKNOWN => "see nvidia-smi -q and the system's log, and restart the process",
        D::LAUNCH_OUT_OF_RESOURCES => {
            "use fewer threads in a block or less shared memory, or compile for fewer registers"
        }
        D::HOST_MEMORY_ALREADY_REGISTERED => {
            "a page of it is page-locked already: register a buffer once"
        }
        D::HOST_MEMORY_NOT_REGISTERED => "another library has unregistered it",
        D::NOT_PERMITTED => {
            "a host form of a kernel, or a host function of a stream, may call no device: do it before the launch, or \
             after it, or on another thread"
        }
        D::NOT_SUPPORTED => "this GPU or its driver has no such feature: see Device::properties",
        D::STUB_LIBRARY => {
            "this library is the toolkit's stub; take its folder off the library path"
        }
        D::NO_DEVICE | D::INVALID_DEVICE => {
            "see that the GPU is visible here: CUDA_VISIBLE_DEVICES, a container's --gpus"
        }
        D::DEVICE_UNAVAILABLE => "another process has the GPU in exclusive mode: see nvidia-smi",
        D::SYSTEM_NOT_READY => "the system's services are not up: start nvidia-fabricmanager",
        D::SYSTEM_DRIVER_MISMATCH => {
            "the kernel module and the driver library differ in version: restart the machine after an update"
        }
        _ => "",
    }
}

/// Whether a call reads or writes memory that it was given the address of.
fn is_access(call: &str) -> bool {
    call.starts_with("cuMemcpy") || call.starts_with("cuMemset")
}

/// Advice for a lack of memory, which is the device's, the host's or the driver's own.
fn no_room(call: &str) -> &'static str {
    if call.starts_with("cuMemHost") {
        "the host has no room for more page-locked memory: free some, or raise the limit of locked memory, \
         ulimit -l"
    } else if (call.starts_with("cuMem") && !is_access(call)) || call == "cudaMalloc" {
        "free memory, trim pools, ask for less, or use a device with more of it"
    } else if call.ends_with("Create") || call.ends_with("CreateWithPriority") {
        "the driver has no room for another handle: drop streams, events or graphs"
    } else {
        "the driver itself has no room: free device memory and host memory, or drop graphs and streams"
    }
}
