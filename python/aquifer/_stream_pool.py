"""Several streams, to take in turn."""

from __future__ import annotations

import operator
import threading
from enum import IntEnum

from aquifer._aquifer import Stream

__all__ = ["CudaStreamFlags", "CudaStreamPool"]


class CudaStreamFlags(IntEnum):
    """How a stream stands to the legacy default stream.

    >>> import aquifer
    >>> stream = aquifer.Stream(flags=aquifer.CudaStreamFlags.NON_BLOCKING)
    >>> stream.is_default()
    False
    """

    #: Each waits for the other.
    SYNC_DEFAULT = 0
    #: Neither waits for the other.
    NON_BLOCKING = 1


class CudaStreamPool:
    """Streams of the current device, to take in turn. Any thread may call it.

    >>> import aquifer
    >>> pool = aquifer.CudaStreamPool(4)
    >>> first = pool.get_stream()
    >>> pool.get_stream() == first, pool.get_stream(0) == first, pool.get_pool_size()
    (False, True, 4)
    """

    def __init__(self, pool_size: int = 16, flags: CudaStreamFlags = CudaStreamFlags.SYNC_DEFAULT) -> None:
        """
        :param pool_size: how many streams there are, one at least.
        :param flags: how they stand to the legacy default stream.
        :raises ValueError: for no streams, and for other flags.
        :raises aquifer.Error: where the driver makes none.
        """
        size = operator.index(pool_size)
        if size < 1:
            raise ValueError(f"a pool of {size} streams was asked, which could hand out none")
        self._streams = [Stream(flags=flags) for _ in range(size)]
        self._lock = threading.Lock()
        self._next = 0

    def get_stream(self, stream_id: int | None = None) -> Stream:
        """The next stream in turn, or that of a number, which takes no turn.

        :param stream_id: a number, which wraps around at the pool's size. None is the next in turn.
        :raises ValueError: for a negative number.
        """
        if stream_id is None:
            with self._lock:
                stream_id = self._next
                self._next = (stream_id + 1) % len(self._streams)
        number = operator.index(stream_id)
        if number < 0:
            raise ValueError(f"a pool has no stream of the number {number}")
        return self._streams[number % len(self._streams)]

    def get_pool_size(self) -> int:
        """How many streams there are."""
        return len(self._streams)
