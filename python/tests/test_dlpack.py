"""DLPack, both ways."""

from __future__ import annotations

import ctypes
import gc
import threading

import aquifer
import numpy
import pytest
from aquifer import DeviceBuffer, mr

CUDA, CPU = 2, 1


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


# Without the interpreter held, as of a library in C++.
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


api = ctypes.pythonapi
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_GetName.restype = ctypes.c_char_p
api.PyCapsule_GetName.argtypes = [ctypes.py_object]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]

PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"
USED = {PLAIN: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}
TYPES = {PLAIN: Managed, VERSIONED: ManagedVersioned}


class Consumer:
    """Another library that has taken a capsule."""

    def __init__(self, capsule):
        name = api.PyCapsule_GetName(capsule)
        address = api.PyCapsule_GetPointer(capsule, name)
        self.managed = TYPES[name].from_address(address)
        self.address = address
        api.PyCapsule_SetName(capsule, USED[name])

    @property
    def tensor(self):
        return self.managed.tensor

    def end(self):
        self.managed.deleter(self.address)


class Producer:
    """Another library's tensor of device memory."""

    def __init__(
        self,
        buffer,
        shape,
        strides=None,
        *,
        name=VERSIONED,
        bits=8,
        lanes=1,
        offset=0,
        device=(CUDA, 0),
        major=1,
        flags=0,
    ):
        self.buffer, self.asked, self.ends, self.device, self.name = buffer, [], [], device, name
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        self.managed = TYPES[name]()
        if name == VERSIONED:
            self.managed.major, self.managed.flags = major, flags
        self.deleter = DELETER(lambda address: self.ends.append((address, threading.get_ident())))
        self.managed.deleter = self.deleter
        tensor = self.managed.tensor
        tensor.data, tensor.byte_offset = buffer.ptr, offset
        tensor.device_type, tensor.device = device
        tensor.type_code, tensor.bits, tensor.lanes = 1, bits, lanes
        tensor.dimensions = len(shape)
        tensor.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        if self.strides is not None:
            tensor.strides = ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **arguments):
        self.asked.append(arguments)
        return api.PyCapsule_New(ctypes.addressof(self.managed), self.name, None)


@pytest.fixture
def pool():
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource())
    mr.set_current_device_resource(pool)
    return pool


def live(pool):
    gc.collect()
    return pool.pool_statistics()["live_blocks"]


# A buffer for others.


def test_a_buffers_device():
    # Also of the simulated device, whose addresses are no addresses of the host.
    assert DeviceBuffer(size=1).__dlpack_device__() == (CUDA, 0)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({}, PLAIN),
        ({"max_version": None}, PLAIN),
        ({"max_version": (0, 8)}, PLAIN),
        ({"max_version": (1, 0)}, VERSIONED),
        ({"max_version": (2, 3)}, VERSIONED),
    ],
)
def test_a_capsule(asked, name):
    buffer = DeviceBuffer.to_device(b"abc")
    capsule = buffer.__dlpack__(**asked)
    assert api.PyCapsule_GetName(capsule) == name
    consumer = Consumer(capsule)
    tensor = consumer.tensor
    assert (tensor.data, tensor.byte_offset) == (buffer.ptr, 0)
    assert (tensor.device_type, tensor.device) == (CUDA, 0)
    assert (tensor.type_code, tensor.bits, tensor.lanes) == (1, 8, 1)
    assert (tensor.dimensions, tensor.shape[0], tensor.strides[0]) == (1, 3, 1)
    if name == VERSIONED:
        assert (consumer.managed.major, consumer.managed.flags) == (1, 0)
    consumer.end()


def test_a_capsule_of_nothing():
    consumer = Consumer(DeviceBuffer().__dlpack__())
    assert (consumer.tensor.data, consumer.tensor.shape[0]) == (None, 0)
    consumer.end()


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_consumer_keeps_the_memory(pool, version):
    buffer = DeviceBuffer.to_device(b"abc")
    capsule = buffer.__dlpack__(max_version=version)
    consumer = Consumer(capsule)
    del buffer, capsule
    assert live(pool) == 1
    host = bytearray(3)
    aquifer.copy_ptr_to_host(consumer.tensor.data, host)
    assert host == b"abc"
    consumer.end()
    assert live(pool) == 0


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_that_nobody_takes(pool, version):
    buffer = DeviceBuffer.to_device(b"abc")
    capsules = [buffer.__dlpack__(max_version=version) for _ in range(3)]
    del buffer
    assert live(pool) == 1
    del capsules[1:]
    assert live(pool) == 1
    del capsules
    assert live(pool) == 0


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_consumer_on_another_thread(pool, version):
    buffer = DeviceBuffer.to_device(b"abc", stream=aquifer.Stream())
    consumer = Consumer(buffer.__dlpack__(max_version=version, stream=-1))
    del buffer
    thread = threading.Thread(target=consumer.end)
    thread.start()
    thread.join()
    assert live(pool) == 0


def test_a_consumer_whose_end_calls_python(pool):
    calls = []
    cuda = mr.CudaMemoryResource()

    def deallocate(ptr, nbytes, stream):
        calls.append(nbytes)
        cuda.deallocate(ptr, nbytes, stream)

    buffer = DeviceBuffer(size=10, mr=mr.CallbackMemoryResource(cuda.allocate, deallocate))
    consumer = Consumer(buffer.__dlpack__())
    del buffer
    gc.collect()
    assert calls == []
    thread = threading.Thread(target=consumer.end)
    thread.start()
    thread.join()
    assert calls == [10]


@pytest.mark.parametrize("stream", [None, -1, 0, 1, 2, "own"])
def test_a_consumers_stream(stream):
    own = aquifer.Stream()
    number = own.handle if stream == "own" else stream
    buffer = DeviceBuffer.to_device(b"abc", stream=aquifer.Stream())
    consumer = Consumer(buffer.__dlpack__(stream=number))
    if stream in ("own", 1, None):
        # Ordered after the copy that wrote it: else the simulated device would tell of it.
        target = DeviceBuffer(size=3, stream=own if stream == "own" else aquifer.default_stream())
        aquifer.copy_device_to_ptr(consumer.tensor.data, target.ptr, 3, target.stream)
        assert target.tobytes() == b"abc"
    consumer.end()


@pytest.mark.parametrize("stream", [0xDEAD, -5])
def test_a_consumers_stream_that_is_none(pool, stream):
    buffer = DeviceBuffer(size=3)
    with pytest.raises(aquifer.Error, match="by its handle"):
        buffer.__dlpack__(stream=stream)
    del buffer
    assert live(pool) == 0


def test_what_a_consumer_may_ask():
    buffer = DeviceBuffer.to_device(b"abc")
    assert Consumer(buffer.__dlpack__(dl_device=(CUDA, 0), copy=False)).tensor.data == buffer.ptr
    copied = Consumer(buffer.__dlpack__(copy=True))
    assert copied.tensor.data != buffer.ptr
    host = bytearray(3)
    aquifer.copy_ptr_to_host(copied.tensor.data, host)
    assert host == b"abc"
    copied.end()
    versioned = Consumer(buffer.__dlpack__(copy=True, max_version=(1, 0)))
    # DLPACK_FLAG_BITMASK_IS_COPIED
    assert versioned.managed.flags == 2
    versioned.end()
    for device in ((CUDA, 1), (3, 0), (CPU, 1)):
        with pytest.raises(BufferError, match="memory of another device was asked of a buffer"):
            buffer.__dlpack__(dl_device=device)
    with pytest.raises(TypeError):
        buffer.__dlpack__(1)
    with pytest.raises(TypeError):
        buffer.__dlpack__(stream="x")


def test_numpy_refuses_device_memory(pool):
    buffer = DeviceBuffer.to_device(b"abc")
    with pytest.raises((BufferError, RuntimeError)):
        numpy.from_dlpack(buffer)
    del buffer
    assert live(pool) == 0


@pytest.mark.parametrize("asked", [{}, {"copy": None}, {"copy": True}])
def test_a_copy_for_numpy(pool, asked):
    # On a stream that nothing else waits for.
    buffer = DeviceBuffer.to_device(b"abc", stream=aquifer.Stream())
    array = numpy.from_dlpack(buffer, device="cpu", **asked)
    assert (array.tobytes(), array.dtype, array.shape) == (b"abc", numpy.uint8, (3,))
    array[0] = ord("x")
    assert buffer.tobytes() == b"abc"
    # Nobody else has the buffer's memory.
    buffer.resize(1000)
    del buffer
    assert live(pool) == 0 and array.tobytes() == b"xbc"
    assert numpy.from_dlpack(DeviceBuffer(), device="cpu").size == 0


def test_the_hosts_memory_is_a_copy():
    buffer = DeviceBuffer.to_device(b"abc")
    with pytest.raises(BufferError, match="the host's memory was asked of a buffer without a copy"):
        buffer.__dlpack__(dl_device=(CPU, 0), copy=False)
    with pytest.raises(BufferError, match="the host's memory was asked of a buffer without a copy"):
        numpy.from_dlpack(buffer, device="cpu", copy=False)
    for version, flags in ((None, None), ((1, 0), 2)):
        consumer = Consumer(buffer.__dlpack__(dl_device=(CPU, 0), max_version=version))
        tensor = consumer.tensor
        assert (tensor.device_type, tensor.device) == (CPU, 0)
        assert ctypes.string_at(tensor.data, 3) == b"abc" and tensor.data != buffer.ptr
        if flags is not None:
            assert consumer.managed.flags == flags
        consumer.end()
    # One that nobody takes.
    buffer.__dlpack__(dl_device=(CPU, 0))


def test_memory_that_was_exported_is_freed_after_all_work(pool):
    # On a stream that no one names: the simulated device would tell of a block that is handed out too early.
    buffer = DeviceBuffer.to_device(bytes(1 << 20))
    consumer = Consumer(buffer.__dlpack__(stream=-1))
    theirs = aquifer.Stream()
    theirs.wait(buffer.stream)
    target = DeviceBuffer(size=1 << 20, stream=theirs)
    aquifer.copy_device_to_ptr(consumer.tensor.data, target.ptr, 1 << 20, theirs)
    consumer.end()
    del buffer
    again = DeviceBuffer.to_device(b"\1" * (1 << 20))
    assert (again.tobytes(), target.tobytes()) == (b"\1" * (1 << 20), bytes(1 << 20))


def test_memory_that_others_have_does_not_move():
    buffer = DeviceBuffer.to_device(b"abc")
    for other in (DeviceBuffer.from_dlpack(buffer), buffer.__dlpack__(), buffer.__dlpack__(max_version=(1, 0))):
        for change in (buffer.resize, buffer.reserve):
            with pytest.raises(BufferError, match="another library has the memory by DLPack, so its size cannot change"):
                change(1000)
        assert (buffer.size, buffer.tobytes()) == (3, b"abc")
        del other
    buffer.reserve(1000)
    assert (buffer.capacity(), buffer.tobytes()) == (1000, b"abc")


# Others' memory.


def test_a_view():
    buffer = DeviceBuffer.to_device(b"hello")
    view = DeviceBuffer.from_dlpack(obj=buffer)
    assert (view.ptr, view.size, view.capacity(), view.device) == (buffer.ptr, 5, 5, 0)
    assert view.mr is None
    assert view.stream == aquifer.default_stream()
    assert view.tobytes() == b"hello"
    assert repr(view) == f"<aquifer.DeviceBuffer of 5 B at {view.ptr:#x}, device 0, another library's>"
    view.copy_from_host(b"HE")
    assert buffer.tobytes() == b"HEllo"


def test_a_view_outlives_the_buffer(pool):
    buffer = DeviceBuffer.to_device(b"hello", stream=aquifer.Stream())
    view = DeviceBuffer.from_dlpack(buffer, stream=aquifer.Stream())
    another = DeviceBuffer.from_dlpack(view)
    del buffer, view
    assert live(pool) == 1
    assert another.tobytes() == b"hello"
    del another
    assert live(pool) == 0


def test_a_view_of_nothing():
    assert DeviceBuffer.from_dlpack(DeviceBuffer()).tobytes() == b""


def test_a_view_for_another_view():
    buffer = DeviceBuffer.to_device(b"hello")
    consumer = Consumer(DeviceBuffer.from_dlpack(buffer).__dlpack__())
    assert consumer.tensor.data == buffer.ptr
    consumer.end()
    assert buffer.tobytes() == b"hello"


def test_copies_of_a_view(pool):
    buffer = DeviceBuffer.to_device(b"hello")
    view = DeviceBuffer.from_dlpack(buffer, stream=aquifer.Stream())
    copied = view.copy()
    assert (copied.tobytes(), copied.mr, copied.stream) == (b"hello", pool, view.stream)
    assert copied.ptr != view.ptr
    consumer = Consumer(view.__dlpack__(copy=True))
    assert consumer.tensor.data not in (view.ptr, None)
    consumer.end()


def test_a_view_does_not_grow():
    buffer = DeviceBuffer.to_device(b"hello")
    view = DeviceBuffer.from_dlpack(buffer)
    with pytest.raises(aquifer.Error, match="another library's memory was to grow"):
        view.resize(100)
    view.resize(2)
    assert (view.tobytes(), buffer.tobytes()) == (b"he", b"hello")


@pytest.mark.parametrize("name", [PLAIN, VERSIONED])
@pytest.mark.parametrize(
    ("shape", "options", "size"),
    [
        ((6,), {}, 6),
        ((6,), {"strides": (1,)}, 6),
        ((2, 3), {"strides": (3, 1)}, 6),
        ((1, 6), {"strides": (99, 1)}, 6),
        ((3,), {"bits": 16}, 6),
        ((3,), {"lanes": 2}, 6),
        ((3,), {"bits": 1}, 3),
        ((3,), {"offset": 2}, 3),
        ((), {}, 1),
        ((0, 3), {"strides": (99, 99)}, 0),
    ],
)
def test_a_tensor(name, shape, options, size):
    buffer = DeviceBuffer.to_device(b"abcdef")
    producer = Producer(buffer, shape, name=name, **options)
    view = DeviceBuffer.from_dlpack(producer)
    start = options.get("offset", 0)
    assert view.tobytes() == b"abcdef"[start : start + size]
    assert producer.asked == [{"stream": 1, "max_version": (1, 0)}]
    assert producer.ends == []
    del view
    assert [address for address, _ in producer.ends] == [ctypes.addressof(producer.managed)]


def test_a_producer_is_told_the_stream():
    stream = aquifer.Stream()
    producer = Producer(DeviceBuffer.to_device(b"abc"), (3,))
    assert DeviceBuffer.from_dlpack(producer, stream).stream == stream
    assert producer.asked == [{"stream": stream.handle, "max_version": (1, 0)}]


def test_a_producer_of_before_version_1():
    class Old(Producer):
        def __dlpack__(self, stream=None):
            return super().__dlpack__(stream=stream)

    producer = Old(DeviceBuffer.to_device(b"abc"), (3,), name=PLAIN)
    assert DeviceBuffer.from_dlpack(producer).tobytes() == b"abc"
    assert producer.asked == [{"stream": 1}]


@pytest.mark.parametrize("name", [PLAIN, VERSIONED])
@pytest.mark.parametrize(
    ("shape", "options", "text"),
    [
        ((3,), {"strides": (2,)}, "not contiguous"),
        ((2, 3), {"strides": (1, 2)}, "not contiguous"),
        ((1 << 32, 1 << 33), {}, "more bytes than an address space"),
        ((1 << 62,), {"bits": 64}, "more bytes than an address space"),
    ],
)
def test_a_tensor_that_is_none(name, shape, options, text):
    producer = Producer(DeviceBuffer(size=6), shape, name=name, **options)
    with pytest.raises(BufferError, match=text):
        DeviceBuffer.from_dlpack(producer)
    # Its capsule was taken, so the tensor is given back.
    assert len(producer.ends) == 1


def test_a_tensor_of_a_later_version():
    producer = Producer(DeviceBuffer(size=6), (6,), major=2)
    with pytest.raises(BufferError, match="DLPack's version 2 was given, where version 1 was asked for"):
        DeviceBuffer.from_dlpack(producer)
    assert len(producer.ends) == 1


def test_a_tensor_without_a_deleter():
    producer = Producer(DeviceBuffer.to_device(b"abc"), (3,), name=PLAIN)
    producer.managed.deleter = ctypes.cast(None, DELETER)
    assert DeviceBuffer.from_dlpack(producer).tobytes() == b"abc"


def test_memory_that_is_not_the_devices():
    with pytest.raises(BufferError, match="DLPack's device type 1 was given, where CUDA's, 2, was expected"):
        DeviceBuffer.from_dlpack(numpy.arange(3))
    producer = Producer(DeviceBuffer(size=6), (6,), device=(CUDA, 7))
    with pytest.raises(aquifer.Error, match="device 7"):
        DeviceBuffer.from_dlpack(producer)
    assert producer.asked == []


def test_what_has_no_tensor():
    with pytest.raises(TypeError, match="a bytes has no __dlpack__"):
        DeviceBuffer.from_dlpack(b"abc")

    class Odd(Producer):
        returned = None

        def __dlpack__(self, **arguments):
            return self.returned

    producer = Odd(DeviceBuffer(size=1), (1,))
    for producer.returned in (None, 3, api.PyCapsule_New(1, b"other", None)):
        with pytest.raises((ValueError, TypeError)):
            DeviceBuffer.from_dlpack(producer)

    class Raising(Producer):
        def __dlpack__(self, **arguments):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        DeviceBuffer.from_dlpack(Raising(DeviceBuffer(size=1), (1,)))


def test_a_capsule_is_taken_once():
    class Same(Producer):
        capsule = None

        def __dlpack__(self, **arguments):
            self.capsule = self.capsule or super().__dlpack__(**arguments)
            return self.capsule

    producer = Same(DeviceBuffer.to_device(b"abc"), (3,))
    view = DeviceBuffer.from_dlpack(producer)
    with pytest.raises(ValueError):
        DeviceBuffer.from_dlpack(producer)
    assert view.tobytes() == b"abc" and producer.ends == []


def test_a_tensor_ends_after_the_views_stream():
    stream = aquifer.Stream()
    source = DeviceBuffer.to_device(bytes(1 << 20))
    producer = Producer(source, (1 << 20,))
    view = DeviceBuffer.from_dlpack(producer, stream)
    target = DeviceBuffer(size=1 << 20, stream=stream)
    target.copy_from_device(view)
    aquifer.copy_device_to_ptr(view.ptr, target.ptr, 1 << 20, stream)
    del view
    assert len(producer.ends) == 1
    # Whoever gets the memory next may write at once.
    aquifer.copy_host_to_ptr(b"\1" * (1 << 20), source.ptr)
    assert target.tobytes() == bytes(1 << 20)


def test_a_tensor_ends_on_any_thread():
    producer = Producer(DeviceBuffer.to_device(b"abc"), (3,))
    kept = [DeviceBuffer.from_dlpack(producer)]
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()
    ((_, ident),) = producer.ends
    assert ident == thread.ident
