"""Memory resources, by RMM's names.

A resource is made on the device that is current. One that is over another keeps it.

>>> import aquifer
>>> pool = aquifer.mr.PoolMemoryResource(
...     aquifer.mr.CudaMemoryResource(), initial_pool_size="1MiB", maximum_pool_size=2**30
... )
>>> aquifer.mr.set_current_device_resource(pool)
>>> buffer = aquifer.DeviceBuffer(size=100)
>>> pool.pool_size()
1048576
"""

from __future__ import annotations

import logging
import operator
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from aquifer import _aquifer
from aquifer._aquifer import (
    DeviceMemoryResource,
    Error,
    Stream,
    get_per_device_resource,
    set_per_device_resource,
)

__all__ = [
    "AlignedResourceAdaptor",
    "ArenaMemoryResource",
    "BinningMemoryResource",
    "CallbackMemoryResource",
    "CheckedResourceAdaptor",
    "CudaAsyncManagedMemoryResource",
    "CudaAsyncMemoryResource",
    "CudaAsyncViewMemoryResource",
    "CudaMemoryResource",
    "DeviceMemoryResource",
    "FailureCallbackResourceAdaptor",
    "FixedSizeMemoryResource",
    "LimitingResourceAdaptor",
    "LoggingResourceAdaptor",
    "ManagedMemoryResource",
    "PinnedHostMemoryResource",
    "PoolMemoryResource",
    "PrefetchResourceAdaptor",
    "SamHeadroomMemoryResource",
    "StatisticsResourceAdaptor",
    "SystemMemoryResource",
    "TrackingResourceAdaptor",
    "UpstreamResourceAdaptor",
    "available_device_memory",
    "disable_logging",
    "enable_logging",
    "get_current_device_resource",
    "get_log_filenames",
    "get_per_device_resource",
    "is_initialized",
    "set_current_device_resource",
    "set_per_device_resource",
]

Size = int | str

_Path = str | os.PathLike[str]

_T = TypeVar("_T")

#: The addresses and sizes of blocks are multiples of it.
_ALIGNMENT = 256

_UNITS = {"": 1, "B": 1}
_UNITS.update({f"{p}B": 1000**n for n, p in enumerate("KMGTP", start=1)})
_UNITS.update({f"{p}IB": 1024**n for n, p in enumerate("KMGTP", start=1)})


def _bytes(size: Size) -> int:
    """A size in bytes: a number, or a text such as ``"4MiB"``."""
    if not isinstance(size, str):
        number = operator.index(size)
        if number >= 0:
            return number
    elif match := re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([a-zA-Z]*)\s*", size):
        unit = _UNITS.get(match[2].upper())
        if unit is not None:
            return int(float(match[1]) * unit)
    raise ValueError(
        f"Could not parse {size!r} as a byte specification (give a number of bytes, or a text such as '64MiB' or '2GB')"
    )


def _text(name: str, **options: Size | bool | None) -> str:
    """A part of a stack's text."""
    given = []
    for option, value in options.items():
        if value is None:
            continue
        if isinstance(value, bool):
            value = "on" if value else "off"
        elif isinstance(value, str):
            value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        given.append(f"{option}={value}")
    return f"{name}({', '.join(given)})" if given else name


def _size(size: Size | None) -> int | None:
    return None if size is None else _bytes(size)


def _rounded(size: int) -> int:
    """The next multiple of a block's alignment, as RMM rounds sizes of bins and blocks."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class CudaMemoryResource(DeviceMemoryResource):
    """``cuMemAlloc`` and ``cuMemFree`` for each block."""

    def __init__(self) -> None:
        self._build("cuda")


class ManagedMemoryResource(DeviceMemoryResource):
    """Managed memory, which host and device reach, for each block. There may be more of it than the device has memory."""

    def __init__(self) -> None:
        self._build("managed(oversubscribe=on)")


class SystemMemoryResource(DeviceMemoryResource):
    """The host's own memory, where the device reaches that."""

    def __init__(self) -> None:
        self._build("system")


class SamHeadroomMemoryResource(DeviceMemoryResource):
    """The host's own memory, of which the device takes what leaves it ``headroom`` bytes."""

    def __init__(self, headroom: Size) -> None:
        self._build(_text("system", headroom=_bytes(headroom)))


class PinnedHostMemoryResource(DeviceMemoryResource):
    """Page-locked host memory, which the device reaches, for each block."""

    def __init__(self) -> None:
        self._build("pinned")


class CudaAsyncMemoryResource(DeviceMemoryResource):
    """A memory pool of the driver's.

    ``enable_ipc`` makes one whose blocks other processes can open, ``enable_fabric`` one whose blocks other nodes of a
    fabric can open. :class:`aquifer.Error` where the device has no such pools.
    """

    def __init__(
        self,
        initial_pool_size: Size | None = None,
        release_threshold: Size | None = None,
        enable_ipc: bool = False,
        enable_fabric: bool = False,
    ) -> None:
        text = _text(
            "async",
            initial_size=_size(initial_pool_size),
            release_threshold=_size(release_threshold),
            shareable=True if enable_ipc else None,
            fabric=True if enable_fabric else None,
        )
        try:
            self._build(text)
        except Error as error:
            if enable_ipc or enable_fabric:
                raise Error(f"{error}: Requested IPC memory handle type not supported") from error
            raise

    def pool_handle(self) -> int:
        """The driver's handle of the pool, a ``cudaMemPool_t``."""
        return _of(self._pool_handle())


class CudaAsyncManagedMemoryResource(DeviceMemoryResource):
    """A memory pool of the driver's, of managed memory."""

    def __init__(self) -> None:
        self._build("async(managed=on)")

    def pool_handle(self) -> int:
        """The driver's handle of the pool, a ``cudaMemPool_t``."""
        return _of(self._pool_handle())


class CudaAsyncViewMemoryResource(DeviceMemoryResource):
    """A memory pool of the driver's that another library made, and keeps for as long as this is used."""

    def __init__(self, pool_handle: Any) -> None:
        self._handle = int(pool_handle)
        self._build_pool_view(self._handle)

    def pool_handle(self) -> int:
        """The driver's handle."""
        return self._handle


class UpstreamResourceAdaptor(DeviceMemoryResource):
    """What is over another resource."""

    @property
    def upstream_mr(self) -> DeviceMemoryResource:
        """The resource that it is over."""
        return self._upstreams()[0]

    def get_upstream(self) -> DeviceMemoryResource:
        """The resource that it is over."""
        return self.upstream_mr

    def _build_over(self, upstream: DeviceMemoryResource | None, text: str) -> None:
        self._build(text, self._given(upstream))

    def _given(self, upstream: DeviceMemoryResource | None) -> DeviceMemoryResource:
        # A stack's text without an upstream may have one of its own.
        if not isinstance(upstream, DeviceMemoryResource):
            what = type(upstream).__name__
            raise TypeError(f"{type(self).__name__}() takes a DeviceMemoryResource, and a {what} was given")
        return upstream


class PoolMemoryResource(UpstreamResourceAdaptor):
    """A pool. It grows as memory is needed, up to ``maximum_pool_size``.

    Without ``initial_pool_size`` it begins empty, where RMM's takes half of the device's memory.
    """

    def __init__(
        self,
        upstream: DeviceMemoryResource | None = None,
        initial_pool_size: Size | None = None,
        maximum_pool_size: Size | None = None,
        *,
        upstream_mr: DeviceMemoryResource | None = None,
    ) -> None:
        if (upstream is None) == (upstream_mr is None):
            raise TypeError("PoolMemoryResource() takes one upstream")
        initial, maximum = _size(initial_pool_size), _size(maximum_pool_size)
        if initial is not None and maximum is not None and initial > maximum:
            raise Error(f"Initial pool size exceeds the maximum pool size ({initial} and {maximum} bytes were given)")
        text = _text("pool", initial_size=initial, maximum_size=maximum)
        self._build_over(upstream_mr if upstream is None else upstream, text)

    def pool_size(self) -> int:
        """The bytes that the pool has of its upstream."""
        return self.pool_statistics()["reserved_bytes"]


class FixedSizeMemoryResource(UpstreamResourceAdaptor):
    """Blocks of one size. Sizes are rounded up to a multiple of 256 bytes.

    ``blocks_to_preallocate`` is how many it takes of its upstream at once, not before the first.
    """

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        block_size: Size = 1 << 20,
        blocks_to_preallocate: int = 128,
    ) -> None:
        size = _rounded(_bytes(block_size))
        text = _text("fixed_size", block_size=size, blocks_per_chunk=operator.index(blocks_to_preallocate))
        self._build_over(upstream_mr, text)


class BinningMemoryResource(UpstreamResourceAdaptor):
    """A resource for each range of sizes. Blocks that are larger than the largest bin are the upstream's.

    With both exponents there is a bin of blocks of fixed size for each power of two between them. The sizes of bins are
    rounded up to a multiple of 256 bytes.
    """

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        min_size_exponent: int = -1,
        max_size_exponent: int = -1,
    ) -> None:
        self._bins: dict[int, DeviceMemoryResource] = {}
        self._upstream = self._given(upstream_mr)
        bins: dict[int, DeviceMemoryResource] = {}
        if min_size_exponent >= 0 and max_size_exponent >= 0:
            for size in {_rounded(1 << exponent) for exponent in range(min_size_exponent, max_size_exponent + 1)}:
                bins[size] = FixedSizeMemoryResource(upstream_mr, size)
        self._rebuild(bins)

    def _rebuild(self, bins: dict[int, DeviceMemoryResource]) -> None:
        self._build_binning(self._upstream, sorted(bins.items(), key=lambda bin: bin[0]))
        self._bins = bins

    def add_bin(self, allocation_size: Size, bin_resource: DeviceMemoryResource | None = None) -> None:
        """Adds a resource for blocks up to a size that no smaller bin serves: one of fixed size unless it is given.

        Blocks that were allocated before go back to where they came from. Resources over this one go on as it was.
        """
        size = _rounded(_bytes(allocation_size))
        added = FixedSizeMemoryResource(self._upstream, size) if bin_resource is None else bin_resource
        self._rebuild({**self._bins, size: added})
        if get_per_device_resource(self.device) is self:
            set_per_device_resource(self.device, self)

    @property
    def bin_mrs(self) -> list[DeviceMemoryResource]:
        """The bins, from the smallest."""
        return [bin for _, bin in sorted(self._bins.items(), key=lambda bin: bin[0])]


class ArenaMemoryResource(UpstreamResourceAdaptor):
    """An arena: a pool that takes ``arena_size`` of its upstream when it is made, and stays there.

    Without a size it takes half of the device's free memory. With ``dump_log_on_failure``, what it holds is written to
    ``rmm_arena_memory_dump.log`` where it has no memory.
    """

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        arena_size: Size | None = None,
        dump_log_on_failure: bool = False,
    ) -> None:
        dump = "rmm_arena_memory_dump.log" if dump_log_on_failure else None
        self._build_over(upstream_mr, _text("arena", arena_size=_size(arena_size), dump_on_failure=dump))


class CallbackMemoryResource(DeviceMemoryResource):
    """Two functions: ``allocate_func(nbytes, stream)`` returns an address, ``deallocate_func(ptr, nbytes, stream)`` frees.

    The memory is of the device, lies at a multiple of 256 and stays valid until it is freed; ``allocate_func`` raises
    :class:`MemoryError` where there is none. The functions are called on any thread, and may allocate of other resources.
    """

    def __init__(
        self,
        allocate_func: Callable[[int, Stream], int],
        deallocate_func: Callable[[int, int, Stream], None],
    ) -> None:
        self._build_callback(allocate_func, deallocate_func)


class FailureCallbackResourceAdaptor(UpstreamResourceAdaptor):
    """Calls ``callback(nbytes)`` where there is no memory. While it returns true, the allocation is tried again, at most 16 times.

    What the callback raises, the caller of the allocation gets.
    """

    def __init__(self, upstream_mr: DeviceMemoryResource, callback: Callable[[int], bool]) -> None:
        self._build_failure_callback(self._given(upstream_mr), callback)


class LimitingResourceAdaptor(UpstreamResourceAdaptor):
    """Refuses what would have more than ``allocation_limit`` bytes in use."""

    def __init__(self, upstream_mr: DeviceMemoryResource, allocation_limit: Size) -> None:
        self._build_over(upstream_mr, _text("limiting", limit=_bytes(allocation_limit)))

    def get_allocated_bytes(self) -> int:
        """The bytes in use."""
        return _of(self._limited())[0]


class LoggingResourceAdaptor(UpstreamResourceAdaptor):
    """Writes a row of CSV for each allocation and free, as RMM's does, to ``NAME.devN.EXTENSION`` for device N.

    ``aquifer-replay`` runs such a file again. Without a name, the variable ``RMM_LOG_FILE`` has it.
    """

    def __init__(self, upstream_mr: DeviceMemoryResource, log_file_name: _Path | None = None) -> None:
        self._name = _log_name(log_file_name, self._given(upstream_mr).device)
        self._build_over(upstream_mr, _text("logging", path=self._name))

    def flush(self) -> None:
        """Waits until the rows of all calls so far are written."""
        self._flush()

    def get_file_name(self) -> str:
        """The file's path, with the number of the device."""
        return self._name


class StatisticsResourceAdaptor(UpstreamResourceAdaptor):
    """Counts bytes and blocks: now, at most, and in all.

    ``allocation_counts`` has the counters. ``push_counters`` opens a scope of the process, in which the calls of all threads
    count from zero, and ``pop_counters`` ends the innermost one, whichever thread opened it.
    """

    def __init__(self, upstream_mr: DeviceMemoryResource) -> None:
        self._build_over(upstream_mr, "statistics")


class TrackingResourceAdaptor(UpstreamResourceAdaptor):
    """Knows each block in use, with ``capture_stacks`` the native calls that led to it as well."""

    def __init__(self, upstream_mr: DeviceMemoryResource, capture_stacks: bool = False) -> None:
        self._build_over(upstream_mr, _text("tracking", capture_backtraces=True if capture_stacks else None))

    def log_outstanding_allocations(self) -> None:
        """Writes the blocks in use to the log of the package's name, of :mod:`logging`."""
        logging.getLogger("aquifer").info("%s", self.get_outstanding_allocations_str())


class PrefetchResourceAdaptor(UpstreamResourceAdaptor):
    """Moves managed memory to the device as it is allocated."""

    def __init__(self, upstream_mr: DeviceMemoryResource) -> None:
        self._build_over(upstream_mr, "prefetch")


class AlignedResourceAdaptor(UpstreamResourceAdaptor):
    """Aligns blocks of ``alignment_threshold`` bytes and more to ``alignment``, a power of two."""

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        alignment: int = 256,
        alignment_threshold: Size = 0,
    ) -> None:
        text = _text("aligned", alignment=operator.index(alignment), threshold_bytes=_bytes(alignment_threshold))
        self._build_over(upstream_mr, text)


class CheckedResourceAdaptor(UpstreamResourceAdaptor):
    """Refuses frees of what is no block, or was freed before, and overwrites memory as it is freed."""

    def __init__(self, upstream_mr: DeviceMemoryResource) -> None:
        self._build_over(upstream_mr, "checked")


def _of(part: _T | None) -> _T:
    """What a resource has that was built with it."""
    if part is None:
        raise RuntimeError("the resource has lost a part of its stack, which is a bug of aquifer")
    return part


def get_current_device_resource() -> DeviceMemoryResource:
    """The current resource of the current device: what was set, or what ``AQUIFER_STACK`` describes, or a pool."""
    return get_per_device_resource(None)


def set_current_device_resource(mr: DeviceMemoryResource) -> None:
    """Sets the current resource of the current device, for buffers and for the libraries whose allocators are set.

    What was allocated before stays valid, and goes back to where it came from.
    """
    set_per_device_resource(None, mr)


def available_device_memory() -> tuple[int, int]:
    """The free and the total memory of the current device, in bytes."""
    return _aquifer.memory_info()


def _log_name(name: _Path | None, device: int) -> str:
    """The path of a device's log."""
    given = name or os.environ.get("RMM_LOG_FILE")
    if not given:
        raise ValueError("a log needs a file (give log_file_name, or set RMM_LOG_FILE)")
    root, extension = os.path.splitext(os.path.abspath(given))
    return f"{root}.dev{device}{extension}"


def enable_logging(log_file_name: _Path | None = None, *, devices: Iterable[int] | None = None) -> None:
    """Logs each allocation and free of the current resources, to ``NAME.devN.EXTENSION`` for device N.

    Without a name, the variable ``RMM_LOG_FILE`` has it. Without ``devices``, those whose current resource was set or
    used, and the current one. A log that goes on in another file ends; one that has the file goes on.

    The rows are written some milliseconds later, and all of them by the end of the process. A child of :mod:`multiprocessing`
    writes all, too. A program that calls ``os._exit`` itself calls :func:`disable_logging` before.
    """
    if devices is None:
        devices = sorted({*_aquifer._devices_with_resource(), _aquifer.current_device()})
    for device in devices:
        current = inside = get_per_device_resource(device)
        if isinstance(current, LoggingResourceAdaptor):
            if current.get_file_name() == _log_name(log_file_name, device):
                continue
            inside = current.upstream_mr
        set_per_device_resource(device, LoggingResourceAdaptor(inside, log_file_name))
        _write_out(current)


def _write_out(ended: DeviceMemoryResource) -> None:
    """Waits until a log is written that ends. One that cannot be, as its file was removed, keeps nothing from going on."""
    try:
        ended._flush()
    except Error as error:
        logging.getLogger("aquifer").warning("a log of %r has lost rows: %s", ended, error)


def _flush_logs() -> None:
    for device in _aquifer._devices_with_resource():
        current = get_per_device_resource(device)
        if isinstance(current, LoggingResourceAdaptor):
            current.flush()


def disable_logging() -> None:
    """Ends the logs of the current resources, and waits until they are written.

    Rows that cannot be written, as the file was removed, are told of by :mod:`logging`.
    """
    for device in _aquifer._devices_with_resource():
        current = get_per_device_resource(device)
        if isinstance(current, LoggingResourceAdaptor):
            set_per_device_resource(device, current.upstream_mr)
        # One that is inside goes on.
        _write_out(current)


def get_log_filenames() -> dict[int, str | None]:
    """The file of each device's log: None for a device without one."""
    names: dict[int, str | None] = {}
    for device in sorted(_aquifer._devices_with_resource()):
        current = get_per_device_resource(device)
        names[device] = current.get_file_name() if isinstance(current, LoggingResourceAdaptor) else None
    return names


def is_initialized() -> bool:
    """Whether allocations can be made. Always, as the first one makes what it needs."""
    return True
