//! What the tests on a GPU share.

#![allow(dead_code, reason = "each binary of tests uses a part of it")]

use aquifer::{Device, DeviceVec, HostArgs, Kernel, LaunchConfig, Result, Stream};
use cuda_async::launch::{AsyncKernelLaunch, AsyncKernelLaunchBuilder};
use cuda_core::{Context, DeviceBuffer, LaunchConfig as TheirConfig};
use std::ffi::c_void;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How long a kernel waits, in nanoseconds. What is not ordered runs in a small part of it.
pub const LONG: u64 = 50_000_000;

/// Held by a test that uses the GPU. A capture would disturb another test, and a host that waits for work of another test
/// looks like one that waits for its own.
static ALONE: Mutex<()> = Mutex::new(());

/// A device of a test, with its context, while no other test has it.
pub type Gpu = (Device, Arc<Context>, MutexGuard<'static, ()>);

/// The device of a test. None without a GPU, which it says.
pub fn gpu(test: &str) -> Option<Gpu> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let found = Device::open(0).and_then(|device| Ok((aquifer_nvidia::context(&device)?, device)));
    match found {
        Ok((context, device)) => Some((device, context, alone)),
        Err(error) => {
            // In one piece, between those of other threads.
            let line = format!("skipped: {test}: {error}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            None
        }
    }
}

/// Waits for some nanoseconds, then writes a value to each of `n` elements. Parameters: nanoseconds, `data`, `n`, the
/// value.
const SLOW: &str = "
.version 6.4
.target sm_50
.address_size 64
.visible .entry slow(.param .u64 time, .param .u64 data, .param .u32 n, .param .u32 value) {
    .reg .pred %p; .reg .u32 %r<4>; .reg .u64 %rd<7>;
    ld.param.u64 %rd1, [time];
    ld.param.u64 %rd2, [data];
    ld.param.u32 %r1, [n];
    ld.param.u32 %r2, [value];
    cvta.to.global.u64 %rd2, %rd2;
    mov.u64 %rd3, %globaltimer;
wait:
    mov.u64 %rd4, %globaltimer;
    sub.u64 %rd5, %rd4, %rd3;
    setp.lt.u64 %p, %rd5, %rd1;
    @%p bra wait;
    mov.u32 %r3, 0;
write:
    setp.ge.u32 %p, %r3, %r1;
    @%p bra done;
    st.global.u32 [%rd2], %r2;
    add.u64 %rd2, %rd2, 4;
    add.u32 %r3, %r3, 1;
    bra write;
done:
    ret;
}";

static SLOW_KERNEL: Kernel =
    Kernel::new("slow", SLOW, |_: &LaunchConfig, _: HostArgs<'_>| -> Result<()> { Ok(()) });

/// Gives `stream` a kernel that waits for long, and then writes `value` over the vector.
pub fn write_slowly(stream: &Stream, vec: &mut DeviceVec<u32>, value: u32) {
    let n = vec.len() as u32;
    let launch = stream.launch(&SLOW_KERNEL).scalar(LONG).unwrap();
    let launch = launch.in_out(vec).unwrap().scalar(n).unwrap().scalar(value).unwrap();
    // SAFETY: one thread writes the vector's elements.
    unsafe { launch.launch(LaunchConfig::for_elements(1)) }.unwrap();
}

/// Gives a stream of theirs the same kernel, which their tracker does not see.
///
/// # Safety
///
/// `data` has `n` elements, which nothing else uses until the work is complete.
pub unsafe fn write_slowly_theirs(stream: &cuda_core::Stream, data: u64, n: u32, value: u32) {
    let module = stream.context().load_module_from_ptx_src(SLOW).unwrap();
    let function = module.load_function("slow").unwrap();
    let (mut time, mut data, mut n, mut value) = (LONG, data, n, value);
    let mut arguments = [
        (&raw mut time).cast::<c_void>(),
        (&raw mut data).cast(),
        (&raw mut n).cast(),
        (&raw mut value).cast(),
    ];
    let shape = TheirConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the arguments are the kernel's, one thread writes, and the caller keeps the memory.
    unsafe {
        cuda_core::launch_kernel_on_stream(
            &function,
            shape.grid_dim,
            shape.block_dim,
            0,
            stream,
            &mut arguments,
        )
    }
    .unwrap();
    // The module has to outlive the work.
    std::mem::forget((module, function));
}

/// The same kernel over a buffer, as an operation of theirs, which their tracker sees.
pub fn launch_slow(
    context: &Arc<Context>,
    buffer: &DeviceBuffer<u32>,
    value: u32,
) -> AsyncKernelLaunch<'static> {
    let function = context.load_module_from_ptx_src(SLOW).unwrap().load_function("slow").unwrap();
    let mut launch = AsyncKernelLaunchBuilder::new(Arc::new(function));
    launch.retain_buffer(buffer.storage().clone(), true);
    launch.push_args((LONG, buffer.cu_deviceptr(), buffer.len() as u32, value));
    let shape = TheirConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the arguments are the kernel's, and one thread writes the buffer's elements.
    unsafe { launch.finalize_unchecked(shape) }
}

/// Has a stream of theirs wait for long.
pub fn delay_theirs(stream: &cuda_core::Stream) {
    // SAFETY: it writes no element.
    unsafe { write_slowly_theirs(stream, 0, 0, 0) }
}
