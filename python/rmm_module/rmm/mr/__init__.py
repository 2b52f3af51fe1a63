"""Memory resources."""

from aquifer.mr import *  # noqa: F403
from rmm.mr import experimental as experimental
