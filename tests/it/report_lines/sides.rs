//! Each class of report: both sides, the vector, the seed.

use super::alias;
use super::fixture::{Fixture, LENGTH, VECTOR, Wanted, here};
use super::kernels::{ADD_ONE, idle_entry};
use super::support::layout;
use aquifer::sim::Report;
use aquifer::sim::{SimConfig, Violation};
use aquifer::{
    CudaResource, DeviceBlock, DeviceResource, DeviceVec, Error, ErrorKind, Kernel, LaunchConfig,
    PoolResource, Stream,
    mr::{AsyncResource, Handles, PolymorphicAllocator},
    pinned::PinnedResource,
};
use std::mem::ManuallyDrop;

const FILE: &str = file!();

fn wanted<'a>() -> Wanted<'a> {
    Wanted { file: FILE, ..Wanted::default() }
}

/// A vector, and the line that made it.
fn made(fixture: &Fixture) -> (u32, DeviceVec<u32>) {
    let (stream, pool) = (&fixture.stream, fixture.pool.clone());
    let (line, vec) = here!(DeviceVec::zeroed_in(stream, LENGTH, pool));
    (line, vec.unwrap())
}

#[test]
fn two_accesses_in_no_order() {
    let fixture = Fixture::new();
    let (line, mut vec) = made(&fixture);
    let raw = alias(&vec, &fixture.other, LENGTH);
    fixture.other.wait_for(&fixture.stream).unwrap();
    let (first, filled) = here!(vec.fill(1));
    filled.unwrap();
    let (second, copied) = here!(raw.to_vec());
    let error = copied.unwrap_err();
    let report = Report::of(&error).unwrap().clone();
    fixture.saw(Violation::UnorderedAccess);
    let [home, other] = [&fixture.stream, &fixture.other].map(Stream::id);
    let filled = format!("cuMemsetAsync on stream {home} at {FILE}:{first}:");
    let copied = format!("cuMemcpyDtoHAsync on stream {other} at {FILE}:{second}:");
    let words = [&*filled, &copied, "(writes)", "(reads)"];
    let (operation, other) = (Some(second), Some(first));
    Wanted { operation, other, vector: Some((VECTOR, line)), words: &words, ..wanted() }
        .check(&report);
    drop((raw, vec));

    // Two writes, of which one is a kernel's.
    let (line, vec) = made(&fixture);
    let mut raw = alias(&vec, &fixture.other, LENGTH);
    fixture.other.wait_for(&fixture.stream).unwrap();
    raw.fill(1).unwrap();
    let mut own = alias(&vec, &fixture.stream, LENGTH);
    let launch = fixture.stream.launch(&ADD_ONE).in_out(&mut *own).unwrap();
    let launch = launch.scalar(LENGTH as u32).unwrap();
    let config = LaunchConfig::for_elements(LENGTH);
    // SAFETY: the kernel touches the elements of `own` alone.
    let (first, launched) = unsafe { here!(launch.launch(config)) };
    launched.unwrap();
    let report = fixture.saw(Violation::UnorderedAccess);
    let launched = format!("cuLaunchKernel of add_one on stream {home} at {FILE}:{first}:");
    let words = [&*launched, "(reads and writes)", "(writes)"];
    let other = report.conflict_location().map(|at| at.line());
    Wanted {
        operation: Some(first),
        other,
        vector: Some((VECTOR, line)),
        words: &words,
        ..wanted()
    }
    .check(&report);
}

#[test]
fn a_use_after_the_drop() {
    for elsewhere in [false, true] {
        let fixture = Fixture::new();
        let (line, vec) = made(&fixture);
        let stream = if elsewhere { &fixture.other } else { &fixture.stream };
        let mut raw = alias(&vec, stream, LENGTH);
        drop(vec);
        let (used, filled) = here!(raw.fill(1));
        filled.unwrap();
        let report = fixture.saw(Violation::UseAfterFree);
        let freed =
            format!("freed by a free to a pool on stream {} by a drop", fixture.stream.id());
        let vector = Some((VECTOR, line));
        Wanted { operation: Some(used), vector, words: &[&freed], ..wanted() }.check(&report);
    }
}

#[test]
fn a_use_after_a_call_that_freed() {
    let fixture = Fixture::new();
    let (line, mut vec) = made(&fixture);
    let mut raw = alias(&vec, &fixture.stream, LENGTH);
    let (moved, reserved) = here!(vec.reserve(LENGTH));
    reserved.unwrap();
    let (used, filled) = here!(raw.fill(1));
    filled.unwrap();
    let report = fixture.saw(Violation::UseAfterFree);
    let (operation, other) = (Some(used), Some(moved));
    Wanted { operation, other, vector: Some((VECTOR, line)), ..wanted() }.check(&report);

    // The new block is the vector's from that line on.
    let mut raw = alias(&vec, &fixture.other, LENGTH);
    vec.fill(1).unwrap();
    let (used, filled) = here!(raw.fill(1));
    filled.unwrap();
    let report = fixture.saw(Violation::UnorderedAccess);
    let vector = Some(("DeviceVec<u32> of 2000 elements (8000 bytes)", moved));
    let other = report.conflict_location().map(|at| at.line());
    Wanted { operation: Some(used), other, vector, ..wanted() }.check(&report);
}

#[test]
fn a_drop_while_another_stream_uses_it() {
    let fixture = Fixture::new();
    let (line, vec) = made(&fixture);
    let mut raw = alias(&vec, &fixture.other, LENGTH);
    fixture.other.wait_for(&fixture.stream).unwrap();
    let (used, filled) = here!(raw.fill(1));
    filled.unwrap();
    drop(vec);
    let report = fixture.saw(Violation::FreeWhileInUse);
    let freed = format!("a free to a pool on stream {} by a drop frees", fixture.stream.id());
    let vector = Some((VECTOR, line));
    let words = [&*freed, "(writes)"];
    Wanted { other: Some(used), vector, words: &words, ..wanted() }.check(&report);
}

#[test]
fn an_access_past_the_end() {
    let fixture = Fixture::new();
    let (line, vec) = made(&fixture);
    let mut over = alias(&vec, &fixture.stream, LENGTH + 1);
    let (used, filled) = here!(over.fill(1));
    assert_eq!(filled.unwrap_err().kind(), ErrorKind::Simulation);
    let report = fixture.saw(Violation::UnmappedAddress);
    let words = ["4 bytes past the end of a block of 4000 bytes", "(writes)"];
    let (operation, other) = (Some(used), Some(line));
    Wanted { operation, other, vector: Some((VECTOR, line)), words: &words, ..wanted() }
        .check(&report);
}

#[test]
fn a_read_of_bytes_that_were_never_written() {
    let fixture = Fixture::new();
    drop(fixture.zeroed());
    let (stream, pool) = (&fixture.stream, fixture.pool.clone());
    // SAFETY: broken on purpose: it is read before it is written.
    let (line, vec) = unsafe { here!(DeviceVec::<u32>::uninit_in(stream, LENGTH, pool)) };
    let vec = vec.unwrap();
    let (used, read) = here!(vec.get(10));
    let error = read.unwrap_err();
    let report = Report::of(&error).unwrap().clone();
    fixture.saw(Violation::UninitializedRead);
    let (operation, other) = (Some(used), Some(line));
    Wanted { operation, other, vector: Some((VECTOR, line)), ..wanted() }.check(&report);
}

#[test]
fn a_use_before_the_allocation() {
    let fixture = Fixture::new();
    let memory = AsyncResource::new(&fixture.device).unwrap();
    let stream = &fixture.stream;
    // SAFETY: written before it is read.
    let (line, vec) = unsafe { here!(DeviceVec::<u32>::uninit_in(stream, LENGTH, memory)) };
    let vec = vec.unwrap();
    let mut raw = alias(&vec, &fixture.other, LENGTH);
    let (used, filled) = here!(raw.fill(1));
    filled.unwrap();
    let report = fixture.saw(Violation::UseBeforeAllocation);
    let (operation, other) = (Some(used), Some(line));
    Wanted { operation, other, vector: Some((VECTOR, line)), ..wanted() }.check(&report);
}

/// The same block once more, as a program that has two owners of it.
fn copy(block: &DeviceBlock) -> DeviceBlock {
    DeviceBlock::new(block.address(), block.bytes(), block.token())
}

#[test]
fn blocks_that_are_freed_twice_or_were_never_allocated() {
    let fixture = Fixture::new();
    let memory = CudaResource::new(&fixture.device);
    let stream = &fixture.stream;
    let block = memory.allocate(stream, layout(4000)).unwrap();
    let again = copy(&block);
    // SAFETY: no work uses it.
    let (first, ()) = unsafe { here!(memory.deallocate(stream, block)) };
    // SAFETY: broken on purpose: it was freed before.
    let (second, ()) = unsafe { here!(memory.deallocate(stream, again)) };
    let report = fixture.saw(Violation::DoubleFree);
    let (operation, other) = (Some(second), Some(first));
    Wanted { operation, other, words: &["cuMemFree at"], ..wanted() }.check(&report);

    let foreign = DeviceBlock::new(1 << 20, 4000, 1 << 20);
    // SAFETY: broken on purpose: it is no block at all.
    let (line, ()) = unsafe { here!(memory.deallocate(stream, foreign)) };
    let report = fixture.saw(Violation::UnmappedAddress);
    Wanted { operation: Some(line), ..wanted() }.check(&report);

    // Through a pool, by an allocator that is bound to it.
    let memory = PolymorphicAllocator::<u32>::new_in(fixture.pool.clone());
    let block = memory.allocate(LENGTH, stream).unwrap();
    let again = copy(&block);
    // SAFETY: no work uses it.
    let (first, ()) = unsafe { here!(memory.deallocate(block, stream)) };
    // SAFETY: broken on purpose: it was freed before.
    let (second, ()) = unsafe { here!(memory.deallocate(again, stream)) };
    let report = fixture.saw(Violation::DoubleFree);
    let (operation, other) = (Some(second), Some(first));
    Wanted { operation, other, words: &["a free to a pool"], ..wanted() }.check(&report);
}

#[test]
fn a_host_that_writes_while_a_copy_is_on_its_way() {
    let fixture = Fixture::new();
    let (line, mut vec) = made(&fixture);
    let memory =
        aquifer::mr::OnStream::new(PinnedResource::new(&fixture.device).unwrap(), &fixture.stream);
    let mut host = aquifer::allocator_api2::vec::Vec::new_in(memory.unwrap());
    host.resize(LENGTH, 1_u32);
    // SAFETY: broken on purpose: the host writes below.
    let (copied, given) = unsafe { here!(vec.copy_from_slice_async(&host)) };
    given.unwrap();
    host[5] = 2;
    let report = fixture.saw(Violation::HostWroteDuringCopy);
    assert_eq!(report.range().0, host.as_ptr() as u64);
    let words = ["the other side is a DeviceVec<u32>"];
    Wanted { operation: Some(copied), vector: Some((VECTOR, line)), words: &words, ..wanted() }
        .check(&report);
}

#[test]
fn two_ranges_of_one_copy() {
    let fixture = Fixture::new();
    let (line, vec) = made(&fixture);
    let mut raw = alias(&vec, &fixture.stream, LENGTH);
    let (copied, given) = here!(raw.copy_from(&vec));
    given.unwrap();
    let report = fixture.saw(Violation::OverlappingCopy);
    Wanted { operation: Some(copied), vector: Some((VECTOR, line)), ..wanted() }.check(&report);
}

#[test]
fn a_kernel_that_fails() {
    static FAIL: Kernel = Kernel::new("fail", idle_entry!("fail"), |_, _| {
        Err(Error::new(ErrorKind::InvalidArgument, "on purpose"))
    });
    let fixture = Fixture::new();
    let launch = fixture.stream.launch(&FAIL);
    let config = LaunchConfig::for_elements(1);
    // SAFETY: the kernel touches no memory.
    let (line, launched) = unsafe { here!(launch.launch(config)) };
    launched.unwrap();
    let report = fixture.saw(Violation::KernelFault);
    Wanted { operation: Some(line), words: &["cuLaunchKernel of fail"], ..wanted() }.check(&report);
}

#[test]
fn a_replay_names_the_captured_call_and_the_launch() {
    let fixture = Fixture::new();
    let (line, vec) = made(&fixture);
    let mut raw = alias(&vec, &fixture.stream, LENGTH);
    let mut captured = 0;
    let (graph, ()) = fixture
        .stream
        .capture(&fixture.pool, |_| {
            let (line, filled) = here!(raw.fill(1));
            captured = line;
            filled
        })
        .unwrap();
    // SAFETY: `vec` is alive.
    unsafe { graph.launch(&fixture.stream) }.unwrap();
    fixture.device.synchronize().unwrap();

    // Both sides are replays: of one graph, and a call beside it.
    // SAFETY: broken on purpose: the other stream uses it meanwhile.
    let (first, launched) = unsafe { here!(graph.launch(&fixture.stream)) };
    launched.unwrap();
    let mut beside = alias(&vec, &fixture.other, LENGTH);
    let (second, filled) = here!(beside.fill(2));
    filled.unwrap();
    let report = fixture.saw(Violation::UnorderedAccess);
    let launched = format!(", launched at {FILE}:{first}:");
    let (operation, other) = (Some(second), Some(captured));
    let vector = Some((VECTOR, line));
    let words = [&*launched, "cuMemsetAsync in graph"];
    Wanted { operation, other, vector, words: &words, ..wanted() }.check(&report);

    drop(vec);
    // SAFETY: broken on purpose: the memory is gone.
    let (again, launched) = unsafe { here!(graph.launch(&fixture.stream)) };
    launched.unwrap();
    let report = fixture.saw(Violation::UseAfterFree);
    let launched = format!(", launched at {FILE}:{again}:");
    let words = [&*launched, "by a drop"];
    Wanted { operation: Some(captured), vector, words: &words, ..wanted() }.check(&report);
}

#[test]
fn memory_of_no_vector_has_no_name() {
    let fixture = Fixture::new();
    let (_, vec) = made(&fixture);
    let (_, block, ..) = vec.into_raw_parts().unwrap();
    let stream = &fixture.stream;
    // SAFETY: no work uses it.
    unsafe { fixture.pool.deallocate(stream, copy(&block)) };
    // SAFETY: broken on purpose: it was freed before.
    unsafe { fixture.pool.deallocate(stream, block) };
    let report = fixture.saw(Violation::DoubleFree);
    // A call of a pool itself has no line, and it is no drop.
    assert_eq!((report.operation_location(), report.conflict_location()), (None, None), "{report}");
    assert!(!report.to_string().contains("by a drop"), "{report}");
    // The memory is another's now.
    let block = fixture.pool.allocate(stream, layout(4000)).unwrap();
    let address = block.address();
    // SAFETY: no work uses it.
    unsafe { fixture.pool.deallocate(stream, copy(&block)) };
    // SAFETY: broken on purpose.
    unsafe { fixture.pool.deallocate(stream, block) };
    let report = fixture.saw(Violation::DoubleFree);
    assert_eq!((report.range().0, report.vector()), (address, None), "{report}");
}

#[test]
fn without_checks_of_pools_there_are_lines_and_no_vectors() {
    let fixture = Fixture::with(SimConfig::default().without_pool_checks());
    let (_, mut vec) = made(&fixture);
    let mut raw = alias(&vec, &fixture.other, LENGTH);
    fixture.other.wait_for(&fixture.stream).unwrap();
    let (first, filled) = here!(vec.fill(1));
    filled.unwrap();
    let (second, filled) = here!(raw.fill(1));
    filled.unwrap();
    let report = fixture.saw(Violation::UnorderedAccess);
    Wanted { operation: Some(second), other: Some(first), ..wanted() }.check(&report);
}

/// A drop that waited for the device runs inside of some later call, which has not freed it.
#[test]
fn a_deferred_drop_is_no_work_of_the_call_that_runs_it() {
    let fixture = Fixture::new();
    let (line, vec) = made(&fixture);
    let raw = alias(&vec, &fixture.stream, LENGTH);
    let host = vec![1_u32; LENGTH];
    drop(fixture.stream.upload(host, vec).unwrap());
    fixture.stream.synchronize().unwrap();
    let (used, copied) = here!(raw.to_vec());
    let error = copied.unwrap_err();
    let report = Report::of(&error).unwrap().clone();
    assert_eq!(fixture.saw(Violation::UseAfterFree).to_string(), report.to_string());
    let vector = Some((VECTOR, line));
    Wanted { operation: Some(used), vector, words: &["by a drop"], ..wanted() }.check(&report);
}

#[test]
fn a_vector_is_known_when_its_pool_is_gone() {
    let fixture = Fixture::new();
    let (line, mut raw) = {
        let (stream, memory) = (&fixture.stream, CudaResource::new(&fixture.device));
        let pool = PoolResource::builder(memory.clone()).handles(Handles::Off).build().unwrap();
        let (line, vec) = here!(DeviceVec::<u32>::zeroed_in(stream, LENGTH, pool));
        let vec = vec.unwrap();
        let block = DeviceBlock::new(vec.as_device_ptr(), LENGTH * 4, 0);
        // SAFETY: it is never dropped.
        let raw =
            unsafe { DeviceVec::<u32>::from_raw_parts(stream.clone(), block, LENGTH, memory) };
        (line, ManuallyDrop::new(raw.unwrap()))
    };
    let (used, filled) = here!(raw.fill(1));
    filled.unwrap();
    let report = fixture.saw(Violation::UseAfterFree);
    assert_eq!(report.conflicts_with().unwrap(), "cuMemFree");
    Wanted { operation: Some(used), vector: Some((VECTOR, line)), ..wanted() }.check(&report);
}
