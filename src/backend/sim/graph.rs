//! Graphs: captured operations that run as often as somebody launches them.
//!
//! A launch enqueues all of them anew. What was captured on the stream that began the capture goes to
//! the launching stream, what was captured on others to lanes of the graph's own, which the captured
//! records and waits fork and join. So each replay is checked like ordinary work, against what the
//! launching stream is ordered after and inside of the graph too, and the scheduler draws its order.

use super::capture::{Recorded, Step};
use super::enqueue::{self, Request};
use super::ledger::Ledger;
use super::queue::{Record, Work};
use super::report::OpName;
use super::table::Miss;
use super::world::{Held, State};
use super::{capture, order};
use crate::backend::{DriverResult, RawGraph, RawStream};
use crate::error::DriverError;
use crate::sync::Arc;
use std::collections::HashMap;

/// One executable graph.
#[derive(Debug)]
pub(super) struct Graph {
    device: u64,
    recorded: Arc<Recorded>,
    /// The streams on which a launch runs what other streams than the first were given.
    lanes: Vec<u64>,
    /// The end of the last launch: the next one comes after it, whatever stream it is on.
    last: Option<Record>,
}

/// Makes an executable graph of what a capture recorded.
pub(super) fn instantiate(state: &mut State, ledger: &Ledger, recorded: Recorded) -> RawGraph {
    let joined = recorded.members.iter().skip(1);
    let lanes = joined.map(|member| state.add_stream(member.device)).collect();
    let id = state.handle();
    let recorded = Arc::new(recorded);
    state.graphs.insert(id, Graph { device: ledger.device, recorded, lanes, last: None });
    RawGraph(id)
}

/// Enqueues all operations of a graph.
pub(super) fn launch(
    held: &mut Held,
    ledger: &Ledger,
    raw: RawGraph,
    stream: RawStream,
) -> DriverResult<()> {
    let call = "cuGraphLaunch";
    let id = held.stream(ledger, call, stream)?;
    capture::forbid(held, id, call)?;
    let Some(graph) = held.graphs.get(&raw.0).filter(|graph| graph.device == ledger.device) else {
        return Err(DriverError::new(call, DriverError::INVALID_HANDLE));
    };
    let (recorded, last) = (Arc::clone(&graph.recorded), graph.last.clone());
    let lanes: Vec<u64> = std::iter::once(id).chain(graph.lanes.iter().copied()).collect();
    let ledgers = recorded.members.iter().map(|member| {
        let device = held.devices.get(&member.device);
        let gone = || DriverError::new(call, DriverError::CONTEXT_IS_DESTROYED);
        device.map(|device| Arc::clone(&device.ledger)).ok_or_else(gone)
    });
    let ledgers: Vec<Arc<Ledger>> = ledgers.collect::<DriverResult<_>>()?;
    // Before anything is enqueued: half of a graph must not run.
    for node in &recorded.nodes {
        let Step::Work { touches, .. } = &node.step else { continue };
        for touch in touches {
            if matches!(held.table.find(touch), Err(Miss::Unmapped)) {
                let name = node.name.of_graph(raw.0, id);
                return Err(enqueue::unmapped(ledger, name, touch.address, touch.span()));
            }
        }
    }
    if let Some(last) = last {
        order::follow(held, id, OpName::call(call).of_graph(raw.0, id), last);
    }
    let mut points: HashMap<usize, Record> = HashMap::new();
    for (index, node) in recorded.nodes.iter().enumerate() {
        let name = node.name.of_graph(raw.0, id);
        let (Some(&lane), Some(ledger)) = (lanes.get(node.member), ledgers.get(node.member)) else {
            continue;
        };
        match &node.step {
            Step::Record => {
                points.insert(index, order::mark(held, ledger.device, lane, name));
            }
            Step::Wait(point) => {
                if let Some(record) = points.get(point) {
                    order::follow(held, lane, name, record.clone());
                }
            }
            Step::Work { touches, watched, plan } => {
                let request = Request {
                    name,
                    touches,
                    watched: *watched,
                    plan: plan.clone(),
                    host: None,
                    refused: Work::Nothing,
                };
                enqueue::enqueue(held, ledger, lane, request)?;
            }
        }
    }
    let end = order::mark(held, ledger.device, id, OpName::call(call).of_graph(raw.0, id));
    if let Some(graph) = held.graphs.get_mut(&raw.0) {
        graph.last = Some(end);
    }
    Ok(())
}

/// Ends a graph. Launches that are queued stay.
pub(super) fn destroy(state: &mut State, ledger: &Ledger, raw: RawGraph) -> DriverResult<()> {
    let own = |graph: &&Graph| graph.device == ledger.device;
    if state.graphs.get(&raw.0).filter(own).is_none() {
        return Err(DriverError::new("cuGraphExecDestroy", DriverError::INVALID_HANDLE));
    }
    let lanes = state.graphs.remove(&raw.0).map(|graph| graph.lanes);
    for lane in lanes.into_iter().flatten() {
        if let Some(stream) = state.streams.get_mut(&lane) {
            stream.destroyed = true;
        }
        state.prune(lane);
    }
    Ok(())
}

/// Forgets the graphs of a device that is closed, and their lanes on others.
pub(super) fn close(state: &mut State, device: u64) {
    let State { graphs, streams, .. } = state;
    graphs.retain(|_, graph| {
        if graph.device == device {
            for lane in &graph.lanes {
                if let Some(stream) = streams.get_mut(lane) {
                    stream.destroyed = true;
                }
            }
        }
        graph.device != device
    });
}
