//! The softmax of each row of a matrix by a kernel that is written in Rust, over vectors of Aquifer's pool, checked against
//! the CPU. `saxpy.rs` says what it needs.

use aquifer::{Device, DeviceVec, ErrorKind};
use aquifer_nvidia::{context, into_tensor, tensor_into_vec_after};
use cutile::prelude::*;

#[cutile::module]
mod kernels {
    use cutile::core::*;

    #[cutile::entry()]
    fn softmax<const M: i32, const N: i32>(
        x: &Tensor<f32, { [-1, -1] }>,
        y: &mut Tensor<f32, { [M, N] }>,
    ) {
        let x: Tile<f32, { [M, N] }> = x.load_like(y);
        let most: Tile<f32, { [M] }> = reduce_max(x, 1i32);
        let most: Tile<f32, { [M, N] }> = most.reshape(shape![M, 1]).broadcast(y.shape());
        let powers: Tile<f32, { [M, N] }> = exp(x - most);
        let sum: Tile<f32, { [M] }> = reduce_sum(powers, 1);
        let sum = sum.reshape(shape![M, 1]).broadcast(y.shape());
        y.store(powers / sum);
    }
}

const ROWS: usize = 1024;
const COLUMNS: usize = 512;

/// The largest difference that counts as right, of values up to 1.
const TOLERANCE: f32 = 1e-6;

fn softmax(row: &[f32]) -> impl Iterator<Item = f32> {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|x| f64::from(x - most).exp()).sum();
    row.iter().map(move |x| (f64::from(x - most).exp() / sum) as f32)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().len() > 1 {
        println!(
            "softmax: a kernel in Rust over vectors of Aquifer's pool. It takes no arguments."
        );
        return Ok(());
    }
    let device = match Device::detect() {
        Err(error) if matches!(error.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice) => {
            eprintln!("skipped: softmax: {error}");
            return Ok(());
        }
        device => device?,
    };
    let home = device.new_stream()?;
    let theirs = context(&device)?.new_stream()?;

    let x: Vec<f32> = (0..ROWS * COLUMNS).map(|i| ((i * 37) % 101) as f32 / 10.0).collect();
    let want: Vec<f32> = x.chunks(COLUMNS).flat_map(softmax).collect();
    let shape = [ROWS, COLUMNS];
    let x = into_tensor(DeviceVec::from_slice(&home, &x)?, &shape, &theirs)?;
    let mut y = into_tensor(DeviceVec::<f32>::zeroed(&home, ROWS * COLUMNS)?, &shape, &theirs)?;
    kernels::softmax(&x, (&mut y).partition([4, COLUMNS])).sync_on(&theirs)?;

    let found = tensor_into_vec_after(y, &theirs)?.to_vec()?;
    let differs = |(found, want): &(&f32, &f32)| (**found - **want).abs() > TOLERANCE;
    // A NaN differs, too.
    let right = found.iter().zip(&want).filter(|pair| !differs(pair) && pair.0.is_finite()).count();
    let wrong = found.len() - right;
    println!("softmax: {wrong} of {} wrong", found.len());
    if wrong == 0 { Ok(()) } else { Err("the kernel is wrong".into()) }
}

#[cfg(test)]
mod tests {
    use cutile::compile_api::KernelCompiler;

    /// As far as a machine without a GPU can compile it. The compiler wants more stack than a test's thread has.
    #[test]
    fn the_kernel_compiles_to_tile_ir() {
        let compile = || {
            let compiler =
                KernelCompiler::new(super::kernels::__module_ast_self, "kernels", "softmax");
            let compiler = compiler.generics(vec!["4".into(), "512".into()]).target("sm_90");
            let compiled = compiler.strides(&[("x", &[512, 1]), ("y", &[512, 1])]).compile();
            compiled.unwrap().ir_text()
        };
        let thread = std::thread::Builder::new().stack_size(8 << 20).spawn(compile).unwrap();
        assert!(thread.join().unwrap().contains("softmax"));
    }
}
