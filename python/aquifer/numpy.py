"""NumPy's arrays in page-locked memory (NEP 49).

Copies between such an array and a device run at the full speed of the bus, and beside other work.

>>> import numpy
>>> import aquifer
>>> with aquifer.numpy_handler():
...     large = numpy.empty(1 << 20, dtype="u1")
>>> numpy._core.multiarray.get_handler_name(large)
'aquifer_pinned'
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from aquifer import _aquifer

__all__ = ["numpy_handler", "page_locked_arrays"]

#: Arrays of fewer bytes stay NumPy's own: page-locking them gains nothing.
SMALLEST = 64 * 1024

#: Zeros of as many bytes, and more, stay NumPy's own: the system gives them a page when it is first touched.
ZEROS_FROM = 64 * 1024 * 1024


@contextlib.contextmanager
def numpy_handler(*, smallest: int = SMALLEST, zeros_from: int = ZEROS_FROM) -> Iterator[None]:
    """Makes arrays of ``smallest`` bytes and more in page-locked memory, inside of a ``with``.

    Arrays of ``numpy.zeros`` with ``zeros_from`` bytes and more stay pageable: page-locked memory is there in full from
    the start, however little of it is touched.
    Arrays stay valid after its end, and free their memory where it came from. It is the context's, as NumPy's handlers are:
    an asyncio task begins with its parent's, a new thread with NumPy's own. Where page-locked memory is at its end, NumPy
    raises :class:`MemoryError`. A process that was forked from one with a device has no page-locked memory: new arrays are
    NumPy's own there.
    """
    before = _aquifer.numpy_set_handler(_aquifer.numpy_data_handler(smallest, zeros_from))
    try:
        yield
    finally:
        _aquifer.numpy_set_handler(before)


def page_locked_arrays() -> tuple[int, int]:
    """How many arrays have page-locked memory, and their bytes. :mod:`aquifer.pinned` has what the pool holds."""
    return _aquifer.numpy_page_locked_blocks()
