//! A checked adaptor refuses what is not right about a free, says so with both sides, and stays whole.

use crate::{log, support};
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, PoolResource,
    Result, Stream,
    mr::{CheckedAdaptor, CheckedOptions, Misuse, MisuseKind},
    pinned::PinnedResource,
    sim::SimConfig,
};
use log::Log;
use std::sync::{Arc, Mutex};
use support::free;
use tracing::Level;

/// Upstream of every test: counts what reaches it, block by block.
#[derive(Debug)]
struct Seen {
    upstream: Arc<dyn DeviceResource>,
    live: Mutex<Vec<(u64, usize, u64)>>,
}

// SAFETY: forwards unchanged.
unsafe impl DeviceResource for Seen {
    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let block = self.upstream.allocate(stream, layout)?;
        self.live.lock().unwrap().push((block.address(), block.bytes(), block.token()));
        Ok(block)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let mut live = self.live.lock().unwrap();
        let key = (block.address(), block.bytes(), block.token());
        let at = live.iter().position(|known| *known == key);
        live.swap_remove(at.expect("upstream got a block that it did not hand out"));
        drop(live);
        // SAFETY: the caller's promise, and checked above.
        unsafe { self.upstream.deallocate(stream, block) }
    }
}

struct Fixture {
    seen: Arc<Seen>,
    misuses: Arc<Mutex<Vec<Misuse>>>,
    checked: CheckedAdaptor<Arc<Seen>>,
}

impl Fixture {
    fn new(device: &Device) -> Self {
        Self::with(device, |options| options)
    }

    fn with(
        device: &Device,
        set: impl FnOnce(CheckedOptions<Arc<Seen>>) -> CheckedOptions<Arc<Seen>>,
    ) -> Self {
        let pool = PoolResource::new(CudaResource::new(device)).unwrap();
        let seen = Arc::new(Seen { upstream: Arc::new(pool), live: Mutex::default() });
        let misuses = Arc::new(Mutex::new(Vec::new()));
        let told = misuses.clone();
        let options = set(CheckedAdaptor::builder(seen.clone()));
        let checked =
            options.on_misuse(move |misuse| told.lock().unwrap().push(misuse.clone())).build();
        Self { seen, misuses, checked }
    }

    fn take(&self, stream: &Stream, bytes: usize) -> DeviceBlock {
        self.checked.allocate(stream, DeviceLayout::new(bytes).unwrap()).unwrap()
    }

    /// The misuses since the last call.
    fn told(&self) -> Vec<Misuse> {
        std::mem::take(&mut self.misuses.lock().unwrap())
    }

    /// The one misuse since the last call, of this kind.
    fn one(&self, kind: MisuseKind) -> Misuse {
        let mut told = self.told();
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].kind(), kind);
        told.remove(0)
    }

    fn live(&self) -> usize {
        self.seen.live.lock().unwrap().len()
    }
}

fn copy(of: &DeviceBlock) -> DeviceBlock {
    DeviceBlock::new(of.address(), of.bytes(), of.token())
}

#[test]
fn right_use_is_not_reported() {
    let device = support::device();
    let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let fixture = Fixture::new(&device);
    let blocks: Vec<_> = [1, 256, 5000, 1 << 20].map(|bytes| fixture.take(&stream, bytes)).into();
    assert_eq!(fixture.live(), 4);
    other.wait_for(&stream).unwrap();
    for block in blocks {
        // On another stream, after an event: legal here.
        free(&fixture.checked, &other, block);
    }
    let empty = fixture.checked.allocate(&stream, DeviceLayout::new(0).unwrap()).unwrap();
    free(&fixture.checked, &stream, empty);
    assert_eq!((fixture.live(), fixture.checked.misuses()), (0, 0));
    assert!(fixture.told().is_empty());
}

#[test]
fn a_double_free_is_told_with_the_first_one() {
    let device = support::device();
    let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let fixture = Fixture::new(&device);
    let block = fixture.take(&stream, 4096);
    let [again, third] = [copy(&block), copy(&block)];
    free(&fixture.checked, &stream, block);
    let address = again.address();
    free(&fixture.checked, &other, again);
    let misuse = fixture.one(MisuseKind::DoubleFree);
    assert_eq!((misuse.call().address(), misuse.call().stream_id()), (address, other.id()));
    let first = misuse.known().unwrap();
    assert_eq!((first.address(), first.stream_id()), (address, stream.id()));
    assert!(first.after() <= misuse.call().after());
    let text = misuse.to_string();
    assert!(text.contains("freed twice") && text.contains("first freed: 4096 bytes"), "{text}");
    free(&fixture.checked, &stream, third);
    assert_eq!(fixture.one(MisuseKind::DoubleFree).known(), Some(first));
    assert_eq!((fixture.live(), fixture.checked.misuses()), (0, 2));
}

#[test]
fn two_threads_that_free_one_block_free_it_once() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let fixture = Fixture::new(&device);
    for _ in 0..50 {
        let block = fixture.take(&stream, 4096);
        std::thread::scope(|scope| {
            for block in [copy(&block), block] {
                scope.spawn(|| free(&fixture.checked, &stream, block));
            }
        });
        fixture.one(MisuseKind::DoubleFree);
        assert_eq!(fixture.live(), 0);
    }
}

#[test]
fn a_wrong_size_or_token_is_refused_and_the_block_stays_good() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let fixture = Fixture::new(&device);
    let block = fixture.take(&stream, 4096);
    for bytes in [0, 1, 4095, 4097, usize::MAX] {
        free(&fixture.checked, &stream, DeviceBlock::new(block.address(), bytes, block.token()));
        let misuse = fixture.one(MisuseKind::WrongSize);
        assert_eq!(misuse.call().bytes(), bytes);
        assert_eq!(misuse.known().unwrap().bytes(), block.bytes());
    }
    free(
        &fixture.checked,
        &stream,
        DeviceBlock::new(block.address(), block.bytes(), !block.token()),
    );
    let misuse = fixture.one(MisuseKind::WrongToken);
    assert_eq!(misuse.call().token(), !block.token());
    assert_eq!(misuse.known().unwrap().token(), block.token());
    assert_eq!(fixture.live(), 1);
    free(&fixture.checked, &stream, block);
    assert_eq!((fixture.live(), fixture.told().len()), (0, 0));
}

#[test]
fn foreign_blocks_are_refused_and_told_with_what_they_lie_in() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let fixture = Fixture::new(&device);
    let foreign = fixture.seen.allocate(&stream, DeviceLayout::new(4096).unwrap()).unwrap();
    free(&fixture.checked, &stream, copy(&foreign));
    assert_eq!(fixture.one(MisuseKind::ForeignPointer).known(), None);
    assert_eq!(fixture.live(), 1);
    free(&*fixture.seen, &stream, foreign);

    let block = fixture.take(&stream, 4096);
    for offset in [1, 256, 4095] {
        let inside = DeviceBlock::new(block.address() + offset, 256, block.token());
        free(&fixture.checked, &stream, inside);
        let misuse = fixture.one(MisuseKind::ForeignPointer);
        assert_eq!(misuse.known().unwrap().address(), block.address());
        assert!(misuse.to_string().contains("inside of a block allocated: 4096 bytes"));
    }
    let past = DeviceBlock::new(block.address() + block.bytes() as u64, 256, block.token());
    free(&fixture.checked, &stream, past);
    assert_eq!(fixture.one(MisuseKind::ForeignPointer).known(), None);
    free(&fixture.checked, &stream, block);
    assert_eq!((fixture.live(), fixture.told().len()), (0, 0));
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let (other, _) = support::simulated(SimConfig::default().ordinal(7));
    let elsewhere = other.new_stream().unwrap();
    let fixture = Fixture::new(&device);
    let block = fixture.take(&stream, 4096);
    free(&fixture.checked, &elsewhere, copy(&block));
    let misuse = fixture.one(MisuseKind::WrongDevice);
    assert_eq!(misuse.call().stream_id(), elsewhere.id());
    assert_eq!(misuse.known().unwrap().stream_id(), stream.id());
    assert!(misuse.to_string().contains(&other.to_string()), "{misuse}");
    assert_eq!(fixture.live(), 1);
    let (namesake, _) = support::simulated(SimConfig::default().ordinal(device.ordinal()));
    free(&fixture.checked, &namesake.new_stream().unwrap(), copy(&block));
    let misuse = fixture.one(MisuseKind::WrongDevice).to_string();
    // A GPU has another name.
    let another = if device.to_string() == namesake.to_string() { "another " } else { "" };
    assert!(misuse.contains(&format!(", of {another}{namesake}")), "{misuse}");
    free(&fixture.checked, &stream, block);
    assert_eq!((fixture.live(), fixture.told().len()), (0, 0));
}

#[test]
fn another_stream_is_told_only_where_asked_and_passed_on() {
    let device = support::device();
    let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let fixture = Fixture::with(&device, |options| options.require_same_stream(true));
    let block = fixture.take(&stream, 4096);
    free(&fixture.checked, &stream, block);
    assert!(fixture.told().is_empty());
    let block = fixture.take(&stream, 4096);
    other.wait_for(&stream).unwrap();
    free(&fixture.checked, &other, block);
    let misuse = fixture.one(MisuseKind::WrongStream);
    assert!(!misuse.kind().is_refused());
    assert_eq!(misuse.call().stream_id(), other.id());
    assert_eq!(misuse.known().unwrap().stream_id(), stream.id());
    assert_eq!(fixture.live(), 0);
}

#[test]
fn a_block_freed_past_the_adaptor_is_told_when_it_comes_again() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let fixture = Fixture::new(&device);
    let block = fixture.take(&stream, 4096);
    let address = block.address();
    free(&*fixture.seen, &stream, block);
    let block = fixture.take(&stream, 4096);
    assert_eq!(block.address(), address, "a pool gives its stream's last block again");
    let misuse = fixture.one(MisuseKind::HandedOutTwice);
    assert_eq!((misuse.call().address(), misuse.known().unwrap().address()), (address, address));
    free(&fixture.checked, &stream, block);
    assert_eq!((fixture.live(), fixture.told().len()), (0, 0));
}

/// The bytes of the block that the pool hands out next, as they were left.
fn next(fixture: &Fixture, stream: &Stream, address: u64) -> Vec<u8> {
    let block = fixture.seen.allocate(stream, DeviceLayout::new(4096).unwrap()).unwrap();
    assert_eq!(block.address(), address, "a pool gives its stream's last block again");
    let (stream, resource) = (stream.clone(), fixture.seen.clone());
    // SAFETY: the block is live and of this resource; its bytes were written before it was freed.
    let vec = unsafe { DeviceVec::<u8>::from_raw_parts(stream, block, 4096, resource) };
    vec.unwrap().to_vec().unwrap()
}

#[test]
fn freed_memory_is_poisoned_as_asked() {
    // To look at it is a read of what was not written since.
    let device = support::unfollowed();
    let stream = device.new_stream().unwrap();
    let debug = if cfg!(debug_assertions) { 0xDD } else { 1 };
    let fixtures = [
        (Fixture::new(&device), debug),
        (Fixture::with(&device, |options| options.poison(Some(0xAB))), 0xAB),
        (Fixture::with(&device, |options| options.poison(None)), 1),
    ];
    for (fixture, expected) in &fixtures {
        let resource: Arc<dyn DeviceResource> = Arc::new(fixture.checked.clone());
        let vec = DeviceVec::from_slice_in(&stream, &[1_u8; 4096], resource).unwrap();
        let address = vec.as_device_ptr();
        drop(vec);
        assert_eq!(next(fixture, &stream, address), [*expected; 4096]);
        assert!(fixture.told().is_empty());
    }
}

/// A fill in a capture would run again with the graph, over whoever has the memory then.
#[test]
fn nothing_is_filled_in_a_capture() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let fixture = Fixture::with(&device, |options| options.poison(Some(0xAB)));
    let [first, second] = [4096, 8192].map(|bytes| fixture.take(&stream, bytes));
    free(&fixture.checked, &stream, first);
    assert_eq!(simulator.call_count("cuMemsetAsync"), 1);
    simulator.start_capture(&stream).unwrap();
    free(&fixture.checked, &stream, second);
    assert!(simulator.stop_capture(&stream), "not disturbed");
    assert_eq!(simulator.call_count("cuMemsetAsync"), 1);
    assert_eq!((fixture.live(), fixture.told().len()), (0, 0));
    simulator.check().unwrap();
}

#[test]
fn a_handler_that_panics_or_uses_the_adaptor_harms_nobody() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let checked = CheckedAdaptor::builder(CudaResource::new(&device))
        .on_misuse(|_| std::panic::resume_unwind(Box::new("told")))
        .build();
    let block = checked.allocate(&stream, DeviceLayout::new(4096).unwrap()).unwrap();
    let again = copy(&block);
    free(&checked, &stream, block);
    let (_, log) = Log::of(|| free(&checked, &stream, again));
    assert_eq!(log.count(Level::ERROR, "handler of misuses panicked"), 1, "{:?}", log.lines());

    let slot = Arc::new(Mutex::new(None::<CheckedAdaptor<CudaResource>>));
    let inner = slot.clone();
    let on = stream.clone();
    let checked = CheckedAdaptor::builder(CudaResource::new(&device))
        .on_misuse(move |misuse| {
            let checked = inner.lock().unwrap().clone().unwrap();
            let layout = DeviceLayout::new(misuse.call().bytes()).unwrap();
            free(&checked, &on, checked.allocate(&on, layout).unwrap());
        })
        .build();
    *slot.lock().unwrap() = Some(checked.clone());
    let block = checked.allocate(&stream, DeviceLayout::new(4096).unwrap()).unwrap();
    free(&checked, &stream, DeviceBlock::new(block.address() + 1, 64, 0));
    free(&checked, &stream, block);
    assert_eq!(checked.misuses(), 1);
    slot.lock().unwrap().take();
}

#[test]
fn without_a_handler_a_misuse_is_an_error_in_the_log() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let checked = CheckedAdaptor::new(PinnedResource::new(&device).unwrap());
    let block = checked.allocate(&stream, DeviceLayout::new(4096).unwrap()).unwrap();
    let again = copy(&block);
    let (_, log) = Log::of(|| {
        free(&checked, &stream, block);
        free(&checked.clone(), &stream, again);
    });
    assert_eq!(log.count(Level::ERROR, "a block was freed twice"), 1, "{:?}", log.lines());
    assert_eq!(log.count(Level::ERROR, ": refused"), 1);
    assert_eq!(log.lines().len(), 1);
}
