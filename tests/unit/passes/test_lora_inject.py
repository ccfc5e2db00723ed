"""lora_inject adds adapters to the listed layers, changes nothing while B is zero, and refuses the impossible."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.graphs import VOCAB, WIDTH, captured, tokens
from zoexport.core import rng
from zoexport.core.errors import ConfigError, VerifyError
from zoexport.core.graph import Measured
from zoexport.core.lora_scaling import LoraScaling
from zoexport.ir.interpret import interpret
from zoexport.passes.lora_inject import A_TENSOR_IDS, lora_inject


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH, bias=False))


def test_output_is_the_layer_plus_scaled_product() -> None:
    model, graph = captured(_model())
    lora_inject(graph, ["body.2"], LoraScaling(4, 8), seed=7)
    x = tokens(2)
    inputs = {"tokens": x, **graph.initial}
    unchanged = interpret(graph, "forward", inputs)["logits"]
    torch.testing.assert_close(unchanged, model(x).logits, rtol=0, atol=0)
    inputs["lora_B.body.2"] = torch.linspace(-1, 1, 4 * WIDTH).view(4, WIDTH)
    hidden = torch.tanh(model.body[0](model.embed(x)))
    adapter = hidden @ inputs["lora_A.body.2"] @ inputs["lora_B.body.2"]
    expected = model.head(model.body[2](hidden) + 2.0 * adapter)
    torch.testing.assert_close(interpret(graph, "forward", inputs)["logits"], expected)


def test_slots_name_their_module_and_noise() -> None:
    _, graph = captured(_model())
    lora_inject(graph, ["body.2", "body.0"], LoraScaling(2, 2), seed=7)
    assert [(slot.name, slot.role, slot.tensor_id) for slot in graph.slots] == [
        ("lora_A.body.2", "frozen", A_TENSOR_IDS),
        ("lora_B.body.2", "trainable", 0),
        ("lora_A.body.0", "frozen", A_TENSOR_IDS + 1),
        ("lora_B.body.0", "trainable", 1),
    ]
    drawn = rng.normals(7, A_TENSOR_IDS + 1, 0, 0, WIDTH * 2)
    expected = torch.from_numpy(drawn).view(WIDTH, 2) * (2 / WIDTH) ** 0.5
    torch.testing.assert_close(graph.initial["lora_A.body.0"], expected, rtol=0, atol=0)


def test_directions_take_the_place_of_drawn_numbers() -> None:
    _, graph = captured(_model())
    measured = torch.linspace(-1, 1, WIDTH * 2).view(WIDTH, 2)
    graph.measured = Measured(directions={"body.0": measured, "body.2": 2 * measured})
    lora_inject(graph, ["body.2", "body.0"], LoraScaling(2, 2), seed=7)
    assert torch.equal(graph.initial["lora_A.body.0"], measured)
    assert torch.equal(graph.initial["lora_A.body.2"], 2 * measured)
    assert not graph.initial["lora_B.body.0"].any()


def test_unknown_module_is_refused_with_the_nearest_name() -> None:
    _, graph = captured(_model())
    with pytest.raises(VerifyError, match=r"body\.0"):
        lora_inject(graph, ["body.00"], LoraScaling(2, 2), seed=0)


def test_rank_above_the_smaller_side_is_refused() -> None:
    _, graph = captured(_model())
    with pytest.raises(ConfigError, match=f"at most {min(WIDTH, VOCAB)}"):
        lora_inject(graph, ["head"], LoraScaling(VOCAB + 1, 2), seed=0)


def test_both_matrices_can_be_trained() -> None:
    _, alone = captured(_model())
    lora_inject(alone, ["body.0"], LoraScaling(2, 2), seed=7)
    _, graph = captured(_model())
    lora_inject(graph, ["body.0"], LoraScaling(2, 2), seed=7, train_a=True)
    assert [(slot.name, slot.role, slot.tensor_id) for slot in graph.slots] == [
        ("lora_A.body.0", "trainable", A_TENSOR_IDS),
        ("lora_B.body.0", "trainable", 0),
    ]
    # The first values and the program are the same: whether A is trained is the slots' affair.
    assert torch.equal(graph.initial["lora_A.body.0"], alone.initial["lora_A.body.0"])
    assert str(graph.programs["forward"].module.graph) == str(
        alone.programs["forward"].module.graph
    )
