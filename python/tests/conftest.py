"""The tests run on the simulated device, except those in ``gpu``, which are run by their own path."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

GPU_TESTS = Path(__file__).parent / "gpu"

#: Seconds after which a test takes threads or a process for stuck.
PATIENCE = 60


def pytest_configure(config: pytest.Config) -> None:
    paths = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    if not any(path.is_relative_to(GPU_TESTS) for path in paths):
        # Before any test imports aquifer. A choice of the caller's stays.
        os.environ.setdefault("AQUIFER_BACKEND", "sim")
    for name in ("AQUIFER_STACK", "AQUIFER_LOG_FILE", "RMM_LOG_FILE"):
        os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def what_is_of_the_process() -> Iterator[None]:
    """Leaves the current resource and the hooks as they were."""
    from aquifer import _reinitialize, mr

    before, hooks = mr.get_current_device_resource(), list(_reinitialize._hooks)
    yield
    if mr.get_current_device_resource() is not before:
        mr.set_current_device_resource(before)
    _reinitialize._hooks[:] = hooks


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Runs a program in a process of its own, which ends without an error, and returns what it printed."""

    def run(program: str, **variables: str) -> str:
        environment = {**os.environ, **variables}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.fixture
def in_threads() -> Callable[..., list[Any]]:
    """Runs functions at once, a thread for each, and returns what they returned. What one raises, this raises."""

    def run(*functions: Callable[[], Any]) -> list[Any]:
        barrier = threading.Barrier(len(functions))
        results: list[Any] = [None] * len(functions)
        raised: list[BaseException] = []

        def body(number: int, function: Callable[[], Any]) -> None:
            try:
                barrier.wait()
                results[number] = function()
            except BaseException as error:
                raised.append(error)

        # Daemons: threads that are stuck do not keep the process.
        threads = [threading.Thread(target=body, args=it, daemon=True) for it in enumerate(functions)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a thread is stuck"
        if raised:
            raise raised[0]
        return results

    return run
