"""RMM's way to set the current resources of several devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from aquifer import mr
from aquifer._device import device_current

_Function = TypeVar("_Function", bound=Callable[..., Any])

_hooks: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []


def reinitialize(
    pool_allocator: bool = False,
    managed_memory: bool = False,
    initial_pool_size: mr.Size | None = None,
    maximum_pool_size: mr.Size | None = None,
    devices: int | Iterable[int] | None = 0,
    logging: bool = False,
    log_file_name: mr._Path | None = None,
) -> None:
    """Sets the current resource of each device of ``devices``, after the hooks were called, the last one first.

    What was allocated before stays valid, and goes back to where it came from.

    :param pool_allocator: a pool over what follows.
    :param managed_memory: managed memory, in place of the device's own.
    :param initial_pool_size: bytes that the pool takes at once, or a text such as ``"1GiB"``. None takes none.
    :param maximum_pool_size: bytes that the pool takes at most, or a text. None sets no limit.
    :param devices: a device's number, or several. None is device 0.
    :param logging: a log of each allocation, as :func:`enable_logging` writes it.
    :param log_file_name: the path of that log. None takes it from the variable ``RMM_LOG_FILE``.
    :raises ValueError: for what is no size, and for a log without a path.
    :raises MemoryError: where a device has less memory than ``initial_pool_size``.
    :raises aquifer.Error: for a device that is not there, and for an initial size above the maximum.

    >>> import aquifer
    >>> aquifer.reinitialize(pool_allocator=True, initial_pool_size="1MiB")
    >>> aquifer.mr.get_current_device_resource().pool_size()
    1048576
    """
    for hook, args, kwargs in reversed(_hooks):
        hook(*args, **kwargs)
    if devices is None:
        devices = 0
    numbers = [devices] if isinstance(devices, int) else list(devices)
    if logging:
        # Before anything changes, where there is no name.
        mr._log_name(log_file_name, 0)
    mr.disable_logging()
    for number in numbers:
        with device_current(number):
            made: mr.DeviceMemoryResource
            made = mr.ManagedMemoryResource() if managed_memory else mr.CudaMemoryResource()
            if pool_allocator:
                made = mr.PoolMemoryResource(made, initial_pool_size, maximum_pool_size)
            mr.set_per_device_resource(number, made)
    if logging:
        mr.enable_logging(log_file_name, devices=numbers)


def is_initialized() -> bool:
    """Whether allocations can be made. Always, as the first one makes what it needs.

    >>> import aquifer
    >>> aquifer.is_initialized()
    True
    """
    return True


def register_reinitialize_hook(func: _Function, *args: Any, **kwargs: Any) -> _Function:
    """Has a function called before each :func:`reinitialize`. The function registered last is called first.

    :param func: the function. It is returned, so that this is a decorator, too.
    :param args: what the function is called with.
    :param kwargs: what the function is called with, by name.

    >>> import aquifer
    >>> def forget(what):
    ...     print("forget", what)
    >>> hook = aquifer.register_reinitialize_hook(forget, "arrays")
    >>> aquifer.reinitialize()
    forget arrays
    >>> aquifer.unregister_reinitialize_hook(forget)
    """
    _hooks.append((func, args, kwargs))
    return func


def unregister_reinitialize_hook(func: Callable[..., Any]) -> None:
    """Has a function called no more, however often it was registered. Nothing happens for one that was not.

    :param func: the function.

    >>> import aquifer
    >>> hook = aquifer.register_reinitialize_hook(print, "reinitialized")
    >>> aquifer.unregister_reinitialize_hook(print)
    >>> aquifer.reinitialize()
    """
    _hooks[:] = [hook for hook in _hooks if hook[0] != func]
