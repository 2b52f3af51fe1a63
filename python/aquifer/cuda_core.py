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

from cuda.core import Buffer, MemoryResource

from aquifer import mr as _mr

__all__ = ["AquiferMemoryResource"]


class AquiferMemoryResource(MemoryResource):  # type: ignore[misc]
    """Device memory of a resource, by default the current one of the device at each allocation."""

    def __init__(self, device_id: int = 0, mr: _mr.DeviceMemoryResource | None = None) -> None:
        self._device_id = int(device_id)
        self._mr = mr

    def allocate(self, size: int, *, stream: Any) -> Any:
        """Memory for work on a stream. ``MemoryError`` where there is none."""
        resource = self._mr or _mr.get_per_device_resource(self._device_id)
        address = resource.allocate(size, stream)
        return Buffer.from_handle(address, size, mr=self, stream=stream)

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        """Frees in the order of a stream."""
        resource = self._mr or _mr.get_per_device_resource(self._device_id)
        # A block goes back to where it came from, whichever resource is current by now.
        resource.deallocate(int(ptr), size, stream)

    @property
    def is_device_accessible(self) -> bool:
        """True."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """False."""
        return False

    @property
    def is_managed(self) -> bool:
        """False."""
        return False

    @property
    def device_id(self) -> int:
        """The number of the device."""
        return self._device_id
