"""The child of a fork: it gets an error, and ends as any process."""

from __future__ import annotations

import pytest

#: What a parent has, and what a child prints of a call.
PARENT = """
import os, sys, aquifer
from aquifer import mr
from aquifer._aquifer import HostMemory

def tried(call):
    try:
        return repr(call())
    except aquifer.Error as error:
        assert "fork" in str(error), error
        return "refused"

buffer = aquifer.to_device(b"abc")
own = aquifer.to_device(b"abc")
stream = aquifer.Stream()
host = HostMemory(100)
pool = mr.get_current_device_resource()
view = aquifer.DeviceBuffer.from_dlpack(buffer)
capsule = buffer.__dlpack__()
log = mr.LoggingResourceAdaptor(mr.CudaMemoryResource(), "a.csv")
logged = aquifer.DeviceBuffer(size=5, mr=log)
counted = mr.StatisticsResourceAdaptor(mr.PoolMemoryResource(pool))
blocks = counted.allocate(1000, stream)
"""

CHILD = """
sys.stdout.flush()
child = os.fork()
if child == 0:
    {body}
    sys.exit(0)
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status))
print(buffer.tobytes(), view.tobytes(), aquifer.to_device(b"xyz").tobytes())
"""


def program(body):
    return PARENT + CHILD.format(body=body)


@pytest.mark.parametrize(
    "call",
    [
        "aquifer.DeviceBuffer(size=10)",
        "aquifer.to_device(b'x')",
        "buffer.tobytes()",
        "buffer.copy_to_host()",
        "buffer.copy_from_host(b'x')",
        "buffer.copy()",
        "own.resize(1000)",
        "own.reserve(1000)",
        "buffer.__dlpack__()",
        "view.tobytes()",
        "aquifer.DeviceBuffer.from_dlpack(buffer)",
        "aquifer.Stream()",
        "stream.synchronize()",
        "HostMemory(10)",
        "mr.CudaMemoryResource()",
        "mr.set_current_device_resource(pool)",
        "pool.allocate(10)",
        "pool.deallocate(blocks, 1000)",
        "pool.trim()",
        "aquifer.use('pool')",
        "aquifer.reinitialize()",
        "aquifer.device_count()",
        "aquifer.memory_info()",
        "aquifer.is_simulated()",
        "log.flush()",
    ],
)
def test_a_call_is_refused(run_python, in_folder, call):
    printed = run_python(program(f"print(tried(lambda: {call}))"))
    assert printed.split("\n") == ["refused", "child 0", "b'abc' b'abc' b'xyz'", ""]


def test_what_needs_no_device(run_python, in_folder):
    body = """
    assert (buffer.size, len(buffer), buffer.device) == (3, 3, 0) and buffer.ptr > 0
    assert repr(buffer).startswith("<aquifer.DeviceBuffer of 3 B at ")
    assert repr(stream).startswith("<aquifer.Stream own, device 0") and aquifer.Stream(stream) == stream
    assert mr.get_current_device_resource() is pool
    assert repr(pool).startswith("<aquifer.mr.DeviceMemoryResource 'pool(cuda, handles=off)', device 0")
    assert host.size == 100 and log.get_file_name().endswith("a.dev0.csv")
    assert aquifer.is_initialized()
    aquifer.memory_map(), counted.allocation_counts, aquifer.get_log_filenames()
"""
    assert run_python(program(body)).split("\n")[0] == "child 0"


def test_a_child_that_lets_go_of_all(run_python, in_folder):
    body = """
    del buffer, stream, host, pool, view, capsule, log, logged, counted
    import gc
    gc.collect()
"""
    assert run_python(program(body)).split("\n")[0] == "child 0"


def test_a_child_that_does_nothing(run_python, in_folder):
    assert run_python(program("pass")).split("\n")[0] == "child 0"


def test_a_child_that_raises(run_python, in_folder):
    body = """
    sys.stderr = sys.stdout
    aquifer.to_device(b"x")
"""
    lines = run_python(program(body)).strip().split("\n")
    assert (
        lines[-3].startswith("aquifer.Error: ") and "the child of a fork, whose parent had opened a device" in lines[-3]
    )
    assert lines[-2:] == ["child 1", "b'abc' b'abc' b'xyz'"]


def test_a_fork_while_threads_work(run_python, in_folder):
    body = """
    for _ in range(20):
        assert tried(lambda: aquifer.to_device(b"x")) == "refused"
        assert tried(aquifer.Stream) == "refused"
"""
    threads = """
import threading
is_over = threading.Event()
def work():
    own = aquifer.Stream()
    while not is_over.is_set():
        aquifer.to_device(bytes(1000), stream=own).tobytes()
        mr.CudaMemoryResource()
        counted.deallocate(counted.allocate(100, own), 100, own)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
"""
    ends = """
is_over.set()
for thread in threads:
    thread.join()
"""
    printed = run_python(PARENT + threads + CHILD.format(body=body) * 5 + ends)
    assert printed.count("child 0\n") == 5


def test_a_fork_before_any_use_of_a_device(run_python):
    printed = run_python("""
import os, sys, aquifer
child = os.fork()
if child == 0:
    print(aquifer.to_device(b"child").tobytes())
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(aquifer.to_device(b"parent").tobytes())
""")
    assert printed.split() == ["b'child'", "0", "b'parent'"]


def test_workers_of_multiprocessing(run_python, in_folder):
    # As of a data loader: what they do is the host's alone.
    printed = run_python(
        PARENT
        + """
import multiprocessing
with multiprocessing.get_context("fork").Pool(3) as workers:
    print(workers.map(abs, range(-5, 0)))
    print(workers.apply(repr, ("x",)))
    try:
        workers.apply(aquifer.DeviceBuffer.to_device, (b"x",))
    except aquifer.Error as error:
        print("refused", "fork" in str(error))
print(buffer.tobytes())
"""
    )
    assert printed.split("\n") == ["[5, 4, 3, 2, 1]", "'x'", "refused True", "b'abc'", ""]
