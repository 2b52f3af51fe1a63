"""Memory resources."""

from aquifer.mr import *  # noqa: F403
from rmm.mr import experimental as experimental
from rmm.pylibrmm.memory_resource import _memory_resource as _memory_resource
