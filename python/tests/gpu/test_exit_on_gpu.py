"""A process that ends with arrays of all libraries alive, in every order of their imports."""

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

MAKE = {
    "aquifer": "import aquifer; made.append(aquifer.to_device(b'bytes')); made.append(aquifer.Stream())",
    "numba": "from numba import cuda; made.append(lambda: cuda.to_device([1.0]))",
    "cupy": "import cupy; made.append(lambda: (cupy.cuda.Stream(non_blocking=True), cupy.arange(10)))",
    "torch": "import torch; made.append(lambda: torch.ones(10, device='cuda', requires_grad=True).exp())",
}

PROGRAM = """
made = []
{imports}
import aquifer
aquifer.set_allocators()
made = [it() if callable(it) else it for it in made]
with aquifer.numpy_handler():
    import numpy
    made.append(numpy.ones(100_000))
made.append(made)  # a cycle
"""


def run(order: tuple[str, ...]) -> tuple[tuple[str, ...], int, str]:
    program = PROGRAM.format(imports="\n".join(MAKE[library] for library in order))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=170)
    return order, done.returncode, done.stderr


def test_every_order_of_imports():
    for library in ("numba.cuda", "cupy", "torch"):
        pytest.importorskip(library)
    with ThreadPoolExecutor(8) as pool:
        for order, code, said in pool.map(run, itertools.permutations(MAKE)):
            assert (code, said) == (0, ""), (order, code, said)
