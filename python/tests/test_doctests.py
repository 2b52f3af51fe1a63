"""The examples in the documentation of modules, classes and functions, the native ones included."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import aquifer
import pytest

MODULES = ["aquifer", *(f"aquifer.{module.name}" for module in pkgutil.iter_modules(aquifer.__path__))]

#: Modules of other libraries, which have to be there.
OTHERS = {"aquifer.cuda_core", "aquifer.cupy", "aquifer.numba", "aquifer.torch"}

#: Modules that have examples which run here.
WITH_EXAMPLES = {
    "aquifer",
    "aquifer._aquifer",
    "aquifer._debug_log",
    "aquifer._map",
    "aquifer._reinitialize",
    "aquifer._set_allocators",
    "aquifer._sleep",
    "aquifer._statistics",
    "aquifer._stream_pool",
    "aquifer.mr",
    "aquifer.numpy",
    "aquifer.pinned",
    "aquifer.statistics",
}


@pytest.mark.parametrize("name", MODULES)
def test_examples(name, in_folder):
    if name in OTHERS:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            pytest.skip(f"needs another library: {error}")
    else:
        module = importlib.import_module(name)
    failures = []
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__):
        runner.run(test, out=failures.append)
    result = runner.summarize(verbose=False)
    assert result.failed == 0, "".join(failures)
    assert (result.attempted > 0) == (name in WITH_EXAMPLES)
    assert module.__doc__


def test_example_by_itself(named, in_folder):
    """As a user runs it who copies it out of ``help``: what it uses, it imports."""
    if "torch" in named.name:
        pytest.skip("all of its examples need a GPU")
    test = doctest.DocTestParser().get_doctest(named.doc, {"__name__": "__main__"}, named.name, None, None)
    failures = []
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
    runner.run(test, out=failures.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(failures)
