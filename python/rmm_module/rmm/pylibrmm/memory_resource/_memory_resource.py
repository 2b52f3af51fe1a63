"""Memory resources, where RMM compiles them."""

from aquifer.mr import *  # noqa: F403
from aquifer.mr import __all__, _flush_logs  # noqa: F401
