"""Logs of allocations."""

from __future__ import annotations

import csv
import re
import threading
from pathlib import Path

import aquifer
import pytest
from aquifer import DeviceBuffer, mr

HEADER = "Thread,Time,Action,Pointer,Size,Stream"


def rows_of(path):
    """The rows of a log, by their columns."""
    text = Path(path).read_text()
    assert text.splitlines()[0] == HEADER and text.endswith("\n")
    return list(csv.DictReader(text.splitlines()))


def actions_of(path):
    return [(row["Action"], int(row["Size"])) for row in rows_of(path)]


def test_rows(in_folder):
    log = mr.LoggingResourceAdaptor(mr.CudaMemoryResource(), log_file_name="a.csv")
    assert log.get_file_name() == str(in_folder / "a.dev0.csv")
    assert log.text == f"cuda | logging({in_folder}/a.dev0.csv)"
    stream = aquifer.Stream()
    first, second = DeviceBuffer(size=100, mr=log), DeviceBuffer(size=7, mr=log, stream=stream)
    addresses = first.ptr, second.ptr
    del first, second
    assert log.flush() is None
    rows = rows_of("a.dev0.csv")
    assert [(row["Action"], row["Size"]) for row in rows] == [
        ("allocate", "100"),
        ("allocate", "7"),
        ("free", "100"),
        ("free", "7"),
    ]
    assert [int(row["Pointer"], 16) for row in rows] == [*addresses, *addresses]
    # The default stream is 0.
    streams = [row["Stream"] for row in rows]
    assert streams == ["0", streams[1], "0", streams[1]] and streams[1] != "0"
    assert {row["Thread"] for row in rows} == {str(threading.get_native_id())}
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d\.\d{6}", row["Time"]) for row in rows)


def test_an_allocation_that_fails(in_folder):
    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 1000)
    log = mr.LoggingResourceAdaptor(limited, "a.csv")
    with pytest.raises(aquifer.OutOfMemoryError):
        DeviceBuffer(size=5000, mr=log)
    log.flush()
    assert actions_of(log.get_file_name()) == [("allocate failure", 5000)]


def test_rows_of_addresses(in_folder):
    log = mr.LoggingResourceAdaptor(mr.CudaMemoryResource(), "a.csv")
    address = log.allocate(256)
    log.deallocate(address, 256)
    log.flush()
    assert actions_of("a.dev0.csv") == [("allocate", 256), ("free", 256)]


def test_rows_of_threads(in_folder, in_threads):
    log = mr.LoggingResourceAdaptor(mr.PoolMemoryResource(mr.CudaMemoryResource()), "a.csv")

    def body():
        for size in range(1, 101):
            DeviceBuffer(size=size, mr=log)
        return threading.get_native_id()

    threads = in_threads(*[body] * 4)
    log.flush()
    rows = rows_of("a.dev0.csv")
    for thread in threads:
        own = [(row["Action"], int(row["Size"])) for row in rows if row["Thread"] == str(thread)]
        assert own == [(action, size) for size in range(1, 101) for action in ("allocate", "free")]


@pytest.mark.parametrize(
    "name", ["a", "a.b.csv", "with space.csv", 'quo"te\\back.csv', "a,b(c).log", "ünï.csv", "sub/a.csv"]
)
def test_names(in_folder, name):
    (in_folder / "sub").mkdir()
    log = mr.LoggingResourceAdaptor(mr.CudaMemoryResource(), name)
    stem, dot, extension = name.rpartition(".")
    expected = f"{stem}.dev0.{extension}" if dot else f"{name}.dev0"
    assert log.get_file_name() == str(in_folder / expected)
    assert (in_folder / expected).exists()


def test_names_of_other_kinds(in_folder, monkeypatch):
    log = mr.LoggingResourceAdaptor(mr.CudaMemoryResource(), in_folder / "path.csv")
    assert log.get_file_name() == str(in_folder / "path.dev0.csv")
    monkeypatch.setenv("RMM_LOG_FILE", "variable.csv")
    log = mr.LoggingResourceAdaptor(mr.CudaMemoryResource())
    assert log.get_file_name() == str(in_folder / "variable.dev0.csv")
    assert (
        mr.LoggingResourceAdaptor(mr.CudaMemoryResource(), "argument.csv").get_file_name().endswith("argument.dev0.csv")
    )


@pytest.mark.parametrize(
    "log",
    [
        lambda: mr.LoggingResourceAdaptor(mr.CudaMemoryResource()),
        lambda: mr.LoggingResourceAdaptor(mr.CudaMemoryResource(), ""),
        lambda: aquifer.enable_logging(),
        lambda: aquifer.reinitialize(logging=True),
    ],
)
def test_no_name(in_folder, log):
    current = mr.get_current_device_resource()
    with pytest.raises(ValueError, match="a log needs a file .give log_file_name, or set RMM_LOG_FILE"):
        log()
    assert mr.get_current_device_resource() is current
    assert list(in_folder.iterdir()) == []


def test_a_file_that_cannot_be(in_folder):
    with pytest.raises(aquifer.Error, match="none/a.dev0.csv"):
        mr.LoggingResourceAdaptor(mr.CudaMemoryResource(), "none/a.csv")
    current = mr.get_current_device_resource()
    with pytest.raises(aquifer.Error, match="none/a.dev0.csv"):
        aquifer.enable_logging("none/a.csv")
    assert mr.get_current_device_resource() is current


def test_a_file_of_two_logs(in_folder):
    log = mr.LoggingResourceAdaptor(mr.CudaMemoryResource(), "a.csv")
    with pytest.raises(
        aquifer.Error, match="another log has it locked, in this or another process .give each log a file of its own"
    ):
        mr.LoggingResourceAdaptor(mr.CudaMemoryResource(), "a.csv")
    del log
    mr.LoggingResourceAdaptor(mr.CudaMemoryResource(), "a.csv")


def test_a_log_of_the_current_resource(in_folder):
    before = mr.get_current_device_resource()
    assert aquifer.get_log_filenames() == {0: None}
    assert aquifer.enable_logging("a.csv") is None
    assert aquifer.get_log_filenames() == mr.get_log_filenames() == {0: str(in_folder / "a.dev0.csv")}
    log = mr.get_current_device_resource()
    assert type(log) is mr.LoggingResourceAdaptor and log.upstream_mr is before
    DeviceBuffer(size=10)
    aquifer.disable_logging()
    assert mr.get_current_device_resource() is before
    assert aquifer.get_log_filenames() == {0: None}
    DeviceBuffer(size=20)
    assert actions_of("a.dev0.csv") == [("allocate", 10), ("free", 10)]


def test_a_block_of_a_log_that_ended(in_folder):
    aquifer.enable_logging(log_file_name="a.csv")
    buffer = DeviceBuffer.to_device(b"abc")
    log = mr.get_current_device_resource()
    aquifer.disable_logging()
    assert actions_of("a.dev0.csv") == [("allocate", 3)]
    assert buffer.tobytes() == b"abc"
    del buffer
    log.flush()
    assert actions_of("a.dev0.csv") == [("allocate", 3), ("free", 3)]


def test_a_log_that_goes_on(in_folder):
    aquifer.enable_logging("a.csv")
    log = mr.get_current_device_resource()
    DeviceBuffer(size=1)
    aquifer.enable_logging("a.csv")
    assert mr.get_current_device_resource() is log
    DeviceBuffer(size=2)
    aquifer.disable_logging()
    assert actions_of("a.dev0.csv") == [("allocate", 1), ("free", 1), ("allocate", 2), ("free", 2)]


def test_another_file(in_folder):
    before = mr.get_current_device_resource()
    aquifer.enable_logging("a.csv")
    DeviceBuffer(size=1)
    aquifer.enable_logging("b.csv")
    assert actions_of("a.dev0.csv") == [("allocate", 1), ("free", 1)]
    assert aquifer.get_log_filenames() == {0: str(in_folder / "b.dev0.csv")}
    assert mr.get_current_device_resource().upstream_mr is before
    DeviceBuffer(size=2)
    aquifer.disable_logging()
    assert actions_of("b.dev0.csv") == [("allocate", 2), ("free", 2)]
    assert mr.get_current_device_resource() is before


def test_a_log_that_a_program_set(in_folder):
    cuda = mr.CudaMemoryResource()
    mr.set_current_device_resource(mr.LoggingResourceAdaptor(cuda, "a.csv"))
    assert aquifer.get_log_filenames() == {0: str(in_folder / "a.dev0.csv")}
    DeviceBuffer(size=1)
    aquifer.disable_logging()
    assert mr.get_current_device_resource() is cuda
    assert actions_of("a.dev0.csv") == [("allocate", 1), ("free", 1)]
    aquifer.disable_logging()
    assert mr.get_current_device_resource() is cuda


def test_a_log_below_another_resource(in_folder):
    aquifer.enable_logging("a.csv")
    counted = mr.StatisticsResourceAdaptor(mr.get_current_device_resource())
    mr.set_current_device_resource(counted)
    assert aquifer.get_log_filenames() == {0: None}
    DeviceBuffer(size=1)
    # It goes on, and is written so far.
    aquifer.disable_logging()
    assert mr.get_current_device_resource() is counted
    assert actions_of("a.dev0.csv") == [("allocate", 1), ("free", 1)]


def test_devices(in_folder):
    aquifer.enable_logging("a.csv", devices=[])
    assert aquifer.get_log_filenames() == {0: None}
    aquifer.enable_logging("a.csv", devices=[0])
    assert aquifer.get_log_filenames() == {0: str(in_folder / "a.dev0.csv")}
    with pytest.raises(aquifer.Error, match="device 7"):
        aquifer.enable_logging("a.csv", devices=[7])


def test_a_name_of_the_variable(in_folder, monkeypatch):
    monkeypatch.setenv("RMM_LOG_FILE", "variable.csv")
    aquifer.enable_logging()
    assert aquifer.get_log_filenames() == {0: str(in_folder / "variable.dev0.csv")}
    aquifer.disable_logging()


def test_a_log_ends_with_the_process(in_folder, run_python):
    program = """
import aquifer
aquifer.enable_logging("a.csv")
kept = aquifer.DeviceBuffer(size=10)
"""
    assert run_python(program) == ""
    assert actions_of("a.dev0.csv")[0] == ("allocate", 10)


def test_a_log_whose_file_was_removed(in_folder, caplog):
    """RMM's own tests remove the file of a log that goes on."""
    before = mr.get_current_device_resource()
    for end in (
        aquifer.disable_logging,
        aquifer.reinitialize,
        lambda: aquifer.enable_logging("b.csv"),
        lambda: aquifer.reinitialize(logging=True, log_file_name="c.csv"),
    ):
        mr.set_current_device_resource(before)
        aquifer.enable_logging("a.csv")
        DeviceBuffer(size=100)
        (in_folder / "a.dev0.csv").unlink()
        DeviceBuffer(size=200)
        caplog.clear()
        end()
        assert "has lost rows: " in caplog.text and "a.dev0.csv" in caplog.text
        assert aquifer.to_device(b"abc").tobytes() == b"abc"
    # The last one goes on in its own file.
    assert aquifer.get_log_filenames() == {0: str(in_folder / "c.dev0.csv")}
    mr.get_current_device_resource().flush()
    assert actions_of("c.dev0.csv") == [("allocate", 3), ("free", 3)]
