"""The time of ``numpy.empty(n)`` and its end, with Aquifer's handler and without it.

The runs of both alternate in one process, and the table has their medians in nanoseconds. On the simulated device
page-locked memory is the host's heap: the lines from 64 KiB on say little there.

``python tests/time_numpy.py [--runs 41] [--smallest 65536] [--live 0]``
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time

import numpy

import aquifer

SIZES = [8, 100, 1_000, 10_000, 60_000, 65_536, 200_000, 1 << 20, 16 << 20, 256 << 20]


def time_of(size: int, count: int) -> float:
    """Nanoseconds of one array of so many bytes."""
    empty, bytes_ = numpy.empty, numpy.dtype("u1")
    numbers = range(count)
    begin = time.perf_counter_ns()
    for _ in numbers:
        empty(size, bytes_)
    return (time.perf_counter_ns() - begin) / count


def count_of(size: int) -> int:
    """So many arrays that a run takes about two milliseconds."""
    count = 16
    while time_of(size, count) * count < 2_000_000 and count < 1 << 20:
        count *= 2
    return count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=41)
    parser.add_argument("--smallest", type=int, default=aquifer.numpy.SMALLEST)
    parser.add_argument("--live", type=int, default=0, help="page-locked arrays that live meanwhile")
    options = parser.parse_args()

    def handler(is_with: bool) -> contextlib.AbstractContextManager[None]:
        return aquifer.numpy_handler(smallest=options.smallest) if is_with else contextlib.nullcontext()

    with handler(True):
        live = [numpy.empty(options.smallest, "u1") for _ in range(options.live)]
    print(f"numpy {numpy.__version__}, medians of {options.runs} runs, {len(live)} page-locked arrays live")
    print(f"{'bytes':>12} {'without':>10} {'with':>10} {'difference':>11}   (ns)")
    for size in SIZES:
        count = count_of(size)
        times: dict[bool, list[float]] = {True: [], False: []}
        for run in range(2 * options.runs):
            # Each goes first as often as the other.
            is_with = (run + run // 2) % 2 == 0
            with handler(is_with):
                time_of(size, max(count // 16, 1))
                times[is_with].append(time_of(size, count))
        without, with_ = statistics.median(times[False]), statistics.median(times[True])
        print(f"{size:12,} {without:10.1f} {with_:10.1f} {with_ - without:+11.1f}")


if __name__ == "__main__":
    main()
