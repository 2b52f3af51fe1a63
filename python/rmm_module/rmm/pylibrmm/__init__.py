"""Buffers, streams and resources, where RMM has them besides."""

from aquifer import CudaStreamFlags, CudaStreamPool, DeviceBuffer
from rmm.pylibrmm import cuda_stream_pool, device_buffer, logger, memory_resource, stream

__all__ = ["CudaStreamFlags", "CudaStreamPool", "DeviceBuffer", "memory_resource"]
