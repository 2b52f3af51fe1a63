"""The allocators of all libraries that are there."""

from __future__ import annotations

import importlib
import importlib.util
from importlib.machinery import PathFinder

_SETTERS = {
    "cupy": ("aquifer.cupy", "set_allocator"),
    "numba": ("aquifer.numba", "set_memory_manager"),
    "torch": ("aquifer.torch", "set_allocator"),
}


def has_library(library: str) -> bool:
    """Whether a library is installed. It is not imported."""
    # Numba's CUDA is a distribution of its own. Of `cuda.core` the first name is several distributions'.
    name, _, inner = {"numba": "numba_cuda", "cuda_core": "cuda.core"}.get(library, library).partition(".")
    try:
        found = importlib.util.find_spec(name)
    except ValueError:
        # A module that has no spec, and is imported.
        return True
    if found is not None and inner:
        found = PathFinder.find_spec(f"{name}.{inner}", found.submodule_search_locations)
    return found is not None


def _is_there(library: str) -> bool:
    found = has_library(library)
    if found and library == "torch":
        # One without CUDA has no allocator to set.
        return bool(importlib.import_module("torch").backends.cuda.is_built())
    return found


#: What is set in another way.
_ELSEWHERE = {
    "cuda_core": "device.memory_resource = aquifer.cuda_core.AquiferMemoryResource(0)",
    "numpy": "with aquifer.numpy_handler():",
}


def set_allocators(*libraries: str) -> list[str]:
    """Has libraries allocate from the current resource. Call it before they use a device.

    :param libraries: ``"cupy"``, ``"numba"`` or ``"torch"``. Without names: all that are installed.
    :returns: the names of the libraries.
    :raises TypeError: for what is no name.
    :raises ValueError: for a name that is none of these. None is set then.
    :raises ImportError: for a library that is named and not installed. None is set then.

    >>> import aquifer
    >>> aquifer.set_allocators("cupy", "numba")  # doctest: +SKIP
    ['cupy', 'numba']
    """
    if not all(isinstance(library, str) for library in libraries):
        raise TypeError("set_allocators() takes names of libraries, as in set_allocators('cupy', 'numba')")
    unknown = set(libraries) - set(_SETTERS)
    for name in sorted(unknown & set(_ELSEWHERE)):
        raise ValueError(f"{name} is told in another way: {_ELSEWHERE[name]}")
    if unknown:
        known = ", ".join(sorted(_SETTERS))
        raise ValueError(f"{sorted(unknown)} have no allocator to set here (the libraries are {known})")
    wanted = list(dict.fromkeys(libraries)) or [library for library in _SETTERS if _is_there(library)]
    # All are imported before one is set.
    setters = [getattr(importlib.import_module(module), setter) for module, setter in map(_SETTERS.__getitem__, wanted)]
    for setter in setters:
        setter()
    return wanted
