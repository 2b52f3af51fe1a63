"""Memory resources."""

from aquifer.mr import *  # noqa: F403
from aquifer.mr import __all__ as _names
from rmm.mr import experimental

__all__ = [*_names, "experimental"]
