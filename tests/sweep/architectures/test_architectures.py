"""Every architecture of transformers' causal list passes or is refused as the page lists it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.architectures import model_types
from tests.support.tiers import slow_after
from tests.sweep.architectures.attempt import (
    COLUMNS,
    FAILED,
    PASSED,
    SLOW,
    UNMADE,
    Outcome,
    attempt,
)
from tests.sweep.architectures.page import page_of, statuses

pytestmark = pytest.mark.parity

PAGE = Path(__file__).parents[3] / "docs" / "results" / "architectures.md"
LISTED = statuses(PAGE, "mebp")
KNOWN = [name for name in model_types() if LISTED.get(name) not in (None, "not run", SLOW)]
"""Types of the installed transformers; the page lists those of the newest."""
PASSING = [
    ("mixtral", "prge"),
    ("falcon_h1", "mebp"),
    ("lfm2", "mebp"),
    ("llama4_text", "mebp"),  # complex rotary embeddings
    ("deepseek_v2", "mebp"),
    ("openai-gpt", "mebp"),  # layers share a module
    ("qwen3_moe", "int4"),
    ("gemma4_text", "int4"),  # a table of each layer's own embeddings
    ("phi3", "generate"),
    ("stablelm", "ios-mlx"),
    ("mixtral", "mebp"),
    ("mamba2", "mebp"),
    ("deepseek_v3", "int4"),
    ("gemma3n_text", "int4"),  # several rows for each token until the last layer, and narrow layers
    ("gpt_oss", "int4"),
    ("jamba", "int4"),
    ("lfm2_moe", "int4"),
]


def test_the_page_lists_every_architecture() -> None:
    assert LISTED.keys() >= set(model_types()) and len(LISTED) > 180


def test_a_row_has_a_status_for_each_column(tmp_path: Path) -> None:
    refused = Outcome("llama", "GGUF", "refused", "model a/b: found X; expected Y")
    found = {("llama", "mebp"): Outcome("llama", "mebp", PASSED), ("llama", "GGUF"): refused}
    page = tmp_path / "page.md"
    page.write_text(page_of(found, ["llama"]))
    listed = [statuses(page, column)["llama"] for column in COLUMNS]
    assert listed == [PASSED, "not run", "not run", "not run", "refused", "not run"]
    assert "| GGUF: X |" in page.read_text()


@pytest.mark.parametrize(("model_type", "column"), slow_after(10, PASSING))
def test_an_architecture_passes(model_type: str, column: str, tmp_path: Path) -> None:
    assert attempt(model_type, column, tmp_path).status == PASSED


@pytest.mark.slow
@pytest.mark.parametrize("model_type", KNOWN)
def test_every_architecture_is_as_listed(model_type: str, tmp_path: Path) -> None:
    found = attempt(model_type, "mebp", tmp_path)
    assert found.status != FAILED, found.reason
    # A refusal by verification is a wrong program.
    assert "--no-verify" not in found.reason, found.reason
    # What transformers can make differs by machine.
    assert found.status in (LISTED[model_type], UNMADE), found.reason
