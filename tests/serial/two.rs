//! Two devices in one test.

use crate::support;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{Device, Stream};

/// Two devices, the second of which is current on this thread where there is such a thing.
pub(crate) struct Two {
    pub(crate) one: Device,
    pub(crate) two: Device,
    pub(crate) simulators: Vec<Simulator>,
}

impl Two {
    /// Two devices, or word that `name` is skipped.
    pub(crate) fn open(name: &str) -> Option<Self> {
        if support::on_gpu() {
            if Device::count().unwrap() < 2 {
                support::skipped(name, "it needs two GPUs");
                return None;
            }
            let (one, two) = (Device::open(0).unwrap(), Device::open(1).unwrap());
            #[cfg(feature = "cuda")]
            two.cuda_context().unwrap().bind_to_thread().unwrap();
            return Some(Self { one, two, simulators: Vec::new() });
        }
        Some(Self::simulated(1))
    }

    /// Two simulated devices.
    pub(crate) fn simulated(seed: u64) -> Self {
        let (one, first) = support::simulated(SimConfig::default().seed(seed));
        let config = support::as_asked(SimConfig::default().seed(seed + 1).ordinal(1));
        let two = one.simulated_beside(config);
        let second = two.simulator().unwrap();
        Self { one, two, simulators: vec![first, second] }
    }

    pub(crate) fn streams(&self) -> [Stream; 2] {
        [&self.one, &self.two].map(|device| device.new_stream().unwrap())
    }

    /// The second device's context is still what the thread has.
    pub(crate) fn check(&self, after: &str) {
        #[cfg(feature = "cuda")]
        if let Ok(context) = self.two.cuda_context() {
            let now = aquifer::cudarc::driver::result::ctx::get_current().unwrap();
            assert_eq!(now, Some(context.cu_ctx()), "after {after}");
        }
        for simulator in &self.simulators {
            assert!(simulator.reports().is_empty(), "after {after}");
        }
    }

    /// All is freed, and nothing was out of order.
    pub(crate) fn end(self) {
        self.check("all");
        for simulator in &self.simulators {
            assert_eq!(simulator.live_blocks(), 0);
            simulator.check().unwrap();
        }
    }
}
