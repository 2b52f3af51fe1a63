"""Daemon threads that are in a call of Aquifer's into the interpreter, or about to return to it, as the process ends.

``AQUIFER_EXIT_RUNS`` is how often each program runs.
"""

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

RUNS = int(os.environ.get("AQUIFER_EXIT_RUNS", "1"))

#: `stay` is the function that Aquifer calls. Its threads give the interpreter up by a call that waits, or are asked to.
BEGIN = """
import itertools, threading, time
import aquifer

inside, numbers = threading.Semaphore(0), itertools.count()

def stay(*_, **__):
    if threading.current_thread() is threading.main_thread():
        return
    waits = next(numbers) % 3 < 2
    inside.release()
    while True:
        if waits:
            time.sleep(0.0001)
"""

#: The interpreter is up to the threads for a moment after the end began.
END = """
class Late:
    def __del__(self, sleep=time.sleep):
        sleep(0.03)

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
for _ in range(3):
    assert inside.acquire(timeout=30), "no thread came there"
_late = Late()
"""

#: How a thread comes to `stay`.
CALLS = {
    "allocate": """
        mr = aquifer.mr.CallbackMemoryResource(stay, stay)
        def work(): aquifer.DeviceBuffer(size=100, mr=mr)""",
    "allocate, for the resource's own method": """
        mr = aquifer.mr.CallbackMemoryResource(stay, stay)
        def work(): mr.allocate(100)""",
    "allocate, for bins": """
        mr = aquifer.mr.CallbackMemoryResource(stay, stay)
        def work(): aquifer.mr.BinningMemoryResource(mr, 10, 20).allocate(100_000_000)""",
    "allocate, for a C function": """
        import ctypes
        aquifer.mr.set_current_device_resource(aquifer.mr.CallbackMemoryResource(stay, stay))
        allocate = ctypes.CDLL(aquifer._aquifer.__file__).aquifer_torch_alloc_nothrow
        allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        def work(): allocate(100, 0, None)""",
    "deallocate": """
        upstream = aquifer.mr.CudaMemoryResource()
        mr = aquifer.mr.CallbackMemoryResource(upstream.allocate, stay)
        def work(): aquifer.DeviceBuffer(size=100, mr=mr)""",
    "deallocate, for the resource's own method": """
        upstream = aquifer.mr.CudaMemoryResource()
        mr = aquifer.mr.CallbackMemoryResource(upstream.allocate, stay)
        def work(): mr.deallocate(mr.allocate(100), 100)""",
    "deallocate, for a capsule": """
        upstream = aquifer.mr.CudaMemoryResource()
        mr = aquifer.mr.CallbackMemoryResource(upstream.allocate, stay)
        def work(): aquifer.DeviceBuffer(size=100, mr=mr).__dlpack__()""",
    "what is told of an exception in deallocate": """
        import sys
        upstream = aquifer.mr.CudaMemoryResource()
        mr = aquifer.mr.CallbackMemoryResource(upstream.allocate, lambda *_: 1 / 0)
        sys.unraisablehook = stay
        def work(): aquifer.DeviceBuffer(size=100, mr=mr)""",
    "the callback of a failure": """
        limited = aquifer.mr.LimitingResourceAdaptor(aquifer.mr.CudaMemoryResource(), 100)
        mr = aquifer.mr.FailureCallbackResourceAdaptor(limited, stay)
        def work(): aquifer.DeviceBuffer(size=1000, mr=mr)""",
    "the answer of a failure's callback": """
        class Answer: __bool__ = stay
        limited = aquifer.mr.LimitingResourceAdaptor(aquifer.mr.CudaMemoryResource(), 100)
        mr = aquifer.mr.FailureCallbackResourceAdaptor(limited, lambda bytes: Answer())
        def work(): aquifer.DeviceBuffer(size=1000, mr=mr)""",
    "a stream's protocol": """
        class Theirs: __cuda_stream__ = stay
        def work(): aquifer.Stream(Theirs())""",
    "a stream's attribute": """
        class Theirs: device_id = property(stay)
        def work(): aquifer.DeviceBuffer(size=1, stream=Theirs())""",
    "a stream's number": """
        class Number: __int__ = stay
        class Theirs: ptr = Number()
        def work(): aquifer.to_device(b"abc", Theirs())""",
    "the end of a stream's object": """
        class Theirs:
            def __init__(self, handle): self.ptr = handle
        class WithEnd(Theirs): __del__ = stay
        streams = [aquifer.Stream() for _ in range(6)]
        def work():
            aquifer.Stream(WithEnd(streams.pop().handle))
            aquifer.Stream(Theirs(streams.pop().handle))""",
    "a size": """
        class Size: __index__ = stay
        def work(): aquifer.DeviceBuffer(size=Size())""",
    "a size of host memory": """
        class Size: __index__ = stay
        def work(): aquifer._aquifer.HostMemory(Size())""",
    "a size in a list": """
        class Size: __index__ = stay
        mr = aquifer.mr.CudaMemoryResource()
        def work(): aquifer.mr.DeviceMemoryResource()._build_binning(mr, [(Size(), mr)])""",
    "an address": """
        class Address: __index__ = stay
        def work(): aquifer.copy_device_to_ptr(Address(), 0, 1)""",
    "the number of a device": """
        class Number: __index__ = stay
        def work(): aquifer.device_name(Number())""",
    "an array's interface": """
        class Array: __cuda_array_interface__ = property(stay)
        buffer = aquifer.DeviceBuffer(size=100)
        def work(): buffer.copy_from_device(Array())""",
    "a target's type": """
        class Target: dtype = property(stay)
        buffer = aquifer.DeviceBuffer(size=100)
        def work(): buffer.copy_to_host(Target())""",
    "a tensor's device": """
        class Tensor: __dlpack_device__ = stay
        def work(): aquifer.DeviceBuffer.from_dlpack(Tensor())""",
    "a tensor": """
        class Tensor:
            __dlpack__ = stay
            def __dlpack_device__(self): return 2, 0
        def work(): aquifer.DeviceBuffer.from_dlpack(Tensor())""",
    "the deleter of a tensor": """
        import ctypes
        class Tensor(ctypes.Structure):
            _fields_ = [
                ("data", ctypes.c_void_p), ("kind", ctypes.c_int), ("device", ctypes.c_int), ("dimensions", ctypes.c_int),
                ("type", ctypes.c_uint32), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
            ]
        deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(stay)
        memory, name = aquifer.DeviceBuffer(size=100), b"dltensor"
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        kept = []
        class Array:
            def __dlpack_device__(self): return 2, 0
            def __dlpack__(self, **_):
                pointer = ctypes.cast(deleter, ctypes.c_void_p).value
                kept.append(Tensor(memory.ptr, 2, 0, 0, 0x10801, None, None, 0, None, pointer))
                return capsule(ctypes.addressof(kept[-1]), name, None)
        def work(): aquifer.DeviceBuffer.from_dlpack(Array())""",
    "the end of a function that a resource has": """
        class Function:
            def __call__(self, *_): pass
            __del__ = stay
        def work(): aquifer.mr.CallbackMemoryResource(Function(), print)""",
    "the end of a function that a buffer's resource has": """
        upstream = aquifer.mr.CudaMemoryResource()
        class Function:
            def __call__(self, *arguments): return upstream.allocate(*arguments)
            __del__ = stay
        def work():
            mr = aquifer.mr.CallbackMemoryResource(Function(), upstream.deallocate)
            buffer = aquifer.DeviceBuffer(size=100, mr=mr)
            del mr
            del buffer""",
    "no function: they are in the library": """
        def work():
            inside.release()
            while True:
                aquifer.to_device(bytes(100)).tobytes()""",
}

#: What makes containers, where CPython up to 3.11 collects garbage.
COLLECTS = [
    "mr.pool_statistics()",
    "mr._counters()",
    "mr._pop_counters()",
    "mr._limited()",
    "mr._tracked()",
    "mr._upstreams()",
    "buffer.__cuda_array_interface__",
    "buffer.__dlpack_device__()",
    "stream.__cuda_stream__()",
    "aquifer.mr.DeviceMemoryResource.__new__(Resource)",
    "aquifer._aquifer._devices_with_resource()",
    "aquifer._aquifer.numpy_page_locked_blocks()",
]
CALLS |= {
    f"a finalizer in {ask}": f"""
        import gc
        class Cycle:
            def __init__(self): self.itself = self
            __del__ = stay
        class Resource(aquifer.mr.DeviceMemoryResource): pass
        one = threading.Lock()
        mr = aquifer.use("pool(cuda) | limiting(1GiB) | tracking | statistics")
        mr._push_counters()
        buffer, stream = aquifer.DeviceBuffer(size=100), aquifer.Stream()
        gc.disable()
        def work():
            if one.acquire(blocking=False):
                Cycle()
                gc.set_threshold(1)
                gc.enable()
                {ask}
            stay()"""
    for ask in COLLECTS
}


def run(program: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    return done.returncode, done.stderr


@pytest.mark.parametrize("call", CALLS)
def test_a_process_ends_with_daemon_threads_in(call):
    program = BEGIN + textwrap.dedent(CALLS[call]) + END
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(run, [program] * RUNS))
    assert [end for end in ended if end != (0, "")] == []


def test_a_thread_that_used_aquifer_ends_by_pthread_exit(run_python):
    """Where no frame of Aquifer's is on its stack: the thread that joins it goes on."""
    program = """
import ctypes
import aquifer
libc = ctypes.CDLL(None)
upstream = aquifer.mr.CudaMemoryResource()
mr = aquifer.mr.CallbackMemoryResource(upstream.allocate, upstream.deallocate)

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def start(_):
    assert aquifer.DeviceBuffer(size=100, mr=mr).size == 100
    libc.pthread_exit(None)

for _ in range(10):
    thread = ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(thread), None, start, None) == 0
    assert libc.pthread_join(thread, None) == 0
print("joined")
"""
    assert run_python(program) == "joined\n"
