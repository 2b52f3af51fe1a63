"""A memory resource for cuda.core.

>>> from cuda.core import Device                                             # doctest: +SKIP
>>> import aquifer.cuda_core                                                 # doctest: +SKIP
>>> device = Device(0); device.set_current()                                 # doctest: +SKIP
>>> device.memory_resource = aquifer.cuda_core.AquiferMemoryResource(0)      # doctest: +SKIP
>>> buffer = device.allocate(1 << 20, stream=device.create_stream())         # doctest: +SKIP

``Device`` objects are each thread's own: set it in each.
"""

from __future__ import annotations

from typing import Any

from cuda.core import Buffer, MemoryResource, Stream
from cuda.core.graph import GraphBuilder

from aquifer import mr as _mr
from aquifer._device import device_current

__all__ = ["AquiferMemoryResource"]

#: The handle of the calling thread's default stream.
_PER_THREAD = 2


def _stream_of(stream: Any) -> Any:
    """The stream of what cuda.core takes for one."""
    return stream.stream if isinstance(stream, GraphBuilder) else stream


def _is_per_thread(stream: Any) -> bool:
    return isinstance(stream, Stream) and stream.__cuda_stream__()[1] == _PER_THREAD


class AquiferMemoryResource(MemoryResource):  # type: ignore[misc]
    """Device memory for cuda.core.

    >>> from cuda.core import Device                                             # doctest: +SKIP
    >>> import aquifer.cuda_core                                                 # doctest: +SKIP
    >>> device = Device(0); device.set_current()                                 # doctest: +SKIP
    >>> resource = aquifer.cuda_core.AquiferMemoryResource(0)                    # doctest: +SKIP
    >>> stream = device.create_stream()                                          # doctest: +SKIP
    >>> buffer = resource.allocate(1024, stream=stream)                          # doctest: +SKIP
    >>> buffer.close()  # calls resource.deallocate(ptr, 1024, stream=stream)    # doctest: +SKIP
    """

    def __init__(self, device_id: int = 0, mr: _mr.DeviceMemoryResource | None = None) -> None:
        """
        :param device_id: the number of the device.
        :param mr: the resource that the memory comes from. None is the current one of the device at each allocation.
        :raises ValueError: for a resource of another device.
        """
        if mr is not None and mr.device != device_id:
            raise ValueError(f"a resource of device {mr.device} was given for device {device_id}")
        self._device_id = int(device_id)
        self._mr = mr

    def allocate(self, size: int, *, stream: Any) -> Any:
        """Memory for work on a stream, as a ``Buffer`` of cuda.core's.

        :param size: the size in bytes.
        :param stream: a stream or a graph builder of cuda.core's. None is the default stream.
        :raises TypeError: for another library's stream.
        :raises MemoryError: where there is no memory.
        :raises aquifer.Error: where there is no device.
        """
        own = _stream_of(stream)
        if own is not None and not isinstance(own, Stream):
            # cuda.core would refuse it, and nothing would free the memory.
            raise TypeError(f"a stream of cuda.core was expected, and a {type(own).__qualname__} was given")
        with device_current(self._device_id):
            resource = self._resource()
            # Later work of a thread's default stream comes after that of the legacy one.
            if own is None or _is_per_thread(own):
                address = resource.allocate(size)
            else:
                address = resource.allocate(size, own)
            return Buffer.from_handle(address, size, mr=self, stream=stream)

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        """Frees memory in the order of a stream. A buffer calls it at its end.

        :param ptr: the address.
        :param size: the size in bytes.
        :param stream: a stream or a graph builder of cuda.core's. None is the default stream.
        :raises ValueError: for an address that is no block, or was freed before.
        """
        stream = _stream_of(stream)
        if _is_per_thread(stream):
            # The legacy default stream, which comes after those of all threads.
            stream = None
        with device_current(self._device_id):
            # A block goes back to where it came from, whichever resource is current by now.
            resource = self._resource()
            if stream is None:
                resource.deallocate(int(ptr), size)
            else:
                resource.deallocate(int(ptr), size, stream)

    def _resource(self) -> _mr.DeviceMemoryResource:
        return self._mr or _mr.get_per_device_resource(self._device_id)

    @property
    def is_device_accessible(self) -> bool:
        """Whether the device reaches the memory: True."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """Whether the host reaches the memory: False."""
        return False

    @property
    def is_managed(self) -> bool:
        """Whether the memory is managed: False."""
        return False

    @property
    def device_id(self) -> int:
        """The number of the device."""
        return self._device_id
