//! Memory that graphs keep, and memory that they do not.

use super::fixture::{LENGTH, alias};
use super::kernels::kind;
use aquifer::sim::{Report, SimConfig, Simulator, Violation};
use aquifer::{
    CudaResource, Device, DeviceResource, DeviceVec, ErrorKind, PoolResource, Stream,
    mr::AsyncResource, stream::Graph,
};
use std::sync::Arc;

type Pool = PoolResource<Arc<dyn DeviceResource>>;

struct Fixture {
    simulator: Simulator,
    device: Device,
    pool: Pool,
    stream: Stream,
    other: Stream,
}

/// Pools over all that a pool stands on, with and without magazines.
fn each(body: impl Fn(&Fixture)) {
    type Make = fn(&Device) -> Arc<dyn DeviceResource>;
    let upstreams: [Make; 3] = [
        |device| Arc::new(CudaResource::new(device)),
        |device| Arc::new(AsyncResource::new(device).unwrap()),
        |device| Arc::new(PoolResource::new(CudaResource::new(device)).unwrap()),
    ];
    for upstream in upstreams {
        for entries in [0, 8] {
            let device = Device::simulated(SimConfig::default().seed(entries as u64));
            let options = PoolResource::builder(upstream(&device)).growth_step(1 << 20);
            let pool = options.magazine_entries(entries).build().unwrap();
            let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
            let simulator = device.simulator().unwrap();
            let fixture = Fixture { simulator, device, pool, stream, other };
            (0..3).for_each(|_| drop([(); 4].map(|()| fixture.zeroed())));
            body(&fixture);
            fixture.clean();
        }
    }
}

impl Fixture {
    fn zeroed(&self) -> DeviceVec<u32> {
        let memory = Arc::new(self.pool.clone());
        DeviceVec::zeroed_in(&self.stream, LENGTH, memory).unwrap()
    }

    fn clean(&self) {
        self.device.synchronize().unwrap();
        self.simulator.check().unwrap();
    }

    #[track_caller]
    fn saw(&self, kind: Violation) -> Report {
        let mut reports = self.simulator.take_reports();
        assert_eq!(reports.len(), 1, "{kind:?} in {reports:?}");
        let report = reports.remove(0);
        assert_eq!(report.kind(), kind, "{report}");
        report
    }

    /// A graph that fills scratch memory of its own and copies that.
    fn graph(&self, target: &mut DeviceVec<u32>, value: u32) -> (Graph, super::fixture::Alias) {
        let record = |stream: &Stream| {
            let mut scratch = self.zeroed();
            let raw = alias(&scratch, stream, LENGTH);
            scratch.fill(value)?;
            target.copy_from(&scratch)?;
            Ok(raw)
        };
        self.stream.capture(&self.pool, record).unwrap()
    }
}

fn launch(graph: &Graph, stream: &Stream) {
    // SAFETY: what it touches is the simulated device's to judge.
    unsafe { graph.launch(stream) }.unwrap();
}

#[test]
fn scratch_memory_is_the_graphs_alone() {
    each(|fixture| {
        let Fixture { stream, other, .. } = fixture;
        let mut target = fixture.zeroed();
        let (graph, raw) = fixture.graph(&mut target, 5);
        launch(&graph, stream);
        other.wait_for(stream).unwrap();
        launch(&graph, other);
        stream.wait_for(other).unwrap();
        assert_eq!(target.to_vec().unwrap(), [5; LENGTH]);
        fixture.clean();
        assert_eq!(kind(raw.to_vec()), ErrorKind::Simulation);
        let report = fixture.saw(Violation::UseAfterFree);
        let other = format!("a free to a pool on stream {}", stream.id());
        assert_eq!(report.conflicts_with().unwrap(), other);
        // Others have memory meanwhile, and it is not the graph's.
        let vecs = [(); 8].map(|()| fixture.zeroed());
        launch(&graph, stream);
        assert!(vecs.iter().all(|vec| vec.to_vec().unwrap() == [0; LENGTH]));
    });
}

#[test]
fn a_vector_from_before_the_capture_that_is_dropped_before_a_launch() {
    each(|fixture| {
        let mut target = fixture.zeroed();
        let address = target.as_device_ptr();
        let (graph, _raw) = fixture.graph(&mut target, 5);
        launch(&graph, &fixture.stream);
        drop(target);
        fixture.clean();
        launch(&graph, &fixture.stream);
        let report = fixture.saw(Violation::UseAfterFree);
        assert!(report.operation().contains("in graph"), "{report}");
        assert!(report.conflicts_with().unwrap().starts_with("a free to a pool"), "{report}");
        assert_eq!(report.range().0, address);
    });
}

#[test]
fn a_vector_that_is_dropped_in_a_capture_stays_for_both_graphs() {
    each(|fixture| {
        let Fixture { pool, stream, .. } = fixture;
        let mut vec = fixture.zeroed();
        let (first, ()) = stream.capture(pool, |_| vec.fill(1)).unwrap();
        let (second, ()) = stream
            .capture(pool, |_| {
                vec.fill(2)?;
                drop(vec);
                Ok(())
            })
            .unwrap();
        for graph in [&first, &second, &first] {
            launch(graph, stream);
        }
        fixture.clean();
    });
}

#[test]
fn a_vector_that_outlives_its_graph_is_an_ordinary_one() {
    each(|fixture| {
        let Fixture { pool, stream, other, .. } = fixture;
        let (graph, mut vec) = stream
            .capture(pool, |_| {
                let mut vec = fixture.zeroed();
                vec.fill(4)?;
                Ok(vec)
            })
            .unwrap();
        launch(&graph, other);
        drop(graph);
        assert_eq!(vec.to_vec().unwrap(), [4; LENGTH]);
        vec.fill(3).unwrap();
        let raw = alias(&vec, stream, LENGTH);
        drop(vec);
        fixture.clean();
        assert_eq!(kind(raw.to_vec()), ErrorKind::Simulation);
        fixture.saw(Violation::UseAfterFree);
    });
}

/// While the graph runs on another stream, which the free does not come after: its memory is kept.
#[test]
fn a_vector_of_the_graph_is_dropped_beside_a_launch() {
    each(|fixture| {
        let Fixture { pool, stream, other, .. } = fixture;
        let (graph, vec) = stream
            .capture(pool, |_| {
                let mut vec = fixture.zeroed();
                vec.fill(4)?;
                Ok(vec)
            })
            .unwrap();
        launch(&graph, other);
        drop(vec);
        launch(&graph, other);
        assert!(fixture.simulator.reports().is_empty(), "{:?}", fixture.simulator.reports());
        drop(graph);
        let vecs = [(); 8].map(|()| fixture.zeroed());
        assert!(vecs.iter().all(|vec| vec.to_vec().unwrap() == [0; LENGTH]));
    });
}

#[test]
fn memory_that_a_graph_wrote_counts_as_unwritten_when_it_is_handed_out() {
    each(|fixture| {
        let mut target = fixture.zeroed();
        let (graph, raw) = fixture.graph(&mut target, 5);
        launch(&graph, &fixture.stream);
        drop(graph);
        fixture.clean();
        // The memory of the graph is among them.
        let memory: Arc<dyn DeviceResource> = Arc::new(fixture.pool.clone());
        // SAFETY: the simulated device tells of reads before a write.
        let new = || unsafe { DeviceVec::uninit_in(&fixture.stream, LENGTH, memory.clone()) };
        let vecs: Vec<DeviceVec<u32>> = (0..40).map(|_| new().unwrap()).collect();
        let found = vecs.iter().find(|vec| vec.as_device_ptr() == raw.as_device_ptr());
        assert_eq!(kind(found.expect("it is free again").to_vec()), ErrorKind::Simulation);
        fixture.saw(Violation::UninitializedRead);
    });
}
