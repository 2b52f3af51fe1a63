//! The tests that can share a process. A binary of their own have those that cannot: `serial/` (one at a
//! time), those that need a library in place of the driver or of a tool, the soaks and the models.

mod adaptor_limits;
mod adaptor_panics;
mod after_captures;
mod as_on_a_gpu;
mod bench_workloads;
mod borrowed;
mod both_forms;
mod capture_hazards;
mod capture_threads;
mod captures;
mod checked;
mod checked_device;
mod chunks;
mod container_lifetimes;
#[path = "../support/contract.rs"]
mod contract;
mod counted_calls;
mod cubins;
mod cudarc_on_gpu;
mod data_handlers;
mod device;
mod device_buffer;
mod device_copies;
mod device_lost;
mod device_scalar;
mod device_vec;
mod device_vec_growth;
mod device_vec_model;
mod driver_resources;
mod elements;
mod fault_sources;
mod foreign_streams;
mod fresh_pages;
mod functions;
#[path = "../../benches/family/generator.rs"]
mod generator;
mod given_resources;
mod graph_pools;
mod graphs;
mod growth_in_place;
mod guard_failures;
mod guards;
mod host_forms;
mod host_functions;
mod ipc;
#[cfg(target_os = "linux")]
mod ipc_mapped;
#[cfg(target_os = "linux")]
mod ipc_pools;
#[path = "../support/kernels.rs"]
mod kernels;
mod ladder;
#[path = "../support/log.rs"]
mod log;
mod logging;
mod logging_failures;
mod mapped_pool;
mod memory_managers;
mod numa_nodes;
#[cfg(feature = "nvrtc")]
mod nvrtc;
mod pinned_limits;
mod polymorphic;
mod pool;
mod pool_checks;
mod pool_growth;
mod pool_hazards;
mod report_lines;
mod resource_failures;
mod resource_kinds;
mod resources;
mod retries;
mod rmm_random;
mod scopes;
mod shared_sources;
mod sibling_pools;
mod sleep;
#[path = "../support/spoil.rs"]
mod spoil;
mod stack_builds;
mod stack_texts;
mod statistics;
mod stream_pool;
#[path = "../support/mod.rs"]
mod support;
mod synchronized;
mod thread_safe;
#[path = "../support/threads.rs"]
mod threads;
mod traced;
mod tracking;
mod tracking_stacks;
mod tracking_threads;
mod transfer_ranges;
mod transfer_wakers;
mod transfers;
mod trims;
mod virtual_memory;
#[path = "../../benches/pool/workloads.rs"]
mod workloads;
