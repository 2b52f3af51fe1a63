//! The collectives. Each is a method of a communicator, which runs it at once, and of a group.

use super::communicator::Communicator;
use super::element::ReduceElement;
use super::request::Request;
use crate::container::{DeviceRead, DeviceWrite};
use crate::driver::CallSite;
use crate::error::Result;
use aquifer_collective::ReduceOp;
use bytemuck::Pod;
use std::fmt;

/// Collectives that are given to their streams together, by `ncclGroupStart` and `ncclGroupEnd`.
///
/// A send and a receive that wait for each other belong into one group, and so do the calls of one thread that has
/// several ranks. The group borrows the memory until it is [run](Self::run), which orders all
/// streams. Nothing happens before that, or if the group is dropped. Its methods are those of
/// [`Communicator`], with the rank first.
///
/// All ranks group their collectives in the same way. NCCL arranges a group as a whole, so ranks
/// that differ may wait for each other without an end, or fail. For the same reason a group is
/// never given in parts, however long it is.
///
/// # How far a rank is ahead
///
/// A group counts as all the collectives that it has of a rank. It waits before it is given until
/// these and the collectives that the rank has ahead of its device are 256 at most. A group with
/// more of one rank waits until that rank has nothing ahead. Later collectives then wait until the
/// device has passed the group. So a rank is ahead of its device by 256 collectives or by
/// one group, whichever is more. Each of these waits takes no longer than the [`timeout`](crate::CommunicatorOptions::timeout)
/// of the rank. A group that has waited waits again where another thread has given the rank
/// collectives meanwhile. Keep a group short where a rank may be lost. If a group is too long for the
/// queue of the GPU, NCCL has the host wait in it, and does not return until the other ranks come.
///
/// ```
/// use aquifer::{Communicator, Device, DeviceVec, collective::Group, sim::SimConfig};
///
/// let devices = [0, 1].map(|n| Device::simulated(SimConfig::default().ordinal(n)));
/// let streams = [devices[0].new_stream()?, devices[1].new_stream()?];
/// // SAFETY: the send and its receive have one length.
/// let ranks = unsafe { Communicator::from_streams(&streams)? };
/// let sent = DeviceVec::from_slice(&streams[0], &[1_u16, 2, 3])?;
/// let mut received = DeviceVec::<u16>::zeroed(&streams[1], 3)?;
/// let mut group = Group::new();
/// group.send(&ranks[0], &sent, 1)?;
/// group.receive(&ranks[1], &mut received, 0)?;
/// group.run()?;
/// assert_eq!(received.to_vec()?, [1, 2, 3]);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[must_use = "a group does nothing until it is run"]
#[derive(Default)]
pub struct Group<'a> {
    requests: Vec<Request<'a>>,
}

impl Group<'_> {
    /// An empty group.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of collectives in it.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Gives all of them to their streams. These wait for the home streams of the memory that they
    /// use. The homes wait for them before they next write or free it. The call may wait on the host
    /// for the calls of other ranks. It also waits where a rank is
    /// [too far ahead](Self#how-far-a-rank-is-ahead) of its device.
    ///
    /// # Errors
    ///
    /// The errors of [`Communicator::all_reduce`]. If a call of NCCL failed, the error is
    /// one of all ranks of the group.
    #[track_caller]
    pub fn run(self) -> Result<()> {
        let _site = CallSite::enter();
        Request::run_all(&self.requests)
    }
}

impl<'a> Group<'a> {
    fn push(&mut self, request: Request<'a>) -> Result<()> {
        if let Some(first) = self.requests.first() {
            first.require_same_kind(&request)?;
        }
        self.requests.push(request);
        Ok(())
    }
}

impl fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Makes of each collective a method of [`Communicator`] and one of [`Group`].
macro_rules! collectives {
    ($(
        $(#[$doc:meta])*
        fn $name:ident<T: $bound:ident>(
            $(read $read:ident)? $(write $written:ident)? $(, $argument:ident: $type:ty)*
        );
    )+) => {
        impl Communicator {
            $(
                $(#[$doc])*
                #[track_caller]
                pub fn $name<T: $bound>(
                    &self,
                    $($read: &impl DeviceRead<T>,)?
                    $($written: &mut impl DeviceWrite<T>,)?
                    $($argument: $type,)*
                ) -> Result<()> {
                    let _site = CallSite::enter();
                    Request::$name(
                        self,
                        $(&$read.as_device_slice(),)?
                        $(&$written.as_device_slice_mut(),)?
                        $($argument,)*
                    )?
                    .run()
                }
            )+
        }

        impl<'a> Group<'a> {
            $(
                #[doc = concat!("As [`Communicator::", stringify!($name), "`], when the group is run.")]
                ///
                /// # Errors
                ///
                /// The errors of the lengths, the ranks and the device.
                pub fn $name<T: $bound>(
                    &mut self,
                    communicator: &'a Communicator,
                    $($read: &'a impl DeviceRead<T>,)?
                    $($written: &'a mut impl DeviceWrite<T>,)?
                    $($argument: $type,)*
                ) -> Result<()> {
                    let request = Request::$name(
                        communicator,
                        $(&$read.as_device_slice(),)?
                        $(&$written.as_device_slice_mut(),)?
                        $($argument,)*
                    )?;
                    self.push(request)
                }
            )+
        }
    };
}

collectives! {
    /// Reduces the data of all ranks, element by element, and gives the result to all.
    ///
    /// The call may wait on the host for the same call of other ranks, and where the device is far
    /// behind. See [`Communicator`].
    ///
    /// ```
    /// use aquifer::{Communicator, Device, DeviceVec, collective::ReduceOp, sim::SimConfig};
    ///
    /// let stream = Device::simulated(SimConfig::default()).new_stream()?;
    /// // SAFETY: one rank has nothing to agree with.
    /// let ranks = unsafe { Communicator::from_streams(std::slice::from_ref(&stream))? };
    /// let send = DeviceVec::from_slice(&stream, &[1.0_f32, 2.0])?;
    /// let mut receive = DeviceVec::<f32>::zeroed(&stream, 2)?;
    /// ranks[0].all_reduce(&send, &mut receive, ReduceOp::Sum)?;
    /// assert_eq!(receive.to_vec()?, [1.0, 2.0]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::LengthMismatch`](crate::ErrorKind::LengthMismatch) where lengths of
    ///   this rank do not fit.
    /// - [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice) for memory of
    ///   another device than the rank's.
    /// - [`ErrorKind::CommunicatorLost`](crate::ErrorKind::CommunicatorLost) if a rank
    ///   failed, or this one was aborted.
    /// - [`ErrorKind::Capture`](crate::ErrorKind::Capture) where the rank's stream or a
    ///   home is in capture.
    /// - [`ErrorKind::Simulation`](crate::ErrorKind::Simulation) on the simulated device where another
    ///   rank calls another collective, or one of another length.
    /// - The errors of the driver.
    fn all_reduce<T: ReduceElement>(read send write receive, op: ReduceOp);

    /// Like [`all_reduce`](Self::all_reduce), in place.
    ///
    /// # Errors
    ///
    /// The errors of [`all_reduce`](Self::all_reduce).
    fn all_reduce_in_place<T: ReduceElement>(write data, op: ReduceOp);

    /// Reduces the data of all ranks, and gives the result to rank `root` alone. The others' `receive`
    /// is not used, and may be empty.
    ///
    /// # Errors
    ///
    /// The errors of [`all_reduce`](Self::all_reduce), and
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a rank that does not exist.
    fn reduce<T: ReduceElement>(read send write receive, op: ReduceOp, root: usize);

    /// Like [`reduce`](Self::reduce), in place. The data of ranks other than `root` keeps its elements.
    ///
    /// # Errors
    ///
    /// The errors of [`reduce`](Self::reduce).
    fn reduce_in_place<T: ReduceElement>(write data, op: ReduceOp, root: usize);

    /// Reduces the data of all ranks, and gives each rank its part of the result. Rank 0 gets the
    /// first part. `send` is as long as the parts of all ranks.
    ///
    /// # Errors
    ///
    /// The errors of [`all_reduce`](Self::all_reduce).
    fn reduce_scatter<T: ReduceElement>(read send write receive, op: ReduceOp);

    /// Like [`reduce_scatter`](Self::reduce_scatter), in place. This rank's part of `data` gets the
    /// result. The other parts hold unspecified data then.
    ///
    /// # Errors
    ///
    /// The errors of [`reduce_scatter`](Self::reduce_scatter), and
    /// [`ErrorKind::LengthMismatch`](crate::ErrorKind::LengthMismatch) for a length that the
    /// number of ranks does not divide.
    fn reduce_scatter_in_place<T: ReduceElement>(write data, op: ReduceOp);

    /// Gives the data of rank `root` to all ranks. The others' `send` is not used, and may be empty.
    ///
    /// # Errors
    ///
    /// The errors of [`reduce`](Self::reduce).
    fn broadcast<T: Pod>(read send write receive, root: usize);

    /// Like [`broadcast`](Self::broadcast), in place. Each rank gets the elements of rank `root`.
    ///
    /// # Errors
    ///
    /// The errors of [`broadcast`](Self::broadcast).
    fn broadcast_in_place<T: Pod>(write data, root: usize);

    /// Gives the data of each rank to all ranks, rank 0's first. `receive` is as long as the
    /// parts of all ranks.
    ///
    /// # Errors
    ///
    /// The errors of [`all_reduce`](Self::all_reduce).
    fn all_gather<T: Pod>(read send write receive);

    /// Like [`all_gather`](Self::all_gather), in place. This rank sends its own part of `data`.
    ///
    /// # Errors
    ///
    /// The errors of [`all_gather`](Self::all_gather), and
    /// [`ErrorKind::LengthMismatch`](crate::ErrorKind::LengthMismatch) for a length that the
    /// number of ranks does not divide.
    fn all_gather_in_place<T: Pod>(write data);

    /// Sends to rank `peer`, which [receives](Self::receive) as many bytes. A rank that both sends and
    /// receives does so in one [`Group`], since either alone waits for the other side.
    ///
    /// # Errors
    ///
    /// The errors of [`reduce`](Self::reduce).
    fn send<T: Pod>(read data, peer: usize);

    /// Receives from rank `peer`, which [sends](Self::send) as many bytes.
    ///
    /// # Errors
    ///
    /// The errors of [`reduce`](Self::reduce).
    fn receive<T: Pod>(write data, peer: usize);
}
