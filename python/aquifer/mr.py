"""Memory resources, by RMM's names.

A resource is made on the device that is current. One that is over another keeps it. A size is a number of bytes, or a text
with a unit: KiB, MiB, GiB, TiB, PiB, or KB, MB, GB, TB, PB, as in ``"1.5GiB"``.

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

#: A size: a number of bytes, or a text with a unit, such as ``"4MiB"``.
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
    """Memory of the device, by a call of the driver's for each block: ``cuMemAlloc`` and ``cuMemFree``.

    >>> import aquifer
    >>> buffer = aquifer.DeviceBuffer(size=1024, mr=aquifer.mr.CudaMemoryResource())
    >>> buffer.size
    1024
    """

    def __init__(self) -> None:
        """
        :raises aquifer.Error: where there is no device.
        """
        self._build("cuda")


class ManagedMemoryResource(DeviceMemoryResource):
    """Managed memory, which host and device reach, for each block. There may be more of it than the device has memory.

    >>> import aquifer
    >>> pool = aquifer.mr.PoolMemoryResource(aquifer.mr.ManagedMemoryResource())
    >>> aquifer.to_device(b"some bytes", mr=pool).tobytes()
    b'some bytes'
    """

    def __init__(self) -> None:
        """
        :raises aquifer.Error: where there is no device, and for one that has no managed memory.
        """
        self._build("managed(oversubscribe=on)")


class SystemMemoryResource(DeviceMemoryResource):
    """The host's own memory, of ``malloc``, for each block. The device has to reach that.

    >>> import aquifer
    >>> system = aquifer.mr.SystemMemoryResource()
    >>> aquifer.to_device(b"some bytes", mr=system).tobytes()
    b'some bytes'
    """

    def __init__(self) -> None:
        """
        :raises aquifer.Error: where there is no device, and for one that does not reach the host's memory.
        """
        self._build("system")


class SamHeadroomMemoryResource(DeviceMemoryResource):
    """The host's own memory, of which the device takes what leaves it ``headroom`` bytes.

    >>> import aquifer
    >>> system = aquifer.mr.SamHeadroomMemoryResource("64MiB")
    >>> aquifer.to_device(b"some bytes", mr=system).tobytes()
    b'some bytes'
    """

    def __init__(self, headroom: Size) -> None:
        """
        :param headroom: bytes of the device's memory that stay free for others, or a text such as ``"1GiB"``.
        :raises ValueError: for what is no size.
        :raises aquifer.Error: where there is no device, and for one that does not reach the host's memory.
        """
        self._build(_text("system", headroom=_bytes(headroom)))


class PinnedHostMemoryResource(DeviceMemoryResource):
    """Page-locked host memory, which the device reaches, for each block.

    >>> import aquifer
    >>> pinned = aquifer.mr.PinnedHostMemoryResource()
    >>> aquifer.to_device(b"some bytes", mr=pinned).tobytes()
    b'some bytes'
    """

    def __init__(self) -> None:
        """
        :raises aquifer.Error: where there is no device.
        """
        self._build("pinned")


class CudaAsyncMemoryResource(DeviceMemoryResource):
    """A memory pool of the driver's.

    >>> import aquifer
    >>> pool = aquifer.mr.CudaAsyncMemoryResource(initial_pool_size="1MiB", release_threshold="64MiB")
    >>> pool.pool_handle() > 0
    True
    """

    def __init__(
        self,
        initial_pool_size: Size | None = None,
        release_threshold: Size | None = None,
        enable_ipc: bool = False,
        enable_fabric: bool = False,
    ) -> None:
        """
        :param initial_pool_size: bytes that the pool takes at once, or a text such as ``"1GiB"``. None takes none.
        :param release_threshold: bytes that the pool keeps when it gives free memory back, or a text. None keeps all.
        :param enable_ipc: whether other processes can open the pool's blocks.
        :param enable_fabric: whether other nodes of a fabric can open the pool's blocks.
        :raises ValueError: for what is no size.
        :raises MemoryError: where the device has less memory than ``initial_pool_size``.
        :raises aquifer.Error: where there is no device, and for one that has no such pools.
        """
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
        """The driver's handle of the pool, a ``cudaMemPool_t``, as a number."""
        return _of(self._pool_handle())


class CudaAsyncManagedMemoryResource(DeviceMemoryResource):
    """A memory pool of the driver's, of managed memory. It needs CUDA 13.

    >>> import aquifer
    >>> pool = aquifer.mr.CudaAsyncManagedMemoryResource()      # doctest: +SKIP
    >>> pool.pool_handle() > 0                                  # doctest: +SKIP
    True
    """

    def __init__(self) -> None:
        """
        :raises aquifer.Error: where there is no device, and for one that has no such pools.
        """
        self._build("async(managed=on)")

    def pool_handle(self) -> int:
        """The driver's handle of the pool, a ``cudaMemPool_t``, as a number."""
        return _of(self._pool_handle())


class CudaAsyncViewMemoryResource(DeviceMemoryResource):
    """A memory pool of the driver's that another library made, and keeps for as long as this is used.

    >>> import aquifer
    >>> owner = aquifer.mr.CudaAsyncMemoryResource()
    >>> view = aquifer.mr.CudaAsyncViewMemoryResource(owner.pool_handle())
    >>> view.pool_handle() == owner.pool_handle()
    True
    """

    def __init__(self, pool_handle: Any) -> None:
        """
        :param pool_handle: the driver's handle, a ``cudaMemPool_t``: a number, or an object with ``__int__``.
        :raises TypeError: for what has no ``__int__``.
        :raises ValueError: for the handle 0.
        :raises aquifer.Error: where there is no device, and for one that has no such pools.
        """
        self._handle = int(pool_handle)
        self._build_pool_view(self._handle)

    def pool_handle(self) -> int:
        """The driver's handle, a ``cudaMemPool_t``, as a number."""
        return self._handle


class UpstreamResourceAdaptor(DeviceMemoryResource):
    """What is over another resource: the base of such classes.

    >>> import aquifer
    >>> below = aquifer.mr.CudaMemoryResource()
    >>> limited = aquifer.mr.LimitingResourceAdaptor(below, "1GiB")
    >>> isinstance(limited, aquifer.mr.UpstreamResourceAdaptor), limited.get_upstream() is below
    (True, True)
    """

    @property
    def upstream_mr(self) -> DeviceMemoryResource:
        """The resource that this one takes its memory from."""
        return self._upstreams()[0]

    def get_upstream(self) -> DeviceMemoryResource:
        """The resource that this one takes its memory from, as ``upstream_mr``."""
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

    A size is a number of bytes, or a text such as ``"4MiB"``. Without ``initial_pool_size`` the pool begins empty, where
    RMM's takes half of the device's memory.

    >>> import aquifer
    >>> pool = aquifer.mr.PoolMemoryResource(
    ...     aquifer.mr.CudaMemoryResource(), initial_pool_size="1MiB", maximum_pool_size=2**30
    ... )
    >>> pool.pool_size()
    1048576
    """

    def __init__(
        self,
        upstream: DeviceMemoryResource | None = None,
        initial_pool_size: Size | None = None,
        maximum_pool_size: Size | None = None,
        *,
        upstream_mr: DeviceMemoryResource | None = None,
    ) -> None:
        """
        :param upstream: the resource that the pool takes its memory from.
        :param initial_pool_size: bytes that the pool takes at once, or a text such as ``"4MiB"``. None takes none.
        :param maximum_pool_size: bytes that the pool takes at most, or a text. None sets no limit.
        :param upstream_mr: another name of ``upstream``.
        :raises TypeError: for no upstream or two, and for one that is no resource.
        :raises ValueError: for what is no size.
        :raises MemoryError: where the upstream has less than ``initial_pool_size``.
        :raises aquifer.Error: for an initial size above the maximum.
        """
        if (upstream is None) == (upstream_mr is None):
            raise TypeError("PoolMemoryResource() takes one upstream")
        initial, maximum = _size(initial_pool_size), _size(maximum_pool_size)
        if initial is not None and maximum is not None and initial > maximum:
            raise Error(f"Initial pool size exceeds the maximum pool size ({initial} and {maximum} bytes were given)")
        text = _text("pool", initial_size=initial, maximum_size=maximum)
        self._build_over(upstream_mr if upstream is None else upstream, text)

    def pool_size(self) -> int:
        """The bytes that the pool has of its upstream, in use or free."""
        return self.pool_statistics()["reserved_bytes"]


class FixedSizeMemoryResource(UpstreamResourceAdaptor):
    """Blocks of one size. An allocation of more raises :class:`aquifer.OutOfMemoryError`.

    >>> import aquifer
    >>> fixed = aquifer.mr.FixedSizeMemoryResource(
    ...     aquifer.mr.CudaMemoryResource(), block_size="4KiB", blocks_to_preallocate=16
    ... )
    >>> buffer = aquifer.DeviceBuffer(size=4096, mr=fixed)
    """

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        block_size: Size = 1 << 20,
        blocks_to_preallocate: int = 128,
    ) -> None:
        """
        :param upstream_mr: the resource that the memory comes from.
        :param block_size: bytes of a block, or a text such as ``"1MiB"``. It is rounded up to a multiple of 256 bytes.
        :param blocks_to_preallocate: how many blocks it takes of its upstream at once, not before the first is needed.
        :raises TypeError: for an upstream that is no resource.
        :raises ValueError: for what is no size, a size of 0, and no blocks.
        """
        size = _rounded(_bytes(block_size))
        text = _text("fixed_size", block_size=size, blocks_per_chunk=operator.index(blocks_to_preallocate))
        self._build_over(upstream_mr, text)


class BinningMemoryResource(UpstreamResourceAdaptor):
    """A resource for each range of sizes: a bin. Blocks that are larger than the largest bin are the upstream's.

    >>> import aquifer
    >>> binning = aquifer.mr.BinningMemoryResource(aquifer.mr.CudaMemoryResource(), 10, 12)
    >>> binning.add_bin("1MiB")
    >>> len(binning.bin_mrs)  # blocks up to 1 KiB, 2 KiB, 4 KiB and 1 MiB
    4
    """

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        min_size_exponent: int = -1,
        max_size_exponent: int = -1,
    ) -> None:
        """
        With both exponents there is a bin of blocks of fixed size for each power of two between them.

        :param upstream_mr: the resource that the bins, and larger blocks, take their memory from.
        :param min_size_exponent: the smallest bin has blocks of 2 to the power of this many bytes. -1 makes no bins.
        :param max_size_exponent: the largest bin has blocks of 2 to the power of this many bytes. -1 makes no bins.
        :raises TypeError: for an upstream that is no resource.
        :raises ValueError: for an exponent whose size is more than an address space.
        """
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
        """Adds a resource for blocks up to a size that no smaller bin serves.

        Blocks that were allocated before go back to where they came from. Resources over this one go on as it was.

        :param allocation_size: bytes of the largest block, or a text such as ``"1MiB"``. It is rounded up to a multiple of
            256 bytes.
        :param bin_resource: the resource that serves them. None makes one of blocks of that size.
        :raises ValueError: for what is no size, and a size of 0.
        """
        size = _rounded(_bytes(allocation_size))
        added = FixedSizeMemoryResource(self._upstream, size) if bin_resource is None else bin_resource
        self._rebuild({**self._bins, size: added})
        if get_per_device_resource(self.device) is self:
            set_per_device_resource(self.device, self)

    @property
    def bin_mrs(self) -> list[DeviceMemoryResource]:
        """The resources of the bins, from that of the smallest blocks."""
        return [bin for _, bin in sorted(self._bins.items(), key=lambda bin: bin[0])]


class ArenaMemoryResource(UpstreamResourceAdaptor):
    """An arena: a pool that takes ``arena_size`` of its upstream when it is made, and stays there.

    >>> import aquifer
    >>> arena = aquifer.mr.ArenaMemoryResource(aquifer.mr.CudaMemoryResource(), arena_size="64MiB")
    >>> buffer = aquifer.DeviceBuffer(size=1024, mr=arena)
    """

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        arena_size: Size | None = None,
        dump_log_on_failure: bool = False,
    ) -> None:
        """
        :param upstream_mr: the resource that the memory comes from.
        :param arena_size: bytes that it takes, or a text such as ``"4GiB"``. None takes half of the device's free memory.
        :param dump_log_on_failure: whether an allocation that finds no memory writes what the arena holds to the file
            ``rmm_arena_memory_dump.log``.
        :raises TypeError: for an upstream that is no resource.
        :raises ValueError: for what is no size, and for less than 1 MiB.
        :raises MemoryError: where the upstream has less than ``arena_size``.
        """
        dump = "rmm_arena_memory_dump.log" if dump_log_on_failure else None
        self._build_over(upstream_mr, _text("arena", arena_size=_size(arena_size), dump_on_failure=dump))


class CallbackMemoryResource(DeviceMemoryResource):
    """Two functions that hand out memory and take it back.

    The functions are called on any thread, and may allocate of other resources. What they raise, the caller of the
    allocation gets.

    >>> import aquifer
    >>> cuda = aquifer.mr.CudaMemoryResource()
    >>> def allocate(nbytes, stream):
    ...     print(nbytes, "bytes")
    ...     return cuda.allocate(nbytes, stream)
    >>> def deallocate(ptr, nbytes, stream):
    ...     cuda.deallocate(ptr, nbytes, stream)
    >>> called = aquifer.mr.CallbackMemoryResource(allocate, deallocate)
    >>> buffer = aquifer.DeviceBuffer(size=1024, mr=called)
    1024 bytes
    >>> del buffer
    """

    def __init__(
        self,
        allocate_func: Callable[[int, Stream], int],
        deallocate_func: Callable[[int, int, Stream], None],
    ) -> None:
        """
        :param allocate_func: ``allocate_func(nbytes, stream)`` returns the address of so many bytes of the device's
            memory. The address is a multiple of 256 bytes. The memory stays valid until it is freed. Where there is
            none, the function raises :class:`MemoryError`.
        :param deallocate_func: ``deallocate_func(ptr, nbytes, stream)`` takes the memory at an address back.
        :raises aquifer.Error: where there is no device.
        """
        self._build_callback(allocate_func, deallocate_func)


class FailureCallbackResourceAdaptor(UpstreamResourceAdaptor):
    """Calls a function where there is no memory. While it returns true, the allocation is tried again, at most 16 times.

    What the function raises, the caller of the allocation gets.

    >>> import aquifer
    >>> def give_up(nbytes):
    ...     print(nbytes, "bytes are not there")
    ...     return False  # True after something was freed
    >>> limited = aquifer.mr.LimitingResourceAdaptor(aquifer.mr.CudaMemoryResource(), "1MiB")
    >>> told = aquifer.mr.FailureCallbackResourceAdaptor(limited, give_up)
    >>> try:
    ...     aquifer.DeviceBuffer(size=2**21, mr=told)
    ... except MemoryError:
    ...     pass
    2097152 bytes are not there
    """

    def __init__(self, upstream_mr: DeviceMemoryResource, callback: Callable[[int], bool]) -> None:
        """
        :param upstream_mr: the resource that the memory comes from.
        :param callback: ``callback(nbytes)`` is told how many bytes were asked. It returns whether to try again.
        :raises TypeError: for an upstream that is no resource.
        """
        self._build_failure_callback(self._given(upstream_mr), callback)


class LimitingResourceAdaptor(UpstreamResourceAdaptor):
    """A limit of the bytes that are in use. An allocation beyond it raises :class:`aquifer.OutOfMemoryError`.

    >>> import aquifer
    >>> limited = aquifer.mr.LimitingResourceAdaptor(aquifer.mr.CudaMemoryResource(), "1MiB")
    >>> buffer = aquifer.DeviceBuffer(size=1024, mr=limited)
    >>> limited.get_allocated_bytes(), limited.get_allocation_limit()
    (1024, 1048576)
    """

    def __init__(self, upstream_mr: DeviceMemoryResource, allocation_limit: Size) -> None:
        """
        :param upstream_mr: the resource that the memory comes from.
        :param allocation_limit: bytes that are in use at most, or a text such as ``"4GiB"``.
        :raises TypeError: for an upstream that is no resource.
        :raises ValueError: for what is no size.
        """
        self._build_over(upstream_mr, _text("limiting", limit=_bytes(allocation_limit)))

    def get_allocated_bytes(self) -> int:
        """The bytes in use."""
        return _of(self._limited())[0]


class LoggingResourceAdaptor(UpstreamResourceAdaptor):
    """A log of each allocation and free, a row of CSV each, as RMM's. ``aquifer-replay`` runs such a file again.

    >>> import aquifer, os
    >>> logged = aquifer.mr.LoggingResourceAdaptor(aquifer.mr.CudaMemoryResource(), "memory.csv")
    >>> buffer = aquifer.DeviceBuffer(size=1024, mr=logged)
    >>> logged.flush()
    >>> os.path.basename(logged.get_file_name()), len(open(logged.get_file_name()).readlines())
    ('memory.dev0.csv', 2)
    """

    def __init__(self, upstream_mr: DeviceMemoryResource, log_file_name: _Path | None = None) -> None:
        """
        :param upstream_mr: the resource that the memory comes from.
        :param log_file_name: a path ``NAME.EXTENSION``. Device N writes to ``NAME.devN.EXTENSION``. None takes the path from
            the variable ``RMM_LOG_FILE``.
        :raises TypeError: for an upstream that is no resource.
        :raises ValueError: without a path.
        :raises aquifer.Error: for a file that cannot be opened.
        """
        self._name = _log_name(log_file_name, self._given(upstream_mr).device)
        self._build_over(upstream_mr, _text("logging", path=self._name))

    def flush(self) -> None:
        """Waits until the rows of all calls so far are written.

        :raises aquifer.Error: where the file lost rows.
        """
        self._flush()

    def get_file_name(self) -> str:
        """The absolute path of the file, with the number of the device."""
        return self._name


class StatisticsResourceAdaptor(UpstreamResourceAdaptor):
    """Counters of bytes and blocks: now, at most, and in all.

    ``allocation_counts`` has the counters. ``push_counters`` opens a scope of the process, in which the calls of all threads
    count from zero. ``pop_counters`` ends the innermost scope, whichever thread opened it.

    >>> import aquifer
    >>> counted = aquifer.mr.StatisticsResourceAdaptor(aquifer.mr.CudaMemoryResource())
    >>> buffer = aquifer.DeviceBuffer(size=1024, mr=counted)
    >>> counted.allocation_counts.current_bytes, counted.allocation_counts.current_count
    (1024, 1)
    """

    def __init__(self, upstream_mr: DeviceMemoryResource) -> None:
        """
        :param upstream_mr: the resource that the memory comes from.
        :raises TypeError: for an upstream that is no resource.
        """
        self._build_over(upstream_mr, "statistics")


class TrackingResourceAdaptor(UpstreamResourceAdaptor):
    """A list of the blocks in use.

    >>> import aquifer
    >>> tracked = aquifer.mr.TrackingResourceAdaptor(aquifer.mr.CudaMemoryResource())
    >>> buffer = aquifer.DeviceBuffer(size=1024, mr=tracked)
    >>> tracked.get_allocated_bytes(), "1024" in tracked.get_outstanding_allocations_str()
    (1024, True)
    >>> tracked.log_outstanding_allocations()  # to logging.getLogger("aquifer")
    """

    def __init__(self, upstream_mr: DeviceMemoryResource, capture_stacks: bool = False) -> None:
        """
        :param upstream_mr: the resource that the memory comes from.
        :param capture_stacks: whether it knows of each block the native calls that led to it.
        :raises TypeError: for an upstream that is no resource.
        """
        self._build_over(upstream_mr, _text("tracking", capture_backtraces=True if capture_stacks else None))

    def log_outstanding_allocations(self) -> None:
        """Writes the blocks in use to the log ``aquifer`` of :mod:`logging`, at the level ``INFO``."""
        logging.getLogger("aquifer").info("%s", self.get_outstanding_allocations_str())


class PrefetchResourceAdaptor(UpstreamResourceAdaptor):
    """Managed memory that moves to the device as it is allocated.

    >>> import aquifer
    >>> near = aquifer.mr.PrefetchResourceAdaptor(aquifer.mr.ManagedMemoryResource())
    >>> buffer = aquifer.DeviceBuffer(size=1024, mr=near)
    """

    def __init__(self, upstream_mr: DeviceMemoryResource) -> None:
        """
        :param upstream_mr: the resource that the memory comes from. Of other memory nothing moves.
        :raises TypeError: for an upstream that is no resource.
        """
        self._build_over(upstream_mr, "prefetch")


class AlignedResourceAdaptor(UpstreamResourceAdaptor):
    """Blocks at multiples of a larger alignment than the usual 256 bytes.

    >>> import aquifer
    >>> aligned = aquifer.mr.AlignedResourceAdaptor(aquifer.mr.CudaMemoryResource(), 4096, "64KiB")
    >>> aquifer.DeviceBuffer(size=2**16, mr=aligned).ptr % 4096
    0
    """

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        alignment: int = 256,
        alignment_threshold: Size = 0,
    ) -> None:
        """
        :param upstream_mr: the resource that the memory comes from.
        :param alignment: bytes of which each address is a multiple: a power of two.
        :param alignment_threshold: bytes of the smallest block that is aligned so, or a text such as ``"64KiB"``.
        :raises TypeError: for an upstream that is no resource.
        :raises ValueError: for what is no size, and an alignment that is no power of two.
        """
        text = _text("aligned", alignment=operator.index(alignment), threshold_bytes=_bytes(alignment_threshold))
        self._build_over(upstream_mr, text)


class CheckedResourceAdaptor(UpstreamResourceAdaptor):
    """Checks of frees. A free of what is no block, or was freed before, is an error. Memory is overwritten as it is freed.

    >>> import aquifer
    >>> checked = aquifer.mr.CheckedResourceAdaptor(aquifer.mr.CudaMemoryResource())
    >>> buffer = aquifer.DeviceBuffer(size=1024, mr=checked)
    """

    def __init__(self, upstream_mr: DeviceMemoryResource) -> None:
        """
        :param upstream_mr: the resource that the memory comes from.
        :raises TypeError: for an upstream that is no resource.
        """
        self._build_over(upstream_mr, "checked")


def _of(part: _T | None) -> _T:
    """What a resource has that was built with it."""
    if part is None:
        raise RuntimeError("the resource has lost a part of its stack, which is a bug of aquifer")
    return part


def get_current_device_resource() -> DeviceMemoryResource:
    """The current resource of the current device: what was set, or what ``AQUIFER_STACK`` describes, or a pool.

    :raises ValueError: for a wrong text in ``AQUIFER_STACK``.
    :raises aquifer.Error: where there is no device.

    >>> import aquifer
    >>> aquifer.DeviceBuffer(size=1024).mr is aquifer.mr.get_current_device_resource()
    True
    """
    return get_per_device_resource(None)


def set_current_device_resource(mr: DeviceMemoryResource) -> None:
    """Sets the current resource of the current device, for buffers and for the libraries whose allocators are set.

    What was allocated before stays valid, and goes back to where it came from.

    :param mr: the resource. It was made on that device.
    :raises TypeError: for what is no resource.
    :raises ValueError: for a resource of another device.

    >>> import aquifer
    >>> pool = aquifer.mr.PoolMemoryResource(aquifer.mr.CudaMemoryResource())
    >>> aquifer.mr.set_current_device_resource(pool)
    >>> aquifer.DeviceBuffer(size=1024).mr is pool
    True
    """
    set_per_device_resource(None, mr)


def available_device_memory() -> tuple[int, int]:
    """The free and the total memory of the current device, in bytes. What a pool has free is not in the first.

    :raises aquifer.Error: where there is no device.

    >>> import aquifer
    >>> free, total = aquifer.mr.available_device_memory()
    >>> 0 < free <= total
    True
    """
    return _aquifer.memory_info()


def _log_name(name: _Path | None, device: int) -> str:
    """The path of a device's log."""
    given = name or os.environ.get("RMM_LOG_FILE")
    if not given:
        raise ValueError("a log needs a file (give log_file_name, or set RMM_LOG_FILE)")
    root, extension = os.path.splitext(os.path.abspath(given))
    return f"{root}.dev{device}{extension}"


def enable_logging(log_file_name: _Path | None = None, *, devices: Iterable[int] | None = None) -> None:
    """Logs each allocation and free of the current resources, a row of CSV each.

    A log that goes on in another file ends. One that has the file goes on.

    The rows are written some milliseconds later, and all of them by the end of the process. A child of :mod:`multiprocessing`
    writes all, too. A program that calls ``os._exit`` itself calls :func:`disable_logging` before. The file is emptied first, so
    each process has a name of its own.

    :param log_file_name: a path ``NAME.EXTENSION``. Device N writes to ``NAME.devN.EXTENSION``. None takes the path from the
        variable ``RMM_LOG_FILE``.
    :param devices: numbers of devices. None takes those whose current resource was set or used, and the current one.
    :raises ValueError: without a path.
    :raises aquifer.Error: for a file that cannot be opened, and for a device that is not there.

    >>> import aquifer, os
    >>> aquifer.enable_logging("memory.csv")
    >>> buffer = aquifer.DeviceBuffer(size=1024)
    >>> os.path.basename(aquifer.get_log_filenames()[0])
    'memory.dev0.csv'
    >>> aquifer.disable_logging()
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

    Rows that cannot be written, as the file was removed, are a warning of :mod:`logging`.

    >>> import aquifer
    >>> aquifer.enable_logging("memory.csv")
    >>> aquifer.disable_logging()
    >>> aquifer.get_log_filenames()
    {0: None}
    """
    for device in _aquifer._devices_with_resource():
        current = get_per_device_resource(device)
        if isinstance(current, LoggingResourceAdaptor):
            set_per_device_resource(device, current.upstream_mr)
        # One that is inside goes on.
        _write_out(current)


def get_log_filenames() -> dict[int, str | None]:
    """The path of each device's log, by the device's number. It is None for a device without a log.

    >>> import aquifer
    >>> resource = aquifer.mr.get_current_device_resource()
    >>> aquifer.get_log_filenames()
    {0: None}
    """
    names: dict[int, str | None] = {}
    for device in sorted(_aquifer._devices_with_resource()):
        current = get_per_device_resource(device)
        names[device] = current.get_file_name() if isinstance(current, LoggingResourceAdaptor) else None
    return names


def is_initialized() -> bool:
    """Whether allocations can be made. Always, as the first one makes what it needs.

    >>> import aquifer
    >>> aquifer.mr.is_initialized()
    True
    """
    return True
