//! Which modules have mutants, and which tests are asked.

/// A part of the source whose faults tests have to find.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) name: &'static str,
    /// A file, or a folder of them.
    pub(crate) path: &'static str,
    /// The root of the crate that it is of.
    pub(crate) root: &'static str,
    /// The closest tests by target and filters of names. A package's unit tests have the name of its
    /// library. None where no program of cargo's has them.
    pub(crate) tests: &'static [(&'static str, &'static [&'static str])],
}

const CORE: &str = "crates/core/src/lib.rs";
const DRIVER: &str = "crates/driver/src/lib.rs";
const NCCL: &str = "crates/nccl/src/lib.rs";
const PLUG: &str = "crates/plug/src/lib.rs";
const POOL: &str = "crates/pool/src/lib.rs";
const CAPI: &str = "capi/src/lib.rs";

const HOST_MEMORY: &[(&str, &[&str])] = &[
    ("aquifer_core", &["pinned::"]),
    (
        "serial",
        &[
            "host_memory::",
            "allocator_contract::",
            "host_collections::",
            "one_machine::",
            "two::",
            "cancelled::",
        ],
    ),
    ("it", &["polymorphic::", "transfer", "scopes::", "memory_managers::"]),
    ("errors", &["every_error"]),
];

pub(crate) const MODULES: &[Module] = &[
    Module {
        name: "collective",
        path: "crates/nccl/src",
        root: NCCL,
        tests: &[
            ("serial", &["collectives::", "collective_uses::", "lost_ranks::"]),
            ("it", &["capture_threads::", "resource_kinds::"]),
            ("errors", &["every_error"]),
        ],
    },
    Module {
        name: "manager",
        path: "crates/plug/src",
        root: PLUG,
        tests: &[
            ("aquifer_plug", &[""]),
            ("it", &["data_handlers::", "memory_managers::", "stack_", "ipc"]),
            ("serial", &["data_handlers::", "current_resources::"]),
            ("errors", &["every_error"]),
        ],
    },
    Module {
        name: "foreign",
        path: "crates/core/src/stream/foreign.rs",
        root: CORE,
        tests: &[
            (
                "it",
                &[
                    "foreign_streams::",
                    "captures::",
                    "capture_threads::",
                    "capture_hazards::",
                    "guard",
                ],
            ),
            ("aquifer_core", &["stream::"]),
            ("serial", &["collectives::"]),
        ],
    },
    Module { name: "pinned", path: "crates/core/src/pinned", root: CORE, tests: HOST_MEMORY },
    Module {
        name: "pool",
        path: "crates/pool/src",
        root: POOL,
        tests: &[
            ("aquifer_pool", &["tests::"]),
            (
                "it",
                &[
                    "pool",
                    "captures::",
                    "capture_hazards::",
                    "resource",
                    "counted_calls::",
                    "rmm_random::",
                ],
            ),
            ("errors", &["every_error"]),
        ],
    },
    Module {
        name: "between_devices",
        path: "crates/core/src/container/between_devices.rs",
        root: CORE,
        tests: &[("serial", &["multi_device::", "peers::"]), ("it", &["device_copies::"])],
    },
    Module {
        name: "elements",
        path: "crates/driver/src/arguments.rs",
        root: DRIVER,
        tests: &[
            ("aquifer_driver", &["arguments::"]),
            ("it", &["elements::", "functions::", "host_forms::"]),
            ("errors", &["every_error"]),
        ],
    },
    Module {
        name: "borrowed",
        path: "crates/core/src/container/borrowed.rs",
        root: CORE,
        tests: &[("it", &["borrowed::"]), ("errors", &["every_error"])],
    },
    Module {
        name: "copies",
        path: "crates/core/src/container/copy.rs",
        root: CORE,
        tests: &[("it", &["elements::", "device_vec"]), ("errors", &["every_error"])],
    },
    Module {
        name: "capi",
        path: "capi/src",
        root: CAPI,
        tests: &[("aquifer_capi", &["tests::"]), ("programs", &["a_", "hosts_"])],
    },
    // pytest runs these, after a build of the package for each: they are listed, and put in by hand.
    Module { name: "python", path: "python/src", root: "python/src/lib.rs", tests: &[] },
];
