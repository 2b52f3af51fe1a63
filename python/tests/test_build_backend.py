"""What pip calls to build the package: by maturin where Rust is there, and else a text."""

import importlib.util
import re
import sys
import types
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent

HOOKS = [
    f"{hook}_{what}"
    for what, hooks in {
        "wheel": ["get_requires_for_build", "prepare_metadata_for_build", "build"],
        "editable": ["get_requires_for_build", "prepare_metadata_for_build", "build"],
        "sdist": ["get_requires_for_build", "build"],
    }.items()
    for hook in hooks
]


@pytest.fixture
def backend(monkeypatch):
    maturin = types.ModuleType("maturin")
    for hook in HOOKS:
        setattr(maturin, hook, lambda *arguments, hook=hook: (hook, *arguments))
    monkeypatch.setitem(sys.modules, "maturin", maturin)
    spec = importlib.util.spec_from_file_location("aquifer_build", PACKAGE / "build_backend" / "aquifer_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def has_cargo(monkeypatch, tmp_path):
    def make(says):
        cargo = tmp_path / "cargo"
        cargo.write_text(f"#!/bin/sh\necho '{says}'\n")
        cargo.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    return make


@pytest.mark.parametrize("version", ["1.95.0", "1.100.0-nightly", "2.0.0"])
def test_maturin_builds_where_rust_is_there(backend, has_cargo, version):
    has_cargo(f"cargo {version} (0123456 2026-01-01)")
    for hook in HOOKS:
        assert getattr(backend, hook)("folder") == (hook, "folder")


@pytest.mark.parametrize(
    ("says", "what"),
    [
        (None, "there is no cargo on PATH"),
        ("cargo 1.80.0 (376290515 2024-07-16)", "there is cargo 1.80.0 (376290515 2024-07-16)"),
        ("", "there is a cargo that does not run"),
    ],
)
def test_without_rust_it_says_what_to_install(backend, has_cargo, says, what):
    if says is not None:
        has_cargo(says)
    for hook in HOOKS:
        with pytest.raises(SystemExit) as raised:
            getattr(backend, hook)("folder")
        assert f"aquifer-cuda is built with Rust 1.95 or later, and {what}. Install Rust from" in str(raised.value)
        assert "or install a wheel" in str(raised.value)


def test_the_version_is_that_of_the_manifest(backend):
    manifest = (PACKAGE / "Cargo.toml").read_text()
    oldest = re.search(r'^rust-version = "(\d+)\.(\d+)"', manifest, re.MULTILINE)
    assert backend.OLDEST_RUST == tuple(map(int, oldest.groups()))
