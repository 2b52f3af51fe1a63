//! The sources of device memory.

pub mod asleep;
pub mod block;
pub mod cuda;
mod current_resource;
pub mod device_resource;
pub mod external;
pub mod failure;
mod handle;
pub mod identity;
pub mod impls;
pub mod mapped;
mod mapped_peers;
pub mod pool;
mod registry;
pub mod resizing;
mod scope;
mod thread_cache;
mod virtual_resource;

pub use crate::pool::{MissStep, ThreadMagazine};
pub use block::DeviceBlock;
pub use cuda::CudaResource;
pub use device_resource::{DeviceResource, HostAccessible};
pub use failure::Failure;
pub use identity::ResourceId;
pub use pool::{
    GraphPool, Handles, MissPolicy, PoolBlock, PoolMap, PoolOptions, PoolResource, PoolStatistics,
};
pub use registry::{
    current_device_resource, default_device_pool, reset_current_device_resource,
    set_current_device_resource,
};
pub use scope::{with_device_resource, with_device_resource_async};
pub use virtual_resource::VirtualResource;

pub(crate) use current_resource::CurrentResource;
pub(crate) use handle::ResourceHandle;
pub(crate) use impls::setters;
pub use mapped::Mappable;
pub(crate) use registry::current_handle;
pub use registry::external_memory;

crate::sync::for_models! {
    #[allow(missing_docs, unreachable_pub)]
    pub mod models {
        pub use super::current_resource::CurrentResource;
        pub use super::scope::{EnteredScope, enter_scope, scoped_resource};
    }
}
