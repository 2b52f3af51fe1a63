//! What a pool stands on: the driver's streams, and the memory below.

use crate::sync::trusted::{AtomicUsize, Ordering};
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

/// The driver calls and the memory of one pool. The crate has one implementation, over
/// `DeviceResource`; the models of `loom_tests/` have another, whose streams are vector clocks.
///
/// INV-POOL-8 (see `core`): while a declared capture has a stream, each call here that names
/// the stream fails on every thread but the capture's own, and the stream is given nothing.
pub trait Upstream: Send + Sync + 'static {
    type Stream: Clone + Send + Sync + 'static;
    type Event: Send + Sync;
    /// A block of the memory below.
    type Block: Send;
    type Error: fmt::Display;

    /// The stream's number, never used twice.
    fn id(stream: &Self::Stream) -> u64;

    /// A handle for the pool.
    fn clone_pool_handle(stream: &Self::Stream) -> Self::Stream;

    /// Whether pools alone hold this stream. If so, nothing else will from now on.
    fn is_abandoned(stream: &Self::Stream) -> bool;

    /// Drops a handle of [`clone_pool_handle`](Self::clone_pool_handle).
    fn drop_pool_handle(stream: Self::Stream);

    /// An event behind all that the stream was given so far.
    fn record(&self, stream: &Self::Stream) -> Result<Self::Event, Self::Error>;

    /// The same by an event of [`record`](Self::record) that nothing asks about any more.
    fn record_again(
        &self,
        stream: &Self::Stream,
        event: &mut Self::Event,
    ) -> Result<(), Self::Error>;

    /// Makes the stream wait for the event.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), Self::Error>;

    /// Whether the device has passed the event.
    fn is_passed(&self, event: &Self::Event) -> Result<bool, Self::Error>;

    /// Blocks until the device has passed the event.
    fn synchronize(&self, event: &Self::Event) -> Result<(), Self::Error>;

    /// Whether the stream is recording a graph.
    fn is_capturing(&self, stream: &Self::Stream) -> Result<bool, Self::Error>;

    /// Whether the stream is recording a graph, and will be given back.
    fn is_capturing_for_now(&self, stream: &Self::Stream) -> bool {
        self.is_capturing(stream).unwrap_or(false)
    }

    /// The error of a stream that is not of the memory's device.
    fn check_device(&self, stream: &Self::Stream) -> Result<(), Self::Error>;

    /// Memory that work on `stream` may use from this call on; that any work may use, without one.
    fn allocate(
        &self,
        stream: Option<&Self::Stream>,
        bytes: usize,
    ) -> Result<(u64, Self::Block), Self::Error>;

    /// Whether this error says that there is no more memory.
    fn is_exhausted(error: &Self::Error) -> bool;

    /// Whether this error says that a capture has the stream.
    fn is_captured(_error: &Self::Error) -> bool {
        false
    }

    /// What runs the end of the pool.
    fn end(&self) -> fn(&mut dyn FnMut()) {
        |end| end()
    }

    /// Memory that is apart from its addresses. Where there is some, the pool takes no block by
    /// [`allocate`](Self::allocate).
    fn mapped(&self) -> Option<Mapped<'_, Self>> {
        None
    }

    /// Takes memory back in the order of `stream`; without one, nothing uses it any more.
    fn deallocate(&self, stream: Option<&Self::Stream>, block: Self::Block);

    /// Whether to take memory back without a stream waits for no work of the device, or will not within so long.
    fn is_idle(&self, _patience: Duration) -> bool {
        true
    }

    /// Whether this error says that the device has no memory left, which other pools of it may have.
    fn is_device_full(_error: &Self::Error) -> bool {
        false
    }

    /// Has the other pools of the device give back what they have free, for a request of so many bytes: what the device is
    /// past, or all of it behind waits, until `is_served`. That is asked each time that some was given back.
    fn trim_others(
        &self,
        _pool: u64,
        _bytes: usize,
        _waits: bool,
        _is_served: &mut dyn FnMut() -> bool,
    ) {
    }

    /// Asks the user's callback, if there is one, about a request that is about to wait or to be refused. Not in a call of
    /// this upstream, under which a thread has locks of the pool; elsewhere the caller has none.
    fn call_back(&self, _request: Unserved<'_, Self::Error>) -> Retry {
        Retry::No
    }

    /// The pool ends, and so many bytes do not go back: users hold blocks of them still
    /// ([`Failure::Exhausted`]), or no stream could be made to wait for their last work.
    fn report_leak(&self, pool: u64, bytes: usize, why: &Failure<Self::Error>);

    /// Whether an event that is asked about again later may be passed by then, for no other reason.
    fn works_unasked(&self) -> bool {
        true
    }

    /// The device's ordinal, for people.
    fn device(&self) -> usize {
        0
    }

    /// Whether this is the child of a fork, where no lock may be taken and no driver called.
    fn is_forked(&self) -> bool;
}

/// The mapped memory of an upstream.
pub type Mapped<'a, U> =
    &'a dyn MappedMemory<Stream = <U as Upstream>::Stream, Error = <U as Upstream>::Error>;

/// Memory apart from addresses. Sizes and addresses are multiples of the granularity. None of the calls waits for the
/// device, or calls code of the user's, but [`end`](Self::end).
pub trait MappedMemory {
    type Stream;
    type Error;

    /// In bytes, a power of two.
    fn granularity(&self) -> u64;

    /// Bytes of memory that the device has left, where it tells.
    fn free(&self) -> Option<u64>;

    /// Bytes of memory that the device has in all, where it tells.
    fn total(&self) -> Option<u64> {
        None
    }

    /// Addresses without memory.
    fn reserve(&self, bytes: u64) -> Result<u64, Self::Error>;

    /// A handle of memory without addresses.
    fn create(&self, bytes: u64) -> Result<u64, Self::Error>;

    /// Takes a handle back. Where it is still mapped, its memory stays until it is unmapped.
    fn release(&self, handle: u64, bytes: u64);

    /// Maps a handle to reserved addresses that have no memory: any work may use it from this call on.
    fn map(&self, address: u64, bytes: u64, handle: u64) -> Result<(), MapFailure<Self::Error>>;

    /// Unmaps a handle, of which no use by these addresses is pending.
    fn unmap(&self, address: u64, bytes: u64) -> Result<(), Self::Error>;

    /// Takes back what a pool has mapped, in the order of `stream`; without one, nothing uses it any more.
    fn end(&self, stream: Option<&Self::Stream>, end: MappedEnd);
}

/// Why a handle is not mapped as it should be.
#[derive(Debug)]
pub struct MapFailure<E> {
    pub error: E,
    /// Whether the addresses are the handle's all the same: what could not be used could not be unmapped either.
    pub is_mapped: bool,
}

/// What a pool that ends has mapped.
#[derive(Debug, Default)]
pub struct MappedEnd {
    /// Handles: address, bytes, and the handle.
    pub handles: Vec<(u64, u64, u64)>,
    /// Further addresses of such handles.
    pub vacated: Vec<(u64, u64)>,
    /// Reservations that have nothing else: address and bytes.
    pub reservations: Vec<(u64, u64)>,
}

/// Why a pool did not allocate.
#[derive(Debug)]
pub enum Failure<E> {
    /// A call of the driver or of the upstream resource failed.
    Upstream(E),
    /// No step of the policy found memory. With the upstream's last answer, if it was asked.
    Exhausted(Option<E>),
    /// The stream is recording a graph that was not declared to the pool.
    Captured,
    /// The stream that freed the memory is gone, and no event tells when its work is done.
    Gone,
    /// There are more streams than a pool can tell apart.
    Crowded,
    /// The pool sleeps.
    Asleep,
}

impl<E> From<E> for Failure<E> {
    fn from(error: E) -> Self {
        Self::Upstream(error)
    }
}

/// A request that no step without a wait of the host has served.
#[derive(Debug)]
pub struct Unserved<'a, E> {
    pub bytes: usize,
    pub align: u64,
    /// The upstream's last answer, if it was asked.
    pub error: Option<&'a E>,
    /// How often the callback was asked about it, with this time.
    pub attempt: u32,
}

/// What a callback has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// There is none, or it has nothing to give.
    No,
    /// It asks for a retry, and nothing more is free than before. It is not asked again.
    Last,
    /// It asks for a retry, and more is free.
    Again,
}

/// What happened, for statistics. Relaxed: numbers for people.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) misses: AtomicUsize,
    pub(super) steals: AtomicUsize,
    pub(super) records: AtomicUsize,
    pub(super) waits: AtomicUsize,
    pub(super) growths: AtomicUsize,
    pub(super) returns: AtomicUsize,
}

pub(super) fn count(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// An upstream whose records and waits are counted.
pub(super) struct Counted<U> {
    pub(super) inner: U,
    pub(super) counters: Counters,
}

impl<U> Deref for Counted<U> {
    type Target = U;

    #[inline]
    fn deref(&self) -> &U {
        &self.inner
    }
}

impl<U: Upstream> Counted<U> {
    pub(super) fn record(&self, stream: &U::Stream) -> Result<U::Event, U::Error> {
        let event = self.inner.record(stream)?;
        count(&self.counters.records);
        Ok(event)
    }

    pub(super) fn record_again(
        &self,
        stream: &U::Stream,
        event: &mut U::Event,
    ) -> Result<(), U::Error> {
        self.inner.record_again(stream, event)?;
        count(&self.counters.records);
        Ok(())
    }

    pub(super) fn wait(&self, stream: &U::Stream, event: &U::Event) -> Result<(), U::Error> {
        self.inner.wait(stream, event)?;
        count(&self.counters.waits);
        Ok(())
    }
}
