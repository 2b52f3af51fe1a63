"""Libraries that work on a GPU, and so cannot use the simulated device's memory."""

from __future__ import annotations

from aquifer import _aquifer

#: Libraries that were told of the device. It stays what it is.
_ASKED: set[str] = set()


def require_gpu(library: str) -> None:
    """An :class:`aquifer.Error` on the simulated device."""
    if library in _ASKED:
        return
    if _aquifer.is_simulated():
        raise _aquifer.Error(
            f"{library} was to have memory of the simulated device, which no GPU has (leave AQUIFER_BACKEND=sim out, "
            f"or do not set the allocator of {library})"
        )
    _ASKED.add(library)
