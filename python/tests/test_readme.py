"""The README's examples run as they stand: here those that need no GPU. `gpu/test_readme_on_gpu.py` has the others."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"

EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)

NEEDS_A_GPU = ("import cupy", "import torch", "from numba")


def name_of(example: str) -> str:
    return re.sub(r"\W+", "_", "_".join(re.findall(r"^(?:import|from) (\S+)", example, re.MULTILINE)))


def run(example: str) -> str:
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_is_one_for_each_library():
    names = [name_of(example) for example in EXAMPLES]
    assert names == ["aquifer", "numba_aquifer", "cupy_aquifer", "torch_aquifer_torch", "numpy_aquifer", "aquifer", names[-1]]
    assert all(library in names[-1] for library in ("cupy", "numpy", "torch", "numba"))


def test_without_a_library():
    pytest.importorskip("numpy")
    said = run(EXAMPLES[0])
    assert said.startswith("10 b'some bytes'\n1\n<aquifer.mr.DeviceMemoryResource")


def test_numpy():
    pytest.importorskip("numpy")
    assert run(EXAMPLES[4]) == "(1, 8000000)\n"


def test_sleep():
    assert run(EXAMPLES[5]) == "2097152 bytes are others' meanwhile\n"
