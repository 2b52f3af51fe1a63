"""Several devices: each has its pool."""

import gc

import aquifer
import numpy as np
import pytest

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(aquifer.device_count() < 2, reason="needs two GPUs")
if aquifer.device_count() > 1:
    aquifer.set_allocators("cupy", "torch")


def live(device: int) -> int:
    gc.collect()
    return aquifer.mr.get_per_device_resource(device).pool_statistics()["live_bytes"]


def test_cupy_allocates_on_its_current_device():
    before = [live(0), live(1)]
    with cupy.cuda.Device(1):
        a = cupy.arange(1 << 20, dtype=cupy.int64)
        assert aquifer.current_device() == 1
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            b = a * 2
        stream.synchronize()
        assert int(b[-1]) == 2 * ((1 << 20) - 1)
    assert aquifer.current_device() == 0
    assert live(0) == before[0] and live(1) >= before[1] + 2 * a.nbytes
    del a, b
    assert live(1) == before[1]


def test_pytorch_allocates_on_the_tensors_device():
    before = live(1)
    a = torch.full((1 << 20,), 3.0, device="cuda:1")
    b = a.to("cuda:0")
    assert b.sum().item() == 3 << 20
    assert live(1) > before
    del a, b
    torch.cuda.synchronize(1)
    assert live(1) == before


def test_a_resource_for_each_device():
    aquifer.reinitialize(pool_allocator=True, devices=[0, 1])
    assert [aquifer.mr.get_per_device_resource(device).device for device in (0, 1)] == [0, 1]
    with cupy.cuda.Device(1):
        buffer = aquifer.to_device(b"on the second")
        assert buffer.device == 1 and buffer.tobytes() == b"on the second"
        stream = cupy.cuda.Stream(non_blocking=True)
        address = aquifer.mr.get_current_device_resource().allocate(1000, stream)
        aquifer.mr.get_current_device_resource().deallocate(address, 1000, stream)
    with pytest.raises(ValueError, match="device 1"):
        aquifer.mr.set_per_device_resource(0, aquifer.mr.get_per_device_resource(1))
    with pytest.raises(ValueError):
        aquifer.DeviceBuffer(size=10, mr=aquifer.mr.get_per_device_resource(1))


def test_freed_from_the_other_device():
    with cupy.cuda.Device(1):
        a = cupy.ones(1000)
    assert aquifer.current_device() == 0
    del a
    gc.collect()
    np.testing.assert_array_equal(cupy.ones(10).get(), np.ones(10))
