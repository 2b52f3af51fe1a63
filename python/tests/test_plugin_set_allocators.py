"""`aquifer.set_allocators` with each library and without it, and what `import aquifer` imports."""

import importlib.util
import os
import subprocess
import sys

import pytest

HAS = {name: importlib.util.find_spec(name) is not None for name in ["cupy", "numba_cuda", "torch"]}

# Has some packages not be installed.
ABSENT = """
import sys
from importlib.machinery import PathFinder
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in absent else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""

# Libraries of the test's own, of which each notes what is set.
PRESENT = """
import types
events = []
def module(name, **members):
    made = sys.modules[name] = types.ModuleType(name)
    vars(made).update(members)
    return made
def noting(event):
    return lambda: events.append(event)
for name in libraries:
    if name == "torch":
        cuda = types.SimpleNamespace(is_built=lambda: True)
        module("torch", backends=types.SimpleNamespace(cuda=cuda))
        module("aquifer.torch", set_allocator=noting("torch"))
    if name == "cupy":
        module("cupy")
        module("aquifer.cupy", set_allocator=noting("cupy"))
    if name == "numba":
        module("numba_cuda")
        module("aquifer.numba", set_memory_manager=noting("numba"))
"""


def run(code: str) -> str:
    environment = {**os.environ, "AQUIFER_BACKEND": "sim"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


LARGE = ["numpy", "numba", "numba_cuda", "cupy", "torch", "cuda", "scipy", "pandas", "rmm", "pytest", "asyncio"]


@pytest.mark.parametrize("code", [
    "import aquifer",
    "import aquifer, aquifer.mr, aquifer.statistics, aquifer.numpy",
    "import aquifer; aquifer.use('pool(cuda)'); b = aquifer.to_device(b'x' * 1000); b.tobytes(); b.__dlpack__(); del b",
    "import aquifer; dir(aquifer); repr(aquifer.memory_map())",
    "from aquifer import DeviceBuffer, Stream, mr, numpy_handler, set_allocators",
])
def test_no_library_is_imported_that_is_not_asked_for(code):
    names = run(code + "\nimport sys\nprint(*sorted({name.partition('.')[0] for name in sys.modules}))").split()
    assert [name for name in LARGE if name in names] == []
    plugins = run(code + "\nimport sys\nprint(*[name for name in sys.modules if name.startswith('aquifer.')])").split()
    assert not {"aquifer.numba", "aquifer.cupy", "aquifer.torch", "aquifer.cuda_core"} & set(plugins)


@pytest.mark.parametrize(("library", "package"), [("numba", "numba"), ("cupy", "cupy"), ("torch", "torch")])
def test_a_library_that_is_named_and_absent_is_an_import_error_of_its_name(library, package):
    run(f"""
absent = {{{package!r}, {package + "_cuda"!r}}}
{ABSENT}
import aquifer
try:
    aquifer.set_allocators({library!r})
except ImportError as error:
    assert type(error) is ModuleNotFoundError and error.name == {package!r}, repr(error)
else:
    raise AssertionError
# Nor is there half of a module.
assert "aquifer.{library}" not in sys.modules
""")


def test_without_any_library_none_is_set():
    run(f"""
absent = {{"numba", "numba_cuda", "cupy", "torch", "numpy", "cuda"}}
{ABSENT}
import aquifer
assert aquifer.set_allocators() == []
assert not absent & set(sys.modules)
# What needs no library goes on.
with_bytes = aquifer.to_device(b"abc")
assert with_bytes.tobytes() == b"abc"
try:
    with aquifer.numpy_handler():
        pass
except ModuleNotFoundError as error:
    assert "numpy" in error.name
else:
    raise AssertionError
""")


@pytest.mark.parametrize("libraries", [
    [], ["cupy"], ["numba"], ["torch"], ["cupy", "numba"], ["cupy", "torch"], ["numba", "torch"], ["cupy", "numba", "torch"],
])
def test_without_names_those_that_are_there_are_set(libraries):
    run(f"""
libraries = {libraries!r}
absent = {{"numba", "numba_cuda", "cupy", "torch"}}
{ABSENT}
{PRESENT}
import aquifer
assert aquifer.set_allocators() == libraries
assert events == libraries
""")


def test_with_names_those_alone_are_set():
    run(f"""
libraries = ["cupy", "numba", "torch"]
absent = set()
{ABSENT}
{PRESENT}
import aquifer
assert aquifer.set_allocators("torch", "cupy") == ["torch", "cupy"]
assert events == ["torch", "cupy"]
assert aquifer.set_allocators("numba", "numba") == ["numba"]
assert events == ["torch", "cupy", "numba"]
""")


def test_none_is_set_if_one_is_absent():
    run(f"""
libraries = ["cupy"]
absent = {{"torch"}}
{ABSENT}
{PRESENT}
import aquifer
try:
    aquifer.set_allocators("cupy", "torch")
except ModuleNotFoundError as error:
    assert error.name == "torch"
else:
    raise AssertionError
assert events == []
""")


def test_a_pytorch_without_cuda_is_left_out():
    run(f"""
libraries = ["cupy", "torch"]
absent = {{"numba", "numba_cuda"}}
{ABSENT}
{PRESENT}
sys.modules["torch"].backends.cuda.is_built = lambda: False
import aquifer
assert aquifer.set_allocators() == ["cupy"]
assert events == ["cupy"]
""")


def test_unknown_names_are_an_error_that_has_the_known_ones():
    run("""
import aquifer, sys
try:
    aquifer.set_allocators("jax", "cupy", "tensorflow")
except ValueError as error:
    assert "['jax', 'tensorflow']" in str(error) and "cupy, numba, torch" in str(error)
else:
    raise AssertionError
assert "cupy" not in sys.modules
""")


@pytest.mark.skipif(not HAS["cupy"], reason="needs CuPy")
def test_cupy_alone():
    run("""
import aquifer, sys
assert aquifer.set_allocators("cupy") == ["cupy"]
import cupy
assert cupy.cuda.get_allocator() is aquifer.cupy_allocator
assert not {"numba", "numba_cuda", "torch"} & set(sys.modules)
""")


@pytest.mark.skipif(not HAS["numba_cuda"], reason="needs numba-cuda")
def test_numba_alone():
    run("""
import aquifer, sys
assert aquifer.set_allocators("numba") == ["numba"]
from numba.cuda.cudadrv import driver
assert driver._memory_manager is aquifer.AquiferNumbaManager
assert not {"cupy", "torch"} & set(sys.modules)
""")


@pytest.mark.skipif(not HAS["cupy"] or not HAS["numba_cuda"] or HAS["torch"], reason="needs CuPy and numba-cuda, and no PyTorch")
def test_all_that_are_installed_here():
    run("""
import aquifer
assert aquifer.set_allocators() == ["cupy", "numba"]
import cupy
from numba.cuda.cudadrv import driver
assert cupy.cuda.get_allocator() is aquifer.cupy_allocator
assert driver._memory_manager is aquifer.AquiferNumbaManager
""")
