"""The picture of a pool's memory."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import aquifer
import pytest
from aquifer import DeviceBuffer, MemoryMap, mr

MIB = 1 << 20
SVG = "{http://www.w3.org/2000/svg}"


def test_a_pool_is_shown():
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource(), "4MiB")
    mr.set_current_device_resource(pool)
    first, second = DeviceBuffer(size=MIB), DeviceBuffer(size=1000)
    shown = aquifer.memory_map()
    assert type(shown) is MemoryMap
    ((start, length),) = shown.upstream_blocks
    assert length == 4 * MIB
    assert {(address, bytes) for address, bytes, is_free in shown.blocks if not is_free} == {
        (first.ptr, MIB),
        (second.ptr, 1024),
    }
    # The blocks are all of the memory.
    assert sum(bytes for _, bytes, _ in shown.blocks) == length
    ends = sorted((address, address + bytes) for address, bytes, _ in shown.blocks)
    assert ends[0][0] == start and ends[-1][1] == start + length
    assert all(before[1] == after[0] for before, after in zip(ends, ends[1:], strict=False))
    assert (shown.used_bytes, shown.free_bytes) == (MIB + 1024, 3 * MIB - 1024)
    assert repr(shown) == "<aquifer.MemoryMap 1.0 MiB in use, 3.0 MiB free, 1 block of upstream>"
    del first, second
    assert aquifer.memory_map().used_bytes == 0
    assert shown.used_bytes == MIB + 1024


def test_a_resource_is_asked_by_an_argument():
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource(), "1MiB")
    assert aquifer.memory_map(pool).free_bytes == aquifer.memory_map(mr=pool).free_bytes == MIB
    # Of the outermost pool.
    assert aquifer.memory_map(mr.StatisticsResourceAdaptor(pool)).free_bytes == MIB


def test_without_a_pool():
    for resource in (mr.CudaMemoryResource(), mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())):
        shown = aquifer.memory_map(resource)
        assert shown == MemoryMap() and (shown.used_bytes, shown.free_bytes) == (0, 0)
        assert repr(shown) == "<aquifer.MemoryMap 0 B in use, 0 B free, 0 blocks of upstream>"


@pytest.mark.parametrize(
    ("bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 19, "1.5 MiB"),
        (5 << 30, "5.0 GiB"),
        (1 << 41, "2.0 TiB"),
        (1 << 51, "2048.0 TiB"),
    ],
)
def test_sizes(bytes, text):
    shown = MemoryMap([(0, bytes)], [(0, bytes, True)])
    assert f"0 B in use, {text} free" in repr(shown)


def test_a_picture():
    shown = MemoryMap(
        [(0x1000, 1000), (0x8000, 500)], [(0x1000, 250, False), (0x1000 + 250, 750, True), (0x8000, 500, False)]
    )
    root = ElementTree.fromstring(shown.svg)
    assert root.tag == f"{SVG}svg"
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert titles == ["in use: 250 B at 0x1000", "free: 750 B at 0x10fa", "in use: 500 B at 0x8000"]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts[0].startswith("750 B in use") and "750 B free" in texts[0]
    assert [text.split(",")[0] for text in texts[1:]] == ["0x1000", "0x8000"]
    blocks = [rect for rect in root.iter(f"{SVG}rect") if len(rect)]
    widths = [float(rect.get("width")) for rect in blocks]
    assert widths[1] == pytest.approx(3 * widths[0]) and widths[2] == pytest.approx(2 * widths[0])
    assert float(blocks[1].get("x")) == pytest.approx(float(blocks[0].get("x")) + widths[0])
    assert blocks[0].get("y") == blocks[1].get("y") != blocks[2].get("y")
    assert blocks[0].get("fill") == blocks[2].get("fill") != blocks[1].get("fill")
    assert float(root.get("width")) >= max(float(rect.get("x")) + float(rect.get("width")) for rect in blocks)


def test_a_picture_of_many_blocks():
    # A pixel has hundreds of them.
    blocks = [(256 * number, 256, number % 2 == 1) for number in range(100_000)]
    root = ElementTree.fromstring(MemoryMap([(0, 25_600_000)], blocks).svg)
    shown = [rect for rect in root.iter(f"{SVG}rect") if len(rect)]
    assert 100 < len(shown) < 1000
    assert {rect.get("fill") for rect in shown}.isdisjoint({"#4a78b5", "#c9e4c5"})
    assert all(re.fullmatch(r"\d+ blocks, 50% in use: .*", rect[0].text) for rect in shown[:-1])
    ends = [(float(rect.get("x")), float(rect.get("x")) + float(rect.get("width"))) for rect in shown]
    assert all(before[1] == pytest.approx(after[0], abs=0.02) for before, after in zip(ends, ends[1:], strict=False))


def test_a_notebook_draws_it():
    shown = aquifer.memory_map(mr.PoolMemoryResource(mr.CudaMemoryResource(), "1MiB"))
    assert shown._repr_svg_() == shown.svg
    assert re.search(r'<svg xmlns="http://www.w3.org/2000/svg" width="\d+" height="\d+"', shown.svg)


def test_a_picture_of_nothing():
    assert ElementTree.fromstring(MemoryMap().svg).tag == f"{SVG}svg"


def test_what_is_no_resource():
    for wrong in ("pool", 0, mr.CudaMemoryResource):
        with pytest.raises(
            TypeError, match=r"memory_map\(\) takes a DeviceMemoryResource, and a (str|int|type) was given"
        ):
            aquifer.memory_map(wrong)


def test_two_maps_share_nothing():
    MemoryMap().blocks.append((0, 1, True))
    assert MemoryMap().blocks == []
    with pytest.raises(AttributeError):
        MemoryMap().blocks = []
