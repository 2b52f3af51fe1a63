"""The types that the package declares, as mypy reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="needs mypy")

PACKAGE = Path(__file__).parent.parent

PROGRAM = """
from __future__ import annotations

from typing import Any

import aquifer
from aquifer import DeviceBuffer, Stream, mr
from aquifer.statistics import Statistics


class FromCuPy:
    @property
    def ptr(self) -> int:
        return 0


class FromTorch:
    @property
    def cuda_stream(self) -> int:
        return 0


class FromCudaCore:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 0


for stream in (FromCuPy(), FromTorch(), FromCudaCore(), Stream()):
    DeviceBuffer(size=1, stream=stream)
import numpy

array: "numpy.ndarray[Any, numpy.dtype[numpy.float64]]" = aquifer.to_device(numpy.ones(1)).copy_to_host(numpy.ones(1))
host: bytearray = DeviceBuffer.to_device(b"x").copy_to_host(bytearray(1))
pool: mr.PoolMemoryResource = mr.PoolMemoryResource(mr.CudaMemoryResource(), "1MiB")
counted: Statistics = mr.StatisticsResourceAdaptor(pool).allocation_counts
current: mr.DeviceMemoryResource = mr.get_current_device_resource()
used: mr.DeviceMemoryResource = aquifer.use("pool")
sizes: dict[str, int] = current.pool_statistics()
address: int = current.allocate(1, FromTorch())


@aquifer.register_reinitialize_hook
def hook() -> int:
    return 1


@aquifer.statistics.profiler()
def function(size: int) -> str:
    return str(size)


number: int = hook()
text: str = function(1)

DeviceBuffer(10)                                  # wrong: misc, call-arg
DeviceBuffer(size="1")                            # wrong: arg-type
DeviceBuffer(size=1, stream=3)                    # wrong: arg-type
DeviceBuffer(size=1, stream=None)                 # wrong: arg-type
DeviceBuffer.to_device("text")                    # wrong: arg-type
DeviceBuffer(size=1).size = 2                     # wrong: misc
mr.PoolMemoryResource("cuda")                     # wrong: arg-type
mr.LimitingResourceAdaptor(pool, 1.5)             # wrong: arg-type
mr.set_current_device_resource(None)              # wrong: arg-type
function("1")                                     # wrong: arg-type
aquifer.reinitialize(pool=True)                   # wrong: call-arg


class Sub(DeviceBuffer):                          # wrong: misc
    pass
"""


def run(*arguments, folder):
    # By itself, as mypy has no promise for calls of its functions.
    return subprocess.run([sys.executable, "-m", *arguments], cwd=folder, capture_output=True, text=True, timeout=300)


def test_the_package_is_typed(tmp_path):
    done = run("mypy", f"--cache-dir={tmp_path}", folder=PACKAGE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_stub_is_the_native_module(tmp_path):
    done = run("mypy.stubtest", "aquifer._aquifer", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_programs_are_checked(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run("mypy", "--strict", f"--cache-dir={tmp_path}", "program.py", folder=tmp_path)
    told = {}
    for line in done.stdout.splitlines():
        if line.startswith("program.py:") and " error: " in line:
            told.setdefault(int(line.split(":")[1]), set()).add(line.rsplit("[", 1)[1].rstrip("]"))
    wrong = {
        number: set(line.split("# wrong: ")[1].split(", "))
        for number, line in enumerate(PROGRAM.splitlines(), start=1)
        if "# wrong: " in line
    }
    assert set(told) == set(wrong), done.stdout + done.stderr
    assert all(told[number] <= wrong[number] for number in wrong), done.stdout
