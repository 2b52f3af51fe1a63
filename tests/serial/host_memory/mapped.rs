//! Memory that kernels reach where it lies.

use super::kernels::ADD_ONE;
use super::{Current, alone, pinned_vec, support};
use allocator_api2::alloc::Allocator;
use allocator_api2::boxed::Box as AllocBox;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::SimConfig;
use aquifer::{
    DeviceLayout, DeviceResource, DeviceVec, Error, ErrorKind, HostArgs, Kernel, LaunchConfig,
    MappedAlloc, PinnedAlloc, Result,
    mr::OnStream,
    pinned::{PinnedResource, Registered, last_error},
};
use std::alloc::Layout;

/// `target[i] = source[i] * 2`
static DOUBLE: Kernel = Kernel::new(
    "double_into",
    r#"
    .version 6.4
    .target sm_50
    .address_size 64
    .visible .entry double_into(.param .u64 source, .param .u64 target, .param .u32 n) {
        .reg .pred %p; .reg .u32 %r<5>; .reg .u64 %rd<5>;
        ld.param.u64 %rd1, [source];
        ld.param.u64 %rd2, [target];
        ld.param.u32 %r1, [n];
        mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
        mad.lo.u32 %r2, %r2, %r3, %r4;
        setp.ge.u32 %p, %r2, %r1;
        @%p bra done;
        cvta.to.global.u64 %rd1, %rd1;
        cvta.to.global.u64 %rd2, %rd2;
        mul.wide.u32 %rd3, %r2, 4;
        add.u64 %rd1, %rd1, %rd3;
        add.u64 %rd2, %rd2, %rd3;
        ld.global.u32 %r3, [%rd1];
        shl.b32 %r3, %r3, 1;
        st.global.u32 [%rd2], %r3;
    done:
        ret;
    }"#,
    |_config: &LaunchConfig, mut args: HostArgs<'_>| -> Result<()> {
        let source = args.input::<u32>()?;
        let target = args.output::<u32>()?;
        let n = args.scalar::<u32>()? as usize;
        target[..n].iter_mut().zip(source).for_each(|(target, source)| *target = source * 2);
        Ok(())
    },
);

const LENGTH: usize = 1000;

#[test]
fn everything_in_mapped_memory_has_a_device_address() {
    let _alone = alone();
    let device = support::device();
    let pinned = PinnedResource::new(&device).unwrap();
    let _current = Current::set(&pinned);
    let mut vec: AllocVec<u32, MappedAlloc> = AllocVec::new_in(MappedAlloc);
    vec.extend(0..LENGTH as u32);
    let base = MappedAlloc::device_address(&vec).unwrap();
    for at in [0, 1, 17, LENGTH - 1] {
        assert_eq!(MappedAlloc::device_address(&vec[at..]).unwrap(), base + 4 * at as u64);
    }
    let boxed = vec.into_boxed_slice();
    assert_eq!(MappedAlloc::device_address(&boxed).unwrap(), base);
    let one = AllocBox::new_in([7_u64; 8], MappedAlloc);
    let whole = MappedAlloc::device_address(&*one).unwrap();
    assert_eq!(MappedAlloc::device_address(std::slice::from_ref(&one[3])).unwrap(), whole + 24);
    #[repr(align(65536))]
    struct Aligned([u8; 100]);
    let aligned = AllocBox::new_in(Aligned([1; 100]), MappedAlloc);
    assert!(MappedAlloc::device_address(&aligned.0).is_ok());
    // A resource's own memory, and PinnedAlloc's, where they are mapped.
    assert!(MappedAlloc::device_address(&pinned_vec(&pinned, 10)).is_ok());
    let mut of_process: AllocVec<u8, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
    of_process.push(1);
    assert!(MappedAlloc::device_address(&of_process).is_ok());
}

#[test]
fn memory_that_is_not_mapped_has_no_device_address() {
    let _alone = alone();
    let device = support::device();
    let kind = |data: &[u32]| MappedAlloc::device_address(data).unwrap_err().kind();
    assert_eq!(kind(&[1, 2, 3]), ErrorKind::InvalidArgument, "the stack");
    assert_eq!(kind(&vec![1; 100]), ErrorKind::InvalidArgument, "the heap");
    let options = PinnedResource::builder(&device).mapped(false);
    let unmapped = options.build().unwrap();
    let vec = pinned_vec(&unmapped, 10);
    assert_eq!(kind(&vec), ErrorKind::Unsupported);
    assert_eq!(kind(&vec[..0]), ErrorKind::InvalidArgument, "no bytes");
    assert!(MappedAlloc::device_address(&[(); 5]).is_err());

    let _current = Current::set(&unmapped);
    assert!(MappedAlloc.allocate(Layout::new::<u32>()).is_err());
    let error = last_error().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("mapped(true)"), "{error}");
    assert!(PinnedAlloc.allocate(Layout::from_size_align(0, 1).unwrap()).is_ok());
    let stream = device.new_stream().unwrap();
    let layout = DeviceLayout::new(100).unwrap();
    assert_eq!(
        DeviceResource::allocate(&unmapped, &stream, layout).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}

#[test]
fn a_device_that_cannot_map_says_so() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default().without_host_mapping());
    let error = PinnedResource::builder(&device).mapped(true).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    // Page-locked memory there is, all the same.
    let pinned = PinnedResource::new(&device).unwrap();
    let vec = pinned_vec(&pinned, 10);
    assert_eq!(MappedAlloc::device_address(&vec).unwrap_err().kind(), ErrorKind::Unsupported);
    let _current = Current::set(&pinned);
    let calls = simulator.calls();
    assert!(MappedAlloc.allocate(Layout::new::<u32>()).is_err());
    let error = last_error().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("cannot map host memory"), "{error}");
    assert_eq!(simulator.calls(), calls, "the driver was asked");
    let stream = device.new_stream().unwrap();
    let on_stream = OnStream::new(pinned, &stream).unwrap();
    assert!(on_stream.allocate(DeviceLayout::new(8).unwrap()).is_err());
    let ended = stream.scope(|s| s.map(&vec).map(drop));
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_kernel_writes_a_mapped_vector_where_it_lies() {
    let _alone = alone();
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pinned = PinnedResource::new(&device).unwrap();
    let mut vec = pinned_vec(&pinned, LENGTH);
    stream
        .scope(|s| {
            let (head, tail) = vec.split_at_mut(LENGTH / 2);
            let mut tail = s.map_mut(tail)?;
            let mut head = s.map_mut(head)?;
            assert_eq!((tail.len(), tail.is_empty()), (LENGTH / 2, false));
            assert_eq!(tail.as_device_ptr(), head.as_device_ptr() + 2 * LENGTH as u64);
            let config = LaunchConfig::for_elements(LENGTH / 2);
            for _ in 0..3 {
                let launch = stream.launch(&ADD_ONE).mapped_in_out(&mut tail)?;
                let launch = launch.scalar(LENGTH as u32 / 2)?;
                // SAFETY: the kernel touches these elements of its argument alone.
                unsafe { launch.launch(config)? };
            }
            let launch = stream.launch(&ADD_ONE).mapped_in_out(&mut head)?;
            let launch = launch.scalar(LENGTH as u32 / 2)?;
            // SAFETY: as above.
            unsafe { launch.launch(config) }
        })
        .unwrap();
    let added = |n: u32| n + if n < LENGTH as u32 / 2 { 1 } else { 3 };
    assert!(vec.iter().copied().eq((0..LENGTH as u32).map(added)));
}

#[test]
fn a_kernel_writes_a_registered_buffer_where_it_lies() {
    let _alone = alone();
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let numbers: Vec<u32> = (0..LENGTH as u32).collect();
    let mut registered = Registered::new(&device, numbers).unwrap();
    let address = MappedAlloc::device_address(&registered).unwrap();
    assert_eq!(MappedAlloc::device_address(&registered[1..]).unwrap(), address + 4);
    stream
        .scope(|s| {
            let mut mapped = s.map_mut(&mut registered)?;
            let launch = stream.launch(&ADD_ONE).mapped_in_out(&mut mapped)?;
            let launch = launch.scalar(LENGTH as u32)?;
            // SAFETY: the kernel touches this many elements of its argument.
            unsafe { launch.launch(LaunchConfig::for_elements(LENGTH)) }
        })
        .unwrap();
    let numbers = registered.into_inner().unwrap();
    assert!(numbers.iter().copied().eq(1..=LENGTH as u32));
    // Ordinary memory again.
    let error = MappedAlloc::device_address(&numbers).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_kernel_reads_a_mapped_vector_that_the_host_reads_too() {
    let _alone = alone();
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pinned = PinnedResource::new(&device).unwrap();
    let vec = pinned_vec(&pinned, LENGTH);
    let mut target = DeviceVec::<u32>::zeroed(&stream, LENGTH).unwrap();
    let sum: u32 = stream
        .scope(|s| {
            let source = s.map(&vec)?;
            let launch = stream.launch(&DOUBLE).mapped_input(&source)?.output(&mut target)?;
            let launch = launch.scalar(LENGTH as u32)?;
            // SAFETY: the kernel touches this many elements of both.
            unsafe { launch.launch(LaunchConfig::for_elements(LENGTH))? };
            Ok::<_, Error>(vec.iter().sum())
        })
        .unwrap();
    assert_eq!(sum, (0..LENGTH as u32).sum());
    assert!(target.to_vec().unwrap().into_iter().eq((0..LENGTH as u32).map(|n| n * 2)));
}

#[test]
fn a_launch_on_another_stream_than_the_scope_is_refused() {
    let _alone = alone();
    let device = support::device();
    let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let pinned = PinnedResource::new(&device).unwrap();
    let mut vec = pinned_vec(&pinned, 10);
    let shared = pinned_vec(&pinned, 10);
    stream
        .scope(|s| {
            let mut written = s.map_mut(&mut vec)?;
            let read = s.map(&shared)?;
            let error = other.launch(&ADD_ONE).mapped_in_out(&mut written).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("the scope's stream"), "{error}");
            let error = other.launch(&DOUBLE).mapped_input(&read).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            Ok::<(), Error>(())
        })
        .unwrap();
}

#[test]
fn a_scope_maps_nothing_of_another_device_and_no_foreign_memory() {
    let _alone = alone();
    let (device, _) = support::simulated(SimConfig::default());
    let (other, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let mut theirs = pinned_vec(&PinnedResource::new(&other).unwrap(), 10);
    let mut heap = [1_u32; 10];
    stream
        .scope(|s| {
            let kind = s.map_mut(&mut theirs).unwrap_err().kind();
            assert_eq!(kind, ErrorKind::WrongDevice);
            let kind = s.map_mut(&mut heap).unwrap_err().kind();
            assert_eq!(kind, ErrorKind::InvalidArgument);
            let empty = s.map::<u32>(&[])?;
            assert!(empty.is_empty());
            Ok::<(), Error>(())
        })
        .unwrap();
}

#[test]
fn a_vector_on_a_stream_is_mapped_memory_too() {
    let _alone = alone();
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pinned = PinnedResource::new(&device).unwrap();
    let mut vec = AllocVec::new_in(OnStream::new(pinned.clone(), &stream).unwrap());
    vec.extend(0..LENGTH as u32);
    stream
        .scope(|s| {
            let mut mapped = s.map_mut(&mut vec)?;
            let launch = stream.launch(&ADD_ONE).mapped_in_out(&mut mapped)?;
            let launch = launch.scalar(LENGTH as u32)?;
            // SAFETY: the kernel touches this many elements of its argument.
            unsafe { launch.launch(LaunchConfig::for_elements(LENGTH)) }
        })
        .unwrap();
    assert!(vec.iter().copied().eq(1..=LENGTH as u32));
    let of = |pinned: &PinnedResource| OnStream::new(pinned.clone(), &stream).unwrap();
    assert_eq!(vec.allocator(), &of(&pinned));
    let other = OnStream::new(pinned.clone(), &device.new_stream().unwrap()).unwrap();
    assert_ne!(vec.allocator(), &other, "another stream");
    let other = of(&PinnedResource::builder(&device).portable(false).build().unwrap());
    assert_ne!(vec.allocator(), &other, "another resource");
}
