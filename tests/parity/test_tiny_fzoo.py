"""FZOO on tiny models against the reference; resume, replay and a federation."""

from __future__ import annotations

from pathlib import Path

import pytest

import zoexport
from tests.support.compiled import Compiler
from tests.support.engine_parity import passed
from tests.support.federations import check_two_rounds, terms_of
from tests.support.tiers import slow_after
from zoexport.api import Bundle
from zoexport.cli.main import run
from zoexport.compiler.parity_signs import compare_signs
from zoexport.core import rng
from zoexport.core.errors import ConfigError

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(
    ("name", "settings"),
    slow_after(
        2,
        [
            ("llama", {}),
            ("qwen2", {"num_queries": 3, "lora__target_modules": "all-linear"}),
            ("llama", {"num_queries": 2, "batch_size": 1}),
            ("opt", {}),
            ("gpt2", {"loss": "choices"}),
            ("phi3", {"weights": "int4"}),
            ("gemma3", {"weights": "int4", "activations": "fp32"}),
            ("falcon", {}),
        ],
    ),
)
def test_steps_are_the_references(
    compiler: Compiler, name: str, settings: dict[str, object]
) -> None:
    bundle = compiler.bundle(name, "fzoo", **settings)
    passed(bundle, 8)


def test_a_wrong_reference_fails(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    real = rng.signs
    monkeypatch.setattr(rng, "signs", lambda seed, *rest: real(seed + 1, *rest))
    bundle = compiler.bundle("llama", "fzoo")
    assert Bundle.open(bundle).parity(steps=3).as_dict()["passed"] is False


def test_the_manifest_states_the_plan(
    compiler: Compiler, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", str(compiler.bundle("llama", "fzoo"))]) == 0
    shown = capsys.readouterr().out
    assert "7 rademacher directions, forward differences over their deviation" in shown
    for target, copies, runs in (("ios-mlx", 8, "call"), ("host", 1, "stage")):
        bundle = zoexport.Bundle.open(compiler.bundle("llama", "fzoo", target))
        assert bundle.manifest["copies"] == copies
        assert bundle.manifest["step"] == {
            "levels": [{"begin": 0, "directions": 7, "difference": "forward"}],
            "copies": runs,
            "noise": "rademacher",
            "divisor": "deviation",
        }


@pytest.mark.parametrize("algorithm", slow_after(1, ["replay", "decomfl"]))
def test_a_federation_replays_it(compiler: Compiler, tmp_path: Path, algorithm: str) -> None:
    bundle = compiler.bundle("llama", "fzoo", num_queries=2)
    terms = terms_of(bundle, algorithm)
    assert (terms.scalars, terms.difference) == (2, "forward")
    check_two_rounds(bundle, tmp_path, terms)


def test_what_has_no_pairs_is_refused(compiler: Compiler) -> None:
    bundle = compiler.bundle("llama", "fzoo")
    with pytest.raises(ConfigError, match="forward differences, of the method fzoo"):
        compare_signs(Bundle.open(bundle), queries=2, progress=lambda *_: None)
    with pytest.raises(ConfigError, match="num_queries"):
        compiler.bundle("llama", "fzoo", num_queries=1)
