"""Names of the package that import another library, where that is missing and where it is there."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import aquifer
import pytest

#: Has the packages of `absent` not be installed.
ABSENT = """
import sys
from importlib.machinery import PathFinder
absent = {absent!r}
class Finder:
    find_distributions = PathFinder.find_distributions
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in absent else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
import aquifer
"""

LIBRARIES = {"numba", "numba_cuda", "cupy", "torch", "cuda"}

#: Names, and the package that each misses.
MISSING = {
    "numba": "numba",
    "AquiferNumbaManager": "numba",
    "RMMNumbaManager": "numba",
    "_numba_memory_manager": "numba",
    "cupy": "cupy",
    "cupy_allocator": "cupy",
    "cupy_pinned_allocator": "cupy",
    "rmm_cupy_allocator": "cupy",
    "torch": "torch",
    "cuda_core": "cuda",
}


def without(body: str, absent: set[str] = LIBRARIES) -> str:
    return ABSENT.format(absent=absent) + body


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_library_is_no_attribute(run_python, name):
    printed = run_python(
        without(f"""
assert not hasattr(aquifer, {name!r}) and getattr(aquifer, {name!r}, None) is None
try:
    aquifer.{name}
except AttributeError as error:
    print(error)
    assert isinstance(error.__cause__, ImportError), error.__cause__
""")
    )
    assert f"module 'aquifer' has no {name!r} without its library: No module named '{MISSING[name]}" in printed
    assert "install" in printed


@pytest.mark.parametrize("name", MISSING)
def test_an_import_of_a_missing_library_says_which(run_python, name):
    printed = run_python(
        without(f"""
try:
    from aquifer import {name}
except ImportError as error:
    print(error)
""")
    )
    assert f"No module named '{MISSING[name]}" in printed


def test_a_name_that_is_none():
    with pytest.raises(AttributeError, match="module 'aquifer' has no attribute 'nothing'"):
        aquifer.nothing  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'aquifer'"):
        from aquifer import nothing  # noqa: F401


@pytest.mark.parametrize("absent", [LIBRARIES, {"numba", "numba_cuda"}, {"cupy", "torch"}])
def test_what_looks_at_all_names(run_python, absent):
    printed = run_python(
        without(
            """
names = dir(aquifer)
print(*(name for name in names if name in aquifer._LAZY or name in aquifer._LAZY_MODULES))
assert "DeviceBuffer" in names and "numpy" in names
import inspect, pydoc, unittest.mock
members = dict(inspect.getmembers(aquifer))
assert set(names) - set(members) == set(), set(names) - set(members)
assert "DeviceBuffer" in pydoc.render_doc(aquifer, renderer=pydoc.plaintext)
assert unittest.mock.create_autospec(aquifer).use is not None
import contextlib, io
with contextlib.redirect_stdout(io.StringIO()) as text:
    help(aquifer)
assert "set_allocators" in text.getvalue()
from aquifer import *
""",
            absent,
        )
    )
    lazy = set(printed.split())
    if absent == LIBRARIES:
        assert lazy == set()
    for name in lazy:
        assert MISSING[name] not in absent


def test_dir_has_what_is_installed():
    names = set(dir(aquifer))
    assert ("numba" in names) == (importlib.util.find_spec("numba_cuda") is not None)
    assert ("AquiferNumbaManager" in names) == ("numba" in names)
    assert ("cupy_allocator" in names) == (importlib.util.find_spec("cupy") is not None)
    assert ("torch" in names) == (importlib.util.find_spec("torch") is not None)


def test_signatures_and_help_need_no_library(run_python):
    printed = run_python(
        without(
            """
import contextlib, inspect, io, pydoc
found = 0
for module in (aquifer, aquifer.mr, aquifer.numpy, aquifer.pinned, aquifer.statistics):
    for name in module.__all__:
        thing = getattr(module, name)
        members = [one for name, one in vars(thing).items() if name[0] != "_"] if isinstance(thing, type) else []
        # An exception takes anything, as Python's own do.
        is_error = isinstance(thing, type) and issubclass(thing, BaseException)
        for one in [*([] if is_error else [thing]), *members]:
            if inspect.isroutine(one) or isinstance(one, type):
                found += str(inspect.signature(one)).startswith("(")
        assert isinstance(thing, str) or pydoc.render_doc(thing, renderer=pydoc.plaintext)
with contextlib.redirect_stdout(io.StringIO()) as text:
    help(aquifer.mr.PoolMemoryResource)
assert ':param initial_pool_size: bytes that the pool takes at once, or a text such as ``"4MiB"``' in text.getvalue()
print(found)
""",
            LIBRARIES | {"numpy"},
        )
    )
    assert int(printed) > 120


def test_pydoc_as_a_program():
    done = subprocess.run([sys.executable, "-m", "pydoc", "aquifer"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "set_allocators(" in done.stdout
