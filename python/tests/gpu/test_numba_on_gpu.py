"""Numba's arrays and kernels over the pool."""

import gc
import os

import aquifer
import numpy as np
import pytest

cuda = pytest.importorskip("numba.cuda")
cuda.set_memory_manager(aquifer.AquiferNumbaManager)
resource = aquifer.use("pool(cuda) | statistics")


def live() -> int:
    gc.collect()
    return resource.pool_statistics()["live_bytes"]


@cuda.jit
def add(out, a, b):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


def test_a_kernel_sees_arrays_of_the_pool():
    before = live()
    a = np.arange(100_000, dtype=np.float64)
    d_a, d_b, d_out = cuda.to_device(a), cuda.to_device(2 * a), cuda.device_array_like(a)
    assert live() - before >= 3 * a.nbytes
    add[(a.size + 255) // 256, 256](d_out, d_a, d_b)
    np.testing.assert_array_equal(d_out.copy_to_host(), 3 * a)
    del d_a, d_b, d_out
    assert live() == before


def test_a_view_keeps_its_array():
    before = live()
    view = cuda.to_device(np.arange(1000.0))[10:20]
    gc.collect()
    assert live() > before
    np.testing.assert_array_equal(view.copy_to_host(), np.arange(10.0, 20.0))
    del view
    assert live() == before


def test_streams_of_numba():
    a = np.arange(1 << 20, dtype=np.float32)
    streams = [cuda.stream() for _ in range(4)]
    outs = []
    for stream in streams:
        with cuda.defer_cleanup():
            d_a = cuda.to_device(a, stream=stream)
            d_out = cuda.device_array_like(a, stream=stream)
            add[4096, 256, stream](d_out, d_a, d_a)
            outs.append(d_out.copy_to_host(stream=stream))
            # Freed at once: what is handed out again comes after the kernel, which no stream tells of.
            del d_a, d_out
    for stream in streams:
        stream.synchronize()
    for out in outs:
        np.testing.assert_array_equal(out, 2 * a)


def test_memory_info():
    free, total = cuda.current_context().get_memory_info()
    assert 0 < free < total == aquifer.memory_info()[1]


def test_out_of_memory_is_numbas_error():
    with pytest.raises(cuda.cudadrv.driver.CudaAPIError) as raised:
        cuda.device_array(1 << 50, dtype=np.uint8)
    assert raised.value.code == 2
    assert "pool" in str(raised.value)


def test_a_device_buffer_is_an_array():
    buffer = aquifer.to_device(np.arange(16, dtype=np.uint8))
    array = cuda.as_cuda_array(buffer)
    np.testing.assert_array_equal(array.copy_to_host(), np.arange(16))
    stream = cuda.stream()
    other = aquifer.DeviceBuffer(size=16, stream=stream)
    other.copy_from_device(array)
    assert other.tobytes() == bytes(range(16))


def test_the_log_of_nbep_7(tmp_path):
    """NBEP 7's example: an allocation and its free, each a line."""
    aquifer.enable_logging(os.fspath(tmp_path / "numba.csv"))
    a = np.zeros(10)
    d_a = cuda.to_device(a)
    del d_a
    gc.collect()
    aquifer.disable_logging()
    rows = (tmp_path / "numba.dev0.csv").read_text().splitlines()
    print("\n".join(rows))
    assert rows[0] == "Thread,Time,Action,Pointer,Size,Stream"
    allocated, freed = (row.split(",") for row in rows[1:])
    assert (allocated[2], freed[2]) == ("allocate", "free")
    assert allocated[3] == freed[3] and int(allocated[4]) >= 80
