//! `y = a * x + y` by a kernel that is written in Rust, over vectors of Aquifer's pool, checked against the CPU.
//!
//! It needs a GPU, and `tileiras` of CUDA 13.3 or newer: `CUTILE_TILEIRAS_PATH` names it. PyPI's `nvidia-cuda-tileiras` has it.

use aquifer::{Device, DeviceVec, ErrorKind};
use aquifer_nvidia::{context, into_tensor, tensor_into_vec_after};
use cutile::prelude::*;

#[cutile::module]
mod kernels {
    use cutile::core::*;

    #[cutile::entry()]
    fn saxpy<const B: i32>(a: f32, x: &Tensor<f32, { [-1] }>, y: &mut Tensor<f32, { [B] }>) {
        let a = a.broadcast(y.shape());
        let x = x.load_like(y);
        let old = y.load();
        y.store(a * x + old);
    }
}

const N: usize = 1 << 20;
const A: f32 = 3.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().len() > 1 {
        println!("saxpy: a kernel in Rust over vectors of Aquifer's pool. It takes no arguments.");
        return Ok(());
    }
    let device = match Device::detect() {
        Err(error) if matches!(error.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice) => {
            eprintln!("skipped: saxpy: {error}");
            return Ok(());
        }
        device => device?,
    };
    let home = device.new_stream()?;
    let theirs = context(&device)?.new_stream()?;

    let x: Vec<f32> = (0..N).map(|i| (i % 1000) as f32).collect();
    let y: Vec<f32> = (0..N).map(|i| (i % 77) as f32).collect();
    let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| A * x + y).collect();
    let x = DeviceVec::from_slice(&home, &x)?;
    let y = DeviceVec::from_slice(&home, &y)?;

    // Their stream waits for the copies. The host does not.
    let x = into_tensor(x, &[N], &theirs)?;
    let mut y = into_tensor(y, &[N], &theirs)?;
    kernels::saxpy(A, &x, (&mut y).partition([1024])).sync_on(&theirs)?;

    let y = tensor_into_vec_after(y, &theirs)?;
    let x = tensor_into_vec_after(x, &theirs)?;
    let found = y.to_vec()?;
    let wrong = found.iter().zip(&want).filter(|(found, want)| found != want).count();
    println!("{device}, x at {:#x}, y at {:#x}", x.as_device_ptr(), y.as_device_ptr());
    println!("saxpy: {wrong} of {N} wrong");
    if wrong == 0 { Ok(()) } else { Err("the kernel is wrong".into()) }
}

#[cfg(test)]
mod tests {
    use cutile::compile_api::KernelCompiler;

    /// As far as a machine without a GPU can compile it.
    #[test]
    fn the_kernel_compiles_to_tile_ir() {
        let compiler = KernelCompiler::new(super::kernels::__module_ast_self, "kernels", "saxpy");
        let compiler = compiler.generics(vec!["1024".into()]).target("sm_90");
        let compiled = compiler.strides(&[("x", &[1]), ("y", &[1])]).compile().unwrap();
        assert!(compiled.ir_text().contains("saxpy"));
    }
}
