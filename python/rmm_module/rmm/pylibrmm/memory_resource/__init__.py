"""Memory resources."""

from aquifer.mr import *  # noqa: F403
from aquifer.mr import __all__ as _names
from rmm.mr import experimental
from rmm.pylibrmm.memory_resource import _memory_resource

__all__ = [*_names, "experimental"]
