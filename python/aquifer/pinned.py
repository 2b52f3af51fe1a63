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
    """What the pool holds, in bytes."""

    #: Taken from the driver.
    reserved: int
    #: The most that was reserved at once.
    peak_reserved: int
    #: In blocks that are in use.
    live: int
    #: The largest free block.
    largest_free: int


def trim(keep: Size = 0) -> int:
    """Waits for all work of the devices, and gives free memory back, as long as the pool keeps ``keep`` bytes.

    Returns how many bytes went back. An :class:`aquifer.Error` while a stream is in capture, which the wait would end.
    """
    return _aquifer.pinned_trim(_bytes(keep))


def statistics() -> PinnedStatistics:
    """What the pool holds now."""
    return PinnedStatistics(*_aquifer.pinned_statistics())


def set_limits(
    *,
    maximum_size: Size | None | Literal["keep"] = "keep",
    release_threshold: Size | None | Literal["keep"] = "keep",
    touch_threads: int | None = None,
) -> None:
    """Changes what the pool may hold. What is not given stays as it is; None is for no limit.

    ``maximum_size`` is the most that the pool takes, in pages of 4096 bytes. A pool that has more keeps it.

    Above ``release_threshold`` a free gives memory back, if the devices have nothing to do. It keeps all by default.

    ``touch_threads`` are the threads that touch new memory of 16 MiB and more before it is locked. On an H200 machine 1 GiB
    took 47 ms by 8 threads and 374 ms by none, the default. That is for a process that forks workers: the kernel copies
    such memory for the child, at about 1 GiB a second.
    """

    def limit(size: Size | None) -> int | None:
        return None if size == "keep" else _NONE if size is None else _bytes(size)

    _aquifer.pinned_set_limits(limit(maximum_size), limit(release_threshold), touch_threads)
