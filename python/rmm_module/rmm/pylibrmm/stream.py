"""Streams. The default ones are asked for where they are used, so this import opens no device."""

from aquifer import CudaStreamFlags, Stream, default_stream

__all__ = ["DEFAULT_STREAM", "LEGACY_DEFAULT_STREAM", "PER_THREAD_DEFAULT_STREAM", "CudaStreamFlags", "Stream"]

DEFAULT_STREAM: Stream
LEGACY_DEFAULT_STREAM: Stream

class _PerThreadDefaultStream:
    """The default stream of whatever thread uses it. Aquifer's calls refuse it, and say why."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 2


PER_THREAD_DEFAULT_STREAM = _PerThreadDefaultStream()


def __getattr__(name: str) -> Stream:
    if name in ("DEFAULT_STREAM", "LEGACY_DEFAULT_STREAM"):
        return default_stream()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
