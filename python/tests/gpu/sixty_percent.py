"""Two libraries that in turn take 60% of a card: with their own pools (`own`), and with one (`aquifer`)."""

import sys

import cupy
import torch

if sys.argv[1] == "aquifer":
    import aquifer

    aquifer.set_allocators("cupy", "torch")

part = torch.cuda.mem_get_info()[1] * 6 // 10
for turn in range(3):
    tensor = torch.empty(part, dtype=torch.uint8, device="cuda")
    del tensor
    array = cupy.empty(part, dtype=cupy.uint8)
    del array
    print(f"turn {turn}: both had {part >> 30} GiB")
