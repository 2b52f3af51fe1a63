"""Questions to CUDA's runtime."""

from rmm._cuda import gpu

__all__ = ["gpu"]
