"""Many threads at once, and callbacks on them."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import threading
import time

import aquifer
import pytest
from aquifer import DeviceBuffer, mr

THREADS = 8


@pytest.fixture(autouse=True)
def many_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def pool():
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource())
    mr.set_current_device_resource(pool)
    return pool


def live(resource):
    gc.collect()
    return resource.pool_statistics()["live_blocks"]


def work(number, rounds=150):
    """Allocates, frees, copies and resizes, and sees that each buffer has what was written."""
    own, stream, kept = random.Random(number), aquifer.Stream(), []
    for step in range(rounds):
        text = bytes([number]) * own.randrange(1, 5000)
        on = own.choice([aquifer.default_stream(), stream])
        buffer = DeviceBuffer.to_device(text, stream=on)
        match own.randrange(4):
            case 0:
                buffer = buffer.copy()
            case 1:
                buffer.reserve(own.randrange(10_000))
            case 2:
                buffer.resize(max(1, buffer.size // 2), own.choice([aquifer.default_stream(), stream]))
                text = text[: buffer.size]
            case _:
                other = DeviceBuffer(size=buffer.size, stream=stream)
                other.copy_from_device(buffer)
                buffer = other
        kept.append((text, buffer))
        if len(kept) > 10:
            text, buffer = kept.pop(own.randrange(len(kept)))
            assert buffer.tobytes() == text
    return all(buffer.tobytes() == text for text, buffer in kept)


def test_allocations_frees_and_copies(pool, in_threads):
    assert in_threads(*(lambda number=number: work(number) for number in range(THREADS))) == [True] * THREADS
    assert live(pool) == 0


def test_addresses(pool, in_threads):
    def body():
        stream, kept = aquifer.Stream(), []
        for size in range(1, 300):
            kept.append((pool.allocate(size, stream), size))
            if len(kept) > 20:
                pool.deallocate(*kept.pop(0), stream)
        return kept, stream

    results = in_threads(*[body] * THREADS)
    blocks = [block for kept, _ in results for block in kept]
    assert len({address for address, _ in blocks}) == len(blocks) == THREADS * 20
    assert live(pool) == len(blocks)
    # Another thread frees them.
    for kept, stream in results:
        for block in kept:
            pool.deallocate(*block, stream)
    assert live(pool) == 0


def test_buffers_that_other_threads_end(pool, in_threads):
    handed = [[] for _ in range(THREADS)]

    def body(number):
        for step in range(100):
            handed[(number + step) % THREADS].append(DeviceBuffer.to_device(b"%d" % step))
            if handed[number]:
                handed[number].pop()

    in_threads(*(lambda number=number: body(number) for number in range(THREADS)))
    assert live(pool) == sum(map(len, handed))
    for buffers in handed:
        buffers.clear()
    assert live(pool) == 0


def test_the_current_resource_changes(in_threads):
    resources = [mr.PoolMemoryResource(mr.CudaMemoryResource()) for _ in range(3)]
    resources.append(mr.StatisticsResourceAdaptor(mr.CudaMemoryResource()))
    mr.set_current_device_resource(resources[0])
    seen, ends = set(), threading.Event()

    def change():
        step = 0
        while not ends.is_set():
            mr.set_current_device_resource(resources[step % len(resources)])
            step += 1

    def allocate():
        while len(seen) < len(resources):
            for _ in range(50):
                buffer = DeviceBuffer.to_device(b"abc")
                assert buffer.mr in resources and buffer.tobytes() == b"abc"
                assert mr.get_current_device_resource() in resources
                seen.add(buffer.mr)

    def all_of_them():
        try:
            in_threads(*[allocate] * 4)
        finally:
            ends.set()

    in_threads(all_of_them, change, change)
    assert [live(it) for it in resources[:3]] == [0, 0, 0]
    assert resources[3].allocation_counts.current_count == 0


def test_statistics_logs_and_reinitializations(in_folder, in_threads):
    ends = threading.Event()

    def change():
        for step in range(30):
            aquifer.reinitialize(pool_allocator=step % 2 == 0)
            aquifer.enable_logging(f"{step}.csv")
            aquifer.statistics.enable_statistics()
            aquifer.statistics.get_statistics()
            aquifer.disable_logging()
        ends.set()

    def allocate():
        while not ends.is_set():
            assert DeviceBuffer.to_device(b"abc").tobytes() == b"abc"
            repr(mr.get_current_device_resource())
            aquifer.get_log_filenames()
            aquifer.memory_map()

    in_threads(change, *[allocate] * 3)


def test_resources_are_made_and_end(in_threads):
    def body():
        for _ in range(30):
            pool = mr.PoolMemoryResource(mr.CudaMemoryResource(), "1MiB")
            over = mr.TrackingResourceAdaptor(mr.StatisticsResourceAdaptor(pool))
            kept = [DeviceBuffer(size=100, mr=over) for _ in range(10)]
            assert over.get_allocated_bytes() == 1000
            del pool, over, kept

    free = aquifer.memory_info()[0]
    in_threads(*[body] * THREADS)
    gc.collect()
    assert aquifer.memory_info()[0] >= free


def test_a_buffer_of_all_threads(pool, in_threads):
    buffer = DeviceBuffer.to_device(bytes(10_000))

    def write(number):
        for _ in range(50):
            buffer.copy_from_host(bytes([number]) * 10_000)
            # A copy is one call's: never parts of two.
            assert len(set(buffer.tobytes())) == 1

    def change():
        for size in range(200):
            buffer.reserve(10_000 + size * 10)
            assert buffer.size == 10_000 and buffer.ptr and buffer.capacity() >= 10_000

    in_threads(*(lambda number=number: write(number) for number in range(4)), change)
    assert buffer.size == 10_000


def test_streams_of_others(pool, in_threads):
    class Theirs:
        def __init__(self, handle):
            self.handle = handle

        def __cuda_stream__(self):
            return 0, self.handle

    own = [aquifer.Stream() for _ in range(3)]

    def body(number):
        for step in range(100):
            stream = own[(number + step) % len(own)]
            theirs = Theirs(stream.handle)
            buffer = DeviceBuffer.to_device(b"abc", stream=theirs)
            assert aquifer.Stream(theirs) == stream == buffer.stream
            assert buffer.tobytes(theirs) == b"abc"

    in_threads(*(lambda number=number: body(number) for number in range(THREADS)))
    assert live(pool) == 0


def test_views(pool, in_threads):
    def body():
        for _ in range(100):
            buffer = DeviceBuffer.to_device(b"abc")
            views = [DeviceBuffer.from_dlpack(buffer) for _ in range(3)]
            buffer.__dlpack__()
            del buffer
            assert [view.tobytes() for view in views] == [b"abc"] * 3

    in_threads(*[body] * THREADS)
    assert live(pool) == 0


# Callbacks.


def callbacks(upstream, before_call=lambda: None):
    def allocate(nbytes, stream):
        before_call()
        return upstream.allocate(nbytes, stream)

    def deallocate(ptr, nbytes, stream):
        before_call()
        upstream.deallocate(ptr, nbytes, stream)

    return mr.CallbackMemoryResource(allocate, deallocate)


#: One for all tests, whose memory is handed out again and again: the simulated device has a new address for each block.
BELOW = mr.PoolMemoryResource(mr.CudaMemoryResource())


OVER = {
    "nothing": lambda upstream: upstream,
    "pool": lambda upstream: mr.PoolMemoryResource(upstream),
    "fixed size": lambda upstream: mr.FixedSizeMemoryResource(upstream, 8192, 4),
    "bins": lambda upstream: mr.BinningMemoryResource(upstream, 8, 13),
    "arena": lambda upstream: mr.ArenaMemoryResource(upstream, "8MiB"),
    "limit": lambda upstream: mr.LimitingResourceAdaptor(upstream, "1GiB"),
    "statistics": lambda upstream: mr.StatisticsResourceAdaptor(upstream),
    "tracking": lambda upstream: mr.TrackingResourceAdaptor(upstream),
    "checked": lambda upstream: mr.CheckedResourceAdaptor(upstream),
    "aligned": lambda upstream: mr.AlignedResourceAdaptor(upstream),
    "log": lambda upstream: mr.LoggingResourceAdaptor(upstream, "log.csv"),
    "prefetch": lambda upstream: mr.PrefetchResourceAdaptor(upstream),
    "failures": lambda upstream: mr.FailureCallbackResourceAdaptor(upstream, lambda nbytes: False),
}


@pytest.mark.parametrize("over", OVER)
def test_callbacks_on_threads(in_folder, in_threads, over):
    """A thread in a callback and one with the interpreter, which asks what the other has in its hands."""
    limited = mr.LimitingResourceAdaptor(BELOW, "1GiB")
    resource = OVER[over](callbacks(limited, lambda: time.sleep(0.0002)))
    mr.set_current_device_resource(resource)
    ends = threading.Event()

    def allocate(number):
        kept = []
        for step in range(30):
            kept.append(DeviceBuffer.to_device(bytes([number]) * (number * 100 + step + 1)))
            if len(kept) > 5:
                assert len(set(kept.pop(0).tobytes())) == 1

    def ask():
        while not ends.is_set():
            repr(resource)
            resource.pool_statistics()
            aquifer.memory_map(resource)
            for method in ("get_allocated_bytes", "get_outstanding_allocations_str", "pool_size"):
                # Of stacks that have no such part.
                with contextlib.suppress(AttributeError):
                    getattr(resource, method)()
            getattr(resource, "allocation_counts", None)
            time.sleep(0)

    def all_of_them():
        try:
            in_threads(*(lambda number=number: allocate(number) for number in range(1, 5)))
        finally:
            ends.set()

    in_threads(all_of_them, ask)
    mr.set_current_device_resource(mr.CudaMemoryResource())
    del resource
    gc.collect()
    # `test_mr` has the arena's.
    assert limited.get_allocated_bytes() == 0 or over == "arena"


@pytest.mark.parametrize("over", OVER)
def test_callbacks_that_allocate_of_what_is_above(in_folder, in_threads, over):
    """A callback that allocates of the very resource which called it."""
    depth = threading.local()

    def again():
        if not getattr(depth, "is_inside", False):
            depth.is_inside = True
            try:
                assert DeviceBuffer.to_device(b"inside").tobytes() == b"inside"
            finally:
                depth.is_inside = False

    resource = OVER[over](callbacks(BELOW, again))
    mr.set_current_device_resource(resource)

    def body():
        kept = [DeviceBuffer.to_device(b"x" * size) for size in range(1, 8000, 400)]
        return all(set(buffer.tobytes()) == {ord("x")} for buffer in kept)

    assert in_threads(*[body] * 3) == [True] * 3


def test_a_buffer_that_a_callback_looks_at(in_threads):
    """A thread that moves a buffer, in a callback; others that look at the buffer; and the callback does, too."""
    seen = []
    buffers = []

    def look():
        for buffer in buffers:
            seen.append(
                (
                    buffer.size,
                    buffer.ptr,
                    len(buffer),
                    buffer.capacity(),
                    repr(buffer),
                    buffer.stream,
                    buffer.__cuda_array_interface__,
                )
            )

    resource = callbacks(BELOW, lambda: (time.sleep(0.001), look()))
    buffer = DeviceBuffer.to_device(b"abc", mr=resource)
    buffers.append(buffer)
    ends = threading.Event()

    def change():
        try:
            for size in range(100, 120):
                buffer.reserve(size)
                assert DeviceBuffer(ptr=buffer.ptr, size=3).tobytes() == b"abc"
        finally:
            ends.set()

    def others():
        while not ends.is_set():
            look()

    in_threads(change, others)
    assert {size for size, *_ in seen} == {3}
    assert buffer.tobytes() == b"abc"


def test_a_callback_that_uses_the_buffer_that_is_moved(in_threads):
    caught = []

    def allocate(nbytes, stream):
        for buffer in buffers:
            for use in (buffer.tobytes, buffer.copy, lambda: buffer.resize(1), lambda: buffer.copy_from_host(b"x")):
                try:
                    use()
                except ValueError as error:
                    caught.append(str(error))
        return BELOW.allocate(nbytes, stream)

    buffers = []
    buffers.append(DeviceBuffer.to_device(b"abc", mr=mr.CallbackMemoryResource(allocate, BELOW.deallocate)))
    # On a thread of its own, which may be stuck.
    in_threads(lambda: buffers[0].reserve(100))
    assert caught == ["the buffer is changed by the call that this one is part of"] * 4
    assert (buffers[0].tobytes(), buffers[0].capacity()) == (b"abc", 100)


def test_callbacks_that_raise_on_threads(in_threads):
    def allocate(nbytes, stream):
        if nbytes % 2:
            raise KeyError(threading.get_ident(), nbytes)
        return BELOW.allocate(nbytes, stream)

    resource = mr.StatisticsResourceAdaptor(mr.CallbackMemoryResource(allocate, BELOW.deallocate))

    def body():
        for size in range(1, 200):
            try:
                buffer = DeviceBuffer(size=size, mr=resource)
            except aquifer.Error as error:
                assert error.__cause__.args == (threading.get_ident(), size)
            else:
                assert buffer.size == size and size % 2 == 0

    in_threads(*[body] * THREADS)
    assert resource.allocation_counts.total_count == THREADS * 99


def test_failure_callbacks_on_threads(in_threads):
    limited = mr.LimitingResourceAdaptor(mr.PoolMemoryResource(mr.CudaMemoryResource()), 64 * 1024)
    spilled, lock = [], threading.Lock()
    kept = []

    def spill(nbytes):
        with lock:
            if not kept:
                time.sleep(0.0001)
                return True
            buffer = kept.pop(0)
        spilled.append(buffer.tobytes())
        return True

    resource = mr.FailureCallbackResourceAdaptor(limited, spill)

    def body(number):
        for _ in range(50):
            buffer = DeviceBuffer.to_device(bytes([number]) * 8192, mr=resource)
            with lock:
                kept.append(buffer)

    in_threads(*(lambda number=number: body(number) for number in range(4)))
    assert limited.get_allocated_bytes() <= 64 * 1024
    with lock:
        rest = [buffer.tobytes() for buffer in kept]
    assert len(spilled) + len(rest) == 200
    for number in range(4):
        assert (spilled + rest).count(bytes([number]) * 8192) == 50


def test_failure_callbacks_that_raise_on_threads(in_threads):
    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 0)

    def callback(nbytes):
        time.sleep(0)
        raise KeyError(threading.get_ident(), nbytes)

    resource = mr.FailureCallbackResourceAdaptor(limited, callback)

    def body():
        for size in range(1, 50):
            with pytest.raises(aquifer.Error) as raised:
                DeviceBuffer(size=size, mr=resource)
            assert raised.value.__cause__.args == (threading.get_ident(), size)

    in_threads(*[body] * THREADS)


def test_hooks_and_callbacks_of_threads_that_end():
    """The first and the last use of a thread are a callback's."""
    resource = mr.PoolMemoryResource(callbacks(BELOW))
    kept = []
    for _ in range(30):
        thread = threading.Thread(target=lambda: kept.append(DeviceBuffer.to_device(b"abc", mr=resource)))
        thread.start()
        thread.join()
    assert [buffer.tobytes() for buffer in kept] == [b"abc"] * 30


def test_the_first_buffers_of_a_process(run_python):
    program = """
import threading, aquifer
barrier = threading.Barrier(8)
def first():
    barrier.wait()
    aquifer.DeviceBuffer(size=1)
threads = [threading.Thread(target=first) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    for _ in range(10):
        assert run_python(program) == ""


def test_the_current_resource_is_that_of_the_hosts(in_threads):
    resources = [aquifer.mr.CudaMemoryResource() for _ in range(2)]

    def set_it(number):
        for _ in range(300):
            aquifer.mr.set_current_device_resource(resources[number])

    in_threads(lambda: set_it(0), lambda: set_it(1))
    assert aquifer.mr.get_current_device_resource() in resources


def test_an_exception_on_its_way_is_not_lost():
    kept = []
    upstream = aquifer.mr.CudaMemoryResource()

    def free(address, nbytes, stream):
        kept.append(address)
        upstream.deallocate(address, nbytes, stream)

    resource = aquifer.mr.CallbackMemoryResource(upstream.allocate, free)

    def fail():
        return [aquifer.DeviceBuffer(size=100, mr=resource), 1 / 0]

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(kept) == 1
