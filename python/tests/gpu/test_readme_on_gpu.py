"""The README's examples run as they stand, each in a process of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_all_examples_are_here():
    assert len(EXAMPLES) == 7


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, r"10 b'some bytes'"),
        (1, r"\[2\. 4\. 6\.\] <aquifer.MemoryMap 256 B in use"),
        (2, r"45 <aquifer.MemoryMap"),
        (3, r"tensor\(2000\., device='cuda:0'\) <aquifer.MemoryMap"),
        (4, r"\(1, 8000000\)"),
        (5, r"[0-9]+ bytes are others' meanwhile"),
        (6, r"\[3\.0, 5\.0, 7\.0\] [0-9]+ blocks of one pool"),
    ],
)
def test_an_example(number, said):
    done = subprocess.run([sys.executable, "-c", EXAMPLES[number]], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.match(said, done.stdout), done.stdout
