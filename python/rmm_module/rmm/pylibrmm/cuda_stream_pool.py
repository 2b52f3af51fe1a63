"""Several streams, to take in turn."""

from aquifer import CudaStreamPool

__all__ = ["CudaStreamPool"]
