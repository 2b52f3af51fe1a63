//! Graphs that share memory.

use crate::support::simulated;
use crate::table::Table;
use aquifer::sim::SimConfig;
use aquifer::{CudaResource, DeviceVec, PoolResource, Result, Stream, stream::Graph};

fn launch(graph: &Graph, stream: &Stream) -> Result<()> {
    // SAFETY: what was recorded touches memory that the graph keeps, and nothing reads it.
    unsafe { graph.launch(stream) }
}

pub(crate) fn rows(table: &mut Table) {
    let (device, _) = simulated(SimConfig::default());
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let graph_pool = pool.graph_pool().unwrap();
    let make = |stream: &Stream| DeviceVec::<u8>::zeroed_in(stream, 1000, pool.clone());
    let (first, ()) = stream.capture_in(&graph_pool, |stream| make(stream).map(drop)).unwrap();
    let (_second, left) = stream.capture_in(&graph_pool, make).unwrap();
    table.failed("a launch over a vector that another graph has left", launch(&first, &stream));
    drop(left);
    let refused = stream.capture(&pool, |_| Ok(launch(&first, &other))).unwrap().1;
    table.failed("a launch behind a vector whose stream is in capture", refused);
    let many: Vec<_> = (1..65_536).map(|_| pool.graph_pool().unwrap()).collect();
    table.failed("one graph pool too many", pool.graph_pool());
    table.failed("a graph without room for its memory", stream.capture(&pool, |_| Ok(())));
    drop(many);
}
