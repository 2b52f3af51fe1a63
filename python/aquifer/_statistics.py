"""What a resource has counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Statistics:
    """Bytes and blocks that a resource has counted: now, at most at one time, and in all.

    :param current_bytes: bytes in use.
    :param current_count: blocks in use.
    :param peak_bytes: the most bytes that were in use at one time.
    :param peak_count: the most blocks that were in use at one time.
    :param total_bytes: bytes of all allocations.
    :param total_count: how many allocations there were.

    >>> import aquifer
    >>> counted = aquifer.mr.StatisticsResourceAdaptor(aquifer.mr.CudaMemoryResource())
    >>> buffer = aquifer.DeviceBuffer(size=1024, mr=counted)
    >>> counted.allocation_counts.peak_bytes
    1024
    """

    current_bytes: int
    current_count: int
    peak_bytes: int
    peak_count: int
    total_bytes: int
    total_count: int
