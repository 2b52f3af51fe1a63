"""Streams: this package's, and those of other libraries by their objects."""

from __future__ import annotations

import ctypes
import gc
import weakref

import aquifer
import pytest
from aquifer import DeviceBuffer, Stream, mr


class Object:
    """Another library's stream, with these attributes."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class WithMethod:
    """One with the protocol as it is."""

    def __init__(self, handle, version=0):
        self.pair = (version, handle)

    def __cuda_stream__(self):
        return self.pair


class WithProperty:
    """One with the protocol as it was at first."""

    def __init__(self, handle):
        self.pair = (0, handle)

    @property
    def __cuda_stream__(self):
        return self.pair


class IntLike:
    """As cuda.bindings' handles."""

    def __init__(self, number):
        self.number = number

    def __int__(self):
        return self.number


#: Another library's stream of a handle, in all shapes.
SHAPES = {
    "ptr": lambda handle: Object(ptr=handle),
    "cuda_stream": lambda handle: Object(cuda_stream=handle),
    "handle": lambda handle: Object(handle=handle),
    "handle.value": lambda handle: Object(handle=ctypes.c_void_p(handle)),
    "handle like a number": lambda handle: Object(handle=IntLike(handle)),
    "method": WithMethod,
    "property": WithProperty,
    "CuPy": lambda handle: Object(ptr=handle, device_id=0),
    "CuPy's default": lambda handle: Object(ptr=handle, device_id=-1),
    "PyTorch": lambda handle: Object(cuda_stream=handle, device_index=0, device=Object(type="cuda", index=0)),
}


def close_those_of_others():
    """A stream of another library is let go of when a later one is opened."""
    own = Stream()
    Stream(WithMethod(own.handle))


def test_a_stream():
    stream = Stream()
    assert stream.handle > 2
    assert stream.ptr == stream.handle
    assert stream.__cuda_stream__() == (0, stream.handle)
    assert stream.device == 0
    assert stream.is_default() is False
    assert stream.synchronize() is None
    assert repr(stream) == f"<aquifer.Stream own, device 0, handle {stream.handle:#x}>"
    assert Stream(None) != stream
    assert weakref.ref(stream)() is stream


def test_the_default_stream():
    stream = aquifer.default_stream()
    assert (stream.handle, stream.ptr, stream.__cuda_stream__()) == (1, 1, (0, 1))
    assert stream.is_default() is True
    assert stream == aquifer.default_stream(device=0) == aquifer.default_stream(None)
    assert repr(stream) == "<aquifer.Stream default, device 0, handle 0x1>"
    stream.synchronize()


def test_streams_are_equal_that_are_one():
    stream, other = Stream(), Stream()
    again = Stream(stream)
    assert again is not stream and again == stream and hash(again) == hash(stream)
    assert stream != other and not stream == other
    assert stream != stream.handle and stream != "x" and stream is not None
    assert len({stream, again, other, aquifer.default_stream(), aquifer.default_stream()}) == 3


def test_wrong_arguments():
    for wrong in (1, "x", b"x", object(), 1.5, [], mr.CudaMemoryResource()):
        with pytest.raises(
            TypeError, match=rf"a stream was expected, and a {type(wrong).__name__} was given .give an aquifer.Stream"
        ):
            Stream(wrong)
    with pytest.raises(TypeError, match="positional"):
        Stream(None, None, None)
    with pytest.raises(TypeError, match="base type"):
        type("Sub", (Stream,), {})


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stream_of_another_library(shape):
    own = Stream()
    stream = Stream(SHAPES[shape](own.handle))
    assert stream == own and hash(stream) == hash(own)
    assert stream.handle == own.handle and stream.device == 0
    assert repr(stream) == f"<aquifer.Stream of another library, device 0, handle {own.handle:#x}>"
    stream.synchronize()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("handle", [0, 1])
def test_the_default_stream_of_another_library(shape, handle):
    assert Stream(SHAPES[shape](handle)) == aquifer.default_stream()


def test_the_default_stream_of_ctypes():
    assert Stream(Object(handle=ctypes.c_void_p(None))).is_default()


@pytest.mark.parametrize("shape", SHAPES)
def test_calls_take_a_stream_of_another_library(shape):
    own = Stream()
    theirs = SHAPES[shape](own.handle)
    resource = mr.get_current_device_resource()
    buffer = DeviceBuffer.to_device(b"abc", stream=theirs)
    assert buffer.stream == own
    assert DeviceBuffer(size=3, stream=theirs).stream == own
    assert buffer.tobytes(theirs) == b"abc"
    assert buffer.copy_to_host(stream=theirs).tobytes() == b"abc"
    buffer.copy_from_host(b"xyz", stream=theirs)
    buffer.reserve(10, theirs)
    buffer.resize(2, theirs)
    host = bytearray(2)
    aquifer.copy_ptr_to_host(buffer.ptr, host, theirs)
    assert host == b"xy"
    address = resource.allocate(10, theirs)
    resource.deallocate(address, 10, theirs)
    own.wait(theirs)
    aquifer.default_stream().wait(other=theirs)


@pytest.mark.parametrize("version", [1, 7, "x"])
def test_a_protocol_of_another_version(version):
    with pytest.raises(NotImplementedError, match=f"protocol of version: '{version}' .it knows 0"):
        Stream(WithMethod(Stream().handle, version=version))


def test_flags():
    flags = aquifer.CudaStreamFlags
    made = [Stream(), Stream(flags=flags.SYNC_DEFAULT), Stream(flags=flags.NON_BLOCKING), Stream(None, 1)]
    assert len(set(made)) == 4
    assert all(repr(stream).startswith("<aquifer.Stream own") for stream in made)
    for flag in flags:
        with pytest.raises(ValueError, match="flags may only be specified when obj is None"):
            Stream(made[0], flags=flag)
    with pytest.raises(ValueError, match="7 is no flag of a stream"):
        Stream(flags=7)
    with pytest.raises(TypeError, match="str"):
        Stream(flags="NON_BLOCKING")


@pytest.mark.parametrize("flags", [{}, *({"flags": flag} for flag in aquifer.CudaStreamFlags)])
def test_a_pool_of_streams(flags):
    pool = aquifer.CudaStreamPool(pool_size=10, **flags)
    assert pool.get_pool_size() == 10
    streams = [pool.get_stream() for _ in range(10)]
    assert len({*streams, aquifer.default_stream()}) == 11
    assert [pool.get_stream(number) for number in range(20)] == streams * 2
    # Those by a number have taken no turn.
    assert [pool.get_stream() for _ in range(3)] == streams[:3]
    assert DeviceBuffer.to_device(b"abc", stream=pool.get_stream()).tobytes() == b"abc"
    assert aquifer.CudaStreamPool(**flags).get_pool_size() == 16


def test_a_pool_of_streams_that_cannot_be():
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"a pool of {size} streams was asked"):
            aquifer.CudaStreamPool(size)
    with pytest.raises(TypeError, match="float"):
        aquifer.CudaStreamPool(1.5)
    with pytest.raises(ValueError, match="7 is no flag"):
        aquifer.CudaStreamPool(1, 7)
    with pytest.raises(ValueError, match="no stream of the number -1"):
        aquifer.CudaStreamPool(1).get_stream(-1)


def test_a_pool_of_streams_on_threads(in_threads):
    pool = aquifer.CudaStreamPool(4)
    taken = in_threads(*[lambda: [pool.get_stream() for _ in range(100)]] * 4)
    counts = [sum(streams.count(stream) for streams in taken) for stream in (pool.get_stream(n) for n in range(4))]
    assert counts == [100] * 4


def test_the_per_thread_stream_is_refused():
    for make in SHAPES.values():
        with pytest.raises(ValueError, match="the per-thread default stream is another one on each thread"):
            Stream(make(2))


def test_a_device_that_is_not_there():
    with pytest.raises(aquifer.Error, match="device 7 was asked for"):
        Stream(Object(ptr=Stream().handle, device_id=7))


def test_a_handle_of_no_stream():
    with pytest.raises(aquifer.Error, match="taking over a stream of simulated device 0 by its handle 0xdead"):
        Stream(Object(ptr=0xDEAD))


@pytest.mark.parametrize(
    ("theirs", "error"),
    [
        (Object(ptr="x"), AttributeError),
        (Object(ptr=-1), OverflowError),
        (Object(ptr=1 << 64), OverflowError),
        (Object(handle=ctypes.c_char_p(b"x")), TypeError),
        (Object(__cuda_stream__=(0,)), ValueError),
        (Object(__cuda_stream__=3), TypeError),
        (Object(__cuda_stream__=lambda: (0, "x")), TypeError),
    ],
)
def test_an_attribute_of_no_stream(theirs, error):
    with pytest.raises(error):
        Stream(theirs)


def test_a_protocol_that_raises():
    def protocol():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Stream(Object(__cuda_stream__=protocol))


def test_an_object_is_kept_and_then_let_go():
    own = Stream()
    theirs = WithMethod(own.handle)
    gone = weakref.ref(theirs)
    buffer = DeviceBuffer.to_device(b"abc", stream=theirs)
    del theirs
    gc.collect()
    close_those_of_others()
    # The buffer is freed in its order.
    assert gone() is not None
    del buffer
    close_those_of_others()
    assert gone() is None


def test_an_object_is_kept_by_a_stream_of_it():
    own = Stream()
    theirs = WithMethod(own.handle)
    gone = weakref.ref(theirs)
    stream = Stream(theirs)
    del theirs
    close_those_of_others()
    assert gone() is not None
    again = Stream(stream)
    del stream
    close_those_of_others()
    assert gone() is not None and again == own
    del again
    close_those_of_others()
    assert gone() is None


def test_an_object_that_others_have_stays_open():
    own = Stream()
    theirs = WithMethod(own.handle)
    gone = weakref.ref(theirs)
    mr.get_current_device_resource().allocate(10, theirs)
    for _ in range(3):
        close_those_of_others()
    assert gone() is theirs
    # A program may change the object, which is known by now.
    assert Stream(theirs) == own


def test_an_objects_end_may_make_streams():
    own = Stream()
    made = []

    class Theirs(WithMethod):
        def __del__(self):
            made.append(Stream(WithMethod(own.handle)))

    Stream(Theirs(own.handle))
    close_those_of_others()
    assert made == [own]


def test_many_objects_of_one_stream():
    own = Stream()
    gone = []
    for number in range(200):
        theirs = WithMethod(own.handle)
        gone.append(weakref.ref(theirs))
        assert DeviceBuffer.to_device(b"%d" % number, stream=theirs).tobytes() == b"%d" % number
        del theirs
    close_those_of_others()
    assert sum(it() is not None for it in gone) == 0


def pytorchs(handle):
    """As `torch.cuda.current_stream()`, which is a new object at each call and owns no stream."""
    return Object(cuda_stream=handle, device_index=0)


def test_new_objects_of_pytorchs_for_one_stream():
    own = Stream()
    kept, gone = [], []
    for number in range(200):
        theirs = pytorchs(own.handle)
        gone.append(weakref.ref(theirs))
        kept.append(DeviceBuffer.to_device(b"%d" % number, stream=theirs))
        del theirs
    # The first one serves for all.
    assert [it() is not None for it in gone] == [True] + [False] * 199
    assert all(buffer.stream == own for buffer in kept)
    assert kept[7].tobytes() == b"7"
    kept.clear()
    close_those_of_others()
    assert gone[0]() is None
    assert Stream(pytorchs(own.handle)) == own


def test_an_object_that_may_own_its_stream_is_kept_beside_pytorchs():
    own = Stream()
    first = DeviceBuffer(size=10, stream=pytorchs(own.handle))
    owner = WithMethod(own.handle)
    gone = weakref.ref(owner)
    second = DeviceBuffer(size=10, stream=owner)
    third = DeviceBuffer(size=10, stream=pytorchs(own.handle))
    del owner
    close_those_of_others()
    assert gone() is not None
    del second
    close_those_of_others()
    assert gone() is None and first.stream == third.stream == own


def test_objects_of_pytorchs_for_several_streams():
    streams = [Stream() for _ in range(5)]
    for _ in range(3):
        for stream in streams:
            assert DeviceBuffer.to_device(b"abc", stream=pytorchs(stream.handle)).stream == stream


def test_a_stream_ends_before_its_buffers():
    stream = Stream()
    handle = stream.handle
    buffer = DeviceBuffer.to_device(b"abc", stream=stream)
    del stream
    gc.collect()
    assert buffer.stream.handle == handle
    assert buffer.tobytes() == b"abc"


def test_waits():
    first, second = Stream(), Stream()
    buffer = DeviceBuffer.to_device(b"abc", stream=first)
    assert second.wait(first) is None
    other = DeviceBuffer(size=3, stream=second)
    aquifer.copy_device_to_ptr(buffer.ptr, other.ptr, 3, second)
    assert other.tobytes() == b"abc"
    first.wait(None)
    with pytest.raises(TypeError, match="a stream was expected"):
        first.wait(3)
    first.wait(second)
