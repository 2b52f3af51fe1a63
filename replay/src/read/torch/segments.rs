//! The blocks of the segments: what was in use when the snapshot was taken.

use super::super::ReadError;
use super::super::error::brief;
use super::super::pickle::{Id, Value};
use super::place::{Dict, Place};
use super::{Snapshot, is_private};
use crate::warning::{Named, Part, Tally, Warning};
use std::collections::HashSet;

/// A block in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) address: u64,
    /// Bytes that it has.
    pub(super) size: u64,
    /// Bytes that were asked.
    pub(super) asked: u64,
    /// The stream's handle.
    pub(super) stream: u64,
    /// It is a whole segment, whose blocks the snapshot does not have.
    pub(super) is_segment: bool,
}

/// What the segments have of the chosen device, and what is said of the others.
pub(super) struct Segments {
    pub(super) live: Vec<Block>,
    pub(super) warnings: Vec<Warning>,
}

/// The device of each segment, and whether the segment has bytes in use.
pub(super) fn devices(snapshot: &Snapshot<'_, '_>) -> Result<Vec<(i64, bool)>, ReadError> {
    let segments = snapshot.segments.unwrap_or_default().iter().enumerate();
    let of = |(number, id): (usize, &Id)| {
        let place = place(snapshot, number);
        let segment = place.dict(snapshot.pickle.get(*id), "a dict")?;
        let in_use = in_use(snapshot, segment, &place)?;
        Ok((device(snapshot, segment, &place)?, in_use.is_some_and(|bytes| bytes > 0)))
    };
    segments.map(of).collect()
}

fn place<'p>(snapshot: &Snapshot<'p, '_>, number: usize) -> Place<'p> {
    Place { path: snapshot.path, record: None, name: format!("segments[{number}]") }
}

/// A segment's device. Where there is one, the snapshot need not say it.
fn device(
    snapshot: &Snapshot<'_, '_>,
    segment: &Dict,
    place: &Place<'_>,
) -> Result<i64, ReadError> {
    let expected = "a device's number, an int";
    let number = match snapshot.traces.len() {
        0 | 1 => place.optional(snapshot.pickle, segment, "device", expected)?.unwrap_or(0),
        _ => place.number(snapshot.pickle, segment, "device", expected)?,
    };
    Ok(i64::try_from(number).unwrap_or(i64::MAX))
}

/// The bytes in use, as the segment itself has them.
fn in_use(
    snapshot: &Snapshot<'_, '_>,
    segment: &Dict,
    place: &Place<'_>,
) -> Result<Option<u64>, ReadError> {
    let of = |key| place.optional(snapshot.pickle, segment, key, "a size in bytes, an int");
    Ok(of("active_size")?.or(of("allocated_size")?))
}

#[derive(Default)]
struct Told {
    live: Vec<Block>,
    elsewhere: Tally,
    pending: Tally,
    private_live: Tally,
    private_free: Tally,
    whole: Tally,
    disagree: Tally,
    unknown: Named,
}

pub(super) fn read(snapshot: &Snapshot<'_, '_>, chosen: i64) -> Result<Segments, ReadError> {
    let mut told = Told::default();
    // A list of blocks that two segments share would be read again and again.
    let mut seen = HashSet::new();
    for (number, id) in snapshot.segments.unwrap_or_default().iter().enumerate() {
        let place = place(snapshot, number);
        let segment = place.dict(snapshot.pickle.get(*id), "a dict")?;
        if let Some(blocks) = snapshot.pickle.id(segment, "blocks")
            && !seen.insert(blocks)
        {
            return Err(place
                .at("['blocks']")
                .wrong("blocks of its own", "those of another segment"));
        }
        told.segment(snapshot, segment, &place, chosen)?;
    }
    let mut warnings: Vec<Warning> = told.unknown.of(Part::UnknownState).collect();
    let tallies = [
        (told.pending, Part::PendingFree),
        (told.private_live, Part::PrivateLive),
        (told.private_free, Part::PrivateFree),
        (told.whole, Part::NoBlocks),
        (told.disagree, Part::SegmentsDisagree),
        (told.elsewhere, Part::LiveOnOtherDevices),
    ];
    warnings.extend(tallies.into_iter().filter_map(|(tally, part)| tally.of(part)));
    Ok(Segments { live: told.live, warnings })
}

impl Told {
    fn segment(
        &mut self,
        snapshot: &Snapshot<'_, '_>,
        segment: &Dict,
        place: &Place<'_>,
        chosen: i64,
    ) -> Result<(), ReadError> {
        let pickle = snapshot.pickle;
        let is_chosen = device(snapshot, segment, place)? == chosen;
        let in_use = in_use(snapshot, segment, place)?;
        let handle = place.optional(pickle, segment, "stream", "a stream's handle, an int")?;
        let handle = handle.unwrap_or(0);
        let start = || place.number(pickle, segment, "address", "an address, an int");
        let Some(blocks) = pickle.look_up(segment, "blocks") else {
            let size = match in_use {
                Some(size) => size,
                None => place.number(pickle, segment, "total_size", "a size in bytes, an int")?,
            };
            if size > 0 && is_chosen {
                self.whole.add(size);
                let (address, asked) = (start()?, size);
                self.live.push(Block { address, size, asked, stream: handle, is_segment: true });
            } else if size > 0 {
                self.elsewhere.add(size);
            }
            return Ok(());
        };
        let is_private = is_private(pickle, segment, "segment_pool_id");
        // Where a block's address is not told, it is behind the block before.
        let mut next = None;
        let mut of_blocks = 0_u128;
        for (number, id) in
            place.at("['blocks']").list(blocks, "a list of blocks")?.iter().enumerate()
        {
            let place = place.at(&format!("['blocks'][{number}]"));
            let block = place.dict(pickle.get(*id), "a dict")?;
            let number_of = |key| place.optional(pickle, block, key, "an address, an int");
            let size = place.number(pickle, block, "size", "a size in bytes, an int")?;
            let address = match number_of("address")?.or(number_of("addr")?).or(next) {
                Some(address) => address,
                None => start()?,
            };
            next = Some(address.saturating_add(size));
            let state = place.string(pickle, block, "state")?;
            if !state.starts_with("active") {
                if state != "inactive" && is_chosen {
                    self.unknown.at(brief(state)).add(size);
                } else if is_private && is_chosen {
                    self.private_free.add(size);
                }
                continue;
            }
            let asked = asked(snapshot, block, &place)?.unwrap_or(size);
            if !is_chosen {
                self.elsewhere.add(asked);
                continue;
            }
            of_blocks += u128::from(size);
            if state != "active_allocated" {
                self.pending.add(asked);
            }
            if is_private {
                self.private_live.add(asked);
            }
            self.live.push(Block { address, size, asked, stream: handle, is_segment: false });
        }
        let apart = in_use.map_or(0, |bytes| u128::from(bytes).abs_diff(of_blocks));
        if is_chosen && apart > 0 {
            self.disagree.add(u64::try_from(apart).unwrap_or(u64::MAX));
        }
        Ok(())
    }
}

/// The bytes that were asked of a block: in the first versions they are in its history.
fn asked(
    snapshot: &Snapshot<'_, '_>,
    block: &Dict,
    place: &Place<'_>,
) -> Result<Option<u64>, ReadError> {
    let expected = "a size in bytes, an int";
    let asked = place.optional(snapshot.pickle, block, "requested_size", expected)?;
    if asked.is_some_and(|asked| asked > 0) {
        return Ok(asked);
    }
    let Some(Value::List(history)) = snapshot.pickle.look_up(block, "history") else {
        return Ok(None);
    };
    let Some(Value::Dict(first)) = history.first().map(|id| snapshot.pickle.get(*id)) else {
        return Ok(None);
    };
    let asked =
        place.at("['history'][0]").optional(snapshot.pickle, first, "real_size", expected)?;
    Ok(asked.filter(|asked| *asked > 0))
}
