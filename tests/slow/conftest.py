"""The real model's name, the real sentences, and a folder for what is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.federation_processes import make_data, make_keys
from zoexport.data.samples import Samples, sentences

HELD_OUT = 500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where everything of this module lies."""
    return tmp_path_factory.mktemp("smollm2")


@pytest.fixture(scope="module")
def samples() -> Samples:
    """The sentence set."""
    return sentences()


@pytest.fixture(scope="module")
def held_out(folder: Path, samples: Samples) -> Path:
    """The first 500 held-out sentences."""
    path = folder / "held-out.jsonl"
    lines = samples.test.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:HELD_OUT]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a federation of processes."""
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each of its clients' own."""
    return make_data(tmp_path_factory.mktemp("data"))
