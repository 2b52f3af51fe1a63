"""NBEP 7's own check, on a GPU: ``NUMBA_CUDA_MEMORY_MANAGER=aquifer python -m numba.runtests numba.cuda.tests``.

    python numba_runtests.py [--processes 8] [--timeout 550] [default aquifer rmm.allocators.numba]

It runs the line for each memory manager, and prints what each ran and what failed. The exit code is 1 if something failed with
Aquifer and not with Numba's own manager, which is ``default``. With ``--list`` it lists the tests that Numba finds.

It wants numba, numba-cuda and pytest, which some of the tests import. Those of CuPy run with cupy from 14 on and ml_dtypes.
A folder on PYTHONPATH has what numba-cuda 0.30.4 needs beside new libraries: NumPy 2.5 has no row_stack, and a module that pytest
skips ends unittest's search. So the processes that the tests start have it as well.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SITECUSTOMIZE = """
import sys

import numpy

if not hasattr(numpy, "row_stack"):
    numpy.row_stack = numpy.vstack

if "numba.runtests" in sys.orig_argv:
    import unittest

    import pytest

    load = unittest.TestLoader.loadTestsFromName

    def load_or_skip(self, name, module=None):
        try:
            return load(self, name, module)
        except (pytest.skip.Exception, unittest.SkipTest) as skipped:
            reason = str(skipped)

        class Skipped(unittest.TestCase):
            @unittest.skip(reason)
            def test_module(self):
                pass

        Skipped.__qualname__ = name
        return unittest.defaultTestLoader.loadTestsFromTestCase(Skipped)

    unittest.TestLoader.loadTestsFromName = load_or_skip
"""

#: These write over all of the driver's allocation that their array lies in, which is a pool's. AQUIFER_STACK=cuda has none.
WRITES_BESIDE_ITS_ARRAY = {"test_host_alloc_pinned"}

RAN = re.compile(r"^Ran (\d+) tests? in [\d.]+s$", re.MULTILINE)
RESULT = re.compile(r"^(?:OK|FAILED)(?: \((.*)\))?$", re.MULTILINE)
FAILED = re.compile(r"^(?:FAIL|ERROR): (\S+) \((\S+)\)", re.MULTILINE)


class Outcome:
    """What the processes of a manager said."""

    def __init__(self, texts: list[str], seconds: float) -> None:
        self.seconds = seconds
        self.ran = 0
        self.counts = dict.fromkeys(("failures", "errors", "skipped", "expected failures", "unexpected successes"), 0)
        self.failed: set[str] = set()
        #: Of processes that ended without a result.
        self.broken = []
        for text in texts:
            ran, result = RAN.search(text), RESULT.search(text)
            if ran is None or result is None:
                self.broken.append("\n".join(text.splitlines()[-15:]))
                continue
            self.ran += int(ran[1])
            for part in filter(None, (result[1] or "").split(", ")):
                name, number = part.split("=")
                self.counts[name] += int(number)
            # `test_a (module.Class.test_a)` from Python 3.11 on, `test_a (module.Class)` before.
            for test, place in FAILED.findall(text):
                self.failed.add(place if place.endswith(test) else f"{place}.{test}")

    def __str__(self) -> str:
        counts = ", ".join(f"{name}={number}" for name, number in self.counts.items() if number)
        return f"Ran {self.ran} tests in {self.seconds:.1f} s: {counts}"


def run(manager: str, processes: int, timeout: float, arguments: list[str]) -> Outcome:
    """Numba's tests by a memory manager, in parts that run at once."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(SITECUSTOMIZE)
        environment = {**os.environ, "NUMBA_CUDA_MEMORY_MANAGER": manager}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        began = time.monotonic()
        outputs = [Path(folder, f"{part}.txt") for part in range(processes)]
        started = []
        for part, output in enumerate(outputs):
            command = [sys.executable, "-W", "ignore", "-m", "numba.runtests", *arguments, "-j", f"{part}:{processes}"]
            with output.open("w") as file:
                process = subprocess.Popen(
                    [*command, "numba.cuda.tests"], stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=folder
                )
            started.append(process)
        for process in started:
            try:
                process.wait(max(1.0, timeout - (time.monotonic() - began)))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        texts = [output.read_text(errors="replace") for output in outputs]
        return Outcome(texts, time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("managers", nargs="*", default=["default", "aquifer"])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for each manager")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "sitecustomize.py").write_text(SITECUSTOMIZE)
            command = [sys.executable, "-m", "numba.runtests", "-l", "numba.cuda.tests"]
            return subprocess.run(command, env={**os.environ, "PYTHONPATH": folder}, cwd=folder).returncode
    outcomes = {}
    for manager in options.managers:
        outcome = outcomes[manager] = run(manager, options.processes, options.timeout, [])
        print(f"{manager}: {outcome}", flush=True)
        for test in sorted(outcome.failed):
            print(f"    {test}")
        for tail in outcome.broken:
            print(f"    a process ended without a result:\n{tail}")
    if any(outcome.broken for outcome in outcomes.values()):
        return 2
    if not {"default", "aquifer"} <= outcomes.keys():
        return 0
    more = outcomes["aquifer"].failed - outcomes["default"].failed
    more = {test for test in more if test.rpartition(".")[2] not in WRITES_BESIDE_ITS_ARRAY}
    print(f"{len(more)} more with aquifer than with Numba's own manager: {sorted(more)}")
    return int(bool(more))


if __name__ == "__main__":
    sys.exit(main())
