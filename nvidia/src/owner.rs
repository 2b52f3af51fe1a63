//! The owner of a vector that NVIDIA's crates use.
//!
//! | state | the vector | who has the memory |
//! | --- | --- | --- |
//! | lent | in the owner | buffers, tensors, views and leases of theirs |
//! | taken back | with the program | the program; leases of work that the vector's home is ordered after |
//! | dropped | freed at home | the resource |
//!
//! Their allocation drops the owner with its last view and its last lease. A lease ends when the work is complete. So
//! a drop needs no order.

use aquifer::DeviceVec;
use cuda_core::sys::CUdeviceptr;
use cuda_core::{Context, DeviceAllocation, RawDeviceBuffer};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The owners of vectors, by the number of their allocation. Theirs does not give its owner away.
static LENT: Mutex<Option<HashMap<usize, Weak<Owner>>>> = Mutex::new(None);

/// A vector that was moved to NVIDIA's crates.
pub(crate) struct Owner {
    address: CUdeviceptr,
    bytes: usize,
    context: Arc<Context>,
    vec: Mutex<Option<DeviceVec<u8>>>,
    /// The number of the allocation, from when it has one.
    id: Mutex<Option<usize>>,
}

// SAFETY: the vector, which nothing else can name, keeps its memory where it is as long as it is in here. It is taken out
// by `take_back` alone, which has the last view. What is left of the owner then are leases, which name no memory. The
// context is retained here.
unsafe impl DeviceAllocation for Owner {
    fn device_ptr(&self) -> CUdeviceptr {
        self.address
    }

    fn len_bytes(&self) -> usize {
        self.bytes
    }

    fn context(&self) -> Arc<Context> {
        self.context.clone()
    }
}

impl Owner {
    /// A buffer of theirs over memory whose vector comes by [`put`](Self::put), before another sees the buffer.
    pub(crate) fn of_memory(
        address: CUdeviceptr,
        bytes: usize,
        context: &Arc<Context>,
    ) -> (Arc<Self>, RawDeviceBuffer) {
        let (context, vec, id) = (context.clone(), Mutex::default(), Mutex::default());
        let owner = Arc::new(Self { address, bytes, context, vec, id });
        let raw = RawDeviceBuffer::foreign(owner.clone(), bytes);
        *owner.id.lock().unwrap_or_else(PoisonError::into_inner) = Some(raw.allocation_id());
        let mut lent = LENT.lock().unwrap_or_else(PoisonError::into_inner);
        lent.get_or_insert_default().insert(raw.allocation_id(), Arc::downgrade(&owner));
        drop(lent);
        (owner, raw)
    }

    /// The owner behind a buffer, if it is a vector's.
    pub(crate) fn of(raw: &RawDeviceBuffer) -> Option<Arc<Self>> {
        let lent = LENT.lock().unwrap_or_else(PoisonError::into_inner);
        // The number is the allocation's alone while `raw` keeps that.
        lent.as_ref()?.get(&raw.allocation_id()).and_then(Weak::upgrade)
    }

    /// Whether the buffer is the whole vector.
    pub(crate) fn is_whole(&self, raw: &RawDeviceBuffer) -> bool {
        raw.cu_deviceptr() == self.address && raw.len_bytes() == self.bytes
    }

    /// The vector's home.
    pub(crate) fn home(&self) -> Option<aquifer::Stream> {
        let vec = self.vec.lock().unwrap_or_else(PoisonError::into_inner);
        vec.as_ref().map(|vec| vec.stream().clone())
    }

    /// Takes the vector out.
    pub(crate) fn take(&self) -> Option<DeviceVec<u8>> {
        self.vec.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Moves the vector in.
    pub(crate) fn put(&self, vec: DeviceVec<u8>) {
        *self.vec.lock().unwrap_or_else(PoisonError::into_inner) = Some(vec);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let id = *self.id.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut lent = LENT.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((id, lent)) = id.zip(lent.as_mut()) else { return };
        // A later allocation may have the number again, with an owner that lives.
        if lent.get(&id).is_some_and(|owner| owner.strong_count() == 0) {
            lent.remove(&id);
        }
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner")
            .field("address", &format_args!("{:#x}", self.address))
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
