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
    """Has all libraries allocate from the pool of a tag, inside of a ``with``. Its value is that pool.

    The pool is the current resource of the current device there. Blocks stay in their pool when they outlive the ``with``. A
    pool of a tag maps its memory, which ``cuIpcGetMemHandle`` does not share.

    :param name: the tag. A name that is used again is the same tag.
    :raises aquifer.Error: where there is no device, and for one that maps no memory.

    >>> import aquifer
    >>> with aquifer.tag("weights"):
    ...     weights = aquifer.to_device(b"some bytes")
    >>> with aquifer.sleep(tags=["weights"]):
    ...     pass  # another program has the memory
    >>> weights.tobytes()
    b'some bytes'
    """
    before = mr.get_current_device_resource()
    pool = _pool(name)
    mr.set_current_device_resource(pool)
    try:
        yield pool
    finally:
        mr.set_current_device_resource(before)


class Sleep:
    """Memory that sleeps, as :func:`sleep` returns it. It wakes by :meth:`wake`, or at the end of a ``with``.

    >>> import aquifer
    >>> with aquifer.tag("activations"):
    ...     activations = aquifer.to_device(b"some bytes")
    >>> slept = aquifer.sleep(tags=["activations"])
    >>> slept.nbytes  # bytes that the device has back
    2097152
    >>> slept.wake()
    >>> activations.tobytes()
    b'some bytes'
    """

    def __init__(self, pools: list[mr.DeviceMemoryResource], nbytes: int) -> None:
        """
        :param pools: the pools that sleep.
        :param nbytes: how many bytes the device has back.
        """
        self._pools = pools
        #: Bytes that the device has back.
        self.nbytes = nbytes

    def wake(self) -> None:
        """Brings all of it back that sleeps still. After an error, what has not come back sleeps as before.

        :raises MemoryError: where the device has less free memory than sleeps.
        :raises aquifer.Error: where the driver, or the file with the contents, fails.
        """
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
    """Waits for all work of the device, and gives the memory of tags back. Arrays and tensors keep their addresses.

    Until it wakes, give the device no work that uses the memory: what a library does by its pointers is not checked, and
    ends in a fault. A use of this package's buffers raises :class:`aquifer.Error`, as an allocation does. Blocks may be
    freed. After an error all tags are awake.

    :param tags: the names of tags. None is all tags of the current device.
    :param keep: where the contents wait. ``"page_locked"`` is page-locked host memory, ``"file"`` a file without a name in
        ``folder``. With ``"nothing"`` all is zero when the memory wakes.
    :param folder: the folder of ``"file"``.
    :returns: what wakes the memory. Its ``nbytes`` are the bytes that the device has back.
    :raises ValueError: for a name that is no tag, another ``keep``, and a folder that is missing or not needed.
    :raises MemoryError: where the host has no room for the contents.
    :raises aquifer.Error: while a stream is in capture, and where the driver or the file fails.

    >>> import aquifer
    >>> with aquifer.tag("states"):
    ...     states = aquifer.to_device(b"some bytes")
    >>> with aquifer.sleep(tags=["states"], keep="nothing") as slept:
    ...     print(slept.nbytes)
    2097152
    >>> states.tobytes() == bytes(10)
    True
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
    """Brings the memory of tags back, one after the other. After an error that tag, and those after it, sleep as before.

    :param tags: the names of tags. None is all tags of the current device that sleep.
    :raises ValueError: for a name that is no tag.
    :raises MemoryError: where the device has less free memory than sleeps. The message says how much is missing.
    :raises aquifer.Error: where the driver, or the file with the contents, fails.

    >>> import aquifer
    >>> with aquifer.tag("caches"):
    ...     cache = aquifer.to_device(b"some bytes")
    >>> slept = aquifer.sleep(tags=["caches"])
    >>> aquifer.wake(tags=["caches"])
    >>> cache.tobytes()
    b'some bytes'
    """
    for pool in _pools(tags):
        if tags is not None or pool._is_asleep:
            pool._wake()
