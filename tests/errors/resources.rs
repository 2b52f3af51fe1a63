//! Resources and their options.

use crate::support::{layout, simulated};
use crate::table::Table;
use aquifer::sim::{Schedule, SimConfig};
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, Error, ErrorKind,
    HostArgs, Kernel, LaunchConfig, PoolResource, Result, Stream,
    mr::{
        ArenaResource, AsyncResource, BinningResource, CallbackResource, FixedSizeResource,
        Handles, ManagedResource, MissPolicy, MissStep, ResourceId, SystemResource,
        VirtualResource,
    },
};
use std::sync::{Arc, Mutex};

const MIB: usize = 1 << 20;

pub(crate) fn rows(table: &mut Table) {
    plain(table);
    pools(table);
    pool_options(table);
    driver_pools(table);
    families(table);
    careless(table);
}

fn small() -> (Device, Stream) {
    let device = simulated(SimConfig::default().capacity(MIB)).0;
    let stream = device.new_stream().unwrap();
    (device, stream)
}

fn plain(table: &mut Table) {
    let (device, stream) = small();
    let plain = CudaResource::new(&device);
    table.failed("more than the device has", plain.allocate(&stream, layout(2 * MIB)));
    let far = DeviceLayout::with_alignment(MIB, 4096).unwrap();
    table.failed("more than the device has, with an alignment", plain.allocate(&stream, far));
    let farther = DeviceLayout::with_alignment(100, 8 * MIB).unwrap();
    table.failed("an alignment that takes the room", plain.allocate(&stream, farther));
    let mapped = VirtualResource::new(&device).unwrap();
    table.failed("mapped memory past the device", mapped.allocate(&stream, layout(2 * MIB)));
    let (other, failing) = simulated(SimConfig::default());
    failing.fail_call("cuMemGetAllocationGranularity", 1, 999).unwrap();
    table.failed("no granularity", VirtualResource::new(&other));
    let mapped = VirtualResource::new(&simulated(SimConfig::default()).0).unwrap();
    let pool = PoolResource::builder(mapped).maximum_size(MIB).build();
    table.failed("a maximum below what is mapped", pool);
    let bare = simulated(SimConfig::default().without_virtual_memory()).0;
    table.failed("a device without virtual memory", VirtualResource::new(&bare));
    let asked = PoolResource::builder(CudaResource::new(&bare)).handles(Handles::On);
    table.failed("handles on a device without them", asked.build());
    let managed = ManagedResource::new(&bare).unwrap();
    let asked = PoolResource::builder(managed).handles(Handles::On);
    table.failed("handles over memory of another kind", asked.build());
    let managed = ManagedResource::new(&device).unwrap();
    table.failed("managed memory past the device", managed.allocate(&stream, layout(2 * MIB)));
    let held = managed.allocate(&stream, layout(MIB / 2)).unwrap();
    table.failed("managed memory beside other", managed.allocate(&stream, layout(MIB)));
    // SAFETY: allocated above and not used.
    unsafe { managed.deallocate(&stream, held) };
    let system = SystemResource::new(&device).unwrap();
    table.failed("ordinary memory past the host", system.allocate(&stream, layout(1 << 62)));
    let (other, simulator) = simulated(SimConfig::default());
    let advised = SystemResource::builder(&other).headroom(0).build().unwrap();
    simulator.fail_call("cuMemAdvise", 1, 999).unwrap();
    let got = advised.allocate(&other.new_stream().unwrap(), layout(MIB));
    table.failed("ordinary memory without advice", got);
    let bare = simulated(SimConfig::default().without_managed_memory()).0;
    table.failed("a device without managed memory", ManagedResource::new(&bare));
    let bare = simulated(SimConfig::default().without_pageable_memory_access()).0;
    table.failed("a device without ordinary memory", SystemResource::new(&bare));
    // SAFETY: it hands nothing out.
    let callback =
        unsafe { CallbackResource::new(&device, |_, _| panic!("out of ideas"), |_, _| {}) };
    table.failed("a callback that panics", callback.allocate(&stream, layout(1)));
}

fn pools(table: &mut Table) {
    let (device, stream) = small();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    table.failed("a pool whose device is full", pool.allocate(&stream, layout(2 * MIB)));
    let vast = layout((1 << 40) + 1);
    table.failed("a block above every pool's", pool.allocate(&stream, vast));
    let limited =
        PoolResource::builder(CudaResource::new(&device)).maximum_size(1024).build().unwrap();
    table.failed("a block above a pool's maximum", limited.allocate(&stream, layout(2048)));
    let held = limited.allocate(&stream, layout(512)).unwrap();
    table.failed("a pool at its maximum", limited.allocate(&stream, layout(1024)));
    // SAFETY: allocated above and not used.
    unsafe { limited.deallocate(&stream, held) };
    let fixed = PoolResource::builder(CudaResource::new(&device))
        .initial_size(512)
        .miss_policy(MissPolicy::new([MissStep::Complete]))
        .build()
        .unwrap();
    table.failed("a pool that does not grow", fixed.allocate(&stream, layout(1024)));
    // Above any address: what lies on 2 MiB by luck is no error.
    let far = DeviceLayout::with_alignment(1, 1 << 46).unwrap();
    table.failed("an alignment above what a device has", limited.allocate(&stream, far));
    let farthest = DeviceLayout::with_alignment(100, 1 << 40).unwrap();
    table.failed("an alignment above every pool's block", pool.allocate(&stream, farthest));
    let initial = PoolResource::builder(CudaResource::new(&device)).initial_size(2 * MIB).build();
    table.failed("an initial size above the device", initial);
    pool_behind_a_kernel(table);
}

/// A pool that has the memory, and whose policy waits for nothing.
fn pool_behind_a_kernel(table: &mut Table) {
    static GATE: Mutex<()> = Mutex::new(());
    static WAIT: Kernel = Kernel::new(
        "wait",
        ".version 6.4 .target sm_50 .address_size 64 .visible .entry wait() { ret; }",
        |_: &LaunchConfig, _: HostArgs<'_>| {
            drop(GATE.lock());
            Ok(())
        },
    );
    let device = simulated(SimConfig::default().schedule(Schedule::Background)).0;
    let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = PoolResource::builder(CudaResource::new(&device))
        .initial_size(512)
        .miss_policy(MissPolicy::new([MissStep::Complete]))
        .build()
        .unwrap();
    let closed = GATE.lock();
    let block = pool.allocate(&other, layout(512)).unwrap();
    // SAFETY: it touches nothing.
    unsafe { other.launch(&WAIT).launch(LaunchConfig::for_elements(1)) }.unwrap();
    // SAFETY: allocated above and not used.
    unsafe { pool.deallocate(&other, block) };
    table.failed("a pool whose memory waits for a kernel", pool.allocate(&stream, layout(512)));
    drop(closed);
}

fn pool_options(table: &mut Table) {
    let (device, _) = small();
    let plain = || CudaResource::new(&device);
    let with = || PoolResource::builder(plain());
    table.failed("a pool aligned to 100", with().alignment(100).build());
    table.failed("an initial size of 100", with().initial_size(100).build());
    table.failed("a maximum of 1000", with().maximum_size(1000).build());
    table.failed("a maximum of 0", with().maximum_size(0).build());
    let above = with().initial_size(1024).maximum_size(512).build();
    table.failed("an initial size above the maximum", above);
    let vast = usize::MAX & !255;
    table.failed("an initial size above an address space", with().initial_size(vast).build());
    let keeps = with().initial_size(1024).release_threshold(512).build();
    table.failed("an initial size above the release threshold", keeps);
    table.failed("a growth of 0", with().growth_step(0).build());
    table.failed("a magazine of 9", with().magazine_entries(9).build());
    let pool = with().build().unwrap();
    table.failed("a maximum of 1000, later", pool.set_maximum_size(Some(1000)));
    table.failed("a maximum of 0, later", pool.set_maximum_size(Some(0)));
    table.failed("no policy", with().miss_policy(MissPolicy::new([])).build());
    let waits = MissPolicy::new([MissStep::Complete, MissStep::Wait]);
    table.failed("a policy that never asks upstream", with().miss_policy(waits).build());
}

fn driver_pools(table: &mut Table) {
    let (device, simulator) = simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let keeps = AsyncResource::builder(&device).initial_size(4096).release_threshold(1).build();
    table.failed("a driver pool that keeps too little", keeps);
    // SAFETY: null is refused.
    table.failed("a null pool", unsafe { AsyncResource::from_raw_pool(&device, 0) });
    let pool = AsyncResource::new(&device).unwrap();
    table.failed("an export of a pool that is not shareable", pool.export());
    for (title, call, run) in [
        (
            "no count of a driver pool",
            "cuMemPoolGetAttribute",
            (|pool: &AsyncResource, _: &Stream| pool.statistics().map(drop))
                as fn(&AsyncResource, &Stream) -> Result<()>,
        ),
        ("no trim of a driver pool", "cuMemPoolTrimTo", |pool, _| pool.trim(0).map(drop)),
        ("no export", "cuMemPoolExportToShareableHandle", |pool, _| pool.export().map(drop)),
        ("no memory of a driver pool", "cuMemAllocFromPoolAsync", |pool, stream| {
            pool.allocate(stream, layout(8)).map(drop)
        }),
    ] {
        let _ = simulator.fail_call(call, 1, 2);
        table.failed(title, run(&pool, &stream));
    }
    simulator.fail_call("cuMemPoolCreate", 1, 999).unwrap();
    table.failed("no driver pool", AsyncResource::new(&device));
    table.failed(
        "no driver pool of managed memory",
        AsyncResource::builder(&device).managed(true).build(),
    );
    simulator.fail_call("cuMemPoolCreate", 1, 801).unwrap();
    table
        .failed("no driver pool to share", AsyncResource::builder(&device).shareable(true).build());
    simulator.fail_call("cuMemPoolSetAttribute", 1, 999).unwrap();
    let set = AsyncResource::builder(&device).reuse_opportunistic(false).build();
    table.failed("no setting of a driver pool", set);
    simulator.fail_call("cuDeviceGetDefaultMemPool", 1, 999).unwrap();
    table.failed("no default driver pool", AsyncResource::default_pool(&device));
    let bare = simulated(SimConfig::default().without_memory_pools()).0;
    table.failed("a device without driver pools", AsyncResource::new(&bare));
}

fn families(table: &mut Table) {
    let (device, stream) = small();
    let plain = || CudaResource::new(&device);
    table.failed("an arena of 100", ArenaResource::builder(plain()).arena_size(100).build());
    table.failed("an arena of half of too little", ArenaResource::new(plain()));
    let arena = ArenaResource::builder(plain()).arena_size(MIB).build().unwrap();
    table.failed("a full arena", arena.allocate(&stream, layout(2 * MIB)));
    let held = arena.allocate(&stream, layout(MIB / 2 + 1)).unwrap();
    table.failed("an arena in use", arena.allocate(&stream, layout(MIB / 2)));
    // SAFETY: allocated above and not used.
    unsafe { arena.deallocate(&stream, held) };
    // Above any address: what lies on 2 MiB by luck is no error.
    let far = DeviceLayout::with_alignment(1, 1 << 46).unwrap();
    table.failed("an alignment above an arena's", arena.allocate(&stream, far));
    drop(arena);

    let sized = || FixedSizeResource::builder(plain());
    table.failed("blocks of 100", sized().block_size(100).build());
    table.failed("chunks of none", sized().blocks_per_chunk(0).build());
    table.failed(
        "too many blocks",
        sized().block_size(1 << 30).blocks_per_chunk(usize::MAX).build(),
    );
    let fixed = sized().block_size(512).blocks_per_chunk(1).build().unwrap();
    table.failed("a request above the block", fixed.allocate(&stream, layout(513)));
    let large = sized().block_size(2 * MIB).blocks_per_chunk(1).build().unwrap();
    table.failed("blocks above the device", large.allocate(&stream, layout(1)));

    let bins = || BinningResource::builder(plain());
    table.failed("exponents out of order", bins().fixed_size_bins(12, 9).build());
    table.failed("a bin of 100", bins().bin(100, Arc::new(plain())).build());
    let two = bins().bin(512, Arc::new(plain())).bin(512, Arc::new(plain())).build();
    table.failed("two bins of one size", two);
    let other = simulated(SimConfig::default().ordinal(1)).0;
    let foreign = bins().bin(512, Arc::new(CudaResource::new(&other))).build();
    table.failed("a bin of another device", foreign);
}

/// A resource that gives less than it is asked, or not aligned.
#[derive(Debug)]
pub(crate) struct Careless {
    upstream: CudaResource,
    bytes: usize,
    shift: u64,
}

impl Careless {
    /// One that gives what is asked, further on.
    pub(crate) fn shifted(upstream: CudaResource, shift: u64) -> Self {
        Self { upstream, bytes: 1 << 20, shift }
    }
}

// SAFETY: of no use: what it gives is part of a block of upstream, and is freed as that.
unsafe impl DeviceResource for Careless {
    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_object(self)
    }

    fn allocate(&self, stream: &Stream, wanted: DeviceLayout) -> Result<DeviceBlock> {
        if self.bytes == 0 {
            let error = Error::new(ErrorKind::OutOfMemory, "a row of a user's own");
            return Err(error.with_advice("follow the user's advice"));
        }
        let block = self.upstream.allocate(stream, wanted)?;
        Ok(DeviceBlock::new(block.address() + self.shift, self.bytes, block.token()))
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let whole = DeviceBlock::new(block.token(), block.bytes(), block.token());
        // SAFETY: the block of upstream's that `allocate` gave a part of.
        unsafe { self.upstream.deallocate(stream, whole) }
    }
}

fn careless(table: &mut Table) {
    let device = simulated(SimConfig::default()).0;
    let stream = device.new_stream().unwrap();
    let of = |bytes, shift| Careless { upstream: CudaResource::new(&device), bytes, shift };
    let short = PoolResource::new(of(256, 0)).unwrap();
    table.failed("an upstream that gives too little", short.allocate(&stream, layout(1)));
    let odd = PoolResource::new(of(64 * MIB, 8)).unwrap();
    table.failed("an upstream that does not align", odd.allocate(&stream, layout(1)));
    let (failing, simulator) = simulated(SimConfig::default());
    let options = PoolResource::builder(CudaResource::new(&failing));
    let pool = options.clone().handles(Handles::Off).build().unwrap();
    let its = failing.new_stream().unwrap();
    simulator.fail_call("cuMemAlloc", 1, 999).unwrap();
    table.failed("a pool whose upstream fails", pool.allocate(&its, layout(1)));
    let pool = options.handles(Handles::On).build().unwrap();
    simulator.fail_call("cuMemCreate", 1, 999).unwrap();
    table.failed("a pool whose driver makes no handle", pool.allocate(&its, layout(1)));
    simulator.fail_call("cuMemcpyHtoDAsync", 1, 2).unwrap();
    let copied = DeviceVec::from_slice_in(&its, &[1_u8; 64], pool);
    table.failed("a copy that the driver has no room for", copied);
    let refuses = PoolResource::new(of(0, 0)).unwrap();
    table.failed("an upstream of a user's that refuses", refuses.allocate(&stream, layout(1)));
    let bin = BinningResource::builder(CudaResource::new(&device))
        .bin(512, Arc::new(of(256, 0)))
        .build()
        .unwrap();
    table.failed("a bin that gives another size", bin.allocate(&stream, layout(512)));
    let large = BinningResource::builder(of(256, 0))
        .bin(512, Arc::new(CudaResource::new(&device)))
        .build()
        .unwrap();
    table.failed("large blocks that are small", large.allocate(&stream, layout(1024)));
}
