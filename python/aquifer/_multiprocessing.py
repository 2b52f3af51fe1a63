"""The logs of multiprocessing's children, which end by ``os._exit``: no handler of C's runs there."""

from __future__ import annotations

import os
import sys

from aquifer import _aquifer

#: After what other finalizers free.
_PRIORITY = -1000


def _flush_at_the_end(_: object = None) -> None:
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _aquifer._flush_logs, exitpriority=_PRIORITY)


def _in_child() -> None:
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # A child begins without finalizers, and calls this then.
        util.register_after_fork(_flush_at_the_end, _flush_at_the_end)
        _flush_at_the_end()


def prepare() -> None:
    """Has this process, if it is a child of multiprocessing, and its forks write their logs to the end."""
    _in_child()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)
