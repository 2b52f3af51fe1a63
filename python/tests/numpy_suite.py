"""NumPy's own tests with Aquifer's handler: a plug-in for pytest.

``PYTHONPATH=tests python -m pytest -q -p numpy_suite -m "not slow" --pyargs numpy._core numpy.lib numpy.ma numpy.linalg
numpy.fft numpy.random``

The variable ``AQUIFER_SUITE_SMALLEST`` has the size from which arrays are page-locked: with 1, nearly all are. With 0 the
handler is not set. The counts of tests are the same in each of the three.

Some of the tests leak arrays, without a handler as well. With the variable ``AQUIFER_SUITE_TRACES``, which takes ten times as
long, the run fails if an array is left in page-locked memory that NumPy itself does not count, by ``tracemalloc``. Without
it, the run fails if more arrays are left than NumPy's tests leak.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import tracemalloc
import types

import numpy
import pytest

import aquifer

TRACES = bool(os.environ.get("AQUIFER_SUITE_TRACES"))

#: Arrays that the tests of NumPy 2.5 leak, and their bytes, and some more.
LEAKED = (500, 16 << 20)

SMALLEST = int(os.environ.get("AQUIFER_SUITE_SMALLEST", aquifer.numpy.SMALLEST))

#: They make arrays that stay when they are imported: before the handler is set.
MODULES = [
    "numpy.ctypeslib",
    "numpy.fft",
    "numpy.lib.recfunctions",
    "numpy.linalg",
    "numpy.ma",
    "numpy.ma.mrecords",
    "numpy.polynomial",
    "numpy.random",
    "numpy.testing",
]

_stack = contextlib.ExitStack()
_sessions: list[pytest.Session] = []


def pytest_configure() -> None:
    for module in MODULES:
        importlib.import_module(module)
    # Once each, as NumPy keeps what they compute.
    for kind in "efdgFDG":
        numpy.finfo(kind)
    if TRACES:
        tracemalloc.start()
    if SMALLEST > 0:
        _stack.enter_context(aquifer.numpy_handler(smallest=SMALLEST))
        made = numpy.empty(SMALLEST, "u1")
        assert numpy._core.multiarray.get_handler_name(made) == "aquifer_pinned"
        assert aquifer.numpy.page_locked_arrays() == (1, SMALLEST)


def pytest_sessionstart(session: pytest.Session) -> None:
    _sessions.append(session)


def traced() -> list[int]:
    """The sizes of the memory that NumPy has of its handlers and has not freed, as NumPy tells ``tracemalloc``."""
    domain = tracemalloc.DomainFilter(True, numpy.lib.tracemalloc_domain)
    traces = tracemalloc.take_snapshot().filter_traces([domain]).traces
    return [trace.size for trace in traces if trace.size >= max(SMALLEST, 1)]


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    _stack.close()
    before, _ = aquifer.numpy.page_locked_arrays()
    # The arrays of tests: in pytest's items and fixtures, in their modules, in the last traceback.
    for session in _sessions:
        vars(session._fixturemanager).clear()
        status = session.exitstatus
        vars(session).clear()
        session.exitstatus = status
    for name in ["last_type", "last_value", "last_traceback", "last_exc"]:
        vars(sys).pop(name, None)
    for name in [name for name in sys.modules if ".tests" in name]:
        module = vars(sys.modules.pop(name))
        # Caches of pytest's keep some classes.
        for kind in [it for it in module.values() if isinstance(it, type) and it.__module__ == name]:
            for attribute in [it for it in vars(kind) if not it.startswith("__")]:
                delattr(kind, attribute)
        module.clear()
    for it in gc.get_objects():
        # Those of parameters, by the marks of functions that are kept as well.
        if isinstance(it, types.FunctionType) and ".tests" in (it.__module__ or ""):
            vars(it).clear()
    for _ in range(3):
        gc.collect()
    arrays, bytes_ = aquifer.numpy.page_locked_arrays()
    print(f"page-locked: {before} arrays at the end, {arrays} of {bytes_} bytes after a collection")
    message = "arrays are left in page-locked memory"
    assert arrays <= LEAKED[0] and bytes_ <= LEAKED[1], message
    if not TRACES:
        return
    left = traced()
    print(f"NumPy's own count: {len(left)} of {sum(left)} bytes")
    if SMALLEST >= 1024:
        assert (arrays, bytes_) == (len(left), sum(left)), message
    elif SMALLEST > 0:
        # NumPy counts the smaller blocks of its own cache, too: those of scalars.
        assert arrays <= len(left) and bytes_ <= sum(left), message
