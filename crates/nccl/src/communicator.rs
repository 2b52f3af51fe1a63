//! The handle of one rank.

use super::id::CommunicatorId;
use super::rank::{Rank, lost};
use crate::device::Device;
use crate::device_calls::calls_of;
use crate::driver::{CallSite, is_in_host_function};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::setters;
use crate::inside::deferred;
use crate::inside::{DeviceInside, StreamInside};
use crate::resource::asleep::{Collectives, watch_collectives};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::trusted::channel::{self, RecvTimeoutError};
use aquifer_collective::{CollectiveResult, RawCommunicator, UniqueId};
use std::any::Any;
use std::fmt;
use std::time::Duration;

/// One rank of a communicator, for collectives of several devices on vectors, by NCCL.
///
/// Each rank has a stream, on which its collectives run in the order of the calls. The memory that
/// they read and write may be at home on any stream of the device. The order of both is kept as for
/// [`DeviceVec::on`](crate::DeviceVec::on). All ranks make the same calls in the same order. Ranks may
/// be threads of one process, processes, or machines. A thread that has several ranks makes their
/// calls in one [`Group`](crate::Group).
///
/// A rank is never more than 256 collectives ahead of its device. A call that would be the next one
/// waits for the device, no longer than the [`timeout`](CommunicatorOptions::timeout). On a GPU the
/// queue would be full at some later call, which waits without an end if a rank is lost. A
/// [`Group`](crate::Group) counts as all its collectives, and may be longer than that, as its
/// documentation says. No other call of a collective waits for the device.
///
/// On a GPU, NCCL is looked for when the first communicator is made. A call may wait on the host for
/// the same call of other ranks, the first ones above all. No other call on this communicator goes on
/// meanwhile. On the simulated device the ranks are threads of one process, or one thread. The
/// simulated device compares their calls.
///
/// # When a rank is lost
///
/// The work that the stream was given then waits for the lost rank, and so does all work behind it.
/// [`synchronize`](Self::synchronize) waits no longer than it is told, aborts the communicator and
/// says so by [`ErrorKind::CommunicatorLost`](crate::ErrorKind::CommunicatorLost). So does a call that
/// NCCL says is of no use any more. Call `synchronize` before you read the results of collectives,
/// since a read does not know that a rank was lost. If the communicator was aborted, or another rank
/// has left, the read gives whatever is there. That may be this rank's own part. On the
/// simulated device a wait that has no time of its own gives a
/// [`LostRank`](crate::sim::Violation::LostRank) report after a while. After an abort
/// the stream goes on, and vectors can be dropped. They can be used once the other
/// ranks have aborted theirs. The results of a collective may be written in part.
/// Every later call gives the same error. The other ranks find out by their own waits.
///
/// # The end
///
/// A drop waits until the stream has passed the collectives, no longer than the
/// [`timeout`](CommunicatorOptions::timeout), and aborts the communicator otherwise, or while a panic unwinds.
///
/// ```
/// use aquifer::{Communicator, Device, DeviceVec, collective::ReduceOp, sim::SimConfig};
///
/// // One thread with two ranks.
/// let devices = [0, 1].map(|n| Device::simulated(SimConfig::default().ordinal(n)));
/// let streams = [devices[0].new_stream()?, devices[1].new_stream()?];
/// // SAFETY: both ranks give the same collectives.
/// let ranks = unsafe { Communicator::from_streams(&streams)? };
/// let mut sums = Vec::new();
/// for (n, stream) in streams.iter().enumerate() {
///     sums.push(DeviceVec::from_slice(stream, &[n as f32 + 1.0; 4])?);
/// }
/// let mut group = aquifer::collective::Group::new();
/// for (rank, sum) in ranks.iter().zip(&mut sums) {
///     group.all_reduce_in_place(rank, sum, ReduceOp::Sum)?;
/// }
/// group.run()?;
/// ranks[1].synchronize(std::time::Duration::from_secs(60))?;
/// assert_eq!(sums[1].to_vec()?, [3.0; 4]);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct Communicator {
    /// Shared with the adaptors that register memory with it, which do not keep it from ending.
    pub(super) rank: Arc<Rank>,
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if is_in_host_function() {
            let rank = self.rank.clone();
            return deferred::defer_to_program(move || rank.end());
        }
        self.rank.end();
    }
}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Communicator>();
};

/// The options of a rank that joins, from [`Communicator::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct CommunicatorOptions {
    streams: Vec<Stream>,
    timeout: Duration,
}

impl CommunicatorOptions {
    setters! {
        /// The longest wait for the other ranks. It holds when they join. It also holds for
        /// collectives that have not run when the communicator is dropped or the device is too far
        /// behind. The default is ten minutes.
        timeout: Duration;
    }

    /// Joins as rank number `rank` of `ranks`, and waits until all have.
    ///
    /// # Errors
    ///
    /// The errors of [`Communicator::new`].
    ///
    /// # Safety
    ///
    /// The conditions of [`Communicator::new`] hold.
    #[track_caller]
    pub unsafe fn join(
        self,
        id: &CommunicatorId,
        rank: usize,
        ranks: usize,
    ) -> Result<Communicator> {
        let _site = CallSite::enter();
        let mut joined = self.join_from(id, rank, ranks)?;
        joined.pop().ok_or_else(|| lost(String::from("no rank has joined")))
    }

    /// Joins with one rank for each stream, from number `first` on.
    fn join_from(
        self,
        id: &CommunicatorId,
        first: usize,
        ranks: usize,
    ) -> Result<Vec<Communicator>> {
        let Self { streams, timeout } = self;
        let last = first.saturating_add(streams.len().saturating_sub(1));
        ensure!(
            last < ranks && ranks <= i32::MAX as usize,
            InvalidArgument,
            "number the ranks from 0, all below their count",
            "rank {last} among {ranks} was to join a communicator"
        );
        let devices: Vec<Device> = streams.iter().map(|stream| stream.device().clone()).collect();
        let raw = join_within(timeout, devices, first, ranks, *id.as_bytes())?;
        let ranks = streams.into_iter().zip(raw).enumerate().map(|(at, (stream, raw))| {
            let rank = Arc::new(Rank::new(stream, first + at, ranks, timeout, raw));
            let watched: Arc<dyn Collectives> = rank.clone();
            watch_collectives(rank.device(), Arc::downgrade(&watched));
            Communicator { rank }
        });
        Ok(ranks.collect())
    }
}

/// Joins on a thread of its own, since NCCL waits for the other ranks without an end. The thread
/// aborts the ranks that joined when nobody waits any more.
fn join_within(
    timeout: Duration,
    devices: Vec<Device>,
    first: usize,
    ranks: usize,
    id: UniqueId,
) -> Result<Vec<RawCommunicator>> {
    let wanted = format!("joining a communicator as rank {first} among {ranks}");
    // The devices come back, so that none ends on the thread.
    type Joined = (Vec<Device>, CollectiveResult<Vec<RawCommunicator>>);
    let (sender, receiver) = channel::bounded::<Joined>(0);
    let join = move || {
        let joined = join_ranks(&devices, first, ranks, &id);
        let Err(unwanted) = sender.send((devices, joined)) else { return };
        let (devices, joined) = unwanted.into_inner();
        for (device, raw) in devices.iter().zip(joined.into_iter().flatten()) {
            // SAFETY: joined just now, and given to nobody.
            let _ = calls_of(device).and_then(|calls| unsafe { calls.communicator_abort(raw) });
        }
    };
    let thread = std::thread::Builder::new().name(String::from("aquifer communicator"));
    if let Err(error) = thread.spawn(join) {
        return Err(Error::new(ErrorKind::Io, wanted)
            .with_cause(error)
            .with_advice("end a thread: the process can have no more"));
    }
    match receiver.recv_timeout(timeout) {
        Ok((_, joined)) => joined.map_err(|error| error.into_error(wanted)),
        Err(RecvTimeoutError::Timeout) => {
            let what = format!("{wanted}: not all of them came within {timeout:?}");
            Err(lost(what).with_advice(
                "start all ranks with one id, of their own and not used before, and with the same number of ranks",
            ))
        }
        Err(RecvTimeoutError::Disconnected) => Err(lost(format!("{wanted}: the thread died"))),
    }
}

fn join_ranks(
    devices: &[Device],
    first: usize,
    ranks: usize,
    id: &UniqueId,
) -> CollectiveResult<Vec<RawCommunicator>> {
    let Some(device) = devices.first() else { return Ok(Vec::new()) };
    let members: Vec<(&dyn Any, usize)> = devices
        .iter()
        .zip(first..)
        .map(|(device, rank)| (device.driver().as_any(), rank))
        .collect();
    calls_of(device)?.join_ranks(&members, ranks, id)
}

impl Communicator {
    /// Joins as rank number `rank` of `ranks`, whose collectives run on `stream`. Waits until all
    /// ranks have joined, ten minutes at most.
    ///
    /// ```
    /// use aquifer::{
    ///     Communicator, Device, DeviceVec, collective::{CommunicatorId, ReduceOp}, sim::SimConfig,
    /// };
    ///
    /// // A thread for each rank.
    /// let id = CommunicatorId::new(&Device::simulated(SimConfig::default()))?;
    /// let rank = |rank: usize| -> aquifer::Result<Vec<f32>> {
    ///     let device = Device::simulated(SimConfig::default().ordinal(rank));
    ///     let stream = device.new_stream()?;
    ///     // SAFETY: both ranks run this very function.
    ///     let communicator = unsafe { Communicator::new(&stream, &id, rank, 2)? };
    ///     let mut sum = DeviceVec::from_slice(&stream, &[rank as f32 + 1.0])?;
    ///     communicator.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
    ///     communicator.synchronize(std::time::Duration::from_secs(60))?;
    ///     sum.to_vec()
    /// };
    /// let (one, other) = std::thread::scope(|threads| {
    ///     let other = threads.spawn(|| rank(1));
    ///     (rank(0), other.join().unwrap())
    /// });
    /// assert_eq!((one?, other?), (vec![3.0], vec![3.0]));
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a GPU where NCCL is not installed.
    /// - [`ErrorKind::CommunicatorLost`](crate::ErrorKind::CommunicatorLost) if a rank
    ///   does not come, or fails.
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if `rank` is not below `ranks`.
    ///
    /// # Safety
    ///
    /// NCCL does not compare the requests of the ranks, and writes a longer part past the end of a
    /// shorter one. So, until this communicator has ended:
    ///
    /// - All ranks give the same collectives in the same order, with the same lengths, types,
    ///   operators and roots. A send and its receive have the same length.
    /// - If a rank is lost or aborted, the others abort theirs, or end, before memory that
    ///   its unfinished collectives use is used again. A collective that another rank
    ///   began late may still write there.
    /// - If one rank gives a collective memory that is registered
    ///   ([`RegisteringAdaptor`](crate::RegisteringAdaptor)), all ranks do. NCCL does not
    ///   define a mixture.
    ///
    /// The simulated device compares the requests and reports differences.
    #[track_caller]
    pub unsafe fn new(
        stream: &Stream,
        id: &CommunicatorId,
        rank: usize,
        ranks: usize,
    ) -> Result<Self> {
        // SAFETY: the caller's promise, unchanged.
        unsafe { Self::builder(stream).join(id, rank, ranks) }
    }

    /// The options.
    pub fn builder(stream: &Stream) -> CommunicatorOptions {
        CommunicatorOptions { streams: vec![stream.clone()], timeout: Duration::from_secs(600) }
    }

    /// All ranks of a new communicator, one for each stream, for a program that has them in one process. The streams are
    /// of different devices.
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new), and
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for no
    /// stream, or two of one device.
    ///
    /// # Safety
    ///
    /// The conditions of [`new`](Self::new) hold.
    #[track_caller]
    pub unsafe fn from_streams(streams: &[Stream]) -> Result<Vec<Self>> {
        let _site = CallSite::enter();
        let Some(first) = streams.first() else {
            let what = "a communicator of no ranks was asked";
            return Err(Error::new(ErrorKind::InvalidArgument, what)
                .with_advice("give a stream for each rank"));
        };
        for (at, stream) in streams.iter().enumerate() {
            let device = stream.device();
            let is_twice = streams[..at].iter().any(|other| other.device() == device);
            ensure!(
                !is_twice,
                InvalidArgument,
                "give one stream of each device",
                "two ranks of a communicator were to be on {device}"
            );
            first.device().require_kind(device)?;
        }
        let id = CommunicatorId::new(first.device())?;
        let options = CommunicatorOptions { streams: streams.to_vec(), ..Self::builder(first) };
        options.join_from(&id, 0, streams.len())
    }

    /// This rank's number, from 0 on.
    pub fn rank(&self) -> usize {
        self.rank.number
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.rank.ranks
    }

    /// The stream on which this rank's collectives run.
    pub fn stream(&self) -> &Stream {
        &self.rank.stream
    }

    /// The device of this rank.
    pub fn device(&self) -> &Device {
        self.rank.device()
    }

    /// The error of memory at home on a stream of another device.
    #[inline]
    pub(super) fn require_device_of(&self, home: &Stream) -> Result<()> {
        if home == self.stream() {
            return Ok(());
        }
        self.device().require(home.device(), "the memory")
    }

    /// Waits until the stream has passed all collectives that it was given, for so long at most, and then asks NCCL
    /// whether all is well. Otherwise the communicator is aborted, which waits for the call of another thread on this rank,
    /// if one goes on.
    ///
    /// ```
    /// use aquifer::{Communicator, Device, ErrorKind, sim::SimConfig};
    /// use std::time::Duration;
    ///
    /// let devices = [0, 1].map(|n| Device::simulated(SimConfig::default().ordinal(n)));
    /// let streams = [devices[0].new_stream()?, devices[1].new_stream()?];
    /// // SAFETY: the other rank gives no collective, and ends.
    /// let mut ranks = unsafe { Communicator::from_streams(&streams)? };
    /// let mut one = aquifer::DeviceVec::<f32>::zeroed(&streams[0], 8)?;
    /// ranks[0].broadcast_in_place(&mut one, 1)?;
    /// ranks.pop(); // the other rank is gone
    /// let error = ranks[0].synchronize(Duration::from_secs(5)).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::CommunicatorLost);
    /// drop(one); // nothing waits for the lost rank any more
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::CommunicatorLost`](crate::ErrorKind::CommunicatorLost) where another rank
    ///   failed, or the time is over.
    /// - [`ErrorKind::Capture`](crate::ErrorKind::Capture) while the stream is in capture.
    /// - The errors of the driver.
    #[track_caller]
    pub fn synchronize(&self, timeout: Duration) -> Result<()> {
        let _site = CallSite::enter();
        let call = self.stream().begin_call()?;
        call.refuse_capture("waiting for collectives")?;
        // Else what was given before would count as ahead until a mark behind later work has passed. Not waited for: another
        // thread's call may have the lock until the other ranks come.
        if let Some(mut state) = self.rank.try_lock() {
            state.mark_all(&call)?;
        }
        let event = call.record()?;
        drop(call);
        self.rank.wait(&event, timeout)
    }

    /// Asks NCCL whether all is well. Waits for no device.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CommunicatorLost`](crate::ErrorKind::CommunicatorLost) if it is not. The
    /// communicator is aborted then.
    pub fn check(&self) -> Result<()> {
        self.rank.check()
    }

    /// Ends the communicator. The work that its stream was given ends without a result, and each later call is
    /// [`ErrorKind::CommunicatorLost`](crate::ErrorKind::CommunicatorLost). Other ranks find out by their own waits.
    ///
    /// Waits for the call of another thread on this rank, if one goes on, since NCCL takes no second one. Inside of a host
    /// function, a later call of the program does it.
    pub fn abort(&self) {
        let what = format!("rank {} among {} ranks was aborted", self.rank(), self.ranks());
        if is_in_host_function() {
            let rank = self.rank.clone();
            return deferred::defer_to_program(move || drop(rank.abort(lost(what))));
        }
        self.rank.abort(lost(what));
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank())
            .field("ranks", &self.ranks())
            .field("stream", self.stream())
            .finish()
    }
}
