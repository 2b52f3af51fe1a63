"""Streams. The default ones are asked for where they are used, so this import opens no device."""

from aquifer import CudaStreamFlags, Stream, default_stream

__all__ = ["DEFAULT_STREAM", "LEGACY_DEFAULT_STREAM", "CudaStreamFlags", "Stream"]


def __getattr__(name):
    if name in ("DEFAULT_STREAM", "LEGACY_DEFAULT_STREAM"):
        return default_stream()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
