"""Memory that sleeps: it is given back, and comes back at its addresses."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Literal

from aquifer import mr
from aquifer._aquifer import current_device

__all__ = ["Sleep", "sleep", "tag", "wake"]

#: The pool of each tag, by device.
_TAGGED: dict[tuple[int, str], mr.DeviceMemoryResource] = {}
_LOCK = threading.Lock()


def _pool(name: str) -> mr.DeviceMemoryResource:
    with _LOCK:
        key = (current_device(), name)
        pool = _TAGGED.get(key)
        if pool is None:
            pool = mr.DeviceMemoryResource()
            pool._build("pool(virtual)")
            _TAGGED[key] = pool
        return pool


@contextlib.contextmanager
def tag(name: str) -> Iterator[mr.DeviceMemoryResource]:
    """Has all libraries allocate from the pool of a tag, inside of a ``with``: the current resource of the current device.

    >>> import aquifer
    >>> with aquifer.tag("weights"):
    ...     weights = aquifer.to_device(b"some bytes")
    >>> with aquifer.sleep(tags=["weights"]):
    ...     pass  # another program has the memory
    >>> weights.tobytes()
    b'some bytes'

    Blocks stay in their pool when they outlive the ``with``. A pool of a tag maps its memory, which ``cuIpcGetMemHandle``
    does not share.
    """
    before = mr.get_current_device_resource()
    pool = _pool(name)
    mr.set_current_device_resource(pool)
    try:
        yield pool
    finally:
        mr.set_current_device_resource(before)


class Sleep:
    """Memory that sleeps. It wakes by :meth:`wake`, or at the end of a ``with``."""

    def __init__(self, pools: list[mr.DeviceMemoryResource], nbytes: int) -> None:
        self._pools = pools
        #: Bytes that the device has back.
        self.nbytes = nbytes

    def wake(self) -> None:
        """Brings all of it back that sleeps still. After an error, what has not come back sleeps as before."""
        while self._pools:
            if self._pools[0]._is_asleep:
                self._pools[0]._wake()
            self._pools.pop(0)

    def __enter__(self) -> Sleep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wake()


def _pools(tags: Iterable[str] | None) -> list[mr.DeviceMemoryResource]:
    device = current_device()
    with _LOCK:
        known = {name: pool for (of, name), pool in _TAGGED.items() if of == device}
    if isinstance(tags, str):
        tags = [tags]
    if tags is None:
        return list(known.values())
    names = list(dict.fromkeys(tags))
    for name in names:
        if name not in known:
            there = ", ".join(map(repr, known)) or "none"
            raise ValueError(f"{name!r} is no tag of device {device} (there are: {there})")
    return [known[name] for name in names]


def sleep(
    tags: Iterable[str] | None = None,
    *,
    keep: Literal["page_locked", "file", "nothing"] = "page_locked",
    folder: str | os.PathLike[str] | None = None,
) -> Sleep:
    """Waits for all work of the device, and gives the memory of these tags back, of all by default.

    The contents are kept in page-locked memory, or in a file without a name in ``folder``. With ``"nothing"`` all is zero
    when the memory wakes. Arrays and tensors keep their addresses, so captured graphs are right again then.

    Until it wakes, give the device no work that uses the memory: what a library does by its pointers is not checked, and
    ends in a fault. A buffer of this package is an :class:`Error`, as is an allocation. Blocks may be freed.

    After an :class:`Error`, as while a stream is in capture, all tags are awake.
    """
    slept: list[mr.DeviceMemoryResource] = []
    nbytes = 0
    try:
        for pool in _pools(tags):
            nbytes += pool._sleep(keep, None if folder is None else os.fspath(folder))
            slept.append(pool)
    except BaseException:
        Sleep(slept, nbytes).wake()
        raise
    return Sleep(slept, nbytes)


def wake(tags: Iterable[str] | None = None) -> None:
    """Brings the memory of these tags back, of all that sleep by default, one after the other.

    An :class:`OutOfMemoryError` says how much is missing. That tag, and those after it, sleep as before.
    """
    for pool in _pools(tags):
        if tags is not None or pool._is_asleep:
            pool._wake()
