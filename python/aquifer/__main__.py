"""``python -m aquifer`` tells what the package finds on this machine: what to send with a question.

It imports no other library, and ends with 0 where there is no device.
"""

from __future__ import annotations

import argparse
import json
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import aquifer
from aquifer import _aquifer
from aquifer._map import _size

#: Libraries that can allocate here, and the distributions that have them.
_HOSTS = {
    "cuda.core": ("cuda-core",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "numba": ("numba",),
    "numba-cuda": ("numba-cuda",),
    "numpy": ("numpy",),
    "torch": ("torch",),
}

#: What a device or a stack that is not there raises.
_ERRORS = (aquifer.Error, MemoryError, ValueError)


def _hosts() -> dict[str, str]:
    found = {}
    for host, distributions in _HOSTS.items():
        for distribution in distributions:
            try:
                found[host] = version(distribution)
                break
            except PackageNotFoundError:
                pass
    return found


def report() -> dict[str, Any]:
    """What ``--json`` prints. What is not there is None, and ``reason`` or ``stack_reason`` says why."""
    told: dict[str, Any] = {
        "version": aquifer.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": None,
        "device_name": None,
        "device_count": 0,
        "reason": None,
        "backend": None,
        "driver_version": None,
        "stack": None,
        "stack_reason": None,
        "pool_maximum": None,
        "pinned_maximum": None,
        "pinned_release_threshold": None,
        "hosts": _hosts(),
    }
    try:
        number = aquifer.current_device()
        told["device_name"] = aquifer.device_name(number)
        told["device_count"] = aquifer.device_count()
        told["backend"] = "simulated" if aquifer.is_simulated() else "cuda"
        told["driver_version"] = _aquifer._driver_version()
        told["pinned_maximum"], told["pinned_release_threshold"] = _aquifer.pinned_limits()
        told["device"] = number
    except _ERRORS as error:
        told["reason"] = str(error)
        return told
    try:
        resource = aquifer.mr.get_current_device_resource()
        told["stack"] = resource.text
        told["pool_maximum"] = resource._pool_maximum()
    except _ERRORS as error:
        told["stack_reason"] = str(error)
    return told


def _lines(told: dict[str, Any]) -> list[str]:
    def limit(bytes: int | None) -> str:
        return "none" if bytes is None else f"{bytes} ({_size(bytes)})"

    def none(reason: str) -> str:
        # That of a stack's text has lines that show where.
        return f"none ({reason})".replace("\n", "\n  ")

    hosts = [f"{host} {version}" for host, version in told["hosts"].items()]
    lines = [
        f"aquifer: {told['version']}",
        f"python: {told['python']}, {told['platform']}",
        f"hosts: {', '.join(hosts) or 'none'}",
    ]
    if told["device"] is None:
        return [*lines, f"device: {none(told['reason'])}"]
    driver = told["driver_version"]
    lines += [
        f"device: {told['device']} of {told['device_count']}, {told['device_name']}",
        f"backend: {told['backend']}",
        f"driver: {'none' if driver is None else f'CUDA {driver // 1000}.{driver % 1000 // 10}'}",
        f"page-locked maximum: {limit(told['pinned_maximum'])}",
        f"page-locked release threshold: {limit(told['pinned_release_threshold'])}",
    ]
    if told["stack_reason"] is not None:
        return [*lines, f"stack: {none(told['stack_reason'])}"]
    return [*lines, f"stack: {told['stack']}", f"pool maximum: {limit(told['pool_maximum'])}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m aquifer",
        description="Tells the device, the stack of resources, limits, and the libraries that can allocate here.",
    )
    parser.add_argument("--json", action="store_true", help="tell it as JSON, with sizes in bytes")
    arguments = parser.parse_args()
    told = report()
    if arguments.json:
        print(json.dumps(told, indent=2))
    else:
        print("\n".join(_lines(told)))


if __name__ == "__main__":
    main()
