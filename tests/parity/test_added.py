"""A method and a target that someone adds: each takes one short file and no edit elsewhere (CONTRIBUTING.md)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import zoexport
from tests.support.compiled import Compiler, compile_tiny
from tests.support.engine_parity import passed
from tests.support.hosts import ROOT
from tests.support.tiny_models import SENTENCES
from zoexport.core.errors import ConfigError
from zoexport.methods import methods
from zoexport.targets import targets

pytestmark = pytest.mark.parity
METHOD = ROOT / "examples" / "add_a_method"
EXAMPLES = [{"text": sentence} for sentence in SENTENCES]


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register both while a test runs, so that the tests of every method do not know them."""
    known = methods.names(), targets.names()
    monkeypatch.syspath_prepend(METHOD)
    modules = ["forward", "tests.support.added"]
    for name in modules:
        importlib.import_module(name)
    yield
    for name in modules:
        del sys.modules[name]
    methods._entries.pop("forward")
    targets._entries.pop("layers-alone")
    assert (methods.names(), targets.names()) == known


def test_the_method_is_thirty_lines() -> None:
    lines = (METHOD / "forward.py").read_text("utf-8").splitlines()
    assert len([line for line in lines if line.strip()]) <= 30


@pytest.mark.parametrize(
    "target", [pytest.param("host", marks=pytest.mark.slow), "ios-mlx", "layers-alone"]
)
def test_the_method_takes_its_references_steps(
    compiler: Compiler, tmp_path: Path, target: str
) -> None:
    model = compiler.model("qwen2")
    settings = {"directions": 3, "lora__target_modules": "all-linear", "weights": "int4"}
    compile_tiny(model, tmp_path / "bundle", "forward", target, **settings)
    report = passed(tmp_path / "bundle", 3)
    assert report["max_relative_loss_error"] <= 1e-4

    bundle = zoexport.Bundle.open(tmp_path / "bundle")
    assert bundle.manifest["step"] == {
        "levels": [
            {"begin": begin, "directions": 3, "difference": "forward"}
            for begin in (0, len(bundle.manifest["stages"]) - 2)
        ],
        "copies": "one",
        "noise": "normal",
        "divisor": "distance",
    }
    # 4 probes of the first group, of which each has 4 of the second.
    whole = bundle.train(EXAMPLES, state=tmp_path / "whole", steps=6)
    for steps in (2, 6):
        parts = bundle.train(EXAMPLES, state=tmp_path / "parts", steps=steps)
    assert parts.losses == whole.losses
    log = "trajectory.log"
    assert (tmp_path / "parts" / log).read_bytes() == (tmp_path / "whole" / log).read_bytes()


def test_what_the_target_has_not_is_a_problem(compiler: Compiler, tmp_path: Path) -> None:
    model = compiler.model("llama")
    for method, given, lacking in (
        ("prge", {"granularity": "model"}, "programs of the whole model"),
        ("quzo", {}, "perturbs integers"),
    ):
        with pytest.raises(ConfigError, match=f"target layers-alone has no .*{lacking}"):
            compile_tiny(
                model, tmp_path / "bundle", method, "layers-alone", weights="int4", **given
            )
    compile_tiny(model, tmp_path / "mebp", "mebp", "layers-alone")
    passed(tmp_path / "mebp", 2)
