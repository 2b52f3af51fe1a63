//! What a pool stands on: streams that can be ordered, and memory below.

use std::fmt;

/// The driver calls and the memory of one pool. The crate has one implementation, over
/// `DeviceResource`; the models of `loom_tests/` have another, whose streams are vector clocks.
pub trait Upstream: Send + Sync + 'static {
    type Stream: Clone + Send + Sync + 'static;
    type Event: Send;
    /// A block of the memory below.
    type Range: Send;
    type Error: fmt::Display;

    /// The stream's number, never used twice.
    fn id(stream: &Self::Stream) -> u64;

    /// A handle for the pool to keep.
    fn keep(stream: &Self::Stream) -> Self::Stream;

    /// Whether pools alone hold this stream. If so, nobody else will from now on.
    fn is_abandoned(stream: &Self::Stream) -> bool;

    /// Lets go of what [`keep`](Self::keep) gave.
    fn let_go(stream: Self::Stream);

    /// An event behind all that the stream was given so far; `spare` is used again.
    fn record(
        &self,
        stream: &Self::Stream,
        spare: Option<Self::Event>,
    ) -> Result<Self::Event, Self::Error>;

    /// Makes the stream wait for the event.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), Self::Error>;

    /// Whether the device has passed the event.
    fn is_passed(&self, event: &Self::Event) -> Result<bool, Self::Error>;

    /// Blocks until the device has passed the event.
    fn synchronize(&self, event: &Self::Event) -> Result<(), Self::Error>;

    /// Whether the stream is recording a graph.
    fn is_capturing(&self, stream: &Self::Stream) -> Result<bool, Self::Error>;

    /// The error of a stream that is not of the memory's device.
    fn check(&self, stream: &Self::Stream) -> Result<(), Self::Error>;

    /// Memory that work on `stream` may use from this call on; that any work may use, without one.
    fn obtain(
        &self,
        stream: Option<&Self::Stream>,
        bytes: usize,
    ) -> Result<(u64, Self::Range), Self::Error>;

    /// Whether this error says that there is no more memory.
    fn is_exhausted(error: &Self::Error) -> bool;

    /// Takes memory back in the order of `stream`; without one, nothing uses it any more.
    fn give_back(&self, stream: Option<&Self::Stream>, range: Self::Range);

    /// The pool ends, and so many bytes do not go back: users hold blocks of them still
    /// ([`Failure::Exhausted`]), or no stream could be made to wait for their last work.
    fn leaked(&self, bytes: usize, why: &Failure<Self::Error>);

    /// The device's ordinal, for people.
    fn device(&self) -> usize {
        0
    }

    /// Whether this is the child of a fork, where no lock may be taken and no driver called.
    fn is_forked(&self) -> bool;
}

/// Why a pool did not allocate.
#[derive(Debug)]
pub enum Failure<E> {
    /// A call of the driver or of the upstream resource failed.
    Upstream(E),
    /// No rung of the policy found memory. With the upstream's last answer, if it was asked.
    Exhausted(Option<E>),
    /// The stream is recording a graph that the pool was not told of.
    Captured,
    /// The stream that freed the memory is gone, and no event tells when its work is done.
    Gone,
    /// There are more streams than a pool can tell apart.
    Crowded,
}

impl<E> From<E> for Failure<E> {
    fn from(error: E) -> Self {
        Self::Upstream(error)
    }
}
