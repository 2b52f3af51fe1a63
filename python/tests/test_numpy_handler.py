"""NumPy's arrays in page-locked memory: which are, and that they are arrays as any others."""

import asyncio
import contextvars
import copy
import gc
import itertools
import pickle
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import aquifer
import pytest
from aquifer import _aquifer
from aquifer.numpy import SMALLEST, numpy_handler, page_locked_arrays

numpy = pytest.importorskip("numpy", minversion="1.22", reason="needs NumPy, from 1.22 on")

try:
    from numpy._core.multiarray import get_handler_name, get_handler_version
except ImportError:
    from numpy.core.multiarray import get_handler_name, get_handler_version

NUMPYS_OWN = "default_allocator"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    gc.collect()
    before = page_locked_arrays()
    yield
    gc.collect()
    assert page_locked_arrays() == before
    assert get_handler_name() == NUMPYS_OWN


class Counted:
    """How many page-locked arrays, and bytes of them, have come since this was made."""

    def __init__(self) -> None:
        self.blocks, self.bytes = page_locked_arrays()

    def __call__(self) -> tuple[int, int]:
        blocks, bytes_ = page_locked_arrays()
        return blocks - self.blocks, bytes_ - self.bytes


def test_large_arrays_are_page_locked_and_small_ones_are_not():
    counted = Counted()
    with numpy_handler():
        small = numpy.empty(SMALLEST - 1, "u1")
        assert counted() == (0, 0)
        large = numpy.empty(SMALLEST, "u1")
        assert counted() == (1, SMALLEST)
    assert get_handler_name(large) == get_handler_name(small) == "aquifer_pinned"
    assert get_handler_version(large) == 1
    assert large.ctypes.data % 64 == 0
    after = numpy.empty(SMALLEST, "u1")
    assert get_handler_name(after) == NUMPYS_OWN
    assert counted() == (1, SMALLEST)
    del large
    assert counted() == (0, 0)


@pytest.mark.parametrize("smallest", [1, 2, 63, 4095, 4096, 4097, 1 << 20])
def test_the_size_from_which_they_are(smallest):
    counted = Counted()
    with numpy_handler(smallest=smallest):
        below = numpy.empty(max(smallest - 1, 1), "u1") if smallest > 1 else None
        assert counted() == (0, 0)
        array = numpy.empty(smallest, "u1")
        assert counted() == (1, smallest)
        above = numpy.empty(smallest + 1, "u1")
        assert counted() == (2, 2 * smallest + 1)
    del below, array, above
    assert counted() == (0, 0)


def test_sizes_that_are_none():
    with pytest.raises(ValueError, match="0 bytes cannot be page-locked"), numpy_handler(smallest=0):
        pass
    with pytest.raises(OverflowError), numpy_handler(smallest=-1):
        pass
    with pytest.raises(TypeError), numpy_handler(smallest="large"):
        pass
    with pytest.raises(TypeError):
        numpy_handler(1000)


def test_pages_and_more_hold_what_is_written():
    counted = Counted()
    with numpy_handler(smallest=4096):
        arrays = [numpy.full(size, number % 251, "u1") for number, size in enumerate([4096, 4097, 8191, 65536, 100_000] * 40)]
    assert counted()[0] == 200
    for number, array in enumerate(arrays):
        assert (array == number % 251).all()
    del arrays[::2], array
    assert counted()[0] == 100
    for number, array in enumerate(arrays):
        assert (array == (2 * number + 1) % 251).all()
    del arrays, array
    assert counted() == (0, 0)


def test_many_small_ones_hold_what_is_written():
    counted = Counted()
    with numpy_handler(smallest=1):
        arrays = [numpy.full(number % 300 + 1, number, "i8") for number in range(20_000)]
    assert counted()[0] == 20_000
    assert all((array == number).all() for number, array in enumerate(arrays))
    del arrays
    assert counted() == (0, 0)


def test_nested_handlers():
    counted = Counted()
    with numpy_handler():
        with numpy_handler(smallest=1 << 20):
            inner = numpy.empty(1 << 19, "u1")
            assert counted()[0] == 0
            with numpy_handler(smallest=100):
                innermost = numpy.empty(100, "u1")
                assert counted()[0] == 1
            inner_again = numpy.empty(1 << 19, "u1")
            assert counted()[0] == 1
        outer = numpy.empty(1 << 19, "u1")
        assert counted()[0] == 2
    assert {get_handler_name(array) for array in (inner, innermost, inner_again, outer)} == {"aquifer_pinned"}
    # Each goes back to where it came from, whatever handler it was that grew or freed it.
    with numpy_handler(smallest=7):
        del inner, innermost, inner_again, outer
    assert counted() == (0, 0)


def test_handlers_of_the_same_size_are_one():
    first, second, other = (_aquifer.numpy_data_handler(*sizes) for sizes in ((1000, 9000), (1000, 9000), (2000, 9000)))
    pointers = [repr(handler) for handler in (first, second, other)]
    assert all("mem_handler" in pointer for pointer in pointers)
    import ctypes

    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    first, second, other = (get(handler, b"mem_handler") for handler in (first, second, other))
    assert first == second != other


def test_an_error_inside_sets_the_handler_back():
    with pytest.raises(KeyError), numpy_handler():
        raise KeyError
    assert get_handler_name() == NUMPYS_OWN


def test_a_capsule_that_is_none_is_refused():
    for other in [aquifer.to_device(b"abc").__dlpack__(), 7, "mem_handler"]:
        with pytest.raises(ValueError, match="capsule of a handler"):
            _aquifer.numpy_set_handler(other)
    assert get_handler_name() == NUMPYS_OWN
    before = _aquifer.numpy_set_handler(None)
    assert get_handler_name() == NUMPYS_OWN
    _aquifer.numpy_set_handler(before)


def test_a_decorated_function():
    counted = Counted()

    @numpy_handler()
    def made() -> "numpy.ndarray":
        return numpy.empty(SMALLEST, "u1")

    arrays = [made(), made()]
    assert counted() == (2, 2 * SMALLEST)
    del arrays


# Contexts.


def test_a_new_thread_begins_with_numpys_own(in_threads):
    with numpy_handler():
        if sys.version_info < (3, 14) or not getattr(sys.flags, "thread_inherit_context", 0):
            assert in_threads(get_handler_name) == [NUMPYS_OWN]
        context = contextvars.copy_context()
        assert in_threads(lambda: context.run(get_handler_name)) == ["aquifer_pinned"]


def test_threads_have_handlers_of_their_own(in_threads):
    counted = Counted()
    inside, over = threading.Barrier(3), threading.Barrier(3)

    def page_locks() -> "numpy.ndarray":
        with numpy_handler():
            inside.wait()
            made = numpy.empty(SMALLEST, "u1")
            over.wait()
        return made

    def does_not() -> "numpy.ndarray":
        inside.wait()
        made = numpy.empty(SMALLEST, "u1")
        over.wait()
        return made

    arrays = in_threads(page_locks, does_not, page_locks)
    assert [get_handler_name(array) for array in arrays] == ["aquifer_pinned", NUMPYS_OWN, "aquifer_pinned"]
    assert counted()[0] == 2
    del arrays
    assert counted() == (0, 0)


def test_tasks_have_their_parents_and_then_their_own():
    counted = Counted()
    kept = []

    async def child(is_inside: bool) -> str:
        before = get_handler_name()
        if is_inside:
            with numpy_handler(smallest=100):
                await asyncio.sleep(0.001)
                kept.append(numpy.empty(100, "u1"))
                await asyncio.sleep(0.001)
        else:
            await asyncio.sleep(0.002)
            kept.append(numpy.empty(100, "u1"))
        assert get_handler_name() == before
        return before

    async def main() -> None:
        assert await asyncio.gather(*[child(number % 2 == 0) for number in range(10)]) == [NUMPYS_OWN] * 10
        assert counted()[0] == 5
        with numpy_handler():
            tasks = [asyncio.ensure_future(child(number % 2 == 0)) for number in range(10)]
        # The handler of their context is that of when they were made.
        assert await asyncio.gather(*tasks) == ["aquifer_pinned"] * 10
        assert counted()[0] == 10
        assert get_handler_name() == NUMPYS_OWN

    asyncio.run(main())
    kept.clear()
    assert counted() == (0, 0)


def test_a_generator_leaves_it_where_it_was_left_last():
    def made() -> "Iterator[numpy.ndarray]":
        with numpy_handler():
            while True:
                yield numpy.empty(SMALLEST, "u1")

    counted = Counted()
    generator = made()
    arrays = [next(generator), next(generator)]
    assert counted()[0] == 2
    generator.close()
    assert get_handler_name() == NUMPYS_OWN
    del arrays


def test_arrays_that_other_threads_free(in_threads):
    counted = Counted()
    rounds, handed = 300, []
    lock = threading.Lock()

    def work(seed: int) -> None:
        random = numpy.random.default_rng(seed)
        with numpy_handler(smallest=4096):
            for _ in range(rounds):
                value = int(random.integers(250))
                array = numpy.full(int(random.integers(1000, 300_000)), value, "u1")
                with lock:
                    handed.append((value, array))
                    del array
                    value, taken = handed.pop(int(random.integers(len(handed))))
                assert (taken == value).all()
                del taken

    in_threads(*[lambda seed=seed: work(seed) for seed in range(4)])
    handed.clear()
    gc.collect()
    assert counted() == (0, 0)


def test_threads_that_have_ended_leave_their_arrays(in_threads):
    counted = Counted()

    def work() -> "numpy.ndarray":
        with numpy_handler():
            return numpy.arange(100_000)

    arrays = in_threads(*[work] * 8)
    assert counted()[0] == 8
    assert all((array == numpy.arange(100_000)).all() for array in arrays)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: arrays.pop(), range(8)))
    assert counted() == (0, 0)


# Growth.


def test_an_array_that_grows_becomes_page_locked_and_one_that_shrinks_is_no_more():
    counted = Counted()
    with numpy_handler():
        array = numpy.arange(1000, dtype="i8")
        assert counted() == (0, 0)
        array.resize(100_000, refcheck=False)
        assert counted() == (1, 800_000)
        assert (array[:1000] == numpy.arange(1000)).all() and not array[1000:].any()
        array[:] = numpy.arange(100_000)
        array.resize(200_000, refcheck=False)
        assert counted() == (1, 1_600_000)
        assert (array[:100_000] == numpy.arange(100_000)).all() and not array[100_000:].any()
        array.resize(50_000, refcheck=False)
        assert counted() == (1, 400_000)
        assert (array == numpy.arange(50_000)).all()
        array.resize(10, refcheck=False)
        assert counted() == (0, 0)
        assert (array == numpy.arange(10)).all()
        array.resize(50_000, refcheck=False)
        assert counted() == (1, 400_000)
        array.resize(0, refcheck=False)
        assert counted() == (0, 0)
    assert get_handler_name(array) == "aquifer_pinned"


def test_growth_is_the_arrays_handlers_not_the_contexts():
    counted = Counted()
    with numpy_handler():
        ours = numpy.arange(1000, dtype="i8")
    own = numpy.arange(1000, dtype="i8")
    ours.resize(100_000, refcheck=False)
    assert counted() == (1, 800_000)
    with numpy_handler():
        own.resize(100_000, refcheck=False)
    assert counted() == (1, 800_000)
    assert (ours == own).all()
    del ours
    assert counted() == (0, 0)


@pytest.mark.parametrize("smallest", [1, 100, 1000, 1024, 5000, SMALLEST])
def test_growth_byte_by_byte_and_back(smallest):
    counted = Counted()
    sizes = [1, 50, 99, 100, 101, 999, 1000, 1023, 1024, 1025, 4095, 4096, 5000, 65535, 65536, 65537, 300_000]
    with numpy_handler(smallest=smallest):
        array = numpy.ones(1, "u1")
        for size in sizes + sizes[::-1]:
            before = array.copy()
            array.resize(size, refcheck=False)
            length = min(size, before.size)
            assert (array[:length] == before[:length]).all() and not array[length:].any()
            array[:] = numpy.arange(size) % 251
            del before
            assert counted() == ((1, size) if size >= smallest else (0, 0))
    del array
    assert counted() == (0, 0)


def test_numpys_resize_repeats():
    counted = Counted()
    with numpy_handler():
        array = numpy.resize(numpy.arange(1000), 100_000)
        assert counted()[0] == 1
        assert (array == numpy.arange(100_000) % 1000).all()
        array = numpy.resize(array, 500).copy()
        assert counted()[0] == 0
        assert (array == numpy.arange(500)).all()


def test_arrays_that_grow_as_they_are_read():
    counted = Counted()
    with numpy_handler():
        array = numpy.fromiter((number for number in range(100_000)), "i8")
        assert counted()[0] == 1
        text = numpy.fromstring(" ".join(map(str, range(50_000))), "i8", sep=" ")
        assert counted()[0] == 2
    assert (array == numpy.arange(100_000)).all()
    assert (text == numpy.arange(50_000)).all()
    del array, text
    assert counted() == (0, 0)


# Zeros.


def test_zeros_are_zero_where_blocks_were_dirty():
    with numpy_handler():
        for size in [SMALLEST, 100_000, 1 << 20] * 10:
            array = numpy.full(size, 255, "u1")
            address = array.ctypes.data
            del array
            zeros = [numpy.zeros(size, "u1") for _ in range(3)]
            assert not any(array.any() for array in zeros)
            for array in zeros:
                array[:] = 255
            del zeros, array
    assert address


@pytest.mark.parametrize("zeros_from", [1 << 20, 3 << 20])
def test_large_zeros_stay_pageable(zeros_from):
    with numpy_handler(zeros_from=zeros_from):
        before = page_locked_arrays()
        below = numpy.zeros(zeros_from - 1, "u1")
        assert page_locked_arrays() == (before[0] + 1, before[1] + zeros_from - 1)
        large = numpy.zeros(zeros_from, "u1")
        filled = numpy.full(zeros_from, 3, "u1")
        assert page_locked_arrays()[0] == before[0] + 2
        assert not below.any() and not large.any() and filled.min() == 3
        # It grows as its handler says.
        large.resize(2 * zeros_from, refcheck=False)
        assert page_locked_arrays()[0] == before[0] + 3
        assert not large.any()
        del below, large, filled


def test_large_zeros_take_pages_as_they_are_touched(run_python):
    run_python(
        """
import os

import aquifer, numpy

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")

with aquifer.numpy_handler():
    before = resident()
    large = numpy.zeros(1 << 30, "u1")
    large[5] = 1
    assert resident() - before < 64 << 20, resident() - before
    assert int(large[:1000].sum()) == 1
"""
    )


def test_a_block_does_come_again():
    with numpy_handler():
        seen = set()
        for _ in range(5000):
            array = numpy.empty(1 << 20, "u1")
            if array.ctypes.data in seen:
                break
            seen.add(array.ctypes.data)
            array[:] = 255
        else:
            pytest.fail("no block of 5000 has come again")
        del array
        assert not numpy.zeros(1 << 20, "u1").any()


def test_zeros_of_objects_and_of_structures():
    with numpy_handler():
        objects = numpy.zeros(100_000, "O")
        assert (objects == 0).all()
        empty = numpy.empty(100_000, "O")
        assert empty[0] is None and empty[-1] is None
        structures = numpy.zeros(10_000, [("a", "i4"), ("b", "O"), ("c", "f8", (3,))])
        assert not structures["a"].any() and not structures["c"].any()


# Sizes.


def test_arrays_without_elements_whose_items_are_huge():
    counted = Counted()
    with numpy_handler():
        for shape in [(0,), (0, 5), (5, 0)]:
            for kind in ["V100000", "S200000", "U65536", "V2147483000"]:
                for make in (numpy.empty, numpy.zeros):
                    try:
                        array = make(shape, kind)
                    except MemoryError:
                        # NumPy asks for one element at least.
                        assert kind == "V2147483000"
                        continue
                    assert array.size == 0
                    other = array.copy()
                    other.resize((3,) if kind == "V100000" else (0,), refcheck=False)
                    del array, other
        assert counted() == (0, 0)


def test_absurd_sizes_are_a_memory_error():
    counted = Counted()
    with numpy_handler():
        for make in (numpy.empty, numpy.zeros):
            for size in [1 << 60, (1 << 62) - 1, (1 << 63) - 1]:
                with pytest.raises((MemoryError, ValueError)) as raised:
                    make(size, "u1")
                assert isinstance(raised.value, MemoryError) or "too large" in str(raised.value) or "Maximum" in str(raised.value)
        with pytest.raises(MemoryError):
            numpy.zeros((1 << 31, 1 << 31), "u1")
        array = numpy.arange(100_000)
        with pytest.raises(MemoryError):
            array.resize(1 << 59, refcheck=False)
        # As it was.
        assert (array == numpy.arange(100_000)).all()
        small = numpy.arange(10)
        with pytest.raises(MemoryError):
            small.resize(1 << 59, refcheck=False)
        assert (small == numpy.arange(10)).all()
        assert counted()[0] == 1
        # And nothing is left broken.
        assert numpy.ones(100_000).sum() == 100_000
    del array, small, raised
    assert counted() == (0, 0)


def test_the_simulated_devices_end_is_a_memory_error(run_python):
    run_python(
        """
import numpy, aquifer, aquifer.numpy
with aquifer.numpy_handler():
    kept = []
    try:
        while len(kept) < 10_000:
            kept.append(numpy.empty(1 << 40, "u1"))
    except MemoryError:
        assert aquifer.numpy.page_locked_arrays()[0] == len(kept)
    else:
        raise AssertionError
    kept.clear()
    assert aquifer.numpy.page_locked_arrays() == (0, 0)
    assert numpy.ones(100_000).sum() == 100_000
"""
    )


# Arrays as any others.


def test_views_keep_the_memory():
    counted = Counted()
    with numpy_handler():
        array = numpy.arange(100_000)
        view, reshaped, strided, memory = array[10:20], array.reshape(100, 1000), array[::-7], memoryview(array)
        assert get_handler_name(view) is None
        del array
        assert counted()[0] == 1
        assert (view == numpy.arange(10, 20)).all()
        assert reshaped[1, 1] == 1001 and strided[0] == 99_999 and memory[5] == 5
        del view, reshaped, strided
        assert counted()[0] == 1
        del memory
    assert counted() == (0, 0)


def test_pickles_and_copies():
    counted = Counted()
    with numpy_handler():
        array = numpy.arange(100_000)
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert (pickle.loads(pickle.dumps(array, protocol)) == array).all()
        buffers: list[pickle.PickleBuffer] = []
        packed = pickle.dumps(array, 5, buffer_callback=buffers.append)
        shared = pickle.loads(packed, buffers=buffers)
        assert numpy.shares_memory(array, shared)
        copies = [copy.copy(array), copy.deepcopy(array), array.copy(), numpy.array(array), array.astype("f4")]
        assert counted()[0] == 6
        assert all((made == array).all() for made in copies)
    outside = array.copy()
    assert get_handler_name(outside) == NUMPYS_OWN
    del array, shared, copies, buffers
    assert counted() == (0, 0)


def test_memory_of_others_is_not_page_locked(tmp_path):
    counted = Counted()
    with numpy_handler():
        path = tmp_path / "array"
        mapped = numpy.memmap(path, "i8", "w+", shape=100_000)
        assert counted()[0] == 0
        mapped[:] = numpy.arange(100_000)
        mapped.flush()
        assert (numpy.memmap(path, "i8", "r") == numpy.arange(100_000)).all()
        assert get_handler_name(mapped) is None
        of_bytes = numpy.frombuffer(bytes(100_000), "u1")
        assert get_handler_name(of_bytes) is None
        assert counted()[0] == 0
        read = numpy.fromfile(path, "i8")
        assert counted()[0] == 1
        assert (read == mapped).all()
        numpy.save(tmp_path / "saved.npy", read)
        assert (numpy.load(tmp_path / "saved.npy") == read).all()
        assert (numpy.load(tmp_path / "saved.npy", mmap_mode="r") == read).all()
        numpy.savez_compressed(tmp_path / "saved.npz", read=read)
        with numpy.load(tmp_path / "saved.npz") as saved:
            assert (saved["read"] == read).all()


def test_structures_and_records():
    counted = Counted()
    with numpy_handler():
        kind = numpy.dtype([("id", "u4"), ("name", "S12"), ("place", "f8", (3,)), ("nested", [("x", "i2"), ("y", "c8")])])
        array = numpy.zeros(10_000, kind)
        assert counted() == (1, 10_000 * kind.itemsize)
        array["id"] = numpy.arange(10_000)
        array["name"] = b"name"
        array["place"][:, 1] = 2.5
        array["nested"]["y"] = 1 + 2j
        record = array[77]
        assert (record["id"], record["name"], record["place"][1], record["nested"]["y"]) == (77, b"name", 2.5, 1 + 2j)
        ordered = numpy.sort(array[::-1], order="id")
        assert (ordered == array).all()
        assert array.view(numpy.recarray).place[3, 1] == 2.5
        aligned = numpy.empty(10_000, numpy.dtype([("a", "u1"), ("b", "f8")], align=True))
        aligned["b"] = 1
        assert aligned["b"].sum() == 10_000


def test_objects_are_let_go():
    class Thing:
        pass

    with numpy_handler():
        array = numpy.empty(100_000, "O")
        things = [Thing() for _ in range(1000)]
        array[:1000] = things
        kept = weakref.ref(things[0])
        del things
        assert kept() is not None
        array.resize(20_000, refcheck=False)
        del array
        gc.collect()
        assert kept() is None


def test_what_numpy_computes_is_the_same():
    def computed() -> list["numpy.ndarray"]:
        random = numpy.random.default_rng(3)
        matrix = random.standard_normal((300, 300))
        long = random.standard_normal(200_000)
        return [
            matrix @ matrix.T,
            numpy.linalg.inv(matrix),
            numpy.linalg.svd(matrix)[1],
            numpy.fft.fft(long),
            numpy.sort(long),
            numpy.argsort(long, kind="stable"),
            numpy.cumsum(long),
            numpy.concatenate([long, long[::-1]]),
            numpy.unique((long * 1000).astype("i8")),
            numpy.where(long > 0, long, -long),
            numpy.einsum("ij,jk->ik", matrix, matrix),
            numpy.histogram(long, 100)[0],
            numpy.ma.masked_less(long, 0).filled(0),
            numpy.array([str(number) for number in range(20_000)]),
        ]

    own = computed()
    counted = Counted()
    with numpy_handler(smallest=64):
        ours = computed()
    assert counted()[0] >= len(ours)
    for mine, theirs in zip(ours, own):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        assert mine.tobytes() == theirs.tobytes()
    del ours, mine
    gc.collect()
    assert counted() == (0, 0)


def test_an_array_goes_to_the_device_and_back():
    with numpy_handler():
        array = numpy.arange(100_000)
        buffer = aquifer.to_device(array)
        back = numpy.empty_like(array)
        buffer.copy_to_host(back)
        assert (back == array).all()
        made = buffer.copy_to_host()
        assert get_handler_name(made) == "aquifer_pinned"
        assert (made.view(array.dtype) == array).all()


def test_arrays_that_outlive_the_handler():
    counted = Counted()
    with numpy_handler():
        arrays = [numpy.full(SMALLEST, number, "u1") for number in range(20)]
    gc.collect()
    assert counted()[0] == 20
    assert all((array == number).all() for number, array in enumerate(arrays))
    # Their capsule goes with the last of them.
    for number in range(20, 0, -1):
        assert counted()[0] == number
        arrays.pop()


# tracemalloc.


def traces_of(make: Callable[[], list["numpy.ndarray"]], uses_handler: bool) -> list[tuple[int, int]]:
    """The sizes and lines of the memory that NumPy tells ``tracemalloc``."""
    domain = getattr(numpy, "lib", numpy).tracemalloc_domain
    tracemalloc.start()
    try:
        if uses_handler:
            with numpy_handler(smallest=1000):
                kept = make()
        else:
            kept = make()
        traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, domain)]).traces
        found = sorted((trace.size, trace.traceback[0].lineno) for trace in traces if trace.traceback[0].filename == __file__)
        del kept
        gc.collect()
        left = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, domain)]).traces
        assert [trace for trace in left if trace.traceback[0].filename == __file__ and trace.size >= 1000] == []
    finally:
        tracemalloc.stop()
    return found


def make_arrays() -> list["numpy.ndarray"]:
    arrays = [numpy.empty(size, "u1") for size in (500, 2000, 5000, 100_000)]
    arrays.append(numpy.zeros(70_000, "u1"))
    arrays.append(numpy.ones(3000, "f8"))
    grown = numpy.empty(600, "u1")
    grown.resize(90_000, refcheck=False)
    arrays.append(grown)
    shrunk = numpy.empty(90_000, "u1")
    shrunk.resize(700, refcheck=False)
    arrays.append(shrunk)
    return arrays


def test_tracemalloc_sees_the_same_sizes_and_lines():
    with_handler, without = traces_of(make_arrays, True), traces_of(make_arrays, False)
    assert with_handler == without
    assert len(without) == 7
    assert [size for size, _ in without] == [500, 700, 2000, 5000, 70_000, 90_000, 100_000]


# Processes.


def test_a_fork_has_arrays_of_numpys_own(run_python):
    said = run_python(
        """
import os, sys, numpy, aquifer, aquifer.numpy
with aquifer.numpy_handler():
    before = numpy.arange(100_000)
    growing = numpy.arange(100, dtype="i8")
    assert aquifer.numpy.page_locked_arrays()[0] == 1
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        # What the parent has made is there on the simulated device.
        assert before.sum() == sum(range(100_000))
        made = [numpy.arange(100_000), numpy.zeros(100_000), numpy.ones(1 << 20)]
        assert aquifer.numpy.page_locked_arrays()[0] == 1
        assert made[0].sum() == sum(range(100_000)) and not made[1].any()
        growing.resize(100_000, refcheck=False)
        assert growing[:100].sum() == 4950 and not growing[100:].any()
        before.resize(200_000, refcheck=False)
        assert before[:100_000].sum() == sum(range(100_000))
        assert aquifer.numpy.page_locked_arrays()[0] == 0
        made.append(numpy.arange(200_000) @ numpy.ones(200_000))
        del before, made, growing
        print("child")
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    assert before.sum() == sum(range(100_000))
    after = numpy.ones(100_000)
    assert aquifer.numpy.page_locked_arrays()[0] == 2
print("parent")
"""
    )
    assert said == "child\nparent\n"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_that_work_on_arrays(run_python, tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(
        """
import multiprocessing, sys
import numpy, aquifer, aquifer.numpy

def work(array):
    with aquifer.numpy_handler():
        made = array * 2
        return made.sum(), made

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with aquifer.numpy_handler():
        arrays = [numpy.full(100_000, number) for number in range(8)]
        with context.Pool(2) as pool:
            for number, (total, made) in enumerate(pool.map(work, arrays)):
                assert total == 200_000 * number and (made == 2 * number).all()
        pool.join()
    del arrays, made
    assert aquifer.numpy.page_locked_arrays() == (0, 0), aquifer.numpy.page_locked_arrays()
"""
    )
    run_python(f"import runpy, sys; sys.argv[1:] = [{method!r}]; runpy.run_path({str(program)!r}, run_name='__main__')")


def test_a_numpy_that_is_too_old_is_an_error(run_python):
    said = run_python(
        """
import ctypes, sys, types
# The table of NumPy 1.21, which ends before the handlers.
version = ctypes.CFUNCTYPE(ctypes.c_uint)(lambda: 0xe)
table = (ctypes.c_void_p * 212)()
table[211] = ctypes.cast(version, ctypes.c_void_p).value
new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
module = types.ModuleType("numpy._core._multiarray_umath")
module._ARRAY_API = new(ctypes.addressof(table), None, None)
for name in ["numpy", "numpy._core"]:
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
sys.modules[module.__name__] = module
import aquifer
try:
    with aquifer.numpy_handler():
        pass
except RuntimeError as error:
    print(error)
"""
    )
    assert said == "this NumPy has no handlers of memory (install version 1.22 or later)\n"


def test_page_locked_arrays_of_a_process_without_numpy(run_python):
    said = run_python(
        """
import sys, aquifer.numpy
print(aquifer.numpy.page_locked_arrays(), "numpy" in sys.modules)
"""
    )
    assert said == "(0, 0) False\n"


# Blocks that overlap.


def is_own() -> bool:
    """Whether new arrays are NumPy's own."""
    return get_handler_name() == NUMPYS_OWN


def smallest() -> int:
    """From how many bytes on new arrays are page-locked."""
    for exponent in range(10, 13):
        counted = Counted()
        array = numpy.empty(1 << exponent, "u1")
        if counted() == (1, array.size):
            return array.size
    return 0


def test_blocks_that_overlap():
    first, second = numpy_handler(), numpy_handler()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not is_own()
    second.__exit__(None, None, None)
    assert is_own()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_blocks_that_end_in_any_order(order):
    blocks = [numpy_handler(smallest=1 << (10 + number)) for number in range(3)]
    for block in blocks:
        block.__enter__()
    for done, number in enumerate(order, start=1):
        assert not is_own()
        blocks[number].__exit__(None, None, None)
        left = [number for number in range(3) if number not in order[:done]]
        # Where the innermost one has ended, it is that of the innermost that goes on.
        if left and 2 in order[:done]:
            assert smallest() == 1 << (10 + left[-1])
    assert is_own()


def test_blocks_that_begin_while_others_overlap():
    first, second, third = numpy_handler(), numpy_handler(), numpy_handler()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    third.__enter__()
    second.__exit__(None, None, None)
    del first, second
    gc.collect()
    assert not is_own()
    third.__exit__(None, None, None)
    assert is_own()


def test_blocks_of_generators():
    def steps():
        with numpy_handler():
            yield numpy.empty(1 << 20, "u1")
            yield numpy.empty(1 << 20, "u1")

    for first, second in zip(steps(), steps(), strict=True):
        assert get_handler_name(first) == get_handler_name(second) == "aquifer_pinned"
    assert is_own()
    kept = [steps() for _ in range(4)]
    for running in kept:
        next(running)
    for running in kept:
        running.close()
    assert is_own()


def test_blocks_that_nest_in_a_task():
    async def task():
        # It begins with its parent's.
        with numpy_handler():
            await asyncio.sleep(0)
        return is_own()

    async def main():
        with numpy_handler():
            running = asyncio.create_task(task())
            await asyncio.sleep(0)
        own = is_own()
        return own, await running

    assert asyncio.run(main()) == (True, False)


def test_blocks_that_overlap_leave_nothing():
    from aquifer import numpy as plugin

    for _ in range(100):
        first, second = numpy_handler(), numpy_handler()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
    del first, second
    gc.collect()
    assert len(plugin._BLOCKS) == 0


def test_a_block_that_ends_on_another_thread(in_threads):
    """Its handler stays in the context that it began in, until a later block there ends."""

    def steps():
        with numpy_handler(smallest=1):
            yield

    begun = steps()
    next(begun)
    in_threads(begun.close)
    del begun
    gc.collect()
    with numpy_handler(smallest=1):
        pass
    assert is_own()
    from aquifer import numpy as plugin

    assert not plugin._OVER
