"""RMM's names for Aquifer, so that a library that says ``import rmm`` allocates from Aquifer's pool.

It has what the Python part of RMM 26.10 has. Modules that were compiled against RMM's C++ and Cython declarations need RMM
itself.
"""

from aquifer import (
    DeviceBuffer,
    RMMError,
    disable_logging,
    enable_logging,
    flush_logger,
    get_flush_level,
    get_log_filenames,
    get_logging_level,
    is_initialized,
    level_enum,
    register_reinitialize_hook,
    reinitialize,
    set_flush_level,
    set_logging_level,
    should_log,
    unregister_reinitialize_hook,
)
from rmm import _cuda, librmm, mr, pylibrmm, rmm, statistics
from rmm._version import __git_commit__, __version__

__all__ = [
    "DeviceBuffer",
    "RMMError",
    "disable_logging",
    "enable_logging",
    "flush_logger",
    "get_flush_level",
    "get_log_filenames",
    "get_logging_level",
    "is_initialized",
    "level_enum",
    "mr",
    "register_reinitialize_hook",
    "reinitialize",
    "set_flush_level",
    "set_logging_level",
    "should_log",
    "unregister_reinitialize_hook",
]
