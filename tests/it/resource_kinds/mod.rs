//! `FixedSizeResource`, `BinningResource`, `ArenaResource` and `CallbackResource`: what each serves,
//! refuses and gives back, and that memory over an upstream in stream order changes hands in order.

mod arena;
mod binning;
mod callback;
mod fixed_size;
#[cfg(unix)]
mod forked;
mod order;

use crate::{log, support};
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, ErrorKind, Result, Stream,
};
use std::sync::{Arc, Mutex};
use support::free;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn allocate(
    resource: &(impl DeviceResource + ?Sized),
    stream: &Stream,
    bytes: usize,
) -> Result<DeviceBlock> {
    resource.allocate(stream, DeviceLayout::new(bytes)?)
}

/// The kind of the error that a call must give, and that its text says `text`.
fn refused<T>(result: Result<T>, kind: ErrorKind, text: &str) {
    match result {
        Ok(_) => panic!("an error was wanted: {text}"),
        Err(error) => {
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(text), "{text}: {error}");
        }
    }
}

fn disjoint(blocks: &[DeviceBlock]) {
    let end = |block: &DeviceBlock| block.address() + block.bytes() as u64;
    let mut ranges: Vec<_> = blocks.iter().map(|block| (block.address(), end(block))).collect();
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:x?}");
}

/// One call that reached a [`Recorder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Asked { bytes: usize, alignment: usize },
    Freed { bytes: usize },
}

/// Plain memory that writes down what is asked of it, and may give more than that.
#[derive(Debug)]
struct Recorder {
    plain: CudaResource,
    calls: Mutex<Vec<Call>>,
    more: usize,
}

impl Recorder {
    fn new(device: &Device) -> Arc<Self> {
        Self::giving(device, 0)
    }

    fn giving(device: &Device, more: usize) -> Arc<Self> {
        Arc::new(Self { plain: CudaResource::new(device), calls: Mutex::default(), more })
    }

    fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

// SAFETY: every block is the plain resource's, and goes back to it unchanged.
unsafe impl DeviceResource for Recorder {
    fn device(&self) -> &Device {
        self.plain.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let (bytes, alignment) = (layout.bytes(), layout.alignment());
        self.calls.lock().unwrap().push(Call::Asked { bytes, alignment });
        self.plain.allocate(stream, DeviceLayout::with_alignment(bytes + self.more, alignment)?)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        self.calls.lock().unwrap().push(Call::Freed { bytes: block.bytes() });
        // SAFETY: the block is the plain resource's; our caller vouches for the rest.
        unsafe { self.plain.deallocate(stream, block) }
    }
}
