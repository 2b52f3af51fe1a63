"""The native part of ``aquifer``."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, SupportsIndex, TypeAlias, TypedDict, TypeVar, final, overload

import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer, CapsuleType, NotRequired, Self, disjoint_base

from aquifer._statistics import Statistics

__all__ = [
    "AllocationError",
    "DeviceBuffer",
    "DeviceMemoryResource",
    "Error",
    "HostMemory",
    "OutOfMemoryError",
    "Stream",
    "__version__",
    "_choose_device",
    "_devices_with_resource",
    "_driver_version",
    "_flush_logs",
    "_logging_level",
    "_set_logging_level",
    "copy_device_to_ptr",
    "copy_host_to_ptr",
    "copy_ptr_to_host",
    "current_device",
    "default_stream",
    "device_count",
    "device_name",
    "get_per_device_resource",
    "is_simulated",
    "memory_info",
    "numpy_data_handler",
    "numpy_page_locked_blocks",
    "numpy_set_handler",
    "pinned_limits",
    "pinned_set_limits",
    "pinned_statistics",
    "pinned_trim",
    "set_per_device_resource",
    "simulate",
]

__version__: str

# NumPy's arrays are a Buffer to a checker from Python 3.12 on.
_HostBytes: TypeAlias = Buffer | NDArray[Any]
_Buffer = TypeVar("_Buffer", bound=Buffer | NDArray[Any])

class _HasProtocol(Protocol):
    """cuda.core, and what has its protocol."""

    def __cuda_stream__(self) -> tuple[int, int]: ...

class _HasProtocolProperty(Protocol):
    """The same of old versions."""

    @property
    def __cuda_stream__(self) -> tuple[int, int]: ...

class _HasPtr(Protocol):
    """CuPy."""

    @property
    def ptr(self) -> int: ...

class _HasCudaStream(Protocol):
    """PyTorch."""

    @property
    def cuda_stream(self) -> int: ...

class _HasHandle(Protocol):
    """Numba."""

    @property
    def handle(self) -> Any: ...

_AnyStream: TypeAlias = Stream | _HasProtocol | _HasProtocolProperty | _HasPtr | _HasCudaStream | _HasHandle

class _ArrayInterface(TypedDict):
    data: tuple[int, bool]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    typestr: str
    version: int
    stream: NotRequired[int]

class _HasArrayInterface(Protocol):
    @property
    def __cuda_array_interface__(self) -> Any: ...

class _HasDLPack(Protocol):
    def __dlpack_device__(self) -> tuple[Any, int]: ...
    def __dlpack__(self, *, stream: Any = ...) -> Any: ...

class Error(RuntimeError):
    """A call failed for what is not the caller's argument and not memory: of the driver, the device or the process."""

class OutOfMemoryError(MemoryError):
    """The device, the host or a limit has no room."""

class AllocationError(Error, MemoryError):
    """The driver refused an allocation, for another reason than room."""

@final
class Stream:
    """A stream of CUDA: a queue of work, in whose order memory is allocated and freed."""

    def __new__(cls, obj: _AnyStream | None = None, flags: int | None = None) -> Self: ...
    @property
    def handle(self) -> int:
        """The driver's handle, a ``cudaStream_t``, as a number."""

    @property
    def ptr(self) -> int:
        """The driver's handle, as CuPy calls ``handle``."""

    @property
    def device(self) -> int:
        """The number of its device."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol by which libraries take each other's streams: a version, and the handle."""

    def is_default(self) -> bool:
        """Whether it is the legacy default stream, for which all streams wait that are not made non-blocking."""

    def synchronize(self) -> None:
        """Blocks until the stream has done all that it was given."""

    def wait(self, other: _AnyStream | None) -> None:
        """Has the stream's later work come after what another one was given so far."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@disjoint_base
class DeviceMemoryResource:
    """What hands out device memory, on the device that was current when it was made."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self: ...
    @property
    def text(self) -> str | None:
        """The text of its stack, as ``aquifer.use`` takes it."""

    @property
    def device(self) -> int:
        """The number of its device."""

    def allocate(self, nbytes: int, stream: _AnyStream = ...) -> int:
        """Memory for work on a stream, from this call on."""

    def deallocate(self, ptr: int, nbytes: int, stream: _AnyStream = ...) -> None:
        """Gives memory back in the order of a stream: work that was given to it before may use the memory."""

    def trim(self, keep: int = 0, *, wait: bool = False) -> int:
        """Gives free memory back to the driver, as far as the device is past its work on it."""

    def _sleep(self, keep: str, folder: str | None = None) -> int: ...
    def _wake(self) -> None: ...
    @property
    def _is_asleep(self) -> bool: ...
    def pool_statistics(self) -> dict[str, int]:
        """What the outermost pool holds and did, as a dict of numbers."""

    def _build(self, text: str, upstream: DeviceMemoryResource | None = None) -> None: ...
    def _build_callback(
        self,
        allocate: Callable[[int, Stream], int],
        deallocate: Callable[[int, int, Stream], None],
    ) -> None: ...
    def _build_failure_callback(self, upstream: DeviceMemoryResource, callback: Callable[[int], bool]) -> None: ...
    def _build_binning(
        self,
        upstream: DeviceMemoryResource,
        bins: Sequence[tuple[int, DeviceMemoryResource]],
    ) -> None: ...
    def _build_pool_view(self, handle: int) -> None: ...
    def _upstreams(self) -> list[DeviceMemoryResource]: ...
    @property
    def allocation_counts(self) -> Statistics:
        """What the outermost ``statistics`` has counted, in bytes and blocks."""

    def push_counters(self) -> Statistics:
        """Opens a scope of the process, in which the calls of all threads count from zero."""

    def pop_counters(self) -> Statistics:
        """Ends the innermost scope of the process, whichever thread opened it."""

    def get_allocated_bytes(self) -> int:
        """The bytes in use, of the outermost ``tracking``, or else ``limiting``."""

    def get_allocation_limit(self) -> int:
        """The limit of the outermost ``limiting``, in bytes."""

    def get_outstanding_allocations_str(self) -> str:
        """The blocks in use of the outermost ``tracking``, a line each, with their bytes."""

    def _counters(self) -> tuple[int, int, int, int, int, int] | None: ...
    def _push_counters(self) -> tuple[int, int, int, int, int, int] | None: ...
    def _pop_counters(self) -> tuple[int, int, int, int, int, int] | None: ...
    def _tracked(self) -> tuple[str, int] | None: ...
    def _limited(self) -> tuple[int, int] | None: ...
    def _pool_maximum(self) -> int | None: ...
    def _flush(self) -> None: ...
    def _pool_handle(self) -> int | None: ...
    def _memory_map(self) -> tuple[list[tuple[int, int]], list[tuple[int, int, bool]]] | None: ...

@final
class DeviceBuffer:
    """Device memory of a size in bytes, not written yet."""

    def __new__(
        cls,
        *,
        ptr: int = 0,
        size: int = 0,
        stream: _AnyStream = ...,
        mr: DeviceMemoryResource | None = None,
    ) -> Self: ...
    @staticmethod
    def to_device(
        b: _HostBytes,
        stream: _AnyStream = ...,
        mr: DeviceMemoryResource | None = None,
    ) -> DeviceBuffer:
        """A copy of the bytes of a host's object."""

    @staticmethod
    def _of_array(
        array: _HostBytes,
        stream: _AnyStream = ...,
        mr: DeviceMemoryResource | None = None,
    ) -> DeviceBuffer: ...
    @staticmethod
    def _for_any_stream(size: int) -> DeviceBuffer: ...
    @staticmethod
    def from_dlpack(obj: _HasDLPack, stream: _AnyStream | None = None) -> DeviceBuffer:
        """Another library's memory without a copy, by DLPack."""

    @property
    def ptr(self) -> int:
        """The address on the device, as a number."""

    @property
    def size(self) -> int:
        """The size in bytes."""

    @property
    def nbytes(self) -> int:
        """The size in bytes."""

    @property
    def stream(self) -> Stream:
        """The stream in whose order the memory is used and freed."""

    @stream.setter
    def stream(self, stream: _AnyStream | None) -> None: ...
    @property
    def mr(self) -> DeviceMemoryResource | None:
        """The resource that the memory came from."""

    @property
    def device(self) -> int:
        """The number of its device."""

    def __len__(self) -> int: ...
    def __sizeof__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, _memo: Any) -> Self: ...
    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Callable[..., DeviceBuffer], tuple[Any]]: ...
    def capacity(self) -> int:
        """How many bytes the memory has room for without moving."""

    def reserve(self, new_capacity: int, stream: _AnyStream = ...) -> None:
        """Makes room for a later ``resize``."""

    def resize(self, new_size: int, stream: _AnyStream = ...) -> None:
        """Changes the size."""

    def copy(self) -> Self:
        """A copy in new memory of the same resource and stream."""

    @overload
    def copy_to_host(self, ary: None = None, stream: _AnyStream = ...) -> NDArray[numpy.uint8]:
        """Copies the bytes to a host's object."""

    @overload
    def copy_to_host(self, ary: _Buffer, stream: _AnyStream = ...) -> _Buffer:
        """Copies the bytes to a host's object."""

    def copy_from_host(self, ary: _HostBytes, stream: _AnyStream = ...) -> None:
        """Overwrites the first bytes with those of a host's object."""

    def copy_from_device(self, cuda_ary: _HasArrayInterface, stream: _AnyStream = ...) -> None:
        """Overwrites the first bytes with those of an array on the device."""

    def tobytes(self, stream: _AnyStream = ...) -> bytes:
        """The bytes, as the host's."""

    @property
    def __cuda_array_interface__(self) -> _ArrayInterface:
        """How Numba, CuPy and others see the memory: an array of bytes."""

    def prefetch(self, device: int | None = None, stream: _AnyStream | None = None) -> None:
        """Moves managed memory to its device or to the host."""

    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """The memory for another library, by DLPack: an array of bytes."""

@final
class HostMemory:
    """Page-locked host memory, which the device copies from and to at the full speed of the bus."""

    def __new__(cls, nbytes: int) -> Self: ...
    @property
    def ptr(self) -> int:
        """The address, for the host and for devices."""

    @property
    def size(self) -> int:
        """The size in bytes."""

def device_count() -> int:
    """How many devices there are: 1 where that is the simulated one, 0 without a GPU."""

def current_device() -> int:
    """The number of the calling thread's current device: 0 unless a library has chosen another."""

def device_name(device: int | None = None) -> str:
    """A device's name."""

def simulate() -> None:
    """From now on device 0 is a simulated one where there is no GPU."""

def is_simulated() -> bool:
    """Whether device 0 is the simulated one, whose memory is the host's and on which no kernel runs."""

def memory_info(device: int | None = None) -> tuple[int, int]:
    """The free and the total memory of a device, in bytes."""

def default_stream(device: int | None = None) -> Stream:
    """The legacy default stream of a device."""

def get_per_device_resource(device: int | None = None) -> DeviceMemoryResource:
    """The current resource of a device: what was set, or what ``AQUIFER_STACK`` describes, or a pool."""

def set_per_device_resource(device: int | None, mr: DeviceMemoryResource) -> None:
    """Sets the current resource of a device, for buffers and for the libraries whose allocators are set."""

def copy_ptr_to_host(db: int, hb: _HostBytes, stream: _AnyStream = ...) -> None:
    """Copies device memory at an address to a host's object."""

def copy_host_to_ptr(hb: _HostBytes, db: int, stream: _AnyStream = ...) -> None:
    """Copies the bytes of a host's object to device memory at an address."""

def copy_device_to_ptr(d_src: int, d_dst: int, count: int, stream: _AnyStream = ...) -> None:
    """Copies device memory from an address to another."""

def numpy_data_handler(from_bytes: int, zeros_from: int) -> CapsuleType: ...
def pinned_trim(keep: int) -> int: ...
def pinned_statistics() -> tuple[int, int, int, int]: ...
def pinned_limits() -> tuple[int | None, int | None]: ...
def pinned_set_limits(
    maximum_size: int | None, release_threshold: int | None, touch_threads: int | None
) -> None: ...
def numpy_set_handler(handler: CapsuleType | None) -> CapsuleType: ...
def numpy_page_locked_blocks() -> tuple[int, int]: ...
def _logging_level() -> int: ...
def _set_logging_level(level: int) -> None: ...
def _choose_device(number: int | None) -> int | None: ...
def _devices_with_resource() -> list[int]: ...
def _flush_logs() -> None: ...
def _driver_version() -> int | None: ...
