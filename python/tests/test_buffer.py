"""Device memory as an object."""

from __future__ import annotations

import array
import copy
import ctypes
import gc
import pickle
import sys
import weakref

import aquifer
import numpy
import pytest
from aquifer import DeviceBuffer, mr


class Array:
    """An array on a device, as another library's."""

    def __init__(self, **interface):
        self.__cuda_array_interface__ = interface


def array_of(buffer, **interface):
    given = {"data": (buffer.ptr, False), "shape": (buffer.size,), "typestr": "|u1", "version": 3}
    return Array(**{**given, **interface})


def test_a_size():
    buffer = DeviceBuffer(size=100)
    assert (buffer.size, buffer.nbytes, len(buffer), buffer.capacity()) == (100, 100, 100, 100)
    assert buffer.ptr > 0 and buffer.ptr % 256 == 0
    assert buffer.device == 0
    assert buffer.stream == aquifer.default_stream()
    assert buffer.mr is mr.get_current_device_resource()


def test_sizeof_is_that_of_the_device():
    assert DeviceBuffer(size=1 << 20).__sizeof__() == 1 << 20
    assert sys.getsizeof(DeviceBuffer(size=1 << 20)) >= 1 << 20


@pytest.mark.parametrize(
    "empty", [lambda: DeviceBuffer(), lambda: DeviceBuffer(size=0), lambda: DeviceBuffer.to_device(b"")]
)
def test_an_empty_one(empty):
    buffer = empty()
    assert (buffer.ptr, buffer.size, len(buffer), buffer.capacity(), buffer.tobytes()) == (0, 0, 0, 0, b"")
    assert not buffer
    assert buffer.copy_to_host().shape == (0,)
    assert buffer.copy().size == 0
    assert buffer.__cuda_array_interface__["data"] == (0, False)
    buffer.copy_from_host(b"")
    buffer.copy_from_device(DeviceBuffer())


def test_repr():
    buffer = DeviceBuffer(size=3 << 19)
    assert repr(buffer) == f"<aquifer.DeviceBuffer of 1.5 MiB at {buffer.ptr:#x}, device 0>"
    assert repr(DeviceBuffer()) == "<aquifer.DeviceBuffer of 0 B at 0x0, device 0>"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"size": -1}, OverflowError, "negative"),
        ({"size": 1 << 64}, OverflowError, "too big"),
        ({"size": 1.5}, TypeError, "float"),
        ({"size": "1"}, TypeError, "str"),
        ({"ptr": -1}, OverflowError, "negative"),
        ({"stream": 3}, TypeError, "a stream was expected, and a int was given"),
        ({"mr": "cuda"}, TypeError, "DeviceMemoryResource"),
        ({"nbytes": 3}, TypeError, "nbytes"),
    ],
)
def test_wrong_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        DeviceBuffer(**arguments)


def test_all_arguments_have_names():
    with pytest.raises(TypeError, match="positional"):
        DeviceBuffer(10)


def test_no_memory():
    with pytest.raises(MemoryError) as raised:
        DeviceBuffer(size=1 << 38)
    assert type(raised.value) is aquifer.OutOfMemoryError
    assert "274877906944 bytes" in str(raised.value)
    # The next one is as if nothing was.
    assert DeviceBuffer.to_device(b"abc").tobytes() == b"abc"


def test_a_copy_of_device_memory():
    source = DeviceBuffer.to_device(b"some bytes")
    assert DeviceBuffer(ptr=source.ptr + 5, size=5).tobytes() == b"bytes"
    assert DeviceBuffer(ptr=source.ptr).size == 0


@pytest.mark.parametrize(
    "host",
    [
        b"abcdef",
        bytearray(b"abcdef"),
        memoryview(b"_abcdef")[1:],
        array.array("B", b"abcdef"),
        numpy.frombuffer(b"abcdef", "u1"),
        (ctypes.c_uint8 * 6)(*b"abcdef"),
    ],
)
def test_to_device(host):
    buffer = DeviceBuffer.to_device(host)
    assert (buffer.size, buffer.tobytes(), bytes(buffer)) == (6, b"abcdef", b"abcdef")


def test_to_device_of_other_elements_and_dimensions():
    numbers = numpy.arange(12, dtype="f8").reshape(3, 4)
    buffer = aquifer.to_device(numbers)
    assert buffer.size == 96
    assert (numpy.frombuffer(buffer.tobytes()).reshape(3, 4) == numbers).all()
    for odd in (numbers[::2], numpy.asfortranarray(numbers), numpy.array([None, "x"])):
        with pytest.raises(ValueError, match="contiguous|references"):
            aquifer.to_device(odd)


@pytest.mark.parametrize(
    "host",
    [
        numpy.ones(2, "u2"),
        numpy.ones((2, 2), "u1"),
        numpy.ones(4, "u1")[::2],
        numpy.ones(2, "i1"),
        numpy.ones(2, "?"),
        numpy.array([None]),
        array.array("d", [1.0]),
        memoryview(b"abcd").cast("B", (2, 2)),
    ],
)
def test_the_constructor_of_rmm_takes_bytes_alone(host):
    with pytest.raises(ValueError, match="a one-dimensional array of bytes was expected|contiguous"):
        DeviceBuffer.to_device(host)


def test_the_constructor_of_rmm_takes_bytes_of_any_owner():
    for host in (numpy.empty(0, "u1"), b"", memoryview(b"abc")[1:], numpy.frombuffer(b"xabcx", "u1")[1:4]):
        assert DeviceBuffer.to_device(host).tobytes() == bytes(host)


def test_memory_by_its_address_on_the_host():
    host = numpy.frombuffer(b"some bytes", "u1")
    buffer = DeviceBuffer(ptr=host.ctypes.data, size=host.size)
    assert buffer.tobytes() == b"some bytes"
    assert DeviceBuffer(ptr=buffer.ptr, size=4).tobytes() == b"some"
    with aquifer.numpy_handler(smallest=1):
        locked = numpy.arange(10, dtype="u1")
    assert DeviceBuffer(ptr=locked.ctypes.data, size=10).tobytes() == bytes(range(10))
    assert DeviceBuffer(ptr=host.ctypes.data, size=0).size == 0


def test_to_device_with_all_arguments():
    stream, resource = aquifer.Stream(), mr.CudaMemoryResource()
    buffer = aquifer.to_device(b=b"abc", stream=stream, mr=resource)
    assert buffer.stream == stream
    assert buffer.mr is resource
    assert buffer.tobytes() == b"abc"


@pytest.mark.parametrize(
    ("host", "error", "text"),
    [
        (None, TypeError, "bytes-like"),
        ("abc", TypeError, "bytes-like"),
        ([1, 2], TypeError, "bytes-like"),
        (numpy.arange(10)[::2], ValueError, "contiguous"),
        (numpy.asfortranarray(numpy.ones((2, 3))), ValueError, "contiguous"),
    ],
)
def test_to_device_of_what_is_no_bytes(host, error, text):
    with pytest.raises(error, match=text):
        DeviceBuffer.to_device(host)


def test_a_copy_to_the_host():
    buffer = DeviceBuffer.to_device(b"hello")
    new = buffer.copy_to_host()
    assert (new.dtype, new.tobytes()) == (numpy.dtype("u1"), b"hello")
    own = bytearray(5)
    assert buffer.copy_to_host(own) is own
    assert own == b"hello"
    assert buffer.copy_to_host(ary=None, stream=aquifer.Stream()).tobytes() == b"hello"


def test_a_copy_to_more_than_enough():
    buffer = DeviceBuffer.to_device(b"hello")
    assert buffer.copy_to_host(bytearray(b"_" * 7)) == b"hello__"


def test_a_copy_to_other_elements():
    numbers = numpy.arange(6, dtype="i4")
    buffer = aquifer.to_device(numbers)
    assert (buffer.copy_to_host(numpy.empty((2, 3), "i4")).ravel() == numbers).all()


@pytest.mark.parametrize(
    ("host", "error", "text"),
    [
        (bytearray(4), ValueError, "5 bytes were to be copied to 4"),
        (b"12345", BufferError, "not writable"),
        ("12345", TypeError, "bytes-like"),
        (numpy.empty(10, "u1")[::2], ValueError, "contiguous"),
    ],
)
def test_a_copy_to_what_takes_none(host, error, text):
    with pytest.raises(error, match=text):
        DeviceBuffer.to_device(b"hello").copy_to_host(host)


def test_a_copy_from_the_host():
    buffer = DeviceBuffer.to_device(b"hello")
    assert buffer.copy_from_host(b"HE") is None
    assert buffer.tobytes() == b"HEllo"
    buffer.copy_from_host(ary=numpy.frombuffer(b"world", "u1"), stream=aquifer.Stream())
    assert buffer.tobytes() == b"world"
    with pytest.raises(ValueError, match="6 bytes were to be copied to 5"):
        buffer.copy_from_host(b"123456")
    with pytest.raises(TypeError, match="bytes-like"):
        buffer.copy_from_host("abc")
    assert buffer.tobytes() == b"world"


def test_a_copy_from_the_device():
    buffer = DeviceBuffer.to_device(b"hello")
    buffer.copy_from_device(DeviceBuffer.to_device(b"HE"))
    assert buffer.tobytes() == b"HEllo"
    # Bytes that are there already.
    buffer.copy_from_device(buffer)
    assert buffer.tobytes() == b"HEllo"


@pytest.mark.parametrize(
    "interface",
    [
        {},
        {"shape": (2, 3)},
        {"shape": (3,), "typestr": "<i2"},
        {"shape": (1, 6), "strides": (99, 1)},
        {"shape": (2, 3), "strides": (3, 1)},
        {"shape": (3,), "strides": (2,), "typestr": "<i2"},
        {"stream": None},
        {"stream": 1},
        {"stream": 2},
        {"version": 0},
    ],
)
def test_a_copy_from_an_array(interface):
    source = DeviceBuffer.to_device(b"abcdef")
    target = DeviceBuffer.to_device(b"123456789")
    target.copy_from_device(cuda_ary=array_of(source, **interface))
    assert target.tobytes() == b"abcdef789"


def test_a_copy_from_an_array_comes_after_its_stream():
    stream = aquifer.Stream()
    source = DeviceBuffer.to_device(b"abcdef", stream=stream)
    target = DeviceBuffer(size=6)
    target.copy_from_device(array_of(source, stream=stream.handle), stream=aquifer.Stream())
    assert target.tobytes() == b"abcdef"


@pytest.mark.parametrize(
    ("interface", "error", "text"),
    [
        ({"shape": (10,)}, ValueError, "10 bytes were to be copied to 9"),
        ({"shape": (3,), "strides": (2,)}, ValueError, "not contiguous"),
        ({"shape": (2, 3), "strides": (1, 2)}, ValueError, "not contiguous"),
        ({"typestr": "x"}, ValueError, "no size in bytes"),
        ({"shape": (1 << 62, 1 << 62)}, ValueError, "no size in bytes"),
        ({"shape": "x"}, TypeError, "str"),
        ({"data": None}, TypeError, "tuple"),
    ],
)
def test_a_copy_from_an_array_that_has_none(interface, error, text):
    source, target = DeviceBuffer.to_device(b"abcdef"), DeviceBuffer.to_device(b"123456789")
    with pytest.raises(error, match=text):
        target.copy_from_device(array_of(source, **interface))
    assert target.tobytes() == b"123456789"


def test_a_copy_from_what_is_no_array():
    buffer = DeviceBuffer(size=3)
    with pytest.raises(TypeError, match="a bytes has no __cuda_array_interface__"):
        buffer.copy_from_device(b"abc")
    with pytest.raises(TypeError, match="dict"):
        buffer.copy_from_device(type("Odd", (), {"__cuda_array_interface__": 3})())
    with pytest.raises(KeyError, match="data"):
        buffer.copy_from_device(Array(shape=(1,), typestr="|u1"))


def test_copies_are_others_memory():
    buffer = DeviceBuffer.to_device(b"hello", stream=aquifer.Stream(), mr=mr.CudaMemoryResource())
    for other in (buffer.copy(), copy.copy(buffer), copy.deepcopy(buffer)):
        assert other.ptr != buffer.ptr
        assert (other.tobytes(), other.stream, other.mr) == (b"hello", buffer.stream, buffer.mr)
        other.copy_from_host(b"HE")
    assert buffer.tobytes() == b"hello"


def test_pickles():
    buffer = DeviceBuffer.to_device(b"hello")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(buffer, protocol)).tobytes() == b"hello"
    nested = pickle.loads(pickle.dumps({"a": [buffer, DeviceBuffer()]}))
    assert [it.tobytes() for it in nested["a"]] == [b"hello", b""]


def test_another_process_gets_the_bytes(run_python):
    program = """
import multiprocessing, aquifer
with multiprocessing.get_context("spawn").Pool(1) as pool:
    print(pool.apply(bytes, (aquifer.to_device(b"abc"),)))
    print(pool.apply(aquifer.DeviceBuffer.to_device, (b"xyz",)).tobytes())
"""
    assert run_python(program).split() == ["b'abc'", "b'xyz'"]


def test_a_size_that_changes():
    buffer = DeviceBuffer.to_device(b"abcdef")
    address = buffer.ptr
    buffer.resize(3)
    assert (buffer.size, buffer.capacity(), buffer.ptr, buffer.tobytes()) == (3, 6, address, b"abc")
    buffer.resize(6)
    assert (buffer.size, buffer.ptr) == (6, address)
    buffer.copy_from_host(b"uvwxyz")
    buffer.resize(new_size=1000)
    assert (buffer.size, buffer.capacity()) == (1000, 1000)
    assert DeviceBuffer(ptr=buffer.ptr, size=6).tobytes() == b"uvwxyz"
    buffer.resize(0)
    assert (buffer.size, buffer.ptr, buffer.capacity(), buffer.tobytes()) == (0, 0, 1000, b"")


def test_room():
    buffer = DeviceBuffer.to_device(b"abc")
    buffer.reserve(100)
    assert (buffer.size, buffer.capacity(), buffer.tobytes()) == (3, 100, b"abc")
    address = buffer.ptr
    buffer.reserve(new_capacity=50)
    buffer.resize(100)
    assert (buffer.capacity(), buffer.ptr) == (100, address)


def test_a_size_that_no_memory_has():
    for allocate in (lambda size: DeviceBuffer(size=size), mr.get_current_device_resource().allocate):
        for size in (sys.maxsize, sys.maxsize - 1000, 1 << 62):
            with pytest.raises(MemoryError):
                allocate(size)


def test_a_size_that_cannot_be():
    buffer = DeviceBuffer.to_device(b"abc")
    for change in (buffer.resize, buffer.reserve):
        with pytest.raises(aquifer.OutOfMemoryError, match="274877906944 bytes"):
            change(1 << 38)
        with pytest.raises(OverflowError, match="negative"):
            change(-1)
    assert (buffer.size, buffer.capacity(), buffer.tobytes()) == (3, 3, b"abc")


def test_streams_of_later_calls():
    first, second, third = aquifer.Stream(), aquifer.Stream(), aquifer.Stream()
    buffer = DeviceBuffer.to_device(b"abc", stream=first)
    # Copies come after other streams. The memory stays the first one's.
    assert buffer.tobytes(stream=second) == b"abc"
    buffer.copy_from_host(b"xyz", second)
    assert buffer.copy_to_host(stream=second).tobytes() == b"xyz"
    assert buffer.stream == first
    buffer.reserve(10, second)
    assert buffer.stream == second
    buffer.resize(3, stream=third)
    assert buffer.stream == third
    buffer.resize(3)
    assert (buffer.stream, buffer.tobytes()) == (third, b"xyz")


def test_a_stream_that_is_none():
    """A variable that was meant to hold a stream."""
    buffer, host = DeviceBuffer.to_device(b"abc"), bytearray(3)
    resource = mr.get_current_device_resource()
    address = resource.allocate(1024)
    for call in (
        lambda: DeviceBuffer(size=10, stream=None),
        lambda: DeviceBuffer.to_device(b"abc", stream=None),
        lambda: DeviceBuffer.to_device(b"abc", None),
        lambda: buffer.copy_to_host(stream=None),
        lambda: buffer.copy_from_host(b"abc", stream=None),
        lambda: buffer.copy_from_device(buffer, stream=None),
        lambda: buffer.tobytes(stream=None),
        lambda: buffer.reserve(100, stream=None),
        lambda: buffer.resize(10, stream=None),
        lambda: aquifer.copy_ptr_to_host(buffer.ptr, host, stream=None),
        lambda: aquifer.copy_host_to_ptr(host, buffer.ptr, stream=None),
        lambda: aquifer.copy_device_to_ptr(buffer.ptr, buffer.ptr, 3, stream=None),
        lambda: resource.allocate(1024, stream=None),
        lambda: resource.deallocate(address, 1024, stream=None),
    ):
        with pytest.raises(TypeError, match="stream argument cannot be None .leave it out for the default stream"):
            call()
    resource.deallocate(address, 1024)
    assert (buffer.size, buffer.tobytes()) == (3, b"abc")


def test_pickles_out_of_band():
    for content in (b"", b"abc", bytes(range(256)) * 100):
        taken = []
        pickled = pickle.dumps(DeviceBuffer.to_device(content), protocol=5, buffer_callback=taken.append)
        (out,) = taken
        assert isinstance(out, pickle.PickleBuffer) and bytes(out) == content
        assert len(pickled) < 200
        assert pickle.loads(pickled, buffers=taken).tobytes() == content
        # As a transport hands them over.
        assert pickle.loads(pickled, buffers=[bytearray(content)]).tobytes() == content
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        buffer = DeviceBuffer.to_device(b"abc")
        assert pickle.loads(pickle.dumps(buffer, protocol=protocol)).tobytes() == b"abc"


def test_a_prefetch():
    for resource in (mr.CudaMemoryResource(), mr.ManagedMemoryResource(), mr.PoolMemoryResource(mr.ManagedMemoryResource())):
        buffer = DeviceBuffer.to_device(b"abc", mr=resource)
        assert buffer.prefetch() is None
        buffer.prefetch(-1)
        buffer.prefetch(device=0, stream=aquifer.Stream())
        assert buffer.tobytes() == b"abc"
        with pytest.raises(ValueError, match="memory of device 0 was to be prefetched to device 1"):
            buffer.prefetch(1)
    DeviceBuffer(size=0).prefetch()


def test_the_array_interface():
    for stream in (aquifer.Stream(), aquifer.default_stream()):
        buffer = DeviceBuffer(size=10, stream=stream)
        interface = {"data": (buffer.ptr, False), "shape": (10,), "strides": None, "typestr": "|u1", "version": 0}
        # A stream that is past its work needs no order, and RMM's interface has none.
        stream.synchronize()
        assert buffer.__cuda_array_interface__ == interface
        other = DeviceBuffer.to_device(b"0123456789", stream=aquifer.Stream())
        buffer.copy_from_device(other)
        # The simulated device works when it is asked, a little at a time.
        for _ in range(100):
            seen = buffer.__cuda_array_interface__
            assert seen == interface or seen == {**interface, "version": 3, "stream": stream.handle}


def test_the_array_interface_names_a_stream_with_work(run_python):
    program = '''
import aquifer
stream = aquifer.Stream()
behind = aquifer.DeviceBuffer.to_device(b"x" * 10, stream=aquifer.Stream())
named = 0
for _ in range(50):
    buffer = aquifer.DeviceBuffer(size=10, stream=stream)
    stream.wait(behind.stream)
    named += buffer.__cuda_array_interface__.get("stream") == stream.handle
print(named > 0)
'''
    assert run_python(program).strip() == "True"


def test_what_an_object_has():
    buffer = DeviceBuffer.to_device(b"abc")
    assert weakref.ref(buffer)() is buffer
    assert buffer == buffer and buffer != buffer.copy()
    assert hash(buffer) == hash(buffer)
    for name in ("ptr", "size", "nbytes", "mr", "device", "other"):
        with pytest.raises(AttributeError, match=name):
            setattr(buffer, name, 1)
    with pytest.raises(TypeError, match="base type"):
        type("Sub", (DeviceBuffer,), {})
    # It is not the host's memory.
    with pytest.raises(TypeError, match="bytes-like"):
        memoryview(buffer)


def test_memory_goes_back_to_where_it_came_from():
    first, second = mr.PoolMemoryResource(mr.CudaMemoryResource()), mr.PoolMemoryResource(mr.CudaMemoryResource())
    mr.set_current_device_resource(first)
    buffer = DeviceBuffer(size=1000)
    mr.set_current_device_resource(second)
    other = DeviceBuffer(size=1000)
    assert (buffer.mr, other.mr) == (first, second)
    assert first.pool_statistics()["live_blocks"] == second.pool_statistics()["live_blocks"] == 1
    del buffer
    assert (first.pool_statistics()["live_blocks"], second.pool_statistics()["live_blocks"]) == (0, 1)


def test_a_buffer_keeps_its_resource():
    resource = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    gone = weakref.ref(resource)
    buffer = DeviceBuffer.to_device(b"abc", mr=resource)
    del resource
    gc.collect()
    assert gone() is buffer.mr
    assert gone().allocation_counts.current_count == 1
    del buffer
    gc.collect()
    assert gone() is None


def test_copies_by_addresses():
    first, second = DeviceBuffer.to_device(b"abcdef"), DeviceBuffer.to_device(b"uvwxyz")
    host = bytearray(3)
    aquifer.copy_ptr_to_host(first.ptr + 1, host)
    assert host == b"bcd"
    aquifer.copy_host_to_ptr(b"BCD", first.ptr + 1)
    assert first.tobytes() == b"aBCDef"
    aquifer.copy_device_to_ptr(first.ptr, second.ptr + 2, 4)
    aquifer.default_stream().synchronize()
    assert second.tobytes() == b"uvaBCD"


def test_copies_by_addresses_with_names_and_a_stream():
    stream = aquifer.Stream()
    first, second = DeviceBuffer(size=3, stream=stream), DeviceBuffer(size=3, stream=stream)
    aquifer.copy_host_to_ptr(hb=b"abc", db=first.ptr, stream=stream)
    aquifer.copy_device_to_ptr(d_src=first.ptr, d_dst=second.ptr, count=3, stream=stream)
    host = numpy.zeros(3, "u1")
    aquifer.copy_ptr_to_host(db=second.ptr, hb=host, stream=stream)
    assert host.tobytes() == b"abc"


def test_copies_of_nothing():
    aquifer.copy_ptr_to_host(0, bytearray())
    aquifer.copy_host_to_ptr(b"", 0)
    aquifer.copy_device_to_ptr(0, 0, 0)


@pytest.mark.parametrize(
    ("copy", "error", "text"),
    [
        (lambda: aquifer.copy_ptr_to_host(0, b"abc"), BufferError, "not writable"),
        (lambda: aquifer.copy_ptr_to_host(0, None), TypeError, "bytes-like"),
        (lambda: aquifer.copy_ptr_to_host(-1, bytearray(1)), OverflowError, "negative"),
        (lambda: aquifer.copy_host_to_ptr("abc", 0), TypeError, "bytes-like"),
        (lambda: aquifer.copy_host_to_ptr(b"abc", "0"), TypeError, "str"),
        (lambda: aquifer.copy_device_to_ptr(0, 0, -1), OverflowError, "negative"),
    ],
)
def test_wrong_copies_by_addresses(copy, error, text):
    with pytest.raises(error, match=text):
        copy()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("aquifer.copy_ptr_to_host(0x1234, bytearray(4))", "not memory of the device"),
        ("aquifer.copy_host_to_ptr(b'abcd', 0x1234)", "not memory of the device"),
        ("aquifer.DeviceBuffer(ptr=buffer.ptr, size=1000)", "past the end of a block of 3 bytes"),
        ("aquifer.DeviceBuffer(size=8).tobytes()", "never written"),
    ],
)
def test_the_simulated_device_tells_of_wrong_memory(run_python, call, text):
    program = f"""
import aquifer
buffer = aquifer.to_device(b"abc")
try:
    {call}
except aquifer.Error as error:
    print(error)
# Once.
print(buffer.tobytes(), aquifer.DeviceBuffer.to_device(b"xyz").tobytes())
"""
    printed = run_python(program)
    assert text in printed and printed.endswith("b'abc' b'xyz'\n")


def test_page_locked_memory():
    from aquifer._aquifer import HostMemory

    memory = HostMemory(nbytes=1000)
    assert memory.size == 1000
    assert memory.ptr > 0 and memory.ptr % 256 == 0
    assert HostMemory(0).size == 0
    assert weakref.ref(memory)() is memory
    with pytest.raises(aquifer.OutOfMemoryError, match="1125899906842624 bytes"):
        HostMemory(1 << 50)
    with pytest.raises(OverflowError, match="negative"):
        HostMemory(-1)


def test_the_device():
    assert aquifer.device_count() == 1
    assert aquifer.current_device() == 0
    assert aquifer.is_simulated() is True
    assert aquifer.device_name() == aquifer.device_name(0) == "simulated device"
    free, total = aquifer.memory_info()
    assert 0 < free <= total == 4 << 30
    assert aquifer.memory_info(device=0)[1] == total
    for call in (aquifer.device_name, aquifer.memory_info, aquifer.default_stream):
        with pytest.raises(aquifer.Error, match="device 7 was asked for"):
            call(7)
        with pytest.raises(ValueError, match="-1 is no device's number"):
            call(-1)


def test_errors_are_the_languages():
    assert issubclass(aquifer.OutOfMemoryError, MemoryError)
    assert issubclass(aquifer.Error, RuntimeError)
    assert aquifer.RMMError is aquifer.Error
    assert aquifer.Error.__module__ == aquifer.OutOfMemoryError.__module__ == "aquifer"
    assert pickle.loads(pickle.dumps(aquifer.Error("text"))).args == ("text",)


def test_a_report_of_the_simulated_device_is_told_once():
    if not aquifer.is_simulated():
        pytest.skip("a GPU reads what was never written")
    with pytest.raises(aquifer.Error, match="never written|uninit|not written"):
        aquifer.DeviceBuffer(size=100).tobytes()
    assert aquifer.to_device(b"another").tobytes() == b"another"


def test_the_stream_is_set():
    first, second = aquifer.Stream(), aquifer.Stream()
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource())
    buffer = DeviceBuffer(size=1 << 20, stream=first, mr=pool)
    buffer.copy_from_host(bytes(1 << 20))
    address = buffer.ptr
    buffer.stream = second
    assert buffer.stream == second and buffer.ptr == address
    # The later stream comes after what wrote it: else the simulated device would tell of it.
    target = DeviceBuffer(size=1 << 20, stream=second)
    aquifer.copy_device_to_ptr(buffer.ptr, target.ptr, 1 << 20, second)
    assert target.tobytes() == bytes(1 << 20)
    del buffer
    # It was freed there.
    assert DeviceBuffer(size=1 << 20, stream=second, mr=pool).ptr == address


def test_the_stream_is_set_to_the_default_one_and_to_others():
    buffer = DeviceBuffer.to_device(b"abc", stream=aquifer.Stream())
    buffer.stream = None
    assert buffer.stream == aquifer.default_stream()

    class Theirs:
        ptr: int

    own, theirs = aquifer.Stream(), Theirs()
    theirs.ptr = own.handle
    buffer.stream = theirs
    assert buffer.stream == own and buffer.tobytes() == b"abc"
    with pytest.raises(TypeError, match="a stream was expected, and a int was given"):
        buffer.stream = 3
    with pytest.raises(AttributeError):
        del buffer.stream
    assert buffer.stream == own
