"""What PyTorch refuses with an allocator of the process, and does with its own cache over the pool: a process for each."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

#: Seconds for a program, of which a first compilation takes most.
PATIENCE = 400


def why_nothing_compiles() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "needs Triton"
    if not (os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))):
        return "needs a C compiler"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "needs the headers of Python"
    return None


compiles = pytest.mark.skipif(why_nothing_compiles() is not None, reason=str(why_nothing_compiles()))


@pytest.fixture
def run(tmp_path):
    """Runs a program that is a file, as a child that is spawned imports it: what it printed."""

    def run(program: str, *arguments: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(program)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(path), *arguments],
            cwd=tmp_path,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


FUNCTION = """
import aquifer
import torch

def function(a, b):
    return ((a @ b).relu() * 2 + a).sum(dim=1)

def call(compiled, a, b):
    torch.compiler.cudagraph_mark_step_begin()
    return compiled(a, b).clone()
"""


@compiles
def test_a_compiled_graph_is_refused_with_an_allocator_of_the_process(run):
    printed = run(
        FUNCTION
        + """
aquifer.set_allocators("torch")
a, b = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
compiled = torch.compile(function, mode="reduce-overhead")
try:
    for _ in range(4):
        call(compiled, a, b)
except Exception as error:
    print(error)
# What has no graph is compiled.
torch.testing.assert_close(torch.compile(function)(a, b), function(a, b))
"""
    )
    assert "pluggable does not yet support checkPoolLiveAllocations" in printed


@compiles
def test_a_compiled_graph_with_pytorchs_cache(run):
    printed = run(
        FUNCTION
        + """
import aquifer.torch
from torch._dynamo.utils import counters

resource = aquifer.use("pool(cuda)")
with aquifer.torch.use_mem_pool() as pool:
    a, b = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
assert resource.pool_statistics()["live_bytes"] >= a.nbytes + b.nbytes
expected = function(a, b)
# Outside of the block: the graph's own memory is of a pool of PyTorch's.
compiled = torch.compile(function, mode="reduce-overhead")
for _ in range(4):
    torch.testing.assert_close(call(compiled, a, b), expected)
a.fill_(0.5)
torch.testing.assert_close(call(compiled, a, b), function(a, b))
assert counters["inductor"]["cudagraph_skips"] == 0, counters["inductor"]
print("done")
"""
    )
    assert printed.endswith("done\n")


def test_sending_a_tensor_is_refused_with_an_allocator_of_the_process(run):
    printed = run("""
import aquifer
import torch
import torch.multiprocessing
from multiprocessing.reduction import ForkingPickler

aquifer.set_allocators("torch")
tensor = torch.ones(1000, device="cuda")
try:
    ForkingPickler.dumps(tensor)
except RuntimeError as error:
    print(error)
""")
    assert "CUDAPluggableAllocator does not yet support shareIPcHandle" in printed


SEND = """
import sys

import torch
import torch.multiprocessing

def child(tensors, answers):
    received = tensors.get()
    answers.put([(len(it), it.min().item(), it.max().item()) for it in received])
    received[0].fill_(-1)
    torch.cuda.synchronize()
    del received
    answers.put("written")

def main():
    import aquifer
    import aquifer.torch

    resource = aquifer.use(sys.argv[1])
    with aquifer.torch.use_mem_pool() as pool:
        # The first share a segment, and each of the others has one.
        sizes = [1000, 5000, 1 << 23, 1 << 23, 1 << 23]
        sent = [torch.full((size,), float(number), device="cuda") for number, size in enumerate(sizes, start=1)]
    torch.cuda.synchronize()
    context = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(tensors, answers))
    process.start()
    tensors.put(sent)
    read = answers.get(timeout=120)
    assert read == [(size, number, number) for number, size in enumerate(sizes, start=1)], read
    assert answers.get(timeout=120) == "written"
    assert sent[0].unique().tolist() == [-1.0] and sent[1].unique().tolist() == [2.0]
    process.join(120)
    assert process.exitcode == 0, process.exitcode
    print("done")

if __name__ == "__main__":
    main()
"""


def test_sending_tensors_of_pytorchs_cache(run):
    """Each segment is a block of the driver's, which PyTorch shares as a whole."""
    assert run(SEND, "cuda").endswith("done\n")
