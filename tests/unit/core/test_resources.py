"""Shared files are the checkout's there, and the package's own where that is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from zoexport.core.resources import shared

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["schema", "recipes", "shapes"])
def test_in_a_checkout(name: str) -> None:
    assert shared(name) == ROOT / "graphs" / name and shared(name).is_dir()


def test_where_it_is_installed(tmp_path: Path) -> None:
    """A package that has the folder itself, far from any graphs/."""
    core = tmp_path / "zoexport" / "core"
    core.mkdir(parents=True)
    for folder in (core, core.parent):
        (folder / "__init__.py").touch()
    module = ROOT / "exporter" / "zoexport" / "core" / "resources.py"
    (core / "resources.py").write_bytes(module.read_bytes())
    (core.parent / "recipes").mkdir()
    code = "from zoexport.core.resources import shared; print(shared('recipes'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).samefile(core.parent / "recipes")
