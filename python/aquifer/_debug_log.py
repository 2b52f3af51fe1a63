"""The debug log: what pools do, as a line of text each, by RMM's names."""

from __future__ import annotations

from enum import IntEnum

from aquifer import _aquifer

__all__ = [
    "flush_logger",
    "get_flush_level",
    "get_logging_level",
    "level_enum",
    "set_flush_level",
    "set_logging_level",
    "should_log",
]


class level_enum(IntEnum):
    """The levels of the debug log, from what says most to what says nothing.

    >>> import aquifer
    >>> aquifer.level_enum.debug < aquifer.level_enum.off
    True
    """

    trace = 0
    debug = 1
    info = 2
    warn = 3
    error = 4
    critical = 5
    off = 6
    n_levels = 7


_flush_level = level_enum.info


def _checked(level: level_enum) -> level_enum:
    if not isinstance(level, level_enum):
        raise TypeError(f"level must be an instance of the level_enum enum, and {level!r} was given")
    return level


def set_logging_level(level: level_enum) -> None:
    """Writes events of this level and those above it to the debug log, from now on.

    The log is the file that the variable ``AQUIFER_DEBUG_LOG_FILE`` or ``RMM_DEBUG_LOG_FILE`` names, and standard error
    without either. Lines are added at the end of the file. Without a file and without this call nothing is written.

    :param level: the level. Pools tell of growth and of memory that they give back at ``debug``, and of failures at
        ``warn`` and ``error``.
    :raises TypeError: for what is no ``level_enum``.
    :raises aquifer.Error: for a file that cannot be opened.

    >>> import aquifer
    >>> aquifer.set_logging_level(aquifer.level_enum.off)
    >>> aquifer.get_logging_level()
    <level_enum.off: 6>
    """
    _aquifer._set_logging_level(_checked(level))


def get_logging_level() -> level_enum:
    """The level from which on events are written: ``info`` at first.

    >>> import aquifer
    >>> aquifer.should_log(aquifer.get_logging_level()) or aquifer.get_logging_level() >= aquifer.level_enum.off
    True
    """
    return level_enum(_aquifer._logging_level())


def should_log(level: level_enum) -> bool:
    """Whether an event of a level would be written to the debug log.

    :param level: the level.
    :raises TypeError: for what is no ``level_enum``.

    >>> import aquifer
    >>> aquifer.set_logging_level(aquifer.level_enum.error)
    >>> aquifer.should_log(aquifer.level_enum.debug), aquifer.should_log(aquifer.level_enum.critical)
    (False, True)
    >>> aquifer.set_logging_level(aquifer.level_enum.off)
    """
    return get_logging_level() <= _checked(level) < level_enum.off


def flush_logger() -> None:
    """Does nothing: each line is in the file when the call that caused it returns.

    >>> import aquifer
    >>> aquifer.flush_logger()
    """


def set_flush_level(level: level_enum) -> None:
    """Notes the level from which on lines are flushed. They always are.

    :param level: what :func:`get_flush_level` returns from now on.
    :raises TypeError: for what is no ``level_enum``.

    >>> import aquifer
    >>> aquifer.set_flush_level(aquifer.level_enum.warn)
    >>> aquifer.get_flush_level()
    <level_enum.warn: 3>
    >>> aquifer.set_flush_level(aquifer.level_enum.info)
    """
    global _flush_level
    _flush_level = _checked(level)


def get_flush_level() -> level_enum:
    """What :func:`set_flush_level` was given: ``info`` at first.

    >>> import aquifer
    >>> aquifer.get_flush_level()
    <level_enum.info: 2>
    """
    return _flush_level
