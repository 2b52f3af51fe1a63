"""CuPy's plug-in, as far as it goes without a GPU: CuPy's own classes, but a device and streams of the test's."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import aquifer
import pytest

cupy = pytest.importorskip("cupy", reason="needs CuPy")

import aquifer.cupy  # noqa: E402
from aquifer import _on_gpu  # noqa: E402


class Stream:
    """What the plug-in asks of CuPy's stream."""

    device_id = 0

    def __init__(self, own: "aquifer.Stream | None" = None) -> None:
        self.own = own
        self.ptr = 0 if own is None else own.handle


class Library:
    """What CuPy would have current."""

    stream = Stream()
    device = 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    # No work of CuPy's uses the memory here.
    monkeypatch.setattr(_on_gpu, "_ASKED", {"CuPy"})
    monkeypatch.setattr(aquifer.cupy, "get_current_stream", lambda: library.stream)
    monkeypatch.setattr(aquifer.cupy, "get_device_id", lambda: library.device)
    return library


@pytest.fixture
def resource(library: Library) -> Iterator[aquifer.mr.DeviceMemoryResource]:
    if not aquifer.is_simulated():
        pytest.skip("is of the simulated device, and there is a GPU")
    before = aquifer.mr.get_current_device_resource()
    yield aquifer.use("pool(cuda, max=64MiB)")
    aquifer.mr.set_current_device_resource(before)


def live(resource: aquifer.mr.DeviceMemoryResource) -> tuple[int, int]:
    gc.collect()
    statistics = resource.pool_statistics()
    return statistics["live_blocks"], statistics["live_bytes"]


def test_memory_is_a_pointer_of_cupys(resource):
    pointer = aquifer.cupy_allocator(1 << 20)
    assert type(pointer) is cupy.cuda.MemoryPointer
    assert type(pointer.mem) is cupy.cuda.UnownedMemory
    assert pointer.ptr == pointer.mem.ptr and pointer.ptr % 256 == 0
    assert pointer.mem.size == 1 << 20
    assert pointer.mem.device_id == 0
    assert live(resource) == (1, 1 << 20)
    aquifer.copy_host_to_ptr(b"y" * 4096, pointer.ptr)
    read = bytearray(4096)
    aquifer.copy_ptr_to_host(pointer.ptr, read)
    assert read == b"y" * 4096
    del pointer
    assert live(resource) == (0, 0)


def test_an_offset_keeps_the_memory(resource):
    pointer = aquifer.cupy_allocator(4096)
    part = pointer + 1024
    assert part.ptr == pointer.ptr + 1024
    del pointer
    assert live(resource)[0] == 1
    del part
    assert live(resource)[0] == 0


def test_memory_is_that_of_the_current_stream(resource, library):
    own = aquifer.Stream()
    library.stream = stream = Stream(own)
    kept = weakref.ref(stream)
    pointer = aquifer.cupy_allocator(4096)
    library.stream = Stream()
    del stream
    gc.collect()
    # CuPy would destroy it, and the pool may name it.
    assert kept() is not None
    other = aquifer.cupy_allocator(4096)
    assert other.ptr != pointer.ptr
    del pointer
    assert live(resource)[0] == 1
    del other
    assert live(resource)[0] == 0


def test_a_block_comes_back_on_its_stream(resource, library):
    library.stream = Stream(aquifer.Stream())
    pointer = aquifer.cupy_allocator(4096)
    address = pointer.ptr
    del pointer
    again = aquifer.cupy_allocator(4096)
    assert again.ptr == address


def test_no_memory_is_a_memory_error_with_figures(resource):
    with pytest.raises(MemoryError, match="maximum is 67108864 bytes") as raised:
        aquifer.cupy_allocator(1 << 30)
    assert isinstance(raised.value, aquifer.OutOfMemoryError)
    assert live(resource) == (0, 0)


def test_no_bytes(resource):
    pointers = [aquifer.cupy_allocator(0) for _ in range(2)]
    assert [pointer.mem.size for pointer in pointers] == [0, 0]
    assert live(resource) == (0, 0)


def test_the_per_thread_default_stream(resource, library):
    library.stream = Stream()
    library.stream.ptr = 2
    pointer = aquifer.cupy_allocator(4096)
    # Work of any thread's default stream may use it until the device is past it.
    theirs = aquifer.Stream()
    theirs.wait(aquifer.default_stream())
    target = aquifer.DeviceBuffer(size=4096, stream=theirs)
    aquifer.copy_host_to_ptr(bytes(4096), pointer.ptr)
    aquifer.copy_device_to_ptr(pointer.ptr, target.ptr, 4096, theirs)
    del pointer
    again = aquifer.to_device(b"x" * 4096)
    assert target.tobytes() == bytes(4096) and again.tobytes() == b"x" * 4096
    del target, again
    assert live(resource) == (0, 0)


def test_the_simulated_device_has_no_memory_for_cupy(resource, monkeypatch):
    monkeypatch.setattr(_on_gpu, "_ASKED", set())
    with pytest.raises(aquifer.Error, match="CuPy was to have memory of the simulated device"):
        aquifer.cupy_allocator(4096)
    assert live(resource) == (0, 0)


def test_pinned_memory_is_a_pointer_of_cupys(resource):
    pointer = aquifer.cupy_pinned_allocator(100_000)
    assert type(pointer) is cupy.cuda.PinnedMemoryPointer
    assert isinstance(pointer.mem, cupy.cuda.PinnedMemory)
    assert pointer.ptr == pointer.mem.ptr and pointer.ptr % 256 == 0
    assert pointer.size() == pointer.mem.size == 100_000
    bytes_ = memoryview(pointer)
    assert bytes_.nbytes == 100_000 and not bytes_.readonly
    del bytes_
    part = pointer + 4096
    assert part.ptr == pointer.ptr + 4096
    assert part.size() == 100_000 - 4096


def test_pinned_memory_is_host_memory_that_numpy_writes(resource):
    numpy = pytest.importorskip("numpy")
    pointer = aquifer.cupy_pinned_allocator(8 * 1000)
    array = numpy.frombuffer(pointer, "i8", 1000)
    array[:] = numpy.arange(1000)
    buffer = aquifer.to_device(array)
    assert (buffer.copy_to_host().view("i8") == numpy.arange(1000)).all()


def test_pinned_memory_of_absurd_sizes_is_a_memory_error(resource):
    with pytest.raises(MemoryError):
        aquifer.cupy_pinned_allocator(1 << 62)
    # Its end is not an error, either, though it was not made.
    gc.collect()


def test_the_allocators_are_set_for_cupy(resource):
    try:
        assert aquifer.set_allocators("cupy") == ["cupy"]
        pointer = cupy.cuda.alloc(1 << 16)
        assert live(resource) == (1, 1 << 16)
        assert type(cupy.cuda.alloc_pinned_memory(1000).mem) is aquifer.cupy._PinnedMemory
        del pointer
        assert live(resource) == (0, 0)
        with cupy.cuda.using_allocator(aquifer.rmm_cupy_allocator):
            assert cupy.cuda.alloc(512).mem.size == 512
    finally:
        cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
        cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)


def test_the_names_are_the_packages_too():
    assert aquifer.cupy_allocator is aquifer.cupy.cupy_allocator
    assert aquifer.rmm_cupy_allocator is aquifer.cupy.cupy_allocator
    assert aquifer.cupy_pinned_allocator is aquifer.cupy.cupy_pinned_allocator


def test_threads_allocate_and_free(resource, library):
    errors: list[BaseException] = []
    handed: list[object] = []

    def work() -> None:
        try:
            for round in range(300):
                pointers = [aquifer.cupy_allocator(256 << (round + n) % 6) for n in range(4)]
                assert len({pointer.ptr for pointer in pointers}) == 4
                # Another thread's end may free it.
                handed.append(pointers.pop())
                if len(handed) > 8:
                    handed.pop(0)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    handed.clear()
    assert live(resource) == (0, 0)


STUBS = """
import sys, types
class Memory:
    def __init__(self, ptr, size, owner, device_id): self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id
class Pointer:
    def __init__(self, mem, offset): self.mem, self.ptr = mem, mem.ptr + offset
class Pinned: pass
class Stream: ptr = 0
made = {}
def module(name, **members):
    made[name] = sys.modules[name] = types.ModuleType(name)
    vars(made[name]).update(members)
allocators = []
module("cupy", __path__=[])
module("cupy.cuda", MemoryPointer=Pointer, UnownedMemory=Memory, get_current_stream=Stream, __path__=[],
       set_allocator=allocators.append, set_pinned_memory_allocator=allocators.append)
module("cupy.cuda.stream")
module("cupy.cuda.device", get_device_id=lambda: 0)
module("cupy.cuda.pinned_memory", PinnedMemory=Pinned, PinnedMemoryPointer=Pointer)
made["cupy"].cuda = made["cupy.cuda"]
made["cupy.cuda"].stream = made["cupy.cuda.stream"]
"""


def test_it_needs_no_more_of_cupy_than_these_names():
    code = STUBS + """
import aquifer, aquifer._on_gpu
assert "aquifer.cupy" not in sys.modules
aquifer._on_gpu._ASKED.add("CuPy")
resource = aquifer.use("pool(cuda)")
aquifer.set_allocators("cupy")
assert allocators == [aquifer.cupy_allocator, aquifer.cupy_pinned_allocator]
device, pinned = (allocate(1000) for allocate in allocators)
assert (device.mem.size, device.mem.device_id) == (1000, 0) and device.ptr == device.mem.owner.ptr
assert (pinned.mem.size, pinned.ptr % 256) == (1000, 0)
assert resource.pool_statistics()["live_blocks"] == 1
del device
assert resource.pool_statistics()["live_blocks"] == 0
"""
    environment = {**os.environ, "AQUIFER_BACKEND": "sim"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
