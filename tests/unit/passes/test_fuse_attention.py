"""fuse_attention: which attention becomes the operator, that it says the same, and what is left alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.support.splits import difference, passed
from tests.support.tiers import slow_architectures
from tests.support.tiny_models import ARCHITECTURES, ENCODERS, SLIDING_WINDOW
from zoexport.core.features import Feature
from zoexport.core.graph import Program, TrainingGraph
from zoexport.ir.graphs import arguments, aten, is_call, placeholders, shape_of, zo
from zoexport.passes.check_stages import trial_value
from zoexport.passes.fuse_attention import fuse_attention
from zoexport.targets import targets

LENGTH = 29
OTHERS = ("bloom", "mpt", "gemma2")
"""Biases that grow with the distance, and capped scores."""


def found(program: Program) -> list[tuple[Any, ...]]:
    """Scale, whether causal, and window of every attention of a program."""
    return [
        arguments(node)[4:] for node in program.module.graph.nodes if is_call(node, zo.attention)
    ]


def softmaxes(graph: TrainingGraph) -> int:
    return sum(
        is_call(node, aten.softmax, aten._softmax)
        for program in graph.programs.values()
        for node in program.module.graph.nodes
    )


def results(graph: TrainingGraph) -> dict[str, list[torch.Tensor]]:
    """What each stage's program gives for the same random inputs; padding among tokens."""
    made = {}
    for stage in graph.stages:
        program = graph.programs[stage.forward]
        inputs = []
        for value in program.inputs:
            name = stage.bind.get(value.name, "")
            if name in graph.weights and name not in graph.parameters:
                inputs.append(graph.weights[name])
            else:
                inputs.append(trial_value(graph, program, value))
            if value.role == "tokens" and graph.pad_token is not None:
                inputs[-1][:, LENGTH // 2 :] = graph.pad_token
        with torch.no_grad():
            made[stage.name] = list(program.module(*inputs))
    return made


@pytest.mark.parametrize("name", slow_architectures([*ARCHITECTURES, *ENCODERS]))
def test_layers_say_the_same(name: str) -> None:
    expected = results(passed(name, "split_layers", LENGTH))
    graph = passed(name, "fuse_attention", LENGTH)
    assert bool(softmaxes(graph)) == (name in OTHERS)
    for stage, theirs in results(graph).items():
        for ours, one in zip(theirs, expected[stage], strict=True):
            assert difference(ours, one) < 2e-6
    # Masks are no inputs any more: nothing that programs read is as large as the square of a row.
    for program in graph.programs.values():
        squares = [value.name for value in program.inputs if list(value.sizes()).count(LENGTH) > 1]
        assert not squares or name in OTHERS


def test_heads_that_share_keys_do_not_repeat_them() -> None:
    graph = passed("llama", "fuse_attention", LENGTH)
    (layer,) = (program for name, program in graph.programs.items() if name.startswith("layer"))
    (attention,) = (node for node in layer.module.graph.nodes if is_call(node, zo.attention))
    sizes = [shape_of(node)[2:] for node in attention.all_input_nodes]
    assert sizes == [(4, 16), (2, 16), (2, 16)]
    assert found(layer) == [(0.25, True, 0)]
    assert not any(is_call(node, aten.expand) for node in layer.module.graph.nodes)


def test_a_head_of_keys_that_products_repeat_is_not_repeated() -> None:
    graph = passed("falcon", "fuse_attention", LENGTH)
    layer = graph.programs["layer.0"]
    (attention,) = (node for node in layer.module.graph.nodes if is_call(node, zo.attention))
    sizes = [shape_of(node)[2:] for node in attention.all_input_nodes]
    assert sizes == [(4, 16), (1, 16), (1, 16)] and found(layer) == [(0.25, True, 0)]


def test_layers_whose_windows_differ_are_programs_of_their_own() -> None:
    graph = passed("gemma3", "fuse_attention", LENGTH)
    local, whole = graph.programs["layer.0.0"], graph.programs["layer.0.1"]
    assert found(local) == [(0.25, True, SLIDING_WINDOW)] and found(whole) == [(0.25, True, 0)]
    assert [stage.forward for stage in graph.stages[1:-1]] == [
        "layer.0.0",
        "layer.0.0",
        "layer.0.1",
    ]
    for stage in graph.stages:
        assert stage.bind.keys() == {
            value.name
            for value in graph.programs[stage.forward].inputs
            if value.role in ("weight", "state")
        }


def test_a_window_that_no_row_reaches_is_none() -> None:
    graph = passed("gemma3", "fuse_attention", LENGTH, sliding_window=LENGTH)
    assert {stage.forward for stage in graph.stages[1:-1]} == {"layer.0"}
    assert found(graph.programs["layer.0"]) == [(0.25, True, 0)]


def test_a_window_between_the_rows_and_the_captured_length_is_none() -> None:
    graph = passed("mistral", "split_layers", LENGTH, sliding_window=LENGTH - 2)
    graph.max_length = LENGTH - 3
    fuse_attention(graph)
    assert found(graph.programs["layer.0"]) == [(0.25, True, 0)]


def test_an_encoders_padding_is_the_operators_bias() -> None:
    graph = passed("bert", "fuse_attention", LENGTH)
    layer = graph.programs["layer.0"]
    (attention,) = (node for node in layer.module.graph.nodes if is_call(node, zo.attention))
    assert found(layer) == [(0.25, False, 0)]
    assert shape_of(arguments(attention)[3]) == (graph.rows, LENGTH)
    assert "tokens" in placeholders(layer)


@pytest.mark.parametrize("name", OTHERS)
def test_other_attention_stays_as_it_was(name: str) -> None:
    before = passed(name, "split_layers", LENGTH)
    after = passed(name, "fuse_attention", LENGTH)
    assert [stage.bind for stage in after.stages] == [stage.bind for stage in before.stages]
    for program, one in zip(after.programs.values(), before.programs.values(), strict=True):
        assert str(program.module.graph) == str(one.module.graph)


def test_a_mask_of_other_tokens_is_left_alone() -> None:
    graph = passed("llama", "split_layers", LENGTH)
    (mask,) = (name for name, one in graph.weights.items() if list(one.shape).count(LENGTH) > 1)
    graph.weights[mask] = graph.weights[mask].clone()
    graph.weights[mask][..., 5, 0] = graph.weights[mask][
        ..., 0, 5
    ]  # the sixth token sees not the first
    fuse_attention(graph)
    assert softmaxes(graph) == 1 and not found(graph.programs["layer.0"])


def test_targets_with_the_operator_get_it() -> None:
    has = {name for name in targets.names() if Feature.ATTENTION in targets.get(name).has}
    assert has == {"host", "android-cpu", "android-gpu"}


def test_long_rows() -> None:
    """Masks of more elements than are folded otherwise; they are looked at here, and are in no program afterwards."""
    graph = passed("llama", "fuse_attention", 2053, max_position_embeddings=4096)
    assert len(found(graph.programs["layer.0"])) == 1
    read = [value for program in graph.programs.values() for value in program.inputs]
    assert all(math.prod(value.sizes()) < 2053**2 for value in read)
