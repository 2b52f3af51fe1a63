//! Chunks of one buffer, of the host and of the device: what each owns, what joins, and when the memory
//! that they share is freed.

use crate::kernels::{DOUBLE, idle_entry};
use crate::support;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{Schedule, SimConfig, Violation};
use aquifer::{
    CudaResource, Device, DeviceVec, ErrorKind, HostArgs, Kernel, LaunchConfig, PoolResource,
    Result, Stream, Transfer,
    error::Refused,
    mr::AsyncResource,
    pinned::{HostBuffer, HostChunk, PinnedResource, Registered},
};
use fastrand::Rng;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

type Pinned = AllocVec<u32, PinnedResource>;
type Words = DeviceVec<u32>;

fn pinned(device: &Device, values: impl IntoIterator<Item = u32>) -> Pinned {
    let mut vec = AllocVec::new_in(PinnedResource::new(device).unwrap());
    vec.extend(values);
    vec
}

fn counted(stream: &Stream, length: u32) -> Words {
    DeviceVec::from_slice(stream, &(0..length).collect::<Vec<_>>()).unwrap()
}

fn double(stream: &Stream, vec: &mut Words) {
    let n = vec.len();
    let launch = stream.launch(&DOUBLE).in_out(vec).unwrap().scalar(n as u32).unwrap();
    // SAFETY: the kernel touches the first `n` elements alone.
    unsafe { launch.launch(LaunchConfig::for_elements(n)) }.unwrap();
}

fn refused<R, V>(result: Result<R, Refused<V>>, kind: ErrorKind) -> V {
    let Err(Refused { error, value }) = result else { panic!("it should be refused") };
    assert_eq!(error.kind(), kind, "{error}");
    value
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    let started = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park_timeout(Duration::from_secs(30));
        assert!(started.elapsed() < Duration::from_secs(30), "nobody woke the future");
    }
}

/// Calls the crate, as a program goes on to do, until a condition holds.
fn later(stream: &Stream, what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        let _ = stream.synchronize();
        assert!(started.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::yield_now();
    }
}

/// A kernel that ends when its gate is opened; a gate for each test that needs one.
static GATES: [(Mutex<bool>, Condvar); 2] = [const { (Mutex::new(false), Condvar::new()) }; 2];

static WAIT: Kernel = Kernel::new(
    "wait",
    idle_entry!("wait", number: u32),
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        let (open, opened) = &GATES[args.scalar::<u32>()? as usize];
        drop(opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
        Ok(())
    },
);

struct Gate(usize);

impl Gate {
    fn close(stream: &Stream, number: usize) -> Self {
        let launch = stream.launch(&WAIT).scalar(number as u32).unwrap();
        // SAFETY: it has no memory to touch.
        unsafe { launch.launch(LaunchConfig::for_elements(1)) }.unwrap();
        Self(number)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let (open, opened) = &GATES[self.0];
        *open.lock().unwrap() = true;
        opened.notify_all();
    }
}

fn is_whole_again<B>(make: impl Fn(Vec<u32>) -> B)
where
    B: HostBuffer<Item = u32> + std::ops::Deref<Target = [u32]>,
{
    let mut chunks = HostChunk::new(make((0..10).collect())).into_chunks(4).unwrap();
    let lengths: Vec<_> = chunks.iter().map(|chunk| chunk.len()).collect();
    assert_eq!(lengths, [4, 4, 2]);
    assert_eq!((&chunks[1][..], chunks[2].range()), (&[4, 5, 6, 7][..], 8..10));
    for (number, chunk) in chunks.iter_mut().enumerate() {
        chunk.fill(number as u32);
    }
    chunks.swap(0, 2);
    let whole = HostChunk::from_chunks(chunks).unwrap();
    let buffer = whole.into_inner().unwrap();
    assert_eq!(&*buffer, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]);
}

#[test]
fn host_chunks_of_every_kind_of_buffer_join_to_what_was_split() {
    let device = support::device();
    is_whole_again(|values| pinned(&device, values));
    is_whole_again(|values| values);
    is_whole_again(Vec::into_boxed_slice);
    is_whole_again(|values| Registered::new(&device, values).unwrap());
    // A chunk is a buffer, too.
    is_whole_again(HostChunk::new);
}

#[test]
fn the_last_host_chunk_gives_the_buffer_back() {
    let mut head = HostChunk::new(vec![1_u8, 2, 3, 4]);
    let tail = head.split_off(1).unwrap();
    let mut tail = refused(tail.into_inner(), ErrorKind::InvalidArgument);
    tail[0] = 9;
    let middle = tail.split_off(3).unwrap();
    drop((head, middle));
    assert_eq!(tail.into_inner().unwrap(), [1, 9, 3, 4]);
}

#[test]
fn host_chunks_that_are_no_neighbours_are_refused() {
    let mut one = HostChunk::new(vec![1_u32, 2, 3]);
    let other = HostChunk::new(vec![4_u32, 5]);
    let kind = ErrorKind::InvalidArgument;
    let other = refused(one.unsplit(other), kind);
    let mut tail = one.split_off(1).unwrap();
    let last = tail.split_off(1).unwrap();
    let last = refused(one.unsplit(last), kind);
    let one = refused(tail.unsplit(one), kind);
    let chunks = refused(HostChunk::from_chunks([last, one]), kind);
    assert_eq!(chunks.iter().map(|chunk| chunk[0]).collect::<Vec<_>>(), [1, 3], "all come back");
    let chunks = refused(HostChunk::from_chunks(chunks.into_iter().chain([other, tail])), kind);
    assert_eq!(chunks.iter().map(|chunk| chunk.len()).sum::<usize>(), 5);
    refused(HostChunk::<Vec<u32>>::from_chunks([]), kind);
}

#[test]
fn host_chunks_of_no_elements() {
    let mut head = HostChunk::new(vec![1_u32, 2]);
    assert_eq!(head.split_off(3).unwrap_err().kind(), ErrorKind::OutOfBounds);
    let empty = head.split_off(2).unwrap();
    let mut whole = refused(head.into_chunks(0), ErrorKind::InvalidArgument);
    assert!(empty.is_empty());
    let rest = whole.split_off(0).unwrap();
    let joined = HostChunk::from_chunks([rest, empty, whole]).unwrap();
    assert_eq!(joined.into_inner().unwrap(), [1, 2]);
    let chunks = HostChunk::new(Vec::<u32>::new()).into_chunks(7).unwrap();
    assert_eq!(chunks.len(), 1);
    // More chunks than a list can have.
    let nothing: Box<[()]> = Box::new([(); usize::MAX]);
    let whole = refused(HostChunk::new(nothing).into_chunks(1), ErrorKind::OutOfMemory);
    assert_eq!(whole.len(), usize::MAX);
}

#[test]
fn a_forgotten_host_chunk_keeps_the_buffer() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let resource = PinnedResource::new(&device).unwrap();
    for forgotten in [false, true] {
        let mut head = HostChunk::new(pinned(&device, 0..100));
        let tail = head.split_off(50).unwrap();
        drop(head);
        resource.trim().unwrap();
        assert_eq!(simulator.host_blocks(), 1);
        if forgotten {
            std::mem::forget(tail)
        } else {
            drop(tail)
        }
        resource.trim().unwrap();
        assert_eq!(simulator.host_blocks(), usize::from(forgotten));
    }
    simulator.check().unwrap();
}

#[test]
fn chunks_of_a_vector_are_its_elements_and_join_to_it() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let vec = counted(&stream, 1000);
    let (address, resource) = (vec.as_device_ptr(), vec.resource().clone());
    let mut chunks = vec.into_chunks(300).unwrap();
    assert_eq!(chunks.iter().map(DeviceVec::len).collect::<Vec<_>>(), [300, 300, 300, 100]);
    assert_eq!(chunks[1].to_vec().unwrap(), (300..600).collect::<Vec<_>>());
    chunks[2].fill(7).unwrap();
    double(&stream, &mut chunks[0]);
    chunks.rotate_left(2);
    let vec = DeviceVec::from_chunks(chunks).unwrap();
    let expected = (0..300).map(|value| 2 * value).chain(300..600).chain([7; 300]).chain(900..1000);
    assert_eq!(vec.to_vec().unwrap(), expected.collect::<Vec<_>>());
    assert!(Arc::ptr_eq(vec.resource(), &resource), "the vector that it was");
    assert_eq!(vec.as_device_ptr(), address);
}

#[test]
fn a_vector_splits_and_joins_as_bytes_do() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut head = counted(&stream, 10);
    head.reserve_exact(6).unwrap();
    assert_eq!(head.split_off(11).unwrap_err().kind(), ErrorKind::OutOfBounds);
    let mut tail = head.split_off(4).unwrap();
    assert_eq!((head.capacity(), tail.len()), (4, 6));
    assert!(tail.capacity() >= 12, "it has the spare capacity");
    let empty = head.split_off(4).unwrap();
    let last = tail.split_off(2).unwrap();
    head.unsplit(empty).unwrap();
    tail.unsplit(last).unwrap();
    let mut none = head.split_off(0).map(|all| std::mem::replace(&mut head, all)).unwrap();
    assert_eq!((none.len(), head.len()), (0, 4));
    none.unsplit(head).unwrap();
    none.unsplit(tail).unwrap();
    assert_eq!(none.to_vec().unwrap(), (0..10).collect::<Vec<_>>());
    assert!(none.capacity() >= 16);
    assert!(DeviceVec::<u32>::new(&stream).unwrap().split_off(0).unwrap().is_empty());
    assert_eq!(DeviceVec::<u32>::new(&stream).unwrap().into_chunks(3).unwrap().len(), 1);
}

#[test]
fn vectors_that_are_no_neighbours_are_refused() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let kind = ErrorKind::InvalidArgument;
    let vec = refused(counted(&stream, 8).into_chunks(0), kind);
    let mut chunks = vec.into_chunks(2).unwrap();
    let other = refused(chunks[0].unsplit(counted(&stream, 2)), kind);
    let others = counted(&stream, 4).into_chunks(2).unwrap();
    chunks.extend(others);
    let mut all = refused(DeviceVec::from_chunks(chunks), kind);
    all.push(other);
    assert_eq!(all.iter().map(DeviceVec::len).sum::<usize>(), 14, "all come back");
    refused(DeviceVec::<u32>::from_chunks([]), kind);

    let mut chunks = counted(&stream, 6).into_chunks(2).unwrap();
    let last = chunks.pop().unwrap();
    let last = refused(chunks[0].unsplit(last), kind);
    chunks[1].truncate(1);
    let last = refused(chunks[1].unsplit(last), ErrorKind::LengthMismatch);
    assert_eq!(last.to_vec().unwrap(), [4, 5]);
    chunks[1].resize(2, 9).unwrap();
    chunks[1].unsplit(last).unwrap();
    // One that grew has a block of its own.
    chunks[0].push(1).unwrap();
    let tail = chunks.pop().unwrap();
    let tail = refused(chunks[0].unsplit(tail), kind);
    assert_eq!(chunks[0].to_vec().unwrap(), [0, 1, 1]);
    assert_eq!(tail.to_vec().unwrap(), [2, 9, 4, 5]);
    let mut again = chunks[0].split_off(2).unwrap();
    again.fill(3).unwrap();
    chunks[0].unsplit(again).unwrap();
    assert_eq!(chunks[0].to_vec().unwrap(), [0, 1, 3]);
}

/// Sends each chunk, computes on it and fetches it, with two of them on their way; waits in either way.
fn pipeline(device: &Device, awaits: bool) {
    type Chunk = HostChunk<Pinned>;
    fn end(transfer: Transfer<Chunk>, awaits: bool) -> (Chunk, Words) {
        let ended = if awaits { block_on(transfer) } else { transfer.wait() };
        ended.map_err(|failed| failed.error).unwrap()
    }
    const LENGTH: usize = 5000;
    let streams = [device.new_stream().unwrap(), device.new_stream().unwrap()];
    let host = HostChunk::new(pinned(device, vec![0; LENGTH])).into_chunks(700).unwrap();
    // SAFETY: each chunk is written before it is read.
    let vec = unsafe { DeviceVec::<u32>::uninit(&streams[0], LENGTH) }.unwrap();
    let (mut uploads, mut downloads) = (VecDeque::new(), Vec::new());
    let compute = |(stream, upload): (&Stream, Transfer<Chunk>)| {
        let (host, mut chunk) = end(upload, awaits);
        double(stream, &mut chunk);
        stream.download(chunk, host).unwrap()
    };
    for (k, (mut host, chunk)) in host.into_iter().zip(vec.into_chunks(700).unwrap()).enumerate() {
        let first = host.range().start as u32;
        host.iter_mut().zip(first..).for_each(|(element, value)| *element = value);
        let stream = &streams[k % 2];
        uploads.push_back((stream, stream.upload(host, chunk).unwrap()));
        if uploads.len() == 2 {
            downloads.push(compute(uploads.pop_front().unwrap()));
        }
    }
    downloads.extend(uploads.into_iter().map(compute));
    let (host, chunks): (Vec<_>, Vec<_>) =
        downloads.into_iter().map(|download| end(download, awaits)).unzip();
    let host = HostChunk::from_chunks(host).unwrap().into_inner().unwrap();
    let vec = DeviceVec::from_chunks(chunks).unwrap();
    let expected: Vec<u32> = (0..LENGTH as u32).map(|value| 2 * value).collect();
    assert_eq!(&host[..], expected);
    assert_eq!(vec.to_vec().unwrap(), expected);
}

#[test]
fn a_pipeline_over_one_large_buffer() {
    for seed in 0..if support::on_gpu() { 3 } else { 20 } {
        pipeline(&support::seeded(seed), seed % 2 == 1);
    }
}

#[test]
fn chunks_go_to_other_threads() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let host = HostChunk::new(pinned(&device, 0..1000)).into_chunks(100).unwrap();
    let chunks = DeviceVec::zeroed(&stream, 1000).unwrap().into_chunks(100).unwrap();
    let done: Vec<_> = std::thread::scope(|scope| {
        let work = |host: HostChunk<Pinned>, vec: Words| {
            let stream = device.new_stream().unwrap();
            let (host, mut vec) = stream.upload(host, vec).unwrap().wait().unwrap();
            vec.set_stream(&stream).unwrap();
            double(&stream, &mut vec);
            drop(host);
            vec
        };
        let threads: Vec<_> =
            host.into_iter().zip(chunks).map(|(h, v)| scope.spawn(move || work(h, v))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let vec = DeviceVec::from_chunks(done).unwrap();
    assert_eq!(vec.to_vec().unwrap(), (0..1000).map(|value| 2 * value).collect::<Vec<_>>());
}

#[test]
fn the_block_is_freed_with_its_last_chunk_in_any_order_of_the_drops() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let (device, simulator) = support::simulated(SimConfig::default());
        let home = device.new_stream().unwrap();
        let (other, third) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let vec = DeviceVec::<u32>::zeroed_in(&home, 300, CudaResource::new(&device)).unwrap();
        let mut chunks: Vec<_> = vec.into_chunks(100).unwrap().into_iter().map(Some).collect();
        // At home, on another stream, and at home elsewhere.
        chunks[0].as_mut().unwrap().fill(1).unwrap();
        double(&other, chunks[1].as_mut().unwrap());
        chunks[2].as_mut().unwrap().set_stream(&third).unwrap();
        double(&third, chunks[2].as_mut().unwrap());
        for (left, index) in order.into_iter().enumerate() {
            assert_eq!(simulator.live_blocks(), 1, "{left} are dropped");
            chunks[index] = None;
        }
        later(&home, "the block is freed", || simulator.live_blocks() == 0);
        simulator.check().unwrap();
    }
}

#[test]
fn chunks_that_grow_or_are_taken_apart_give_the_block_back() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let vec =
        DeviceVec::<u32>::zeroed_in(&stream, 300, AsyncResource::new(&device).unwrap()).unwrap();
    let mut chunks = vec.into_chunks(100).unwrap();
    chunks[0].resize(1000, 3).unwrap();
    assert_eq!(simulator.live_blocks(), 2);
    let (home, block, length, resource) = chunks.pop().unwrap().into_raw_parts().unwrap();
    // SAFETY: the parts of a vector, put together once.
    chunks.push(unsafe { DeviceVec::from_raw_parts(home, block, length, resource) }.unwrap());
    let clone = chunks[1].try_clone().unwrap();
    assert_eq!(clone.to_vec().unwrap(), [0; 100]);
    assert_eq!(chunks[1].slice(10..20).unwrap().to_vec().unwrap(), [0; 10]);
    let bytes = chunks.pop().unwrap().cast::<u8>().unwrap();
    chunks.push(bytes.cast::<u32>().unwrap());
    drop((chunks, clone));
    later(&stream, "all is freed", || simulator.live_blocks() == 0);
    simulator.check().unwrap();
}

#[test]
fn a_forgotten_transfer_of_a_chunk_keeps_both_buffers_and_leaves_the_other_chunks() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let resource = PinnedResource::new(&device).unwrap();
    let vec = DeviceVec::zeroed_in(&stream, 100, CudaResource::new(&device)).unwrap();
    let mut host = HostChunk::new(pinned(&device, 0..100)).into_chunks(50).unwrap();
    let mut chunks = vec.into_chunks(50).unwrap();
    std::mem::forget(stream.upload(host.remove(0), chunks.remove(0)).unwrap());
    let (mut rest, vec) = stream.upload(host.remove(0), chunks.remove(0)).unwrap().wait().unwrap();
    rest.fill(0);
    let (rest, vec) = stream.download(vec, rest).unwrap().wait().unwrap();
    assert_eq!(&rest[..], (50..100).collect::<Vec<_>>());
    drop((rest, vec));
    stream.synchronize().unwrap();
    resource.trim().unwrap();
    assert_eq!((simulator.live_blocks(), simulator.host_blocks()), (1, 1));
    simulator.check().unwrap();
}

#[test]
fn a_transfer_of_a_chunk_dropped_early_keeps_the_buffers_until_it_ends() {
    let (device, simulator) =
        support::simulated(SimConfig::default().schedule(Schedule::Background));
    let (home, stream) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let resource = PinnedResource::new(&device).unwrap();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let vec = DeviceVec::<u32>::zeroed_in(&home, 100, pool.clone()).unwrap();
    home.synchronize().unwrap();
    let gate = Gate::close(&stream, 0);
    let mut host = HostChunk::new(pinned(&device, 0..100));
    let mut head = vec;
    let (tail, host_tail) = (head.split_off(50).unwrap(), host.split_off(50).unwrap());
    drop(stream.upload(host_tail, tail).unwrap());
    drop((host, head));
    resource.trim().unwrap();
    assert_eq!(simulator.host_blocks(), 1, "the device has not read it yet");
    assert!(pool.statistics().live > 0, "nor written it");
    drop(gate);
    later(&stream, "both are freed", || {
        resource.trim().unwrap();
        simulator.host_blocks() == 0 && pool.statistics().live == 0
    });
    simulator.check().unwrap();
}

#[test]
fn the_next_owner_of_the_block_comes_after_the_work_on_each_chunk() {
    // At home elsewhere when it is dropped, and used there before it came home.
    for (gate, moves) in [(None, true), (None, false), (Some(1), true)] {
        let (device, simulator) =
            support::simulated(SimConfig::default().schedule(Schedule::Background));
        let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        let vec = DeviceVec::<u32>::zeroed_in(&home, 1000, pool.clone()).unwrap();
        let address = vec.as_device_ptr();
        let mut chunks = vec.into_chunks(500).unwrap();
        let gate = gate.map(|number| Gate::close(&other, number));
        if moves {
            chunks[1].set_stream(&other).unwrap();
        }
        double(&other, &mut chunks[1]);
        drop(chunks);
        let mut next = DeviceVec::<u32>::zeroed_in(&home, 1000, pool).unwrap();
        assert_eq!(next.as_device_ptr(), address, "the pool hands the block out again");
        next.fill(1).unwrap();
        drop(gate);
        assert_eq!(next.to_vec().unwrap(), [1; 1000]);
        simulator.check().unwrap();
    }
}

#[test]
fn a_stream_in_capture_leaves_chunks_as_they_are() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let mut vec = counted(&stream, 4);
    let mut pair = counted(&stream, 4).into_chunks(2).unwrap();
    let mut last = pair.pop().unwrap();
    let mut first = pair.pop().unwrap();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let (graph, ()) = stream
        .capture(&pool, |_| {
            assert_eq!(vec.split_off(1).unwrap_err().kind(), ErrorKind::Capture);
            vec = refused(
                std::mem::replace(&mut vec, Words::new(&stream)?).into_chunks(1),
                ErrorKind::Capture,
            );
            let kept = std::mem::replace(&mut last, Words::new(&stream)?);
            last = refused(first.unsplit(kept), ErrorKind::Capture);
            // The graph works on the chunk.
            double(&stream, &mut last);
            Ok(())
        })
        .unwrap();
    // SAFETY: the chunk is where it was, and used on this stream alone.
    unsafe { graph.launch(&stream) }.unwrap();
    first.unsplit(last).unwrap();
    assert_eq!(first.to_vec().unwrap(), [0, 1, 4, 6]);
    assert_eq!(vec.split_off(3).unwrap().to_vec().unwrap(), [3]);
    simulator.check().unwrap();
}

#[test]
fn a_chunk_that_is_dropped_in_a_capture_is_kept_for_the_graph() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    // At home on the stream of the capture from the start, and by a move.
    for start in [&home, &other] {
        let mut vec = DeviceVec::<u32>::zeroed_in(start, 1000, pool.clone()).unwrap();
        let mut last = vec.split_off(500).unwrap();
        last.set_stream(&home).unwrap();
        let mut out = DeviceVec::<u32>::zeroed(&home, 500).unwrap();
        let (graph, ()) = home
            .capture(&pool, |_| {
                last.fill(3)?;
                double(&home, &mut last);
                out.copy_from(&last)?;
                drop(last);
                Ok(())
            })
            .unwrap();
        drop(vec);
        // Its next owner would have it in the way of the launches.
        let mut next = DeviceVec::<u32>::zeroed_in(start, 1000, pool.clone()).unwrap();
        for _ in 0..3 {
            // SAFETY: the graph keeps the chunk, and `out` is used on this stream alone.
            unsafe { graph.launch(&other) }.unwrap();
            next.fill(1).unwrap();
            home.wait_for(&other).unwrap();
            assert_eq!(out.to_vec().unwrap(), [6; 500]);
            other.wait_for(&home).unwrap();
        }
        assert_eq!(next.to_vec().unwrap(), [1; 1000]);
        let live = pool.statistics().live;
        // SAFETY: as above.
        unsafe { graph.launch(&other) }.unwrap();
        drop(graph);
        let mut next = vec![next];
        next.extend((0..2).map(|_| DeviceVec::zeroed_in(start, 1000, pool.clone()).unwrap()));
        for vec in &mut next {
            vec.fill(1).unwrap();
            assert_eq!(vec.to_vec().unwrap(), [1; 1000]);
        }
        drop((next, out));
        assert!(live > 0);
        later(&home, "all is free", || pool.statistics().live == 0);
        simulator.check().unwrap();
    }
}

#[test]
fn a_failed_wait_leaves_the_vector_whole() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut vec = counted(&home, 4);
    double(&other, &mut vec);
    simulator.fail_call("cuStreamWaitEvent", 1, 999).unwrap();
    assert_eq!(vec.split_off(1).unwrap_err().kind(), ErrorKind::Driver);
    assert_eq!(vec.to_vec().unwrap(), [0, 2, 4, 6]);
    let mut tail = vec.split_off(1).unwrap();
    double(&other, &mut tail);
    simulator.fail_call("cuStreamWaitEvent", 1, 999).unwrap();
    let mut tail = refused(vec.unsplit(tail), ErrorKind::Driver);
    double(&other, &mut vec);
    home.synchronize().unwrap();
    simulator.fail_call("cuStreamWaitEvent", 2, 999).unwrap();
    double(&other, &mut tail);
    let tail = refused(vec.unsplit(tail), ErrorKind::Driver);
    vec.unsplit(tail).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [0, 8, 16, 24]);
    simulator.check().unwrap();
}

#[test]
fn what_a_chunk_leaks_keeps_the_block() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::<u32>::zeroed_in(&stream, 4, CudaResource::new(&device)).unwrap();
    let mut chunks = vec.into_chunks(2).unwrap();
    drop(chunks.pop().unwrap().into_raw_parts().unwrap());
    drop(chunks);
    stream.synchronize().unwrap();
    assert_eq!(simulator.live_blocks(), 1);
    simulator.check().unwrap();
}

#[test]
fn a_chunk_that_no_stream_was_ordered_for_is_reported() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    // SAFETY: wrong on purpose: the second chunk is read before it is written.
    let vec = unsafe { DeviceVec::<u32>::uninit(&home, 200) }.unwrap();
    let mut chunks = vec.into_chunks(100).unwrap();
    chunks[0].fill(1).unwrap();
    assert_eq!(chunks[0].to_vec().unwrap(), [1; 100]);
    assert!(chunks[1].to_vec().is_err());
    assert_eq!(simulator.take_reports()[0].kind(), Violation::UninitializedRead);

    chunks[0].fill(2).unwrap();
    let (_, block, length, resource) = chunks.swap_remove(0).into_raw_parts().unwrap();
    let stray = other.clone();
    // SAFETY: wrong on purpose: `other` is in no order with the fill.
    let raced =
        unsafe { DeviceVec::<u32>::from_raw_parts(stray, block, length, resource) }.unwrap();
    assert!(raced.to_vec().is_err());
    assert_eq!(simulator.take_reports()[0].kind(), Violation::UnorderedAccess);
}

/// Splits, joins, moves, work and drops, drawn at random, against what the elements should be.
#[test]
fn random_splits_and_joins() {
    for seed in 0..if support::on_gpu() { 3 } else { 60 } {
        let device = support::seeded(seed);
        let mut random = Rng::with_seed(seed);
        let mut random = |below: usize| random.usize(..below);
        let streams: Vec<_> = (0..3).map(|_| device.new_stream().unwrap()).collect();
        let mut model: Vec<u32> = (0..500).collect();
        // In the order of memory: where each begins, and the chunk.
        let mut chunks = vec![(0, DeviceVec::from_slice(&streams[0], &model).unwrap())];
        for _ in 0..60 {
            let index = random(chunks.len());
            let stream = &streams[random(3)];
            match random(5) {
                0 => {
                    let (start, chunk) = &mut chunks[index];
                    let at = random(chunk.len() + 1);
                    let (start, tail) = (*start + at, chunk.split_off(at).unwrap());
                    chunks.insert(index + 1, (start, tail));
                }
                1 if index + 1 < chunks.len() => {
                    let (_, next) = chunks.remove(index + 1);
                    chunks[index].1.unsplit(next).unwrap();
                }
                2 => chunks[index].1.set_stream(stream).unwrap(),
                3 => {
                    let (start, chunk) = &mut chunks[index];
                    double(stream, chunk);
                    let end = *start + chunk.len();
                    model[*start..end].iter_mut().for_each(|value| *value = value.wrapping_mul(2));
                }
                _ => {
                    let (start, chunk) = chunks.remove(index);
                    let host = vec![0; chunk.len()];
                    let (mut host, chunk) = stream.download(chunk, host).unwrap().wait().unwrap();
                    assert_eq!(host, model[start..start + host.len()], "seed {seed}");
                    host.reverse();
                    model[start..start + host.len()].copy_from_slice(&host);
                    let (_, chunk) = stream.upload(host, chunk).unwrap().wait().unwrap();
                    chunks.insert(index, (start, chunk));
                }
            }
        }
        let vec = DeviceVec::from_chunks(chunks.into_iter().map(|(_, chunk)| chunk)).unwrap();
        assert_eq!(vec.to_vec().unwrap(), model, "seed {seed}");
    }
}

/// A chunk begins where an element of bytes may, and a cast makes elements of four of them.
#[test]
fn a_chunk_that_begins_anywhere_is_filled() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut head = DeviceVec::<u8>::zeroed(&stream, 17).unwrap();
    for at in (1..9).rev() {
        let mut tail = head.split_off(at).unwrap();
        let whole = tail.len() / 4 * 4;
        tail.truncate(whole);
        let mut words = tail.cast::<[u8; 4]>().unwrap();
        words.fill([1, 2, 3, 4]).unwrap();
        assert_eq!(words.to_vec().unwrap(), vec![[1, 2, 3, 4]; whole / 4], "{at}");
    }
}
