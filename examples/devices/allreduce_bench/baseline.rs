//! What the others are compared with: NCCL called as nccl-tests calls it, on a communicator and memory of cudarc's.
//! No bookkeeping of uses; with registration or without.

use crate::output::Outcome;
use aquifer::Device;
use cudarc::driver::{CudaContext, CudaStream, result as cuda, sys::CUdeviceptr};
use cudarc::nccl::{result as nccl, sys};
use std::mem::MaybeUninit;
use std::sync::Arc;

pub(crate) use cudarc::nccl::sys::ncclUniqueId as UniqueId;

/// What the ranks of two communicators find each other by, or why cudarc cannot call NCCL. Ask only where Aquifer has found NCCL.
pub(crate) fn new_ids() -> Outcome<Result<[UniqueId; 2], String>> {
    // cudarc panics where it does not find the library, and does not look for the name that Aquifer takes first.
    // SAFETY: the library's initialisers run, as they did for Aquifer.
    if !unsafe { sys::is_culib_present() } {
        let what = "cudarc finds no libnccl.so. Where libnccl.so.2 is installed, link that name to it in a folder of \
                    LD_LIBRARY_PATH";
        return Ok(Err(what.to_owned()));
    }
    let new_id = || nccl::get_uniqueid().map_err(|error| failed("ncclGetUniqueId", &error));
    Ok(Ok([new_id()?, new_id()?]))
}

/// One rank, with memory to send from and to receive into. It stays on its thread.
pub(crate) struct Baseline {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    communicator: sys::ncclComm_t,
    send: CUdeviceptr,
    receive: CUdeviceptr,
    /// The registrations of both.
    registered: Vec<*mut std::ffi::c_void>,
}

impl Baseline {
    /// Joins, and allocates so many bytes twice, which are zero.
    pub(crate) fn new(
        device: &Device,
        id: UniqueId,
        rank: usize,
        ranks: usize,
        bytes: usize,
        is_registered: bool,
    ) -> Outcome<Self> {
        let context = device.cuda_context()?.clone();
        context.bind_to_thread()?;
        let stream = context.new_stream()?;
        let mut communicator = MaybeUninit::uninit();
        // SAFETY: the pointer is valid, and NCCL writes the communicator there if it succeeds.
        let communicator = unsafe {
            nccl::comm_init_rank(communicator.as_mut_ptr(), ranks as i32, id, rank as i32)
                .map_err(|error| failed("ncclCommInitRank", &error))?;
            communicator.assume_init()
        };
        let mut rank =
            Self { context, stream, communicator, send: 0, receive: 0, registered: Vec::new() };
        for address in [&mut rank.send, &mut rank.receive] {
            // SAFETY: freed when the rank is dropped; the bytes are those of the allocation.
            unsafe {
                *address = cuda::malloc_sync(bytes)?;
                cuda::memset_d8_sync(*address, 0, bytes)?;
            }
        }
        for address in [rank.send, rank.receive].into_iter().filter(|_| is_registered) {
            let mut handle = std::ptr::null_mut();
            // SAFETY: memory of the rank's device, which is deregistered before it is freed.
            let registered = unsafe {
                sys::ncclCommRegister(communicator, address as *mut _, bytes, &raw mut handle)
            };
            registered.result().map_err(|error| failed("ncclCommRegister", &error))?;
            rank.registered.push(handle);
        }
        Ok(rank)
    }

    /// All-reduces the first `count` elements so many times, and waits for the stream.
    pub(crate) fn all_reduce(&mut self, count: usize, in_place: bool, times: usize) -> Outcome {
        let send = if in_place { self.receive } else { self.send };
        for _ in 0..times {
            // SAFETY: both have `count` elements, which only this stream uses until it was waited for.
            let called = unsafe {
                nccl::all_reduce(
                    send as *const _,
                    self.receive as *mut _,
                    count,
                    sys::ncclDataType_t::ncclFloat32,
                    sys::ncclRedOp_t::ncclSum,
                    self.communicator,
                    self.stream.cu_stream().cast(),
                )
            };
            called.map_err(|error| failed("ncclAllReduce", &error))?;
        }
        Ok(self.stream.synchronize()?)
    }

    /// Sets the first elements of what is sent and received.
    pub(crate) fn set(&mut self, values: &[f32]) -> Outcome {
        for address in [self.send, self.receive] {
            // SAFETY: the memory has as many elements, and the stream was waited for.
            unsafe { cuda::memcpy_htod_sync(address, values)? };
        }
        // A copy from pageable memory may return before it has run, and the stream does not wait for it.
        Ok(self.context.synchronize()?)
    }

    /// The first elements that were received.
    pub(crate) fn received(&self, values: &mut [f32]) -> Outcome {
        // SAFETY: the memory has as many elements, and the stream was waited for.
        unsafe { cuda::memcpy_dtoh_sync(values, self.receive)? };
        Ok(())
    }
}

impl Drop for Baseline {
    fn drop(&mut self) {
        // SAFETY: each is this rank's own, and given back once. Each call waited for the stream.
        unsafe {
            for handle in self.registered.drain(..) {
                if let Err(error) = sys::ncclCommDeregister(self.communicator, handle).result() {
                    eprintln!("allreduce_bench: {}", failed("ncclCommDeregister", &error));
                }
            }
            if let Err(error) = nccl::comm_destroy(self.communicator) {
                eprintln!("allreduce_bench: {}", failed("ncclCommDestroy", &error));
            }
            for address in [self.send, self.receive] {
                if let Err(error) = cuda::free_sync(address) {
                    eprintln!("allreduce_bench: cuMemFree: {error}");
                }
            }
        }
    }
}

/// cudarc's error prints no code.
fn failed(call: &str, error: &nccl::NcclError) -> String {
    format!("{call} of cudarc: {:?}", error.0)
}
