"""Logs of processes that end by `os._exit`, as the children of multiprocessing do."""

from __future__ import annotations

import multiprocessing
import sys

import pytest

METHODS = multiprocessing.get_all_start_methods()

#: Of a file, as a child that is spawned imports it.
MODULE = """
import multiprocessing, os, sys
{imports}

def work(number):
    import aquifer
    aquifer.use("pool(cuda)")
    aquifer.enable_logging(f"child{{number}}.csv")
    for _ in range(500):
        aquifer.DeviceBuffer(size=1000)

def by_text(number):
    import aquifer
    aquifer.use(f"cuda | logging(child{{number}}.dev0.csv)")
    for _ in range(500):
        aquifer.DeviceBuffer(size=1000)

def main():
    {main}

if __name__ == "__main__":
    main()
"""


def rows(folder, number):
    """The allocations and the frees of a child's log."""
    lines = (folder / f"child{number}.dev0.csv").read_text().splitlines()
    return [sum(f",{action}," in line for line in lines) for action in ("allocate", "free")]


@pytest.fixture
def run_module(run_python, in_folder):
    """Runs a file with this in its `main`."""

    def run(main, imports=""):
        (in_folder / "module.py").write_text(MODULE.format(imports=imports, main=main.replace("\n", "\n    ")))
        return run_python("import subprocess, sys; sys.exit(subprocess.call([sys.executable, 'module.py']))")

    return run


PROCESSES = """
context = multiprocessing.get_context("{method}")
processes = [context.Process(target={target}, args=(number,)) for number in range(3)]
for process in processes:
    process.start()
for process in processes:
    process.join()
    print(process.exitcode)
"""


@pytest.mark.parametrize("target", ["work", "by_text"])
@pytest.mark.parametrize("imports", ["", "import aquifer"])
@pytest.mark.parametrize("method", METHODS)
def test_processes(in_folder, run_module, method, imports, target):
    printed = run_module(PROCESSES.format(method=method, target=target), imports)
    assert printed.split() == ["0"] * 3
    assert [rows(in_folder, number) for number in range(3)] == [[500, 500]] * 3


@pytest.mark.skipif("forkserver" not in METHODS, reason="needs forkserver")
def test_a_forkserver_that_has_imported_the_package(in_folder, run_module):
    preload = "multiprocessing.set_forkserver_preload(['aquifer'])"
    printed = run_module(preload + PROCESSES.format(method="forkserver", target="work"))
    assert printed.split() == ["0"] * 3
    assert [rows(in_folder, number) for number in range(3)] == [[500, 500]] * 3


@pytest.mark.parametrize("method", METHODS)
def test_a_pool_of_workers(in_folder, run_module, method):
    run_module(f"""
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("{method}")) as workers:
    list(workers.map(work, range(4)))
""")
    assert [rows(in_folder, number) for number in range(4)] == [[500, 500]] * 4


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_fork_that_flushes_by_itself(in_folder, run_python):
    printed = run_python("""
import os, aquifer
child = os.fork()
if child == 0:
    aquifer.use("pool(cuda)")
    aquifer.enable_logging("child0.csv")
    for _ in range(500):
        aquifer.DeviceBuffer(size=1000)
    aquifer.disable_logging()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert printed == "0\n"
    assert rows(in_folder, 0) == [500, 500]
