"""What has a public name says what its parameters are, what it raises, and how to call it."""

from __future__ import annotations

import ast
import inspect
import re
import types
from enum import Enum
from pathlib import Path

from aquifer import _aquifer

#: Functions, and classes that are called, which raise nothing of their own. What an argument of a wrong type raises,
#: as everywhere in Python, needs no line.
RAISES_NOTHING = {
    "aquifer.CudaStreamPool.get_pool_size",
    "aquifer.DeviceBuffer.capacity",
    "aquifer.MemoryMap",
    "aquifer.Sleep",
    "aquifer.Stream.is_default",
    "aquifer.cupy.set_allocator",
    "aquifer.current_device",
    "aquifer.disable_logging",
    "aquifer.flush_logger",
    "aquifer.get_flush_level",
    "aquifer.get_log_filenames",
    "aquifer.get_logging_level",
    "aquifer.is_initialized",
    "aquifer.mr.CudaAsyncManagedMemoryResource.pool_handle",
    "aquifer.mr.CudaAsyncMemoryResource.pool_handle",
    "aquifer.mr.CudaAsyncViewMemoryResource.pool_handle",
    "aquifer.mr.DeviceMemoryResource",
    "aquifer.mr.DeviceMemoryResource.pool_statistics",
    "aquifer.mr.LimitingResourceAdaptor.get_allocated_bytes",
    "aquifer.mr.LoggingResourceAdaptor.get_file_name",
    "aquifer.mr.PoolMemoryResource.pool_size",
    "aquifer.mr.TrackingResourceAdaptor.log_outstanding_allocations",
    "aquifer.mr.UpstreamResourceAdaptor",
    "aquifer.mr.UpstreamResourceAdaptor.get_upstream",
    "aquifer.mr.is_initialized",
    "aquifer.numba.AquiferNumbaManager",
    "aquifer.numba.set_memory_manager",
    "aquifer.numpy.page_locked_arrays",
    "aquifer.pinned.PinnedStatistics",
    "aquifer.register_reinitialize_hook",
    "aquifer.statistics.ProfilerContext",
    "aquifer.statistics.ProfilerRecords",
    "aquifer.statistics.ProfilerRecords.MemoryRecord",
    "aquifer.statistics.ProfilerRecords.MemoryRecord.add",
    "aquifer.statistics.ProfilerRecords.add",
    "aquifer.statistics.Statistics",
    "aquifer.torch.mem_pool",
    "aquifer.torch.use_mem_pool",
    "aquifer.unregister_reinitialize_hook",
}

#: Parameters with a size, which say so.
SIZES = {
    "alignment",
    "alignment_threshold",
    "allocation_limit",
    "allocation_size",
    "arena_size",
    "block_size",
    "blocks",
    "count",
    "current_bytes",
    "headroom",
    "initial_pool_size",
    "keep",
    "maximum_pool_size",
    "maximum_size",
    "memory_peak",
    "memory_total",
    "nbytes",
    "new_capacity",
    "new_size",
    "peak_bytes",
    "release_threshold",
    "size",
    "smallest",
    "total_bytes",
    "upstream_blocks",
    "zeros_from",
}

#: Of these a parameter of such a name is something else.
NO_SIZES = {"aquifer.sleep.keep"}


def is_called(named):
    """Whether users call it, and do not only catch it, read it or choose one of its members."""
    thing = named.thing
    if isinstance(thing, type):
        return not issubclass(thing, (BaseException, Enum))
    return not (isinstance(thing, (types.ModuleType, property)) or inspect.isgetsetdescriptor(thing))


def parameters(named):
    signature = inspect.signature(named.thing)
    names = [name for name in signature.parameters if not name.startswith("_")]
    of_object = named.owner is not None and not isinstance(named.thing, type)
    return [name for name in names if not (of_object and name == "self")]


def field(doc, name):
    """The text of a parameter, to the next field or paragraph."""
    found = re.search(rf"^:param {name}:(.*?)(?=^:|^\s*$|\Z)", doc, re.MULTILINE | re.DOTALL)
    return None if found is None else found[1].strip()


def test_says_what_it_is(named):
    first = named.doc.partition("\n")[0].strip()
    assert first, f"{named.name} has no docstring"
    assert not first.startswith(":"), f"the docstring of {named.name} begins with a field"


def test_parameters(named):
    if not is_called(named):
        return
    for name in parameters(named):
        text = field(named.doc, name)
        assert text, f"{named.name} says nothing of its parameter {name} (`:param {name}: ...`)"
        if name in SIZES and f"{named.name}.{name}" not in NO_SIZES:
            assert re.search(r"\b(bytes?|as there)\b", text), f"{named.name}: the parameter {name} has no unit"
    for name in re.findall(r"^:param (\w+):", named.doc, re.MULTILINE):
        assert name in parameters(named), f"{named.name} has no parameter {name}"


def test_errors(named):
    if not is_called(named):
        return
    says = re.search(r"^:raises [\w.]+:", named.doc, re.MULTILINE) is not None
    assert says != (named.name in RAISES_NOTHING), f"{named.name}: `:raises ...:`, or a line in RAISES_NOTHING"


def test_example(named):
    if ">>> " in named.doc:
        return
    assert named.owner is not None, f"{named.name} has no example"
    owner = inspect.getdoc(named.owner) or ""
    lines = [line for line in owner.splitlines() if line.strip().startswith((">>> ", "... "))]
    assert lines, f"{named.name} has no example, nor has its class"
    if is_called(named):
        used = f".{named.thing.__name__}("
        assert any(used in line for line in lines), f"{named.name} is in no example of its class"


def documented_in_stub(node, thing):
    """The text of each docstring in the stub, and the native object that it is of."""
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)) and (found := vars(thing).get(child.name)) is not None:
            text = ast.get_docstring(child)
            if text is not None:
                yield child.name, text, found.__func__ if isinstance(found, staticmethod) else found
            if isinstance(child, ast.ClassDef):
                yield from documented_in_stub(child, found)


def test_the_stub_says_what_the_native_module_says():
    """An editor shows the stub's sentence, and ``help`` the native text, which begins with it."""
    stub = ast.parse(Path(_aquifer.__file__).with_name("_aquifer.pyi").read_text())
    texts = list(documented_in_stub(stub, _aquifer))
    assert len(texts) > 50
    others = [name for name, text, native in texts if not " ".join(native.__doc__.split()).startswith(text)]
    assert not others
