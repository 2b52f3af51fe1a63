"""Memory resources, where RMM compiles them."""

from aquifer.mr import *  # noqa: F403
from aquifer.mr import _flush_logs as _flush_logs
