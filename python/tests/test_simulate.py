"""Without a GPU nothing is simulated by itself."""

from __future__ import annotations

from collections.abc import Callable


def test_without_a_gpu_the_first_use_is_an_error(run_python: Callable[..., str]) -> None:
    program = """
import aquifer

for use in (aquifer.is_simulated, lambda: aquifer.DeviceBuffer(size=8), lambda: aquifer.use("pool(cuda)")):
    try:
        use()
    except aquifer.Error as error:
        assert "AQUIFER_BACKEND=sim" in str(error), error
    else:
        raise AssertionError("it was simulated")
"""
    run_python(program, AQUIFER_BACKEND="")


def test_a_program_asks_for_the_simulated_device(run_python: Callable[..., str]) -> None:
    program = """
import aquifer

aquifer.simulate()
aquifer.simulate()
assert aquifer.is_simulated() and aquifer.device_count() == 1
assert aquifer.to_device(b"abc").copy_to_host().tobytes() == b"abc"
"""
    run_python(program, AQUIFER_BACKEND="")
