"""CuPy's arrays from the pool."""

from aquifer.cupy import cupy_allocator as rmm_cupy_allocator

__all__ = ["rmm_cupy_allocator"]
