"""Memory resources: each class, each argument, what it refuses and how it shows itself."""

from __future__ import annotations

import gc
import logging
import os
import weakref

import aquifer
import pytest
from aquifer import DeviceBuffer, mr

MIB = 1 << 20


def statistics_of(resource, name):
    return resource.pool_statistics()[name]


def uses(resource, size=1000):
    """Allocates in both ways, and has what was written."""
    buffer = DeviceBuffer.to_device(bytes(size), mr=resource)
    assert buffer.mr is resource and buffer.tobytes() == bytes(size)
    stream = aquifer.Stream()
    address = resource.allocate(size, stream)
    aquifer.copy_host_to_ptr(b"\x01" * size, address, stream)
    host = bytearray(size)
    aquifer.copy_ptr_to_host(address, host, stream)
    resource.deallocate(address, size, stream)
    assert host == b"\x01" * size
    return True


# What has no upstream.


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (mr.CudaMemoryResource, "cuda"),
        (mr.ManagedMemoryResource, "managed(oversubscribe=true)"),
        (mr.SystemMemoryResource, "system"),
        (mr.PinnedHostMemoryResource, "pinned"),
        (mr.CudaAsyncMemoryResource, "async"),
        (lambda: mr.SamHeadroomMemoryResource(MIB), "system(headroom=1MiB)"),
        (lambda: mr.SamHeadroomMemoryResource(headroom="2MiB"), "system(headroom=2MiB)"),
        (lambda: mr.CudaAsyncMemoryResource(MIB), "async(initial_size=1MiB)"),
        (
            lambda: mr.CudaAsyncMemoryResource("1MiB", "2MiB", True, False),
            "async(initial_size=1MiB, release_threshold=2MiB, shareable=true)",
        ),
        (lambda: mr.CudaAsyncMemoryResource(release_threshold=0, enable_ipc=False), "async(release_threshold=0)"),
    ],
)
def test_what_has_no_upstream(make, text):
    resource = make()
    assert resource.text == text
    assert resource.device == 0
    assert repr(resource) == f"<aquifer.mr.{type(resource).__name__} '{text}', device 0>"
    assert isinstance(resource, mr.DeviceMemoryResource)
    assert not isinstance(resource, mr.UpstreamResourceAdaptor)
    assert resource.pool_statistics() == {}
    assert resource.trim() == 0
    if text != "async(initial_size=1MiB)":
        assert uses(resource)


def test_a_driver_pool_without_what_is_unknown():
    with pytest.raises(aquifer.Error, match="no pools of memory for a fabric.*handle type not supported$"):
        mr.CudaAsyncMemoryResource(enable_fabric=True)
    # The simulated device has none.
    with pytest.raises(aquifer.Error, match="no pools of managed memory"):
        mr.CudaAsyncManagedMemoryResource()


def test_a_view_of_a_driver_pool():
    class Handle:
        """As cuda.bindings has one."""

        def __int__(self):
            return 12345

    resource = mr.CudaAsyncViewMemoryResource(pool_handle=Handle())
    assert resource.pool_handle() == 12345
    assert resource.text is None
    assert repr(resource) == "<aquifer.mr.CudaAsyncViewMemoryResource, device 0>"
    with pytest.raises(ValueError, match="a null handle"):
        mr.CudaAsyncViewMemoryResource(0)
    # No pool has that handle.
    for allocate in (lambda: DeviceBuffer(size=10, mr=resource), lambda: resource.allocate(10)):
        with pytest.raises(MemoryError, match="CUDA_ERROR_INVALID") as caught:
            allocate()
        assert isinstance(caught.value, aquifer.AllocationError) and isinstance(caught.value, aquifer.Error)


def test_a_view_of_a_driver_pool_that_is_destroyed_below_it():
    pool = mr.CudaAsyncMemoryResource()
    assert isinstance(pool.pool_handle(), int)
    view = mr.CudaAsyncViewMemoryResource(pool.pool_handle())
    assert DeviceBuffer.to_device(b"abc", mr=view).tobytes() == b"abc"
    del pool
    with pytest.raises(MemoryError):
        DeviceBuffer(size=10, mr=view)


def test_a_view_of_what_is_no_handle():
    with pytest.raises(TypeError, match="NoneType"):
        mr.CudaAsyncViewMemoryResource(None)


# Sizes.


@pytest.mark.parametrize(
    ("size", "number"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("4096 B", 4096),
        ("4096b", 4096),
        ("4kB", 4000),
        ("4 kib", 4096),
        ("1.5MiB", 3 << 19),
        ("2.MB", 2_000_000),
        ("2MB", 2_000_000),
        ("1\tGiB", 1 << 30),
        ("3GB", 3_000_000_000),
        ("1TiB", 1 << 40),
        ("1TB", 10**12),
        ("1PiB", 1 << 50),
        ("1PB", 10**15),
    ],
)
def test_a_size(size, number):
    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), size)
    assert limited.get_allocation_limit() == number


def test_a_size_of_numpy():
    numpy = pytest.importorskip("numpy")
    assert mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), numpy.uint64(4096)).get_allocation_limit() == 4096


@pytest.mark.parametrize(
    "size", ["", "B", "1 foo", "1KK", "1k", "-1", "1e3", "0x10", "1.2.3", "1 2", ".5MiB", -1, -(1 << 70)]
)
def test_what_is_no_size(size):
    with pytest.raises(ValueError, match="Could not parse .* as a byte specification .give a number of bytes, or a text such as '64MiB' or '2GB'"):
        mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), size)


@pytest.mark.parametrize("size", [1.5, b"12", [], None])
def test_what_is_neither_a_number_nor_a_text(size):
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), size)


def test_a_size_that_is_too_large():
    with pytest.raises(ValueError, match="more than an address space holds"):
        mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 1 << 70)


@pytest.mark.parametrize(
    "make",
    [
        lambda size: mr.SamHeadroomMemoryResource(size),
        lambda size: mr.CudaAsyncMemoryResource(initial_pool_size=size),
        lambda size: mr.CudaAsyncMemoryResource(release_threshold=size),
        lambda size: mr.PoolMemoryResource(mr.CudaMemoryResource(), initial_pool_size=size),
        lambda size: mr.PoolMemoryResource(mr.CudaMemoryResource(), maximum_pool_size=size),
        lambda size: mr.FixedSizeMemoryResource(mr.CudaMemoryResource(), size),
        lambda size: mr.BinningMemoryResource(mr.CudaMemoryResource()).add_bin(size),
        lambda size: mr.ArenaMemoryResource(mr.CudaMemoryResource(), size),
        lambda size: mr.AlignedResourceAdaptor(mr.CudaMemoryResource(), 512, size),
        lambda size: aquifer.reinitialize(pool_allocator=True, initial_pool_size=size),
        lambda size: aquifer.reinitialize(pool_allocator=True, maximum_pool_size=size),
    ],
)
def test_all_sizes_are_texts_too(make):
    make("2MiB")
    with pytest.raises(ValueError, match="Could not parse '2 mebibytes' as a byte specification"):
        make("2 mebibytes")


# Adaptors, in general.

ADAPTORS = {
    "PoolMemoryResource": lambda upstream: mr.PoolMemoryResource(upstream),
    "FixedSizeMemoryResource": lambda upstream: mr.FixedSizeMemoryResource(upstream),
    "BinningMemoryResource": lambda upstream: mr.BinningMemoryResource(upstream),
    "ArenaMemoryResource": lambda upstream: mr.ArenaMemoryResource(upstream, "16MiB"),
    "FailureCallbackResourceAdaptor": lambda upstream: mr.FailureCallbackResourceAdaptor(upstream, lambda size: False),
    "LimitingResourceAdaptor": lambda upstream: mr.LimitingResourceAdaptor(upstream, "16MiB"),
    "LoggingResourceAdaptor": lambda upstream: mr.LoggingResourceAdaptor(upstream, "log.csv"),
    "StatisticsResourceAdaptor": lambda upstream: mr.StatisticsResourceAdaptor(upstream),
    "TrackingResourceAdaptor": lambda upstream: mr.TrackingResourceAdaptor(upstream),
    "PrefetchResourceAdaptor": lambda upstream: mr.PrefetchResourceAdaptor(upstream),
    "AlignedResourceAdaptor": lambda upstream: mr.AlignedResourceAdaptor(upstream),
    "CheckedResourceAdaptor": lambda upstream: mr.CheckedResourceAdaptor(upstream),
}


def test_all_adaptors_are_here():
    classes = {
        name for name, it in vars(mr).items() if isinstance(it, type) and issubclass(it, mr.UpstreamResourceAdaptor)
    }
    assert classes - {"UpstreamResourceAdaptor"} == set(ADAPTORS)
    assert set(mr.__all__) == {name for name in vars(mr) if name in mr.__all__}


@pytest.mark.parametrize("name", ADAPTORS)
def test_an_adaptor_and_its_upstream(name, in_folder):
    upstream = mr.CudaMemoryResource()
    gone = weakref.ref(upstream)
    resource = ADAPTORS[name](upstream)
    assert type(resource) is getattr(mr, name)
    assert isinstance(resource, mr.UpstreamResourceAdaptor)
    assert resource.upstream_mr is upstream and resource.get_upstream() is upstream
    assert resource.device == 0
    assert repr(resource).startswith(f"<aquifer.mr.{name}") and ", device 0" in repr(resource)
    del upstream
    gc.collect()
    assert gone() is resource.upstream_mr
    assert uses(resource)


@pytest.mark.parametrize("name", ADAPTORS)
def test_an_adaptor_of_no_resource(name, in_folder):
    for wrong, what in ((None, "NoneType"), ("cuda", "str"), (mr.CudaMemoryResource, "type")):
        with pytest.raises(
            TypeError, match=rf"{name}\(\) takes (a DeviceMemoryResource, and a {what} was given|one upstream)"
        ):
            ADAPTORS[name](wrong)
    with pytest.raises(TypeError):
        getattr(mr, name)()
    assert list(in_folder.iterdir()) == []


@pytest.mark.parametrize("name", ADAPTORS)
def test_an_adaptor_of_what_was_not_made(name, in_folder):
    class Unmade(mr.DeviceMemoryResource):
        def __init__(self):
            pass

    with pytest.raises(RuntimeError, match="the resource was not made"):
        ADAPTORS[name](Unmade())


def test_a_stack_of_all(in_folder):
    # Blocks of fixed size are not large enough for an arena.
    order = sorted(ADAPTORS, key=lambda name: name == "FixedSizeMemoryResource")
    resource = mr.CudaMemoryResource()
    for name in order:
        resource = ADAPTORS[name](resource)
    assert uses(resource)
    names = []
    while isinstance(resource, mr.UpstreamResourceAdaptor):
        names.append(type(resource).__name__)
        resource = resource.upstream_mr
    assert names == list(reversed(order))
    assert type(resource) is mr.CudaMemoryResource


def test_an_adaptor_is_over_any_resource():
    pool = aquifer.use("pool(cuda)")
    counted = mr.StatisticsResourceAdaptor(pool)
    assert counted.text == "pool(cuda, handles=off) | statistics"
    assert counted.upstream_mr is pool
    own = mr.StatisticsResourceAdaptor(counted)
    DeviceBuffer(size=10, mr=own)
    assert own.allocation_counts.total_count == counted.allocation_counts.total_count == 1


def test_classes_of_a_program():
    class Named(mr.PoolMemoryResource):
        def __init__(self, name):
            super().__init__(mr.CudaMemoryResource(), initial_pool_size="1MiB")
            self.name = name

    pool = Named("mine")
    assert (pool.name, pool.pool_size()) == ("mine", MIB)
    assert repr(pool).endswith("'pool(cuda, initial_size=1MiB, handles=off)', device 0, 0 B of 1.0 MiB in use>")
    assert ".<locals>.Named" in repr(pool)
    mr.set_current_device_resource(pool)
    assert mr.get_current_device_resource() is pool
    assert DeviceBuffer(size=1).mr is pool


def test_a_resource_that_was_not_made():
    class Unmade(mr.DeviceMemoryResource):
        def __init__(self):
            pass

    for resource in (Unmade(), mr.DeviceMemoryResource(), mr.UpstreamResourceAdaptor(mr.CudaMemoryResource())):
        assert repr(resource).endswith(", not made>")
        for call in (
            lambda: resource.allocate(1),
            lambda: resource.trim(),
            lambda: resource.pool_statistics(),
            lambda: resource.text,
            lambda: resource.device,
            lambda: DeviceBuffer(size=1, mr=resource),
            lambda: mr.set_current_device_resource(resource),
        ):
            with pytest.raises(RuntimeError, match="the resource was not made .a subclass calls super"):
                call()


# Allocations by addresses.


def test_allocations_by_addresses():
    resource = mr.PoolMemoryResource(mr.CudaMemoryResource())
    first, second = resource.allocate(100), resource.allocate(nbytes=100, stream=aquifer.default_stream())
    assert first != second and first % 256 == second % 256 == 0
    assert statistics_of(resource, "live_blocks") == 2
    assert resource.deallocate(first, 100) is None
    resource.deallocate(ptr=second, nbytes=100)
    assert statistics_of(resource, "live_blocks") == 0
    assert resource.allocate(0) == 0
    resource.deallocate(0, 0)


def test_wrong_frees():
    resource = mr.PoolMemoryResource(mr.CudaMemoryResource())
    address = resource.allocate(100)
    resource.deallocate(address, 100)
    with pytest.raises(ValueError, match=f"{address:#x} was freed before"):
        resource.deallocate(address, 100)
    with pytest.raises(ValueError, match="0x1234 is no block of this library"):
        resource.deallocate(0x1234, 100)
    buffer = DeviceBuffer.to_device(b"abc", mr=resource)
    with pytest.raises(ValueError, match="is no block of this library|was freed before"):
        resource.deallocate(buffer.ptr, buffer.size)
    assert buffer.tobytes() == b"abc"


def test_wrong_allocations():
    resource = mr.CudaMemoryResource()
    with pytest.raises(OverflowError, match="negative"):
        resource.allocate(-1)
    with pytest.raises(TypeError, match="str"):
        resource.allocate("1MiB")
    with pytest.raises(TypeError, match="a stream was expected, and a int was given"):
        resource.allocate(1, 0)
    with pytest.raises(aquifer.OutOfMemoryError, match="1099511627776 bytes"):
        resource.allocate(1 << 40)


def test_a_resource_that_is_gone_keeps_its_blocks():
    resource = mr.PoolMemoryResource(mr.CudaMemoryResource())
    address = resource.allocate(3)
    del resource
    gc.collect()
    aquifer.copy_host_to_ptr(b"abc", address)
    host = bytearray(3)
    aquifer.copy_ptr_to_host(address, host)
    assert host == b"abc"
    # Whichever resource is asked, a block goes back to where it came from.
    mr.CudaMemoryResource().deallocate(address, 3)


# Each class.


def test_a_pool():
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource(), "1MiB", maximum_pool_size=4 * MIB)
    assert pool.text == "pool(cuda, initial_size=1MiB, maximum_size=4MiB, handles=off)"
    assert pool.pool_size() == MIB
    assert repr(pool) == f"<aquifer.mr.PoolMemoryResource '{pool.text}', device 0, 0 B of 1.0 MiB in use>"
    buffer = DeviceBuffer(size=2 * MIB, mr=pool)
    assert repr(pool).endswith(", device 0, 2.0 MiB of 3.0 MiB in use>")
    with pytest.raises(aquifer.OutOfMemoryError) as raised:
        DeviceBuffer(size=3 * MIB, mr=pool)
    for figure in ("3145728 bytes", "2097152 bytes of them in use", "4194304"):
        assert figure in str(raised.value)
    del buffer
    assert DeviceBuffer(size=3 * MIB, mr=pool).size == 3 * MIB
    assert pool.pool_size() <= 4 * MIB


def test_the_upstream_of_a_pool_has_two_names():
    cuda = mr.CudaMemoryResource()
    for pool in (
        mr.PoolMemoryResource(cuda),
        mr.PoolMemoryResource(upstream=cuda),
        mr.PoolMemoryResource(upstream_mr=cuda),
    ):
        assert pool.upstream_mr is cuda
        assert (pool.text, pool.pool_size()) == ("pool(cuda, handles=off)", 0)
    for wrong in ({}, {"upstream": cuda, "upstream_mr": cuda}):
        with pytest.raises(TypeError, match=r"PoolMemoryResource\(\) takes one upstream"):
            mr.PoolMemoryResource(**wrong)


@pytest.mark.parametrize(
    ("sizes", "error", "text"),
    [
        (("2MiB", "1MiB"), aquifer.Error, "Initial pool size exceeds the maximum pool size .2097152 and 1048576 bytes"),
        ((1000,), ValueError, "no multiple of its alignment, 256 bytes"),
        (("8GiB",), aquifer.OutOfMemoryError, "8589934592 bytes"),
    ],
)
def test_a_pool_of_impossible_sizes(sizes, error, text):
    assert mr.PoolMemoryResource(mr.CudaMemoryResource(), MIB, MIB).pool_size() == MIB
    with pytest.raises(error, match=text):
        mr.PoolMemoryResource(mr.CudaMemoryResource(), *sizes)


def test_what_a_pool_has_done():
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource(), "4MiB")
    buffer = DeviceBuffer(size=MIB, mr=pool)
    statistics = pool.pool_statistics()
    assert statistics.pop("misses") <= 1 and MIB <= statistics.pop("largest_free_bytes") <= 3 * MIB
    assert statistics == {
        "reserved_bytes": 4 * MIB,
        "peak_reserved_bytes": 4 * MIB,
        "live_bytes": MIB,
        "live_blocks": 1,
        "asleep_bytes": 0,
        "free_bytes": 3 * MIB,
        "cached_bytes": 0,
        "upstream_blocks": 1,
        "streams": 1,
        "growths": 1,
        "returns": 0,
    }
    del buffer
    assert pool.trim(keep=4 * MIB, wait=True) == 0
    assert pool.trim(wait=True) == 4 * MIB
    assert (pool.pool_size(), statistics_of(pool, "returns")) == (0, 1)


def test_blocks_of_one_size():
    fixed = mr.FixedSizeMemoryResource(mr.CudaMemoryResource())
    assert fixed.text == "fixed_size(cuda, block_size=1MiB, blocks_per_chunk=128)"
    fixed = mr.FixedSizeMemoryResource(mr.CudaMemoryResource(), "4KiB", blocks_to_preallocate=4)
    assert fixed.text == "fixed_size(cuda, block_size=4KiB, blocks_per_chunk=4)"
    buffers = [DeviceBuffer(size=size, mr=fixed) for size in (1, 4095, 4096)]
    assert statistics_of(fixed, "reserved_bytes") == 4 * 4096
    assert sorted(buffer.ptr for buffer in buffers)[1] - sorted(buffer.ptr for buffer in buffers)[0] == 4096
    with pytest.raises(aquifer.OutOfMemoryError, match="4097 bytes"):
        DeviceBuffer(size=4097, mr=fixed)


def test_block_sizes_are_rounded_up():
    assert mr.FixedSizeMemoryResource(mr.CudaMemoryResource(), 1).text.startswith("fixed_size(cuda, block_size=256,")
    assert mr.FixedSizeMemoryResource(mr.CudaMemoryResource(), 1000).text.startswith(
        "fixed_size(cuda, block_size=1KiB,"
    )
    with pytest.raises(ValueError, match="blocks of 0 bytes"):
        mr.FixedSizeMemoryResource(mr.CudaMemoryResource(), 0)
    with pytest.raises(ValueError, match="chunks of no blocks"):
        mr.FixedSizeMemoryResource(mr.CudaMemoryResource(), 4096, 0)
    with pytest.raises(TypeError, match="str"):
        mr.FixedSizeMemoryResource(mr.CudaMemoryResource(), 4096, "4")


def test_bins():
    binning = mr.BinningMemoryResource(mr.CudaMemoryResource(), 10, 12)
    assert [bin.text.split(", blocks")[0] for bin in binning.bin_mrs] == [
        f"fixed_size(cuda, block_size={size}" for size in ("1KiB", "2KiB", "4KiB")
    ]
    assert binning.text is None
    assert repr(binning) == "<aquifer.mr.BinningMemoryResource, device 0, 0 B of 0 B in use>"
    buffers = [DeviceBuffer(size=size, mr=binning) for size in (1, 1024, 1025, 4096, 4097)]
    assert [statistics_of(bin, "live_blocks") for bin in binning.bin_mrs] == [2, 1, 1]
    del buffers
    assert [statistics_of(bin, "live_blocks") for bin in binning.bin_mrs] == [0, 0, 0]


@pytest.mark.parametrize("exponents", [(), (10,), (-1, -1), (-1, 12), (10, -1), (12, 10)])
def test_no_bins(exponents):
    binning = mr.BinningMemoryResource(mr.CudaMemoryResource(), *exponents)
    assert binning.bin_mrs == []
    assert uses(binning)


def test_small_bins():
    # Bins below 256 bytes are one.
    binning = mr.BinningMemoryResource(mr.CudaMemoryResource(), min_size_exponent=1, max_size_exponent=9)
    assert [bin.text.split(", blocks")[0] for bin in binning.bin_mrs] == [
        f"fixed_size(cuda, block_size={size}" for size in (256, 512)
    ]
    binning.add_bin(1000)
    buffers = [DeviceBuffer(size=size, mr=binning) for size in (1, 300, 1024)]
    assert [statistics_of(bin, "live_blocks") for bin in binning.bin_mrs] == [1, 1, 1]
    assert all(buffer.ptr for buffer in buffers)


def test_bins_that_are_added():
    cuda = mr.CudaMemoryResource()
    binning = mr.BinningMemoryResource(upstream_mr=cuda)
    mr.set_current_device_resource(binning)
    before = DeviceBuffer.to_device(b"before")
    pool = mr.PoolMemoryResource(cuda)
    binning.add_bin("1MiB", pool)
    binning.add_bin(allocation_size=4096)
    assert [type(bin) for bin in binning.bin_mrs] == [mr.FixedSizeMemoryResource, mr.PoolMemoryResource]
    assert binning.bin_mrs[1] is pool
    assert binning.upstream_mr is cuda
    # The current resource has them, too.
    small, large = DeviceBuffer(size=4000), DeviceBuffer(size=5000)
    assert [statistics_of(bin, "live_blocks") for bin in binning.bin_mrs] == [1, 1]
    assert mr.get_current_device_resource() is binning
    assert before.tobytes() == b"before" and before.mr is small.mr is large.mr is binning
    del before, small, large
    assert [statistics_of(bin, "live_blocks") for bin in binning.bin_mrs] == [0, 0]
    # A second one of a size is in place of the first.
    binning.add_bin(4096, mr.CudaMemoryResource())
    assert [type(bin) for bin in binning.bin_mrs] == [mr.CudaMemoryResource, mr.PoolMemoryResource]
    with pytest.raises(TypeError, match="DeviceMemoryResource"):
        binning.add_bin(8192, "cuda")


def test_a_bin_that_is_refused_leaves_the_others():
    binning = mr.BinningMemoryResource(mr.CudaMemoryResource(), 10, 10)
    with pytest.raises(TypeError, match="DeviceMemoryResource"):
        binning.add_bin(8192, "cuda")
    assert len(binning.bin_mrs) == 1
    assert uses(binning)
    binning.add_bin(4096)
    assert len(binning.bin_mrs) == 2


def test_an_arena(in_folder):
    half = aquifer.memory_info()[0] // 2
    arena = mr.ArenaMemoryResource(mr.CudaMemoryResource())
    assert arena.text == "arena(cuda)"
    assert half - 2 * MIB < statistics_of(arena, "reserved_bytes") <= half
    arena = mr.ArenaMemoryResource(mr.CudaMemoryResource(), arena_size="4MiB")
    assert arena.text == "arena(cuda, arena_size=4MiB)"
    assert statistics_of(arena, "reserved_bytes") == 4 * MIB
    with pytest.raises(aquifer.OutOfMemoryError, match="8388608 bytes"):
        DeviceBuffer(size=8 * MIB, mr=arena)
    assert list(in_folder.iterdir()) == []


def test_an_arena_that_says_what_it_holds(in_folder):
    arena = mr.ArenaMemoryResource(mr.CudaMemoryResource(), 4 * MIB, dump_log_on_failure=True)
    with pytest.raises(aquifer.OutOfMemoryError):
        DeviceBuffer(size=8 * MIB, mr=arena)
    assert [path.name for path in in_folder.iterdir()] == ["rmm_arena_memory_dump.log"]
    assert "8388608" in (in_folder / "rmm_arena_memory_dump.log").read_text()


POOLS = {
    "pool": lambda upstream: mr.PoolMemoryResource(upstream, "2MiB"),
    "fixed size": lambda upstream: mr.FixedSizeMemoryResource(upstream),
    "bins": lambda upstream: mr.BinningMemoryResource(upstream, 10, 12),
    "arena": lambda upstream: mr.ArenaMemoryResource(upstream, "2MiB"),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_that_is_gone_gives_its_memory_back(name):
    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), "1GiB")
    resource = POOLS[name](limited)
    buffer = DeviceBuffer(size=1000, mr=resource)
    del resource
    gc.collect()
    assert limited.get_allocated_bytes() >= 1000 and buffer.size == 1000
    del buffer
    gc.collect()
    assert limited.get_allocated_bytes() == 0


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_that_was_current_gives_its_memory_back(name):
    limited, before = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), "1GiB"), mr.get_current_device_resource()
    mr.set_current_device_resource(POOLS[name](limited))
    address = mr.get_current_device_resource().allocate(1000)
    mr.set_current_device_resource(before)
    gc.collect()
    assert limited.get_allocated_bytes() >= 1000
    before.deallocate(address, 1000)
    assert limited.get_allocated_bytes() == 0


def test_a_limit():
    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), allocation_limit="4KiB")
    assert limited.text == "cuda | limiting(4KiB)"
    assert (limited.get_allocated_bytes(), limited.get_allocation_limit()) == (0, 4096)
    buffer = DeviceBuffer(size=3072, mr=limited)
    assert limited.get_allocated_bytes() == 3072
    with pytest.raises(aquifer.OutOfMemoryError, match="under a limit of 4096 bytes, with 3072 bytes allocated"):
        DeviceBuffer(size=2048, mr=limited)
    del buffer
    assert limited.get_allocated_bytes() == 0
    assert DeviceBuffer(size=4096, mr=limited).size == 4096


def test_what_is_in_use():
    tracked = mr.TrackingResourceAdaptor(mr.CudaMemoryResource())
    assert tracked.text == "cuda | tracking"
    assert (tracked.get_allocated_bytes(), tracked.get_outstanding_allocations_str()) == (0, "")
    first, second = DeviceBuffer(size=1000, mr=tracked), DeviceBuffer(size=10, mr=tracked)
    assert tracked.get_allocated_bytes() == 1010
    lines = tracked.get_outstanding_allocations_str().splitlines()
    assert len(lines) == 3
    assert "2 blocks, 1010 bytes in all" in lines[0]
    assert f"1000 bytes at {first.ptr:#x}" in lines[1]
    assert f"10 bytes at {second.ptr:#x}" in lines[2]
    del first, second
    assert (tracked.get_allocated_bytes(), tracked.get_outstanding_allocations_str()) == (0, "")


def test_what_is_in_use_and_the_calls_that_led_to_it():
    tracked = mr.TrackingResourceAdaptor(mr.CudaMemoryResource(), capture_stacks=True)
    assert tracked.text == "cuda | tracking(capture_backtraces=true)"
    buffer = DeviceBuffer(size=10, mr=tracked)
    assert " in " in tracked.get_outstanding_allocations_str()
    assert buffer.size == 10


def test_what_is_in_use_in_a_log(caplog):
    tracked = mr.TrackingResourceAdaptor(mr.CudaMemoryResource())
    buffer = DeviceBuffer(size=10, mr=tracked)
    with caplog.at_level(logging.INFO, logger="aquifer"):
        tracked.log_outstanding_allocations()
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("aquifer", "INFO")
    assert f"{buffer.ptr:#x}" in record.getMessage()


def test_alignment():
    aligned = mr.AlignedResourceAdaptor(mr.CudaMemoryResource())
    assert aligned.text == "cuda | aligned(256, 0)"
    aligned = mr.AlignedResourceAdaptor(
        mr.PoolMemoryResource(mr.CudaMemoryResource()), alignment=1 << 16, alignment_threshold="1KiB"
    )
    assert aligned.text == "pool(cuda, handles=off) | aligned(64KiB, 1KiB)"
    buffers = [DeviceBuffer(size=size, mr=aligned) for size in (100, 1024, 100, 2048)]
    assert all(buffer.ptr % (1 << 16) == 0 for buffer in buffers if buffer.size >= 1024)
    with pytest.raises(ValueError, match="100 bytes was asked, which is not a power of two"):
        mr.AlignedResourceAdaptor(mr.CudaMemoryResource(), 100)
    with pytest.raises(TypeError, match="str"):
        mr.AlignedResourceAdaptor(mr.CudaMemoryResource(), "4KiB")


def test_prefetches_and_checks():
    assert mr.PrefetchResourceAdaptor(mr.ManagedMemoryResource()).text == "managed(oversubscribe=true) | prefetch"
    assert mr.CheckedResourceAdaptor(mr.CudaMemoryResource()).text == "cuda | checked"


# Callbacks.


def test_callbacks():
    cuda, calls = mr.CudaMemoryResource(), []

    def allocate(nbytes, stream):
        calls.append(("allocate", nbytes, stream))
        return cuda.allocate(nbytes, stream)

    def deallocate(ptr, nbytes, stream):
        calls.append(("deallocate", nbytes, stream, ptr))
        cuda.deallocate(ptr, nbytes, stream)

    resource = mr.CallbackMemoryResource(allocate_func=allocate, deallocate_func=deallocate)
    assert resource.text is None
    assert repr(resource) == "<aquifer.mr.CallbackMemoryResource, device 0>"
    mr.set_current_device_resource(resource)
    stream = aquifer.Stream()
    buffer = DeviceBuffer.to_device(b"abc", stream=stream)
    address = buffer.ptr
    assert calls == [("allocate", 3, stream)]
    assert type(calls[0][2]) is aquifer.Stream
    assert buffer.tobytes() == b"abc"
    del buffer
    assert calls[1:] == [("deallocate", 3, stream, address)]
    # Empty ones do not reach them.
    assert DeviceBuffer(size=0).ptr == 0 and resource.allocate(0) == 0
    assert len(calls) == 2


def test_callbacks_that_are_methods():
    cuda = mr.CudaMemoryResource()
    resource = mr.CallbackMemoryResource(cuda.allocate, cuda.deallocate)
    assert DeviceBuffer.to_device(b"abc", mr=resource).tobytes() == b"abc"


def test_a_block_of_a_callback_that_is_a_block_itself(monkeypatch):
    told = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: told.append(str(unraisable.exc_value)))
    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), MIB)
    resource = mr.CallbackMemoryResource(limited.allocate, limited.deallocate)
    address = resource.allocate(1000)
    resource.deallocate(address, 1000)
    assert told == []
    assert limited.get_allocated_bytes() == 0


def test_a_second_free_does_not_reach_what_a_callback_allocated():
    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 8 * MIB)
    pool = mr.PoolMemoryResource(mr.CallbackMemoryResource(limited.allocate, limited.deallocate))
    first = pool.allocate(1000)
    held = limited.get_allocated_bytes()
    pool.deallocate(first, 1000)
    with pytest.raises(ValueError, match="was freed before"):
        pool.deallocate(first, 1000)
    assert limited.get_allocated_bytes() == held
    assert pool.allocate(1000) == first
    pool.deallocate(first, 1000)
    assert pool.trim(wait=True) == held
    assert limited.get_allocated_bytes() == 0


def is_told(caught, raised):
    """An exception is the callback's, or a RuntimeError that it is the cause of."""
    if isinstance(raised, (MemoryError, RuntimeError, KeyboardInterrupt, SystemExit)):
        return caught is raised
    shows = f"a callback raised {type(raised).__name__}" in str(caught) and str(raised) in str(caught)
    return type(caught) is aquifer.Error and caught.__cause__ is raised and shows


@pytest.mark.parametrize(
    "raised",
    [
        KeyError("mine"),
        Exception("mine"),
        BaseException("mine"),
        RuntimeError("mine"),
        NotImplementedError("mine"),
        MemoryError("mine"),
        KeyboardInterrupt("mine"),
        SystemExit(3),
    ],
)
def test_a_callback_that_raises(raised):
    def allocate(nbytes, stream):
        raise raised

    resource = mr.CallbackMemoryResource(allocate, lambda ptr, nbytes, stream: None)
    for over in (resource, mr.StatisticsResourceAdaptor(resource)):
        with pytest.raises(BaseException) as caught:
            DeviceBuffer(size=1, mr=over)
        assert is_told(caught.value, raised)
    # By an address, and through another callback.
    outer = mr.CallbackMemoryResource(lambda nbytes, stream: resource.allocate(nbytes, stream), lambda *_: None)
    for call in (lambda: resource.allocate(1), lambda: DeviceBuffer(size=1, mr=outer)):
        with pytest.raises(BaseException) as caught:
            call()
        assert is_told(caught.value, raised)
    # In a constructor that allocates.
    with pytest.raises(BaseException) as caught:
        mr.PoolMemoryResource(resource, initial_pool_size=1 << 20)
    assert is_told(caught.value, raised)


def test_a_stream_that_a_callback_keeps():
    kept, base = [], mr.CudaMemoryResource()

    def allocate(nbytes, stream):
        kept.append(stream)
        return base.allocate(nbytes, stream)

    resource = mr.CallbackMemoryResource(allocate, base.deallocate)
    for stream in (aquifer.Stream(), aquifer.Stream(flags=aquifer.CudaStreamFlags.NON_BLOCKING)):
        buffer, handle = DeviceBuffer(size=100, mr=resource, stream=stream), stream.handle
        del buffer, stream
        gc.collect()
        assert kept[-1].handle == handle
        kept[-1].synchronize()
        assert DeviceBuffer.to_device(b"abc", stream=kept[-1]).tobytes() == b"abc"


def test_a_callback_that_raises_below_a_pool():
    def full(nbytes, stream):
        raise MemoryError("no more")

    def broken(nbytes, stream):
        raise KeyError("mine")

    def pool(allocate):
        return mr.PoolMemoryResource(mr.CallbackMemoryResource(allocate, lambda ptr, nbytes, stream: None))

    with pytest.raises(MemoryError, match="no more"):
        DeviceBuffer(size=1, mr=pool(full))
    with pytest.raises(aquifer.Error, match="a callback raised KeyError: 'mine'"):
        DeviceBuffer(size=1, mr=pool(broken))


@pytest.mark.parametrize(
    ("returned", "error", "text"),
    [
        (0, aquifer.Error, "a callback returned 0x0, where memory at a multiple of 256 was asked"),
        (7, aquifer.Error, "a callback returned 0x7, where memory at a multiple of 256 was asked"),
        (-1, aquifer.Error, "a callback raised OverflowError: .*negative"),
        (1 << 64, aquifer.Error, "a callback raised OverflowError: .*too big"),
        (None, aquifer.Error, "a callback raised TypeError: .*NoneType"),
        ("x", aquifer.Error, "a callback raised TypeError: .*str"),
    ],
)
def test_a_callback_that_returns_no_address(returned, error, text):
    resource = mr.CallbackMemoryResource(lambda nbytes, stream: returned, lambda ptr, nbytes, stream: None)
    with pytest.raises(error, match=text):
        DeviceBuffer(size=1, mr=resource)


def test_a_callback_that_is_none():
    with pytest.raises(aquifer.Error, match="not callable"):
        DeviceBuffer(size=1, mr=mr.CallbackMemoryResource(3, 4))
    with pytest.raises(aquifer.Error, match="positional"):
        DeviceBuffer(size=1, mr=mr.CallbackMemoryResource(lambda nbytes: 0, lambda: None))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_free_that_raises_is_told(monkeypatch):
    told = []
    monkeypatch.setattr("sys.unraisablehook", told.append)
    cuda = mr.CudaMemoryResource()

    def deallocate(ptr, nbytes, stream):
        cuda.deallocate(ptr, nbytes, stream)
        raise KeyError("mine")

    buffer = DeviceBuffer(size=1, mr=mr.CallbackMemoryResource(cuda.allocate, deallocate))
    del buffer
    (unraisable,) = told
    assert unraisable.exc_type is KeyError
    assert unraisable.object is deallocate
    told.clear()


def test_callbacks_that_allocate():
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource())
    mr.set_current_device_resource(pool)
    kept = []

    def allocate(nbytes, stream):
        kept.append(DeviceBuffer.to_device(b"beside", stream=stream))
        return pool.allocate(nbytes, stream)

    resource = mr.CallbackMemoryResource(allocate, pool.deallocate)
    buffer = DeviceBuffer.to_device(b"abc", mr=mr.PoolMemoryResource(resource))
    assert (buffer.tobytes(), [it.tobytes() for it in kept]) == (b"abc", [b"beside"])


def test_a_resource_keeps_its_callbacks():
    class Functions:
        def allocate(self, nbytes, stream):
            return cuda.allocate(nbytes, stream)

        def deallocate(self, ptr, nbytes, stream):
            cuda.deallocate(ptr, nbytes, stream)

    cuda = mr.CudaMemoryResource()
    functions = Functions()
    gone = weakref.ref(functions)
    resource = mr.CallbackMemoryResource(functions.allocate, functions.deallocate)
    del functions
    gc.collect()
    buffer = DeviceBuffer(size=10, mr=resource)
    del resource
    gc.collect()
    assert gone() is not None
    del buffer
    gc.collect()
    assert gone() is None


def test_a_failure_is_told():
    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 4096)
    kept, sizes = [DeviceBuffer(size=4096, mr=limited)], []

    def free_one(nbytes):
        sizes.append(nbytes)
        return bool(kept and kept.pop())

    resource = mr.FailureCallbackResourceAdaptor(limited, callback=free_one)
    buffer = DeviceBuffer.to_device(b"abc", mr=resource)
    assert (sizes, buffer.tobytes()) == ([3], b"abc")
    with pytest.raises(aquifer.OutOfMemoryError, match="8192 bytes"):
        DeviceBuffer(size=8192, mr=resource)
    assert sizes == [3, 8192]


def test_a_failure_that_stays_is_told_sixteen_times():
    sizes = []
    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 0)
    resource = mr.FailureCallbackResourceAdaptor(limited, lambda nbytes: sizes.append(nbytes) or True)
    with pytest.raises(aquifer.OutOfMemoryError):
        DeviceBuffer(size=10, mr=resource)
    assert sizes == [10] * 16


@pytest.mark.parametrize("answer", [False, None, 0, "", []])
def test_an_answer_that_is_false(answer):
    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 0)
    sizes = []
    resource = mr.FailureCallbackResourceAdaptor(limited, lambda nbytes: sizes.append(nbytes) or answer)
    with pytest.raises(aquifer.OutOfMemoryError):
        DeviceBuffer(size=10, mr=resource)
    assert sizes == [10]


@pytest.mark.parametrize("raised", [RuntimeError("mine"), KeyError("mine"), MemoryError("mine"), KeyboardInterrupt()])
def test_what_is_told_of_a_failure_and_raises(raised):
    def callback(nbytes):
        raise raised

    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 4096)
    resource = mr.StatisticsResourceAdaptor(mr.FailureCallbackResourceAdaptor(limited, callback))
    with pytest.raises(BaseException) as caught:
        DeviceBuffer(size=10_000, mr=resource)
    assert is_told(caught.value, raised)
    assert DeviceBuffer.to_device(b"abc", mr=resource).tobytes() == b"abc"


def test_what_is_told_of_a_failure_and_answers_nothing():
    class Odd:
        def __bool__(self):
            raise ValueError("neither")

    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 0)
    with pytest.raises(aquifer.Error, match="a callback raised ValueError: neither"):
        DeviceBuffer(size=10, mr=mr.FailureCallbackResourceAdaptor(limited, lambda nbytes: Odd()))
    with pytest.raises(aquifer.Error, match="a callback raised TypeError: .*not callable"):
        DeviceBuffer(size=10, mr=mr.FailureCallbackResourceAdaptor(limited, 3))


def test_a_failure_inside_of_what_is_told_of_one():
    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 0)

    def inner(nbytes):
        raise KeyError("inner")

    inside = mr.FailureCallbackResourceAdaptor(limited, inner)
    caught = []

    def outer(nbytes):
        try:
            DeviceBuffer(size=5, mr=inside)
        except aquifer.Error as error:
            caught.append(error.__cause__)
        return False

    # What the callback has caught, nobody gets again.
    with pytest.raises(aquifer.OutOfMemoryError):
        DeviceBuffer(size=10, mr=mr.FailureCallbackResourceAdaptor(limited, outer))
    assert [error.args for error in caught] == [("inner",)]


# The current resource.


def test_the_current_resource():
    resource = mr.CudaMemoryResource()
    assert mr.set_current_device_resource(mr=resource) is None
    assert mr.get_current_device_resource() is resource
    assert mr.get_per_device_resource(0) is mr.get_per_device_resource(device=None) is resource
    other = mr.CudaMemoryResource()
    mr.set_per_device_resource(device=0, mr=other)
    assert mr.get_current_device_resource() is other
    assert DeviceBuffer(size=1).mr is other


def test_wrong_current_resources():
    resource = mr.CudaMemoryResource()
    for wrong in (None, "cuda", mr.CudaMemoryResource):
        with pytest.raises(TypeError, match="DeviceMemoryResource"):
            mr.set_current_device_resource(wrong)
    with pytest.raises(aquifer.Error, match="device 7 was asked for"):
        mr.get_per_device_resource(7)
    with pytest.raises(ValueError, match="a resource of device 0 was set for device 7"):
        mr.set_per_device_resource(7, resource)
    with pytest.raises(TypeError, match="str"):
        mr.get_per_device_resource("0")
    assert mr.get_current_device_resource() is not resource


def test_a_current_resource_is_kept():
    resource = mr.CudaMemoryResource()
    gone = weakref.ref(resource)
    mr.set_current_device_resource(resource)
    del resource
    gc.collect()
    assert mr.get_current_device_resource() is gone()
    mr.set_current_device_resource(mr.CudaMemoryResource())
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("variable", "text"),
    [(None, "pool(cuda, handles=off)"), ("managed | statistics", "managed | statistics"), ("pool(async)", "pool(async)")],
)
def test_the_first_current_resource(run_python, variable, text):
    variables = {} if variable is None else {"AQUIFER_STACK": variable}
    printed = run_python("import aquifer; print(aquifer.mr.get_current_device_resource().text)", **variables)
    assert printed.strip() == text


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("pool", "pool(cuda, handles=off)"),
        ("pool(cuda, max=1GiB) | statistics", "pool(cuda, maximum_size=1GiB, handles=off) | statistics"),
        ("pool(handles=on)", "pool(cuda, handles=on)"),
        ("pool(handles=auto)", "pool(cuda, handles=auto)"),
        ("pool(managed)", "pool(managed)"),
        ("pool(virtual)", "pool(virtual)"),
    ],
)
def test_the_handles_of_a_pool(run_python, text, made):
    """CUDA's way to share memory, which other libraries call, works unless a text says otherwise."""
    assert aquifer.use(text).text == made
    printed = run_python("import aquifer; print(aquifer.mr.get_current_device_resource().text)", AQUIFER_STACK=text)
    assert printed.strip() == made


def test_the_handles_of_a_pool_of_a_class():
    over = mr.PoolMemoryResource
    assert over(mr.CudaMemoryResource()).text == "pool(cuda, handles=off)"
    assert over(over(mr.CudaMemoryResource())).text == "pool(pool(cuda, handles=off))"
    assert over(mr.ManagedMemoryResource()).text == "pool(managed(oversubscribe=true))"


def test_a_wrong_first_current_resource(run_python):
    program = "import aquifer\ntry: aquifer.to_device(b'abc')\nexcept aquifer.Error as error: print(error)"
    assert "AQUIFER_STACK: column 1 of a stack's text" in run_python(program, AQUIFER_STACK="pond(cuda)")


def test_use():
    used = aquifer.use("pool(cuda, max=80%) | statistics")
    assert mr.get_current_device_resource() is used
    assert used.text == "pool(cuda, maximum_size=80%, handles=off) | statistics"
    assert type(used) is mr.DeviceMemoryResource
    with pytest.raises(ValueError, match='column 6 of a stack\'s text: "pond" is no resource'):
        aquifer.use("pool(pond)")
    assert mr.get_current_device_resource() is used


def test_memory_and_whether_it_can_be_had():
    free, total = mr.available_device_memory()
    assert 0 < free <= total
    buffer = DeviceBuffer(size=64 * MIB, mr=mr.CudaMemoryResource())
    assert mr.available_device_memory() == (free - 64 * MIB, total)
    assert buffer.size == 64 * MIB
    assert mr.is_initialized() is aquifer.is_initialized() is True


def test_files_are_not_left():
    assert not os.path.exists("rmm_arena_memory_dump.log")
