"""The whole programs of each zeroth-order method, run in plain torch, against the method's reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.tiers import slow_architectures
from tests.support.tiny_models import ARCHITECTURES, VOCAB_SIZE, fixed, fixed_tokens, tiny
from zoexport.compiler.graphs import training_graph
from zoexport.compiler.plan import plan
from zoexport.core.graph import TrainingGraph
from zoexport.ir.interpret import interpret
from zoexport.methods.reference.quantized import quantize_model
from zoexport.models.conv1d import linear_from_conv1d

# A prime, so that the programs are captured at this very length (ir.lengths).
SEQ, ROWS, QUERIES = 31, 3, 2
POSITIONS = torch.tensor([0, 5, SEQ - 1, SEQ + 3, 2 * SEQ, 2 * SEQ + 7, 3 * SEQ - 1])
LABELS = torch.tensor([0, VOCAB_SIZE - 1, 5, 7, 9, 100, 200])
PENDING, RATE, EPS, STEP = [0.5, -1.0], 0.01, 1e-2, 3


def build(
    name: str, method: str, **settings: str
) -> tuple[TrainingGraph, Any, dict[str, torch.Tensor]]:
    """A tiny model's graph, the reference at a state that is not zero, and the graph's inputs."""
    model = tiny(name)
    linear_from_conv1d(model)
    values = {
        "max_length": str(SEQ),
        "batch_size": str(ROWS),
        "num_queries": str(QUERIES),
        "lora.r": "4",
        "lora.alpha": "8",
        **settings,
    }
    planned = plan(method, "ios-mlx", values)
    graph = training_graph(planned, model, lambda *_: None)
    slots = {
        name: fixed(name, tuple(value.shape)) * 0.1 if name.startswith("lora_B") else value
        for name, value in graph.initial.items()
    }
    quantize_model(
        model,
        {
            "weights": planned.config.weights,
            "activations": planned.config.activations,
            "group_size": planned.config.group_size,
        },
    )
    reference = planned.method.reference(model, planned.config, slots)
    inputs = {
        **slots,
        "tokens": fixed_tokens(ROWS, SEQ),
        "label_positions": POSITIONS,
        "label_tokens": LABELS,
        "seed": torch.tensor([0]),
        "step": torch.tensor([STEP]),
        "projected_gradients": torch.tensor(PENDING),
        "learning_rate": torch.tensor([RATE]),
        "epsilon": torch.tensor([EPS]),
    }
    return graph, reference, inputs


def label_logprobs(reference: Any, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the model itself says of the labels, with these masters."""
    with torch.no_grad(), reference.adapted.hooked(reference.added(values)):
        logits = reference.adapted.model(input_ids=fixed_tokens(ROWS, SEQ), use_cache=False).logits
    logprobs = torch.log_softmax(logits, -1).reshape(ROWS * SEQ, -1)
    return logprobs[POSITIONS].gather(1, LABELS[:, None])[:, 0]


def run_train(
    graph: TrainingGraph, method: str, inputs: dict[str, torch.Tensor]
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """The log-probabilities of all copies, and the outputs of the last call."""
    if method != "mezo":
        outputs = interpret(graph, "train", inputs)
        return list(outputs["label_logprobs"]), outputs
    copies = []
    for query in range(QUERIES):
        for sign in (1.0, -1.0):
            chosen = {"query": torch.tensor([query]), "sign": torch.tensor([sign])}
            outputs = interpret(graph, "train", {**inputs, **chosen})
            copies.append(outputs["label_logprobs"][0])
    return copies, outputs


QUANTIZED = ("llama_tied", "qwen2", "gemma3", "opt", "phi3", "gpt2")
CASES = [
    *((name, method, "fp32") for name in ARCHITECTURES for method in ("prge", "mezo", "fzoo")),
    *((name, "prge", "int4") for name in QUANTIZED),
    ("llama_tied", "fzoo", "int4"),
]
BOTH_SIDES = [(query, sign) for query in range(QUERIES) for sign in (1.0, -1.0)]
ONE_SIDE = [(0, 0.0), *((query, 1.0) for query in range(QUERIES))]


@pytest.mark.parametrize(("name", "method", "weights"), slow_architectures(CASES))
def test_programs_are_the_reference(name: str, method: str, weights: str) -> None:
    graph, reference, inputs = build(name, method, weights=weights, activations="fp32")
    evaluated = interpret(graph, "evaluate", inputs)["label_logprobs"][0]
    torch.testing.assert_close(evaluated, label_logprobs(reference, reference.masters))

    copies, outputs = run_train(graph, method, inputs)
    reference.pending, reference.step_number = (PENDING, RATE), STEP
    reference.finish()
    for name, value in reference.masters.items():
        torch.testing.assert_close(outputs[name], value, rtol=1e-6, atol=1e-8)
    moves = ONE_SIDE if method == "fzoo" else BOTH_SIDES
    for ours, (query, sign) in zip(copies, moves, strict=True):
        torch.testing.assert_close(
            ours, label_logprobs(reference, reference.perturbed(query, sign))
        )


def test_last_layers_alone_leave_the_first_ones_at_one_copy() -> None:
    graph, reference, inputs = build(
        "llama",
        "prge",
        weights="fp32",
        activations="fp32",
        **{"lora.layers_to_transform": "last:1"},
    )
    assert all("layers.1." in name for name in reference.masters)
    rows = {
        node.meta["val"].shape[0]
        for node in graph.programs["train"].module.graph.nodes
        if "linear" in str(node.target) and len(node.meta["val"].shape) == 3
    }
    # Those of the copies have their label rows alone, a copy after another.
    assert rows == {ROWS, 2 * QUERIES}
    evaluated = interpret(graph, "evaluate", inputs)["label_logprobs"][0]
    torch.testing.assert_close(evaluated, label_logprobs(reference, reference.masters))
