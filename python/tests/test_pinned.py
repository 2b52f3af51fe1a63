"""The pool of page-locked memory: limits, trims, and what it tells."""

import aquifer
import pytest
from aquifer import _aquifer

MIB = 1 << 20


@pytest.fixture(autouse=True)
def limits_as_they_were():
    aquifer.pinned.trim()
    yield
    aquifer.pinned.set_limits(maximum_size=None, release_threshold=None, touch_threads=0)


def test_memory_stays_until_it_is_trimmed():
    before = aquifer.pinned.statistics()
    blocks = [_aquifer.HostMemory(24 * MIB) for _ in range(3)]
    held = aquifer.pinned.statistics()
    assert held.live - before.live >= 72 * MIB
    assert held.reserved >= held.live and held.peak_reserved >= held.reserved
    del blocks
    assert aquifer.pinned.statistics().reserved == held.reserved
    released = aquifer.pinned.trim()
    after = aquifer.pinned.statistics()
    assert released == held.reserved - after.reserved > 0
    assert after.reserved == before.reserved


def test_a_threshold_gives_it_back():
    before = aquifer.pinned.statistics().reserved
    aquifer.pinned.set_limits(release_threshold=before)
    blocks = [_aquifer.HostMemory(129 * MIB) for _ in range(6)]
    assert aquifer.pinned.statistics().reserved >= 6 * 129 * MIB
    del blocks
    assert aquifer.pinned.statistics().reserved == before


def test_arrays_give_it_back():
    numpy = pytest.importorskip("numpy")
    before = aquifer.pinned.statistics().reserved
    with aquifer.numpy_handler():
        arrays = [numpy.full(129 * MIB, 1, "u1") for _ in range(6)]
        assert aquifer.pinned.statistics().live >= 6 * 129 * MIB
        del arrays
    aquifer.pinned.trim()
    assert aquifer.pinned.statistics().reserved <= before + 64 * MIB


def test_a_maximum_is_kept():
    reserved = aquifer.pinned.statistics().reserved
    aquifer.pinned.set_limits(maximum_size=reserved - reserved % 4096 + 32 * MIB)
    kept = _aquifer.HostMemory(16 * MIB)
    with pytest.raises(aquifer.OutOfMemoryError, match="whose maximum is"):
        _aquifer.HostMemory(64 * MIB)
    aquifer.pinned.set_limits(maximum_size=None)
    more = _aquifer.HostMemory(64 * MIB)
    assert kept.size + more.size == 80 * MIB


def test_threads_touch_large_blocks():
    aquifer.pinned.set_limits(touch_threads=4)
    block = _aquifer.HostMemory(48 * MIB)
    assert block.ptr % 4096 == 0
    del block
    assert aquifer.pinned.trim() >= 48 * MIB


@pytest.mark.parametrize("wrong", [{"maximum_size": 1}, {"maximum_size": 0}, {"maximum_size": "4 parsecs"}])
def test_limits_that_are_none(wrong):
    with pytest.raises((aquifer.Error, ValueError)):
        aquifer.pinned.set_limits(**wrong)
