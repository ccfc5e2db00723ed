"""Bundles for the tests of this folder."""

from __future__ import annotations

import pytest

from tests.support.compiled import Compiler


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    """Compiles each tiny bundle once."""
    return Compiler(tmp_path_factory.mktemp("bundles"))
