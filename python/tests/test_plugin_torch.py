"""PyTorch's plug-in: its module with a PyTorch of the test's, its C functions by ctypes, and PyTorch itself where it is."""

import ctypes
import gc
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import aquifer
import pytest
from aquifer import _aquifer

HOOKS = {
    "set_init_fn": "aquifer_torch_init",
    "set_reset_fn": "aquifer_torch_reset",
    "set_memory_fraction_fn": "aquifer_torch_memory_fraction",
    "set_base_alloc_fn": "aquifer_torch_base_alloc",
    "set_record_stream_fn": "aquifer_torch_record_stream",
    "set_begin_allocate_to_pool": "aquifer_torch_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "aquifer_torch_end_allocate_to_pool",
    "set_release_pool": "aquifer_torch_release_pool",
}

# What PyTorch 2.11 has of these names.
STUBS = f"""
import contextlib, sys, types
set_hooks, current, entered = {{}}, [], []
class Hooks:
    pass
for name in {list(HOOKS)!r}:
    setattr(Hooks, name, lambda self, address, name=name: set_hooks.__setitem__(name, address))
class CUDAPluggableAllocator:
    def __init__(self, path, alloc, free):
        self.path, self.alloc, self.free, self._hooks = path, alloc, free, Hooks()
        self._hooks.of = self
    def allocator(self):
        return self._hooks
class MemPool:
    def __init__(self, allocator, use_on_oom=False, no_split=False):
        self.allocator = allocator
@contextlib.contextmanager
def use_mem_pool(pool, device=None):
    entered.append(pool)
    yield
    entered.append(None)
def module(name, **members):
    made = sys.modules[name] = types.ModuleType(name)
    vars(made).update(members)
    return made
memory = module("torch.cuda.memory", CUDAPluggableAllocator=CUDAPluggableAllocator, change_current_allocator=current.append)
cuda = module("torch.cuda", memory=memory, MemPool=MemPool, use_mem_pool=use_mem_pool, __path__=[])
backends = types.SimpleNamespace(cuda=types.SimpleNamespace(is_built=lambda: True))
torch = module("torch", cuda=cuda, backends=backends, __path__=[])
import ctypes
import aquifer
assert not any(name.startswith("aquifer.torch") for name in sys.modules)
"""


def run(code: str) -> None:
    environment = {**os.environ, "AQUIFER_BACKEND": "sim"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_set_allocator_gives_pytorch_the_functions_and_every_hook():
    run(STUBS + f"""
hooks = {HOOKS!r}
assert aquifer.set_allocators("torch") == ["torch"]
[allocator] = current
assert allocator.path == aquifer._aquifer.__file__
assert (allocator.alloc, allocator.free) == ("aquifer_torch_alloc", "aquifer_torch_free")
assert set(set_hooks) == set(hooks)
library = ctypes.CDLL(allocator.path)
for name, symbol in hooks.items():
    address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    assert set_hooks[name] == address and address != 0, name
assert len(set(set_hooks.values())) == len(hooks)
for symbol in [allocator.alloc, allocator.free]:
    assert ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
""")


def test_the_functions_that_pytorch_calls_are_those_of_this_package():
    run(STUBS + """
import aquifer.torch
resource = aquifer.use("pool(cuda)")
pool = aquifer.torch.mem_pool()
functions = pool.allocator.of
library = ctypes.CDLL(functions.path)
alloc, free = getattr(library, functions.alloc), getattr(library, functions.free)
alloc.restype, alloc.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
free.restype, free.argtypes = None, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
address = alloc(2 << 20, 0, None)
assert address and resource.pool_statistics()["live_bytes"] == 2 << 20
free(address, 2 << 20, 0, None)
assert resource.pool_statistics()["live_bytes"] == 0
""")


def test_mem_pool_has_the_function_that_returns_null():
    run(STUBS + """
import aquifer.torch
pool = aquifer.torch.mem_pool()
assert type(pool) is MemPool
allocator = pool.allocator.of
assert (allocator.alloc, allocator.free) == ("aquifer_torch_alloc_nothrow", "aquifer_torch_free")
# PyTorch keeps the addresses of the functions, and not always the object.
assert aquifer.torch._segments == [allocator]
with aquifer.torch.use_mem_pool() as used:
    assert entered == [used] and type(used) is MemPool
    assert used is not pool
assert entered == [used, None]
assert current == []
""")


def test_an_error_inside_of_use_mem_pool_ends_it():
    run(STUBS.replace("    yield\n    entered", "    try: yield\n    finally: entered") + """
import aquifer.torch
try:
    with aquifer.torch.use_mem_pool():
        raise KeyError("mine")
except KeyError:
    assert entered[-1] is None and len(entered) == 2
else:
    raise AssertionError
""")


def test_rmms_name_is_made_when_it_is_asked_for():
    run(STUBS + """
import aquifer.torch
assert not set_hooks
allocator = aquifer.torch.rmm_torch_allocator
assert type(allocator) is CUDAPluggableAllocator and len(set_hooks) == 8
assert aquifer.torch.rmm_torch_allocator is allocator
assert current == []
try:
    aquifer.torch.no_such_name
except AttributeError as error:
    assert "no_such_name" in str(error)
else:
    raise AssertionError
""")


def test_a_pytorch_without_cuda_is_an_import_error():
    run(STUBS.replace("is_built=lambda: True", "is_built=lambda: False") + """
try:
    aquifer.set_allocators("torch")
except ImportError as error:
    assert "built without CUDA" in str(error) and error.name == "torch"
else:
    raise AssertionError
assert current == [] and not set_hooks
""")


class PoolId(ctypes.Structure):
    _fields_ = [("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    """The C functions, with the types that PyTorch's headers have of them."""
    library = ctypes.CDLL(_aquifer.__file__)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    types = {
        "alloc_nothrow": (pointer, [size, number, pointer]),
        "free": (None, [pointer, size, number, pointer]),
        "init": (None, [number]),
        "reset": (None, []),
        "memory_fraction": (None, [ctypes.c_double, number]),
        "base_alloc": (pointer, [pointer, ctypes.POINTER(size)]),
        "record_stream": (None, [pointer, pointer]),
        "begin_allocate_to_pool": (None, [number, PoolId, pointer]),
        "end_allocate_to_pool": (None, [number, PoolId]),
        "release_pool": (None, [number, PoolId]),
        "last_error": (ctypes.c_char_p, []),
    }
    for name, (result, arguments) in types.items():
        function = getattr(library, f"aquifer_torch_{name}")
        function.restype, function.argtypes = result, arguments
    return library


@pytest.fixture
def resource() -> Iterator[aquifer.mr.DeviceMemoryResource]:
    before = aquifer.mr.get_current_device_resource()
    yield aquifer.use("pool(cuda, max=64MiB)")
    aquifer.mr.set_current_device_resource(before)


def test_the_library_has_every_symbol(library):
    for symbol in [*HOOKS.values(), "aquifer_torch_alloc", "aquifer_torch_alloc_nothrow", "aquifer_torch_free"]:
        assert ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value, symbol


def test_blocks_are_the_current_resources(library, resource):
    address = library.aquifer_torch_alloc_nothrow(1 << 20, 0, None)
    assert address and address % 256 == 0
    assert resource.pool_statistics()["live_bytes"] == 1 << 20
    aquifer.copy_host_to_ptr(b"z" * 4096, address)
    read = bytearray(4096)
    aquifer.copy_ptr_to_host(address, read)
    assert read == b"z" * 4096
    library.aquifer_torch_free(address, 1 << 20, 0, None)
    assert resource.pool_statistics()["live_bytes"] == 0


def test_a_block_goes_back_to_where_it_came_from(library, resource):
    address = library.aquifer_torch_alloc_nothrow(4096, 0, None)
    other = aquifer.use("pool(cuda)")
    second = library.aquifer_torch_alloc_nothrow(4096, 0, None)
    assert resource.pool_statistics()["live_blocks"] == other.pool_statistics()["live_blocks"] == 1
    library.aquifer_torch_free(address, 4096, 0, None)
    assert (resource.pool_statistics()["live_blocks"], other.pool_statistics()["live_blocks"]) == (0, 1)
    library.aquifer_torch_free(second, 4096, 0, None)
    assert other.pool_statistics()["live_blocks"] == 0


def test_no_memory_is_null_and_a_message(library, resource):
    assert library.aquifer_torch_alloc_nothrow(1 << 40, 0, None) is None
    assert b"1099511627776 bytes" in library.aquifer_torch_last_error()
    assert resource.pool_statistics()["live_blocks"] == 0


def test_no_bytes_are_null_which_can_be_freed(library, resource):
    assert library.aquifer_torch_alloc_nothrow(0, 0, None) is None
    library.aquifer_torch_free(None, 0, 0, None)
    assert resource.pool_statistics()["live_blocks"] == 0


def test_another_stream_and_record_stream(library, resource):
    stream, other = aquifer.Stream(), aquifer.Stream()
    address = library.aquifer_torch_alloc_nothrow(4096, 0, stream.handle)
    assert address
    library.aquifer_torch_record_stream(address, other.handle)
    library.aquifer_torch_free(address, 4096, 0, stream.handle)
    stream.synchronize()
    other.synchronize()
    again = library.aquifer_torch_alloc_nothrow(4096, 0, stream.handle)
    assert again == address
    library.aquifer_torch_free(again, 4096, 0, stream.handle)
    assert resource.pool_statistics()["live_blocks"] == 0


def test_base_alloc_tells_a_blocks_size(library, resource):
    address = library.aquifer_torch_alloc_nothrow(1000, 0, None)
    size = ctypes.c_size_t()
    assert library.aquifer_torch_base_alloc(address, ctypes.byref(size)) == address
    assert 1000 <= size.value <= 1024
    library.aquifer_torch_free(address, 1000, 0, None)


def test_reset_gives_free_memory_back(library, resource):
    address = library.aquifer_torch_alloc_nothrow(1 << 20, 0, None)
    library.aquifer_torch_free(address, 1 << 20, 0, None)
    assert resource.pool_statistics()["reserved_bytes"] > 0
    library.aquifer_torch_reset()
    assert resource.pool_statistics()["reserved_bytes"] == 0


def test_a_fraction_limits_the_pool(library, resource):
    _, total = aquifer.memory_info()
    library.aquifer_torch_memory_fraction(0.001, 0)
    assert library.aquifer_torch_alloc_nothrow(int(total * 0.002), 0, None) is None
    address = library.aquifer_torch_alloc_nothrow(int(total * 0.0005), 0, None)
    assert address
    library.aquifer_torch_free(address, int(total * 0.0005), 0, None)


def test_blocks_of_a_graph_stay_its_own_until_the_release(library, resource):
    pool = PoolId(7, 0)
    library.aquifer_torch_begin_allocate_to_pool(0, pool, None)
    graphs = library.aquifer_torch_alloc_nothrow(4096, 0, None)
    library.aquifer_torch_free(graphs, 4096, 0, None)
    library.aquifer_torch_end_allocate_to_pool(0, pool)
    others = [library.aquifer_torch_alloc_nothrow(4096, 0, None) for _ in range(50)]
    assert None not in others and graphs not in others
    library.aquifer_torch_release_pool(0, pool)
    for address in others:
        library.aquifer_torch_free(address, 4096, 0, None)
    assert resource.pool_statistics()["live_blocks"] == 0


def test_threads_allocate_and_free(library, resource):
    errors: list[BaseException] = []
    handed: list[tuple[int, int]] = []

    def work() -> None:
        try:
            for round in range(500):
                size = 256 << round % 8
                handed.append((library.aquifer_torch_alloc_nothrow(size, 0, None), size))
                address, size = handed.pop(0)
                library.aquifer_torch_free(address, size, 0, None)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and handed == []
    assert resource.pool_statistics()["live_blocks"] == 0


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_pytorch_has_the_names():
    import torch

    if not torch.backends.cuda.is_built():
        pytest.skip("needs a PyTorch that was built with CUDA")
    import aquifer.torch

    hooks = aquifer.torch._make_allocator().allocator()
    assert all(hasattr(hooks, name) for name in HOOKS)
    assert hasattr(torch.cuda, "MemPool") and hasattr(torch.cuda, "use_mem_pool")
    del hooks
    gc.collect()
