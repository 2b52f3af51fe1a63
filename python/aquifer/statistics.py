"""Statistics of the current resource, by RMM's names.

>>> import aquifer
>>> from aquifer.statistics import get_statistics, statistics
>>> with statistics():
...     buffer = aquifer.DeviceBuffer(size=1024)
...     get_statistics().current_bytes
1024

Scopes are the process's, as RMM's are: they count the calls of all threads, and those of several threads are one stack.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypeVar

from aquifer import mr as _mr
from aquifer._statistics import Statistics
from aquifer._steps import counted_by_steps

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

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _made(counters: tuple[int, int, int, int, int, int] | None) -> Statistics | None:
    return None if counters is None else Statistics(*counters)


def _counters() -> Statistics | None:
    return _made(_mr.get_current_device_resource()._counters())


def enable_statistics() -> None:
    """Has the current resource of the current device counted, from now on. Nothing happens where it is.

    :raises aquifer.Error: where there is no device.

    >>> import aquifer
    >>> aquifer.statistics.enable_statistics()
    >>> buffer = aquifer.DeviceBuffer(size=1024)
    >>> aquifer.statistics.get_statistics().current_bytes >= 1024
    True
    """
    if _counters() is None:
        current = _mr.get_current_device_resource()
        _mr.set_current_device_resource(_mr.StatisticsResourceAdaptor(current))


def get_statistics() -> Statistics | None:
    """What the current resource has counted, in the innermost scope. None where nothing is counted.

    :raises aquifer.Error: where there is no device.

    >>> import aquifer
    >>> with aquifer.statistics.statistics():
    ...     buffer = aquifer.DeviceBuffer(size=1024)
    ...     aquifer.statistics.get_statistics().total_count
    1
    """
    return _counters()


def push_statistics() -> Statistics | None:
    """Opens a scope of the process, in which all calls count from zero.

    :returns: what was counted before. None where nothing is counted: then nothing is opened.
    :raises aquifer.Error: where there is no device.

    >>> import aquifer
    >>> resource = aquifer.use("pool | statistics")
    >>> before = aquifer.statistics.push_statistics()
    >>> buffer = aquifer.DeviceBuffer(size=1024)
    >>> aquifer.statistics.pop_statistics().total_bytes
    1024
    """
    return _made(_mr.get_current_device_resource()._push_counters())


def pop_statistics() -> Statistics | None:
    """Ends the innermost scope of the process.

    :returns: what the scope counted. None where nothing is counted.
    :raises IndexError: without a scope.
    :raises aquifer.Error: where there is no device.

    >>> import aquifer
    >>> resource = aquifer.use("pool | statistics")
    >>> before = aquifer.statistics.push_statistics()
    >>> aquifer.statistics.pop_statistics().total_count
    0
    """
    return _made(_mr.get_current_device_resource()._pop_counters())


@contextlib.contextmanager
def statistics() -> Iterator[None]:
    """Counts all threads inside of a ``with``: in a scope where the current resource is counted already.

    :raises ValueError: at its end, if another resource is current then.
    :raises aquifer.Error: where there is no device.

    >>> import aquifer
    >>> with aquifer.statistics.statistics():
    ...     buffer = aquifer.DeviceBuffer(size=1024)
    ...     aquifer.statistics.get_statistics().peak_bytes
    1024
    """
    before = None
    if push_statistics() is None:
        before = _mr.get_current_device_resource()
        enable_statistics()
    counted = _mr.get_current_device_resource()
    try:
        yield
    finally:
        if _mr.get_current_device_resource() is not counted:
            raise ValueError("another resource is current than at the beginning of statistics() (set it back before)")
        if before is None:
            pop_statistics()
        else:
            _mr.set_current_device_resource(before)


class ProfilerRecords:
    """What :func:`profiler` has counted, by the names of functions and blocks. Any thread may call it.

    >>> import aquifer
    >>> records = aquifer.statistics.ProfilerRecords()
    >>> records.add("step", aquifer.statistics.Statistics(0, 0, 512, 1, 1024, 2))
    >>> records.records["step"].memory_peak
    512
    >>> print(records.report(ordered_by="num_calls").splitlines()[-1])
         1             512           1,024  step
    """

    @dataclass
    class MemoryRecord:
        """Of one function or block.

        :param num_calls: how many calls there were.
        :param memory_total: bytes of all allocations in them.
        :param memory_peak: the most bytes that were in use at one time in one of them.

        >>> import aquifer
        >>> record = aquifer.statistics.ProfilerRecords.MemoryRecord()
        >>> record.add(memory_total=1024, memory_peak=512)
        >>> record.num_calls, record.memory_total
        (1, 1024)
        """

        num_calls: int = 0
        memory_total: int = 0
        memory_peak: int = 0

        def add(self, memory_total: int, memory_peak: int) -> None:
            """Adds a call.

            :param memory_total: bytes of all its allocations.
            :param memory_peak: the most bytes that it had in use at one time.
            """
            self.num_calls += 1
            self.memory_total += memory_total
            self.memory_peak = max(self.memory_peak, memory_peak)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, ProfilerRecords.MemoryRecord] = defaultdict(ProfilerRecords.MemoryRecord)

    def add(self, name: str, data: Statistics) -> None:
        """Adds what one call has counted.

        :param name: the name of the function or the block.
        :param data: the counters of the call.
        """
        with self._lock:
            self._records[name].add(data.total_bytes, data.peak_bytes)

    @property
    def records(self) -> dict[str, MemoryRecord]:
        """The records by the names of functions and blocks. Memory is in bytes."""
        with self._lock:
            return dict(self._records)

    def report(self, ordered_by: Literal["num_calls", "memory_peak", "memory_total"] = "memory_peak") -> str:
        """A table of the records, in bytes, as a text.

        :param ordered_by: the column whose largest number comes first.
        :raises AttributeError: for what is no column.
        """
        records = sorted(self.records.items(), key=lambda record: getattr(record[1], ordered_by), reverse=True)
        lines = ["Memory Profiling", "================", ""]
        if not records:
            return "\n".join([*lines, "No data, maybe profiling wasn't enabled?"])
        lines += [
            "Legends:",
            "  ncalls       - number of times the function or code block was called",
            "  memory_peak  - peak memory allocated in function or code block (in bytes)",
            "  memory_total - total memory allocated in function or code block (in bytes)",
            "",
            f"Ordered by: {ordered_by}",
            "",
            "ncalls     memory_peak    memory_total  filename:lineno(function)",
        ]
        for name, data in records:
            lines.append(f"{data.num_calls:6,d} {data.memory_peak:15,d} {data.memory_total:15,d}  {name}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"ProfilerRecords({self.records})"

    def __str__(self) -> str:
        return self.report()


#: Where :func:`profiler` counts unless it is told otherwise.
default_profiler_records: ProfilerRecords = ProfilerRecords()


def _name_of(function: Callable[..., Any]) -> str:
    function = inspect.unwrap(function)
    try:
        _, line = inspect.getsourcelines(function)
    except OSError:  # There is no source, as in an interactive session.
        return function.__qualname__
    return f"{inspect.getfile(function)}:{line}({function.__qualname__})"


class ProfilerContext:
    """What :func:`profiler` returns: a decorator, and a context.

    >>> import aquifer
    >>> resource = aquifer.use("pool | statistics")
    >>> records = aquifer.statistics.ProfilerRecords()
    >>> with aquifer.statistics.ProfilerContext(records, "step"):
    ...     buffer = aquifer.DeviceBuffer(size=1024)
    >>> records.records["step"].memory_total
    1024
    """

    def __init__(self, records: ProfilerRecords, name: str) -> None:
        """
        :param records: where the calls are added.
        :param name: the name of the record. A decorator with an empty one takes the function's place and name.
        """
        self._records = records
        self._name = name

    def __call__(self, function: _Function) -> _Function:
        name = self._name or _name_of(function)
        of_steps = counted_by_steps(function, functools.partial(self._records.add, name))
        if of_steps is not None:
            return of_steps

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            with ProfilerContext(self._records, name):
                return function(*args, **kwargs)

        return counted  # type: ignore[return-value]

    def __enter__(self) -> ProfilerContext:
        if not self._name:
            raise ValueError("a profiler of a block needs a name (give name=)")
        push_statistics()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        counted = pop_statistics()
        if counted is not None:
            self._records.add(self._name, counted)


def profiler(*, records: ProfilerRecords = default_profiler_records, name: str = "") -> ProfilerContext:
    """Counts a function (as a decorator) or a block (in a ``with``), where the current resource is counted.

    A call counts what other threads allocate meanwhile, too. Of a generator, an ``async`` function and an ``async`` generator it counts while the body runs, and not what happens
    between a ``yield`` or an ``await`` and the next step. Each is one call, which is added at its end.

    :param records: where the calls are added.
    :param name: the name of the record. A block needs one. A function without one has its file, line and own name.
    :raises ValueError: at the beginning of a ``with`` without a name.

    >>> import aquifer
    >>> resource = aquifer.use("pool | statistics")
    >>> records = aquifer.statistics.ProfilerRecords()
    >>> @aquifer.statistics.profiler(records=records, name="step")
    ... def step():
    ...     buffer = aquifer.DeviceBuffer(size=1024)
    >>> step()
    >>> records.records["step"].memory_peak
    1024
    """
    return ProfilerContext(records, name)
