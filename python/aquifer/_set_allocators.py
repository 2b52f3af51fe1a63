"""The allocators of all libraries that are there."""

from __future__ import annotations

import importlib
import importlib.util

_SETTERS = {
    "cupy": ("aquifer.cupy", "set_allocator"),
    "numba": ("aquifer.numba", "set_memory_manager"),
    "torch": ("aquifer.torch", "set_allocator"),
}


def _is_installed(library: str) -> bool:
    # Numba's CUDA is a distribution of its own.
    name = "numba_cuda" if library == "numba" else library
    return importlib.util.find_spec(name) is not None


def set_allocators(*libraries: str) -> list[str]:
    """Has libraries allocate of the current resource: ``"cupy"``, ``"numba"``, ``"torch"``. Returns which.

    Without names: all that are installed. Call it before they use a device. :class:`ImportError` for a library that is
    named and not installed.
    """
    unknown = set(libraries) - set(_SETTERS)
    if unknown:
        known = ", ".join(sorted(_SETTERS))
        raise ValueError(f"{sorted(unknown)} have no allocator to set here (the libraries are {known})")
    wanted = list(libraries) or [library for library in _SETTERS if _is_installed(library)]
    for library in wanted:
        module, setter = _SETTERS[library]
        getattr(importlib.import_module(module), setter)()
    return wanted
