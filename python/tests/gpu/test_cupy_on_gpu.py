"""CuPy's arrays over the pool."""

import gc

import aquifer
import numpy as np
import pytest

cupy = pytest.importorskip("cupy")
aquifer.set_allocators("cupy")
resource = aquifer.use("pool(cuda) | statistics")


def live() -> int:
    gc.collect()
    return resource.pool_statistics()["live_bytes"]


def test_arrays_and_kernels():
    before = live()
    a = cupy.arange(1_000_000, dtype=cupy.float64)
    assert live() - before >= a.nbytes
    assert float((a * 2).sum()) == 999_999 * 1_000_000
    m = cupy.random.default_rng(1).random((500, 500))
    np.testing.assert_allclose((m @ m).get(), m.get() @ m.get(), rtol=1e-6)
    np.testing.assert_allclose(cupy.linalg.svd(m)[1].get(), np.linalg.svd(m.get())[1], rtol=1e-6)
    np.testing.assert_allclose(cupy.fft.fft(a[:1000]).get(), np.fft.fft(np.arange(1000.0)), atol=1e-6)
    assert (cupy.sort(a[::-1])[:5].get() == np.arange(5)).all()


def test_all_goes_back():
    before = live()
    a = cupy.zeros(10_000_000, dtype=cupy.uint8)
    assert live() == before + 10_000_128 or live() > before
    del a
    assert live() == before


def test_streams_that_are_dropped():
    results = []
    for round in range(300):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            a = cupy.full(20_000, round, dtype=cupy.int32)
            results.append((a + 1).sum())
        del stream, a
    for round, result in enumerate(results):
        assert int(result) == 20_000 * (round + 1)


def test_memory_freed_on_a_stream_is_ordered():
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    spin = cupy.RawKernel(
        r"""extern "C" __global__ void spin(long long ticks, int* out, int n, int value) {
            long long start = clock64();
            while (clock64() - start < ticks) {}
            for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = value;
        }""",
        "spin",
    )
    for round in range(20):
        with first:
            a = cupy.empty(1 << 16, dtype=cupy.int32)
            spin((1,), (256,), (3_000_000, a, np.int32(a.size), np.int32(1)))
            del a
        with second:
            b = cupy.empty(1 << 16, dtype=cupy.int32)
            spin((1,), (256,), (0, b, np.int32(b.size), np.int32(2)))
            total = b.sum()
        assert int(total) == 2 << 16, round


def test_out_of_memory():
    with pytest.raises(MemoryError, match="pool"):
        cupy.empty(1 << 50, dtype=cupy.uint8)
    assert float(cupy.ones(10).sum()) == 10


def test_pinned_memory():
    pinned = cupy.cuda.alloc_pinned_memory(1 << 20)
    host = np.frombuffer(pinned, dtype=np.float32, count=1 << 18)
    host[...] = 3
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        a = cupy.empty(1 << 18, dtype=cupy.float32)
        a.set(host)
        out = cupy.asnumpy(a * 2)
    stream.synchronize()
    assert (out == 6).all()
    attributes = cupy.cuda.runtime.pointerGetAttributes(pinned.ptr)
    assert attributes.type == 1, "page-locked host memory"


def test_dlpack_and_the_array_interface():
    a = cupy.arange(100, dtype=cupy.uint8)
    buffer = aquifer.DeviceBuffer.from_dlpack(a)
    assert buffer.ptr == a.data.ptr and buffer.tobytes() == bytes(range(100))
    back = cupy.from_dlpack(buffer)
    assert back.data.ptr == a.data.ptr and (back == a).all()
    del buffer, a
    assert int(back.sum()) == sum(range(100))
    b = cupy.asarray(aquifer.to_device(bytes(range(100))))
    assert int(b.sum()) == sum(range(100))


def test_a_captured_graph():
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        a = cupy.ones(1000)
        a * 2
        stream.synchronize()
        stream.begin_capture()
        a *= 2
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
        assert float(a.sum()) == 8000


def test_other_resources():
    for text in ["async", "cuda", "arena(cuda, arena_size=64MiB)", "binning(pool(cuda))", "pool(cuda) | checked | tracking"]:
        aquifer.use(text)
        a = cupy.arange(100_000)
        assert int(a.sum()) == 4_999_950_000
    aquifer.mr.set_current_device_resource(resource)
