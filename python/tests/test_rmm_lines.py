"""The lines of Python in RMM's README, in the article that introduced it and in NBEP 7, after ``import aquifer as rmm`` alone."""

from __future__ import annotations

import csv
import doctest
import gc
import importlib.util
from types import SimpleNamespace

import aquifer
import aquifer as rmm
import numpy
import pytest
from aquifer import _on_gpu

# Without the lines that import RMM. Addresses are others each time.

README = """
DeviceBuffers:

>>> buf = rmm.DeviceBuffer(size=100)
>>> buf.size
100
>>> buf.ptr   # doctest: +ELLIPSIS
1...
>>> import numpy as np
>>> a = np.array([1, 2, 3], dtype='float64')
>>> buf = rmm.to_device(a.tobytes())
>>> buf.size
24
>>> np.frombuffer(buf.tobytes())
array([1., 2., 3.])

MemoryResource objects:

>>> rmm.mr.set_current_device_resource(rmm.mr.ManagedMemoryResource())
>>> pool = rmm.mr.PoolMemoryResource(
...     rmm.mr.CudaMemoryResource(),
...     initial_pool_size=2**30,
...     maximum_pool_size=2**32
... )
>>> rmm.mr.set_current_device_resource(pool)

and what the text names:

>>> rmm.mr.FixedSizeMemoryResource, rmm.mr.BinningMemoryResource   # doctest: +ELLIPSIS
(<class 'aquifer.mr.FixedSizeMemoryResource'>, <class 'aquifer.mr.BinningMemoryResource'>)
>>> rmm.reinitialize()
"""

ARTICLE = """
DeviceBuffer objects:

>>> buf = rmm.DeviceBuffer(size=100)
>>> buf.size
100
>>> buf.ptr   # doctest: +ELLIPSIS
1...
>>> import numpy as np
>>> a = np.array([1, 2, 3], dtype='float64')
>>> buf = rmm.to_device(a.tobytes())
>>> buf.size
24
>>> np.frombuffer(buf.tobytes())
array([1., 2., 3.])

MemoryResource objects:

>>> rmm.reinitialize(pool_allocator=True)
>>> rmm.mr.set_current_device_resource(rmm.mr.ManagedMemoryResource())
>>> pool = rmm.mr.PoolMemoryResource(
...     upstream=rmm.mr.CudaMemoryResource(),
...     initial_pool_size=2**30,
...     maximum_pool_size=2**32
... )
>>> rmm.mr.set_current_device_resource(pool)
"""


@pytest.mark.parametrize("text", [README, ARTICLE], ids=["readme", "article"])
def test_lines(text):
    names = {"rmm": rmm}
    test = doctest.DocTestParser().get_doctest(text, names, "lines", None, None)
    failures = []
    runner = doctest.DocTestRunner()
    result = runner.run(test, out=failures.append, clear_globs=False)
    assert (result.failed, "".join(failures)) == (0, "")
    assert result.attempted >= 10
    pool = rmm.mr.get_current_device_resource() if text is ARTICLE else test.globs["pool"]
    assert type(pool) is rmm.mr.PoolMemoryResource and pool.pool_size() == 2**30
    assert pool.text == "pool(cuda, initial_size=1GiB, maximum_size=4GiB, handles=off)"
    assert test.globs["buf"].ptr > 0
    # What the texts say of the pool: blocks are drawn from memory that is there.
    rmm.mr.set_current_device_resource(pool)
    buffer = rmm.DeviceBuffer(size=2**20)
    assert pool.pool_statistics()["live_bytes"] == 2**20 and pool.pool_size() == 2**30
    assert buffer.mr is pool


def test_help_is_there():
    # "See help(rmm.reinitialize)", "See help(rmm.mr)".
    assert "pool_allocator" in rmm.reinitialize.__doc__ and "log_file_name" in str(rmm.reinitialize.__annotations__)
    assert rmm.mr.__doc__
    for name in rmm.mr.__all__:
        assert getattr(rmm.mr, name).__doc__, name
    for name in rmm.__all__:
        if name not in (
            "AquiferNumbaManager",
            "RMMNumbaManager",
            "cupy_allocator",
            "cupy_pinned_allocator",
            "rmm_cupy_allocator",
        ):
            assert getattr(rmm, name).__doc__, name


def test_reinitialize_with_a_log(in_folder):
    rmm.reinitialize(pool_allocator=True)
    assert type(rmm.mr.get_current_device_resource()) is rmm.mr.PoolMemoryResource
    rmm.reinitialize(pool_allocator=True, logging=True, log_file_name="test.csv")
    rmm.to_device(numpy.arange(3.0).tobytes())
    rmm.reinitialize()
    lines = (in_folder / "test.dev0.csv").read_text().splitlines()
    assert lines[0] == "Thread,Time,Action,Pointer,Size,Stream"
    assert [line.split(",")[2:5:2] for line in lines[1:]] == [["allocate", "24"], ["free", "24"]]


def allocates_80_bytes():
    """NBEP 7's ``d_a = cuda.to_device(np.zeros(10)); del d_a``, by the package's own buffer."""
    buffer = rmm.to_device(numpy.zeros(10).tobytes())
    del buffer


def allocates_80_bytes_by_numbas_plug_in():
    pytest.importorskip("numba_cuda", reason="needs numba-cuda")
    # What the plug-in asks of Numba's context.
    manager = rmm.RMMNumbaManager(context=SimpleNamespace(device=SimpleNamespace(id=0)))
    memory = manager.memalloc(80)
    del memory
    gc.collect()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("allocates", [allocates_80_bytes, allocates_80_bytes_by_numbas_plug_in])
def test_what_stands_for_csv_log(in_folder, allocates, monkeypatch):
    # No kernel runs: the simulated device's memory does.
    monkeypatch.setattr(_on_gpu, "_ASKED", {"Numba"})
    # NBEP 7 ends with print(rmm.csv_log()), whose rows begin with Alloc,0,0x7fae06600000,0,80 and Free,0,0x7fae06600000,0,0.
    assert not hasattr(rmm, "csv_log")
    rmm.enable_logging("log.csv")
    allocates()
    name = rmm.get_log_filenames()[0]
    rmm.disable_logging()
    with open(name) as file:
        rows = list(csv.DictReader(file))
    assert [(row["Action"], row["Size"]) for row in rows] == [("allocate", "80"), ("free", "80")]
    assert rows[0]["Pointer"] == rows[1]["Pointer"]


def test_to_device_is_of_both_names():
    assert rmm.to_device(b"abc").tobytes() == rmm.DeviceBuffer.to_device(b"abc").tobytes() == b"abc"
    assert type(rmm.to_device(b"abc")) is rmm.DeviceBuffer


def is_installed(name):
    return importlib.util.find_spec(name) is not None


@pytest.mark.skipif(not is_installed("cupy"), reason="needs CuPy")
def test_cupys_lines():
    # cupy.cuda.set_allocator(rmm.rmm_cupy_allocator)
    import cupy

    assert callable(cupy.cuda.set_allocator)
    assert rmm.rmm_cupy_allocator is aquifer.cupy.cupy_allocator
    assert callable(rmm.rmm_cupy_allocator)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(not is_installed("numba_cuda"), reason="needs numba-cuda")
def test_numbas_lines():
    # cuda.set_memory_manager(rmm.RMMNumbaManager), and NUMBA_CUDA_MEMORY_MANAGER=rmm
    from numba import cuda

    assert callable(cuda.set_memory_manager)
    assert issubclass(rmm.RMMNumbaManager, cuda.BaseCUDAMemoryManager)
    assert rmm._numba_memory_manager is rmm.RMMNumbaManager


def test_names():
    assert set(rmm.__all__) <= {
        *dir(rmm),
        "AquiferNumbaManager",
        "RMMNumbaManager",
        "cupy_allocator",
        "cupy_pinned_allocator",
        "rmm_cupy_allocator",
    }
    with pytest.raises(AttributeError, match="module 'aquifer' has no attribute 'pond'"):
        rmm.pond
    with pytest.raises(ImportError, match="pond"):
        exec("from aquifer import pond")
    assert rmm.__version__.count(".") == 2


def test_import_imports_no_library(run_python):
    program = """
import sys, aquifer
print(sorted(name for name in ("numpy", "cupy", "numba", "torch", "cuda") if name in sys.modules))
aquifer.to_device(b"abc").tobytes()
print("numpy" in sys.modules)
"""
    assert run_python(program).split("\n") == ["[]", "False", ""]


def test_set_allocators_of_what_is_unknown():
    with pytest.raises(
        ValueError, match=r"\['jax'\] have no allocator to set here .the libraries are cupy, numba, torch"
    ):
        aquifer.set_allocators("jax", "cupy")


@pytest.mark.skipif(is_installed("torch"), reason="is of a library that is not there")
def test_set_allocators_of_what_is_not_installed():
    with pytest.raises(ImportError, match="torch"):
        aquifer.set_allocators("torch")
