"""What the current resource has counted, and a profiler."""

from aquifer.statistics import *  # noqa: F403
from aquifer.statistics import _name_of as _get_descriptive_name_of_object

__all__ = [
    "ProfilerContext",
    "ProfilerRecords",
    "Statistics",
    "default_profiler_records",
    "enable_statistics",
    "get_statistics",
    "pop_statistics",
    "profiler",
    "push_statistics",
    "statistics",
]
