"""A host in C++ catches the exception that the package's entry point for PyTorch throws."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "cpp_host.cpp"

# In a process of its own, which an exception that nobody can catch ends.
PROGRAM = """
import ctypes
import sys
from aquifer import _aquifer

host = ctypes.CDLL(sys.argv[1])
host.ask.argtypes, host.ask.restype = [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_char_p
path = _aquifer.__file__.encode()
for _ in range(3):
    print(host.ask(path, 1 << 50).decode())
print(host.ask(path, 1000).decode())
"""


def test_catches_bad_alloc(tmp_path):
    if shutil.which("c++") is None:
        pytest.skip("needs c++")
    library = tmp_path / "cpp_host.so"
    subprocess.run(["c++", "-std=c++17", "-Wall", "-Werror", "-shared", "-fPIC", SOURCE, "-o", library], check=True)
    done = subprocess.run([sys.executable, "-c", PROGRAM, library], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["bad_alloc"] * 3 + ["memory"]
