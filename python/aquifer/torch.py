"""PyTorch's tensors from the pool.

Before PyTorch's first tensor on a device:

>>> import aquifer.torch                    # doctest: +SKIP
>>> aquifer.torch.set_allocator()           # doctest: +SKIP

or beside PyTorch's own cache, for the tensors of a ``with``:

>>> with aquifer.torch.use_mem_pool():      # doctest: +SKIP
...     tensor = torch.empty(1 << 20, device="cuda")

``torch.OutOfMemoryError`` where there is no memory. After :func:`set_allocator` PyTorch's own statistics
(``torch.cuda.memory_allocated`` and the like) are not there: :func:`aquifer.statistics.get_statistics` has the pool's.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import torch
from torch.cuda.memory import CUDAPluggableAllocator

from aquifer import _aquifer

__all__ = ["mem_pool", "rmm_torch_allocator", "set_allocator", "use_mem_pool"]

if not torch.backends.cuda.is_built():
    raise ImportError("this PyTorch was built without CUDA (install one with it)", name="torch")

_path = _aquifer.__file__
_library = ctypes.CDLL(_path)


def _address(name: str) -> int:
    address = ctypes.cast(getattr(_library, name), ctypes.c_void_p).value
    if address is None:
        raise RuntimeError(f"{_path} has no {name}")
    return address


def _make_allocator() -> Any:
    allocator = CUDAPluggableAllocator(_path, "aquifer_torch_alloc", "aquifer_torch_free")
    hooks = allocator.allocator()
    hooks.set_init_fn(_address("aquifer_torch_init"))
    hooks.set_reset_fn(_address("aquifer_torch_reset"))
    hooks.set_memory_fraction_fn(_address("aquifer_torch_memory_fraction"))
    hooks.set_base_alloc_fn(_address("aquifer_torch_base_alloc"))
    hooks.set_record_stream_fn(_address("aquifer_torch_record_stream"))
    hooks.set_begin_allocate_to_pool(_address("aquifer_torch_begin_allocate_to_pool"))
    hooks.set_end_allocate_to_pool_fn(_address("aquifer_torch_end_allocate_to_pool"))
    hooks.set_release_pool(_address("aquifer_torch_release_pool"))
    return allocator


def set_allocator() -> None:
    """Sets it for the process, before PyTorch's first tensor on a device. Every block comes from the pool then.

    :raises RuntimeError: of PyTorch, after its first tensor on a device.

    >>> import torch, aquifer.torch                         # doctest: +SKIP
    >>> aquifer.torch.set_allocator()                       # doctest: +SKIP
    >>> tensor = torch.empty(1 << 20, device="cuda")        # doctest: +SKIP
    """
    torch.cuda.memory.change_current_allocator(_make_allocator())


#: The allocators of the pools, which PyTorch calls for as long as a pool has memory.
_segments: list[Any] = []


def mem_pool() -> Any:
    """A ``torch.cuda.MemPool`` of which PyTorch's cache takes its segments from this package's pool.

    >>> import torch, aquifer.torch                         # doctest: +SKIP
    >>> pool = aquifer.torch.mem_pool()                     # doctest: +SKIP
    >>> with torch.cuda.use_mem_pool(pool):                 # doctest: +SKIP
    ...     tensor = torch.empty(1 << 20, device="cuda")
    """
    allocator = CUDAPluggableAllocator(_path, "aquifer_torch_alloc_nothrow", "aquifer_torch_free")
    _segments.append(allocator)
    return torch.cuda.MemPool(allocator.allocator())


@contextlib.contextmanager
def use_mem_pool() -> Iterator[Any]:
    """Has the calling thread's tensors come from a new :func:`mem_pool`, inside of a ``with``. Its value is that pool.

    >>> import torch, aquifer.torch                         # doctest: +SKIP
    >>> with aquifer.torch.use_mem_pool():                  # doctest: +SKIP
    ...     tensor = torch.empty(1 << 20, device="cuda")
    """
    pool = mem_pool()
    with torch.cuda.use_mem_pool(pool):
        yield pool


def __getattr__(name: str) -> Any:
    if name == "rmm_torch_allocator":
        allocator = globals()["rmm_torch_allocator"] = _make_allocator()
        return allocator
    raise AttributeError(f"module 'aquifer.torch' has no attribute {name!r}")
