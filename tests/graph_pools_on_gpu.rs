//! Graphs that share memory on a GPU: their launches on several streams are right, and what they cost.

#![cfg(feature = "cuda")]

#[path = "support/kernels.rs"]
mod kernels;
mod support;

use aquifer::mr::{CudaResource, VirtualResource};
use aquifer::{
    Device, DeviceResource, DeviceVec, LaunchConfig, PoolResource, Stream, stream::Graph,
};
use kernels::ADD_ONE;
use std::time::Instant;

const MIB: usize = 1 << 20;
/// Words of scratch memory: 64 MiB.
const SCRATCH: usize = 16 * MIB;
const GRAPHS: usize = 16;

fn add_one(stream: &Stream, vec: &mut DeviceVec<u32>) -> aquifer::Result<()> {
    let count = vec.len();
    let launch = stream.launch(&ADD_ONE).in_out(vec)?.scalar(count as u32)?;
    // SAFETY: the kernel touches so many elements of the vector.
    unsafe { launch.launch(LaunchConfig::for_elements(count)) }
}

fn launch(graph: &Graph, stream: &Stream) {
    // SAFETY: what was captured lives, and streams are put in order before it is read.
    unsafe { graph.launch(stream) }.unwrap();
}

fn sixteen_graphs<U: DeviceResource + 'static>(
    device: &Device,
    pool: &PoolResource<U>,
    what: &str,
) {
    let streams: Vec<Stream> = (0..3).map(|_| device.new_stream().unwrap()).collect();
    let graph_pool = pool.graph_pool().unwrap();
    let mut outs: Vec<DeviceVec<u32>> = (0..GRAPHS)
        .map(|_| DeviceVec::zeroed_in(&streams[0], SCRATCH, pool.clone()).unwrap())
        .collect();
    let graphs: Vec<Graph> = outs
        .iter_mut()
        .enumerate()
        .map(|(value, out)| {
            let captured = streams[0].capture_in(&graph_pool, |stream| {
                let mut scratch = DeviceVec::zeroed_in(stream, SCRATCH, pool.clone())?;
                scratch.fill(value as u32)?;
                (0..10).try_for_each(|_| add_one(stream, &mut scratch))?;
                out.copy_from(&scratch)
            });
            captured.unwrap().0
        })
        .collect();
    let held = graph_pool.held();
    assert_eq!(held, 4 * SCRATCH, "the scratch memory of one");
    for round in 0..12 {
        for (number, graph) in graphs.iter().enumerate() {
            launch(graph, &streams[(number * 7 + round) % 3]);
        }
        streams.iter().for_each(|stream| streams[0].wait_for(stream).unwrap());
        for (value, out) in outs.iter_mut().enumerate() {
            let found = out.to_vec().unwrap();
            let wrong = found.iter().filter(|it| **it as usize != value + 10).count();
            assert_eq!(wrong, 0, "{what}, round {round}, graph {value}");
            out.fill(0).unwrap();
        }
        streams.iter().for_each(|stream| stream.wait_for(&streams[0]).unwrap());
    }
    eprintln!(
        "graph pools: {what}: {GRAPHS} graphs with {} MiB of scratch memory each hold {} MiB; 0 wrong of {} launches on 3 streams",
        4 * SCRATCH / MIB,
        held / MIB,
        12 * GRAPHS
    );
}

#[test]
fn sixteen_graphs_in_one_memory_are_right_on_three_streams() {
    if !support::on_gpu() {
        return support::skipped("graphs in one memory", "no GPU");
    }
    let device = Device::open(0).unwrap();
    sixteen_graphs(&device, &PoolResource::new(CudaResource::new(&device)).unwrap(), "blocks");
    let mapped = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
    sixteen_graphs(&device, &mapped, "handles");
}

#[test]
fn what_a_launch_costs() {
    if !support::on_gpu() {
        return support::skipped("the cost of a launch", "no GPU");
    }
    let device = Device::open(0).unwrap();
    let streams = [device.new_stream().unwrap(), device.new_stream().unwrap()];
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let graph_pool = pool.graph_pool().unwrap();
    let body = |stream: &Stream| {
        let mut scratch = DeviceVec::<u32>::zeroed_in(stream, 256, pool.clone())?;
        add_one(stream, &mut scratch)
    };
    let (alone, ()) = streams[0].capture(&pool, body).unwrap();
    let (shared, ()) = streams[0].capture_in(&graph_pool, body).unwrap();
    let time = |graph: &Graph, turn: usize| {
        let mut rounds: Vec<f64> = (0..9)
            .map(|_| {
                streams.iter().for_each(|stream| stream.synchronize().unwrap());
                let started = Instant::now();
                (0..500).for_each(|number| launch(graph, &streams[number % turn]));
                started.elapsed().as_secs_f64() * 2e6
            })
            .collect();
        rounds.sort_by(f64::total_cmp);
        rounds[4]
    };
    for (graph, name) in [(&alone, "alone"), (&shared, "of a graph pool")] {
        let (one, two) = (time(graph, 1), time(graph, 2));
        eprintln!(
            "graph pools: a launch of a graph {name}: {one:.0} ns on one stream, {two:.0} ns on two in turn"
        );
    }
}
