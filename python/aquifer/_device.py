"""The device on which resources are made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from aquifer import _aquifer


@contextlib.contextmanager
def device_current(number: int) -> Iterator[None]:
    """Has resources and streams of the calling thread be made on a device, inside of a ``with``."""
    before = _aquifer._choose_device(number)
    try:
        yield
    finally:
        _aquifer._choose_device(before)
