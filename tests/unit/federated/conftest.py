"""Bundles that federations train."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.compiled import Compiler


@pytest.fixture(scope="session")
def mezo(compiler: Compiler) -> Path:
    return compiler.bundle("llama", "mezo", num_queries=2)


@pytest.fixture(scope="session")
def mebp(compiler: Compiler) -> Path:
    return compiler.bundle("llama", "mebp")
