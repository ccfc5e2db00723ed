"""Architectures with experts and convolutions, through the command line; tests/slow has all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.architectures import PASSED, attempt
from tests.support.tiers import slow_after

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(
    ("name", "method"),
    slow_after(
        2,
        [
            ("mixtral", "mebp"),
            ("mixtral", "prge"),
            ("falcon_h1", "mebp"),
            ("lfm2", "mebp"),
            ("mamba2", "mebp"),
        ],
    ),
)
def test_experts_and_convolutions_pass_parity(name: str, method: str, tmp_path: Path) -> None:
    outcome = attempt(name, tmp_path, method)
    assert outcome.status == PASSED, outcome


@pytest.mark.parametrize(
    "name",
    slow_after(
        2,
        [
            "qwen3_moe",
            "gemma4_text",  # a table of each layer's own embeddings
            "deepseek_v3",
            (
                "gemma3n_text",
            ),  # several rows for each token until the last layer, and narrow layers
            "gpt_oss",
            "jamba",
            "lfm2_moe",
        ],
    ),
)
def test_routers_and_narrow_layers_keep_float32(name: str, tmp_path: Path) -> None:
    outcome = attempt(name, tmp_path, weights="int4")
    assert outcome.status == PASSED, outcome
