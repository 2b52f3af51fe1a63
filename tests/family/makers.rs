//! The rows that take more than a line to make.

use crate::table::Made;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, Result, Stream,
    mr::{
        AlignedAdaptor, CheckedAdaptor, DEFAULT_ALIGNMENT, LimitingAdaptor, LocalDeviceResource,
        LogFormat, LoggingAdaptor, PolymorphicAllocator, StatisticsAdaptor, ThreadSafeAdaptor,
        TracedAdaptor, TrackingAdaptor,
    },
};
use std::cell::Cell;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

pub(crate) fn cuda(device: &Device) -> CudaResource {
    CudaResource::new(device)
}

pub(crate) fn counted<U: DeviceResource + 'static>(counted: StatisticsAdaptor<U>) -> Made {
    let (bytes, blocks) = (counted.clone(), counted.clone());
    Made::of(&counted)
        .book("current bytes", move || bytes.counters().bytes.current)
        .book("current blocks", move || blocks.counters().allocations.current)
}

pub(crate) fn tracked<U: DeviceResource + 'static>(tracked: TrackingAdaptor<U>) -> Made {
    let (blocks, bytes, odd) = (tracked.clone(), tracked.clone(), tracked.clone());
    Made::of(&tracked)
        .book("outstanding blocks", move || blocks.outstanding().len() as i64)
        .book("outstanding bytes", move || bytes.allocated_bytes() as i64)
        .book("odd frees", move || {
            (odd.unknown_frees() + odd.wrong_size_frees() + odd.bypassing_frees()) as i64
        })
}

/// Where a log goes that a test reads.
#[derive(Clone, Debug, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A file that goes with its test.
struct Scrap(PathBuf);

impl Drop for Scrap {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Its book: rows of allocations less those of frees. The first format goes to a file, the other to
/// memory.
pub(crate) fn logged<U: DeviceResource + 'static>(upstream: U, format: LogFormat) -> Result<Made> {
    let page = Page::default();
    let name = format!("aquifer-family-{}-{:?}.csv", std::process::id(), Arc::as_ptr(&page.0));
    let file = Scrap(std::env::temp_dir().join(name));
    let options = LoggingAdaptor::builder(upstream).format(format);
    let logged = match format {
        LogFormat::Rmm => options.path(&file.0),
        _ => options.writer(Box::new(page.clone())),
    }
    .build()?;
    let made = Made::of(&logged);
    Ok(made.book("rows of allocations less those of frees", move || {
        let file = &file;
        logged.flush().unwrap();
        let text = match format {
            LogFormat::Rmm => std::fs::read_to_string(&file.0).unwrap(),
            _ => String::from_utf8(page.0.lock().unwrap().clone()).unwrap(),
        };
        let rows = |of: &[&str]| {
            text.lines().filter(|row| row.split(',').any(|cell| of.contains(&cell))).count()
        };
        rows(&["allocate", "Alloc"]) as i64 - rows(&["free", "Free"]) as i64
    }))
}

/// Counts without atomics: wrong if two threads are inside.
#[derive(Debug)]
struct Local {
    upstream: CudaResource,
    live: Cell<i64>,
}

// SAFETY: every block is upstream's, and goes back to it unchanged.
unsafe impl LocalDeviceResource for Local {
    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&mut self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let block = self.upstream.allocate(stream, layout)?;
        self.live.set(self.live.get() + i64::from(!block.is_empty()));
        Ok(block)
    }

    unsafe fn deallocate(&mut self, stream: &Stream, block: DeviceBlock) {
        self.live.set(self.live.get() - i64::from(!block.is_empty()));
        // SAFETY: the caller's promise.
        unsafe { self.upstream.deallocate(stream, block) }
    }
}

pub(crate) fn thread_safe(device: &Device) -> Made {
    let shared = ThreadSafeAdaptor::new(Local { upstream: cuda(device), live: Cell::new(0) });
    let made = Made::of(&shared);
    made.book("live blocks", move || shared.inspect(|local| local.live.get()).unwrap())
}

/// An allocator of bytes, as a resource.
#[derive(Debug)]
struct ByElement(PolymorphicAllocator<u8>);

// SAFETY: every block is the allocator's resource's, and goes back to it unchanged.
unsafe impl DeviceResource for ByElement {
    fn device(&self) -> &Device {
        self.0.resource().device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        if layout.alignment() > DEFAULT_ALIGNMENT {
            return self.0.resource().allocate(stream, layout);
        }
        self.0.allocate(layout.bytes(), stream)
    }

    fn identity(&self) -> aquifer::mr::ResourceId {
        self.0.resource().identity()
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the block is the allocator's; our caller vouches for the rest.
        unsafe { self.0.of_type::<u64>().deallocate(block, stream) }
    }
}

pub(crate) fn polymorphic<U: DeviceResource + 'static>(upstream: U) -> Made {
    let allocator = PolymorphicAllocator::new_in(Arc::new(upstream));
    Made::pair(Arc::new(ByElement(allocator.clone())), Arc::new(ByElement(allocator)))
}

/// Statistics over tracking over checks over a limit over alignment over events, over `upstream`.
pub(crate) fn stack<U: DeviceResource + 'static>(upstream: U, room: usize) -> Result<Made> {
    let aligned = AlignedAdaptor::new(TracedAdaptor::new(upstream), 512, 4096)?;
    let limited = LimitingAdaptor::new(aligned, room);
    let checked = CheckedAdaptor::builder(limited.clone()).poison(Some(0x5a)).build();
    let tracked = TrackingAdaptor::new(checked.clone());
    let made = counted(StatisticsAdaptor::new(tracked.clone()));
    Ok(made
        .book("outstanding blocks", move || tracked.outstanding().len() as i64)
        .book("misuses", move || checked.misuses() as i64)
        .book("allocated bytes", move || limited.allocated() as i64))
}
