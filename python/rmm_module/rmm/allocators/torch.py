"""PyTorch's tensors from the pool. None where PyTorch is not installed, as RMM has it."""

try:
    from aquifer.torch import rmm_torch_allocator
except ImportError:
    rmm_torch_allocator = None

__all__ = ["rmm_torch_allocator"]
