"""A picture of a pool's memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from aquifer import mr as _mr

_WIDTH = 880
_ROW = 22
_LEFT = 190


def _size(bytes: int) -> str:
    size = float(bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


@dataclass(frozen=True)
class MemoryMap:
    """What a pool holds, block by block. A notebook draws it.

    :param upstream_blocks: address and size, in bytes, of each block that the pool has of its upstream.
    :param blocks: address, size in bytes, and whether it is free, of each stretch in them.

    >>> import aquifer
    >>> pool = aquifer.use("pool(cuda)")
    >>> buffer = aquifer.DeviceBuffer(size=1024)
    >>> found = aquifer.memory_map()
    >>> found.used_bytes, found.free_bytes + found.used_bytes == pool.pool_statistics()["reserved_bytes"]
    (1024, True)
    >>> found.svg.startswith("<svg")
    True
    """

    upstream_blocks: list[tuple[int, int]] = field(default_factory=list)
    blocks: list[tuple[int, int, bool]] = field(default_factory=list)

    @property
    def used_bytes(self) -> int:
        """The bytes of blocks in use."""
        return sum(bytes for _, bytes, is_free in self.blocks if not is_free)

    @property
    def free_bytes(self) -> int:
        """The bytes that are free."""
        return sum(bytes for _, bytes, is_free in self.blocks if is_free)

    @property
    def svg(self) -> str:
        """The picture as a text of SVG: a row for each block of upstream, in it what is used and what is free."""
        height = 30 + _ROW * max(1, len(self.upstream_blocks))
        longest = max((bytes for _, bytes in self.upstream_blocks), default=1)
        scale = (_WIDTH - _LEFT - 10) / longest
        title = f"{_size(self.used_bytes)} in use (blue), {_size(self.free_bytes)} free (green)"
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
            f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
            f'<text x="8" y="18" fill="black">{escape(title)}</text>',
        ]
        for row, (start, length) in enumerate(self.upstream_blocks):
            y = 28 + row * _ROW
            parts.append(f'<text x="8" y="{y + 13}" fill="#555">{start:#x}, {_size(length)}</text>')
            inside = [block for block in self.blocks if start <= block[0] < start + length]
            for x, width, color, what in _stretches(inside, start, scale):
                parts.append(
                    f'<rect x="{_LEFT + x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 6}" '
                    f'fill="{color}"><title>{escape(what)}</title></rect>'
                )
        parts.append("</svg>")
        return "\n".join(parts)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        used, free = _size(self.used_bytes), _size(self.free_bytes)
        count = len(self.upstream_blocks)
        return f"<aquifer.MemoryMap {used} in use, {free} free, {count} block{'' if count == 1 else 's'} of upstream>"


_USED, _FREE = (74, 120, 181), (201, 228, 197)


def _stretches(
    blocks: list[tuple[int, int, bool]], start: int, scale: float
) -> Iterator[tuple[float, float, str, str]]:
    """Rectangles: x, width, colour and text. Blocks that are under a pixel together are one, of a mixed colour."""
    group: list[tuple[int, int, bool]] = []
    for number, block in enumerate(blocks):
        group.append(block)
        begin, end = group[0][0], block[0] + block[1]
        is_last = number + 1 == len(blocks)
        if (end - begin) * scale < 1 and not is_last:
            continue
        used = sum(bytes for _, bytes, is_free in group if not is_free)
        share = used / max(1, end - begin)
        color = "#" + "".join(f"{round(share * u + (1 - share) * f):02x}" for u, f in zip(_USED, _FREE, strict=True))
        kind = f"{len(group)} blocks, {share:.0%} in use" if len(group) > 1 else "free" if block[2] else "in use"
        yield (begin - start) * scale, (end - begin) * scale, color, f"{kind}: {_size(end - begin)} at {begin:#x}"
        group = []


def memory_map(mr: _mr.DeviceMemoryResource | None = None) -> MemoryMap:
    """What the outermost pool of a resource holds. Empty without a pool, and of an arena.

    :param mr: the resource. None is the current one.
    :raises TypeError: for what is no resource.
    :raises aquifer.Error: where there is no device.

    >>> import aquifer
    >>> aquifer.memory_map(aquifer.mr.CudaMemoryResource())
    <aquifer.MemoryMap 0 B in use, 0 B free, 0 blocks of upstream>
    """
    if mr is not None and not isinstance(mr, _mr.DeviceMemoryResource):
        raise TypeError(f"memory_map() takes a DeviceMemoryResource, and a {type(mr).__name__} was given")
    found = (_mr.get_current_device_resource() if mr is None else mr)._memory_map()
    return MemoryMap() if found is None else MemoryMap(*found)
