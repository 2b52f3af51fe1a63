//! Tensors of candle over memory of aquifer, without `unsafe`.

use aquifer::container::DeviceSlice;
use aquifer::{DeviceCopy, DeviceVec, Stream, interop};
use candle_core::cuda_backend::CudaDType;
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, CudaDevice, CudaStorage, Error, InplaceOp1, Layout, Result, Shape, Storage, Tensor,
};

/// aquifer's errors as candle's.
fn candle_error(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::wrap(error)
}

/// A vector as a tensor, which frees it. The vector is of an `AsyncResource`, and nothing is copied.
pub fn from_vec<T: CudaDType + DeviceCopy>(
    vec: DeviceVec<T>,
    device: &CudaDevice,
    shape: impl Into<Shape>,
) -> Result<Tensor> {
    let shape = shape.into();
    if vec.len() != shape.elem_count() {
        return Err(Error::Msg(format!("{} elements were given for {shape:?}", vec.len())));
    }
    let slice = vec.into_cuda_slice().map_err(|refused| candle_error(refused.error))?;
    let storage = CudaStorage::wrap_cuda_slice(slice, device.clone());
    Ok(Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false))
}

/// Runs `body` with a view of a contiguous tensor's elements, where they lie.
pub fn lend<R>(
    tensor: &Tensor,
    body: impl FnOnce(DeviceSlice<'_, f32>) -> aquifer::Result<R>,
) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    let Some((start, end)) = layout.contiguous_offsets() else {
        return Err(Error::Msg("the tensor is not contiguous".into()));
    };
    let Storage::Cuda(storage) = &*storage else {
        return Err(Error::Msg("the tensor is not on a GPU".into()));
    };
    let slice = storage.as_cuda_slice::<f32>()?;
    interop::lend(slice, |view| body(view.slice(start..end)?)).map_err(candle_error)
}

/// Overwrites blocks of a contiguous tensor with blocks of `host`: of each pair, the first with the second.
pub fn write_blocks(
    tensor: &Tensor,
    stream: &Stream,
    pairs: &[(usize, usize)],
    host: &[f32],
    block: usize,
) -> Result<()> {
    tensor.inplace_op1(&WriteBlocks { stream, pairs, host, block })
}

/// candle gives a storage to write to an operation alone.
struct WriteBlocks<'a> {
    stream: &'a Stream,
    pairs: &'a [(usize, usize)],
    host: &'a [f32],
    block: usize,
}

impl InplaceOp1 for WriteBlocks<'_> {
    fn name(&self) -> &'static str {
        "write_blocks"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        Err(Error::Msg("write_blocks is for tensors on a GPU".into()))
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            return Err(Error::Msg("the tensor is not contiguous".into()));
        };
        let slice = storage.as_cuda_slice_mut::<f32>()?;
        let written = interop::lend_mut(slice, |view| {
            let mut blocks = view.into_slice_mut(start..end)?;
            self.stream.scope(|scope| {
                for &(to, from) in self.pairs {
                    let mut target = blocks.slice_mut(to * self.block..(to + 1) * self.block)?;
                    scope.upload(
                        &self.host[from * self.block..(from + 1) * self.block],
                        &mut target,
                    )?;
                }
                Ok(())
            })
        });
        written.map_err(candle_error)
    }
}
