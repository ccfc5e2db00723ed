"""Calibration: what each layer's input is fitted to, with weights in memory and in files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.support.programs import values
from tests.support.tiny_models import fixed_tokens, save_tiny
from zoexport import calibration, models
from zoexport.calibration import ROWS, calibrate, calibration_rows, formats_of, rounding
from zoexport.core import activation_grids as grids
from zoexport.core.config import setting
from zoexport.core.errors import DataError, ModelError
from zoexport.core.settings import TrainingSettings
from zoexport.methods.prge import PrgeConfig
from zoexport.models import LoadedModel, adapter_targets

ROWS_OF_TOKENS = fixed_tokens(3, 20).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama_tied", tmp_path_factory.mktemp("models") / "tiny")


def load(folder: Path, *, lazy: bool = False) -> LoadedModel:
    return models.load(models.resolve(str(folder)), lazy=lazy)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load(folder)


def modules(loaded: LoadedModel) -> list[str]:
    return adapter_targets(loaded.model, "all-linear", "all")


def inputs(loaded: LoadedModel, rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """What each layer reads, row by row, so that nothing is padded."""
    found: dict[str, list[torch.Tensor]] = {name: [] for name in modules(loaded)}
    for row in rows:
        calibration.watch(
            loaded, modules(loaded), [row], lambda name, _, x: found[name].append(x.clone())
        )
    return {name: torch.cat(parts) for name, parts in found.items()}


def quiet(phase: str, done: float | None) -> None:
    pass


def test_formats_are_those_of_the_values_that_layers_read(loaded: LoadedModel) -> None:
    rows = [row[: 20 - 5 * number] for number, row in enumerate(ROWS_OF_TOKENS)]
    for settings in ({"outliers": 0.0}, {"outliers": 0.05}, {"outliers": 0.0, "search": True}):
        found = calibrate(loaded, modules(loaded), rows, **settings)
        assert [*found] == modules(loaded)
        for name, x in inputs(loaded, rows).items():
            expected = grids.fit(x, **{"search": False, **settings})
            assert found[name].kind == expected.kind
            assert torch.allclose(found[name].tensor(), expected.tensor(), rtol=1e-5, atol=0)


def test_layers_that_read_the_same_have_the_same_format(loaded: LoadedModel) -> None:
    found = calibrate(loaded, modules(loaded), ROWS_OF_TOKENS, outliers=0.01, search=True)
    for layer in range(2):
        path = f"model.layers.{layer}"
        query, key, value = (found[f"{path}.self_attn.{name}_proj"] for name in "qkv")
        assert query == key == value != found[f"{path}.self_attn.o_proj"]
        assert found[f"{path}.mlp.gate_proj"] == found[f"{path}.mlp.up_proj"]


@pytest.mark.parametrize("name", ["llama_tied", "opt", "gpt_neox"])
def test_weights_in_files_give_the_same_and_stay_there(name: str, tmp_path: Path) -> None:
    folder = save_tiny(name, tmp_path, tokenizer=False)
    full, lazy = load(folder), load(folder, lazy=True)
    assert lazy.lazy and not full.lazy
    before = {name: value.data_ptr() for name, value in lazy.model.named_parameters()}
    found = calibrate(lazy, modules(lazy), ROWS_OF_TOKENS, outliers=0.01)
    assert found == calibrate(full, modules(full), ROWS_OF_TOKENS, outliers=0.01)
    for parameter, value in lazy.model.named_parameters():
        assert value.data_ptr() == before[parameter] and not value.any()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in lazy.model.modules())


def test_a_layer_that_runs_twice_has_the_wider_grid(loaded: LoadedModel) -> None:
    layers = loaded.model.model.layers
    name = "model.layers.0.mlp.down_proj"
    other = layers[1].mlp.down_proj
    alone = [
        calibrate(loaded, [f"model.layers.{number}.mlp.down_proj"], ROWS_OF_TOKENS)
        for number in range(2)
    ]
    try:
        layers[1].mlp.down_proj = layers[0].mlp.down_proj
        found = calibrate(loaded, [name], ROWS_OF_TOKENS)[name]
    finally:
        layers[1].mlp.down_proj = other
    assert found.scale >= max(next(iter(formats.values())).scale for formats in alone) * 0.99


def test_values_that_are_not_finite_are_one_clear_error(folder: Path) -> None:
    broken = load(folder)
    broken.model.model.layers[1].input_layernorm.weight.data[0] = torch.inf
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn\.q_proj: found values"):
        calibrate(broken, modules(broken), ROWS_OF_TOKENS)
    assert not any(module._forward_pre_hooks for module in broken.model.modules())


def test_a_layer_that_reads_nothing_is_one_clear_error(loaded: LoadedModel) -> None:
    with pytest.raises(ModelError, match="lm_head: found no input"):
        calibrate(loaded, ["lm_head"], ROWS_OF_TOKENS)


def test_rounding_changes_what_layers_read_for_a_while(loaded: LoadedModel) -> None:
    model = loaded.model
    name = "model.layers.0.mlp.down_proj"
    layer, format = model.get_submodule(name), grids.int8(0.5)
    x = values(3, layer.in_features)
    expected = F.linear(grids.rounded(x, format.tensor()), layer.weight)
    before = layer(x)
    with rounding(model, {name: format}):
        assert torch.equal(layer(x), expected)
        with rounding(model, {name: grids.int8(0.1)}):
            assert not torch.equal(layer(x), expected)
        assert torch.equal(layer(x), expected)
    assert torch.equal(layer(x), before) and not torch.equal(before, expected)


# --- rows -----------------------------------------------------------------------------------------


def test_the_first_rows_of_a_file_are_read(loaded: LoadedModel, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    texts = [f"Row number {number} of a film." for number in range(ROWS + 3)]
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    rows = calibration_rows(loaded, 64, data)
    tokenizer: Any = loaded.tokenizer
    assert rows == [tokenizer(text)["input_ids"] for text in texts[:ROWS]]
    assert max(map(len, calibration_rows(loaded, 5, data))) == 5
    with pytest.raises(DataError, match="missing"):
        calibration_rows(loaded, 64, tmp_path / "missing")


def test_without_a_tokenizer_tokens_are_random(tmp_path: Path) -> None:
    model = load(save_tiny("llama", tmp_path, tokenizer=False))
    rows = calibration_rows(model, 12)
    assert [len(row) for row in rows] == [12] * ROWS
    assert rows == calibration_rows(model, 12)
    assert all(0 <= token < model.vocab_size for row in rows for token in row)


@dataclasses.dataclass(frozen=True)
class Settings(TrainingSettings):
    """What a method's configuration says of activations."""

    max_length: int = setting(16, help="")
    rounded: int = setting(8, help="")
    outliers: float = setting(0.02, help="")
    datatypes: str = setting("search", help="")

    @property
    def trained(self) -> str:
        """Nothing that counts here."""
        return "lora"

    @property
    def rounds_inputs(self) -> bool:
        """As the setting says."""
        return self.rounded == 8


def test_settings_decide(tmp_path: Path) -> None:
    model = load(save_tiny("llama", tmp_path, tokenizer=False))
    assert formats_of(PrgeConfig(), model, None, quiet) is None
    assert formats_of(Settings(rounded=32), model, None, quiet) is None
    rows = calibration_rows(model, 16)
    expected = calibrate(model, modules(model), rows, outliers=0.02, search=True)
    assert formats_of(Settings(), model, None, quiet) == expected
    plain = calibrate(model, modules(model), rows)
    assert formats_of(Settings(outliers=0.0, datatypes="int"), model, None, quiet) == plain
