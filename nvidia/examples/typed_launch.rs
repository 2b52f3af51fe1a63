//! A typed launch of `cuda-core` and `cuda-async`, of a kernel in PTX, over vectors of Aquifer's pool, checked against the
//! CPU. Two kernels run after each other, and the host waits for nothing but the result. It needs a GPU.

use aquifer::{Device, DeviceVec, ErrorKind};
use aquifer_nvidia::{context, into_buffer, into_vec_after};
use cuda_async::device_operation::DeviceOp;
use cuda_async::launch::AsyncKernelLaunchBuilder;
use cuda_core::{
    BlockRequirement, DeviceBuffer, DynamicSharedMemoryRequirement, KernelLaunchContract,
    LaunchConfig, LaunchConfig1D, LaunchContractSpec, PreparedLaunch,
};
use std::sync::Arc;

/// `y[i] += a * x[i]`. Parameters: `a`, `x`, `y`, how many.
const SAXPY: &str = "
.version 6.4
.target sm_50
.address_size 64
.visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u32 n) {
    .reg .pred %p; .reg .u32 %r<5>; .reg .u64 %rd<4>; .reg .f32 %f<4>;
    ld.param.f32 %f1, [a];
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    setp.ge.u32 %p, %r2, %r1;
    @%p bra done;
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
    mul.wide.u32 %rd3, %r2, 4;
    add.u64 %rd1, %rd1, %rd3;
    add.u64 %rd2, %rd2, %rd3;
    ld.global.f32 %f2, [%rd1];
    ld.global.f32 %f3, [%rd2];
    fma.rn.f32 %f3, %f1, %f2, %f3;
    st.global.f32 [%rd2], %f3;
done:
    ret;
}";

const BLOCK: u32 = 256;
const N: usize = 1 << 20;
const A: f32 = 3.0;

/// What the kernel takes for granted of a launch.
struct Saxpy;

impl KernelLaunchContract for Saxpy {
    type Config = LaunchConfig1D;

    const SPEC: LaunchContractSpec = LaunchContractSpec::new(
        "saxpy",
        BlockRequirement::Exact((BLOCK, 1, 1)),
        DynamicSharedMemoryRequirement::Exact { bytes: 0, min_alignment: 1 },
    );
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().len() > 1 {
        println!(
            "typed_launch: a kernel in PTX over vectors of Aquifer's pool. It takes no arguments."
        );
        return Ok(());
    }
    let device = match Device::detect() {
        Err(error) if matches!(error.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice) => {
            eprintln!("skipped: typed_launch: {error}");
            return Ok(());
        }
        device => device?,
    };
    let home = device.new_stream()?;
    let context = context(&device)?;
    let theirs = context.new_stream()?;

    let x: Vec<f32> = (0..N).map(|i| (i % 1000) as f32).collect();
    let y: Vec<f32> = (0..N).map(|i| (i % 77) as f32).collect();
    let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| A * x + (A * x + y)).collect();
    let x: DeviceBuffer<f32> = into_buffer(DeviceVec::from_slice(&home, &x)?, &theirs)?;
    let y: DeviceBuffer<f32> = into_buffer(DeviceVec::from_slice(&home, &y)?, &theirs)?;

    let function = context.load_module_from_ptx_src(SAXPY)?.load_function("saxpy")?;
    let blocks = u32::try_from(N)?.div_ceil(BLOCK);
    // SAFETY: the contract is the kernel's: one dimension, and no shared memory.
    let prepared = unsafe {
        PreparedLaunch::<Saxpy>::__prepare(function, LaunchConfig1D::new(blocks, BLOCK, 0))?
    };
    prepared.validate_stream(&theirs)?;
    let function = Arc::new(prepared.function().clone());
    for _ in 0..2 {
        let mut launch = AsyncKernelLaunchBuilder::new(function.clone());
        launch.retain_buffer(x.storage().clone(), false);
        launch.retain_buffer(y.storage().clone(), true);
        launch.push_args((A, x.cu_deviceptr(), y.cu_deviceptr(), u32::try_from(N)?));
        let shape = LaunchConfig {
            grid_dim: (blocks, 1, 1),
            block_dim: (BLOCK, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the arguments are the kernel's, of N elements each, and y is written by one thread an element.
        let launch = unsafe { launch.finalize_unchecked(shape) };
        // SAFETY: buffers and function outlive the work. It is on one stream, which `into_vec_after` orders homes after.
        unsafe { launch.async_on(&theirs)? };
    }

    let y = into_vec_after(y, &theirs)?;
    let x = into_vec_after(x, &theirs)?;
    let found = y.to_vec()?;
    let wrong = found.iter().zip(&want).filter(|(found, want)| found != want).count();
    println!("{device}, x at {:#x}, y at {:#x}", x.as_device_ptr(), y.as_device_ptr());
    println!("typed_launch: {wrong} of {N} wrong");
    if wrong == 0 { Ok(()) } else { Err("the kernel is wrong".into()) }
}
