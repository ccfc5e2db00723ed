"""lora.init_weights=activations: A lies along the leading right singular vectors of what layers read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.programs import values
from tests.support.tiny_models import (
    ENCODERS,
    fixed_tokens,
    from_config,
    masking_tokenizer,
    save_tiny,
    tiny_config,
    tiny_tokenizer,
)
from zoexport import calibration, models
from zoexport.compiler.directions import directions_of, leading, measure
from zoexport.core import rng
from zoexport.core.config import parse
from zoexport.core.errors import DataError, ModelError
from zoexport.core.files import sha256
from zoexport.methods.prge import PrgeConfig
from zoexport.models import LoadedModel, adapter_targets

ROWS = [row[: 22 - 5 * number] for number, row in enumerate(fixed_tokens(4, 22).tolist())]
"""Of several lengths, so that some are padded."""
ODD = {
    "llama_tied": {"hidden_size": 44, "num_attention_heads": 2, "num_key_value_heads": 1}
    | {"head_dim": 22, "intermediate_size": 83},
    "roberta": {"hidden_size": 45, "num_attention_heads": 3, "intermediate_size": 71},
    "albert": {"hidden_size": 45, "num_attention_heads": 3, "intermediate_size": 71}
    | {"embedding_size": 33},
}


def quiet(phase: str, done: float | None) -> None:
    pass


def load(name: str, folder: Path, *, lazy: bool = False) -> LoadedModel:
    """A tiny model of odd sizes."""
    from_config(tiny_config(name, **ODD[name])).save_pretrained(folder)
    (masking_tokenizer() if name in ENCODERS else tiny_tokenizer()).save_pretrained(folder)
    return models.load(models.resolve(str(folder)), lazy=lazy)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load("llama_tied", tmp_path_factory.mktemp("models") / "tiny")


def ranks(loaded: LoadedModel, rank: int = 5) -> dict[str, int]:
    return dict.fromkeys(adapter_targets(loaded.model, "all-linear", "all"), rank)


def inputs(loaded: LoadedModel, names: list[str]) -> dict[str, torch.Tensor]:
    """What each layer reads in the model as it is, row by row, so that nothing is padded; float64."""
    found: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    handles = [
        loaded.model.get_submodule(name).register_forward_pre_hook(
            lambda _, given, name=name: found[name].append(given[0][0].double())
        )
        for name in names
    ]
    with torch.no_grad():
        for row in ROWS:
            loaded.model(input_ids=torch.tensor([row]))
    for handle in handles:
        handle.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}


def unit(a: torch.Tensor) -> torch.Tensor:
    """Columns of the same norm, of norm 1."""
    torch.testing.assert_close(a.norm(dim=0), a[:, 0].norm().expand(a.shape[1]))
    found: torch.Tensor = a / a[:, 0].norm()
    return found


def sine(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Of the largest angle between the spaces of two sets of orthonormal columns."""
    outside = found.double() - expected @ (expected.T @ found.double())
    return float(torch.linalg.matrix_norm(outside, 2))


def check(loaded: LoadedModel, rank: int = 5) -> None:
    names = ranks(loaded, rank)
    found = measure(loaded, names, ROWS, seed=3)
    assert [*found] == [*names]
    for name, x in inputs(loaded, [*names]).items():
        _, energy, right = torch.linalg.svd(x, full_matrices=False)
        # Else the space would not be unique.
        assert energy[rank] < 0.999 * energy[rank - 1], name
        assert found[name].shape == (x.shape[1], rank)
        assert sine(unit(found[name]), right[:rank].T) < 1e-3, name


def test_directions_are_the_first_right_singular_vectors(loaded: LoadedModel) -> None:
    check(loaded)
    check(loaded, rank=1)


def test_of_an_encoder_too_and_of_its_output_head(tmp_path: Path) -> None:
    encoder = load("roberta", tmp_path)
    assert "lm_head.dense" in ranks(encoder)
    check(encoder)


def test_layers_that_run_more_than_once_have_the_directions_of_all_inputs(tmp_path: Path) -> None:
    encoder = load("albert", tmp_path)
    names = ranks(encoder, 30)
    found = measure(encoder, names, ROWS, seed=0)
    several = 0
    for name, x in inputs(encoder, [*names]).items():
        kept = (x @ unit(found[name]).double()).square().sum()
        best = torch.linalg.svdvals(x)[:30].square().sum()
        several += len(x) > sum(map(len, ROWS))
        assert best * 0.999 < kept <= best * (1 + 1e-6), name
    assert several == 6  # albert's layers share their weights


def test_layers_give_adapters_what_they_give_to_drawn_ones(loaded: LoadedModel) -> None:
    """On the same rows, the mean square of x A; the columns of A are orthogonal and of one norm."""
    found = measure(loaded, ranks(loaded), ROWS, seed=3)
    for name, x in inputs(loaded, [*found]).items():
        size, rank = found[name].shape
        noise = rng.normals(1, 1, 0, 0, size * 4000)
        drawn = torch.from_numpy(noise).view(size, 4000).double() * (2 / size) ** 0.5
        expected = float((x @ drawn).square().mean())
        a = found[name].double()
        assert float((x @ a).square().mean()) == pytest.approx(expected, rel=0.1), name
        exactly = 2 / size * float(x.square().sum(1).mean())
        assert float((x @ a).square().mean()) == pytest.approx(exactly, rel=1e-5), name
        torch.testing.assert_close(unit(a).T @ unit(a), torch.eye(rank).double())
        assert a.norm() < (2 * rank) ** 0.5
        assert found[name].is_contiguous() and (a.gather(0, a.abs().argmax(0)[None]) > 0).all()


def test_the_same_again_and_of_weights_in_files(loaded: LoadedModel, tmp_path: Path) -> None:
    names = ranks(loaded)
    found = measure(loaded, names, ROWS, seed=3)
    lazy = load("llama_tied", tmp_path, lazy=True)
    assert lazy.lazy
    for again in (measure(loaded, names, ROWS, seed=3), measure(lazy, names, ROWS, seed=3)):
        assert all(torch.equal(found[name], again[name]) for name in names)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in lazy.model.modules())
    # Another seed finds the same space.
    for name, a in measure(loaded, names, ROWS, seed=4).items():
        assert sine(unit(a), unit(found[name]).double()) < 1e-3


def test_layers_that_read_the_same_have_the_same_directions(loaded: LoadedModel) -> None:
    wanted = ranks(loaded)
    path = "model.layers.1.self_attn."
    wanted[f"{path}k_proj"] = 3
    found = measure(loaded, wanted, ROWS, seed=3)
    assert torch.equal(found[f"{path}q_proj"], found[f"{path}v_proj"])
    key, query = (unit(found[f"{path}{name}_proj"]) for name in "kq")
    torch.testing.assert_close(key, query[:, :3])
    assert not torch.equal(found[f"{path}q_proj"], found[f"{path}o_proj"])


def test_random_directions_take_the_places_that_inputs_leave(loaded: LoadedModel) -> None:
    names = ranks(loaded, 7)
    found = measure(loaded, names, [ROWS[0][:3]], seed=3)
    name = "model.layers.0.mlp.down_proj"
    x: list[torch.Tensor] = []
    calibration.watch(
        loaded, [name], [ROWS[0][:3]], lambda _, __, values: x.append(values.clone().double())
    )
    _, _, right = torch.linalg.svd(x[0], full_matrices=False)
    a = unit(found[name])
    assert sine(a[:, :3], right.T) < 1e-3
    torch.testing.assert_close(a.T @ a, torch.eye(7), rtol=0, atol=1e-5)
    other = unit(measure(loaded, names, [ROWS[0][:3]], seed=4)[name])
    torch.testing.assert_close(a[:, :3], other[:, :3], rtol=0, atol=1e-3)
    assert not torch.allclose(a[:, 3:], other[:, 3:], atol=0.1)
    assert float((x[0] @ found[name].double()).square().mean()) == pytest.approx(
        2 / 83 * float(x[0].square().sum(1).mean()), rel=1e-5
    )


def test_a_layer_that_no_row_reaches_has_random_directions(loaded: LoadedModel) -> None:
    # The head does not run, as an expert may not.
    a = measure(loaded, {"lm_head": 4}, ROWS, seed=3)["lm_head"]
    assert a.shape == (44, 4)
    torch.testing.assert_close(a.T @ a, 2 * torch.eye(4), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(300, 97), (60, 301), (3, 50), (50, 3)])
def test_iterations_find_what_a_decomposition_finds(shape: tuple[int, int]) -> None:
    small = min(shape)
    left = torch.linalg.qr(values(shape[0], small).double()).Q
    right = torch.linalg.qr(values(shape[1], small, seed=1).double()).Q
    spectrum = torch.logspace(0, -2.5, small, dtype=torch.float64)
    x = 40 * (left * spectrum) @ right.T
    found = leading(x.float(), 16, seed=0).double()
    kept = min(16, small)
    assert found.shape == (kept, shape[1])
    torch.testing.assert_close(found.norm(dim=1), 40 * spectrum[:kept], rtol=1e-4, atol=0)
    assert sine((found / found.norm(dim=1, keepdim=True)).T, right[:, :kept]) < 1e-3
    assert len(leading(torch.zeros(shape), 16, seed=0)) == 0


def test_values_that_are_not_finite_are_one_clear_error(tmp_path: Path) -> None:
    broken = load("llama_tied", tmp_path)
    model: Any = broken.model
    model.model.layers[1].input_layernorm.weight.data[0] = torch.inf
    with pytest.raises(
        ModelError, match=r"layers\.1\.self_attn\.q_proj: .*lora\.init_weights=random"
    ):
        measure(broken, ranks(broken), ROWS, seed=0)
    assert not any(module._forward_pre_hooks for module in broken.model.modules())


# --- settings and text ----------------------------------------------------------------------------


def test_settings_and_text_decide(loaded: LoadedModel, tmp_path: Path) -> None:
    assert directions_of(PrgeConfig(), loaded, None, quiet) is None
    data = tmp_path / "text.jsonl"
    texts = [f"Row number {number} of a film by the sea." for number in range(3)]
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    settings = {"lora.init_weights": "activations", "lora.r": 3, "lora.rank_pattern": {"v_proj": 2}}
    found = directions_of(
        parse(PrgeConfig, {**settings, "max_length": 9, "seed": 5}), loaded, data, quiet
    )
    assert found is not None
    rows = calibration.calibration_rows(loaded, 9, data)
    names = adapter_targets(loaded.model, "attention", "all")
    wanted = {name: 2 if name.endswith("v_proj") else 3 for name in names}
    for name, a in measure(loaded, wanted, rows, seed=5).items():
        assert torch.equal(found.a[name], a)
    assert [*found.a] == names
    text = {"name": "text.jsonl", "sha256": sha256(data)}
    assert found.facts == {"text": text, "rows": 3, "tokens": sum(map(len, rows))}


def test_a_model_without_a_tokenizer_has_random_tokens(tmp_path: Path) -> None:
    model = models.load(models.resolve(str(save_tiny("llama", tmp_path, tokenizer=False))))
    config = parse(PrgeConfig, {"lora.init_weights": "activations", "max_length": 12})
    found = directions_of(config, model, None, quiet)
    assert found is not None and found.facts == {"text": None, "rows": 8, "tokens": 96}


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe", b'{"text": 3}\n'])
def test_text_that_cannot_be_used_is_one_clear_error(
    content: bytes | None, loaded: LoadedModel, tmp_path: Path
) -> None:
    data = tmp_path / "text.jsonl"
    if content is not None:
        data.write_bytes(content)
    config = parse(PrgeConfig, {"lora.init_weights": "activations"})
    with pytest.raises(DataError, match=r"text\.jsonl"):
        directions_of(config, loaded, data, quiet)
