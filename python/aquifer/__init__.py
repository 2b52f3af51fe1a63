"""One memory pool for the GPU libraries of a process.

>>> import aquifer
>>> aquifer.use("pool(cuda, max=80%) | statistics")
<aquifer.mr.DeviceMemoryResource 'pool(cuda, maximum_size=80%, handles=off) | statistics', device 0, 0 B of 0 B in use>
>>> buffer = aquifer.to_device(b"some bytes")
>>> buffer.size, buffer.tobytes()
(10, b'some bytes')

What is here has the names of RMM's Python package, so ``import aquifer as rmm`` runs its programs. The allocators of other
libraries are in a module for each: ``aquifer.numba``, ``aquifer.cupy``, ``aquifer.torch``, ``aquifer.numpy``,
``aquifer.cuda_core``. None imports its library before it is asked to. :func:`set_allocators` sets those that are installed.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from aquifer import _multiprocessing, mr, pinned, statistics
from aquifer._aquifer import (
    AllocationError,
    DeviceBuffer,
    Error,
    OutOfMemoryError,
    Stream,
    __version__,
    copy_device_to_ptr,
    copy_host_to_ptr,
    copy_ptr_to_host,
    current_device,
    default_stream,
    device_count,
    device_name,
    is_simulated,
    memory_info,
    simulate,
)
from aquifer._debug_log import (
    flush_logger,
    get_flush_level,
    get_logging_level,
    level_enum,
    set_flush_level,
    set_logging_level,
    should_log,
)
from aquifer._map import MemoryMap, memory_map
from aquifer._reinitialize import (
    is_initialized,
    register_reinitialize_hook,
    reinitialize,
    unregister_reinitialize_hook,
)
from aquifer._set_allocators import has_library, set_allocators
from aquifer._sleep import Sleep, sleep, tag, wake
from aquifer._stream_pool import CudaStreamFlags, CudaStreamPool
from aquifer.mr import disable_logging, enable_logging, get_log_filenames
from aquifer.numpy import numpy_handler

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    # With a name of its own each: checkers take no other import for one that users may name.
    from aquifer import cuda_core as cuda_core
    from aquifer import cupy as cupy
    from aquifer import numba as numba
    from aquifer import numpy as numpy
    from aquifer import torch as torch
    from aquifer._aquifer import _AnyStream
    from aquifer.cupy import cupy_allocator as cupy_allocator
    from aquifer.cupy import cupy_pinned_allocator as cupy_pinned_allocator
    from aquifer.numba import AquiferNumbaManager as AquiferNumbaManager
    from aquifer.numba import _numba_memory_manager as _numba_memory_manager

    rmm_cupy_allocator = cupy_allocator
    RMMNumbaManager = AquiferNumbaManager

#: As RMM calls :class:`Error`.
RMMError = Error

__all__ = [
    "AllocationError",
    "CudaStreamFlags",
    "CudaStreamPool",
    "DeviceBuffer",
    "Error",
    "MemoryMap",
    "OutOfMemoryError",
    "RMMError",
    "Sleep",
    "Stream",
    "__version__",
    "copy_device_to_ptr",
    "copy_host_to_ptr",
    "copy_ptr_to_host",
    "current_device",
    "default_stream",
    "device_count",
    "device_name",
    "disable_logging",
    "enable_logging",
    "flush_logger",
    "get_flush_level",
    "get_log_filenames",
    "get_logging_level",
    "is_initialized",
    "is_simulated",
    "level_enum",
    "memory_info",
    "memory_map",
    "mr",
    "numpy_handler",
    "pinned",
    "register_reinitialize_hook",
    "reinitialize",
    "set_allocators",
    "set_flush_level",
    "set_logging_level",
    "should_log",
    "simulate",
    "sleep",
    "statistics",
    "tag",
    "to_device",
    "unregister_reinitialize_hook",
    "use",
    "wake",
]

#: What imports another library: the module that has it, and its name there.
_LAZY = {
    "AquiferNumbaManager": ("aquifer.numba", "AquiferNumbaManager"),
    "RMMNumbaManager": ("aquifer.numba", "AquiferNumbaManager"),
    "_numba_memory_manager": ("aquifer.numba", "AquiferNumbaManager"),
    "cupy_allocator": ("aquifer.cupy", "cupy_allocator"),
    "cupy_pinned_allocator": ("aquifer.cupy", "cupy_pinned_allocator"),
    "rmm_cupy_allocator": ("aquifer.cupy", "cupy_allocator"),
}


#: Modules that import another library, and what to install for each.
_LAZY_MODULES = {
    "cuda_core": "pip install cuda-core",
    "cupy": "pip install cupy-cuda13x",
    "numba": "pip install numba-cuda",
    "torch": "install PyTorch with CUDA",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LAZY and name not in _LAZY_MODULES:
            raise AttributeError(f"module 'aquifer' has no attribute {name!r}")
        module, attribute = _LAZY.get(name, (f"aquifer.{name}", None))
        try:
            imported = importlib.import_module(module)
        except ImportError as error:
            # `from aquifer import` would drop the text of an AttributeError.
            if sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
                raise
            install = _LAZY_MODULES[module.removeprefix("aquifer.")]
            raise AttributeError(
                f"module 'aquifer' has no {name!r} without its library: {error} ({install})"
            ) from error
        return imported if attribute is None else getattr(imported, attribute)

    def __dir__() -> list[str]:
        there = {name for name in _LAZY_MODULES if has_library(name)}
        lazy = {name for name, (module, _) in _LAZY.items() if module.removeprefix("aquifer.") in there}
        return sorted({*__all__, *lazy, *there, "numpy"} - {"_numba_memory_manager"})


def use(text: str) -> mr.DeviceMemoryResource:
    """Makes a stack of resources by a text, sets it as the current resource of the current device, and returns it.

    A pool over ``cuda`` has ``handles=off`` unless the text says otherwise, so that ``cuIpcGetMemHandle`` shares its
    memory. With ``handles=on`` it holds less where sizes change all the time.

    :param text: a text as ``AQUIFER_STACK`` takes it: ``pool(cuda)``, ``pool(managed) | statistics``,
        ``async | limiting(4GiB)``. A size in it is a number of bytes, or has a unit such as MiB.
    :raises ValueError: for a wrong text. The message shows where, and what to write.
    :raises MemoryError: where there is less memory than the stack takes at once.
    :raises aquifer.Error: where there is no device.

    >>> import aquifer
    >>> limited = aquifer.use("pool(cuda, initial=1MiB) | limiting(1GiB)")
    >>> limited.pool_statistics()["reserved_bytes"], limited.get_allocation_limit()
    (1048576, 1073741824)
    """
    made = mr.DeviceMemoryResource()
    made._build(text)
    mr.set_current_device_resource(made)
    return made


def to_device(
    b: Buffer | NDArray[Any],
    stream: _AnyStream | None = None,
    mr: mr.DeviceMemoryResource | None = None,
) -> DeviceBuffer:
    """A copy of the bytes of a host's object, as a :class:`DeviceBuffer`.

    :meth:`DeviceBuffer.to_device` takes bytes alone, as RMM's does. This takes any array that is contiguous.

    :param b: ``bytes``, or an array of any numbers.
    :param stream: the stream in whose order the memory is allocated and freed. None is the legacy default stream.
    :param mr: the resource that the memory comes from. None is the current one.
    :raises TypeError: for what has no bytes.
    :raises ValueError: for an array of NumPy's that is not contiguous, and for one of Python's objects.
    :raises BufferError: for another object whose bytes are not contiguous.
    :raises MemoryError: where there is no memory.
    :raises aquifer.Error: where there is no device.

    >>> import aquifer, array
    >>> aquifer.to_device(array.array("d", [1.0, 2.0])).size
    16
    """
    if stream is None:
        return DeviceBuffer._of_array(b, mr=mr)
    return DeviceBuffer._of_array(b, stream, mr)


_multiprocessing.prepare()
