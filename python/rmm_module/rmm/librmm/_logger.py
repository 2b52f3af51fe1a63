"""The levels of the debug log."""

from aquifer import level_enum

__all__ = ["level_enum"]
