"""cuda.core's plug-in, as far as it goes without a GPU: its resource, with cuda.core's own buffers and streams."""

import gc
from collections.abc import Iterator

import aquifer
import pytest
from aquifer import _aquifer

core = pytest.importorskip("cuda.core", reason="needs cuda-core")

import aquifer.cuda_core  # noqa: E402
from aquifer.cuda_core import AquiferMemoryResource  # noqa: E402

LEGACY = getattr(core, "LEGACY_DEFAULT_STREAM", None)
PER_THREAD = getattr(core, "PER_THREAD_DEFAULT_STREAM", None)
STREAMS = [None] if LEGACY is None else [None, LEGACY]


class HostOnly(AquiferMemoryResource):
    """Of memory of the host's alone, cuda.core asks the driver nothing. That of the simulated device is such."""

    def __init__(self, device_id: int = 0, mr: aquifer.mr.DeviceMemoryResource | None = None) -> None:
        super().__init__(device_id, mr)
        self.freed: list[tuple[int, int]] = []

    is_device_accessible = False

    def deallocate(self, ptr: object, size: int, *, stream: object) -> None:
        super().deallocate(ptr, size, stream=stream)
        self.freed.append((int(ptr), size))


class TheirStream:
    """A stream that has the protocol of streams: here the default one."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 1)


@pytest.fixture
def resource() -> Iterator[aquifer.mr.DeviceMemoryResource]:
    if not aquifer.is_simulated():
        pytest.skip("is of the simulated device, and there is a GPU")
    before = aquifer.mr.get_current_device_resource()
    yield aquifer.use("pool(cuda, max=64MiB)")
    aquifer.mr.set_current_device_resource(before)


def live(resource: aquifer.mr.DeviceMemoryResource) -> tuple[int, int]:
    gc.collect()
    statistics = resource.pool_statistics()
    return statistics["live_blocks"], statistics["live_bytes"]


def test_it_is_a_resource_of_cuda_cores():
    made = AquiferMemoryResource(0)
    assert isinstance(made, core.MemoryResource)
    assert made.device_id == 0
    assert (made.is_device_accessible, made.is_host_accessible, made.is_managed) == (True, False, False)
    assert AquiferMemoryResource().device_id == 0


@pytest.mark.parametrize("stream", STREAMS)
def test_a_buffer_has_memory_until_its_end(resource, stream):
    made = HostOnly()
    buffer = made.allocate(1 << 20, stream=stream)
    assert type(buffer) is core.Buffer
    assert buffer.size == 1 << 20
    assert buffer.memory_resource is made
    address = int(buffer.handle)
    assert address % 256 == 0 and address > 0
    assert live(resource) == (1, 1 << 20)
    aquifer.copy_host_to_ptr(b"w" * 4096, address)
    read = bytearray(4096)
    aquifer.copy_ptr_to_host(address, read)
    assert read == b"w" * 4096
    del buffer
    assert live(resource) == (0, 0)
    assert made.freed == [(address, 1 << 20)]


def test_close_frees_once(resource):
    made = HostOnly()
    buffer = made.allocate(4096, stream=None)
    address = int(buffer.handle)
    buffer.close()
    assert live(resource) == (0, 0)
    buffer.close()
    del buffer
    gc.collect()
    assert made.freed == [(address, 4096)]


def test_any_stream_of_the_protocol_frees(resource):
    address = resource.allocate(1000, TheirStream())
    assert live(resource) == (1, 1024)
    AquiferMemoryResource().deallocate(address, 1000, stream=TheirStream())
    assert live(resource) == (0, 0)


def test_no_bytes(resource):
    made = HostOnly()
    buffers = [made.allocate(0, stream=None) for _ in range(2)]
    assert [buffer.size for buffer in buffers] == [0, 0]
    for buffer in buffers:
        buffer.close()
    assert live(resource) == (0, 0)


def test_no_memory_is_a_memory_error(resource):
    made = HostOnly()
    with pytest.raises(MemoryError, match="maximum is 67108864 bytes"):
        made.allocate(1 << 30, stream=None)
    assert live(resource) == (0, 0)
    assert made.freed == []


@pytest.mark.parametrize("kind", [HostOnly, AquiferMemoryResource])
def test_a_stream_that_is_not_cuda_cores_is_refused_and_nothing_is_lost(resource, kind):
    made = kind()
    for stream, name in [(aquifer.Stream(), "Stream"), (TheirStream(), "TheirStream"), (7, "int")]:
        with pytest.raises(TypeError, match=f"stream of cuda.core was expected, and a {name} was given"):
            made.allocate(4096, stream=stream)
    assert live(resource) == (0, 0)


@pytest.mark.skipif(PER_THREAD is None, reason="needs a cuda-core with PER_THREAD_DEFAULT_STREAM")
def test_the_per_thread_default_stream(resource):
    made = HostOnly()
    buffer = made.allocate(4096, stream=PER_THREAD)
    assert live(resource)[0] == 1
    del buffer
    assert live(resource) == (0, 0)
    address = resource.allocate(4096)
    assert live(resource)[0] == 1
    # As `close(stream=PER_THREAD_DEFAULT_STREAM)` calls it.
    made.deallocate(address, 4096, stream=PER_THREAD)
    assert live(resource) == (0, 0)


def test_stream_and_size_are_as_cuda_core_calls(resource):
    made = AquiferMemoryResource()
    with pytest.raises(TypeError):
        made.allocate(4096)
    with pytest.raises(TypeError):
        made.allocate(4096, None)
    with pytest.raises(TypeError):
        made.deallocate(0, 0)


def test_the_resource_is_that_of_the_allocation(resource):
    made = HostOnly()
    first = made.allocate(4096, stream=None)
    other = aquifer.use("pool(cuda)")
    second = made.allocate(4096, stream=None)
    assert (live(resource)[0], live(other)[0]) == (1, 1)
    del first
    assert (live(resource)[0], live(other)[0]) == (0, 1)
    del second
    assert live(other)[0] == 0


def test_a_resource_of_its_own(resource):
    own = aquifer.mr.PoolMemoryResource(aquifer.mr.CudaMemoryResource())
    made = HostOnly(0, own)
    buffer = made.allocate(4096, stream=None)
    assert (live(resource)[0], live(own)[0]) == (0, 1)
    del buffer
    assert live(own)[0] == 0


def test_a_limit_of_its_own(resource):
    limited = aquifer.mr.LimitingResourceAdaptor(aquifer.mr.CudaMemoryResource(), 1000)
    with pytest.raises(MemoryError, match="limit"):
        HostOnly(0, limited).allocate(2000, stream=None)
    assert limited.get_allocated_bytes() == 0


def test_a_resource_of_another_device_is_refused(resource):
    own = aquifer.mr.PoolMemoryResource(aquifer.mr.CudaMemoryResource())
    with pytest.raises(ValueError, match="a resource of device 0 was given for device 1"):
        AquiferMemoryResource(1, own)


def test_the_buffer_keeps_the_resource(resource):
    own = aquifer.mr.PoolMemoryResource(aquifer.mr.CudaMemoryResource())
    made = HostOnly(0, own)
    freed = made.freed
    buffer = made.allocate(4096, stream=None)
    aquifer.copy_host_to_ptr(b"v" * 4096, int(buffer.handle))
    del made, own
    gc.collect()
    read = bytearray(4096)
    aquifer.copy_ptr_to_host(int(buffer.handle), read)
    assert read == b"v" * 4096
    del buffer
    gc.collect()
    assert len(freed) == 1


def test_the_threads_device_is_as_before(resource):
    made = HostOnly()
    made.allocate(4096, stream=None).close()
    with pytest.raises(MemoryError):
        made.allocate(1 << 40, stream=None)
    assert _aquifer._choose_device(None) is None


def test_threads_allocate_and_free(resource, in_threads):
    made = HostOnly()
    handed: list[object] = []

    def work() -> None:
        for round in range(200):
            buffers = [made.allocate(256 << (round + n) % 6, stream=None) for n in range(4)]
            assert len({int(buffer.handle) for buffer in buffers}) == 4
            # Another thread's end may free it.
            handed.append(buffers.pop())
            if len(handed) > 8:
                handed.pop(0)

    in_threads(*[work] * 4)
    handed.clear()
    assert live(resource) == (0, 0)
