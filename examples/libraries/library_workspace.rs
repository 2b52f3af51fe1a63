//! cuBLAS and cuFFT work in memory from a pool instead of allocating their own.
//!
//!     cargo run --release -p aquifer-examples-libraries
//!
//! cuRAND's generators keep a state that they allocate by themselves: its API takes no memory from
//! its caller. On the simulated device there are no such libraries; the workspace is made and given
//! back, and a CPU does the arithmetic that is checked.

use aquifer::{CudaResource, Device, DeviceVec, PoolResource, Stream};
use clap::Parser;
use cudarc::cublas::{CudaBlas, Gemm, GemmConfig, sys as cublas};
use cudarc::cufft::{result as cufft, sys as cufft_types};
use cudarc::driver::{CudaStream, DevicePtrMut};
use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Rows and columns of the matrices.
const N: usize = 256;
/// What NVIDIA recommends for cuBLAS on Hopper.
const BLAS_WORKSPACE: usize = 32 << 20;
/// Points of the transform: no power of two, so that cuFFT needs a work area.
const POINTS: usize = 1_000_003;

/// `CUFFT_FORWARD` and `CUFFT_INVERSE`, which are macros in C and missing in cudarc.
const FORWARD: i32 = -1;
const INVERSE: i32 = 1;

/// Has cuBLAS multiply and cuFFT transform in memory of a pool, and checks the results.
///
/// Takes a GPU, or the simulated device where there is none; AQUIFER_BACKEND=cuda or sim says which. The
/// simulated device has no such libraries: there the workspace is made and given back.
#[derive(Parser)]
struct Arguments {}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("library_workspace: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `println!`, but that an output which cannot be written is an error, and no panic.
fn say(words: impl Display) -> Outcome {
    writeln!(io::stdout(), "{words}").map_err(|error| format!("standard output: {error}").into())
}

fn run() -> Outcome {
    match Arguments::try_parse() {
        Ok(Arguments {}) => {}
        // Asked for by `--help`. `parse` would pass over a full disk.
        Err(help) if !help.use_stderr() => return say(help.render().to_string().trim_end()),
        Err(wrong) => wrong.exit(),
    }
    let device = Device::detect_or_simulate()?;
    say(&device)?;
    let stream = device.new_stream()?;
    let pool = PoolResource::builder(CudaResource::new(&device)).initial_size(1 << 28).build()?;
    match stream.cuda_stream() {
        Ok(cuda) => {
            multiply(&stream, cuda, &pool)?;
            transform(&stream, cuda, &pool)?;
        }
        Err(_) => {
            let workspace = DeviceVec::<u8>::zeroed_in(&stream, BLAS_WORKSPACE, pool.clone())?;
            say(format_args!(
                "simulated: a workspace of {} bytes, and no library to use it",
                workspace.len()
            ))?;
        }
    }
    let statistics = pool.statistics();
    say(format_args!(
        "the pool: {} blocks live, {} bytes reserved, growths: {}",
        statistics.live_blocks, statistics.reserved, statistics.growths
    ))?;
    if statistics.live_blocks != 0 {
        return Err("a workspace was not given back".into());
    }
    Ok(())
}

/// `c = a * b` by cuBLAS, whose workspace is a vector of the pool.
fn multiply(stream: &Stream, cuda: &Arc<CudaStream>, pool: &PoolResource) -> Outcome {
    let resource = Arc::new(pool.clone());
    let values = |scale: f32| (0..N * N).map(|i| scale * (i % 7) as f32).collect::<Vec<_>>();
    let (left, right) = (values(1.0), values(0.5));
    let a = DeviceVec::from_slice_in(stream, &left, resource.clone())?;
    let b = DeviceVec::from_slice_in(stream, &right, resource.clone())?;
    let mut c = DeviceVec::<f32>::zeroed_in(stream, N * N, resource.clone())?;

    let blas = CudaBlas::new(cuda.clone())?;
    // SAFETY: cuBLAS writes the workspace before it reads it, on `stream`, where the vector is at
    // home; and the vector lives until the handle is gone.
    let mut workspace = unsafe { DeviceVec::<u8>::uninit_in(stream, BLAS_WORKSPACE, resource)? };
    // SAFETY: the handle is alive, and the memory is the vector's. cudarc has no safe form of it.
    unsafe {
        let address = address(&mut workspace, cuda)? as *mut _;
        cublas::cublasSetWorkspace_v2(*blas.handle(), address, workspace.len()).result()?;
    }
    let n = N as i32;
    let config = GemmConfig {
        transa: cublas::cublasOperation_t::CUBLAS_OP_N,
        transb: cublas::cublasOperation_t::CUBLAS_OP_N,
        m: n,
        n,
        k: n,
        alpha: 1.0,
        lda: n,
        ldb: n,
        beta: 0.0,
        ldc: n,
    };
    // SAFETY: the three matrices have the n * n elements that the configuration names.
    unsafe { blas.gemm(config, &a.cuda()?, &b.cuda()?, &mut c.cuda_mut()?)? };
    let product = c.to_vec()?;
    // Column by column, as cuBLAS has it; all of these sums are exact in an `f32`.
    for (row, column) in [(0, 0), (1, 2), (N - 1, 3), (17, N - 1)] {
        let wanted: f32 = (0..N).map(|k| left[row + k * N] * right[k + column * N]).sum();
        let got = product[row + column * N];
        if got != wanted {
            return Err(format!("c[{row}, {column}] is {got} and should be {wanted}").into());
        }
    }
    say(format_args!(
        "cuBLAS multiplied {N} x {N} in a workspace of {BLAS_WORKSPACE} bytes from the pool"
    ))?;
    drop(blas);
    drop(workspace);
    Ok(())
}

/// Where a vector lies, for a library that uses it on the vector's home stream.
fn address<T: aquifer::bytemuck::Pod>(vec: &mut DeviceVec<T>, home: &CudaStream) -> Outcome<u64> {
    let mut cuda = vec.cuda_mut()?;
    let (address, _guard) = cuda.device_ptr_mut(home);
    Ok(address)
}

/// A plan of cuFFT, destroyed when it is dropped.
struct Plan(cufft_types::cufftHandle);

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: the plan was made by `create`, and is destroyed once.
        if let Err(error) = unsafe { cufft::destroy(self.0) } {
            eprintln!("cufftDestroy: {error:?}");
        }
    }
}

/// A transform there and back by cuFFT, whose work area is a vector of the pool.
fn transform(stream: &Stream, cuda: &Arc<CudaStream>, pool: &PoolResource) -> Outcome {
    let resource = Arc::new(pool.clone());
    let wave: Vec<f32> = (0..2 * POINTS).map(|i| ((i * 37) % 101) as f32 - 50.0).collect();
    let mut data = DeviceVec::from_slice_in(stream, &wave, resource.clone())?;
    let plan = Plan(cufft::create()?);
    // SAFETY: the plan is alive; told before it is made, it allocates no work area of its own.
    let bytes = unsafe {
        cufft::set_auto_allocation(plan.0, false)?;
        cufft::make_plan_1d(plan.0, POINTS as i32, cufft_types::cufftType::CUFFT_C2C, 1)?
    };
    // SAFETY: cuFFT writes its work area before it reads it, on `stream`, where the vector is at home;
    // and the vector lives until the plan is gone.
    let mut area = unsafe { DeviceVec::<u8>::uninit_in(stream, bytes, resource)? };
    // SAFETY: the plan is alive; the area has the bytes that it asked for; and the data has POINTS
    // complex numbers, is at home on the stream that the plan runs on, and is read after it.
    unsafe {
        cufft::set_stream(plan.0, cuda.cu_stream().cast())?;
        cufft::set_work_area(plan.0, address(&mut area, cuda)? as *mut _)?;
        let points = address(&mut data, cuda)? as *mut cufft_types::cufftComplex;
        for direction in [FORWARD, INVERSE] {
            cufft::exec_c2c(plan.0, points, points, direction)?;
        }
    }
    let back = data.to_vec()?;
    let scale = POINTS as f32;
    let worst = wave.iter().zip(&back).map(|(a, b)| (a - b / scale).abs()).fold(0.0, f32::max);
    if worst.is_nan() || worst > 0.01 {
        return Err(format!("there and back, the transform is {worst} away").into());
    }
    say(format_args!(
        "cuFFT transformed {POINTS} points there and back in a work area of {bytes} bytes from the pool"
    ))?;
    drop(plan);
    drop(area);
    Ok(())
}
