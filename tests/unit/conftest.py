"""What the tests of the session share: a hand-made bundle and a few examples for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import bundles
from tests.support.sessions import make_dataset
from zoexport.session import Dataset


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return bundles.write_bundle(tmp_path / "bundle")


@pytest.fixture
def dataset() -> Iterator[Dataset]:
    with make_dataset(bundles.text_examples()) as made:
        yield made
