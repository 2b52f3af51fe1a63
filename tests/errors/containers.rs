//! Layouts, vectors, views, kernels.

use crate::support::simulated;
use crate::table::Table;
use aquifer::bytemuck::CheckedBitPattern;
use aquifer::container::BorrowedVec;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceBuffer, DeviceCopy, DeviceLayout, DeviceScalar,
    DeviceVec, HostArgs, Kernel, LaunchConfig, Result,
    pinned::{HostChunk, PinnedPool, PinnedResource},
};
use std::ops::Bound;

pub(crate) fn rows(table: &mut Table) {
    layouts(table);
    vectors(table);
    chunks(table);
    parts(table);
    launches(table);
    driver_calls(table);
    cudarc(table);
}

fn layouts(table: &mut Table) {
    table.failed("an alignment of 3", DeviceLayout::with_alignment(64, 3));
    table.failed("an alignment of 0", DeviceLayout::with_alignment(1, 0));
    table.failed("a layout that is too large", DeviceLayout::with_alignment(usize::MAX, 256));
    table.failed("elements that are too many", DeviceLayout::array::<u64>(usize::MAX));
}

fn vectors(table: &mut Table) {
    let (device, simulator) = simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::from_slice(&stream, &[1_u32, 2, 3]).unwrap();
    table.failed("index 3 of 3", vec.get(3));
    table.failed("range 2..5 of 3", vec.slice(2..5));
    table.failed("range 0..2 of 1", DeviceVec::from_slice(&stream, &[1_u8]).unwrap().slice(0..2));
    #[allow(clippy::reversed_empty_ranges, reason = "that is the error")]
    let reversed = 5..2;
    table.failed("range 5..2", vec.slice(reversed));
    table.failed("range 5.. of 3", vec.slice(5..));
    let after = (Bound::Excluded(7), Bound::Unbounded);
    table.failed("a range from behind 7, of 3", vec.slice(after));
    table.failed("range ..=MAX of 3", vec.slice(..=usize::MAX));
    table.failed("a split at 4 of 3", vec.split_at_mut(4));
    let mut bytes = DeviceBuffer::zeroed(&stream, 10).unwrap();
    table.failed("a copy of two numbers to 10 bytes", bytes.copy_from(&vec.slice(1..).unwrap()));
    table.failed("a copy of 4 to 3", vec.copy_from_slice(&[1, 2, 3, 4]));
    table.failed("a copy of 1 to 3", vec.copy_from_slice(&[1]));
    table.failed("more elements than a number counts", vec.reserve(usize::MAX));
    table.failed("a scalar of 3", DeviceScalar::try_from(vec.try_clone().unwrap()));
    table.failed("a cast with a remainder", vec.try_clone().unwrap().cast::<u64>());
    table.failed("a cast to nothing", vec.try_clone().unwrap().cast::<[u8; 0]>());
    table.failed("elements of no size", DeviceVec::<[u8; 0]>::new(&stream));
    let pool = PinnedPool::builder(PinnedResource::new(&device).unwrap())
        .maximum_size(4096)
        .build()
        .unwrap();
    let many = DeviceVec::<u8>::zeroed(&stream, 8192).unwrap();
    table.failed("a copy into a full page-locked pool", many.to_vec_in(pool));
    let vec = DeviceVec::from_slice(&stream, &[0_u8; 9]).unwrap();
    let (home, block, _, resource) = vec.into_raw_parts().unwrap();
    let odd = DeviceBlock::new(block.address() + 1, 8, block.token());
    // SAFETY: the block is this vector's, and is leaked.
    let vec = unsafe { DeviceVec::<u8>::from_raw_parts(home, odd, 8, resource) };
    let refused = vec.unwrap().cast::<u64>().unwrap_err();
    table.row("a cast of what is not aligned", refused.error);
    std::mem::forget(refused.value);
    let six = DeviceBuffer::zeroed(&stream, 6).unwrap();
    table.failed("a buffer of 6 bytes as u32", six.view::<u32>());
    let _ = simulator.take_reports();
}

fn chunks(table: &mut Table) {
    let (device, _) = simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let vec = |length| DeviceVec::<u32>::zeroed(&stream, length).unwrap();
    table.failed("a vector in chunks of 0", vec(4).into_chunks(0));
    table.failed("a vector of 4 split at 5", vec(4).split_off(5));
    let mut pieces = vec(6).into_chunks(2).unwrap();
    table.failed("a chunk joined to one of another vector", pieces[0].unsplit(vec(2)));
    let last = pieces.pop().unwrap();
    table.failed("a chunk joined to one that does not follow", pieces[0].unsplit(last));
    pieces[0].truncate(1);
    let next = pieces.pop().unwrap();
    table.failed("a chunk joined to one that was cut short", pieces[0].unsplit(next));
    table.failed("no chunk of a vector", DeviceVec::<u32>::from_chunks([]));
    table.failed("a buffer in chunks of 0", HostChunk::new(vec![1_u8]).into_chunks(0));
    let nothing: Box<[()]> = Box::new([(); usize::MAX]);
    table.failed("more chunks than a list has", HostChunk::new(nothing).into_chunks(1));
    let mut head = HostChunk::new(vec![1_u8; 10]);
    table.failed("a buffer of 10 split at 11", head.split_off(11));
    let mut tail = head.split_off(3).unwrap();
    let end = tail.split_off(5).unwrap();
    table.failed("a host chunk joined to one that does not follow", head.unsplit(end));
    let other = HostChunk::new(vec![2_u8]);
    table.failed("a host chunk joined to one of another buffer", head.unsplit(other));
    table.failed("a buffer asked of one chunk of two", head.into_inner());
    table.failed("no chunk of a buffer", HostChunk::<Vec<u8>>::from_chunks([]));
    table.failed("an upload out of range", stream.upload_range(vec![1; 3], 1..4, vec(3), ..));
    table.failed("a download out of range", stream.download_range(vec(3), 2..5, vec![1; 3], ..));
}

fn parts(table: &mut Table) {
    let (device, _) = simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let made = |bytes, length: usize| {
        let (home, resource) = (stream.clone(), CudaResource::new(&device));
        let block = DeviceBlock::new(0x700, bytes, 0x700);
        // SAFETY: refused before the block is used.
        unsafe { DeviceVec::<u64>::from_raw_parts(home, block, length, resource) }
    };
    table.failed("parts with too few bytes", made(8, 2));
    let odd = DeviceBlock::new(0x701, 64, 0x701);
    let (home, resource) = (stream.clone(), CudaResource::new(&device));
    // SAFETY: refused before the block is used.
    let made = unsafe { DeviceVec::<u64>::from_raw_parts(home, odd, 1, resource) };
    table.failed("parts that are not aligned", made);
    let other = simulated(SimConfig::default().ordinal(1)).0;
    let resource = CudaResource::new(&other);
    let block = DeviceBlock::new(0x700, 64, 0x700);
    // SAFETY: refused before the block is used.
    let made = unsafe { DeviceVec::<u64>::from_raw_parts(stream, block, 1, resource) };
    table.failed("parts of two devices", made);
}

const SCALE: &str = ".version 6.4\n.target sm_50\n.address_size 64\n\
                     .visible .entry scale(.param .u64 data) { ret; }";
const TEXT: &str =
    ".version 6.4\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }";

/// A byte that is 0 or 1.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Flag(#[allow(dead_code, reason = "an element is enough")] bool);

// SAFETY: a byte.
unsafe impl DeviceCopy for Flag {}

// SAFETY: 0 and 1 are `bool`s.
unsafe impl CheckedBitPattern for Flag {
    type Bits = u8;

    fn is_valid_bit_pattern(bits: &u8) -> bool {
        *bits < 2
    }
}

fn launches(table: &mut Table) {
    fn run(
        table: &mut Table,
        title: &str,
        host: fn(&LaunchConfig, HostArgs<'_>) -> Result<()>,
        buffer: bool,
    ) {
        let (device, simulator) = simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let kernel = Kernel::new("scale", SCALE, host);
        let data = DeviceVec::from_slice(&stream, &[1_u8, 1, 1, 1, 1, 1, 1, 1, 1, 2]).unwrap();
        let launch = stream.launch(&kernel);
        let launch = match buffer {
            true => launch.input(&data).unwrap(),
            false => launch.scalar(7_u64).unwrap(),
        };
        // SAFETY: the host form reads its argument alone.
        unsafe { launch.launch(LaunchConfig::for_elements(1)) }.unwrap();
        let error = stream.synchronize().unwrap_err();
        table.row(title, error);
        simulator.take_reports();
    }
    run(
        table,
        "a form that takes two of one argument",
        |_, mut args| {
            args.input::<u8>()?;
            args.scalar::<u32>().map(drop)
        },
        true,
    );
    run(
        table,
        "a form that takes an input as in_out",
        |_, mut args| args.in_out::<u8>().map(drop),
        true,
    );
    run(
        table,
        "a form that takes a buffer as a scalar",
        |_, mut args| args.scalar::<u8>().map(drop),
        true,
    );
    run(
        table,
        "a form that takes a scalar as a buffer",
        |_, mut args| args.input::<u8>().map(drop),
        false,
    );
    run(
        table,
        "a form that takes a scalar of another size",
        |_, mut args| args.scalar::<u32>().map(drop),
        false,
    );
    run(
        table,
        "a form that takes bytes as words",
        |_, mut args| args.input::<u32>().map(drop),
        true,
    );
    run(
        table,
        "a form that takes bytes as flags",
        |_, mut args| args.input_checked::<bool>().map(drop),
        true,
    );
    run(
        table,
        "a form that takes a buffer as a structure",
        |_, mut args| args.param::<u64>().map(drop),
        true,
    );
    run(
        table,
        "a form that takes a scalar as a structure",
        |_, mut args| args.param::<u64>().map(drop),
        false,
    );
    run(table, "a form that panics", |_, _| panic!("out of ideas"), true);

    let (device, _) = simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    static NOTHING: Kernel = Kernel::new("nothing", TEXT, |_, _| Ok(()));
    table.failed("a structure that is too large", stream.launch(&NOTHING).param([0_u64; 4096]));
    static BEHIND: Kernel = Kernel::from_function("msm", |_, _| Ok(()));
    // SAFETY: it is refused.
    let launched = unsafe { stream.launch(&BEHIND).launch(LaunchConfig::for_elements(1)) };
    table.failed("a kernel behind a function, launched as another", launched);
    // SAFETY: it is refused.
    let lent = unsafe { BorrowedVec::<u32>::new(&stream, 0x1002, 4) };
    table.failed("memory lent at a wrong address", lent);
    let (home, block, length, resource) =
        DeviceVec::from_slice(&stream, &[1_u8, 2]).unwrap().into_raw_parts().unwrap();
    // SAFETY: the parts of a vector, of a type that is checked when it is read.
    let flags = unsafe { DeviceVec::<Flag>::from_raw_parts(home, block, length, resource) };
    table.failed("a flag of the value 2", flags.unwrap().to_vec_checked());
    table.failed("a scalar that is too large", stream.launch(&NOTHING).scalar([0_u64; 4096]));
    // SAFETY: the kernel touches nothing.
    let launched = unsafe {
        stream
            .launch(&NOTHING)
            .launch(LaunchConfig { block: (2048, 1, 1), ..LaunchConfig::for_elements(1) })
    };
    table.failed("a block of 2048 threads", launched);
    wrong_texts(table);
}

fn driver_calls(table: &mut Table) {
    type Call = fn(&Device) -> Result<()>;
    let calls: [(&str, &str, Call); 7] = [
        ("no room to fill", "cuMemsetAsync", |device| {
            DeviceVec::<u8>::zeroed(&device.new_stream()?, 4).map(drop)
        }),
        ("no copy to the device", "cuMemcpyHtoDAsync", |device| {
            DeviceVec::from_slice(&device.new_stream()?, &[1_u8]).map(drop)
        }),
        ("no copy to the host", "cuMemcpyDtoHAsync", |device| {
            DeviceVec::<u32>::zeroed(&device.new_stream()?, 4)?.to_vec().map(drop)
        }),
        ("no copy on the device", "cuMemcpyDtoDAsync", |device| {
            let stream = device.new_stream()?;
            let source = DeviceVec::<u32>::zeroed(&stream, 4)?;
            DeviceVec::<u32>::zeroed(&stream, 4)?.copy_from(&source)
        }),
        ("no move into another block", "cuMemcpyDtoDAsync", |device| {
            DeviceVec::<u32>::zeroed(&device.new_stream()?, 4)?.reserve(1000)
        }),
        ("no launch", "cuLaunchKernel", |device| {
            let stream = device.new_stream()?;
            static NOTHING: Kernel = Kernel::new("nothing", TEXT, |_, _| Ok(()));
            // SAFETY: the kernel touches nothing.
            unsafe { stream.launch(&NOTHING).launch(LaunchConfig::for_elements(1)) }
        }),
        ("no copy between devices", "cuMemcpyPeerAsync", |device| {
            let other = simulated(SimConfig::default().ordinal(1)).0;
            let source = DeviceVec::<u32>::zeroed(&other.new_stream()?, 4)?;
            DeviceVec::<u32>::zeroed(&device.new_stream()?, 4)?.copy_from(&source)
        }),
    ];
    for (title, call, run) in calls {
        let (device, simulator) = simulated(SimConfig::default());
        simulator.fail_call(call, 1, 999).unwrap();
        table.failed(title, run(&device));
    }
}

fn cudarc(table: &mut Table) {
    let (device, _) = simulated(SimConfig::default());
    let vec = DeviceVec::<u32>::zeroed(&device.new_stream().unwrap(), 4).unwrap();
    table.failed("a simulated vector for cudarc", vec.cuda());
    table.failed("a simulated vector as a CudaSlice", vec.into_cuda_slice());
}

fn wrong_texts(table: &mut Table) {
    fn run(table: &mut Table, title: &str, entry: &'static str, text: &'static str) {
        let (device, _) = simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let kernel = Kernel::new(entry, text, |_, _| Ok(()));
        let launch = stream.launch(&kernel).scalar(7_u32).unwrap().scalar(7_u8).unwrap();
        // SAFETY: refused before it runs.
        let launched = unsafe { launch.launch(LaunchConfig::for_elements(1)) };
        table.failed(title, launched);
    }
    run(table, "a text that is no PTX", "scale", "extern \"C\" __global__ void scale() {}");
    run(
        table,
        "a text that ends too early",
        "scale",
        ".version 6.4\n.target sm_50\n.visible .entry scale(",
    );
    let commented: &'static str = concat!("/* ", ".version 6.4\n.target sm_50\n");
    run(table, "a text that ends in a comment", "scale", commented);
    run(table, "an entry that the text lacks", "skale", SCALE);
    run(table, "an entry without a name", "", SCALE);
    run(table, "a text with a zero byte", "scale", ".version 6.4\0.target sm_50");
    run(table, "two arguments for one parameter", "scale", SCALE);
    const TWO: &str = ".version 6.4\n.target sm_50\n.address_size 64\n\
                       .visible .entry scale(.param .u64 data, .param .u8 n) { ret; }";
    run(table, "an argument of another size", "scale", TWO);
    fn cubin(table: &mut Table, title: &str, entry: &'static str, image: &[u8]) {
        let (device, _) = simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let kernel = Kernel::from_cubin(entry, image.to_vec().into(), |_, _| Ok(()));
        // SAFETY: refused before it runs.
        let launched = unsafe { stream.launch(&kernel).launch(LaunchConfig::for_elements(1)) };
        table.failed(title, launched);
    }
    let image = include_bytes!("../../docs/kernels/add_one.sm_90.cubin");
    cubin(table, "a cubin that is none", "add_one", SCALE.as_bytes());
    cubin(table, "a cubin that is cut", "add_one", &image[..5000]);
    cubin(table, "an entry that the cubin lacks", "add_two", image);
    cubin(table, "no arguments for the entry of a cubin", "add_one", image);
}
