//! Work that keeps a stream of a GPU busy. What a program gives a GPU would be done before another
//! stream could come too early; behind some ballast it is not. The simulated device needs none.

use crate::kernels;
use crate::shared::{Shared, Step, lock, unexpected};
use aquifer::{CudaResource, DeviceVec, Stream};
use std::sync::Arc;

/// Elements of each stream's ballast, and how often they are gone through.
const LENGTH: usize = 4 << 20;
const ROUNDS: usize = 16;

#[derive(Default)]
pub(crate) struct Ballast(Vec<DeviceVec<u32>>);

impl Ballast {
    /// Gives `stream` something to do.
    pub(crate) fn load(&mut self, shared: &Shared, stream: &Stream) -> Step {
        let streams = lock(&shared.streams).clone();
        self.0.retain(|vec| streams.contains(vec.stream()));
        let own = match self.0.iter().position(|vec| vec.stream() == stream) {
            Some(index) => index,
            None => {
                let plain = Arc::new(CudaResource::new(&shared.device));
                let vec = DeviceVec::zeroed_in(stream, LENGTH, plain);
                self.0.push(vec.map_err(unexpected("taking ballast"))?);
                self.0.len() - 1
            }
        };
        for _ in 0..ROUNDS {
            kernels::add_one(stream, &mut self.0[own]).map_err(unexpected("ballast"))?;
        }
        shared.count("loads of ballast");
        Ok(())
    }
}
