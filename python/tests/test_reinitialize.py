"""RMM's ``reinitialize``, and what is called before it."""

from __future__ import annotations

import csv

import aquifer
import pytest
from aquifer import DeviceBuffer, mr

MIB = 1 << 20


def current():
    return mr.get_current_device_resource()


def test_plain_memory():
    assert aquifer.reinitialize() is None
    assert type(current()) is mr.CudaMemoryResource
    aquifer.reinitialize(managed_memory=True)
    assert type(current()) is mr.ManagedMemoryResource


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "pool(cuda, handles=off)"),
        ({"managed_memory": True}, "pool(managed(oversubscribe=true))"),
        ({"initial_pool_size": "1MiB"}, "pool(cuda, initial_size=1MiB, handles=off)"),
        (
            {"initial_pool_size": MIB, "maximum_pool_size": "4 MiB"},
            "pool(cuda, initial_size=1MiB, maximum_size=4MiB, handles=off)",
        ),
    ],
)
def test_a_pool(arguments, text):
    aquifer.reinitialize(pool_allocator=True, **arguments)
    assert type(current()) is mr.PoolMemoryResource
    assert current().text == text
    assert DeviceBuffer.to_device(b"abc").tobytes() == b"abc"


def test_arguments_by_their_places(in_folder):
    aquifer.reinitialize(True, True, MIB, 2 * MIB, 0, True, "a.csv")
    assert current().text == f"pool(managed(oversubscribe=true), initial_size=1MiB, maximum_size=2MiB) | logging({in_folder}/a.dev0.csv)"


def test_sizes_without_a_pool_are_ignored():
    aquifer.reinitialize(initial_pool_size="1GiB", maximum_pool_size="1KiB")
    assert type(current()) is mr.CudaMemoryResource


@pytest.mark.parametrize("devices", [0, [0], (0,), {0}, iter([0]), None])
def test_devices(devices):
    before = current()
    aquifer.reinitialize(devices=devices)
    assert current() is not before and type(current()) is mr.CudaMemoryResource


def test_no_devices():
    before = current()
    aquifer.reinitialize(devices=[])
    assert current() is before


def test_a_device_that_is_not_there():
    with pytest.raises(aquifer.Error, match="device 7 was asked for"):
        aquifer.reinitialize(devices=7)
    # The thread's device is what it was.
    assert aquifer.current_device() == 0
    assert DeviceBuffer.to_device(b"abc").tobytes() == b"abc"


def test_a_pool_that_cannot_be_leaves_what_was():
    before = current()
    with pytest.raises(aquifer.OutOfMemoryError, match="1099511627776 bytes"):
        aquifer.reinitialize(pool_allocator=True, initial_pool_size="1TiB")
    assert current() is before


def test_what_was_allocated_before_stays():
    aquifer.reinitialize(pool_allocator=True)
    pool = current()
    buffer = DeviceBuffer.to_device(b"abc")
    aquifer.reinitialize(pool_allocator=True)
    assert current() is not pool
    assert buffer.tobytes() == b"abc"
    assert pool.pool_statistics()["live_blocks"] == 1
    del buffer
    assert pool.pool_statistics()["live_blocks"] == 0


def test_a_log(in_folder):
    aquifer.reinitialize(pool_allocator=True, logging=True, log_file_name="a.csv")
    assert aquifer.get_log_filenames() == {0: str(in_folder / "a.dev0.csv")}
    log = current()
    assert type(log) is mr.LoggingResourceAdaptor and type(log.upstream_mr) is mr.PoolMemoryResource
    DeviceBuffer(size=10)
    aquifer.reinitialize()
    assert aquifer.get_log_filenames() == {0: None}
    with open("a.dev0.csv") as file:
        assert [(row["Action"], row["Size"]) for row in csv.DictReader(file)] == [("allocate", "10"), ("free", "10")]


def test_a_log_in_the_same_file_again(in_folder):
    for size in (1, 2):
        aquifer.reinitialize(logging=True, log_file_name="a.csv")
        DeviceBuffer(size=size)
    aquifer.disable_logging()
    with open("a.dev0.csv") as file:
        assert [row["Size"] for row in csv.DictReader(file)] == ["2", "2"]


def test_hooks():
    calls = []

    def hook(*args, **kwargs):
        calls.append((args, kwargs, current()))

    before = current()
    assert aquifer.register_reinitialize_hook(hook, 1, name="first") is hook
    aquifer.register_reinitialize_hook(hook)
    aquifer.reinitialize()
    # The last one is the first to be called, and all of them before anything changes.
    assert calls == [((), {}, before), ((1,), {"name": "first"}, before)]
    aquifer.unregister_reinitialize_hook(hook)
    aquifer.reinitialize()
    assert len(calls) == 2
    aquifer.unregister_reinitialize_hook(hook)


def test_a_hook_that_is_a_method():
    calls = []
    aquifer.register_reinitialize_hook(calls.append, 1)
    # Another object, which is equal.
    aquifer.unregister_reinitialize_hook(calls.append)
    aquifer.reinitialize()
    assert calls == []


def test_a_hook_as_a_decorator():
    calls = []

    @aquifer.register_reinitialize_hook
    def hook():
        calls.append(1)

    aquifer.reinitialize()
    assert calls == [1] and hook() is None


def test_a_hook_that_raises():
    before = current()

    def hook():
        raise KeyError("mine")

    aquifer.register_reinitialize_hook(hook)
    with pytest.raises(KeyError, match="mine"):
        aquifer.reinitialize()
    assert current() is before


def test_a_hook_that_ends_itself():
    calls = []

    def hook():
        calls.append(1)
        aquifer.unregister_reinitialize_hook(hook)

    aquifer.register_reinitialize_hook(lambda: calls.append(2))
    aquifer.register_reinitialize_hook(hook)
    aquifer.reinitialize()
    aquifer.reinitialize()
    assert calls == [1, 2, 2]


def test_is_initialized():
    assert aquifer.is_initialized() is True
    aquifer.reinitialize()
    assert aquifer.is_initialized() is True
