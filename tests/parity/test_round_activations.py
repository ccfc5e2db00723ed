"""Rounded activations in a bundle: calibrated, compiled, trained by the session, against the model itself."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.support.engine_parity import passed
from tests.support.tiers import slow_after
from tests.support.tiny_models import SENTENCES, save_tiny
from zoexport import models
from zoexport.calibration import calibrate, calibration_rows, formats_in
from zoexport.compiler.build import compile_bundle
from zoexport.core.config import setting
from zoexport.core.target import Pass
from zoexport.methods import methods
from zoexport.methods.prge import PrgeConfig, passes
from zoexport.passes.round_activations import FORMAT, round_activations
from zoexport.session import Bundle


@dataclasses.dataclass(frozen=True)
class RoundingConfig(PrgeConfig):
    """P-RGE's settings, and those of activations."""

    activation_bits: int = setting(8, help="")
    outliers: float = setting(0.0, at_least=0, help="")
    datatypes: str = setting("int", choices=("int", "search"), help="")

    @property
    def rounds_inputs(self) -> bool:
        """Always."""
        return True

    @property
    def rounding(self) -> str:
        """That of calibrated activations."""
        return "int8"


def rounding_passes(config: RoundingConfig, targets: list[str]) -> list[Pass]:
    """P-RGE's, and the rounding of layers' inputs before weights are quantized."""
    order = passes(config, targets)
    place = [step.name for step in order].index("quantize_stages")
    step = Pass(
        "round_activations",
        lambda graph: round_activations(graph, targets, graph.measured.activations),
        "",
    )
    return [*order[:place], step, *order[place:]]


@pytest.mark.parametrize(
    "settings",
    slow_after(1, [{}, {"outliers": "0.01"}, {"datatypes": "search", "outliers": "0.05"}]),
    ids=["int8", "outliers", "search"],
)
def test_a_bundle_trains_as_the_model_with_rounded_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    rounding = dataclasses.replace(
        methods.get("prge"), config=RoundingConfig, passes=rounding_passes
    )
    monkeypatch.setitem(methods._entries, "prge", rounding)
    folder = save_tiny("llama_tied", tmp_path / "model")
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES), "utf-8")
    given = {
        "lora.target_modules": "all-linear",
        "max_length": "24",
        "num_queries": "2",
    }
    bundle = tmp_path / "bundle"
    compile_bundle(
        str(folder),
        method="prge",
        target="host",
        output=bundle,
        settings={**given, **settings},
        recipe=None,
        force=False,
        calibration=data,
        progress=lambda *_: None,
    )
    manifest = Bundle.open(bundle).manifest
    loaded = models.load(models.resolve(str(folder)))
    modules = models.adapter_targets(loaded.model, "all-linear", "all")
    expected = calibrate(
        loaded,
        modules,
        calibration_rows(loaded, 24, data),
        outliers=float(settings.get("outliers", 0)),
        search="datatypes" in settings,
    )
    assert formats_in(Bundle.open(bundle)) == expected
    assert set(manifest["activations"]) == {f"{module}.weight" for module in modules}
    held = set(manifest["activations"].values())
    assert len(held) == 2 * 4 and all(name.startswith(FORMAT) for name in held)
    assert "zoexport::round_activations.out" in manifest["required_ops"]

    passed(bundle, 3)
