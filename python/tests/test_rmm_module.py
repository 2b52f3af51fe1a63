"""The module that ``import rmm`` finds, of the distribution ``aquifer-cuda-rmm``."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "rmm_module"

#: What RMM 26.10 has in each of its modules.
NAMES = {
    "rmm": "DeviceBuffer RMMError __git_commit__ __version__ disable_logging enable_logging flush_logger get_flush_level "
    "get_log_filenames get_logging_level is_initialized level_enum mr register_reinitialize_hook reinitialize "
    "set_flush_level set_logging_level should_log unregister_reinitialize_hook",
    "rmm.rmm": "RMMError is_initialized register_reinitialize_hook reinitialize unregister_reinitialize_hook",
    "rmm.mr": "ArenaMemoryResource BinningMemoryResource CallbackMemoryResource CudaAsyncMemoryResource "
    "CudaAsyncViewMemoryResource CudaMemoryResource DeviceMemoryResource FailureCallbackResourceAdaptor "
    "FixedSizeMemoryResource LimitingResourceAdaptor LoggingResourceAdaptor ManagedMemoryResource "
    "PinnedHostMemoryResource PoolMemoryResource PrefetchResourceAdaptor SamHeadroomMemoryResource "
    "StatisticsResourceAdaptor SystemMemoryResource TrackingResourceAdaptor UpstreamResourceAdaptor "
    "available_device_memory disable_logging enable_logging experimental get_current_device_resource get_log_filenames "
    "get_per_device_resource is_initialized set_current_device_resource set_per_device_resource",
    "rmm.mr.experimental": "CudaAsyncManagedMemoryResource",
    "rmm.pylibrmm": "CudaStreamFlags CudaStreamPool DeviceBuffer memory_resource",
    "rmm.pylibrmm.device_buffer": "DeviceBuffer copy_device_to_ptr copy_host_to_ptr copy_ptr_to_host to_device",
    "rmm.pylibrmm.stream": "CudaStreamFlags DEFAULT_STREAM LEGACY_DEFAULT_STREAM PER_THREAD_DEFAULT_STREAM Stream",
    "rmm.pylibrmm.cuda_stream_pool": "CudaStreamPool",
    "rmm.pylibrmm.logger": "flush_logger get_flush_level get_logging_level level_enum set_flush_level "
    "set_logging_level should_log",
    "rmm.pylibrmm.memory_resource": "CudaMemoryResource PoolMemoryResource experimental get_current_device_resource",
    "rmm.pylibrmm.memory_resource._memory_resource": "PoolMemoryResource _flush_logs get_current_device_resource",
    "rmm.pylibrmm.memory_resource.experimental": "CudaAsyncManagedMemoryResource",
    "rmm.statistics": "ProfilerContext ProfilerRecords Statistics _get_descriptive_name_of_object "
    "default_profiler_records enable_statistics get_statistics pop_statistics profiler push_statistics statistics",
    "rmm.librmm._logger": "level_enum",
    "rmm._cuda.gpu": "CUDADriverError CUDARuntimeError deviceGetName driverGetVersion getDevice getDeviceAttribute "
    "getDeviceCount getDeviceProperties runtimeGetVersion setDevice",
    "rmm.allocators.torch": "rmm_torch_allocator",
}


@pytest.fixture
def run_rmm(run_python):
    """Runs a program that finds the module."""
    path = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
    return lambda program, **variables: run_python(program, PYTHONPATH=path, **variables).strip()


@pytest.mark.parametrize("module", NAMES)
def test_names(run_rmm, module):
    program = f"import importlib; found = importlib.import_module({module!r}); print(*sorted(n for n in {NAMES[module].split()!r} if not hasattr(found, n)))"
    assert run_rmm(program) == ""


def test_the_names_are_aquifers(run_rmm):
    program = """
import aquifer, rmm, rmm.statistics
from rmm.pylibrmm.stream import DEFAULT_STREAM, Stream
print(rmm.DeviceBuffer is aquifer.DeviceBuffer, rmm.mr.PoolMemoryResource is aquifer.mr.PoolMemoryResource,
      rmm.statistics.profiler is aquifer.statistics.profiler, DEFAULT_STREAM == aquifer.default_stream(),
      Stream is aquifer.Stream, rmm.RMMError is aquifer.Error)
"""
    assert set(run_rmm(program).split()) == {"True"}


def test_the_per_thread_default_stream_is_refused_with_a_reason(run_rmm):
    program = """
import rmm
from rmm.pylibrmm.stream import PER_THREAD_DEFAULT_STREAM
try: rmm.DeviceBuffer(size=1, stream=PER_THREAD_DEFAULT_STREAM)
except ValueError as error: print(error)
"""
    assert "the per-thread default stream is another one on each thread" in run_rmm(program)


def test_an_import_opens_no_device(run_rmm):
    """A library that imports it forks workers later."""
    program = """
import os, rmm, rmm.mr, rmm.pylibrmm.stream, rmm.statistics
child = os.fork()
if not child:
    rmm.DeviceBuffer(size=10)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    assert run_rmm(program) == "0"


def test_a_program_of_rmms_documentation(run_rmm):
    program = """
import rmm

pool = rmm.mr.PoolMemoryResource(
    rmm.mr.CudaMemoryResource(), initial_pool_size="1MiB", maximum_pool_size=2**30
)
rmm.mr.set_current_device_resource(pool)
buf = rmm.DeviceBuffer(size=100)
print(buf.size, buf.ptr != 0)
buf = rmm.DeviceBuffer.to_device(b"abc")
print(buf.copy_to_host().tolist(), buf.tobytes())

base_mr = rmm.mr.CudaMemoryResource()
def allocate_func(size, stream):
    print(f"Allocating {size} bytes")
    return base_mr.allocate(size, stream)
def deallocate_func(ptr, size, stream):
    print(f"Deallocating {size} bytes")
    return base_mr.deallocate(ptr, size, stream)
rmm.mr.set_current_device_resource(rmm.mr.CallbackMemoryResource(allocate_func, deallocate_func))
dbuf = rmm.DeviceBuffer(size=256)
del dbuf

rmm.mr.set_current_device_resource(rmm.mr.CudaMemoryResource())
rmm.statistics.enable_statistics()
from rmm.statistics import statistics, get_statistics, profiler, default_profiler_records
with statistics():
    b1 = rmm.DeviceBuffer(size=10)
    print(get_statistics().peak_bytes)

@profiler()
def f(size):
    rmm.DeviceBuffer(size=size)
f(1000)
*numbers, name = default_profiler_records.report().splitlines()[-1].split()
print(*numbers, name.rpartition("(")[2].rstrip(")"))
"""
    printed = run_rmm(program).splitlines()
    assert printed == [
        "100 True",
        "[97, 98, 99] b'abc'",
        "Allocating 256 bytes",
        "Deallocating 256 bytes",
        "10",
        "1 1,000 1,000 f",
    ]


@pytest.mark.parametrize(
    ("library", "program"),
    [
        ("numba_cuda", "from rmm.allocators.numba import RMMNumbaManager, _numba_memory_manager; print(RMMNumbaManager.__name__)"),
        ("cupy", "from rmm.allocators.cupy import rmm_cupy_allocator; print(rmm_cupy_allocator.__name__)"),
    ],
)
def test_plugin_allocators(run_rmm, library, program):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    assert run_rmm(program) in ("AquiferNumbaManager", "cupy_allocator")
