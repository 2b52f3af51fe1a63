//! What memory that moves between host and device can be told. Here it lies where it lies.

use super::capture;
use super::ledger::Ledger;
use super::queue::{Op, Work};
use super::report::OpName;
use super::table::Kind;
use super::world::{Held, State};
use crate::backend::{DeviceAddress, DriverResult, RawStream};
use crate::error::DriverError;

/// Whether all of the range can move.
fn moves(state: &State, ledger: &Ledger, address: DeviceAddress, bytes: usize) -> bool {
    state.table.around(address).is_some_and(|(start, block)| {
        let right =
            matches!(block.kind, Kind::Managed | Kind::Pageable) && block.reaches(ledger.device);
        right && bytes > 0 && bytes as u64 <= block.bytes - (address - start)
    })
}

/// Heard, and nothing more.
pub(super) fn advise(
    state: &State,
    ledger: &Ledger,
    address: DeviceAddress,
    bytes: usize,
) -> DriverResult<()> {
    if moves(state, ledger, address, bytes) {
        return Ok(());
    }
    Err(DriverError::new("cuMemAdvise", DriverError::INVALID_VALUE))
}

/// Takes its place in the stream's order, and does nothing there.
pub(super) fn prefetch(
    held: &mut Held,
    ledger: &Ledger,
    address: DeviceAddress,
    bytes: usize,
    stream: RawStream,
) -> DriverResult<()> {
    let call = "cuMemPrefetchAsync";
    let id = held.stream(ledger, call, stream)?;
    capture::forbid(held, id, call)?;
    if !moves(held, ledger, address, bytes) {
        return Err(DriverError::new(call, DriverError::INVALID_VALUE));
    }
    let (name, tick) = (OpName::on(call, id), held.tick(id));
    held.push(id, Op { name, tick, work: Work::Nothing, holds: Vec::new(), watched: None });
    Ok(())
}
