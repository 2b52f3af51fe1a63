"""Resources whose functions refer to them: the collector of garbage finds these cycles."""

from __future__ import annotations

import gc
import weakref

import aquifer
import pytest
from aquifer import DeviceBuffer, mr


class Owner:
    """Has a resource whose functions are its methods."""

    def __init__(self):
        self.cuda = mr.CudaMemoryResource()
        self.calls = []
        self.resource = mr.CallbackMemoryResource(self.allocate, self.deallocate)

    def allocate(self, nbytes, stream):
        self.calls.append(nbytes)
        return self.cuda.allocate(nbytes, stream)

    def deallocate(self, ptr, nbytes, stream):
        self.calls.append(-nbytes)
        self.cuda.deallocate(ptr, nbytes, stream)


def is_gone(*references):
    gc.collect()
    return [reference() is None for reference in references] == [True] * len(references)


def test_a_callback_resource():
    owner = Owner()
    gone, resource = weakref.ref(owner), weakref.ref(owner.resource)
    assert DeviceBuffer(size=10, mr=owner.resource).size == 10
    assert owner.calls == [10, -10]
    gc.collect()
    assert gone() is owner
    del owner
    assert is_gone(gone, resource)


def test_a_failure_callback():
    class Program:
        def __init__(self):
            limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 100)
            self.resource = mr.FailureCallbackResourceAdaptor(limited, self.told)
            self.asked = []

        def told(self, nbytes):
            self.asked.append(nbytes)
            return False

    program = Program()
    with pytest.raises(MemoryError):
        DeviceBuffer(size=1000, mr=program.resource)
    assert len(program.asked) == 1
    gone = weakref.ref(program)
    del program
    assert is_gone(gone)


def test_a_function_that_refers_to_a_resource_above():
    made = []

    def allocate(nbytes, stream):
        return made[0].allocate(nbytes, stream)

    below = mr.CallbackMemoryResource(allocate, lambda *_: None)
    above = mr.StatisticsResourceAdaptor(below)
    made.append(above)
    gone = weakref.ref(below), weakref.ref(above)
    del below, above, made, allocate
    assert is_gone(*gone)


def test_a_resource_that_is_built_over_itself():
    resource = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    resource.__init__(resource)
    gone = weakref.ref(resource)
    del resource
    assert is_gone(gone)


def test_a_buffer_keeps_them():
    owner = Owner()
    gone, calls = weakref.ref(owner), owner.calls
    buffer = DeviceBuffer(size=10, mr=owner.resource)
    del owner
    assert not is_gone(gone)
    assert buffer.mr is gone().resource
    buffer.resize(1000)
    del buffer
    assert is_gone(gone)
    assert calls == [10, 1000, -10, -1000]


def test_memory_by_its_address_keeps_them():
    owner = Owner()
    gone, calls = weakref.ref(owner), owner.calls
    address = owner.resource.allocate(10)
    del owner
    gc.collect()
    # A block goes back to where it came from.
    mr.get_current_device_resource().deallocate(address, 10)
    assert calls == [10, -10]
    del calls
    assert gone() is None or gone().calls == [10, -10]


def test_the_current_resource_is_kept():
    owner = Owner()
    gone = weakref.ref(owner)
    before = mr.get_current_device_resource()
    mr.set_current_device_resource(owner.resource)
    del owner
    assert not is_gone(gone)
    assert aquifer.to_device(b"abc").tobytes() == b"abc"
    mr.set_current_device_resource(before)
    assert is_gone(gone)


def test_resources_are_known_to_the_collector():
    resource = mr.CallbackMemoryResource(lambda *_: 0, print)
    above = mr.PoolMemoryResource(resource)
    assert print in gc.get_referents(resource)
    assert resource in gc.get_referents(above)
    assert gc.is_tracked(aquifer.use("pool"))


def test_threads_while_garbage_is_collected(in_threads):
    def work():
        for _ in range(100):
            owner = Owner()
            DeviceBuffer(size=10, mr=owner.resource)
            assert owner.calls == [10, -10]

    def collect():
        for _ in range(50):
            gc.collect()

    in_threads(work, work, collect)
