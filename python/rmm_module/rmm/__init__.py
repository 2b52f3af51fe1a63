"""RMM's package over Aquifer's pools."""

from aquifer import *  # noqa: F403
