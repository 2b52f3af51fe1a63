"""A picture of a pool's memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from aquifer import mr as _mr

_WIDTH = 880
_ROW = 22
_LEFT = 150


def _size(bytes: int) -> str:
    size = float(bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


@dataclass(frozen=True)
class MemoryMap:
    """What a pool holds, block by block. A notebook draws it; ``svg`` is the text of the picture.

    :param upstream_blocks: address and bytes of each block that the pool has of its upstream.
    :param blocks: address, bytes and whether it is free, of each stretch in them.
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
        """The picture: a row for each block of upstream, in it what is used and what is free."""
        height = 30 + _ROW * max(1, len(self.upstream_blocks))
        longest = max((bytes for _, bytes in self.upstream_blocks), default=1)
        scale = (_WIDTH - _LEFT - 10) / longest
        title = f"{_size(self.used_bytes)} in use, {_size(self.free_bytes)} free"
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
            f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
            f'<text x="8" y="18" fill="black">{escape(title)}</text>',
        ]
        for row, (start, length) in enumerate(self.upstream_blocks):
            y = 28 + row * _ROW
            parts.append(f'<text x="8" y="{y + 13}" fill="#555">{start:#x}</text>')
            frame = f'<rect x="{_LEFT}" y="{y}" width="{length * scale:.2f}" height="{_ROW - 6}" fill="#e8e8e8"/>'
            parts.append(frame)
            for address, bytes, is_free in self.blocks:
                if start <= address < start + length:
                    x = _LEFT + (address - start) * scale
                    color = "#c9e4c5" if is_free else "#4a78b5"
                    what = f"{'free' if is_free else 'in use'}: {_size(bytes)} at {address:#x}"
                    parts.append(
                        f'<rect x="{x:.2f}" y="{y}" width="{max(bytes * scale, 0.3):.2f}" height="{_ROW - 6}" '
                        f'fill="{color}" stroke="white" stroke-width="0.3"><title>{escape(what)}</title></rect>'
                    )
        parts.append("</svg>")
        return "\n".join(parts)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        used, free = _size(self.used_bytes), _size(self.free_bytes)
        return f"<aquifer.MemoryMap {used} in use, {free} free, {len(self.upstream_blocks)} blocks of upstream>"


def memory_map(mr: _mr.DeviceMemoryResource | None = None) -> MemoryMap:
    """What the outermost pool of a resource holds, by default of the current one. Empty without a pool."""
    found = (mr or _mr.get_current_device_resource())._memory_map()
    return MemoryMap() if found is None else MemoryMap(*found)
