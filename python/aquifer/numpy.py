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
import weakref
from collections.abc import Iterator

from aquifer import _aquifer

__all__ = ["numpy_handler", "page_locked_arrays"]

#: Arrays of fewer bytes stay NumPy's own: page-locking them gains nothing.
SMALLEST = 64 * 1024

#: Zeros of as many bytes, and more, stay NumPy's own: the system gives them a page when it is first touched.
ZEROS_FROM = 64 * 1024 * 1024


class _Block:
    """The handler of a ``with``, and what was there before."""

    __slots__ = ("__weakref__", "before", "handler", "is_over", "outer")

    def __init__(self, smallest: int, zeros_from: int) -> None:
        self.handler = _aquifer.numpy_data_handler(smallest, zeros_from)
        self.before = _aquifer.numpy_set_handler(self.handler)
        #: The block whose handler was there before, as long as it is known.
        self.outer = _BLOCKS.get(id(self.before))
        #: It ended while a later one's handler was there.
        self.is_over = False
        _BLOCKS[id(self.handler)] = self

    def end(self) -> None:
        """Restores what was there before. Under a later block's handler it leaves that to the end of the later one."""
        found, outer, passed = self.before, self.outer, []
        while outer is not None and outer.is_over:
            passed.append(outer)
            found, outer = outer.before, outer.outer
        current = _aquifer.numpy_set_handler(found)
        if current is self.handler:
            _OVER.difference_update(passed)
        else:
            _aquifer.numpy_set_handler(current)
            self.is_over = True
            _OVER.add(self)


#: The blocks by their handlers, of which each is an object of its own.
_BLOCKS: weakref.WeakValueDictionary[int, _Block] = weakref.WeakValueDictionary()

#: Those that ended where their handler was not the current one, as on another thread. A context may have it still, and the next
#: block there has to know what was before.
_OVER: set[_Block] = set()


@contextlib.contextmanager
def numpy_handler(*, smallest: int = SMALLEST, zeros_from: int = ZEROS_FROM) -> Iterator[None]:
    """Makes large arrays in page-locked memory, inside of a ``with``.

    Arrays stay valid after its end, and free their memory where it came from. It is the context's, as NumPy's handlers are:
    an asyncio task begins with its parent's, a new thread with NumPy's own. Blocks of one context may end in any order, as
    those of generators do. Where page-locked memory is at its end, NumPy raises :class:`MemoryError`. A process that was
    forked from one with a device has no page-locked memory: new arrays are NumPy's own there.

    :param smallest: bytes of the smallest array that is made so, 1 at least.
    :param zeros_from: bytes from which arrays of ``numpy.zeros`` stay pageable: page-locked memory is there in full from the
        start, however little of it is touched.
    :raises ImportError: without NumPy.
    :raises ValueError: for ``smallest=0``.
    :raises RuntimeError: for a NumPy that has no handlers, or others.
    :raises aquifer.Error: where there is no device.

    >>> import aquifer, numpy
    >>> with aquifer.numpy_handler(smallest=4096):
    ...     array = numpy.ones(1000)
    >>> aquifer.numpy.page_locked_arrays()[0] >= 1
    True
    """
    block = _Block(smallest, zeros_from)
    try:
        yield
    finally:
        block.end()


def page_locked_arrays() -> tuple[int, int]:
    """How many arrays have page-locked memory, and their bytes. :mod:`aquifer.pinned` has what the pool holds.

    >>> import aquifer, numpy
    >>> with aquifer.numpy_handler():
    ...     array = numpy.ones(1_000_000)
    >>> count, nbytes = aquifer.numpy.page_locked_arrays()
    >>> count >= 1, nbytes >= 8_000_000
    (True, True)
    """
    return _aquifer.numpy_page_locked_blocks()
