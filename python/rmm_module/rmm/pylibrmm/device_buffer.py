"""A block of device memory, and copies by address."""

from aquifer import DeviceBuffer, copy_device_to_ptr, copy_host_to_ptr, copy_ptr_to_host

to_device = DeviceBuffer.to_device

__all__ = ["DeviceBuffer", "copy_device_to_ptr", "copy_host_to_ptr", "copy_ptr_to_host", "to_device"]
