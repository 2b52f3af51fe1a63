"""These run on a GPU alone, a process for each file: a library's allocator is set once in a process."""

from pathlib import Path

import aquifer
import pytest

collect_ignore_glob: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    own = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    if own and aquifer.is_simulated():
        for item in own:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
