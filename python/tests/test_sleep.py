"""Memory that sleeps by tags: what comes back, what is refused, and what an error leaves."""

import aquifer
import pytest

MIB = 1 << 20


@pytest.fixture(autouse=True)
def awake():
    yield
    aquifer.wake()


@pytest.mark.parametrize("keep", ["page_locked", "file"])
def test_all_comes_back_to_its_addresses(keep, tmp_path):
    with aquifer.tag("weights") as pool:
        assert aquifer.mr.get_current_device_resource() is pool
        weights = aquifer.to_device(b"weights" * 100_000)
    with aquifer.tag("cache"):
        cache = aquifer.to_device(b"cache" * 100_000)
    other = aquifer.to_device(b"of no tag")
    address = weights.ptr
    for _ in range(3):
        folder = tmp_path if keep == "file" else None
        slept = aquifer.sleep(["weights"], keep=keep, folder=folder)
        assert slept.nbytes >= 700_000
        assert pool.pool_statistics()["asleep_bytes"] == slept.nbytes
        with pytest.raises(aquifer.Error, match="has been asleep for"):
            weights.tobytes()
        assert cache.tobytes() == b"cache" * 100_000
        assert other.tobytes() == b"of no tag"
        slept.wake()
        slept.wake()
        assert weights.ptr == address
        assert weights.tobytes() == b"weights" * 100_000


def test_what_is_dropped_is_zero():
    with aquifer.tag("cache"):
        cache = aquifer.to_device(b"cache" * 100_000)
    with aquifer.sleep("cache", keep="nothing") as slept:
        assert slept.nbytes >= 500_000
    assert cache.tobytes() == bytes(500_000)


def test_an_allocation_is_refused_and_a_free_is_not():
    with aquifer.tag("weights"):
        weights = aquifer.DeviceBuffer(size=MIB)
        kept = aquifer.to_device(b"kept")
        with aquifer.sleep():
            with pytest.raises(aquifer.Error, match="asleep"):
                aquifer.DeviceBuffer(size=100)
            del weights
        assert aquifer.DeviceBuffer(size=100).size == 100
    assert kept.tobytes() == b"kept"


def test_no_library_gets_the_address_of_what_sleeps():
    with aquifer.tag("weights"):
        weights = aquifer.to_device(b"weights")
    with aquifer.sleep("weights"):
        with pytest.raises(aquifer.Error, match="asleep"):
            weights.__dlpack__()
        with pytest.raises(aquifer.Error, match="asleep"):
            weights.__cuda_array_interface__
        assert weights.size == 7
    assert weights.__cuda_array_interface__["shape"] == (7,)
    assert aquifer.DeviceBuffer.from_dlpack(weights).tobytes() == b"weights"


def test_wrong_tags_and_ways():
    with aquifer.tag("weights"):
        kept = aquifer.to_device(b"kept")
    with pytest.raises(ValueError, match="'wieghts' is no tag of device 0"):
        aquifer.sleep(["weights", "wieghts"])
    with pytest.raises(ValueError, match="is no tag"):
        aquifer.wake("wieghts")
    with pytest.raises(ValueError, match="keep is"):
        aquifer.sleep("weights", keep="pinned")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="keep is"):
        aquifer.sleep("weights", keep="file")
    with pytest.raises(aquifer.Error):
        aquifer.sleep("weights", keep="file", folder="/proc/nowhere")
    assert kept.tobytes() == b"kept"
    with aquifer.sleep("weights"):
        with pytest.raises(aquifer.Error, match="asleep"):
            aquifer.sleep("weights")
        with pytest.raises(aquifer.Error, match="asleep"):
            kept.tobytes()
    with pytest.raises(ValueError, match="does not sleep"):
        aquifer.wake("weights")
    assert kept.tobytes() == b"kept"


def test_one_that_cannot_sleep_leaves_the_others_awake():
    with aquifer.tag("weights"):
        weights = aquifer.to_device(b"weights")
    with aquifer.tag("cache"):
        cache = aquifer.to_device(b"cache")
    with aquifer.sleep("cache"):
        with pytest.raises(aquifer.Error, match="asleep"):
            aquifer.sleep(["weights", "cache"])
        assert weights.tobytes() == b"weights"
    assert cache.tobytes() == b"cache"


def test_a_resource_that_takes_blocks_says_what_to_use():
    pool = aquifer.mr.PoolMemoryResource(aquifer.mr.CudaMemoryResource())
    with pytest.raises(aquifer.Error, match="handles=on"):
        pool._sleep("nothing")
