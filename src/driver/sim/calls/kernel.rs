//! Launches of kernels.

use super::call::Call;
use super::enqueue::OpRequest;
use crate::driver::sim::check::OpName;
use crate::driver::sim::state::{AddressSpace, OpWork, TouchedRange};
use crate::driver::{Access, DriverResult, Kernel, LaunchConfig, RawArg, RawStream};

impl Call<'_> {
    /// Launches a kernel's host form.
    pub(crate) fn launch(
        &mut self,
        kernel: &Kernel,
        config: &LaunchConfig,
        arguments: &[RawArg],
        stream: RawStream,
    ) -> DriverResult<()> {
        let id = self.stream(stream)?;
        let space = AddressSpace::Device(self.context.id);
        let touched: Vec<TouchedRange> = arguments
            .iter()
            .filter_map(|argument| match *argument {
                RawArg::Buffer { address, bytes, access } if bytes > 0 => {
                    Some(TouchedRange::new(address, bytes, access, space))
                }
                _ => None,
            })
            .collect();
        if !is_valid(config) || overlaps(&touched) {
            return self.invalid();
        }
        let name = OpName { entry: Some(kernel.entry()), ..OpName::on(self.name, id) };
        let arguments = arguments.to_vec();
        let work = OpWork::Kernel { host: kernel.host(), config: *config, arguments };
        self.submit(id, OpRequest::new(name, &touched, work)).map(|_| ())
    }
}

/// Whether CUDA accepts a grid on every GPU of compute capability 3.0 or above. More shared memory
/// than this is an opt-in of the kernel, which the crate does not offer.
fn is_valid(config: &LaunchConfig) -> bool {
    let within = |(x, y, z): (u32, u32, u32), limit: (u32, u32, u32)| {
        (1..=limit.0).contains(&x) && (1..=limit.1).contains(&y) && (1..=limit.2).contains(&z)
    };
    let (x, y, z) = config.block;
    within(config.grid, (i32::MAX as u32, 65_535, 65_535))
        && within(config.block, (1024, 1024, 64))
        && x * y * z <= 1024
        && config.shared_bytes <= 48 << 10
}

/// Whether a written buffer overlaps another one: the host form would get two references to it.
fn overlaps(touched: &[TouchedRange]) -> bool {
    touched.iter().enumerate().any(|(index, one)| {
        touched.iter().take(index).any(|other| {
            (one.access != Access::Read || other.access != Access::Read)
                && one.address < other.address.saturating_add(other.bytes)
                && other.address < one.address.saturating_add(one.bytes)
        })
    })
}
