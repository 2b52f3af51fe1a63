"""Memory resources that RMM may change."""

from aquifer.mr import CudaAsyncManagedMemoryResource

__all__ = ["CudaAsyncManagedMemoryResource"]
