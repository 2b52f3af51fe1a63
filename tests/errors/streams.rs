//! Streams, events, captures, graphs, transfers.

use crate::support::simulated;
use crate::table::Table;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    CudaResource, Device, DeviceResource, DeviceVec, Error, Kernel, PinnedAlloc, PoolResource,
    Result, Stream,
    mr::{ArenaResource, FixedSizeResource},
    pinned::PinnedResource,
    stream::StreamPool,
};
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

pub(crate) fn rows(table: &mut Table) {
    let (device, _) = simulated(SimConfig::default());
    table.failed("a pool of no streams", StreamPool::with_size(&device, 0));
    table.failed("a pool of too many streams", StreamPool::with_size(&device, usize::MAX));
    captures(table);
    undeclared(table);
    driver_calls(table);
    transfers(table);
}

struct Setup {
    device: Device,
    simulator: Simulator,
    pool: PoolResource,
    stream: Stream,
    other: Stream,
    on_stream: DeviceVec<u32>,
    on_other: DeviceVec<u32>,
}

impl Setup {
    fn new() -> Self {
        let (device, simulator) = simulated(SimConfig::default());
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let on_stream = DeviceVec::from_slice(&stream, &[1; 4]).unwrap();
        let on_other = DeviceVec::from_slice(&other, &[1; 4]).unwrap();
        Self { device, simulator, pool, stream, other, on_stream, on_other }
    }

    /// The error of `call` inside of a declared capture of the first stream.
    fn captured<T>(&mut self, call: impl FnOnce(&mut Self) -> Result<T>) -> Error {
        let (stream, pool) = (self.stream.clone(), self.pool.clone());
        let mut seen = None;
        let _ = stream.capture(&pool, |_| {
            seen = call(self).err();
            Ok(())
        });
        seen.expect("a call that a capture does not have")
    }
}

fn captures(table: &mut Table) {
    type Call = fn(&mut Setup) -> Result<()>;
    let calls: [(&str, Call); 16] = [
        ("in a capture: wait for the stream", |it| it.stream.synchronize()),
        ("in a capture: wait for the device", |it| it.device.synchronize()),
        ("in a capture: copy to the host", |it| it.on_stream.to_vec().map(drop)),
        ("in a capture: copy from the host", |it| it.on_stream.copy_from_slice(&[2; 4])),
        ("in a capture: grow", |it| it.on_stream.reserve(1000)),
        ("in a capture: move to another stream", |it| {
            let other = it.other.clone();
            it.on_stream.set_stream(&other)
        }),
        ("in a capture: a scope", |it| it.stream.scope(|_| Ok(()))),
        ("in a capture: another capture", |it| it.stream.capture(&it.pool, |_| Ok(())).map(drop)),
        ("in a capture: ask an event of it", |it| it.stream.record()?.is_complete().map(drop)),
        ("in a capture: wait for an event of it", |it| it.stream.record()?.synchronize()),
        ("in a capture: another stream waits for an event of it", |it| {
            let event = it.stream.record()?;
            it.device.per_thread_stream()?.wait(&event)
        }),
        ("in a capture: wait for an event of an undeclared one", |it| {
            it.simulator.start_capture(&it.other)?;
            let event = it.other.record()?;
            let refused = it.stream.wait(&event);
            it.simulator.stop_capture(&it.other);
            refused
        }),
        ("in a capture: a vector of another stream", |it| it.on_other.on(&it.stream).map(drop)),
        ("in a capture: upload on another stream", |it| {
            it.other.scope(|scope| scope.upload(&[2; 4], &mut it.on_stream))
        }),
        ("in a capture: a vector on a thread's own stream", |it| {
            it.on_stream.on(&it.device.per_thread_stream()?).map(drop)
        }),
        ("in a capture: take a vector apart", |it| {
            let vec = std::mem::replace(&mut it.on_stream, it.on_other.try_clone()?);
            vec.into_raw_parts().map(drop).map_err(Error::from)
        }),
    ];
    for (title, call) in calls {
        let mut setup = Setup::new();
        let error = setup.captured(call);
        table.row(title, error);
        setup.simulator.take_reports();
    }
    let mut setup = Setup::new();
    let error = setup.captured(|it| {
        let stream = it.stream.clone();
        std::thread::scope(|scope| scope.spawn(|| stream.synchronize()).join().unwrap())
    });
    table.row("a capture on another thread", error);
    let mut setup = Setup::new();
    let error = setup.captured(|it| {
        let (stream, pool) = (it.stream.clone(), PoolResource::new(CudaResource::new(&it.device))?);
        let allocate = || pool.allocate(&stream, crate::support::layout(64)).map(drop);
        std::thread::scope(|scope| scope.spawn(allocate).join().unwrap())
    });
    table.row("a capture on another thread: allocate", error);
    let mut setup = Setup::new();
    let arena = ArenaResource::builder(CudaResource::new(&setup.device)).arena_size(1 << 20);
    let arena = arena.build().unwrap();
    let sized = FixedSizeResource::new(CudaResource::new(&setup.device)).unwrap();
    let layout = crate::support::layout(64);
    let error = setup.captured(|it| arena.allocate(&it.stream, layout).map(drop));
    table.row("in a capture: an arena", error);
    let error = setup.captured(|it| sized.allocate(&it.stream, layout).map(drop));
    table.row("in a capture: blocks of one size", error);
    let legacy = setup.device.default_stream();
    table.failed("a capture of the default stream", legacy.capture(&setup.pool, |_| Ok(())));
    let mut setup = Setup::new();
    setup.on_other.copy_from(&setup.on_stream).unwrap();
    let error = setup.captured(|it| {
        it.simulator.start_capture(&it.other)?;
        let refused = it.on_stream.fill(3);
        it.simulator.stop_capture(&it.other);
        refused
    });
    table.row("in a capture: a vector that a stream in an undeclared one used before", error);
    let mut setup = Setup::new();
    let graph = {
        let (stream, pool) = (setup.stream.clone(), setup.pool.clone());
        stream.capture(&pool, |_| setup.on_stream.fill(3)).unwrap().0
    };
    let error = setup.captured(|it| {
        // SAFETY: nothing of the graph is used meanwhile.
        unsafe { graph.launch(&it.stream) }
    });
    table.row("in a capture: launch a graph", error);
    let mut setup = Setup::new();
    let (stream, pool) = (setup.stream.clone(), setup.pool.clone());
    let mut event = None;
    let _ = stream.capture(&pool, |stream| {
        setup.on_stream.fill(3)?;
        event = Some(stream.record()?);
        Ok(())
    });
    table.failed("an event of a capture that is over", setup.other.wait(&event.unwrap()));
}

fn undeclared(table: &mut Table) {
    let setup = Setup::new();
    let other = CudaResource::new(&setup.device);
    let pool = PoolResource::new(other).unwrap();
    let layout = crate::support::layout(64);
    let block = pool.allocate(&setup.stream, layout).unwrap();
    // SAFETY: allocated above and not used.
    unsafe { pool.deallocate(&setup.stream, block) };
    setup.simulator.start_capture(&setup.stream).unwrap();
    table.failed(
        "an undeclared capture: allocate",
        pool.allocate(&setup.stream, crate::support::layout(8 << 20)),
    );
    table.failed("an undeclared capture: trim", pool.wait_and_trim(0));
    let declared = setup.stream.capture(&pool, |_| Ok(())).map(|_| ());
    table.failed("an undeclared capture: a declared one", declared);
    table.failed("an undeclared capture: wait", setup.stream.synchronize());
    table.failed("an undeclared capture: wait for the device", setup.device.synchronize());
    let driver_pool = aquifer::mr::AsyncResource::new(&setup.device).unwrap();
    let got = driver_pool.allocate(&setup.stream, layout);
    table.failed("an undeclared capture: a driver pool", got);
    assert!(setup.simulator.stop_capture(&setup.stream), "not disturbed");
    setup.simulator.take_reports();
}

fn driver_calls(table: &mut Table) {
    type Call = fn(&Setup) -> Result<()>;
    let calls: [(&str, &str, Call); 6] = [
        ("no event", "cuEventCreate", |it| it.stream.record().map(drop)),
        ("no record", "cuEventRecord", |it| it.stream.record().map(drop)),
        ("no wait", "cuStreamWaitEvent", |it| it.stream.wait(&it.other.record()?)),
        ("no query", "cuEventQuery", |it| it.stream.record()?.is_complete().map(drop)),
        ("no wait of the host", "cuEventSynchronize", |it| it.stream.record()?.synchronize()),
        ("no wait for a stream", "cuStreamSynchronize", |it| it.stream.synchronize()),
    ];
    for (title, call, run) in calls {
        let setup = Setup::new();
        setup.simulator.fail_call(call, 1, 999).unwrap();
        table.failed(title, run(&setup));
    }
    for (title, call) in [
        ("no beginning of a capture", "cuStreamBeginCapture"),
        ("no end of a capture", "cuStreamEndCapture"),
        ("no graph", "cuGraphInstantiate"),
    ] {
        let mut setup = Setup::new();
        setup.simulator.fail_call(call, 1, 999).unwrap();
        let (stream, pool) = (setup.stream.clone(), setup.pool.clone());
        let captured = stream.capture(&pool, |_| setup.on_stream.fill(1));
        table.failed(title, captured.map(|_| ()));
        setup.simulator.take_reports();
    }
    let mut setup = Setup::new();
    let (stream, pool) = (setup.stream.clone(), setup.pool.clone());
    let (graph, ()) = stream.capture(&pool, |_| setup.on_stream.fill(1)).unwrap();
    setup.simulator.fail_call("cuGraphLaunch", 1, 999).unwrap();
    // SAFETY: nothing of the graph is used meanwhile.
    table.failed("no launch of a graph", unsafe { graph.launch(&stream) });
}

fn transfers(table: &mut Table) {
    let setup = Setup::new();
    let mut host = AllocVec::new_in(PinnedAlloc);
    host.resize(3, 1_u32);
    let vec = setup.on_stream.try_clone().unwrap();
    mapped_elsewhere(table);
    polled_again(table);
    table.failed("a transfer of 3 to 4", setup.stream.upload(host, vec));
    let other = simulated(SimConfig::default().ordinal(1)).0;
    let vec = DeviceVec::<u32>::zeroed(&other.new_stream().unwrap(), 0).unwrap();
    let host = AllocVec::<u32, _>::new_in(PinnedAlloc);
    table.failed("a transfer to another device", setup.stream.upload(host, vec));
    let (device, simulator) = simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let host = AllocVec::<u32, _>::new_in(PinnedAlloc);
    let vec = DeviceVec::<u32>::new(&stream).unwrap();
    simulator.fail_call("cuEventCreate", 1, 2).unwrap();
    table.failed("a transfer without an event", stream.upload(host, vec));
    let vec = DeviceVec::<u32>::new(&stream).unwrap();
    simulator.fail_call("cuEventCreate", 1, 2).unwrap();
    table.failed("a transfer of ranges without an event", stream.upload_ranges(vec![], [], vec));
}

fn mapped_elsewhere(table: &mut Table) {
    static READ: Kernel = Kernel::new("read", "", |_, _| Ok(()));
    let setup = Setup::new();
    let mut host = AllocVec::new_in(PinnedResource::new(&setup.device).unwrap());
    host.resize(4, 1_u32);
    let launched = setup.stream.scope(|scope| {
        let mapped = scope.map(&host)?;
        setup.other.launch(&READ).mapped_input(&mapped).map(drop)
    });
    table.failed("mapped memory of another stream's scope", launched);
}

fn polled_again(table: &mut Table) {
    let setup = Setup::new();
    let mut host = AllocVec::new_in(PinnedAlloc);
    host.resize(4, 1_u32);
    let vec = setup.on_stream.try_clone().unwrap();
    let mut transfer = pin!(setup.stream.upload(host, vec).unwrap());
    assert!(poll_to_its_end(transfer.as_mut()).is_ok());
    let again = poll_to_its_end(transfer);
    table.failed("a transfer that is polled again", again);

    let mut host = AllocVec::new_in(PinnedAlloc);
    host.resize(4, 1_u32);
    // SAFETY: wrong on purpose: the vector is read before it is written.
    let vec = unsafe { DeviceVec::uninit_in(&setup.stream, 4, CudaResource::new(&setup.device)) }
        .unwrap();
    let ended = poll_to_its_end(pin!(setup.stream.download(vec, host).unwrap()));
    table.failed("a violation, through an awaited transfer", ended);
    setup.simulator.take_reports();
}

fn poll_to_its_end<F: Future>(mut future: Pin<&mut F>) -> F::Output {
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(ended) => return ended,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}
