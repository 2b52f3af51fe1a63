"""Questions to CUDA's runtime, by NVIDIA's ``cuda.bindings``, which is imported when the first one is asked."""

from __future__ import annotations

from typing import Any


class CUDARuntimeError(RuntimeError):
    """A call of CUDA's runtime failed, with its ``status``."""

    def __init__(self, status: Any) -> None:
        from cuda.bindings import runtime

        self.status = status
        name, text = (ask(status)[1].decode() for ask in (runtime.cudaGetErrorName, runtime.cudaGetErrorString))
        super().__init__(f"{name}: {text}")

    def __reduce__(self) -> tuple[type[CUDARuntimeError], tuple[Any]]:
        return type(self), (self.status,)


class CUDADriverError(RuntimeError):
    """A call of CUDA's driver failed, with its ``status``."""

    def __init__(self, status: Any) -> None:
        from cuda.bindings import driver

        self.status = status
        name, text = (ask(status)[1].decode() for ask in (driver.cuGetErrorName, driver.cuGetErrorString))
        super().__init__(f"{name}: {text}")

    def __reduce__(self) -> tuple[type[CUDADriverError], tuple[Any]]:
        return type(self), (self.status,)


def _asked(name: str, *arguments: Any) -> Any:
    from cuda.bindings import runtime

    status, *value = getattr(runtime, name)(*arguments)
    if status != runtime.cudaError_t.cudaSuccess:
        raise CUDARuntimeError(status)
    return value[0] if value else None


def driverGetVersion() -> int:
    """The newest version of CUDA that the driver knows: 1000 times the major one and 10 times the minor one."""
    version: int = _asked("cudaDriverGetVersion")
    return version


def getDevice() -> int:
    """The number of the calling thread's device."""
    device: int = _asked("cudaGetDevice")
    return device


def setDevice(device: int) -> None:
    """Sets the calling thread's device."""
    _asked("cudaSetDevice", device)


def runtimeGetVersion() -> int:
    """The version of CUDA's runtime: 1000 times the major one and 10 times the minor one."""
    version: int = _asked("getLocalRuntimeVersion")
    return version


def getDeviceCount() -> int:
    """How many devices there are."""
    count: int = _asked("cudaGetDeviceCount")
    return count


def getDeviceAttribute(attr: Any, device: int) -> int:
    """An attribute of a device, of ``cuda.bindings.runtime.cudaDeviceAttr``."""
    value: int = _asked("cudaDeviceGetAttribute", attr, device)
    return value


def getDeviceProperties(device: int) -> Any:
    """The properties of a device, as the runtime has them."""
    return _asked("cudaGetDeviceProperties", device)


def deviceGetName(device: int) -> str:
    """A device's name."""
    from cuda.bindings import driver

    status, name = driver.cuDeviceGetName(256, driver.CUdevice(device))
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CUDADriverError(status)
    text: str = name.decode()
    return text
