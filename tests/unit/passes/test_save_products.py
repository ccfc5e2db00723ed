"""save_products: pairs of programs that give what the others do and compute no product of the forward pass.

That they give the same bits once they are lowered is shown by tests/parity/test_saved_products.py.
"""

from __future__ import annotations

import pytest
import torch

from tests.support.splits import Layer, arguments, small, tiny_graph
from tests.support.tiers import slow_architectures
from tests.support.tiny_models import ARCHITECTURES, ENCODERS
from zoexport.compiler.plan import plan
from zoexport.core.errors import ConfigError
from zoexport.core.features import Feature
from zoexport.core.graph import Program, TrainingGraph
from zoexport.ir.graphs import aten, is_call, is_own, placeholders
from zoexport.passes.split_layers import HEAD
from zoexport.targets import targets


def of(graph: TrainingGraph, family: str | None, length: int) -> Program:
    return next(p for p in graph.programs.values() if p.called == family and p.length == length)


def run(program: Program, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        results = program.module(*(values[value.name] for value in program.inputs))
    return dict(zip((value.name for value in program.outputs), results, strict=True))


def products(program: Program) -> int:
    """Products and attention of what is no result of a later gradient."""
    later = {
        node for name, node in placeholders(program).items() if name.startswith("output_gradient.")
    }
    found = 0
    for node in program.module.graph.nodes:
        if later.intersection(node.all_input_nodes):
            later.add(node)
        elif is_call(node, aten.linear, aten.matmul, aten.mm, aten.bmm) or is_own(node):
            found += 1
    return found


@pytest.mark.parametrize(
    ("name", "weights"),
    slow_architectures(
        [
            *((name, "fp32") for name in (*ARCHITECTURES, *ENCODERS)),
            ("llama_tied", "int4"),
            ("gpt2", "int8"),
        ]
    ),
)
def test_the_pair_gives_the_same(name: str, weights: str) -> None:
    graph, _ = tiny_graph(name, weights=weights)
    pairs = [stage for stage in graph.stages if stage.saving is not None]
    assert [stage.name for stage in pairs] == [
        stage.name for stage in graph.stages if stage.backward and stage.name != HEAD
    ]
    stage, length = pairs[-1], graph.lengths[0]
    forward, saving, backward, from_saved = (
        of(graph, family, length)
        for family in (stage.forward, stage.saving, stage.backward, stage.from_saved)
    )
    values = {
        value.name: tensor
        for program in (backward, forward)
        for value, tensor in zip(program.inputs, arguments(graph, program), strict=True)
    }
    expected = run(forward, values)
    given = run(saving, values)
    for result, value in expected.items():
        assert torch.equal(given[result], value)
    saved = {result: given[result] for result in given.keys() - expected.keys()}
    assert saved and all(value.dtype == torch.float32 for value in saved.values())
    gradients = run(backward, values)
    found = run(from_saved, values | saved)
    assert list(found) == list(gradients)
    for result, value in gradients.items():
        # Rounding alone: torch's silu and others are not the operations into which gradients divide them.
        scale = float(value.abs().max())
        torch.testing.assert_close(found[result], value, rtol=0, atol=2e-6 * max(scale, 1e-3))
    assert products(backward) and not products(from_saved)


def test_the_fewest_bytes_are_saved() -> None:
    _, graph = small(
        [Layer(), Layer()], "save_products", targets=["body.0.linear", "body.1.linear"]
    )
    saving = next(p for p in graph.programs.values() if p.called.endswith(".saving"))
    saved = [value.shape for value in saving.outputs if value.role == "saved"]
    rows, length, width = saving.outputs[0].shape
    # Of x + tanh(x W + b + (x A) B) the gradients read x A, which B's needs, and the sum before the tanh.
    assert sorted(saved) == [(rows, length, 2), (rows, length, width)]


def test_stages_without_gradients_have_no_pair() -> None:
    _, graph = small(
        [Layer(), Layer()], "save_products", targets=["body.1.linear"], any_length=False
    )
    assert [stage.saving for stage in graph.stages] == [None, None, "layer.1.saving", None]


def test_targets_without_the_feature_refuse() -> None:
    has = {name for name in targets.names() if Feature.SAVED_PRODUCTS in targets.get(name).has}
    assert has == {"android-cpu", "host"}
    with pytest.raises(ConfigError, match="ios-mlx has no programs that save"):
        plan("mebp", "ios-mlx", {"activation_cache_mb": "1"})


@pytest.mark.parametrize("target", ["android-cpu", "ios-mlx"])
def test_there_are_none_where_nothing_is_to_be_kept(target: str) -> None:
    graph, _ = tiny_graph("llama", target=target)
    assert {stage.saving for stage in graph.stages} == {None}


def test_only_stages_with_a_backward_program_get_a_pair() -> None:
    _, graph = small(
        [Layer(), Layer(), Layer()], "save_products", targets=["body.1.linear"], any_length=False
    )
    pairs = {stage.name: stage.saving is not None for stage in graph.stages}
    assert pairs == {
        stage.name: stage.backward is not None and stage.name != HEAD for stage in graph.stages
    }
    assert pairs["body.1"]
    assert not pairs["body.0"]
