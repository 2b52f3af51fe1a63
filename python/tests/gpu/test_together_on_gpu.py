"""All of them in one process, on one pool."""

import gc

import aquifer
import numpy as np
import pytest

cuda = pytest.importorskip("numba.cuda")
cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")
core = pytest.importorskip("cuda.core")
import aquifer.cuda_core  # noqa: E402

if not aquifer.is_simulated():
    aquifer.set_allocators()
resource = aquifer.use("pool(cuda, max=80%) | statistics")


@cuda.jit
def add_one(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] += 1


def counters() -> aquifer.statistics.Statistics:
    gc.collect()
    return aquifer.statistics.Statistics(*resource._counters())


def test_statistics_add_up():
    # What each library takes for itself, at its first use.
    cupy.ones(10).sum(), torch.ones(10, device="cuda").sum(), cuda.to_device(np.ones(10))
    gc.collect()
    before = counters()
    megabyte = 1 << 20
    ours = aquifer.DeviceBuffer(size=megabyte)
    numbas = cuda.device_array(megabyte, dtype=np.uint8)
    cupys = cupy.empty(megabyte, dtype=cupy.uint8)
    torchs = torch.empty(megabyte, dtype=torch.uint8, device="cuda")
    device = core.Device(0)
    device.set_current()
    memory = aquifer.cuda_core.AquiferMemoryResource(0)
    cores = memory.allocate(megabyte, stream=device.create_stream())
    now = counters()
    assert now.current_bytes - before.current_bytes == 5 * megabyte
    assert now.current_count - before.current_count == 5
    addresses = [ours.ptr, numbas.device_ctypes_pointer.value, cupys.data.ptr, torchs.data_ptr(), int(cores.handle)]
    chunks = aquifer.memory_map().upstream_blocks
    for address in addresses:
        assert any(start <= address < start + bytes for start, bytes in chunks), "all of one pool"
    del ours, numbas, cupys, torchs
    cores.close()
    assert counters().current_bytes == before.current_bytes
    assert resource.pool_statistics()["live_bytes"] >= 0


def test_one_array_goes_through_all():
    with aquifer.numpy_handler():
        host = np.arange(1 << 20, dtype=np.float32)
    numbas = cuda.to_device(host)
    add_one[(host.size + 255) // 256, 256](numbas)
    cupys = cupy.asarray(numbas) * 2
    torchs = torch.from_dlpack(cupys) + 1
    back = cuda.as_cuda_array(torchs)
    add_one[(host.size + 255) // 256, 256](back)
    np.testing.assert_array_equal(torchs.cpu().numpy(), (np.arange(1 << 20, dtype=np.float32) + 1) * 2 + 2)


def test_two_libraries_take_60_percent_in_turn():
    """What fails where each library has a pool of its own: see `sixty_percent.py`."""
    total = aquifer.memory_info()[1]
    part = total * 6 // 10
    for _ in range(3):
        a = torch.empty(part, dtype=torch.uint8, device="cuda")
        a[-1] = 1
        del a
        b = cupy.empty(part, dtype=cupy.uint8)
        b[-1] = 1
        del b
        c = cuda.device_array(part, dtype=np.uint8)
        del c
        gc.collect()


def test_objects_outlive_the_resource():
    kept = [cupy.full(1000, 7), torch.full((1000,), 7, device="cuda"), cuda.to_device(np.full(1000, 7))]
    aquifer.use("pool(cuda) | statistics")
    gc.collect()
    assert int(kept[0].sum()) == int(kept[1].sum()) == int(kept[2].copy_to_host().sum()) == 7000
    del kept
    gc.collect()
    aquifer.mr.set_current_device_resource(resource)
