"""The tests run on the simulated device, except those in ``gpu``, which are run by their own path."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

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


#: The modules that users name.
PUBLIC_MODULES = ["aquifer"] + [
    f"aquifer.{name}" for name in ("mr", "statistics", "pinned", "numpy", "torch", "cupy", "numba", "cuda_core")
]


@dataclass(frozen=True)
class Public:
    """What has a name that users may write."""

    name: str
    thing: Any
    #: The class that has it.
    owner: type | None = None

    @property
    def doc(self) -> str:
        """Its own docstring; that of a class has ``__init__``'s as well."""
        own = self.thing.__dict__.get("__doc__") if isinstance(self.thing, type) else self.thing.__doc__
        parts = [own]
        if isinstance(self.thing, type) and "__init__" in vars(self.thing):
            init = vars(self.thing)["__init__"].__doc__
            # A dataclass's and a native class's has none of its own.
            parts.append(None if init == object.__init__.__doc__ else init)
        return "\n\n".join(inspect.cleandoc(part) for part in parts if part)


def _module(name: str) -> types.ModuleType | None:
    """A module, as long as its library is there. PyTorch, which is large, has a stand-in."""
    with contextlib.suppress(ImportError):
        return importlib.import_module(name)
    if name != "aquifer.torch":
        return None
    stand_ins = {module: mock.MagicMock() for module in ("torch", "torch.cuda", "torch.cuda.memory")}
    with mock.patch.dict(sys.modules, stand_ins):
        found = importlib.import_module(name)
    # The next import of it finds none.
    del sys.modules["aquifer"].torch
    return found


def _members(of: Public) -> Iterator[Public]:
    for name, member in vars(of.thing).items():
        if name.startswith("_") or isinstance(member, (int, str)):
            continue
        member = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if isinstance(member, property) or callable(member) or inspect.isgetsetdescriptor(member):
            found = Public(f"{of.name}.{name}", member, of.thing)
            yield found
            if isinstance(member, type):
                yield from _members(found)


def public() -> list[Public]:
    """All that has a public name, each once."""
    found: dict[int, Public] = {}

    def add(one: Public) -> None:
        if id(one.thing) in found:
            return
        found[id(one.thing)] = one
        if isinstance(one.thing, type):
            for member in _members(one):
                found.setdefault(id(member.thing), member)

    for module_name in PUBLIC_MODULES:
        module = _module(module_name)
        if module is None:
            continue
        add(Public(module_name, module))
        for name in module.__all__:
            thing = getattr(module, name)
            of_ours = (getattr(thing, "__module__", None) or "aquifer").partition(".")[0] == "aquifer"
            if (isinstance(thing, type) or inspect.isroutine(thing)) and of_ours:
                add(Public(f"{module_name}.{name}", thing))
    return list(found.values())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "named" in metafunc.fixturenames:
        metafunc.parametrize("named", public(), ids=lambda one: one.name)
