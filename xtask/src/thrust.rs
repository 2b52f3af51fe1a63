//! The C library's header for Thrust, with Thrust's headers, which come from PyPI where they are not named.

use crate::Place;
use crate::cargo::{cargo, tests};
use crate::pypi::download;
use crate::report::Verdict;
use anyhow::{Context as _, Result};
use std::fs;
use std::path::PathBuf;

/// CUDA 13.0's, the oldest that the header takes.
const CCCL: &str = "nvidia-cuda-cccl==13.0.85";

/// Sorts and scans on the host, with temporary memory of a stack on the simulated device.
pub(crate) fn step(place: &Place) -> Result<Verdict> {
    let folder = place.target.join("thrust");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let headers = match std::env::var_os("AQUIFER_TEST_THRUST") {
        Some(named) => PathBuf::from(named),
        None => match download(&[CCCL], &folder, &folder.join("headers"))? {
            Ok(()) => folder.join("headers/nvidia/cu13/include/cccl"),
            Err(missing) => {
                return Ok(Verdict::Skipped(format!("no headers of Thrust: {missing}")));
            }
        },
    };
    let mut test = cargo(place);
    test.args(["test", "--locked", "-p", "aquifer-capi", "--test", "programs", "thrust_sorts"]);
    tests(test.env("AQUIFER_TEST_THRUST", headers))
}
