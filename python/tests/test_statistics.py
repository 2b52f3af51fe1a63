"""Counters: of a resource, of scopes, and of functions and blocks."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect

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
    with pytest.raises(IndexError, match="cannot pop the last counter pair .push_counters opens one"):
        resource.pop_counters()
    resource.push_counters()
    resource.pop_counters()
    with pytest.raises(IndexError, match="cannot pop the last counter pair"):
        resource.pop_counters()


def test_a_scope_counts_all_threads(in_threads):
    resource = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    resource.push_counters()

    def body(size):
        return [DeviceBuffer(size=size, mr=resource) for _ in range(50)]

    kept = in_threads(*(lambda size=size: body(size) for size in (1, 100, 1000)))
    assert resource.allocation_counts == counts(50 * 1101, 150)
    assert resource.pop_counters() == counts(50 * 1101, 150)
    assert resource.allocation_counts == counts(50 * 1101, 150)
    assert len(kept) == 3


def test_scopes_of_threads_are_one_stack(in_threads):
    resource = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    kept = [DeviceBuffer(size=1, mr=resource)]
    resource.push_counters()
    kept.append(DeviceBuffer(size=10, mr=resource))

    def another():
        assert resource.push_counters() == counts(10, 1)
        kept.append(DeviceBuffer(size=100, mr=resource))
        kept.pop(1)

    in_threads(another)
    # Of the scope of the other thread.
    assert resource.pop_counters() == Statistics(90, 0, 100, 1, 100, 1)
    assert resource.pop_counters() == Statistics(100, 1, 110, 2, 110, 2)
    assert resource.allocation_counts == Statistics(101, 2, 111, 3, 111, 3)


def test_scopes_while_threads_allocate(in_threads):
    resource = mr.StatisticsResourceAdaptor(mr.PoolMemoryResource(mr.CudaMemoryResource()))
    scopes = []

    def work():
        for _ in range(3000):
            DeviceBuffer(size=10, mr=resource)

    def scope():
        for _ in range(1000):
            resource.push_counters()
            resource.push_counters()
            inner, outer = resource.pop_counters(), resource.pop_counters()
            assert inner.total_bytes <= outer.total_bytes
            scopes.append(outer)

    in_threads(work, work, scope)
    found = resource.allocation_counts
    assert (found.current_bytes, found.current_count) == (0, 0)
    assert (found.total_bytes, found.total_count) == (60_000, 6000)
    assert found.peak_bytes in (10, 20)
    assert all(it.peak_bytes <= 20 and it.total_bytes == 10 * it.total_count for it in scopes)


@pytest.mark.parametrize("text", ["pool(cuda)", "pool(cuda) | statistics"])
def test_a_with_counts_all_threads(in_threads, text):
    aquifer.use(text)
    kept = []
    with statistics():
        in_threads(*[lambda: kept.append(DeviceBuffer(size=10))] * 3)
        assert get_statistics() == counts(30, 3)


@pytest.mark.parametrize("text", ["cuda | statistics", "cuda | statistics | limiting(1MiB)"])
def test_the_counters_of_a_text(text):
    used = aquifer.use(text)
    buffer = DeviceBuffer(size=10)
    assert used.allocation_counts == counts(10, 1)
    assert used.push_counters() == counts(10, 1)
    assert used.allocation_counts == NOTHING
    assert used.pop_counters() == NOTHING
    assert type(used.allocation_counts) is Statistics and buffer.size == 10


def test_tracking_and_a_limit_of_a_text():
    used = aquifer.use("cuda | tracking | limiting(1KiB)")
    buffer = DeviceBuffer(size=10)
    assert (used.get_allocated_bytes(), used.get_allocation_limit()) == (10, 1024)
    assert len(used.get_outstanding_allocations_str().splitlines()) >= 1
    assert aquifer.use("cuda | limiting(1KiB)").get_allocated_bytes() == 0
    del buffer
    assert used.get_outstanding_allocations_str() == ""


def test_a_stack_without_counters():
    for plain in (mr.CudaMemoryResource(), aquifer.use("pool")):
        assert not hasattr(plain, "allocation_counts")
        for call in (lambda: plain.allocation_counts, plain.push_counters, plain.pop_counters):
            with pytest.raises(AttributeError, match=r'the stack has no statistics .add "\| statistics" to its text.'):
                call()
        with pytest.raises(AttributeError, match="the stack has no limiting"):
            plain.get_allocation_limit()
        for call in (plain.get_allocated_bytes, plain.get_outstanding_allocations_str):
            with pytest.raises(AttributeError, match="the stack has no tracking"):
                call()


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
    with pytest.raises(IndexError, match="cannot pop"):
        pop_statistics()


@pytest.mark.parametrize("ends", ["throw", "close", "return"])
def test_a_generator_keeps_nothing_that_its_body_let_go_of(ends):
    resource = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    mr.set_current_device_resource(resource)

    @profiler(records=ProfilerRecords(), name="body")
    def body():
        buffer = DeviceBuffer(size=1000)
        yield buffer.size

    gc.collect()
    gc.disable()
    try:
        steps = body()
        next(steps)
        if ends == "throw":
            with pytest.raises(KeyError):
                steps.throw(KeyError())
        elif ends == "close":
            steps.close()
        else:
            with pytest.raises(StopIteration):
                next(steps)
        del steps
        assert resource.allocation_counts.current_bytes == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["coroutine", "async generator"])
def test_a_task_that_is_cancelled_keeps_nothing(kind):
    resource = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    mr.set_current_device_resource(resource)

    @profiler(records=ProfilerRecords(), name="body")
    async def coroutine():
        buffer = DeviceBuffer(size=1000)
        await asyncio.sleep(100)
        return buffer

    @profiler(records=ProfilerRecords(), name="body")
    async def generator():
        buffer = DeviceBuffer(size=1000)
        yield buffer.size
        yield buffer.size

    async def main():
        if kind == "coroutine":
            task = asyncio.ensure_future(coroutine())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            steps = generator()
            await steps.asend(None)
            await steps.aclose()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(main())
        assert resource.allocation_counts.current_bytes == 0
    finally:
        gc.enable()


def test_a_partial_generator_is_profiled():
    records = ProfilerRecords()
    enable_statistics()

    def body(size):
        yield DeviceBuffer(size=size).size

    assert list(profiler(records=records, name="partial")(functools.partial(body, 1000))()) == [1000]
    assert records.records["partial"].memory_total == 1000


def generator(size, steps):
    kept = []
    for _ in range(steps):
        kept.append(DeviceBuffer(size=size))
        got = yield len(kept)
        if got is not None:
            kept.clear()
    return "end"


def test_a_generator():
    records = ProfilerRecords()
    enable_statistics()
    profiled = profiler(records=records, name="generator")(generator)
    assert inspect.isgeneratorfunction(profiled) and profiled.__name__ == "generator"
    outside = []
    running = profiled(10, 3)
    assert next(running) == 1
    # Between the steps, which is not the body's.
    outside.append(DeviceBuffer(size=1000))
    assert running.send("clear") == 1
    assert records.records == {}
    assert next(running) == 2
    with pytest.raises(StopIteration) as stop:
        next(running)
    assert stop.value.value == "end"
    # Ten bytes in the first step, twenty in the others.
    assert records.records == {"generator": ProfilerRecords.MemoryRecord(1, 30, 20)}
    assert list(profiled(1, 2)) == [1, 2] and len(outside) == 1
    assert records.records["generator"] == ProfilerRecords.MemoryRecord(2, 32, 20)


def test_a_generator_that_is_not_run_to_its_end():
    records = ProfilerRecords()
    enable_statistics()
    profiled = profiler(records=records, name="generator")(generator)
    running = profiled(10, 3)
    next(running)
    running.close()
    assert records.records["generator"] == ProfilerRecords.MemoryRecord(1, 10, 10)
    profiled(10, 3).close()
    assert records.records["generator"].num_calls == 1

    @profiler(records=records, name="raises")
    def raises():
        try:
            yield 1
        except KeyError:
            DeviceBuffer(size=5)
            yield 2
        raise ValueError("mine")

    running = raises()
    assert next(running) == 1 and running.throw(KeyError()) == 2
    with pytest.raises(ValueError, match="mine"):
        next(running)
    assert records.records["raises"] == ProfilerRecords.MemoryRecord(1, 5, 5)
    # No scope is left open.
    with pytest.raises(IndexError, match="cannot pop"):
        pop_statistics()


def test_an_async_function():
    records = ProfilerRecords()
    enable_statistics()

    @profiler(records=records, name="function")
    async def function(size):
        buffer = DeviceBuffer(size=size)
        for _ in range(5):
            await asyncio.sleep(0)
        return buffer.size + DeviceBuffer(size=size).size

    async def main():
        # Their steps take turns.
        return await asyncio.gather(*(function(size) for size in (1, 10, 100)))

    assert inspect.iscoroutinefunction(function)
    assert asyncio.run(main()) == [2, 20, 200]
    assert records.records == {"function": ProfilerRecords.MemoryRecord(3, 222, 200)}


def test_an_async_function_that_is_cancelled():
    records = ProfilerRecords()
    enable_statistics()

    @profiler(records=records, name="function")
    async def function():
        buffer = DeviceBuffer(size=10)
        try:
            await asyncio.sleep(60)
        finally:
            DeviceBuffer(size=buffer.size)

    async def main():
        task = asyncio.create_task(function())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert records.records == {"function": ProfilerRecords.MemoryRecord(1, 20, 20)}


def test_an_async_generator():
    records = ProfilerRecords()
    enable_statistics()

    @profiler(records=records, name="generator")
    async def generator(size):
        kept = []
        while True:
            await asyncio.sleep(0)
            kept.append(DeviceBuffer(size=size))
            try:
                got = yield len(kept)
            except KeyError:
                kept.clear()
            else:
                if got == "end":
                    return

    async def main():
        running = generator(10)
        assert await anext(running) == 1
        assert await running.asend(None) == 2
        assert await running.athrow(KeyError()) == 1
        with pytest.raises(StopAsyncIteration):
            await running.asend("end")
        running = generator(1)
        async for number in running:
            if number == 3:
                break
        await running.aclose()

    assert inspect.isasyncgenfunction(generator)
    asyncio.run(main())
    assert records.records == {"generator": ProfilerRecords.MemoryRecord(2, 33, 20)}


def test_steps_where_nothing_is_counted():
    records = ProfilerRecords()
    profiled = profiler(records=records)(generator)
    assert list(profiled(10, 2)) == [1, 2] and records.records == {}


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
    record = records.records["function"]
    # A call counts what other threads allocate meanwhile, too.
    assert record.num_calls == 400 and record.memory_total >= 4000 and 10 <= record.memory_peak <= 40
    assert get_statistics().total_bytes == 4000


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
