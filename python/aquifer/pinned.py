"""The pool of page-locked memory: what it holds, its limits, and how it gives memory back.

NumPy's arrays in page-locked memory (:func:`aquifer.numpy_handler`), CuPy's, and those of hosts in C come from this pool.

>>> import aquifer
>>> aquifer.pinned.set_limits(maximum_size="1 GiB", release_threshold="64 MiB")
>>> numbers = aquifer.pinned.statistics()
>>> numbers.reserved >= numbers.live
True
>>> aquifer.pinned.trim() >= 0
True
>>> aquifer.pinned.set_limits(maximum_size=None, release_threshold=None)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aquifer import _aquifer
from aquifer.mr import Size, _bytes

__all__ = ["PinnedStatistics", "set_limits", "statistics", "trim"]

_NONE = 2**64 - 1


@dataclass(frozen=True)
class PinnedStatistics:
    """What the pool holds, in bytes.

    :param reserved: bytes that the pool has of the driver.
    :param peak_reserved: the most bytes that it had at one time.
    :param live: bytes of blocks that are in use.
    :param largest_free: bytes of the largest free block.

    >>> import aquifer
    >>> numbers = aquifer.pinned.statistics()
    >>> numbers.peak_reserved >= numbers.reserved >= numbers.live
    True
    """

    reserved: int
    peak_reserved: int
    live: int
    largest_free: int


def trim(keep: Size = 0) -> int:
    """Waits for all work of the devices, and gives free memory back.

    :param keep: bytes that the pool keeps at least, or a text such as ``"64MiB"``.
    :returns: how many bytes went back.
    :raises ValueError: for what is no size.
    :raises aquifer.Error: while a stream is in capture, which the wait would end, and where there is no device.

    >>> import aquifer
    >>> aquifer.pinned.trim(keep="64MiB") >= 0
    True
    """
    return _aquifer.pinned_trim(_bytes(keep))


def statistics() -> PinnedStatistics:
    """What the pool holds now, in bytes.

    :raises aquifer.Error: where there is no device.

    >>> import aquifer
    >>> aquifer.pinned.statistics().live >= 0
    True
    """
    return PinnedStatistics(*_aquifer.pinned_statistics())


def set_limits(
    *,
    maximum_size: Size | None | Literal["keep"] = "keep",
    release_threshold: Size | None | Literal["keep"] = "keep",
    touch_threads: int | None = None,
) -> None:
    """Changes what the pool may hold. What is not given stays as it is.

    :param maximum_size: bytes that the pool takes at most, in pages of 4096 bytes, or a text such as ``"1GiB"``. None sets
        no limit. A pool that has more keeps it.
    :param release_threshold: bytes above which a free gives memory back, if the devices have nothing to do, or a text. None,
        the default, keeps all.
    :param touch_threads: how many threads touch new memory of 16 MiB and more before it is locked. On an H200 machine 1 GiB
        took 47 ms by 8 threads and 374 ms by none, the default. None suits a process that forks workers: the kernel
        copies such memory for the child, at about 1 GiB a second.
    :raises ValueError: for what is no size.
    :raises aquifer.Error: where there is no device.

    >>> import aquifer
    >>> aquifer.pinned.set_limits(maximum_size="1GiB")
    >>> aquifer.pinned.set_limits(maximum_size=None)
    """

    def limit(size: Size | None) -> int | None:
        return None if size == "keep" else _NONE if size is None else _bytes(size)

    _aquifer.pinned_set_limits(limit(maximum_size), limit(release_threshold), touch_threads)
