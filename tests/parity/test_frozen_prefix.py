"""Layers below the first that is trained run once for a row, whatever epochs there are, to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.support.compiled import Compiler
from tests.support.runner import ran
from tests.support.sessions import write_examples
from zoexport.core.errors import ConfigError
from zoexport.session import Dataset, Session

pytestmark = pytest.mark.parity
FROZEN = "layer.0@"
"""The programs of the layer that has no adapter."""


def trained(
    bundle: Path, folder: Path, cache_mb: int, *, rows: int = 4, steps: int = 9
) -> tuple[list[float], dict[str, bytes], int]:
    """Losses, adapters, and how often the frozen layer ran."""
    folder.mkdir()
    examples = write_examples(folder / "examples.jsonl", [_example(row) for row in range(rows)])
    state = folder / "state"
    arguments = ("--examples", examples, "--state", state, "--steps", steps)
    found = ran(
        "train", bundle, *arguments, "--set", f"hidden_state_cache_mb={cache_mb}", "--timings"
    )
    snapshot = max(state.glob("snapshot-*.safetensors"))
    slots = {name: value.tobytes() for name, value in load_file(snapshot).items()}
    costs = found["programs"].items()
    return found["losses"], slots, sum(c["calls"] for name, c in costs if name.startswith(FROZEN))


def _example(row: int) -> Any:
    tokens = [(7 * row + 3 * place) % 300 for place in range(5 + row % 19)]
    return [(tokens[:-1], tokens[1:])], 0


@pytest.mark.parametrize(
    ("model", "method", "settings"),
    [
        ("llama", "mebp", {"weights": "int4"}),
        ("llama", "mezo", {"num_queries": 2}),
        ("llama", "prge", {"num_queries": 2, "weights": "int4"}),
        ("llama", "fzoo", {"num_queries": 2}),
        ("gemma3", "spzo", {"lora__layers_to_transform": "last:2"}),
    ],
)
def test_the_same_bits(
    compiler: Compiler, tmp_path: Path, model: str, method: str, settings: dict[str, Any]
) -> None:
    bundle = compiler.bundle(model, method, **{"lora__layers_to_transform": "last:1", **settings})
    run = trained(bundle, tmp_path / "run", 0)
    kept = trained(bundle, tmp_path / "kept", 1)
    assert run[:2] == kept[:2]
    # Once for a step's one call, whatever copies it scores.
    assert run[2] == 9
    # A call has three of the four rows, so that two or three calls see all of them.
    assert 2 <= kept[2] <= 3


def test_rows_beyond_the_room_run_again(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama", "mebp", lora__layers_to_transform="last:1", weights="int4")
    run = trained(bundle, tmp_path / "run", 0, rows=300, steps=300)
    kept = trained(bundle, tmp_path / "kept", 1, rows=300, steps=300)
    assert run[:2] == kept[:2]
    assert 100 < kept[2] < run[2] == 300


def test_evaluations_are_the_same(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("gemma3", "mebp", lora__layers_to_transform="last:1")
    examples = write_examples(tmp_path / "examples.jsonl", [_example(row) for row in range(7)])
    with Session.open(bundle) as session, Dataset() as data:
        data.load(examples)
        first = session.evaluate(data)
        session.configure(hidden_state_cache_mb=1)
        assert session.evaluate(data) == session.evaluate(data) == first


def test_it_is_refused_where_every_layer_is_trained(compiler: Compiler) -> None:
    bundle = compiler.bundle("llama", "mebp", weights="int4")
    with (
        Session.open(bundle) as session,
        pytest.raises(ConfigError, match="no layer lies below the first that is trained"),
    ):
        session.configure(hidden_state_cache_mb=1)
