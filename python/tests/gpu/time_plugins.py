"""The time of an allocation and its free through each library: `own`, `rmm` or `aquifer`, in a process of its own each.

Prints rows of `library,way,bytes,nanoseconds`: medians of rounds.
"""

import gc
import statistics
import sys
import time

way, library = sys.argv[1], sys.argv[2]
SIZES = (1000, 1 << 20)
ROUNDS = 9


def measure(name: str, allocate, count: int) -> None:
    for size in SIZES:
        for _ in range(200):
            allocate(size)
        times = []
        for _ in range(ROUNDS):
            gc.disable()
            start = time.perf_counter_ns()
            for _ in range(count):
                allocate(size)
            times.append((time.perf_counter_ns() - start) / count)
            gc.enable()
        print(f"{name},{way},{size},{statistics.median(times):.0f}", flush=True)


def use_rmm() -> None:
    import rmm

    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=2**30)
    rmm.mr.set_current_device_resource(pool)


if library == "buffer":
    if way == "own":
        sys.exit()
    if way == "rmm":
        use_rmm()
        from rmm import DeviceBuffer
    else:
        from aquifer import DeviceBuffer
    measure("DeviceBuffer", lambda size: DeviceBuffer(size=size), 20_000)
elif library == "numba":
    from numba import cuda

    if way == "rmm":
        use_rmm()
        from rmm.allocators.numba import RMMNumbaManager

        cuda.set_memory_manager(RMMNumbaManager)
    elif way == "aquifer":
        import aquifer

        cuda.set_memory_manager(aquifer.AquiferNumbaManager)
    measure("numba.cuda.device_array", lambda size: cuda.device_array(size, dtype="u1"), 1000)
elif library == "cupy":
    import cupy

    if way == "rmm":
        use_rmm()
        from rmm.allocators.cupy import rmm_cupy_allocator

        cupy.cuda.set_allocator(rmm_cupy_allocator)
    elif way == "aquifer":
        import aquifer

        cupy.cuda.set_allocator(aquifer.cupy_allocator)
    measure("cupy.empty", lambda size: cupy.empty(size, dtype=cupy.uint8), 20_000)
    with cupy.cuda.Stream(non_blocking=True):
        measure("cupy.empty on a stream", lambda size: cupy.empty(size, dtype=cupy.uint8), 20_000)
    # Tells what is of the default stream from what is of the first rounds.
    measure("cupy.empty again", lambda size: cupy.empty(size, dtype=cupy.uint8), 20_000)
elif library == "torch":
    import torch

    if way == "rmm":
        use_rmm()
        from rmm.allocators.torch import rmm_torch_allocator

        torch.cuda.memory.change_current_allocator(rmm_torch_allocator)
    elif way == "aquifer":
        import aquifer

        aquifer.set_allocators("torch")
    measure("torch.empty", lambda size: torch.empty(size, dtype=torch.uint8, device="cuda"), 20_000)
