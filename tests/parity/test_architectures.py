"""Architectures with experts and convolutions, through the command line; tests/slow has all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.architectures import PASSED, attempt

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(
    "name",
    [
        "mixtral",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("falcon_h1", "lfm2", "mamba2")),
    ],
)
def test_experts_and_convolutions_pass_parity(name: str, tmp_path: Path) -> None:
    outcome = attempt(name, tmp_path)
    assert outcome.status == PASSED, outcome
