"""CuPy's arrays from the pool.

>>> import cupy                                                         # doctest: +SKIP
>>> import aquifer                                                      # doctest: +SKIP
>>> cupy.cuda.set_allocator(aquifer.cupy_allocator)                     # doctest: +SKIP
>>> cupy.cuda.set_pinned_memory_allocator(aquifer.cupy_pinned_allocator) # doctest: +SKIP

Memory is allocated and freed in the order of the stream that is current in CuPy at the allocation. ``MemoryError`` where
there is none, with the pool's figures.
"""

from __future__ import annotations

from typing import Any

import cupy
from cupy.cuda import MemoryPointer, UnownedMemory, get_current_stream
from cupy.cuda.device import get_device_id
from cupy.cuda.pinned_memory import PinnedMemory, PinnedMemoryPointer

from aquifer import _aquifer
from aquifer._aquifer import DeviceBuffer
from aquifer._on_gpu import require_gpu

__all__ = ["cupy_allocator", "cupy_pinned_allocator", "set_allocator"]

#: The handle of the calling thread's default stream.
_PER_THREAD = 2


def cupy_allocator(nbytes: int) -> Any:
    """Device memory for CuPy, of the current resource, on CuPy's current stream.

    Memory on the per-thread default stream is handed out again after all work that the device had by its end.

    :param nbytes: the size in bytes.
    :returns: a ``cupy.cuda.MemoryPointer``.
    :raises MemoryError: where there is no memory.
    :raises aquifer.Error: on the simulated device, whose memory no GPU has.

    >>> import aquifer, cupy                                     # doctest: +SKIP
    >>> cupy.cuda.set_allocator(aquifer.cupy_allocator)          # doctest: +SKIP
    >>> cupy.arange(10).sum()                                    # doctest: +SKIP
    array(45)
    """
    require_gpu("CuPy")
    stream = get_current_stream()
    if not stream.ptr:
        # The default stream is known without its object.
        buffer = DeviceBuffer(size=nbytes)
    elif stream.ptr == _PER_THREAD:
        # Allocated on the legacy default stream, whose work comes before later work of all threads' default streams.
        buffer = DeviceBuffer._for_any_stream(nbytes)
    else:
        buffer = DeviceBuffer(size=nbytes, stream=stream)
    memory = UnownedMemory(buffer.ptr, nbytes, buffer, get_device_id())
    return MemoryPointer(memory, 0)


class _PinnedMemory(PinnedMemory):  # type: ignore[misc]
    """Page-locked memory, in CuPy's shape."""

    def __init__(self, nbytes: int) -> None:
        self._memory = _aquifer.HostMemory(nbytes)
        self.ptr = self._memory.ptr
        self.size = nbytes

    def __del__(self) -> None:
        # CuPy's own would free the address as its own.
        pass


def cupy_pinned_allocator(nbytes: int) -> Any:
    """Page-locked host memory for CuPy. What was freed is handed out again when the device is past its work.

    :param nbytes: the size in bytes.
    :returns: a ``cupy.cuda.PinnedMemoryPointer``.
    :raises MemoryError: where there is no memory.

    >>> import aquifer, cupy                                                     # doctest: +SKIP
    >>> cupy.cuda.set_pinned_memory_allocator(aquifer.cupy_pinned_allocator)     # doctest: +SKIP
    """
    return PinnedMemoryPointer(_PinnedMemory(nbytes), 0)


def set_allocator() -> None:
    """Sets :func:`cupy_allocator` and :func:`cupy_pinned_allocator` for the process.

    >>> import aquifer.cupy                    # doctest: +SKIP
    >>> aquifer.cupy.set_allocator()           # doctest: +SKIP
    """
    cupy.cuda.set_allocator(cupy_allocator)
    cupy.cuda.set_pinned_memory_allocator(cupy_pinned_allocator)
