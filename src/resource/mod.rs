//! Where device memory comes from.

mod arena;
mod binning;
mod block;
mod callback;
pub(crate) mod cuda;
mod current_resource;
mod device_resource;
pub(crate) mod driver_pool;
pub(crate) mod external;
pub(crate) mod failure;
mod fixed_size;
mod handle;
mod identity;
pub(crate) mod impls;
#[cfg(unix)]
mod imported;
mod managed;
mod managed_alloc;
mod mapped;
mod mapped_peers;
mod nccl;
mod pool;
mod registry;
pub(crate) mod resizing;
mod scope;
mod system;
mod thread_cache;
mod virtual_memory;

pub use crate::pool::{MissStep, ThreadMagazine};
pub use arena::{ArenaOptions, ArenaResource};
pub use binning::{BinningOptions, BinningResource};
pub use block::DeviceBlock;
pub use callback::CallbackResource;
pub use cuda::CudaResource;
pub use device_resource::{DeviceResource, HostAccessible, HostComplete};
pub use driver_pool::{AsyncOptions, AsyncResource, AsyncStatistics};
pub use failure::Failure;
pub use fixed_size::{FixedSizeOptions, FixedSizeResource};
pub use identity::ResourceId;
pub use managed::{ManagedOptions, ManagedResource};
pub use managed_alloc::ManagedAlloc;
pub use nccl::NcclResource;
pub use pool::{
    Handles, MissPolicy, PoolBlock, PoolMap, PoolOptions, PoolResource, PoolStatistics,
};
pub use registry::{
    current_device_resource, default_device_pool, reset_current_device_resource,
    set_current_device_resource,
};
pub use scope::{WithDeviceResource, with_device_resource};
pub use system::{SystemOptions, SystemResource};
pub use virtual_memory::VirtualResource;

pub(crate) use current_resource::CurrentResource;
pub(crate) use handle::ResourceHandle;
pub(crate) use impls::setters;
#[cfg(unix)]
pub(crate) use imported::{ImportedHandles, ImportedMemory, export_mapping, mappings_of};
pub(crate) use mapped::Mappable;
pub(crate) use registry::{current_handle, external_memory};

crate::sync::for_models! {
    #[allow(missing_docs, unreachable_pub)]
    pub mod models {
        pub use super::current_resource::CurrentResource;
        pub use super::scope::{EnteredScope, enter_scope, scoped_resource};
    }
}
