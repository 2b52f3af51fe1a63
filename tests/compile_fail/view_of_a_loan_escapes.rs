//! cudarc goes on with its slice after the closure.

use aquifer::cudarc::driver::CudaSlice;
use aquifer::interop;

fn misuse(slice: &CudaSlice<f32>) {
    let _view = interop::lend(slice, |view| Ok(view));
}

fn main() {}
