"""Without NumPy, what needs it says so and names the extra. All else works."""

PROGRAM = """
import sys
sys.modules["numpy"] = None  # as one that is not installed

import aquifer

buffer = aquifer.to_device(b"abc")
assert bytes(buffer.copy_to_host(bytearray(3))) == buffer.tobytes() == b"abc"
for call in (buffer.copy_to_host, aquifer.numpy_handler().__enter__):
    try:
        call()
    except ModuleNotFoundError as error:
        print(error.name, error)
print(aquifer.numpy.page_locked_arrays())
"""

HOW = "needs NumPy, which is not installed (run pip install 'aquifer-cuda[numpy]')"


def test_the_error_names_the_extra(run_python):
    said = run_python(PROGRAM, AQUIFER_BACKEND="sim").splitlines()
    assert said == [f"numpy copy_to_host() without a target {HOW}", f"numpy numpy_handler() {HOW}", "(0, 0)"]


def test_a_numpy_that_fails_says_why_itself(run_python, tmp_path):
    (tmp_path / "numpy.py").write_text("import no_such_module_here\n")
    program = "import aquifer\ntry: aquifer.to_device(b'a').copy_to_host()\nexcept ImportError as error: print(error)"
    assert run_python(program, AQUIFER_BACKEND="sim", PYTHONPATH=str(tmp_path)) == "No module named 'no_such_module_here'\n"
