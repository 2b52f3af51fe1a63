"""Builds by maturin where Rust is there. Else it says what to install, where maturin would download a toolchain.

pip and other tools find it by ``backend-path`` in pyproject.toml.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import maturin

#: As ``rust-version`` in Cargo.toml.
OLDEST_RUST = (1, 95)


def _missing() -> str | None:
    """What is wrong with the Rust of this machine."""
    needed = "aquifer-cuda is built with Rust {}.{} or later".format(*OLDEST_RUST)
    how = "Install Rust from https://rustup.rs, or install a wheel of aquifer-cuda: the README says for which platforms."
    cargo = shutil.which("cargo")
    if cargo is None:
        return f"{needed}, and there is no cargo on PATH. {how}"
    said = subprocess.run([cargo, "--version"], capture_output=True, text=True).stdout
    found = re.match(r"cargo (\d+)\.(\d+)", said)
    if found is None or tuple(map(int, found.groups())) < OLDEST_RUST:
        return f"{needed}, and there is {said.strip() or 'a cargo that does not run'}. {how}"
    return None


def _with_rust(hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def checked(*arguments: Any, **named: Any) -> Any:
        if (missing := _missing()) is not None:
            raise SystemExit(f"\n{missing}\n")
        return hook(*arguments, **named)

    return checked


get_requires_for_build_wheel = _with_rust(maturin.get_requires_for_build_wheel)
get_requires_for_build_editable = _with_rust(maturin.get_requires_for_build_editable)
get_requires_for_build_sdist = _with_rust(maturin.get_requires_for_build_sdist)
prepare_metadata_for_build_wheel = _with_rust(maturin.prepare_metadata_for_build_wheel)
prepare_metadata_for_build_editable = _with_rust(maturin.prepare_metadata_for_build_editable)
build_wheel = _with_rust(maturin.build_wheel)
build_editable = _with_rust(maturin.build_editable)
build_sdist = _with_rust(maturin.build_sdist)
