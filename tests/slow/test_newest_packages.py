"""The upper ends of the ranges in pyproject.toml; the lower ones are locked, and all other tests run on them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OF_RANGES = ("transformers", "peft")
TESTS = ("tests/tiny", "tests/parity/test_adapter_export.py")

pytestmark = pytest.mark.slow


def test_a_model_trains_beside_the_newest_packages(tmp_path: Path) -> None:
    asked = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["peft"]]
    ranges = [text for text in asked if Requirement(text).name in OF_RANGES]
    assert len(ranges) == len(OF_RANGES)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*pip, str(tmp_path / "newest"), *ranges], check=True)
    paths = [str(tmp_path / "newest"), str(ROOT / "exporter"), str(ROOT)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stdout[-3000:]
