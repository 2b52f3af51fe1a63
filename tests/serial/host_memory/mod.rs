//! Page-locked memory: freed blocks wait for the device, mapped memory is a kernel argument,
//! registered memory keeps its owner, a forked child touches nothing.

#[cfg(unix)]
mod forked;
mod ladder;
mod mapped;
mod pool;
mod pool_rules;
mod quarantine;
mod registered;
mod stuck_stream;
mod unwinding;

use crate::{alone, contract, kernels, support};
use allocator_api2::vec::Vec as AllocVec;
use aquifer::{
    pinned::{
        CurrentPinned, PinnedResource, reset_current_pinned_resource, set_current_pinned_resource,
    },
    sim::Simulator,
};

/// A vector of four-byte numbers in page-locked memory.
type PinnedVec = AllocVec<u32, PinnedResource>;

fn pinned_vec(pinned: &PinnedResource, length: usize) -> PinnedVec {
    let mut vec = AllocVec::with_capacity_in(length, pinned.clone());
    vec.extend(0..length as u32);
    vec
}

/// Makes the device's next answer about an event "not yet".
fn not_ready(simulator: &Simulator) {
    simulator.fail_call("cuEventQuery", 1, 600).unwrap();
}

/// Makes `pinned` current until dropped.
struct Current(Option<CurrentPinned>);

impl Current {
    fn set(pinned: &(impl Clone + Into<CurrentPinned>)) -> Self {
        Self(set_current_pinned_resource(pinned.clone()))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        match self.0.take() {
            Some(before) => drop(set_current_pinned_resource(before)),
            None => drop(reset_current_pinned_resource()),
        }
    }
}
