"""PyTorch's own cache over the pool."""

import gc

import aquifer
import pytest

torch = pytest.importorskip("torch")
import aquifer.torch  # noqa: E402

resource = aquifer.use("pool(cuda, max=20GiB) | statistics")


def test_segments_come_from_the_pool():
    with aquifer.torch.use_mem_pool() as pool:
        a = torch.ones(1 << 22, device="cuda")
        assert resource.pool_statistics()["live_bytes"] >= a.nbytes
        assert torch.cuda.memory_allocated() >= a.nbytes
        assert a.sum().item() == 1 << 22
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
    del a, pool
    gc.collect()
    torch.cuda.empty_cache()
    assert resource.pool_statistics()["live_bytes"] == 0
