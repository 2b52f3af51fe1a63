"""Numba's device arrays from the pool. ``NUMBA_CUDA_MEMORY_MANAGER`` takes this module's name."""

from aquifer.numba import AquiferNumbaManager as RMMNumbaManager

_numba_memory_manager = RMMNumbaManager

__all__ = ["RMMNumbaManager"]
