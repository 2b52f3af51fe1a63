"""A process ends without a word, whatever was imported in whatever order, and whatever is alive."""

import importlib.util
import itertools
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

LIBRARIES = {
    "aquifer": "import aquifer",
    "numpy": "import numpy",
    "numba": "import numba.cuda",
    "cupy": "import cupy",
}

#: What the libraries that are imported have at the end. Without a GPU, the plug-ins have a context and a stream of this.
OBJECTS = """
import sys, types
import aquifer, aquifer._on_gpu
# No work of theirs uses the memory here.
aquifer._on_gpu._ASKED |= {"CuPy", "Numba"}
objects = [aquifer.to_device(b'abc'), aquifer.Stream()]
objects += [aquifer.DeviceBuffer(size=10, stream=objects[1]), objects[0].__dlpack__()]
assert objects[0].tobytes() == b'abc'
if "numpy" in sys.modules:
    with aquifer.numpy_handler():
        objects += [sys.modules["numpy"].ones(100_000), sys.modules["numpy"].ones(10)]
if "numba.cuda" in sys.modules:
    context = types.SimpleNamespace(device=types.SimpleNamespace(id=0))
    manager = aquifer.AquiferNumbaManager(context=context)
    objects += [manager.memalloc(1000), manager.memalloc(10).own(), manager]
if "cupy" in sys.modules:
    import aquifer.cupy
    aquifer.cupy.get_current_stream = lambda: types.SimpleNamespace(ptr=0)
    aquifer.cupy._current_handle = aquifer.cupy.get_device_id = lambda: 0
    objects += [aquifer.cupy_allocator(1000) + 10, aquifer.cupy_pinned_allocator(1000)]
libraries = {name for name in ("numba", "cupy") if name in sys.modules}
if libraries:
    aquifer.set_allocators(*libraries)
"""

#: Where they are then.
PLACES = [
    # Globals, in the order of their names.
    "for number, it in enumerate(objects): globals()[f'kept{number}'] = it",
    "objects.append(objects); del objects",
    "import atexit; atexit.register(lambda objects: objects.clear(), objects); del objects",
    "class Holder: pass\nHolder.objects = objects; Holder.itself = Holder; del objects",
    "import threading, time; threading.Thread(target=lambda it: (time.sleep(0.1), it.clear()), args=(objects,)).start()",
    "sys.modules['mine'] = types.ModuleType('mine'); sys.modules['mine'].objects = objects; sys.objects = objects; del objects",
]

INSTALLED = [name for name in LIBRARIES if importlib.util.find_spec("numba_cuda" if name == "numba" else name)]

#: What is alive at the end, by names of the case.
ALIVE = {
    "buffers": "made = [aquifer.to_device(bytes(1000)) for _ in range(10)]",
    "streams": "made = [aquifer.Stream() for _ in range(3)]; buffer = aquifer.DeviceBuffer(size=10, stream=made[0])",
    "resources": "made = aquifer.mr.StatisticsResourceAdaptor(aquifer.mr.get_current_device_resource())",
    "a capsule": "made = aquifer.to_device(b'abc').__dlpack__()",
    "a view of a view": "made = aquifer.DeviceBuffer.from_dlpack(aquifer.DeviceBuffer.from_dlpack(aquifer.to_device(b'abc')))",
    "a tag that sleeps": """
        with aquifer.tag("weights"):
            made = aquifer.to_device(bytes(1000))
        aquifer.sleep("weights")""",
    "a file that keeps a tag": """
        with aquifer.tag("weights"):
            made = aquifer.to_device(bytes(1000))
        slept = aquifer.sleep("weights", keep="file", folder=".")""",
    "a cycle": "made = [aquifer.to_device(b'abc')]; made.append(made)",
    "a cycle through a class": """
        class Holder:
            pass
        holder = Holder(); holder.itself = holder; holder.buffer = aquifer.to_device(b'abc')
        del holder""",
    "atexit": """
        import atexit
        atexit.register(lambda: aquifer.to_device(b'late').tobytes())
        kept = aquifer.to_device(b'abc'); atexit.register(kept.tobytes)""",
    "a finalizer": """
        class Late:
            def __init__(self): self.buffer = aquifer.to_device(b'abc')
            def __del__(self): self.buffer.tobytes(); aquifer.DeviceBuffer(size=10)
        late = Late()""",
    "callbacks": """
        upstream = aquifer.mr.CudaMemoryResource()
        mr = aquifer.mr.CallbackMemoryResource(upstream.allocate, upstream.deallocate)
        aquifer.mr.set_current_device_resource(mr)
        made = [aquifer.DeviceBuffer(size=100) for _ in range(3)]""",
    "a log": "aquifer.enable_logging('exit.csv'); made = aquifer.DeviceBuffer(size=100)",
    "a daemon thread": """
        import threading
        def work():
            while True:
                aquifer.to_device(bytes(100)).tobytes()
        threading.Thread(target=work, daemon=True).start()
        import time; time.sleep(0.2)""",
    "a thread that ends late": """
        import threading, time
        kept = aquifer.to_device(b'abc')
        threading.Thread(target=lambda: (time.sleep(0.3), kept.tobytes())).start()""",
    "arrays of NumPy": """
        import numpy
        with aquifer.numpy_handler():
            made = [numpy.ones(100_000) for _ in range(3)]""",
    "a handler that stays": """
        import numpy
        handler = aquifer.numpy_handler(); handler.__enter__()
        made = numpy.ones(100_000)""",
    "a daemon thread that makes arrays": """
        import threading, time
        import numpy
        def work():
            with aquifer.numpy_handler(smallest=1000):
                while True:
                    numpy.ones(100_000).sum()
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)""",
    "arrays at exit": """
        import atexit
        import numpy
        kept = []
        def late():
            with aquifer.numpy_handler():
                kept.append(numpy.ones(100_000))
                kept.append(numpy.zeros(100_000))
        atexit.register(late)""",
    "arrays in cycles and finalizers": """
        import numpy
        class Late:
            def __del__(self):
                with aquifer.numpy_handler():
                    self.more = numpy.ones(100_000) + self.array
        with aquifer.numpy_handler():
            late = Late(); late.array = numpy.ones(100_000); late.itself = late
            objects = numpy.empty(100_000, "O"); objects[0] = late; objects[1] = aquifer.to_device(b'abc')
            objects[2] = objects""",
    "callbacks of a daemon thread": """
        import threading, time
        upstream = aquifer.mr.PoolMemoryResource(aquifer.mr.CudaMemoryResource())
        mr = aquifer.mr.CallbackMemoryResource(
            lambda bytes, stream: upstream.allocate(bytes, stream),
            lambda address, bytes, stream: upstream.deallocate(address, bytes, stream),
        )
        def work():
            while True:
                aquifer.DeviceBuffer(size=100, mr=mr)
        threading.Thread(target=work, daemon=True).start()
        kept = [aquifer.DeviceBuffer(size=100, mr=mr) for _ in range(5)]; kept.append(kept)
        time.sleep(0.2)""",
    "callbacks of failures": """
        limited = aquifer.mr.LimitingResourceAdaptor(aquifer.mr.CudaMemoryResource(), 1200)
        kept = []
        mr = aquifer.mr.FailureCallbackResourceAdaptor(limited, lambda bytes: bool(kept and kept.pop()))
        for _ in range(5):
            kept.append(aquifer.DeviceBuffer(size=512, mr=mr))
        assert len(kept) == 2
        kept.append(kept)""",
    "a pool of threads": """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(4)
        kept = list(pool.map(lambda number: aquifer.to_device(bytes(number)), range(100)))""",
    "buffers of cuda.core": """
        import aquifer.cuda_core
        class HostOnly(aquifer.cuda_core.AquiferMemoryResource):
            is_device_accessible = False
        mr = HostOnly()
        made = [mr.allocate(1000, stream=None) for _ in range(3)]; made.append(made)""",
    "the child of a fork": """
        import os
        import numpy
        with aquifer.numpy_handler():
            made = [aquifer.to_device(b'abc'), aquifer.Stream(), numpy.ones(100_000)]
            child = os.fork()
            made.append(numpy.ones(100_000))
        if child:
            assert os.waitpid(child, 0)[1] == 0""",
    "sys.exit in a callback": """
        import sys
        aquifer.to_device(b'abc')
        sys.exit(0)""",
}


def run(program: str, folder: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, cwd=folder, env=os.environ
    )
    return done.returncode, done.stderr


def test_every_order_of_imports(tmp_path):
    orders = list(itertools.permutations(INSTALLED))
    places = itertools.cycle(PLACES)
    programs = ["\n".join([*(LIBRARIES[name] for name in order), OBJECTS, next(places)]) for order in orders]
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda program: run(program, str(tmp_path)), programs))
    assert [(order, end) for order, end in zip(orders, ended, strict=True) if end != (0, "")] == []


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_imports_with_all_that_is_alive(count, tmp_path):
    """Each place with each library alone, with none and with two."""
    others = [name for name in INSTALLED if name != "aquifer"]
    chosen = list(itertools.combinations(others, count))
    if count == 2:
        # All places are in the orders of all four.
        places = PLACES[:1]
    else:
        places = PLACES
    programs = [
        "\n".join([*(LIBRARIES[name] for name in names), OBJECTS, place]) for names in chosen for place in places
    ]
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda program: run(program, str(tmp_path)), programs))
    assert [(program, end) for program, end in zip(programs, ended, strict=True) if end != (0, "")] == []


@pytest.mark.parametrize("case", ALIVE)
def test_what_is_alive_at_the_end(case, tmp_path):
    program = ALIVE[case]
    if "import numpy" in program:
        pytest.importorskip("numpy")
    if "cuda_core" in program:
        pytest.importorskip("cuda.core")
    assert run("import aquifer\n" + textwrap.dedent(program), str(tmp_path)) == (0, "")
