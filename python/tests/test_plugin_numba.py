"""Numba's plug-in, as far as it goes without a GPU: its class, its choice by Numba, and its memory."""

import gc
import inspect
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import aquifer
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")
cuda = pytest.importorskip("numba.cuda", reason="needs numba-cuda")

import aquifer.numba  # noqa: E402
from aquifer import _on_gpu  # noqa: E402
from numba.cuda.cudadrv import driver  # noqa: E402
from numba.cuda.cudadrv.driver import CudaAPIError, MemoryPointer  # noqa: E402


def run(code: str, **variables: str) -> str:
    """The output of a program in a new process."""
    environment = {**os.environ, "AQUIFER_BACKEND": "sim", **variables}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def resource() -> Iterator[aquifer.mr.DeviceMemoryResource]:
    before = aquifer.mr.get_current_device_resource()
    yield aquifer.use("pool(cuda, max=64MiB)")
    aquifer.mr.set_current_device_resource(before)


def live(resource: aquifer.mr.DeviceMemoryResource) -> tuple[int, int]:
    gc.collect()
    statistics = resource.pool_statistics()
    return statistics["live_blocks"], statistics["live_bytes"]


class Context:
    """What the plug-in asks of Numba's context."""

    device = SimpleNamespace(id=0)


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> aquifer.AquiferNumbaManager:
    # No work of Numba's uses the memory here.
    monkeypatch.setattr(_on_gpu, "_ASKED", {"Numba"})
    return aquifer.AquiferNumbaManager(context=Context())


def test_the_class_has_the_whole_interface():
    manager = aquifer.numba.AquiferNumbaManager
    assert issubclass(manager, cuda.BaseCUDAMemoryManager)
    assert not inspect.isabstract(manager)
    assert manager(context=None).interface_version == 1
    for name in cuda.BaseCUDAMemoryManager.__abstractmethods__ - {"interface_version"}:
        ours = inspect.signature(getattr(manager, name))
        theirs = inspect.signature(getattr(cuda.BaseCUDAMemoryManager, name))
        assert list(ours.parameters) == list(theirs.parameters), name
    # Not of the abstract ones, but `cuda.managed_array` needs it.
    assert callable(manager.memallocmanaged)


def test_the_package_has_the_class_by_all_its_names():
    assert aquifer.AquiferNumbaManager is aquifer.numba.AquiferNumbaManager
    assert aquifer.RMMNumbaManager is aquifer.AquiferNumbaManager
    assert aquifer._numba_memory_manager is aquifer.AquiferNumbaManager
    assert aquifer.numba._numba_memory_manager is aquifer.AquiferNumbaManager


@pytest.mark.parametrize("module", ["aquifer", "aquifer.numba"])
@pytest.mark.parametrize("first", ["numba.cuda", "aquifer", "aquifer.numba"])
def test_numba_chooses_it_by_the_variable(module, first):
    code = f"""
import {first}
from numba.cuda.cudadrv import driver
assert driver._memory_manager is None
driver._ensure_memory_manager()
print(driver._memory_manager.__module__, driver._memory_manager.__qualname__)
"""
    assert run(code, NUMBA_CUDA_MEMORY_MANAGER=module) == "aquifer.numba AquiferNumbaManager\n"


@pytest.mark.parametrize("call", ["aquifer.numba.set_memory_manager()", 'aquifer.set_allocators("numba")'])
def test_a_call_chooses_it(call):
    code = f"""
import aquifer, aquifer.numba
from numba.cuda.cudadrv import driver
{call}
driver._ensure_memory_manager()
assert driver._memory_manager is aquifer.AquiferNumbaManager
"""
    run(code)


@pytest.mark.parametrize("order", ["numba, numba.cuda, aquifer.numba", "aquifer.numba, numba.cuda", "aquifer, numba"])
def test_imports_in_any_order(order):
    run(f"import {order}\nimport aquifer.numba\nassert aquifer.numba.AquiferNumbaManager(context=None) is not None")


def test_a_pointer_has_memory_until_its_end(resource, manager):
    pointer = manager.memalloc(1 << 20)
    assert type(pointer) is MemoryPointer
    assert pointer.size == 1 << 20
    assert pointer.context is manager.context
    address = int(pointer.handle)
    assert address % 256 == 0 and address > 0
    assert live(resource) == (1, 1 << 20)
    aquifer.copy_host_to_ptr(b"x" * (1 << 20), address)
    read = bytearray(1 << 20)
    aquifer.copy_ptr_to_host(address, read)
    assert read == b"x" * (1 << 20)
    del pointer
    assert live(resource) == (0, 0)
    assert len(manager.allocations) == 0


def test_a_view_keeps_the_memory(resource, manager):
    pointer = manager.memalloc(4096)
    view = pointer.view(1024, 2048)
    assert int(view.handle) == int(pointer.handle) + 1024
    own = pointer.own()
    del pointer
    assert live(resource)[0] == 1
    del own
    assert live(resource)[0] == 1
    del view
    assert live(resource)[0] == 0


def test_pointers_of_many_sizes_are_disjoint(resource, manager):
    pointers = [manager.memalloc(size) for size in [1, 255, 256, 257, 4096, 100_000] * 20]
    ranges = sorted((int(pointer.handle), pointer.size) for pointer in pointers)
    assert all(start + size <= following for (start, size), (following, _) in zip(ranges, ranges[1:]))
    assert live(resource)[0] == 120
    del pointers
    assert live(resource) == (0, 0)


def test_no_memory_is_numbas_error_with_its_code(resource, manager):
    with pytest.raises(CudaAPIError) as raised:
        manager.memalloc(1 << 40)
    assert raised.value.code == 2
    assert raised.value.code == aquifer.numba._driver.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert "1 TiB" in str(raised.value) or "1099511627776" in str(raised.value)
    assert isinstance(raised.value.__cause__, aquifer.OutOfMemoryError)
    assert live(resource) == (0, 0)
    # And none of it is left broken.
    del raised
    assert manager.memalloc(256).size == 256


def test_an_error_that_is_not_of_memory_stays_what_it_is(resource, manager):
    with pytest.raises((ValueError, OverflowError)):
        manager.memalloc(-1)
    assert len(manager.allocations) == 0


def test_blocks_without_bytes(resource, manager):
    pointers = [manager.memalloc(0) for _ in range(3)]
    assert [pointer.size for pointer in pointers] == [0, 0, 0]
    del pointers
    assert len(manager.allocations) == 0


def test_a_reset_drops_all(resource, manager):
    pointers = [manager.memalloc(4096) for _ in range(10)]
    assert live(resource)[0] == 10
    manager.reset()
    assert live(resource) == (0, 0)
    assert len(manager.allocations) == 0
    del pointers
    assert live(resource) == (0, 0)


def test_a_pointer_from_before_a_reset_frees_no_later_block(resource, manager):
    before = [manager.memalloc(4096) for _ in range(10)]
    manager.reset()
    after = [manager.memalloc(4096) for _ in range(10)]
    old, new = ({int(pointer.handle) for pointer in pointers} for pointers in (before, after))
    assert old & new, "the test needs addresses that come again"
    del before
    assert live(resource)[0] == 10
    assert len(manager.allocations) == 10
    del after
    assert live(resource)[0] == 0


def test_a_reset_may_come_before_the_initialization():
    manager = aquifer.AquiferNumbaManager(context=None)
    manager.reset()
    assert len(manager.allocations) == 0


def test_a_context_of_another_library_names_the_drivers_device():
    """As in Numba's ``test_attached_primary``."""
    context = SimpleNamespace(device=driver.binding.CUdevice(0))
    manager = aquifer.AquiferNumbaManager(context=context)
    assert tuple(manager.get_memory_info()) == aquifer.memory_info(0)
    manager.initialize()
    assert manager.deallocations.memory_capacity == aquifer.memory_info(0)[1]


def test_memory_info_and_the_capacity_of_numbas_own_host_memory(resource, manager):
    info = manager.get_memory_info()
    assert (info.free, info.total) == aquifer.memory_info(0)
    assert 0 < info.free <= info.total
    manager.initialize()
    assert manager.deallocations.memory_capacity == info.total
    assert manager.deallocations._max_pending_bytes > 0


def test_cleanup_can_be_deferred(resource, manager, monkeypatch):
    # Numba makes it with the driver, which there is none of here.
    monkeypatch.setattr(driver, "_logger", logging.getLogger(__name__), raising=False)
    manager.initialize()
    freed = []
    with manager.defer_cleanup(), manager.defer_cleanup():
        pointer = manager.memalloc(4096)
        del pointer
        # To the pool at once, which keeps it.
        assert live(resource) == (0, 0)
        assert resource.pool_statistics()["reserved_bytes"] > 0
        # Numba's own host memory waits, however much it is.
        for block in range(100):
            manager.deallocations.add_item(freed.append, block, 1)
        assert freed == []
    manager.deallocations.add_item(freed.append, 100, 1)
    assert freed == list(range(101))


def test_the_resource_is_that_of_the_allocation(resource, manager):
    first = manager.memalloc(4096)
    other = aquifer.use("pool(cuda)")
    second = manager.memalloc(4096)
    assert live(resource)[0] == live(other)[0] == 1
    del first
    assert (live(resource)[0], live(other)[0]) == (0, 1)
    del second
    assert live(other)[0] == 0


def test_threads_allocate_and_free(resource, manager):
    import threading

    errors = []

    def work() -> None:
        try:
            for round in range(200):
                pointers = [manager.memalloc(256 << (round + n) % 6) for n in range(4)]
                handles = {int(pointer.handle) for pointer in pointers}
                assert len(handles) == 4
                # The other thread's end frees it.
                handed.append(pointers.pop())
                if len(handed) > 8:
                    handed.pop(0)
        except BaseException as error:
            errors.append(error)

    handed: list[MemoryPointer] = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    handed.clear()
    assert live(resource) == (0, 0)
    assert len(manager.allocations) == 0


def test_the_simulated_device_has_no_memory_for_numba(resource):
    manager = aquifer.AquiferNumbaManager(context=Context())
    with pytest.raises(aquifer.Error, match="Numba was to have memory of the simulated device"):
        manager.memalloc(4096)
    assert live(resource) == (0, 0) and manager.allocations == {}


def test_pointers_that_outlive_the_manager_and_the_process(resource):
    code = """
import aquifer, aquifer.numba
from types import SimpleNamespace
class Context:
    device = SimpleNamespace(id=0)
aquifer._on_gpu._ASKED.add("Numba")
manager = aquifer.AquiferNumbaManager(context=Context())
kept = [manager.memalloc(4096) for _ in range(4)]
cycle = [manager.memalloc(4096)]
cycle.append(cycle)
del manager
"""
    assert run(code) == ""


def test_the_cuda_of_numbas_own_distribution():
    """The one from before numba-cuda, which a Numba may still have."""
    code = """
import sys
from importlib.machinery import PathFinder
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] == "numba_cuda" else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
sys.meta_path = [finder for finder in sys.meta_path if type(finder).__name__ != "NumbaCudaFinder"]
import gc, ctypes
from types import SimpleNamespace
try:
    import numba.cuda.cudadrv.driver as driver
except ImportError:
    print("none")
    sys.exit()
import aquifer
assert "numba_cuda" not in sys.modules
assert aquifer.set_allocators("numba") == ["numba"]
assert driver._memory_manager is aquifer.AquiferNumbaManager
resource = aquifer.use("pool(cuda)")
class Context:
    device = SimpleNamespace(id=0)
aquifer._on_gpu._ASKED.add("Numba")
manager = aquifer.AquiferNumbaManager(context=Context())
pointer = manager.memalloc(4096)
assert type(pointer) is driver.MemoryPointer and pointer.size == 4096
assert type(pointer.device_pointer) is ctypes.c_uint64 and pointer.device_pointer.value % 256 == 0
assert resource.pool_statistics()["live_blocks"] == 1
del pointer
gc.collect()
assert resource.pool_statistics()["live_blocks"] == 0
"""
    if run(code) == "none\n":
        pytest.skip("this Numba has no CUDA of its own")
