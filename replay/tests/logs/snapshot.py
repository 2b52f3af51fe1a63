"""Writes snapshot.pickle, as torch.cuda.memory._dump_snapshot would: python3 snapshot.py"""

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
