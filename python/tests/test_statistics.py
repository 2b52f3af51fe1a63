"""Counters: of a resource, of scopes, and of functions and blocks."""

from __future__ import annotations

import threading

import aquifer
import pytest
from aquifer import DeviceBuffer, mr
from aquifer.statistics import (
    ProfilerContext,
    ProfilerRecords,
    Statistics,
    default_profiler_records,
    enable_statistics,
    get_statistics,
    pop_statistics,
    profiler,
    push_statistics,
    statistics,
)

NOTHING = Statistics(0, 0, 0, 0, 0, 0)


@pytest.fixture(autouse=True)
def plain_memory():
    mr.set_current_device_resource(mr.CudaMemoryResource())


def counts(bytes, count):
    """Of blocks that are all in use."""
    return Statistics(bytes, count, bytes, count, bytes, count)


def test_a_resource_counts():
    resource = mr.StatisticsResourceAdaptor(upstream_mr=mr.CudaMemoryResource())
    assert resource.text == "cuda | statistics"
    assert resource.allocation_counts == NOTHING
    first, second = DeviceBuffer(size=1000, mr=resource), DeviceBuffer(size=10, mr=resource)
    assert resource.allocation_counts == counts(1010, 2)
    del first
    assert resource.allocation_counts == Statistics(
        current_bytes=10, current_count=1, peak_bytes=1010, peak_count=2, total_bytes=1010, total_count=2
    )
    address = resource.allocate(100)
    resource.deallocate(address, 100)
    del second
    assert resource.allocation_counts == Statistics(0, 0, 1010, 2, 1110, 3)


def test_scopes_of_a_resource():
    resource = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    outer = DeviceBuffer(size=1000, mr=resource)
    assert resource.push_counters() == counts(1000, 1)
    assert resource.allocation_counts == NOTHING
    inner = DeviceBuffer(size=10, mr=resource)
    assert resource.push_counters() == counts(10, 1)
    innermost = DeviceBuffer(size=1, mr=resource)
    assert resource.allocation_counts == counts(1, 1)
    assert resource.pop_counters() == counts(1, 1)
    # What an inner scope counted, the outer one has as well.
    assert resource.allocation_counts == counts(11, 2)
    # A block of before the scope.
    del outer
    assert resource.allocation_counts.current_bytes == 11 - 1000
    assert resource.pop_counters().total_bytes == 11
    assert resource.allocation_counts == Statistics(11, 2, 1011, 3, 1011, 3)
    assert inner.size + innermost.size == 11


def test_more_ends_than_scopes():
    resource = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    with pytest.raises(ValueError, match="no scope of counters open .push_counters opens one"):
        resource.pop_counters()
    resource.push_counters()
    resource.pop_counters()
    with pytest.raises(ValueError, match="no scope of counters open"):
        resource.pop_counters()


def test_a_scope_is_its_threads(in_threads):
    resource = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    barrier = threading.Barrier(3)

    def body(size):
        resource.push_counters()
        barrier.wait()
        kept = [DeviceBuffer(size=size, mr=resource) for _ in range(50)]
        barrier.wait()
        counted = resource.pop_counters()
        barrier.wait()
        return counted, len(kept)

    results = in_threads(*(lambda size=size: body(size) for size in (1, 100, 1000)))
    assert [counted for counted, _ in results] == [counts(50 * size, 50) for size in (1, 100, 1000)]
    assert resource.allocation_counts.total_bytes == 50 * 1101
    assert resource.allocation_counts.total_count == 150


def test_without_statistics():
    assert get_statistics() is push_statistics() is pop_statistics() is None


def test_statistics_that_are_enabled():
    before = mr.get_current_device_resource()
    enable_statistics()
    counted = mr.get_current_device_resource()
    assert type(counted) is mr.StatisticsResourceAdaptor
    assert counted.upstream_mr is before
    enable_statistics()
    assert mr.get_current_device_resource() is counted
    assert get_statistics() == NOTHING
    buffer = DeviceBuffer(size=10)
    assert get_statistics() == counted.allocation_counts == counts(10, 1)
    assert push_statistics() == counts(10, 1)
    assert get_statistics() == NOTHING
    assert pop_statistics() == NOTHING
    assert buffer.size == 10


def test_statistics_of_a_text():
    used = aquifer.use("pool(cuda) | statistics | limiting(1GiB)")
    assert get_statistics() == NOTHING
    enable_statistics()
    assert mr.get_current_device_resource() is used
    buffer = DeviceBuffer(size=10)
    assert push_statistics() == counts(10, 1)
    with statistics():
        DeviceBuffer(size=20)
    assert pop_statistics() == Statistics(0, 0, 20, 1, 20, 1)
    assert get_statistics() == Statistics(10, 1, 30, 2, 30, 2)
    assert mr.get_current_device_resource() is used and buffer.size == 10


def test_a_with():
    before = mr.get_current_device_resource()
    with statistics():
        assert mr.get_current_device_resource() is not before
        outside = DeviceBuffer(size=1000)
        with statistics():
            inside = DeviceBuffer(size=10)
            assert get_statistics() == counts(10, 1)
        assert get_statistics() == counts(1010, 2)
    assert mr.get_current_device_resource() is before
    assert get_statistics() is None
    assert outside.size + inside.size == 1010


def test_a_with_that_an_exception_ends():
    before = mr.get_current_device_resource()
    with pytest.raises(KeyError):
        with statistics():
            raise KeyError
    assert mr.get_current_device_resource() is before


def test_a_with_in_which_the_resource_changes():
    with pytest.raises(ValueError, match="another resource is current than at the beginning of statistics"):
        with statistics():
            mr.set_current_device_resource(mr.CudaMemoryResource())
    with statistics():
        current = mr.get_current_device_resource()
        mr.set_current_device_resource(mr.CudaMemoryResource())
        mr.set_current_device_resource(current)


def test_a_function_that_is_profiled():
    records = ProfilerRecords()

    @profiler(records=records)
    def function(size, *, twice=False):
        """Text."""
        first = DeviceBuffer(size=size)
        del first
        second = DeviceBuffer(size=size)
        return second.size * (2 if twice else 1)

    assert function(10) == 10
    # Nothing is counted without statistics.
    assert records.records == {}
    enable_statistics()
    assert function(10) == 10
    assert function(100, twice=True) == 200
    ((name, record),) = records.records.items()
    assert (function.__name__, function.__doc__) == ("function", "Text.")
    line = test_a_function_that_is_profiled.__code__.co_firstlineno + 3
    assert name == f"{__file__}:{line}(test_a_function_that_is_profiled.<locals>.function)"
    assert record == ProfilerRecords.MemoryRecord(num_calls=2, memory_total=220, memory_peak=100)


def test_a_function_that_calls_itself():
    records = ProfilerRecords()
    enable_statistics()

    @profiler(records=records, name="down")
    def down(depth):
        buffer = DeviceBuffer(size=1)
        return buffer.size + (down(depth - 1) if depth else 0)

    assert down(3) == 4
    assert records.records["down"] == ProfilerRecords.MemoryRecord(
        num_calls=4, memory_total=4 + 3 + 2 + 1, memory_peak=4
    )


def test_a_block_that_is_profiled():
    records = ProfilerRecords()
    enable_statistics()
    for size in (10, 100):
        with profiler(records=records, name="block") as context:
            DeviceBuffer(size=size)
        assert type(context) is ProfilerContext
    assert records.records == {"block": ProfilerRecords.MemoryRecord(2, 110, 100)}
    with pytest.raises(ValueError, match="a profiler of a block needs a name"):
        with profiler(records=records):
            pass
    assert len(records.records) == 1


def test_what_raises_is_profiled_too():
    records = ProfilerRecords()
    enable_statistics()

    @profiler(records=records, name="function")
    def function():
        DeviceBuffer(size=10)
        raise KeyError

    with pytest.raises(KeyError):
        function()
    with pytest.raises(KeyError), profiler(records=records, name="block"):
        DeviceBuffer(size=20)
        raise KeyError
    assert {name: record.memory_total for name, record in records.records.items()} == {"function": 10, "block": 20}
    # No scope is left open.
    with pytest.raises(ValueError, match="no scope"):
        pop_statistics()


def test_a_table_of_records():
    records = ProfilerRecords()
    assert records.report() == "Memory Profiling\n================\n\nNo data, maybe profiling wasn't enabled?"
    records.add("often", counts(10, 1))
    records.add("often", counts(10, 1))
    records.add("large", counts(1_000_000, 1))
    assert records.report().splitlines() == [
        "Memory Profiling",
        "================",
        "",
        "Legends:",
        "  ncalls       - number of times the function or code block was called",
        "  memory_peak  - peak memory allocated in function or code block (in bytes)",
        "  memory_total - total memory allocated in function or code block (in bytes)",
        "",
        "Ordered by: memory_peak",
        "",
        "ncalls     memory_peak    memory_total  filename:lineno(function)",
        "     1       1,000,000       1,000,000  large",
        "     2              10              20  often",
    ]
    assert str(records) == records.report()
    assert records.report(ordered_by="num_calls").splitlines()[-1].endswith("large")
    assert records.report("memory_total").splitlines()[-1].endswith("often")
    assert repr(records).startswith("ProfilerRecords({'often': ") and "num_calls=2" in repr(records)


def test_records_of_threads(in_threads):
    records = ProfilerRecords()
    enable_statistics()

    @profiler(records=records, name="function")
    def function():
        DeviceBuffer(size=10)

    def body():
        for _ in range(100):
            function()

    in_threads(*[body] * 4)
    assert records.records["function"] == ProfilerRecords.MemoryRecord(400, 4000, 10)


def test_the_default_records():
    enable_statistics()
    with profiler(name="test_the_default_records"):
        DeviceBuffer(size=10)
    assert default_profiler_records.records["test_the_default_records"].memory_total == 10


def test_a_scope_leaves_the_pool_below_its_memory():
    pool = aquifer.mr.PoolMemoryResource(aquifer.mr.CudaMemoryResource(), "8MiB")
    aquifer.mr.set_current_device_resource(pool)
    with aquifer.statistics.statistics():
        pass
    aquifer.mr.set_current_device_resource(aquifer.mr.StatisticsResourceAdaptor(pool))
    aquifer.mr.set_current_device_resource(pool)
    assert pool.pool_size() == 8 << 20
    assert pool.pool_statistics()["growths"] == 1


def test_statistics_of_a_text():
    aquifer.use("pool(cuda) | statistics")
    buffer = aquifer.DeviceBuffer(size=256)
    assert aquifer.statistics.get_statistics().current_bytes == 256
    before = aquifer.mr.get_current_device_resource()
    aquifer.statistics.enable_statistics()
    assert aquifer.mr.get_current_device_resource() is before
    del buffer
