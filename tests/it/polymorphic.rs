//! Typed allocators over any resource, and any resource bound to a stream.

use crate::{kernels, support};
use aquifer::allocator_api2::alloc::Allocator;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, ErrorKind, PoolResource,
    Result, Stream,
    mr::{
        AsyncResource, OnStream, PolymorphicAllocator, current_device_resource,
        with_device_resource,
    },
};
use kernels::kind;
use std::any::type_name_of_val;
use std::sync::Arc;

fn plain(device: &Device) -> Arc<dyn DeviceResource> {
    Arc::new(CudaResource::new(device))
}

fn pool(device: &Device) -> PoolResource {
    PoolResource::new(CudaResource::new(device)).unwrap()
}

#[test]
fn the_default_is_what_is_current_when_it_is_made() {
    let device = support::device();
    let current = current_device_resource(&device).unwrap();
    let default = PolymorphicAllocator::<u32>::new(&device).unwrap();
    assert!(Arc::ptr_eq(default.resource(), &current));
    let scoped = plain(&device);
    let inside =
        with_device_resource(scoped.clone(), || PolymorphicAllocator::<u32>::new(&device).unwrap());
    assert!(Arc::ptr_eq(inside.resource(), &scoped), "kept when the scope is left");
    assert_ne!(inside, default);
}

#[test]
fn equality_follows_the_resource_and_neither_element_nor_handle() {
    let device = support::device();
    let (one, two) = (pool(&device), pool(&device));
    let of = |pool: &PoolResource| PolymorphicAllocator::<u32>::new_in(Arc::new(pool.clone()));
    assert_eq!(of(&one), of(&one), "two handles on one pool");
    assert_ne!(of(&one), of(&two));
    assert_eq!(of(&one), of(&one).clone());
    assert_eq!(of(&one), of(&one).of_type::<f64>(), "of another element");
    assert_ne!(of(&one), of(&two).of_type::<f64>());
    let plains = [(); 2].map(|()| PolymorphicAllocator::<u8>::from(plain(&device)));
    assert_eq!(plains[0], plains[1], "any plain resource frees what another gave");
    assert_ne!(plains[0], of(&one));
    let (elsewhere, _) = support::simulated(SimConfig::default());
    assert_ne!(plains[0], PolymorphicAllocator::<u8>::from(plain(&elsewhere)));
}

/// Two types of one name, one inside of the other, as two versions of a crate have them, or two blocks
/// of a function.
#[test]
fn a_resource_around_one_of_its_name_is_another() {
    #[derive(Debug)]
    struct Named(CudaResource);
    // SAFETY: all is handed on.
    unsafe impl DeviceResource for Named {
        fn device(&self) -> &Device {
            self.0.device()
        }

        fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
            self.0.allocate(stream, layout)
        }

        unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
            // SAFETY: the caller's promise.
            unsafe { self.0.deallocate(stream, block) }
        }
    }
    type Inner = Named;
    let device = support::device();
    let inner = Named(CudaResource::new(&device));
    {
        #[derive(Debug)]
        struct Named(Inner);
        // SAFETY: all is handed on, one byte higher: only this takes it back.
        unsafe impl DeviceResource for Named {
            fn device(&self) -> &Device {
                self.0.device()
            }

            fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
                let block = self.0.allocate(stream, layout)?;
                Ok(DeviceBlock::new(block.address(), block.bytes(), block.token() + 1))
            }

            unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
                let block = DeviceBlock::new(block.address(), block.bytes(), block.token() - 1);
                // SAFETY: the caller's promise.
                unsafe { self.0.deallocate(stream, block) }
            }
        }
        let outer = Named(inner);
        assert_eq!(type_name_of_val(&outer), type_name_of_val(&outer.0));
        assert_ne!(outer.identity(), outer.0.identity());
        assert!(*(&outer as &dyn DeviceResource) != *(&outer.0 as &dyn DeviceResource));
        assert_eq!(outer.identity(), outer.identity());
    }
}

#[test]
fn another_element_keeps_the_resource() {
    let device = support::device();
    let resource = plain(&device);
    let words = PolymorphicAllocator::<u64>::from(resource.clone());
    let bytes = words.of_type::<u8>();
    assert!(Arc::ptr_eq(bytes.resource(), &resource));
    assert!(format!("{bytes:?}").contains("u8") && format!("{bytes:?}").contains("CudaResource"));
    let stream = device.new_stream().unwrap();
    let block = words.allocate(10, &stream).unwrap();
    assert!(block.bytes() >= 80);
    // SAFETY: allocated above from the same resource, used by nobody.
    unsafe { bytes.deallocate(block, &stream) };
}

#[test]
fn a_block_holds_its_elements_and_goes_back_on_any_stream() {
    let device = support::device();
    let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = pool(&device);
    let before = pool.statistics().live;
    let allocator = PolymorphicAllocator::<u64>::new_in(Arc::new(pool.clone()));
    let blocks: Vec<_> = (1..50)
        .map(|count| {
            let block = allocator.allocate(count, &a).unwrap();
            assert!(block.bytes() >= count * 8 && block.address().is_multiple_of(256));
            block
        })
        .collect();
    let thousand = allocator.allocate(1000, &b).unwrap();
    assert!(pool.statistics().live >= before + 8000);
    b.wait_for(&a).unwrap();
    for block in blocks.into_iter().chain([thousand]) {
        // SAFETY: allocated above; b is ordered after a, and nobody uses it.
        unsafe { allocator.deallocate(block, &b) };
    }
    assert_eq!(pool.statistics().live, before);
}

#[test]
fn elements_of_a_large_alignment_get_it_and_none_take_no_memory() {
    #[repr(align(4096))]
    struct Page {
        _bytes: [u8; 4096],
    }
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pages = PolymorphicAllocator::<[u8; 4096]>::from(plain(&device));
    let empty = pages.allocate(0, &stream).unwrap();
    let sizeless = pages.of_type::<()>().allocate(1 << 40, &stream).unwrap();
    let aligned = pages.of_type::<Page>().allocate(3, &stream).unwrap();
    assert!(empty.is_empty() && sizeless.is_empty());
    assert!(aligned.address().is_multiple_of(4096));
    let full = pages.allocate(3, &stream).unwrap();
    assert_eq!((full.bytes(), simulator.live_blocks()), (3 * 4096, 2));
    for block in [empty, sizeless, aligned, full] {
        // SAFETY: allocated above from the same resource, used by nobody.
        unsafe { pages.deallocate(block, &stream) };
    }
    assert_eq!(simulator.live_blocks(), 0);
}

#[test]
fn impossible_requests_are_typed_errors() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let allocator = PolymorphicAllocator::<u64>::new(&device).unwrap();
    assert_eq!(kind(allocator.allocate(usize::MAX / 4, &stream)), ErrorKind::InvalidArgument);
    assert_eq!(kind(allocator.allocate(1 << 50, &stream)), ErrorKind::OutOfMemory);
    let (elsewhere, _) = support::simulated(SimConfig::default());
    let foreign = elsewhere.new_stream().unwrap();
    assert_eq!(kind(allocator.allocate(1, &foreign)), ErrorKind::WrongDevice);
}

#[test]
fn an_erased_resource_bound_to_a_stream_is_equal_by_identity_and_stream() {
    let device = support::device();
    let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = pool(&device);
    let erased = || Arc::new(pool.clone()) as Arc<dyn DeviceResource>;
    let bound = OnStream::new(erased(), &a).unwrap();
    assert_eq!(bound, OnStream::new(erased(), &a).unwrap(), "another handle on the same pool");
    assert_eq!(bound, bound.clone());
    assert_ne!(bound, OnStream::new(erased(), &b).unwrap(), "another stream");
    let other: Arc<dyn DeviceResource> = Arc::new(AsyncResource::new(&device).unwrap());
    assert_ne!(bound, OnStream::new(other, &a).unwrap(), "another resource");
    assert_eq!(
        OnStream::new(plain(&device), &a).unwrap(),
        OnStream::new(plain(&device), &a).unwrap()
    );
    let block = bound.allocate(DeviceLayout::new(1000).unwrap()).unwrap();
    assert!(block.bytes() >= 1000);
    let same = OnStream::new(erased(), &a).unwrap();
    // SAFETY: allocated above by an equal one, used by nobody.
    unsafe { same.deallocate(block) };
    let (elsewhere, _) = support::simulated(SimConfig::default());
    let foreign = elsewhere.new_stream().unwrap();
    assert_eq!(kind(OnStream::new(erased(), &foreign)), ErrorKind::WrongDevice);
}

#[test]
fn a_block_of_no_bytes_is_freed_without_a_word() {
    let device = support::device();
    let pinned = aquifer::pinned::PinnedResource::new(&device).unwrap();
    let layout = std::alloc::Layout::from_size_align(0, 8).unwrap();
    let ((), log) = crate::log::Log::of(|| {
        let block = Allocator::allocate(&pinned, layout).unwrap();
        // SAFETY: a live block of the allocator.
        unsafe { Allocator::deallocate(&pinned, block.cast(), layout) };
    });
    assert!(log.lines().is_empty(), "{:?}", log.lines());
}
