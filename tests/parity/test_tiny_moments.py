"""Momentum and Adam from the log on tiny models: steps against the reference; resume, export, replay, federations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import zoexport
from tests.support.compiled import Compiler
from tests.support.engine_parity import passed
from tests.support.federations import check_two_rounds, terms_of
from tests.support.tiers import slow_after
from tests.support.tiny_models import SENTENCES
from zoexport.api import Bundle
from zoexport.cli.main import run
from zoexport.core.errors import ConfigError
from zoexport.federated.settings import terms_of as checked_terms
from zoexport.methods.reference.moments import MomentsReference
from zoexport.session import Session

pytestmark = pytest.mark.parity
EXAMPLES = [{"text": sentence} for sentence in SENTENCES]


def bundle_of(
    compiler: Compiler, method: str, optimizer: str, name: str = "llama", **settings: Any
) -> Path:
    """Of programs of layers, with fewer steps in a moment than the tests take."""
    given = {"horizon": 4, "learning_rate": 1e-3, "num_queries": 2, **settings}
    return compiler.bundle(name, method, optimizer=optimizer, **given)


@pytest.mark.parametrize(
    ("name", "method", "settings"),
    slow_after(
        2,
        [
            ("llama", "prge", {"optimizer": "adam"}),
            ("llama", "fzoo", {"optimizer": "momentum"}),
            (
                "qwen2",
                "mezo",
                {"optimizer": "adam", "lora__r": 3, "lora__target_modules": "all-linear"},
            ),
            ("gemma3", "fzoo", {"optimizer": "adam", "weights": "int4"}),
            ("opt", "prge", {"optimizer": "momentum", "num_queries": 4, "loss": "choices"}),
            ("phi3", "mezo", {"optimizer": "adam", "difference": "forward"}),
        ],
    ),
)
def test_states_are_the_references(
    compiler: Compiler, name: str, method: str, settings: dict[str, Any]
) -> None:
    given = {
        "horizon": 4,
        "num_queries": 2,
        "learning_rate": 1e-3,
        **settings,
    }
    report = passed(compiler.bundle(name, method, **given), 8)
    # With a power of two of queries, by which a division does not round.
    assert report["max_relative_state_error"] == 0


@pytest.mark.parametrize(
    ("name", "method", "settings"),
    slow_after(
        1,
        [
            ("llama", "prge", {}),
            ("qwen2", "fzoo", {"lora__r": 3, "lora__target_modules": "all-linear", "beta1": 0.5}),
            ("gemma3", "mezo", {"weights": "int4", "horizon": 1}),
        ],
    ),
)
def test_states_of_muon_differ_by_roundings(
    compiler: Compiler, name: str, method: str, settings: dict[str, Any]
) -> None:
    """Of float64, in which the reference adds up in another order."""
    bundle = bundle_of(compiler, method, "muon", name, **settings)
    report = passed(bundle, 8)
    assert report["max_relative_state_error"] < 1e-7


def test_another_number_of_queries_differs_by_roundings(compiler: Compiler) -> None:
    bundle = bundle_of(compiler, "prge", "adam", num_queries=3)
    report = passed(bundle, 6)
    assert report["max_relative_state_error"] < 1e-6


def test_a_reference_that_forgets_fails(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MomentsReference.finish

    def forgetting(self: MomentsReference) -> None:
        self.past = self.past[:1]
        real(self)

    monkeypatch.setattr(MomentsReference, "finish", forgetting)
    report = Bundle.open(bundle_of(compiler, "prge", "adam")).parity(steps=6).as_dict()
    assert report["passed"] is False


def test_the_manifest_states_the_rule(
    compiler: Compiler, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = bundle_of(compiler, "prge", "adam")
    assert run(["inspect", str(bundle)]) == 0
    assert "adam of 4 steps, 0.9 and 0.99" in capsys.readouterr().out
    step = zoexport.Bundle.open(bundle).manifest["step"]
    assert step["update"] == {"rule": "adam", "horizon": 4, "beta1": 0.9, "beta2": 0.99}


def test_an_exported_adapter_has_the_pending_update(compiler: Compiler, tmp_path: Path) -> None:
    bundle = bundle_of(compiler, "prge", "adam")
    zoexport.Bundle.open(bundle).train(EXAMPLES, state=tmp_path / "state", steps=6)
    exported = ["adapter", "export", str(bundle), "--state", str(tmp_path / "state")]
    assert run([*exported, "-o", str(tmp_path / "adapter")]) == 0
    written = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    with Session.open(bundle) as session:
        session.attach(tmp_path / "state", read_only=True)
        for slot in session.slots():
            if slot.role == "trainable":
                found = np.frombuffer(session.replay_slot(slot.name, 6), np.float32)
                key = f"base_model.model.{slot.name.removeprefix('lora_B.')}.lora_B.weight"
                assert np.array_equal(written[key], found.reshape(slot.shape).T)


@pytest.mark.parametrize(
    ("algorithm", "optimizer"),
    [("replay", "adam"), ("replay", "muon"), ("decomfl", "momentum")],
)
def test_a_federation_replays_it(
    compiler: Compiler, tmp_path: Path, algorithm: str, optimizer: str
) -> None:
    bundle = bundle_of(compiler, "fzoo", optimizer)
    check_two_rounds(bundle, tmp_path, terms_of(bundle, algorithm))


def test_scalars_of_adam_have_no_mean(compiler: Compiler) -> None:
    bundle = bundle_of(compiler, "mezo", "adam")
    opened = zoexport.Bundle.open(bundle)
    with pytest.raises(ConfigError, match=r"optimizer=adam.*Pass algorithm=.replay"):
        checked_terms(opened, "decomfl", 3, {})
    for algorithm in ("replay", "fedzo"):
        assert checked_terms(opened, algorithm, 3, {}).algorithm == algorithm
    momentum = bundle_of(compiler, "mezo", "momentum")
    assert checked_terms(zoexport.Bundle.open(momentum), "decomfl", 3, {}).difference == "forward"
