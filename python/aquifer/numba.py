"""Numba's device arrays from the pool (NBEP 7).

Set ``NUMBA_CUDA_MEMORY_MANAGER=aquifer`` before Python starts, or call this before Numba's first use of a device:

>>> from numba import cuda                                   # doctest: +SKIP
>>> import aquifer                                           # doctest: +SKIP
>>> cuda.set_memory_manager(aquifer.AquiferNumbaManager)     # doctest: +SKIP

Numba names no stream. So memory is allocated on the legacy default stream, and what was freed is handed out again after all
work that the device had by then. No call waits for that.

``cuda.defer_cleanup()`` does not hold back device memory: it goes to the pool at once, also inside the block, which gives nothing
to the driver. The host memory that Numba itself page-locks is freed when the block has ended, as with Numba's own manager.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from numba import cuda
from numba.cuda import GetIpcHandleMixin, HostOnlyCUDAMemoryManager, MemoryPointer
from numba.cuda.cudadrv import driver as _driver
from numba.cuda.cudadrv.driver import CudaAPIError

from aquifer import _aquifer
from aquifer._aquifer import DeviceBuffer
from aquifer._on_gpu import require_gpu

__all__ = ["AquiferNumbaManager", "set_memory_manager"]

_CUDA_ERROR_OUT_OF_MEMORY = 2

# The CUDA of Numba's own distribution, from before that of numba-cuda, has addresses of ctypes.
_has_bindings = getattr(_driver, "USE_NV_BINDING", True)


class AquiferNumbaError(CudaAPIError, MemoryError):  # type: ignore[misc]
    """No memory for an array: Numba's error, which is a ``MemoryError`` as RMM's plug-in raises it."""


def _finalizer(key: object, allocations: dict[Any, Any]) -> Callable[[], None]:
    def free() -> None:
        # A reset of the context has dropped all of them.
        allocations.pop(key, None)

    return free


class AquiferNumbaManager(GetIpcHandleMixin, HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """Numba's external memory manager over the current resource. Host memory stays Numba's own.

    Numba makes one for each context, and calls it.

    :param args: what Numba makes it with.
    :param kwargs: what Numba makes it with, by name: the ``context``.

    >>> from numba import cuda                                   # doctest: +SKIP
    >>> import aquifer                                           # doctest: +SKIP
    >>> cuda.set_memory_manager(aquifer.AquiferNumbaManager)     # doctest: +SKIP
    >>> manager = cuda.current_context().memory_manager          # doctest: +SKIP
    >>> manager.initialize()                                     # doctest: +SKIP
    >>> pointer = manager.memalloc(1024)                         # doctest: +SKIP
    >>> manager.get_memory_info().free > 0                       # doctest: +SKIP
    True
    """

    def initialize(self) -> None:
        """Has Numba free its own host memory a few blocks at a time, as its own manager does: each call waits for the device.

        :raises aquifer.Error: where there is no device.
        """
        if not self.deallocations.memory_capacity:
            self.deallocations.memory_capacity = self.get_memory_info().total

    def memalloc(self, size: int) -> Any:
        """Device memory, in a ``MemoryPointer`` of Numba's.

        :param size: the size in bytes.
        :raises MemoryError: where there is no memory. It is a ``CudaAPIError`` of Numba's, too.
        :raises aquifer.Error: on the simulated device, whose memory no GPU has.
        """
        require_gpu("Numba")
        try:
            buffer = DeviceBuffer._for_any_stream(size)
        except MemoryError as error:
            raise AquiferNumbaError(_CUDA_ERROR_OUT_OF_MEMORY, str(error)) from error
        # Not the address: after a reset, the end of an old pointer would free a new block there.
        key = object()
        self.allocations[key] = buffer
        pointer = _driver.binding.CUdeviceptr(buffer.ptr) if _has_bindings else ctypes.c_uint64(buffer.ptr)
        finalizer = _finalizer(key, self.allocations)
        return MemoryPointer(self.context, pointer, size, finalizer=finalizer)

    def get_memory_info(self) -> Any:
        """The free and the total memory of the device, in bytes. What the pool has free is not in the first.

        :raises aquifer.Error: where there is no device.
        """
        # A context that another library made names the driver's own device, which is a number.
        device = self.context.device
        free, total = _aquifer.memory_info(int(getattr(device, "id", device)))
        return _driver.MemoryInfo(free=free, total=total)

    @property
    def interface_version(self) -> int:
        """The version of NBEP 7's interface: 1."""
        return 1


_numba_memory_manager = AquiferNumbaManager


def set_memory_manager() -> None:
    """Sets :class:`AquiferNumbaManager` for the process, before Numba's first use of a device.

    >>> import aquifer.numba                        # doctest: +SKIP
    >>> aquifer.numba.set_memory_manager()          # doctest: +SKIP
    """
    cuda.set_memory_manager(AquiferNumbaManager)
