#![doc = include_str!("../docs/guide/README.md")]

// For the names that the pages link to.
#[allow(unused_imports)]
use crate::{
    collective::*, container::*, device::*, ipc::*, kernel::*, mr::*, nbep7::*, nep49::*,
    pinned::*, stream::*, transfer::*, *,
};

#[doc = include_str!("../docs/guide/guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("../docs/guide/resources.md")]
pub mod resources {}

#[doc = include_str!("../docs/guide/pools.md")]
pub mod pools {}

#[doc = include_str!("../docs/guide/files.md")]
pub mod files {}

#[doc = include_str!("../docs/guide/tasks.md")]
pub mod tasks {}

#[doc = include_str!("../docs/guide/devices.md")]
pub mod devices {}

#[doc = include_str!("../docs/guide/ci.md")]
pub mod ci {}

#[doc = include_str!("../docs/guide/libraries.md")]
pub mod libraries {}

#[doc = include_str!("../docs/guide/where_memory_went.md")]
pub mod where_memory_went {}

#[doc = include_str!("../docs/guide/c_kernels.md")]
pub mod c_kernels {}

#[doc = include_str!("../docs/guide/provers.md")]
pub mod provers {}

#[cfg(feature = "cuda")]
#[doc = include_str!("../docs/guide/candle.md")]
pub mod candle {}

#[cfg(feature = "cuda")]
#[doc = include_str!("../docs/guide/from_cudarc.md")]
pub mod from_cudarc {}

#[doc = include_str!("../docs/guide/from_rmm.md")]
pub mod from_rmm {}

// Its programs are tests of the crate in `nvidia/`, which alone has NVIDIA's crates.
#[cfg(not(doctest))]
#[doc = include_str!("../docs/guide/nvidia.md")]
pub mod nvidia {}
