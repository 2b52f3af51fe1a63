//! A device, two streams, and what a report has to say.

use aquifer::sim::{Report, SimConfig, Simulator, Violation};
use aquifer::{CudaResource, Device, DeviceVec, PoolResource, Stream};
use std::panic::Location;

/// Elements of the vectors.
pub(crate) const LENGTH: usize = 1000;

/// A vector of so many, as a report names it.
pub(crate) const VECTOR: &str = "DeviceVec<u32> of 1000 elements (4000 bytes)";

pub(crate) const SEED: u64 = 77;

/// A call, and the line that it is on.
macro_rules! here {
    ($call:expr) => {
        (line!(), $call)
    };
}
pub(crate) use here;

pub(crate) type Pool = PoolResource<CudaResource>;

pub(crate) struct Fixture {
    pub(crate) device: Device,
    pub(crate) simulator: Simulator,
    pub(crate) stream: Stream,
    pub(crate) other: Stream,
    pub(crate) pool: Pool,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(SimConfig::default())
    }

    pub(crate) fn with(config: SimConfig) -> Self {
        let device = Device::simulated(config.seed(SEED));
        let simulator = device.simulator().unwrap();
        let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        Self { device, simulator, stream, other, pool }
    }

    /// A vector of zeros, made on this line of this file.
    pub(crate) fn zeroed(&self) -> DeviceVec<u32> {
        DeviceVec::zeroed_in(&self.stream, LENGTH, self.pool.clone()).unwrap()
    }

    /// The one report there is.
    #[track_caller]
    pub(crate) fn saw(&self, kind: Violation) -> Report {
        self.device.synchronize().unwrap_err();
        let mut reports = self.simulator.take_reports();
        assert_eq!(reports.len(), 1, "{kind:?} in {reports:?}");
        let report = reports.remove(0);
        assert_eq!(report.kind(), kind, "{report}");
        report
    }
}

/// What a report has to say, in its parts and in its text.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wanted<'a> {
    /// The file of the lines.
    pub(crate) file: &'a str,
    /// The line of the operation, if it has one.
    pub(crate) operation: Option<u32>,
    /// The line of the other side, if it has one.
    pub(crate) other: Option<u32>,
    /// The vector, and the line that made it.
    pub(crate) vector: Option<(&'a str, u32)>,
    /// Words of its text.
    pub(crate) words: &'a [&'a str],
}

impl Wanted<'_> {
    #[track_caller]
    pub(crate) fn check(self, report: &Report) {
        let text = report.to_string();
        let lines = [
            (report.operation_location(), self.operation),
            (report.conflict_location(), self.other),
            (report.vector_location(), self.vector.map(|(_, line)| line)),
        ];
        for (found, wanted) in lines {
            let found = found.map(|at: &Location<'_>| (at.file(), at.line()));
            assert_eq!(found, wanted.map(|line| (self.file, line)), "{text}");
            if let Some(line) = wanted {
                assert!(text.contains(&format!("at {}:{line}:", self.file)), "{line} in {text}");
            }
        }
        assert_eq!(report.vector(), self.vector.map(|(vector, _)| vector), "{text}");
        let vector = self.vector.map(|(vector, _)| vector);
        for word in self.words.iter().copied().chain(vector) {
            assert!(text.contains(word), "{word:?} in {text}");
        }
        assert_eq!(report.seed(), SEED);
        assert!(text.ends_with(&format!("(seed {SEED})")), "{text}");
    }
}
