"""What a resource has counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Statistics:
    """Bytes and blocks that a resource has counted: now, at most at one time, and in all."""

    current_bytes: int
    current_count: int
    peak_bytes: int
    peak_count: int
    total_bytes: int
    total_count: int
