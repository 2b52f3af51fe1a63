"""Writes snapshot.pickle and the others, as torch.cuda.memory._dump_snapshot would: python3 snapshot.py"""

import pickle

A, B, C = 0x7F2A00000000, 0x7F2A00100000, 0x7F2A00200000


def event(action, addr, size, stream=0, time=0):
    frames = [{"filename": "train.py", "line": 7, "name": "step"}]
    return {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": 1_700_000_000_000_000 + time, "frames": frames}


trace = [
    event("segment_alloc", A, 2 << 20),
    event("alloc", A, 1 << 20, time=10),
    event("alloc", B, 512, stream=0x5581, time=20),
    event("free_requested", A, 1 << 20, time=30),
    event("free_completed", A, 1 << 20, time=31),
    event("alloc", C, 3 << 19, time=40),
    {"action": "oom", "size": 1 << 40, "device_free": 5 << 20, "stream": 0, "time_us": 1_700_000_000_000_050},
    event("snapshot", 0, 0, time=60),
    event("free_completed", B, 512, stream=0x5581, time=70),
]
snapshot = {"segments": [], "device_traces": [[], trace, [event("alloc", A, 256)]], "allocator_settings": {"expandable_segments": False}}
with open("snapshot.pickle", "wb") as file:
    pickle.dump(snapshot, file)
with open("not_a_snapshot.pickle", "wb") as file:
    pickle.dump({"segments": [], "device_traces": [[event("alloc", A, 1), event("alloc", B, "big")]]}, file)


def block(address, size, requested, state="active_allocated"):
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": []}


def segment(*blocks, stream=0, pool=(0, 0), device=0):
    total = sum(one["size"] for one in blocks)
    active = sum(one["size"] for one in blocks if one["state"] != "inactive")
    return {
        "device": device, "address": blocks[0]["address"], "total_size": total, "allocated_size": active, "active_size": active,
        "requested_size": active, "stream": stream, "segment_type": "large", "segment_pool_id": pool, "is_expandable": False,
        "frames": [], "blocks": list(blocks),
    }


D, E = 0x7F2A10000000, 0x7F2A20000000
# The history began in the middle, and its ring overflowed: A and a part of D were live before, and B was freed.
before = {
    "segments": [
        segment(block(A, 1 << 20, 1_000_000), block(B, 1 << 20, 0, "inactive"), block(C, 1 << 20, 1 << 20, "active_pending_free")),
        segment(block(D, 2 << 20, 2 << 20), block(D + (2 << 20), 2 << 20, 0, "inactive"), stream=0x5581, pool=(0, 1)),
        segment(block(E, 2 << 20, 2 << 20), device=1),
    ],
    "device_traces": [
        [
            event("free_requested", B, 700_000, time=10),
            event("free_completed", B, 700_000, time=11),
            event("alloc", C, 1 << 20, time=20),
            event("segment_map", D, 2 << 20, time=30),
            event("ponder", D, 512, time=40),
            event("free_requested", C, 1 << 20, time=50),
        ],
        [event("alloc", E, 2 << 20)],
    ],
    "allocator_settings": {"expandable_segments": True, "trace_alloc_max_entries": 6, "trace_alloc_overflowed": True},
    "external_annotations": [],
    "host_segments": [segment(block(A, 4096, 4096))],
    "host_traces": [event("alloc", A, 4096)],
}
with open("before.pickle", "wb") as file:
    pickle.dump(before, file)
