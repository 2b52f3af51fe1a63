//! A libcuda that has three functions and lacks all others.

/// Says that all is well.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: u32) -> u32 {
    0
}

/// One device.
///
/// # Safety
///
/// `count` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> u32 {
    // SAFETY: writable by the contract of this function.
    unsafe { *count = 1 };
    0
}

/// CUDA 9.
///
/// # Safety
///
/// `version` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> u32 {
    // SAFETY: writable by the contract of this function.
    unsafe { *version = 9000 };
    0
}
