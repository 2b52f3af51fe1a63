//! Whether every place in the source that makes an error has a row.

use crate::table::Table;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Places without a row: a file, a text in the lines after the place (or nothing, for the whole file),
/// and why.
const UNREACHED: &[(&str, &str, &str)] = &[
    ("crates/driver/src/cuda/open.rs", "", "a driver is needed: tests/driver_calls"),
    ("crates/driver/src/cuda/driver.rs", "", "a driver is needed: tests/driver_calls"),
    ("crates/nvrtc/src/compile.rs", "", "of the feature `nvrtc`: tests/it/nvrtc.rs"),
    ("crates/driver/src/cuda/conversions.rs", "a call of cudarc failed", "a GPU is needed"),
    (
        "crates/core/src/pinned/numa.rs",
        "ErrorKind::Unsupported, what",
        "of systems that place no memory: containers, and others than Linux",
    ),
    ("crates/core/src/pinned/source.rs", "or leave numa_node out", "the system has room"),
    (
        "crates/core/src/stream/graph.rs",
        "waits for its device",
        "a queue that is full: crates/core/src/stream/graph/tests.rs",
    ),
    ("crates/core/src/interop/cuda_slice.rs", "making cudarc's events", "a GPU is needed"),
    (
        "crates/core/src/interop/cuda_slice.rs",
        "cudarc would not free",
        "a GPU is needed: tests/driver_calls",
    ),
    ("crates/core/src/interop/cuda_slice.rs", "an empty vector", "a GPU is needed"),
    ("crates/nccl/src/communicator.rs", "ErrorKind::Io", "the system has room"),
    ("crates/nccl/src/communicator.rs", "give a stream for each rank", "named by its caller"),
    ("crates/nccl/src/communicator.rs", "give one stream of each device", "named by its caller"),
    (
        "crates/collective/src/calls.rs",
        "",
        "named by their callers; of a missing library, a GPU is needed",
    ),
    (
        "crates/core/src/device.rs",
        "build with the feature",
        "of a build without the feature `cuda`",
    ),
    (
        "crates/core/src/device/detect.rs",
        "build with the feature `sim`, or unset it",
        "of a build without the feature `sim`",
    ),
    ("crates/driver/src/fork.rs", "fork handler", "the system has room"),
    ("crates/driver/src/calls.rs", "Error::driver_call(message(), driver)", "named by its callers"),
    ("crates/driver/src/error.rs", "$crate::error::Error::new", "named by its callers"),
    (
        "crates/driver/src/arguments.rs",
        "take what the launch gives",
        "in a report: the rows of a form",
    ),
    ("crates/driver/src/arguments.rs", "look for what wrote", "in a report: the rows of a form"),
    (
        "crates/driver/src/arguments.rs",
        "calling {name}",
        "a GPU is needed: crates/driver/src/arguments/tests.rs",
    ),
    ("crates/core/src/container/launch.rs", "calling {} for {}", "a GPU is needed"),
    ("crates/core/src/interop/lend.rs", "cudarc's own use", "a GPU is needed"),
    (
        "crates/core/src/container/borrowed.rs",
        "copy it into a DeviceVec",
        "nothing allocates from a loan",
    ),
    (
        "crates/mr/src/adaptor/thread_safe.rs",
        "in the child of a fork",
        "a text like its neighbour's",
    ),
    ("crates/mr/src/adaptor/logging.rs", "starting the thread", "the system has room"),
    ("crates/mr/src/adaptor/statistics.rs", "a thread that ends", "a thread's last destructors"),
    (
        "crates/mr/src/adaptor/on_stream.rs",
        "Error::new(ErrorKind::Unsupported, message)",
        "an `unsafe impl` that is wrong",
    ),
    ("crates/mr/src/managed_alloc.rs", "may not touch", "a GPU of another kind"),
    (
        "crates/core/src/resource/virtual_resource.rs",
        "trying the virtual",
        "a GPU's alone: tests/driver_calls",
    ),
    (
        "crates/core/src/resource/virtual_resource.rs",
        "refuses virtual",
        "a GPU's alone: tests/driver_calls",
    ),
    (
        "crates/core/src/pinned/memory_limit.rs",
        "with_advice(advice)",
        "the machine's: tests/it/fresh_pages and pinned_limits",
    ),
    ("crates/core/src/sleep/copies.rs", "last_error().unwrap_or_else", "the allocator says why"),
    ("crates/mr/src/driver_pool.rs", "descriptor >= 0", "a driver that is wrong"),
    (
        "crates/core/src/resource/pool/failure.rs",
        "a stream that is gone",
        "two failures in one moment",
    ),
    ("crates/core/src/resource/pool/failure.rs", "65,534", "65,534 streams"),
    (
        "crates/core/src/resource/pool/capture.rs",
        "another capture cannot",
        "the gate refuses it first",
    ),
    ("crates/mr/src/system.rs", "giving {device}", "a GPU of another kind"),
    ("src/debug_log/file.rs", "installing the debug log", "tests/debug_log"),
    (
        "crates/plug/src/data_handler/pages.rs",
        "",
        "by the kernel: tests/it/data_handlers/placed.rs",
    ),
    ("crates/plug/src/data_handler/ready.rs", "for Linux alone", "of another system"),
    ("crates/core/src/pinned/pool_core.rs", "no handle left", "a handle lives while it is called"),
    (
        "crates/core/src/container/copy.rs",
        "copy a part of the vector",
        "the host's heap gives any size",
    ),
    ("crates/plug/src/ipc/memory.rs", "closing memory on", "in an event: a drop"),
    ("crates/core/src/stream/per_thread.rs", "asking {self}", "a GPU is needed"),
    (
        "crates/core/src/stream/members.rs",
        "with_context(what)",
        "rows of `no event` and `no record`",
    ),
    (
        "crates/core/src/stream/synchronized.rs",
        "driver().check()",
        "the rows of a report: tests/it/fault_sources",
    ),
    ("crates/core/src/stream/call.rs", "asking whether {self}", "a GPU is needed"),
    (
        "crates/core/src/stream/context.rs",
        "with_context(what)",
        "a wait for the device goes on without it",
    ),
    ("crates/core/src/stream/handle.rs", "per-thread default stream", "a GPU is needed"),
    (
        "crates/core/src/stream/capture.rs",
        "Error::new(ErrorKind::Capture, what)",
        "two failures in one moment",
    ),
];

/// What makes an error, at the place where it stands.
const MAKERS: [&str; 4] = ["Error::new(", "ensure!(", ".with_context(", "::driver_call("];

/// Lines after a place in which its text is looked for.
const REACH: usize = 9;

pub(crate) fn check(table: &Table) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    collect(&root.join("src"), &mut files);
    for entry in std::fs::read_dir(root.join("crates")).unwrap() {
        collect(&entry.unwrap().path().join("src"), &mut files);
    }
    let (mut missing, mut used) = (String::new(), BTreeSet::new());
    for path in files {
        let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let lines: Vec<_> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let code = line.trim_start();
            let own = code.replace("DriverError::new(", "").replace("io::Error::new(", "");
            let makes = MAKERS.iter().any(|maker| own.contains(maker));
            if !makes || code.starts_with("//") {
                continue;
            }
            if table.places().contains(&(name.clone(), index + 1)) {
                continue;
            }
            let after = lines[index..lines.len().min(index + REACH)].join("\n");
            let reason = UNREACHED.iter().position(|(file, snippet, _)| {
                *file == name && (snippet.is_empty() || after.contains(snippet))
            });
            match reason {
                Some(reason) => {
                    used.insert(reason);
                }
                None => {
                    let _ = writeln!(missing, "{name}:{}: {code}", index + 1);
                }
            }
        }
    }
    for (index, (file, snippet, _)) in UNREACHED.iter().enumerate() {
        if !used.contains(&index) {
            let _ = writeln!(missing, "{file}: `{snippet}` has a row, or is gone");
        }
    }
    assert!(missing.is_empty(), "places that make an error and have no row:\n{missing}");
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "tests" {
                collect(&path, files);
            }
        } else if name.ends_with(".rs") && !name.starts_with("tests") {
            files.push(path);
        }
    }
}
