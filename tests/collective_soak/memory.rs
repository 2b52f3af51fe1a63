//! The memory of a rank, and the collectives on it.

use crate::call::{Action, Kind, Place, Share};
use aquifer::{
    Communicator, DeviceBuffer, DeviceSlice, DeviceSliceMut, DeviceVec, Result, Stream,
    collective::Group,
};

/// A vector, or a buffer of as many bytes.
pub(crate) enum Item {
    Vec(DeviceVec<u32>),
    Buffer(DeviceBuffer),
}

impl Item {
    pub(crate) fn view(&self) -> Result<DeviceSlice<'_, u32>> {
        match self {
            Self::Vec(vec) => Ok(vec.as_slice()),
            Self::Buffer(buffer) => buffer.view(),
        }
    }

    pub(crate) fn view_mut(&mut self) -> Result<DeviceSliceMut<'_, u32>> {
        match self {
            Self::Vec(vec) => Ok(vec.as_mut_slice()),
            Self::Buffer(buffer) => buffer.view_mut(),
        }
    }

    pub(crate) fn part_mut(&mut self, place: Place) -> Result<DeviceSliceMut<'_, u32>> {
        self.view_mut()?.into_slice_mut(place.range())
    }

    pub(crate) fn move_to(&mut self, home: &Stream) -> Result<()> {
        match self {
            Self::Vec(vec) => vec.set_stream(home),
            Self::Buffer(buffer) => buffer.set_stream(home),
        }
    }
}

/// A collective of a rank, and the memory that is lent to it.
pub(crate) struct Given<'a> {
    rank: &'a Communicator,
    action: Action,
    send: Option<DeviceSliceMut<'a, u32>>,
    receive: Option<DeviceSliceMut<'a, u32>>,
}

/// Lends memory of a rank to its collectives. None of them have memory in common.
pub(crate) fn lend<'a>(
    rank: &'a Communicator,
    items: &'a mut [Item],
    shares: &[Share],
) -> Result<Vec<Given<'a>>> {
    /// What is not lent of an item: elements from so many on.
    type Rest<'a> = (usize, DeviceSliceMut<'a, u32>);
    let whole = |item: &'a mut Item| Ok(Some((0, item.view_mut()?)));
    let mut rests = items.iter_mut().map(whole).collect::<Result<Vec<Option<Rest<'a>>>>>()?;
    let mut take = |place: Place| -> Result<DeviceSliceMut<'a, u32>> {
        let (start, rest) = rests[place.item].take().expect("places that rise in each item");
        let (_, rest) = rest.into_split_at_mut(place.from - start)?;
        let (taken, rest) = rest.into_split_at_mut(place.length)?;
        rests[place.item] = Some((place.from + place.length, rest));
        Ok(taken)
    };
    let given = shares.iter().map(|share| {
        let send = share.send.map(&mut take).transpose()?;
        let receive = share.receive.map(&mut take).transpose()?;
        Ok(Given { rank, action: share.action, send, receive })
    });
    given.collect()
}

/// Gives a collective to a communicator, or to a group.
macro_rules! give {
    ($given:expr, $to:expr $(, $rank:expr)?) => {
        match ($given.action, &$given.send, &mut $given.receive) {
            (Action::Send(peer), Some(send), None) => $to.send($($rank,)? send, peer),
            (Action::Receive(peer), None, Some(receive)) => $to.receive($($rank,)? receive, peer),
            (Action::All { kind, op, root }, Some(send), Some(receive)) => match kind {
                Kind::AllReduce => $to.all_reduce($($rank,)? send, receive, op),
                Kind::Reduce => $to.reduce($($rank,)? send, receive, op, root),
                Kind::ReduceScatter => $to.reduce_scatter($($rank,)? send, receive, op),
                Kind::Broadcast => $to.broadcast($($rank,)? send, receive, root),
                Kind::AllGather => $to.all_gather($($rank,)? send, receive),
            },
            (Action::All { kind, op, root }, None, Some(data)) => match kind {
                Kind::AllReduce => $to.all_reduce_in_place($($rank,)? data, op),
                Kind::Reduce => $to.reduce_in_place($($rank,)? data, op, root),
                Kind::ReduceScatter => $to.reduce_scatter_in_place($($rank,)? data, op),
                Kind::Broadcast => $to.broadcast_in_place($($rank,)? data, root),
                Kind::AllGather => $to.all_gather_in_place($($rank,)? data),
            },
            _ => unreachable!("a plan lends what an action takes"),
        }
    };
}

/// Gives each collective by itself.
pub(crate) fn run_alone(all: &mut [Given<'_>]) -> Result<()> {
    all.iter_mut().try_for_each(|given| give!(given, given.rank))
}

/// Gives all of them in one group.
pub(crate) fn run_together(all: &mut [Given<'_>]) -> Result<()> {
    let mut group = Group::new();
    for given in all {
        give!(given, group, given.rank)?;
    }
    group.run()
}

/// The function of NCCL's that an action is.
pub(crate) fn function_of(action: Action) -> &'static str {
    match action {
        Action::Send(_) => "ncclSend",
        Action::Receive(_) => "ncclRecv",
        Action::All { kind, .. } => match kind {
            Kind::AllReduce => "ncclAllReduce",
            Kind::Reduce => "ncclReduce",
            Kind::ReduceScatter => "ncclReduceScatter",
            Kind::Broadcast => "ncclBroadcast",
            Kind::AllGather => "ncclAllGather",
        },
    }
}
