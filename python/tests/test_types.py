"""The types that the package declares, as mypy and pyright read them."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="needs mypy")

PACKAGE = Path(__file__).parent.parent

#: What users read, and copy programs from.
TEXTS = [PACKAGE / "README.md", *sorted((PACKAGE.parent / "docs" / "guide").glob("*.md"))]

#: Each name of the package that a program gets only when it asks for it.
LAZY_NAMES = """
from typing import Any

import aquifer
from aquifer import AquiferNumbaManager, RMMNumbaManager, cupy_allocator, cupy_pinned_allocator, rmm_cupy_allocator
from aquifer import cuda_core, cupy, numba, numpy_handler, torch

managers: tuple[type, ...] = (AquiferNumbaManager, RMMNumbaManager, aquifer.AquiferNumbaManager, aquifer.RMMNumbaManager)
allocators = (cupy_allocator, cupy_pinned_allocator, rmm_cupy_allocator, aquifer.cupy_allocator)
array: Any = aquifer.cupy_pinned_allocator(1), aquifer.rmm_cupy_allocator(1)
resource = cuda_core.AquiferMemoryResource(0), aquifer.cuda_core.AquiferMemoryResource(0)
numba.set_memory_manager()
aquifer.numba.set_memory_manager()
torch.set_allocator()
with aquifer.torch.use_mem_pool(), numpy_handler(), aquifer.numpy_handler():
    cupy.set_allocator()
    aquifer.cupy.set_allocator()
locked: tuple[int, int] = aquifer.numpy.page_locked_arrays()
aquifer.pinned.set_limits(maximum_size="1GiB")
"""

#: Names of RMM, of the distribution whose module is ``rmm``.
RMM = """
import rmm
import rmm.mr
import rmm.statistics
from rmm.pylibrmm.memory_resource import PoolMemoryResource, get_current_device_resource
from rmm.pylibrmm.stream import DEFAULT_STREAM, Stream

stream: Stream = DEFAULT_STREAM
pool: PoolMemoryResource = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), maximum_pool_size=2**30)
rmm.mr.set_current_device_resource(pool)
current: rmm.mr.DeviceMemoryResource = get_current_device_resource()
buffer: rmm.DeviceBuffer = rmm.DeviceBuffer(size=100, stream=stream, mr=current)
with rmm.statistics.statistics():
    size: int = buffer.size
rmm.reinitialize(pool_allocator=True, initial_pool_size="1MiB")
made = rmm.mr.experimental.CudaAsyncManagedMemoryResource()
"""

#: Libraries that a checker is to know nothing of, whether they are there or not.
UNKNOWN = ("cuda", "cupy", "numba", "torch")

#: What a checker is told. Kernels have no types, so functions need none.
MYPY = f"""
[mypy]
strict = true
allow_untyped_defs = true
allow_untyped_calls = true
allow_untyped_decorators = true
[mypy-{",".join(f"{name}.*" for name in UNKNOWN)}]
ignore_missing_imports = true
follow_imports = skip
"""
PYRIGHT = {
    "typeCheckingMode": "strict",
    "exclude": ["typings"],
    "reportMissingImports": False,
    "reportMissingTypeStubs": False,
    "reportMissingModuleSource": False,
    "reportMissingParameterType": False,
    "reportUnknownArgumentType": False,
    "reportUnknownMemberType": False,
    "reportUnknownParameterType": False,
    "reportUnknownVariableType": False,
    "reportUntypedFunctionDecorator": False,
}

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


@pytest.fixture
def programs(tmp_path):
    """A folder with the programs that users read, and what a checker is told."""
    for text in TEXTS:
        for number, program in enumerate(re.findall(r"```python\n(.*?)```", text.read_text(), re.DOTALL)):
            (tmp_path / f"{text.stem.lower()}_{number}.py").write_text(program)
    (tmp_path / "lazy_names.py").write_text(LAZY_NAMES)
    for name in UNKNOWN:
        (tmp_path / "typings" / name).mkdir(parents=True)
        stub = "from typing import Any\ndef __getattr__(name: str) -> Any: ...\n"
        (tmp_path / "typings" / name / "__init__.pyi").write_text(stub)
    (tmp_path / "mypy.ini").write_text(MYPY)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    return tmp_path


def test_there_are_programs(programs):
    assert len(list(programs.glob("readme_*.py"))) >= 7


@pytest.fixture
def with_rmm(programs):
    (programs / "of_rmm.py").write_text(RMM)
    # In the place of a distribution that is installed.
    (programs / "rmm").symlink_to(PACKAGE / "rmm_module" / "rmm")
    return programs


def test_programs_of_the_texts(with_rmm):
    files = [path.name for path in sorted(with_rmm.glob("*.py"))]
    done = run("mypy", f"--cache-dir={with_rmm / 'cache'}", *files, folder=with_rmm)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rmm_module_is_typed(tmp_path):
    assert (PACKAGE / "rmm_module" / "rmm" / "py.typed").is_file()
    folder = PACKAGE / "rmm_module"
    settings = ["--strict", "--ignore-missing-imports", f"--cache-dir={tmp_path}"]
    done = run("mypy", *settings, "-p", "rmm", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def pyright(*arguments, folder):
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("needs pyright")
    return run("pyright", f"--pythonpath={sys.executable}", *arguments, folder=folder)


def test_programs_of_the_texts_with_pyright(with_rmm):
    done = pyright(*(path.name for path in sorted(with_rmm.glob("*.py"))), folder=with_rmm)
    assert done.returncode == 0, done.stdout + done.stderr
