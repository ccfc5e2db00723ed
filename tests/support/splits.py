"""Split graphs for tests: of small bodies up to a pass, of tiny models whole, and what autograd says of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tests.support.graphs import WIDTH, SmallModel
from tests.support.tiny_models import (
    VOCAB_SIZE,
    fixed,
    fixed_tokens,
    from_config,
    tiny,
    tiny_config,
)
from zoexport.compiler.graphs import training_graph
from zoexport.compiler.plan import plan
from zoexport.core.graph import LayerGraph, Program, Stage
from zoexport.ir.capture import capture
from zoexport.ir.frozen import materialize
from zoexport.ir.interpret import Stages
from zoexport.methods.reference.mebp import FirstOrderReference
from zoexport.methods.reference.quantized import quantize_model
from zoexport.methods.split import split_passes
from zoexport.models.load import linear_from_conv1d
from zoexport.models.weights import LoadedWeights
from zoexport.passes.pipeline import run_passes

LENGTH = 13
"""Tokens of a row of a small model: a prime that divides none of its sizes."""
LONGEST, ROWS = 48, 2
"""Tokens of a row and rows of a call of the tiny models: programs are made for 32 and 48 tokens."""
POSITIONS = (0, 5, 31, 32 + 3, 32 + 7, 63)
"""Label positions of two rows of 32 tokens; valid for 48 too."""
LABELS = torch.tensor([0, VOCAB_SIZE - 1, 5, 7, 100, 200])
LABEL_WEIGHTS = torch.tensor([0.5, -1.0, 0.25, 2.0, -0.75, 1.0])


class Layer(nn.Module):
    """x + tanh(x W + b), and what a test wants besides."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, length, WIDTH) of the same."""
        return x + torch.tanh(self.linear(x))


def small(
    body: nn.Module | Sequence[nn.Module],
    last: str,
    *,
    targets: Sequence[str] = (),
    tied: bool = False,
    any_length: bool = True,
    **settings: Any,
) -> tuple[SmallModel, LayerGraph]:
    """A small model, fp32 unless ``settings`` say so, and its graph after the passes up to ``last``.

    Args:
        body: what stands between embedding and head, or the layers of an nn.Sequential.
        settings: of mebp, with ``__`` for a dot.
    """
    body = body if isinstance(body, nn.Module) else nn.Sequential(*body)
    model = SmallModel(body, tied=tied).eval()
    graph = capture(model, LENGTH)
    graph.any_length = any_length
    values = {"max_length": LENGTH, "lora.r": 2, "lora.alpha": 4, "weights": "fp32"}
    values |= {name.replace("__", "."): value for name, value in settings.items()}
    config = plan("mebp", "host", {name: str(value) for name, value in values.items()}).config
    order = split_passes(config, list(targets))
    count = next(number for number, step in enumerate(order) if step.name == last) + 1
    return model, run_passes(graph, order[:count], lambda *_: None)


def passed(name: str, last: str, length: int = LENGTH, **changes: Any) -> LayerGraph:
    """A tiny model's graph after the passes up to ``last``, fp32 and with nothing trained.

    Args:
        changes: of its configuration.
    """
    graph = capture(from_config(tiny_config(name, **changes)), length)
    config = plan("mebp", "host", {"max_length": str(length), "weights": "fp32"}).config
    order = split_passes(config, [])
    count = next(number for number, step in enumerate(order) if step.name == last) + 1
    return run_passes(graph, order[:count], lambda *_: None)


def bound(graph: LayerGraph) -> dict[str, dict[str, str]]:
    """What each stage binds."""
    return {stage.name: stage.bind for stage in graph.stages}


def calls(graph: LayerGraph) -> list[tuple[str, str, str | None]]:
    """Name and programs of each stage."""
    return [(stage.name, stage.forward, stage.backward) for stage in graph.stages]


@functools.cache
def tiny_graph(
    name: str, *, target: str = "host", **settings: str
) -> tuple[LayerGraph, FirstOrderReference]:
    """A tiny model's graph with its values, every linear layer adapted, and autograd over the model itself.

    Both have the slots of :func:`state`. Shared by tests: neither is to be changed.

    Args:
        target: whose operators the graph may have.
    """
    model = tiny(name)
    linear_from_conv1d(model)
    values = {
        "max_length": str(LONGEST),
        "batch_size": str(ROWS),
        "weights": "fp32",
        "lora.r": "4",
        "lora.alpha": "8",
        "lora.target_modules": "all-linear",
        **{key.replace("__", "."): value for key, value in settings.items()},
    }
    planned = plan("mebp", target, values)
    graph = training_graph(planned, model, lambda *_: None)
    materialize(graph, LoadedWeights(model))
    config = planned.config
    quantization = {"weights": config.weights, "activations": "fp32"}
    quantize_model(model, quantization | {"group_size": config.group_size})
    return graph, FirstOrderReference(model, config, state(graph))


def state(graph: LayerGraph) -> dict[str, torch.Tensor]:
    """Slots with a B that is not zero."""
    return {
        name: fixed(name, tuple(value.shape)) * 0.1 if name.startswith("lora_B") else value
        for name, value in graph.initial.items()
    }


def by_stages(
    graph: LayerGraph, length: int, chunks: Sequence[slice] = (slice(None),)
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Log-probabilities of the labels, and the gradients of their weighted sum, added up over ``chunks`` of them."""
    stages = Stages(graph, state(graph), length)
    logprobs, total = [], {}
    for chunk in chunks:
        found, gradients = stages.gradients(
            fixed_tokens(ROWS, length),
            torch.tensor(POSITIONS)[chunk],
            LABELS[chunk],
            LABEL_WEIGHTS[chunk],
        )
        logprobs.append(found)
        for name, gradient in gradients.items():
            total[name] = total[name] + gradient if name in total else gradient
    return torch.cat(logprobs), total


def by_autograd(
    reference: FirstOrderReference, length: int
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The same by the reference, rounded to fp32."""
    with reference.adapted.hooked(reference.added()):
        logits = reference.adapted.model(
            input_ids=fixed_tokens(ROWS, length), use_cache=False
        ).logits
    chosen = logits.flatten(0, 1)[torch.tensor(POSITIONS)]
    logprobs = torch.log_softmax(chosen, -1).gather(1, LABELS[:, None])[:, 0]
    gradients = torch.autograd.grad((logprobs * LABEL_WEIGHTS).sum(), [*reference.slots.values()])
    found = {name: value.float() for name, value in zip(reference.slots, gradients, strict=True)}
    return logprobs.detach().float(), found


def stage_of(graph: LayerGraph, program: Program) -> Stage:
    """The first stage that applies a program."""
    return next(stage for stage in graph.stages if program.family in stage.families)


def arguments(graph: LayerGraph, program: Program) -> list[torch.Tensor]:
    """Inputs of a program: its first stage's weights and adapters, tokens, and activations near one."""
    bind, slots = stage_of(graph, program).bind, state(graph)
    found = []
    for value in program.inputs:
        shape = value.sizes()
        if value.role == "weight":
            found.append(graph.weights[bind[value.name]])
        elif value.role == "state":
            found.append(slots[bind[value.name]])
        elif value.dtype == "int64":
            found.append((fixed(value.name, shape).abs() * VOCAB_SIZE).long())
        else:
            found.append(fixed(value.name, shape))
    return found


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The norm of the difference, relative to the norm of ``theirs``; NaN where either has one."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-12))
