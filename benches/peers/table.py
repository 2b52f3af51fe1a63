#!/usr/bin/env python3
"""Prints the table of ratios from rows of `peer,workload,value`: table.py ROWS.csv [MORE.csv ...]

A row that is given several times counts with its median. Lines that begin with # are comments.
The output of the heap's capacity test may be one of the files.
"""

import re
import sys
from statistics import median

OURS = "aquifer pool"
# Pools on handles of memory, in groups that compare them with pools on blocks.
HANDLES = "aquifer handles"
# Who competes. glibc's malloc, which hands out no device memory, does not.
PEERS = {
    "rmm pool": "RMM pool",
    "rmm binning": "RMM binning",
    "rmm arena": "RMM arena",
    "cudaMallocAsync": "cudaMallocAsync",
    "torch caching": "PyTorch",
    "torch pinned caching": "PyTorch pinned",
    "cudaMalloc": "cudaMalloc",
}
# PyTorch's other allocators, which play the footprint's programs alone.
TORCH_SETTINGS = {"torch expandable": "PyTorch expandable", "torch cudaMallocAsync": "PyTorch cudaMallocAsync"}
MET, NOT_MET, MISSING = "met", "**NOT MET**", "not measured"


def read(paths):
    """The values of each (peer, workload), the machine's comments and the failures."""
    values, notes = {}, []
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            for line in map(str.strip, lines):
                if line.startswith("#"):
                    if "driver" in line or "ended with" in line:
                        notes.append(line.lstrip("# "))
                    continue
                # What the heap's own test prints: ours and an exact best fit on one line.
                heap = re.match(r"capacity (n=\d+),(\d+) MiB,([0-9.]+),([0-9.]+),", line)
                if heap:
                    workload = f"capacity {heap[1]} max={heap[2]}MiB"
                    values.setdefault(("aquifer heap", workload), []).append(float(heap[3]))
                    values.setdefault(("best fit", workload), []).append(float(heap[4]))
                    continue
                parts = line.split(",", 1)
                if len(parts) != 2 or "," not in parts[1]:
                    continue
                workload, value = parts[1].rsplit(",", 1)
                number = re.match(r"-?[0-9.]+(e[-+]?[0-9]+)?", value.strip())
                if number:
                    values.setdefault((parts[0], workload), []).append(float(number.group()))
    return {key: median(found) for key, found in values.items()}, notes


def number(value):
    if value is None:
        return "-"
    if value == int(value) and abs(value) < 100:
        return str(int(value))
    return f"{value:,.1f}" if value >= 10 else f"{value:.4g}"


class Table:
    def __init__(self, values):
        self.values = values
        self.used = set()
        self.lines = []
        self.missed = 0

    def ours(self, workload, peer=OURS):
        self.used.add((peer, workload))
        return self.values.get((peer, workload))

    def best(self, workload):
        """The fastest peer's name and time, or (None, None)."""
        found = [(self.values[key], name) for peer, name in PEERS.items()
                 if (key := (peer, workload)) in self.values]
        return min(found)[::-1] if found else (None, None)

    def add(self, row, best, ours, ratio, wanted, met):
        verdict = MISSING if met is None else MET if met else NOT_MET
        self.missed += met is not True and wanted != "reported"
        if wanted == "reported" and met is None and ours is not None:
            verdict = "reported"
        name, time = best
        best = f"{name} {number(time)}" if name else "-"
        if not isinstance(ratio, str):
            ratio = f"{ratio:,.2f}x" if ratio else "-"
        self.lines.append(f"| {row} | {best} | {number(ours)} | {ratio} | {wanted} | {verdict} |")

    def at_most(self, row, workload, most, peer_workload=None):
        """Nanoseconds that ours may take; the best peer stands beside it."""
        ours, best = self.ours(workload), self.best(peer_workload or workload)
        ratio = best[1] / ours if best[1] and ours else None
        self.add(row, best, ours, ratio, f"at most {most} ns", None if ours is None else ours <= most)

    def faster(self, row, workload, times):
        ours, best = self.ours(workload), self.best(workload)
        ratio = best[1] / ours if best[1] and ours else None
        self.add(row, best, ours, ratio, f"{times} times faster", None if ratio is None else ratio >= times)

    def footprint(self, row, workload, most, than=("rmm pool", "torch caching")):
        """Reserved over live: at most so much, and less than the peers' of the same run."""
        workload = f"{workload} peak reserved over peak live"
        for part in ["live MiB", "reserved MiB"]:
            self.used.add((OURS, workload.replace("peak reserved over peak live", f"peak {part}")))
        ours = self.ours(workload)
        found = [(self.values[peer, workload], PEERS[peer]) for peer in than if (peer, workload) in self.values]
        best = min(found)[::-1] if found else (None, None)
        # A pool that reserved less than was live was not measured, and no more is one without its peers.
        met = None if ours is None or len(found) < len(than) else 1 <= ours <= most and all(ours < one for one, _ in found)
        ratio = f"{best[1] / ours:,.2f}x" if best[1] and ours else None
        names = " and ".join(PEERS[peer] for peer in than)
        self.add(f"{row}: reserved over live", best, ours, ratio, f"at most {most}" + (f", less than {names}" if than else ""), met)

    def bound(self, row, workload, text, holds, best=(None, None), peer=OURS):
        ours = self.ours(workload, peer)
        self.add(row, best, ours, None, text, None if ours is None else holds(ours))

    def reported(self, row, workload):
        self.add(row, (None, None), self.ours(workload), None, "reported", None)


def without_generator(table, peer, language):
    """The time of churn less what drawing the sizes takes, of `peer` or of the best of them, and its name."""
    workload = "churn 1 threads"
    drawing = table.values.get((f"generator {language}", workload))
    name, time = (peer, table.values.get((peer, workload))) if peer else table.best(workload)
    return (None, None) if drawing is None or time is None else (max(time - drawing, 0.1), name)


def capacity(table):
    """Ours against exact best fit, one line for each maximum size."""
    heap = {key for key in table.values if key[0] == "aquifer heap" and key[1].startswith("capacity")}
    size = lambda workload: int(m.group(1)) if (m := re.search(r"max=(\d+)MiB", workload)) else 0
    for peer, workload in sorted(heap, key=lambda key: (len(key[1].split()[1]), size(key[1]))):
        ours, fit = table.ours(workload, peer), table.values.get(("best fit", workload))
        table.used.add(("best fit", workload))
        most = 0.01 if size(workload) <= 64 else 0.05
        met = None if fit is None else round(ours - fit, 6) <= most
        best = ("best fit", fit) if fit is not None else (None, None)
        table.add(workload, best, ours, None, f"at most {most} above", met)
    if not heap:
        table.add("capacity", (None, None), None, None, "at most 0.01 above best fit (0.05 past 64 MiB)", None)


def card(table):
    """The whole card: one block out of many, two pools, two processes."""
    none = lambda x: x == 0
    # The faster way of the driver's to map as much new memory.
    bare = "vmm 40% of the card in 64 MiB handles"
    found = [table.values[key] for end in ["", ", access at once"] if (key := ("limit", bare + end)) in table.values]
    driver, workload = min(found, default=None), "card 40% after half was freed"
    ours = table.ours(workload, HANDLES)
    known = driver and ours
    table.add("40% of the card after 95% in blocks, half of them freed", ("bare calls", driver) if driver else (None, None),
              ours, f"takes {ours / driver:.2f}x" if known else None, "takes at most 1.5x and 40 ms",
              ours <= 1.5 * driver + 40e6 if known else None)
    for name in ["card 95% in blocks", workload, "card two pools at 60% in turn", "card two processes at 60% after trim"]:
        table.bound(f"{name}: refused", f"{name} refused", "0", none, peer=HANDLES)


def growing(table):
    """A vector of 1 MiB to 8 GiB. The times of the same on blocks are among the further rows."""
    for name in ["growing vector", "growing filled vector"]:
        for way in ["by doubling", "by 64MiB"]:
            workload = f"{name} {way}"
            table.bound(f"{workload}: MiB copied above 2 MiB", f"{workload} copied MiB", "0", lambda x: x == 0, peer=HANDLES)
            over = f"{workload} peak reserved over length"
            table.bound(f"{workload}: reserved over length", over, "at most 1.02", lambda x: 1 <= x <= 1.02,
                        table.best(over), HANDLES)
            table.bound(f"{workload}: refused", f"{workload} refused", "0", lambda x: x == 0, peer=HANDLES)
            for again in ["", " again"]:
                ours, best = table.ours(workload + again, HANDLES), table.best(workload + again)
                ratio = best[1] / ours if best[1] and ours else None
                table.add(workload + again, best, ours, ratio, "reported", None)


def build(values):
    table = Table(values)
    for size in ["256B", "1MiB"]:
        table.at_most(f"hot pair {size}", f"hot {size}", 15)
        table.at_most(f"hot pair {size}, inlined", f"hot {size} inlined", 8, f"hot {size}")
    for mib in [1, 64, 1024, 4096]:
        for n in [1000, 100000]:
            workload = f"random n={n} max={mib}MiB"
            table.faster(workload, workload, 5 if (n, mib) == (1000, 1) else 4)
    table.faster("churn, 1 thread", "churn 1 threads", 4)
    net = [without_generator(table, peer, language) for peer, language in [(None, "C++"), (OURS, "Rust")]]
    table.add("churn, 1 thread, without the generator", (net[0][1], net[0][0]), net[1][0],
              net[0][0] / net[1][0] if net[0][0] and net[1][0] else None, "reported", None)
    table.faster("churn, 16 threads", "churn 16 threads", 75)
    table.bound("churn, 16 threads: scaling over that of private heaps",
                "scaling long churn 16 threads over private", "at least 0.7", lambda x: x >= 0.7)
    table.footprint("churn, 16 threads", "churn 16 threads", 1.35)
    # Without reserved addresses PyTorch's expandable ranges have less of a growing cache on one stream.
    table.footprint("kv cache, 1 stream", "kv cache 1 stream", 1.5, ["rmm pool"])
    for workload in ["kv cache 4 streams", "joins 4 streams", "phases 32 streams", "fsdp 2 streams",
                     "training varied lengths"]:
        table.footprint(workload, workload, 1.5)
    for ahead in [1, 16]:
        for mib in [1, 4]:
            workload = f"hand-over {mib}MiB, {ahead} ahead"
            table.footprint(workload, workload, 1.4)
    for workload in ["8 threads miss together", "16 threads miss together", "workers in turn"]:
        table.footprint(workload, workload, 1.4, [])
    card(table)
    growing(table)
    table.at_most("cross, 2 streams", "cross 2 streams 1MiB", 20)
    none = lambda x: x == 0
    table.at_most("pair 4 KiB, memory of another stream", "pair 4KiB on another's memory", 20)
    table.bound("driver calls of those", "driver calls of pairs on another's memory", "0", none)
    table.reported("pair 4 KiB, its own memory", "pair 4KiB on own memory")
    for streams in [2, 8, 64, 1024]:
        table.at_most(f"pair 4 KiB, {streams} streams in turn", f"pair 4KiB, {streams} streams in turn", 20)
        table.bound(f"driver calls of {streams} streams in turn", f"driver calls of {streams} streams in turn", "0", none)
    for streams in [8, 1024]:
        table.reported(f"pair 4 KiB, 8 threads, {streams} streams", f"pair 4KiB, 8 threads {streams} streams")
    table.bound("8 threads: 1,024 streams over 8", "8 threads 1024 streams over 8 streams", "at most 4x", lambda x: x <= 4)
    # The kernel that the trim waits for takes 400 ms.
    for what in ["a first small allocation", "statistics", "a new stream's first 256 bytes"]:
        ours, trim = table.ours(f"{what} beside a trim"), table.ours(f"{what} beside a trim: the trim")
        waited = None if ours is None or trim is None or trim < 200e6 else ours <= 4e6
        table.add(f"{what} beside a trim", ("the trim", trim) if trim else (None, None), ours, None,
                  "waits for no kernel: at most 4 ms", waited)
    for what, most in [("bytes a block", 96), ("bytes a stream", 16384), ("MiB after trim", 1)]:
        table.bound(f"bookkeeping, {what}", f"bookkeeping {what}", f"at most {most}", lambda x, most=most: x <= most)
    # A million blocks and 1,024 streams of the two bounds above.
    table.bound("bookkeeping, MiB, all blocks freed on other streams",
                "bookkeeping MiB, a million blocks freed elsewhere", "at most 107.5", lambda x: x <= 107.5)
    bare = values.get(("driver", "bare record and wait"))
    table.used.add(("driver", "bare record and wait"))
    table.used.add((OURS, "ping-pong steal over bare"))
    steal = table.ours("ping-pong steal")
    ratio = steal / bare if steal and bare else None
    table.add("ping-pong steal", ("bare record and wait", bare) if bare else (None, None), steal,
              f"takes {ratio:.2f}x" if ratio else None, "takes at most 1.7x", None if ratio is None else ratio <= 1.7)
    torch = "hot 1048576 B"
    # On the host that the bounds are from a hot pair takes 8.6 ns.
    hot = values.get((OURS, "hot 1MiB"))
    scale = hot / 8.6 if hot else 1
    for kind, most in [("unfenced", 15), ("fenced", 25)]:
        for streams in [0, 64]:
            table.at_most(f"pinned pair 1 MiB, {kind}, {streams} streams alive",
                          f"pinned pair 1MiB {kind}, {streams} streams alive", round(most * scale, 1), torch)
    table.at_most("pinned pair 1 MiB, unfenced", "pinned pair 1MiB unfenced", round(15 * scale, 1), torch)
    table.at_most("pinned pair 1 MiB, fenced, idle, 64 in turn", "pinned pair 1MiB fenced idle 64 in turn",
                  round(25 * scale, 1), torch)
    table.reported("pinned pair 1 MiB, fenced, under a 10 ms kernel", "pinned pair 1MiB fenced under 10 ms kernel")
    table.bound("DeviceVec 1 MiB, 16 threads: scaling over that of private heaps",
                "scaling vector 1MiB 16 threads over private", "at least 0.7", lambda x: x >= 0.7)
    ours, best = table.ours("vector 1MiB 16 threads"), table.best("vector 1MiB 16 threads")
    ratio = best[1] / ours if best[1] and ours else None
    table.add("DeviceVec 1 MiB made and dropped, 16 threads", best, ours, ratio, "reported", None)
    table.bound("driver calls, one stream, warm", "driver calls in all of one stream warm", "0", lambda x: x == 0)
    capacity(table)
    return table


# Ours and RMM's of the same name. `rmm async` is the driver's pool too, and so are both others.
FAMILY = [("fixed-size", "RMM fixed_size", ["rmm fixed-size"]), ("binning", "RMM binning", ["rmm binning"]),
          ("arena", "RMM arena", ["rmm arena"]), ("async", "RMM cuda_async", ["rmm async", "cudaMallocAsync"]),
          ("managed", "RMM managed", ["rmm managed"]), ("system", "RMM system", ["rmm system"]),
          ("plain", "RMM cuda", ["rmm plain"]), ("streams", "RMM streams", ["rmm streams"]),
          ("statistics", "RMM statistics", ["rmm statistics"]), ("limiting", "RMM limiting", ["rmm limiting"]),
          ("tracking", "RMM tracking", ["rmm tracking"]),
          ("tracking with backtraces", "RMM tracking", ["rmm tracking with backtraces"]),
          ("aligned", "RMM aligned", ["rmm aligned"]), ("checked", None, []),
          ("logging", "RMM logging", ["rmm logging"]), ("pool", "RMM pool", ["rmm pool"])]
# The pool's rows that the family's bench adds; its others are in the table of the pool.
OF_POOL = ("rmm random", "multi stream", "vector construction", "vector workflow", "priming", "churn 16 threads adapted",
           "replay")
MOST = {("fixed-size", "hot 256B"): 10, ("fixed-size", "hot 1MiB"): 10,
        ("binning", "hot 256B"): 10, ("binning", "hot 1MiB"): 10,
        ("statistics", "on top 1 thread"): 5,
        ("logging", "on top in bursts"): 60, ("logging", "on top sustained"): 60}
TIMES = {("arena", "churn 16 threads"): 50, ("binning", "churn 16 threads"): 50}
# Driver pools, managed memory and an empty pool's construction: as fast as RMM's of the same name.
AS_FAST = [("async", "hot 256B"), ("async", "hot 1MiB"), ("async", "random n=1000 max=1MiB"), ("async", "churn 1 threads"),
           ("async", "churn 16 threads"), ("managed", "hot 256B"), ("managed", "hot 1MiB"),
           ("pool", "priming unprimed construction")]


def build_family(values):
    """None where the rows are of the pool alone."""
    if not any(peer == "aquifer fixed-size" for peer, _ in values):
        return None
    table = Table(values)
    wanted = list(MOST) + list(TIMES) + AS_FAST
    for name, title, peers in FAMILY:
        ours = [workload for peer, workload in values if peer == f"aquifer {name}"
                and (name != "pool" or workload.startswith(OF_POOL))]
        ours += [workload for peer, workload in wanted if peer == name and workload not in ours]
        for workload in ours:
            value, row = table.ours(workload, f"aquifer {name}"), f"{name}: {workload}"
            # Through the concrete type RMM has nothing: its row behind a pointer stands beside it.
            plain = workload.removesuffix(" inlined")
            found = [values[peer, plain] for peer in peers if (peer, plain) in values]
            best = (title, min(found)) if found else (None, None)
            # What takes nothing on top, or less than the machine drifts, has no ratio.
            ratio = best[1] / value if best[1] and value and value > 0 else None
            if (name, workload) in MOST:
                most = MOST[name, workload]
                table.add(row, best, value, ratio, f"at most {most} ns", None if value is None else value <= most)
            elif (name, workload) in TIMES:
                times = TIMES[name, workload]
                table.add(row, best, value, ratio, f"{times} times faster", None if ratio is None else ratio >= times)
            elif (name, workload) in AS_FAST:
                table.add(row, best, value, ratio, "not slower", None if ratio is None else ratio >= 1)
            else:
                table.add(row, best, value, ratio, "reported", None)
    return table


def show(table, what):
    print(what)
    print("| row | best peer | Aquifer | ratio | wanted | verdict |")
    print("| --- | --- | --- | --- | --- | --- |")
    print("\n".join(table.lines))
    print(f"\n{table.missed} rows not met or not measured.\n")


def show_footprints(values):
    """What each peer reserved over what was live, a line a program."""
    end = " peak reserved over peak live"
    programs = [workload for peer, workload in values if peer == OURS and workload.endswith(end)]
    peers = {OURS: "Aquifer", **PEERS, **TORCH_SETTINGS}
    peers = {peer: name for peer, name in peers.items() if any((peer, workload) in values for workload in programs)}
    if len(peers) < 2:
        return
    print("\nReserved over live, of each peer:\n")
    print(f"| program | {' | '.join(peers.values())} |")
    print("| --- |" + " --- |" * len(peers))
    for workload in programs:
        print(f"| {workload.removesuffix(end)} | {' | '.join(number(values.get((peer, workload))) for peer in peers)} |")


def main(paths):
    if not paths or paths[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    values, notes = read(paths)
    table = build(values)
    for note in notes:
        print(f"{note}\n")
    family = build_family(values)
    # A run of the family alone has nothing of the pool to judge.
    if family is None or (OURS, "hot 256B") in values:
        show(table, "Nanoseconds an operation unless said; the ratio is the best peer's time over Aquifer's.\n")
    if family is not None:
        show(family, "The family: nanoseconds, of RMM's of the same name; `on top` is what an adaptor takes more "
             "than the bare pool, an operation.\n")
        table.used |= family.used
    print("| further rows of ours | value | best peer |")
    print("| --- | --- | --- |")
    for peer, workload in values:
        if (peer, workload) in table.used or not peer.startswith(("aquifer", "driver")):
            continue
        name, time = table.best(workload) if peer == OURS else (None, None)
        prefix = "" if peer == OURS else f"{peer}: "
        best = f"{name} {number(time)}" if name else "-"
        print(f"| {prefix}{workload} | {number(values[peer, workload])} | {best} |")
    show_footprints(values)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
