"""The debug log, by RMM's names."""

from __future__ import annotations

import aquifer
import pytest
from aquifer import level_enum


@pytest.fixture(autouse=True)
def level_back():
    yield
    aquifer.set_logging_level(level_enum.info)
    aquifer.set_flush_level(level_enum.info)


@pytest.mark.parametrize("level", level_enum)
def test_a_level(level):
    aquifer.set_logging_level(level)
    assert aquifer.get_logging_level() is level
    aquifer.set_flush_level(level)
    assert aquifer.get_flush_level() is level
    for other in level_enum:
        assert aquifer.should_log(other) == (level <= other < level_enum.off)
    assert aquifer.flush_logger() is None


@pytest.mark.parametrize("level", ["INFO", 3, "invalid", 100, None, 1.2345, [1, 2, 3]])
def test_what_is_no_level(level):
    for call in (aquifer.set_logging_level, aquifer.set_flush_level, aquifer.should_log):
        with pytest.raises(TypeError, match="level must be an instance of the level_enum enum"):
            call(level)


PROGRAM = """
import aquifer
from aquifer import level_enum, mr
def grows():
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource())
    aquifer.DeviceBuffer(size=1000, mr=pool)
def fails():
    try: aquifer.DeviceBuffer(size=1 << 50, mr=mr.PoolMemoryResource(mr.CudaMemoryResource()))
    except MemoryError: pass
"""


@pytest.mark.parametrize("variable", ["AQUIFER_DEBUG_LOG_FILE", "RMM_DEBUG_LOG_FILE"])
def test_a_file(run_python, in_folder, variable):
    run_python(PROGRAM + "grows(); fails()", **{variable: "log.txt"})
    text = (in_folder / "log.txt").read_text()
    assert "WARN" in text and "out of memory" in text
    # What is below the level is not written.
    assert "pool grew" not in text
    run_python(PROGRAM + "aquifer.set_logging_level(level_enum.debug); grows()", **{variable: "log.txt"})
    assert "pool grew" in (in_folder / "log.txt").read_text()


def test_levels_change_as_the_program_runs(run_python, in_folder):
    steps = "\n".join(
        f"aquifer.set_logging_level(level_enum.{level}); grows(); fails(); print(len(open('log.txt').readlines()))"
        for level in ("off", "debug", "off", "critical", "warn")
    )
    printed = run_python(PROGRAM + steps, AQUIFER_DEBUG_LOG_FILE="log.txt")
    off, debug, off_again, critical, warn = map(int, printed.split())
    assert off == 0 and debug > 3 and off_again == debug and critical == debug and warn == debug + 1


def test_nothing_is_written_unasked(run_python, in_folder):
    run_python(PROGRAM + "grows(); fails()")
    assert list(in_folder.iterdir()) == []


def test_a_file_that_cannot_be(run_python):
    program = "import warnings; warnings.simplefilter('error', RuntimeWarning)\ntry: import aquifer\nexcept RuntimeWarning as told: print(told)"
    assert "none/log.txt, named by AQUIFER_DEBUG_LOG_FILE" in run_python(program, AQUIFER_DEBUG_LOG_FILE="none/log.txt")
