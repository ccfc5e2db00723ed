"""The report on activation errors: on a tiny model, against sums by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from research.activations import dynamic
from research.activations.measure import WAYS, calibrated, errors, loss, ways
from tests.support.programs import values
from tests.support.tiny_models import fixed_tokens, save_tiny
from zoexport import calibration, models
from zoexport.core import activation_grids as grids
from zoexport.ir.product_ops import rounded_rows
from zoexport.methods.reference.quantized import quantize_model

ROWS, HELD_OUT = fixed_tokens(3, 20).tolist(), fixed_tokens(4, 16).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama_tied", tmp_path_factory.mktemp("models") / "tiny")


def test_ways_are_what_settings_give() -> None:
    x = values(500) * torch.exp2(2 * values(500, seed=1))
    found = ways(x)
    settings = {
        "int8": (0.0, False),
        "int8, outliers": (0.01, False),
        "search int8, fp8": (0.0, True),
        "search with outliers": (0.01, True),
    }
    for way, (outliers, search) in settings.items():
        assert found[way] == grids.fit(x, outliers=outliers, search=search)
    assert [*found] == [*WAYS] and found["fp8"].kind == grids.FP8


def test_errors_are_relative_to_what_a_layer_reads(folder: Path) -> None:
    loaded = models.load(models.resolve(str(folder)))
    modules = models.adapter_targets(loaded.model, "all-linear", "all")
    formats = calibrated(loaded, modules, ROWS)
    for way, settings in (("int8", {}), ("search with outliers", {"outliers": 0.01})):
        expected = calibration.calibrate(
            loaded, modules, ROWS, search=way.startswith("search"), **settings
        )
        assert formats[way] == expected
    found = errors(loaded, formats, HELD_OUT)
    read: dict[str, torch.Tensor] = {}
    calibration.watch(loaded, modules, HELD_OUT, lambda name, _, x: read.update({name: x.clone()}))
    for name, x in read.items():
        rounded = grids.rounded(x, formats["fp8"][name].tensor())
        share = ((x - rounded).double().square().sum() / x.double().square().sum()).item()
        assert found["fp8"][name] == pytest.approx(share, rel=1e-5)
    assert loss(loaded, {}, HELD_OUT) != loss(loaded, formats["int8"], HELD_OUT)


def test_rounded_inputs_are_those_of_parity(tmp_path: Path) -> None:
    """Layers over INT4 weights that read rounded inputs compute what parity's reference computes."""
    folder = save_tiny("llama", tmp_path / "model")
    ours, theirs = (models.load(models.resolve(str(folder))) for _ in range(2))
    batch = torch.tensor(HELD_OUT)
    layers = {
        name: layer
        for name, layer in ours.model.named_modules()
        if isinstance(layer, torch.nn.Linear)
    }
    quantize_model(theirs.model, {"weights": "int4", "activations": "int8", "group_size": 32})
    # Its embedding is quantized too.
    ours.model.get_input_embeddings().weight.data = theirs.model.get_input_embeddings().weight.data
    with dynamic.computing(layers, set(), rounded_rows, {}):
        found = dynamic.loss(ours.model, batch)
    assert found == pytest.approx(dynamic.loss(theirs.model, batch), rel=1e-6)


def test_adapters_are_read_beside(folder: Path) -> None:
    loaded = models.load(models.resolve(str(folder)))
    layers = {
        name: layer
        for name, layer in loaded.model.named_modules()
        if isinstance(layer, torch.nn.Linear)
    }
    one, other = (dynamic.directions(layers, 0.5, seed) for seed in (1, 2))
    assert {name.split(".")[-1] for name in one} == {"q_proj", "v_proj"}
    assert all((b.abs() == 0.5).all() for _, b in one.values())
    batch = torch.tensor(HELD_OUT)

    def loss(adapters: dynamic.Adapters) -> float:
        with dynamic.computing(layers, set(), lambda x: x, adapters):
            return dynamic.loss(loaded.model, batch)

    assert len({loss({}), loss(one), loss(other)}) == 3
