//! Whether a pool maps handles of memory, or takes blocks of its upstream.

use super::PoolResource;
use super::options::{Handles, PoolOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::resource::device_resource::DeviceResource;
use crate::resource::mapped::{Mappable, VirtualMemory};
use crate::resource::virtual_resource::VirtualResource;

impl<U: DeviceResource> PoolOptions<U> {
    /// Makes a pool over plain memory take blocks, unless the options say otherwise, so that `cuIpcGetMemHandle` shares
    /// its memory. It is for libraries over this crate, whose hosts call that.
    #[doc(hidden)]
    pub fn shareable(self) -> Self {
        match (self.handles, self.upstream.mappable()) {
            (Handles::Auto, Mappable::Plain) => self.handles(Handles::Off),
            _ => self,
        }
    }

    /// The memory that the pool maps by itself. `None` if it takes blocks.
    pub(super) fn mapped_memory(&self, has_tool: bool) -> Result<Option<VirtualMemory>> {
        let device = self.upstream.device();
        match (self.handles, self.upstream.mappable()) {
            (Handles::Off, _) | (Handles::Auto, Mappable::No | Mappable::Plain) => Ok(None),
            (Handles::On, _) if has_tool => Err(refused(
                "a tool of NVTX's memory extension watches, which knows memory by blocks",
                "leave the option at Handles::Auto, or run without the tool",
            )),
            (Handles::On, Mappable::No) => {
                let name = self.upstream.identity().name();
                let what = format!("its upstream is {name}, whose blocks are its own");
                Err(refused(&what, "put the pool over CudaResource or VirtualResource"))
            }
            (Handles::On, Mappable::Plain) => match VirtualResource::new(device) {
                Ok(memory) => Ok(Some(memory.into_memory())),
                Err(error) => {
                    Err(error.within("a pool was asked to map handles").with_advice(BLOCKS))
                }
            },
            (_, Mappable::Mapped(memory)) => Ok(Some(memory.clone())),
        }
    }
}

const BLOCKS: &str = "leave the option at Handles::Auto, which takes blocks there";

fn refused(why: &str, advice: &'static str) -> Error {
    let what = format!("a pool was asked to map handles, and cannot: {why}");
    Error::new(ErrorKind::Unsupported, what).with_advice(advice)
}

impl<U: DeviceResource + 'static> PoolResource<U> {
    /// Whether the pool maps [handles](PoolOptions::handles), and takes no blocks of its upstream.
    pub fn maps_handles(&self) -> bool {
        self.pool.upstream().memory.is_some()
    }
}
