//! The table: all that hands out device memory, by name.

use crate::makers::{self, cuda};
use crate::{KIB, MIB};
use aquifer::{
    Communicator, CudaResource, Device, DeviceResource, PoolResource, Result, Stream,
    collective::RegisteringAdaptor,
    mr::{
        AlignedAdaptor, ArenaResource, AsyncResource, BinningResource, CallbackResource,
        CheckedAdaptor, FailureCallbackAdaptor, FixedSizeResource, Handles, LimitingAdaptor,
        LogFormat, ManagedResource, NcclResource, PrefetchAdaptor, StatisticsAdaptor,
        SystemResource, TracedAdaptor, TrackingAdaptor, VirtualResource, current_device_resource,
        with_device_resource,
    },
};
use std::sync::Arc;

/// A communicator of these streams' devices.
fn ranks_on(streams: &[Stream]) -> Result<Vec<Communicator>> {
    // SAFETY: the rank gives no collective.
    unsafe { Communicator::from_streams(streams) }
}

/// Reads a count that is zero when all is freed.
type Book = Box<dyn Fn() -> i64 + Send + Sync>;

/// A resource, and what is known of it.
pub(crate) struct Made {
    pub(crate) resource: Arc<dyn DeviceResource>,
    /// Another handle on it.
    pub(crate) twin: Arc<dyn DeviceResource>,
    /// Whether another one that is made alike on the same device is another resource.
    pub(crate) alone: bool,
    /// The most bytes of one block.
    pub(crate) largest: usize,
    /// The most bytes of all blocks.
    pub(crate) room: usize,
    /// Whether each block takes memory of the device.
    pub(crate) of_device: bool,
    pub(crate) books: Vec<(&'static str, Book)>,
}

impl Made {
    pub(crate) fn of<R: DeviceResource + Clone + 'static>(resource: &R) -> Self {
        Self::pair(Arc::new(resource.clone()), Arc::new(resource.clone()))
    }

    pub(crate) fn pair(resource: Arc<dyn DeviceResource>, twin: Arc<dyn DeviceResource>) -> Self {
        let (largest, room) = (usize::MAX, usize::MAX);
        Self { resource, twin, alone: true, largest, room, of_device: true, books: Vec::new() }
    }

    /// Two of them on one device are one resource.
    fn of_the_device(mut self) -> Self {
        self.alone = false;
        self
    }

    fn up_to(mut self, largest: usize) -> Self {
        self.largest = largest;
        self
    }

    fn with_room(mut self, room: usize) -> Self {
        (self.largest, self.room) = (room, room);
        self
    }

    pub(crate) fn book(
        mut self,
        what: &'static str,
        read: impl Fn() -> i64 + Send + Sync + 'static,
    ) -> Self {
        self.books.push((what, Box::new(read)));
        self
    }

    fn pool<U: DeviceResource + 'static>(pool: PoolResource<U>) -> Self {
        Self::of(&pool).book("live blocks", move || pool.statistics().live_blocks as i64)
    }
}

/// One row.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) make: fn(&Device) -> Result<Made>,
}

const fn row(name: &'static str, make: fn(&Device) -> Result<Made>) -> Row {
    Row { name, make }
}

fn pool(device: &Device) -> Result<PoolResource<CudaResource>> {
    PoolResource::new(cuda(device))
}

/// Of a row whose room is limited.
const ROOM: usize = 96 * MIB;

fn driver_pool(pool: AsyncResource) -> Made {
    let pool = Arc::new(pool);
    Made::pair(pool.clone(), pool)
}

pub(crate) const ROWS: &[Row] = &[
    row("NcclResource", |device| Ok(Made::of(&NcclResource::new(device)).of_the_device())),
    row("CudaResource", |device| Ok(Made::of(&cuda(device)).of_the_device())),
    row("VirtualResource", |device| Ok(Made::of(&VirtualResource::new(device)?).of_the_device())),
    row("ManagedResource", |device| Ok(Made::of(&ManagedResource::new(device)?).of_the_device())),
    row("AsyncResource", |device| {
        let pool = Arc::new(AsyncResource::new(device)?);
        let made = Made::pair(pool.clone(), pool.clone());
        Ok(made.book("used bytes", move || pool.statistics().unwrap().used_bytes as i64))
    }),
    row("AsyncResource of the default pool", |device| {
        Ok(driver_pool(AsyncResource::default_pool(device)?).of_the_device())
    }),
    row("PoolResource", |device| Ok(Made::pool(pool(device)?))),
    row("PoolResource on blocks", |device| {
        Ok(Made::pool(PoolResource::builder(cuda(device)).handles(Handles::Off).build()?))
    }),
    row("PoolResource over ManagedResource", |device| {
        Ok(Made::pool(PoolResource::new(ManagedResource::new(device)?)?))
    }),
    row("PoolResource over AsyncResource", |device| {
        Ok(Made::pool(PoolResource::new(Arc::new(AsyncResource::new(device)?))?))
    }),
    row("PoolResource over PoolResource", |device| {
        let lower = PoolResource::builder(cuda(device)).growth_step(8 * MIB).build()?;
        Ok(Made::pool(PoolResource::new(lower)?))
    }),
    row("PoolResource with a maximum", |device| {
        let pool = PoolResource::builder(cuda(device)).maximum_size(ROOM).build()?;
        Ok(Made::pool(pool).with_room(ROOM))
    }),
    row("FixedSizeResource", |device| {
        let fixed = FixedSizeResource::new(cuda(device))?;
        let made = Made::of(&fixed).up_to(MIB);
        Ok(made.book("live blocks", move || fixed.statistics().live_blocks as i64))
    }),
    row("FixedSizeResource of small blocks", |device| {
        let fixed = FixedSizeResource::builder(cuda(device))
            .block_size(64 * KIB)
            .blocks_per_chunk(16)
            .initial_blocks(8)
            .build()?;
        let made = Made::of(&fixed).up_to(64 * KIB);
        Ok(made.book("live blocks", move || fixed.statistics().live_blocks as i64))
    }),
    row("BinningResource", |device| Ok(Made::of(&BinningResource::new(cuda(device))?))),
    row("BinningResource with bins of its own", |device| {
        let tiles = FixedSizeResource::builder(cuda(device)).block_size(64 * KIB).build()?;
        let large = PoolResource::new(cuda(device))?;
        let binning = BinningResource::builder(large)
            .fixed_size_bins(10, 12)
            .bin(64 * KIB, Arc::new(tiles))
            .build()?;
        Ok(Made::of(&binning))
    }),
    row("ArenaResource", |device| {
        let arena = ArenaResource::builder(cuda(device)).arena_size(ROOM).build()?;
        let made = Made::of(&arena).with_room(ROOM);
        Ok(made.book("live blocks", move || arena.statistics().live_blocks as i64))
    }),
    row("SystemResource", |device| {
        let made = Made::of(&SystemResource::new(device)?).of_the_device();
        Ok(Made { of_device: false, ..made })
    }),
    row("SystemResource with headroom", |device| {
        let system = SystemResource::builder(device).headroom(1 << 30).build()?;
        Ok(Made { of_device: false, ..Made::of(&system).of_the_device() })
    }),
    row("CallbackResource", |device| {
        let (from, to) = (cuda(device), cuda(device));
        // SAFETY: every block is a `CudaResource`'s, which keeps the contract, and goes back unchanged.
        let resource = unsafe {
            CallbackResource::new(
                device,
                move |stream, layout| from.allocate(stream, layout),
                move |stream, block| to.deallocate(stream, block),
            )
        };
        Ok(Made::of(&resource))
    }),
    row("AlignedAdaptor", |device| {
        Ok(Made::of(&AlignedAdaptor::new(pool(device)?, 4 * KIB, 64 * KIB)?))
    }),
    row("LimitingAdaptor", |device| {
        let limited = LimitingAdaptor::new(pool(device)?, ROOM);
        let made = Made::of(&limited).with_room(ROOM);
        Ok(made.book("allocated bytes", move || limited.allocated() as i64))
    }),
    row("StatisticsAdaptor", |device| Ok(makers::counted(StatisticsAdaptor::new(pool(device)?)))),
    row("TrackingAdaptor", |device| Ok(makers::tracked(TrackingAdaptor::new(pool(device)?)))),
    row("LoggingAdaptor", |device| makers::logged(pool(device)?, LogFormat::Rmm)),
    row("LoggingAdaptor of events", |device| makers::logged(pool(device)?, LogFormat::Events)),
    row("FailureCallbackAdaptor", |device| {
        Ok(Made::of(&FailureCallbackAdaptor::new(pool(device)?, |_| false)))
    }),
    row("PrefetchAdaptor over ManagedResource", |device| {
        Ok(Made::of(&PrefetchAdaptor::new(ManagedResource::new(device)?)))
    }),
    row("PrefetchAdaptor over PoolResource", |device| {
        let pool = PoolResource::new(ManagedResource::new(device)?)?;
        Ok(Made::of(&PrefetchAdaptor::new(pool)))
    }),
    row("RegisteringAdaptor", |device| {
        let registering = RegisteringAdaptor::new(pool(device)?);
        let made = Made::of(&registering);
        Ok(made.book("registered blocks", move || registering.registered_blocks() as i64))
    }),
    row("RegisteringAdaptor with a communicator", |device| {
        let registering = RegisteringAdaptor::new(pool(device)?);
        let stream = device.new_stream()?;
        let mut ranks = ranks_on(std::slice::from_ref(&stream))?;
        let rank = ranks.remove(0);
        registering.register_with(&rank)?;
        let made = Made::of(&registering);
        // The rank lives as long as the count.
        Ok(made.book("registered blocks", move || {
            rank.check().map_or(-1, |()| registering.registered_blocks() as i64)
        }))
    }),
    row("ThreadSafeAdaptor", |device| Ok(makers::thread_safe(device))),
    row("CheckedAdaptor", |device| {
        let checked = CheckedAdaptor::new(pool(device)?);
        let made = Made::of(&checked);
        Ok(made.book("misuses", move || checked.misuses() as i64))
    }),
    row("TracedAdaptor", |device| Ok(Made::of(&TracedAdaptor::new(pool(device)?)))),
    row("PolymorphicAllocator", |device| Ok(makers::polymorphic(pool(device)?))),
    row("Arc<dyn DeviceResource>", |device| {
        let erased: Arc<dyn DeviceResource> = Arc::new(pool(device)?);
        Ok(Made::of(&erased))
    }),
    row("six adaptors over a pool", |device| {
        makers::stack(pool(device)?, ROOM).map(|made| made.with_room(ROOM))
    }),
    row("what is current in a scope", |device| {
        let pool = pool(device)?;
        let current = with_device_resource(Arc::new(pool), || current_device_resource(device))?;
        Ok(Made::of(&current))
    }),
    row("what is current unless said", |device| {
        Ok(Made::of(&current_device_resource(device)?).of_the_device())
    }),
];
