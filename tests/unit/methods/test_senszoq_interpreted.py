"""The programs of SensZOQ, run in plain torch, against the method's reference."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.support.masks import random_places
from tests.support.tiers import slow_architectures
from tests.support.tiny_models import ARCHITECTURES, VOCAB_SIZE, fixed_tokens, tiny
from zoexport.compiler.graphs import training_graph
from zoexport.compiler.plan import plan
from zoexport.core.errors import ConfigError
from zoexport.core.graph import TrainingGraph
from zoexport.ir.frozen import RowsWithoutChosen, materialize
from zoexport.ir.graphs import is_call, zo
from zoexport.ir.interpret import Stages, interpret
from zoexport.methods.reference.quantized import quantize_model
from zoexport.models.conv1d import linear_from_conv1d
from zoexport.models.weights import LoadedWeights

SEQ, BATCH, QUERIES, STEP = 31, 2, 2, 3
POSITIONS = torch.tensor([0, 5, SEQ - 1, SEQ + 3])
LABELS = torch.tensor([0, VOCAB_SIZE - 1, 5, 7])
NAMES = ("llama_tied", "gemma3", "gpt2")


def build(
    name: str, chosen: dict[str, torch.Tensor] | None = None, **settings: str
) -> tuple[TrainingGraph, Any]:
    """A tiny model's graph, and the reference with the same chosen weights."""
    model = tiny(name)
    linear_from_conv1d(model)
    original = copy.deepcopy(model)
    values = {
        "max_length": str(SEQ),
        "batch_size": str(BATCH),
        "num_queries": str(QUERIES),
        **settings,
    }
    planned = plan("senszoq", "host", values)
    weights = LoadedWeights(model)
    chosen = random_places(model, 0.01) if chosen is None else chosen
    graph = training_graph(planned, model, lambda *_: None, source=weights, chosen=chosen)
    assert graph.chosen is not None
    if graph.quantized:
        materialize(graph, RowsWithoutChosen(weights, graph.chosen))
    for parameter, places in graph.chosen.items():
        original.get_parameter(parameter).data.view(-1)[places] = 0
        if not graph.quantized:
            graph.weights[parameter] = original.get_parameter(parameter).data
    config = planned.config
    quantize_model(
        original,
        {"weights": config.weights, "activations": "fp32", "group_size": config.group_size},
    )
    slots = {**graph.initial, **{f"places.{key}": found for key, found in graph.chosen.items()}}
    return graph, planned.method.reference(original, config, slots)


def scores(graph: TrainingGraph, epsilon: float, tokens: torch.Tensor) -> list[torch.Tensor]:
    """What the stages say of the labels, in each copy of the batch."""
    scalars = {
        "epsilon": torch.tensor([epsilon]),
        "seed": torch.tensor([0]),
        "step": torch.tensor([STEP]),
    }
    stages = Stages(graph, graph.initial, SEQ, scalars)
    (hidden,) = stages.forward(tokens)[-1]
    head = graph.stages[-1]
    filling = graph.label_rows - len(POSITIONS)
    pad = torch.nn.functional.pad
    found = []
    for rows in hidden.split(BATCH):
        chosen = rows.reshape(BATCH * SEQ, -1)[POSITIONS]
        given = [pad(chosen, (0, 0, 0, filling)), pad(LABELS, (0, filling))]
        results = stages._run(head.forward, head, given)
        found.append(results["label_logprobs"][: len(POSITIONS)])
    return found


def expected(reference: Any, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the model itself says of the labels, with these values of the chosen weights."""
    tokens = fixed_tokens(BATCH, SEQ)
    with torch.no_grad(), reference.adapted.hooked(reference.added(values)):
        logits = reference.adapted.model(input_ids=tokens, use_cache=False).logits
    logprobs = torch.log_softmax(logits, -1).reshape(BATCH * SEQ, -1)
    return logprobs[POSITIONS].gather(1, LABELS[:, None])[:, 0]


@pytest.mark.parametrize(
    ("name", "weights"),
    slow_architectures(
        [*((name, "int4") for name in ARCHITECTURES), *((name, "fp32") for name in NAMES)]
    ),
)
def test_programs_are_the_reference(name: str, weights: str) -> None:
    """All copies in one call; with epsilon zero all rows are the model as it is."""
    graph, reference = build(name, weights=weights)
    reference.step_number = STEP
    tokens = fixed_tokens(BATCH, SEQ).repeat(2 * QUERIES, 1)
    for copy_number, ours in enumerate(scores(graph, reference.config.eps, tokens)):
        values = reference.perturbed(copy_number // 2, (1.0, -1.0)[copy_number % 2])
        torch.testing.assert_close(ours, expected(reference, values), rtol=2e-6, atol=2e-6)
    plain = expected(reference, reference.masters)
    for ours in scores(graph, 0.0, tokens):
        torch.testing.assert_close(ours, plain, rtol=2e-6, atol=2e-6)


def test_counts_that_look_like_lengths_are_none() -> None:
    """Programs are captured at a length that marks what follows the sequence; no count may be a multiple of it."""
    name = "model.layers.{}.mlp.up_proj.weight"
    chosen = {name.format(layer): torch.arange(0, 6 * SEQ, 3 - layer) for layer in (0, 1)}
    assert {len(places) % SEQ for places in chosen.values()} == {0}
    graph, reference = build("llama", chosen, weights="int4")
    tokens = fixed_tokens(BATCH, SEQ).repeat(2 * QUERIES, 1)
    for ours in scores(graph, 0.0, tokens):
        plain = expected(reference, reference.masters)
        torch.testing.assert_close(ours, plain, rtol=2e-6, atol=2e-6)


def test_chosen_weights_elsewhere_are_refused() -> None:
    elsewhere = {"lm_head.weight": torch.tensor([3])}
    with pytest.raises(ConfigError, match=r"1 elements of lm_head.weight.*zoexport sensitivity"):
        build("llama", elsewhere)


def test_layers_of_one_shape_are_one_program() -> None:
    """However many of their weights are chosen; the dense product runs once over all copies."""
    graph, _ = build("llama", weights="int4")
    assert graph.chosen is not None
    assert len({len(places) for places in graph.chosen.values()}) > 1
    families = {program.family or name for name, program in graph.programs.items()}
    assert families == {"embedding", "head", "layer.0", "update"}
    nodes = graph.programs[f"layer.0@{SEQ}"].module.graph.nodes
    products = [node for node in nodes if is_call(node, zo.linear_int4)]
    assert len(products) == sum(is_call(node, zo.sparse_add_mm) for node in nodes) == 7
    assert {node.meta["val"].shape[0] for node in products} == {2 * QUERIES * BATCH}


def test_the_update_is_the_reference() -> None:
    """In fp16, one rounding an update."""
    graph, reference = build("llama")
    gradients, rate = [0.5, -1.0], 1e-2
    (name,) = reference.masters
    inputs = {
        name: graph.initial[name],
        "projected_gradients": torch.tensor(gradients),
        "learning_rate": torch.tensor([rate]),
        "seed": torch.tensor([0]),
        "step": torch.tensor([STEP]),
    }
    updated = interpret(graph, "update", inputs)[name]
    reference.pending, reference.step_number = (gradients, rate), STEP
    reference.finish()
    assert updated.dtype == torch.float16
    assert not torch.equal(updated, graph.initial[name])
    torch.testing.assert_close(updated.float(), reference.masters[name], rtol=1e-3, atol=1e-6)
