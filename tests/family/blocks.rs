//! Blocks that remember what was written to them.

use crate::fixture::Fixture;
use aquifer::{
    DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, Result, Stream, mr::DEFAULT_ALIGNMENT,
};
use std::sync::Arc;

/// Of a larger block the ends are written, so many bytes each.
const END: usize = 64;

/// A live block, the stream that its work is on, and the byte that its ends were filled with.
#[must_use]
pub(crate) struct Held {
    block: DeviceBlock,
    pub(crate) stream: Stream,
    tag: u8,
}

pub(crate) fn layout(bytes: usize) -> DeviceLayout {
    DeviceLayout::new(bytes).unwrap()
}

pub(crate) fn free(resource: &dyn DeviceResource, stream: &Stream, block: DeviceBlock) {
    // SAFETY: each block of these tests is the resource's, is freed once, and all its work was given
    // to this stream, or to one that this stream is ordered after.
    unsafe { resource.deallocate(stream, block) }
}

impl Held {
    /// Allocates `bytes`, looks at what came, and writes to it.
    pub(crate) fn take(
        resource: &Arc<dyn DeviceResource>,
        stream: &Stream,
        bytes: usize,
        tag: u8,
    ) -> Result<Self> {
        let block = resource.allocate(stream, layout(bytes))?;
        let address = block.address();
        assert!(block.bytes() >= bytes, "{bytes} bytes: {block:?}");
        assert_eq!(block.is_empty(), bytes == 0, "{bytes} bytes: {block:?}");
        assert!(address != 0, "{bytes} bytes: {block:?}");
        assert!(address.is_multiple_of(DEFAULT_ALIGNMENT as u64), "{bytes} bytes: {address:#x}");
        Ok(Self::over(block, resource, stream, tag))
    }

    /// Writes to a block that was allocated on `stream` just now.
    pub(crate) fn over(
        block: DeviceBlock,
        resource: &Arc<dyn DeviceResource>,
        stream: &Stream,
        tag: u8,
    ) -> Self {
        Self { block, stream: stream.clone(), tag }.write(resource, tag)
    }

    /// In the order of the stream: the host does not wait.
    pub(crate) fn write(mut self, resource: &Arc<dyn DeviceResource>, tag: u8) -> Self {
        self.tag = tag;
        self.with(resource, |vec| {
            for end in ends(vec.len()) {
                vec.slice_mut(end).unwrap().fill(tag).unwrap();
            }
        })
    }

    /// What was written is there. The host waits for it.
    pub(crate) fn check(self, resource: &Arc<dyn DeviceResource>) -> Self {
        let tag = self.tag;
        self.with(resource, |vec| {
            for end in ends(vec.len()) {
                let found = vec.slice(end.clone()).unwrap().to_vec().unwrap();
                assert!(found.iter().all(|byte| *byte == tag), "{end:?}: not {tag}: {found:?}");
            }
        })
    }

    /// A vector over the block, for as long as `body` works on it.
    pub(crate) fn with(
        self,
        resource: &Arc<dyn DeviceResource>,
        body: impl FnOnce(&mut DeviceVec<u8>),
    ) -> Self {
        let Self { block, stream, tag } = self;
        if block.is_empty() {
            return Self { block, stream, tag };
        }
        let length = block.bytes();
        let (home, resource) = (stream.clone(), resource.clone());
        // SAFETY: the block is live and its resource's, and all its work is on this stream.
        let mut vec = unsafe { DeviceVec::from_raw_parts(home, block, length, resource).unwrap() };
        body(&mut vec);
        Self { block: vec.into_raw_parts().unwrap().1, stream, tag }
    }

    /// Its work goes on on another stream.
    pub(crate) fn move_to(&mut self, stream: &Stream) {
        stream.wait_for(&self.stream).unwrap();
        self.stream = stream.clone();
    }

    /// Looks at it, gives it more work that nobody waits for, and frees it where that is: whoever
    /// gets it next has to come after.
    pub(crate) fn free(self, resource: &Arc<dyn DeviceResource>) {
        let tag = !self.tag;
        let Self { block, stream, .. } = self.check(resource).write(resource, tag);
        free(&**resource, &stream, block);
    }

    pub(crate) fn address(&self) -> u64 {
        self.block.address()
    }

    fn range(&self) -> (u64, u64) {
        (self.block.address(), self.block.address() + self.block.bytes() as u64)
    }
}

fn ends(length: usize) -> [std::ops::Range<usize>; 2] {
    [0..length.min(END), length - length.min(END)..length]
}

/// No two of the live blocks share a byte.
pub(crate) fn disjoint(live: &[Held]) {
    let mut ranges: Vec<_> = live.iter().map(Held::range).filter(|(a, b)| a != b).collect();
    ranges.sort_unstable();
    let shared = ranges.windows(2).find(|pair| pair[0].1 > pair[1].0);
    assert!(shared.is_none(), "{shared:x?}");
}

/// The driver says that the memory is the device's. Of ordinary memory it need not know.
pub(crate) fn lies_on_the_device(fixture: &Fixture, held: &Held) {
    assert_eq!(*fixture.resource().device(), fixture.device);
    #[cfg(feature = "cuda")]
    if crate::support::on_gpu() && fixture.made.of_device {
        use aquifer::cudarc::driver::sys;
        fixture.device.cuda_context().unwrap().bind_to_thread().unwrap();
        let mut ordinal = -1_i32;
        let attribute = sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        let target = (&raw mut ordinal).cast();
        // SAFETY: an out-parameter of the size that the driver writes for this attribute.
        let asked = unsafe { sys::cuPointerGetAttribute(target, attribute, held.address()) };
        asked.result().unwrap();
        assert_eq!(ordinal as usize, fixture.device.ordinal());
    }
    // The simulated one refuses every access to what it does not know: writing was the question.
    if let Some(simulator) = fixture.device.simulator() {
        let blocks = simulator.live_blocks() + simulator.pageable_blocks();
        assert!(blocks > 0, "{:#x} is in no block of the device", held.address());
    }
}
