"""What the installed distribution says of itself, and what the README says of that."""

import re
from importlib.metadata import distribution
from pathlib import Path

import aquifer
import pytest

README = Path(__file__).parent.parent / "README.md"

#: What an extra of the README brings, by the name that is imported.
HOSTS = {"numpy": "numpy", "numba": "numba-cuda", "cupy": "cupy-cuda13x", "torch": "torch", "cuda-core": "cuda-core"}


@pytest.fixture
def metadata():
    return distribution("aquifer-cuda").metadata


def test_has_the_version_of_the_native_module(metadata):
    assert metadata["Version"] == aquifer.__version__


def test_has_the_licences_and_their_texts(metadata):
    assert metadata["License-Expression"] == "MIT OR Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE-APACHE", "LICENSE-MIT"]
    texts = {Path(str(file)).name: file.read_text() for file in distribution("aquifer-cuda").files if "licenses" in str(file)}
    assert "Apache License" in texts["LICENSE-APACHE"] and "MIT License" in texts["LICENSE-MIT"]


def test_has_links(metadata):
    names = {url.split(", ")[0] for url in metadata.get_all("Project-URL")}
    assert names == {"Changelog", "Documentation", "Source"}


def test_needs_no_other_distribution():
    assert all("extra ==" in requirement for requirement in distribution("aquifer-cuda").requires)


def test_the_readme_has_all_extras(metadata):
    extras = set(metadata.get_all("Provides-Extra"))
    install = README.read_text().split("## Install")[1].split("\n## ")[0]
    in_readme = set(re.findall(r"^\| `([\w-]+)` \|", install, re.MULTILINE))
    assert extras == in_readme | {"test"}
    assert extras == {*HOSTS, "rmm", "all", "test"}


def test_each_extra_brings_its_library(metadata):
    brought = {}
    for requirement in distribution("aquifer-cuda").requires:
        name, extra = re.match(r"([\w-]+).*extra == '([\w-]+)'", requirement.replace('"', "'")).groups()
        brought.setdefault(extra, set()).add(name)
    for extra, library in HOSTS.items():
        assert library in brought[extra]
    assert brought["rmm"] == {"aquifer-cuda-rmm"}
    # `rmm` has the folder of RAPIDS's package, which nobody is to lose who asks for all.
    assert "aquifer-cuda-rmm" not in brought["all"]
