//! Tensors of candle from pinned and device vectors and back without a copy, and a paged cache of keys whose blocks are
//! swapped between the device and pinned memory. Results are compared with candle on the CPU. It wants a GPU.
//!
//! README.md says how it is built.

mod tensors;

use aquifer::allocator_api2::vec::Vec as AllocVec;
use aquifer::mr::AsyncResource;
use aquifer::{Device, DeviceVec, PinnedAlloc, Stream};
use candle_core::{CudaDevice, Device as CandleDevice, Tensor};
use clap::Parser;
use std::process::ExitCode;
use std::sync::Arc;
use tensors::{from_vec, lend, write_blocks};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The tokens of a block, and the elements of a token.
const BLOCK: usize = 16;
const WIDTH: usize = 64;

/// Makes tensors of candle over memory of aquifer, swaps blocks of a paged cache, and compares with the CPU.
#[derive(Parser)]
struct Arguments {
    /// How many blocks the cache has
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(8..))]
    blocks: u16,
}

fn main() -> ExitCode {
    match run(usize::from(Arguments::parse().blocks)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("paged_cache: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(blocks: usize) -> Outcome {
    let on_gpu = CandleDevice::new_cuda_with_stream(0)?;
    let candle = on_gpu.as_cuda_device()?;
    // One context and one stream for both. candle's memory is the driver's pool, and ours is, too, for what candle gets.
    let device = Device::from_cudarc(candle.cuda_stream().context())?;
    let stream = Stream::from_cudarc(&candle.cuda_stream())?;
    let pool = Arc::new(AsyncResource::default_pool(&device)?);
    println!("{device}, driver {}", device.properties().driver_version);

    products(candle, &stream, &pool)?;
    println!("the product of two tensors over aquifer's memory is the CPU's, read where it lies");
    let swapped = paged_cache(candle, &stream, &pool, blocks)?;
    println!(
        "{swapped} blocks went to pinned memory and back; the scores over the cache are the CPU's"
    );
    Ok(())
}

/// A matrix in pinned memory, made up.
fn matrix(rows: usize, columns: usize, seed: usize) -> AllocVec<f32, PinnedAlloc> {
    let mut values = AllocVec::with_capacity_in(rows * columns, PinnedAlloc);
    values.extend((0..rows * columns).map(|index| ((index * 31 + seed) % 64) as f32 / 64.0 - 0.5));
    values
}

/// Pinned vectors become tensors, and the tensor of their product is read by aquifer.
fn products(candle: &CudaDevice, stream: &Stream, pool: &Arc<AsyncResource>) -> Outcome {
    let (a, b) = (matrix(96, WIDTH, 1), matrix(WIDTH, 32, 2));
    let cpu = CandleDevice::Cpu;
    let expected = Tensor::from_slice(&a, (96, WIDTH), &cpu)?.matmul(&Tensor::from_slice(
        &b,
        (WIDTH, 32),
        &cpu,
    )?)?;

    let mut tensors = Vec::new();
    for (host, shape) in [(a, (96, WIDTH)), (b, (WIDTH, 32))] {
        let target = DeviceVec::zeroed_in(stream, host.len(), pool.clone())?;
        let (_host, vec) = stream.upload(host, target)?.wait()?; // one copy, from pinned memory
        tensors.push(from_vec(vec, candle, shape)?); // and none here
    }
    let product = tensors[0].matmul(&tensors[1])?;
    let found = lend(&product, |view| view.to_vec())?;
    close(&found, &expected.flatten_all()?.to_vec1()?)
}

/// Blocks of a cache leave the device and come back at other places, and attention scores stay as they were.
fn paged_cache(
    candle: &CudaDevice,
    stream: &Stream,
    pool: &Arc<AsyncResource>,
    blocks: usize,
) -> Outcome<usize> {
    let elements = BLOCK * WIDTH;
    let keys = matrix(blocks * BLOCK, WIDTH, 3);
    let on_cpu = Tensor::from_slice(&keys, (blocks * BLOCK, WIDTH), &CandleDevice::Cpu)?;
    let query = Tensor::from_slice(&matrix(1, WIDTH, 4), (1, WIDTH), &CandleDevice::Cpu)?;

    let target = DeviceVec::zeroed_in(stream, keys.len(), pool.clone())?;
    let (keys, vec) = stream.upload(keys, target)?.wait()?;
    let cache = from_vec(vec, candle, (blocks, BLOCK, WIDTH))?;

    // Out: the first four blocks, to pinned memory. Their copies are one batch, and the scope waits for it.
    let out = [0, 1, 2, 3];
    let mut host: AllocVec<f32, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
    host.resize(out.len() * elements, 0.0);
    lend(&cache, |view| {
        stream.scope(|scope| {
            for (block, slot) in out.iter().zip(host.chunks_exact_mut(elements)) {
                scope.download(&view.slice(block * elements..(block + 1) * elements)?, slot)?;
            }
            Ok(())
        })
    })?;
    close(&host, &keys[..host.len()])?;

    // Another sequence takes their places, and they come back in the reverse order.
    write_blocks(&cache, stream, &out.map(|block| (block, 0)), &vec![9.0; elements], elements)?;
    let back: Vec<(usize, usize)> =
        out.iter().map(|&block| (out.len() - 1 - block, block)).collect();
    write_blocks(&cache, stream, &back, &host, elements)?;

    // The table says where a block of the sequence lies now.
    let table: Vec<u32> = (0..blocks)
        .map(|block| if block < out.len() { (out.len() - 1 - block) as u32 } else { block as u32 })
        .collect();
    let on_gpu = cache.device();
    let in_order =
        cache.index_select(&Tensor::new(table, on_gpu)?, 0)?.reshape((blocks * BLOCK, WIDTH))?;
    let scores = query.to_device(on_gpu)?.matmul(&in_order.t()?)?;
    let expected = query.matmul(&on_cpu.t()?)?;
    close(&lend(&scores, |view| view.to_vec())?, &expected.flatten_all()?.to_vec1()?)?;
    Ok(out.len())
}

/// Whether both are the same but for rounding.
fn close(found: &[f32], expected: &[f32]) -> Outcome {
    let wrong = found
        .iter()
        .zip(expected)
        .filter(|(found, expected)| (*found - *expected).abs() > 1e-3)
        .count();
    if found.len() == expected.len() && wrong == 0 {
        return Ok(());
    }
    Err(format!(
        "{wrong} of {} elements are wrong, and {} were expected",
        found.len(),
        expected.len()
    )
    .into())
}
