"""``python -m aquifer``."""

import json
import os
import subprocess
import sys

import aquifer


def run(*arguments, **variables):
    """What the command prints in a process with these variables of the package, and no others."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AQUIFER_")}
    command = [sys.executable, "-m", "aquifer", *arguments]
    done = subprocess.run(command, env={**environment, **variables}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def told(**variables):
    """Both forms: the lines as pairs, and the JSON."""
    lines = run(**variables).replace("\n  ", "\0").splitlines()
    lines = dict(line.replace("\0", "\n").split(": ", 1) for line in lines)
    return lines, json.loads(run("--json", **variables))


def test_tells_the_device_the_stack_and_limits():
    lines, as_json = told(AQUIFER_BACKEND="sim", AQUIFER_STACK="pool(cuda, max=1MiB) | statistics")
    assert lines["aquifer"] == as_json["version"] == aquifer.__version__
    assert (lines["device"], lines["backend"], lines["driver"]) == ("0 of 1, simulated device", "simulated", "none")
    assert lines["stack"] == as_json["stack"] == "pool(cuda, maximum_size=1MiB, handles=off) | statistics"
    assert lines["pool maximum"] == "1048576 (1.0 MiB)"
    assert (lines["page-locked maximum"], lines["page-locked release threshold"]) == ("none", "none")
    assert (as_json["device"], as_json["device_name"], as_json["device_count"]) == (0, "simulated device", 1)
    assert (as_json["backend"], as_json["driver_version"]) == ("simulated", None)
    assert (as_json["pool_maximum"], as_json["pinned_maximum"], as_json["reason"]) == (1 << 20, None, None)


def test_without_a_device_it_says_why():
    # A machine that has no GPU, and one whose GPUs are hidden.
    lines, as_json = told(AQUIFER_BACKEND="cuda", CUDA_VISIBLE_DEVICES="")
    assert lines["device"] == f"none ({as_json['reason']})"
    assert as_json["reason"] and as_json["device"] is None and as_json["backend"] is None
    assert "stack" not in lines and as_json["stack"] is None


def test_a_stack_that_cannot_be_made_says_why():
    lines, as_json = told(AQUIFER_BACKEND="sim", AQUIFER_STACK="pol(cuda)")
    assert lines["device"] == "0 of 1, simulated device"
    assert lines["stack"] == f"none ({as_json['stack_reason']})"
    assert "pol" in as_json["stack_reason"] and as_json["stack"] is None


def test_tells_the_libraries_by_their_metadata(tmp_path):
    for name, version in [("cupy_cuda12x", "14.0.1"), ("cuda_core", "1.2.2")]:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        distribution = name.replace("_", "-")
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    # They would fail if they were imported.
    for name in ("cupy", "cuda"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)\n")
    lines, as_json = told(AQUIFER_BACKEND="sim", PYTHONPATH=str(tmp_path))
    assert (as_json["hosts"]["cupy"], as_json["hosts"]["cuda.core"]) == ("14.0.1", "1.2.2")
    assert "cuda.core 1.2.2, cupy 14.0.1" in lines["hosts"]


def test_imports_no_other_library(run_python):
    program = """
import runpy, sys
sys.argv = ["aquifer"]
runpy.run_module("aquifer", run_name="__main__", alter_sys=True)
print(sorted({"numpy", "numba", "cupy", "torch", "cuda"} & set(sys.modules)))
"""
    assert run_python(program).splitlines()[-1] == "[]"


def test_has_help():
    assert "--json" in run("--help")
