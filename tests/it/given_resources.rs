//! The resource that a container is given: by value, shared, or erased; and how a container shows it.

use crate::support;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceBuffer, DeviceLayout, DeviceResource, DeviceScalar,
    DeviceVec, PoolResource, Result, Stream,
    mr::{
        BinningResource, PolymorphicAllocator, StatisticsAdaptor, reset_current_device_resource,
        set_current_device_resource, with_device_resource, with_device_resource_async,
    },
};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A resource whose `Debug` must not be asked.
#[derive(Clone)]
struct Silent(CudaResource);

impl std::fmt::Debug for Silent {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("a container shows the name alone")
    }
}

// SAFETY: every block is the plain resource's, and goes back to it unchanged.
unsafe impl DeviceResource for Silent {
    fn device(&self) -> &Device {
        self.0.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.0.allocate(stream, layout)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the caller's promise, unchanged.
        unsafe { self.0.deallocate(stream, block) }
    }
}

#[test]
fn debug_of_a_container_asks_nothing_of_its_resource() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let silent = || StatisticsAdaptor::new(Silent(CudaResource::new(&device)));
    let vec = DeviceVec::<u8>::zeroed_in(&stream, 3, Silent(CudaResource::new(&device))).unwrap();
    let scalar = DeviceScalar::new_in(&stream, 3_u32, silent()).unwrap();
    let buffer = DeviceBuffer::zeroed_in(&stream, 3, silent()).unwrap();
    let allocator = PolymorphicAllocator::<u8>::new_in(silent());
    for shown in [format!("{scalar:?}"), format!("{buffer:?}"), format!("{allocator:?}")] {
        assert!(shown.contains("resource: StatisticsAdaptor"), "{shown}");
    }
    let shown = format!("{vec:?}");
    assert!(shown.starts_with("DeviceVec { element: u8, length: 3, block: 3 bytes"), "{shown}");
    assert!(shown.contains("resource: Silent"), "{shown}");
}

/// A vector of `resource`, made at each place that takes one; what `look` sees of it.
fn at_each_place<R: DeviceResource + Clone + 'static>(
    device: &Device,
    resource: &R,
    look: impl Fn(&Arc<dyn DeviceResource>),
) {
    let stream = device.new_stream().unwrap();
    let given = || resource.clone();
    look(DeviceVec::<u8>::zeroed_in(&stream, 3, given()).unwrap().resource());
    look(DeviceVec::<u8>::from_slice_in(&stream, &[1], given()).unwrap().resource());
    look(DeviceScalar::new_in(&stream, 3_u8, given()).unwrap().resource());
    look(DeviceBuffer::zeroed_in(&stream, 3, given()).unwrap().resource());
    let layout = support::layout(64);
    // SAFETY: bytes have no wrong values, and are not read.
    look(
        unsafe { DeviceBuffer::uninit_with_layout_in(&stream, layout, given()) }
            .unwrap()
            .resource(),
    );
    look(PolymorphicAllocator::<u8>::new_in(given()).resource());
    let scoped = with_device_resource(given(), || DeviceVec::<u8>::zeroed(&stream, 3));
    look(scoped.unwrap().resource());
    let task = with_device_resource_async(given(), async { DeviceVec::<u8>::zeroed(&stream, 3) });
    match pin!(task).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(vec) => look(vec.unwrap().resource()),
        Poll::Pending => panic!("it waits for nothing"),
    }
    assert!(set_current_device_resource(given()).is_none());
    look(DeviceVec::<u8>::zeroed(&stream, 3).unwrap().resource());
    look(&reset_current_device_resource(device).unwrap());
    let binning = BinningResource::builder(CudaResource::new(device)).bin(512, given()).build();
    drop(DeviceVec::<u8>::zeroed_in(&stream, 512, binning.unwrap()).unwrap());
}

#[test]
fn a_resource_is_given_by_value_shared_or_erased() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let shared = Arc::new(pool.clone());
    let erased: Arc<dyn DeviceResource> = shared.clone();
    let same = |found: &Arc<dyn DeviceResource>| assert_eq!(found.identity(), pool.identity());
    at_each_place(&device, &pool, same);
    // What is behind an `Arc` is not put behind another one.
    at_each_place(&device, &shared, |found| {
        same(found);
        assert!(std::ptr::addr_eq(Arc::as_ptr(found), Arc::as_ptr(&shared)), "one `Arc`");
    });
    at_each_place(&device, &erased, |found| {
        assert!(std::ptr::addr_eq(Arc::as_ptr(found), Arc::as_ptr(&shared)), "one `Arc`");
    });
    let twice = Arc::new(erased.clone());
    at_each_place(&device, &twice, same);
    drop(twice);
    assert_eq!(Arc::strong_count(&shared), 2, "each container let go of it");
    simulator.check().unwrap();
}

#[test]
fn a_resource_that_borrows_is_one_too() {
    /// Lends what another one has: not `'static`, and given to no container.
    #[derive(Debug)]
    struct Borrowed<'a>(&'a CudaResource);

    // SAFETY: every block is the upstream's, and goes back to it unchanged.
    unsafe impl DeviceResource for Borrowed<'_> {
        fn device(&self) -> &Device {
            self.0.device()
        }

        fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
            self.0.allocate(stream, layout)
        }

        unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
            // SAFETY: the caller's promise, unchanged.
            unsafe { self.0.deallocate(stream, block) }
        }
    }

    let device = support::device();
    let stream = device.new_stream().unwrap();
    let plain = CudaResource::new(&device);
    let borrowed = Arc::new(Borrowed(&plain));
    let erased: Arc<dyn DeviceResource + '_> = borrowed.clone();
    let block = erased.allocate(&stream, support::layout(64)).unwrap();
    support::free(&*borrowed, &stream, block);
}
