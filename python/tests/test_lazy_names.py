"""Names of the package that import another library, where that is missing and where it is there."""

from __future__ import annotations

import importlib.util

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
