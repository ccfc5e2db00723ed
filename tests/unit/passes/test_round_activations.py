"""round_activations: one rounding an input, formats that stages bind, and the model itself with rounded inputs."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.graphs import WIDTH, SmallModel, operators
from tests.support.splits import Layer, arguments, bound, small
from tests.support.tiny_models import VOCAB_SIZE, fixed_tokens, tiny
from zoexport.calibration import rounding
from zoexport.compiler.graphs import training_graph
from zoexport.compiler.plan import plan
from zoexport.core import activation_grids as grids
from zoexport.core.activation_grids import Format
from zoexport.core.errors import VerifyError
from zoexport.core.graph import TrainingGraph
from zoexport.core.target import Pass
from zoexport.ir.frozen import bound_weights, materialize
from zoexport.ir.graphs import placeholders
from zoexport.ir.interpret import Stages
from zoexport.methods.reference.quantized import quantize_model
from zoexport.methods.split import split_passes
from zoexport.models import adapter_targets
from zoexport.models.conv1d import linear_from_conv1d
from zoexport.models.weights import LoadedWeights
from zoexport.passes.round_activations import FORMAT, round_activations
from zoexport.targets.executorch.lower_stages import fused_program

ROUND = "zoexport.round_activations.default"
SEQ, BATCH = 31, 2
POSITIONS = torch.tensor([0, 5, SEQ - 1, SEQ + 3])
LABELS = torch.tensor([0, VOCAB_SIZE - 1, 5, 7])


class Three(nn.Module):
    """Two products of one input, and one of another."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, length, WIDTH) of the same."""
        y = torch.tanh(x)
        return x + self.c(self.b(y) * torch.sigmoid(self.a(y)))


def split(*layers: nn.Module) -> tuple[SmallModel, TrainingGraph]:
    return small(list(layers), "check_stages")


def test_an_input_is_rounded_once_for_all_that_read_it() -> None:
    _, graph = split(Three(), Three())
    modules = [f"body.{layer}.{name}" for layer in range(2) for name in "abc"]
    formats = {
        module: grids.int8(1.0 + number // 3) if module[-1] != "c" else grids.fp8(7.0)
        for number, module in enumerate(modules)
    }
    round_activations(graph, modules, formats)
    program = graph.programs["layer.0"]
    assert operators(program)[ROUND] == 2
    for number in range(2):
        bind = bound(graph)[f"body.{number}"]
        # b runs first.
        for local in ("b.weight", "c.weight"):
            name = bind[f"{FORMAT}{local}"]
            assert name == f"{FORMAT}body.{number}.{local}"
            expected = formats[f"body.{number}.{local[0]}"].tensor()
            assert torch.equal(graph.weights[name], expected)
            assert name in bound_weights(graph)
        assert f"{FORMAT}a.weight" not in bind
        held = {name: graph.rounded[f"body.{number}.{name}.weight"] for name in "abc"}
        assert held["a"] == held["b"] == bind[f"{FORMAT}b.weight"]
        assert held["c"] == bind[f"{FORMAT}c.weight"]
    value = next(v for v in program.inputs if v.name == f"{FORMAT}c.weight")
    assert (value.role, value.dtype, value.shape) == ("weight", "float32", (3,))
    assert operators(graph.programs["head"])[ROUND] == 0


def test_other_formats_of_one_input_are_other_roundings() -> None:
    _, graph = split(Three(), Three())
    modules = [f"body.{layer}.{name}" for layer in range(2) for name in "abc"]
    formats = dict.fromkeys(modules, grids.int8(1.0)) | {"body.1.a": grids.fp8(1.0)}
    round_activations(graph, modules, formats)
    assert operators(graph.programs["layer.0"])[ROUND] == 3


def test_other_layers_are_left_alone_and_sizes_need_no_formats() -> None:
    _, graph = split(Three())
    round_activations(graph, ["body.0.c"], None)
    (local,) = (name for name in placeholders(graph.programs["layer.0"]) if FORMAT in name)
    assert local == f"{FORMAT}c.weight"
    assert operators(graph.programs["layer.0"])[ROUND] == 1


def test_a_layer_that_is_not_there_is_one_clear_error() -> None:
    _, graph = split(Layer())
    with pytest.raises(VerifyError, match=r"\[round_activations\] body.7.linear.weight"):
        round_activations(graph, ["body.0.linear", "body.7.linear"], None)


def test_part_of_a_programs_stages_is_one_clear_error() -> None:
    _, graph = split(Layer(), Layer())
    with pytest.raises(VerifyError, match="all of them, or none"):
        round_activations(graph, ["body.0.linear"], None)


# --- whole models ---------------------------------------------------------------------------------


def rounding_passes(formats: Mapping[str, Format], config: Any, targets: list[str]) -> list[Pass]:
    """Those of split programs with nothing trained, and the rounding before weights are quantized."""
    step = Pass("round_activations", lambda graph: round_activations(graph, targets, formats), "")
    order = [one for one in split_passes(config, targets) if one.name != "lora_inject"]
    place = next(n for n, one in enumerate(order) if one.name == "quantize_stages")
    return [*order[:place], step, *order[place:]]


def rounded_graph(model: Any, formats: Mapping[str, Format]) -> TrainingGraph:
    """The int4 programs of ``model``, with their values."""
    values = {"max_length": str(SEQ), "batch_size": str(BATCH), "lora.target_modules": "all-linear"}
    planned = plan("prge", "host", {**values, "activations": "fp32"})
    method = dataclasses.replace(planned.method, passes=functools.partial(rounding_passes, formats))
    planned = dataclasses.replace(planned, method=method)
    graph = training_graph(planned, model, lambda *_: None)
    materialize(graph, LoadedWeights(model))
    return graph


def mixed_formats(model: Any) -> dict[str, Format]:
    kinds = (grids.int8(3.0), grids.fp8(3.0), grids.hybrid(0.7, 3.0))
    modules = adapter_targets(model, "all-linear", "all")
    return {module: kinds[len(module) % 3] for module in modules}


def test_lowered_programs_round_between_row_programs_and_products() -> None:
    model = tiny("llama_tied")
    graph = rounded_graph(model, mixed_formats(model))
    program = graph.programs[f"layer.0@{SEQ}"]
    fused = fused_program(program)
    # gate and up have paths of other lengths than each other, and so other formats here.
    assert operators(fused)[ROUND] == operators(program)[ROUND] >= 4
    given = arguments(graph, program)
    with torch.no_grad():
        for ours, theirs in zip(fused.module(*given), program.module(*given), strict=True):
            assert torch.allclose(ours, theirs, rtol=0, atol=2e-2)
            assert (ours - theirs).abs().mean() < 1e-3


@pytest.mark.parametrize("name", ["llama_tied", "gpt2", "opt", "gemma3"])
def test_programs_compute_what_the_model_does_with_rounded_inputs(name: str) -> None:
    model = tiny(name)
    linear_from_conv1d(model)
    formats = mixed_formats(model)
    graph = rounded_graph(copy.deepcopy(model), formats)
    quantize_model(model, {"weights": "int4", "activations": "fp32", "group_size": 32})

    tokens = fixed_tokens(BATCH, SEQ)
    found = scores(graph, tokens)
    plain = expected(model, tokens)
    with rounding(model, formats):
        rounded = expected(model, tokens)
    # A value at the middle between two numbers may go either way.
    assert (found - rounded).abs().max() < (plain - rounded).abs().max() / 20
    assert torch.equal(expected(model, tokens), plain)


def scores(graph: TrainingGraph, tokens: torch.Tensor) -> torch.Tensor:
    """What the stages say of the labels."""
    stages = Stages(graph, {}, SEQ)
    (hidden,) = stages.forward(tokens)[-1]
    head, filling = graph.stages[-1], graph.label_rows - len(POSITIONS)
    pad = torch.nn.functional.pad
    rows = pad(hidden.reshape(BATCH * SEQ, -1)[POSITIONS], (0, 0, 0, filling))
    results = stages._run(head.forward, head, [rows, pad(LABELS, (0, filling))])
    return results["label_logprobs"][: len(POSITIONS)]


def expected(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """What the model says of the labels."""
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits.flatten(0, 1)[POSITIONS]
    return torch.log_softmax(logits, -1).gather(1, LABELS[:, None])[:, 0]
