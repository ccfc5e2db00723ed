"""cache_attention and decode_sizes: what a layer with a cache says, which masks it understands, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tiny_models import VOCAB_SIZE, fixed_tokens, tiny
from zoexport.core.errors import VerifyError
from zoexport.core.graph import Program, TrainingGraph
from zoexport.ir.capture import capture
from zoexport.ir.graphs import arguments, is_call, zo
from zoexport.methods.mebp import MebpConfig
from zoexport.methods.split import decoding_passes
from zoexport.passes.pipeline import run_passes

LENGTH = 101


def decoding(model: nn.Module, lengths: list[int], context: int = LENGTH) -> TrainingGraph:
    """A model's programs that generate, without anything that is trained."""
    graph = capture(model, LENGTH)
    config = MebpConfig(weights="fp32", lora_target_modules="all-linear")
    passes = decoding_passes(config, [], context=context, lengths=lengths)
    return run_passes(graph, passes, lambda *_: None)


class Cached:
    """A graph as a session runs it: tokens in pieces, over caches that it keeps."""

    def __init__(self, graph: TrainingGraph) -> None:
        self.graph = graph
        self.first = 0
        self.caches: dict[tuple[str, str], torch.Tensor] = {}

    def feed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits after the last of some tokens, of which there is a program for that many."""
        count = len(tokens)
        passed: list[torch.Tensor] = []
        for stage in self.graph.stages:
            head = stage is self.graph.stages[-1]
            name = stage.forward if head else f"{stage.forward}@{count}"
            program = self.graph.programs[name]
            if head:
                passed = [passed[0][:, -1]]
            given = iter(passed)
            inputs = [self._input(stage, value, tokens, given) for value in program.inputs]
            results = dict(
                zip((v.name for v in program.outputs), program.module(*inputs), strict=True)
            )
            for value in program.outputs:
                if value.role == "cache_rows":
                    cache = self.caches[stage.name, value.name]
                    for row in range(count):
                        at = (self.first + row) % cache.shape[1]
                        cache[:, at] = results[value.name][0, :, row]
            passed = [
                results[v.name] for v in program.outputs if v.role in ("activation", "logits")
            ]
        self.first += count
        return passed[0][0]

    def _input(self, stage: Any, value: Any, tokens: torch.Tensor, given: Any) -> torch.Tensor:
        if value.role == "tokens":
            return tokens[None]
        if value.role == "activation":
            passed: torch.Tensor = next(given)
            return passed
        if value.role == "position":
            return torch.tensor([self.first])
        if value.role == "cache":
            return self.caches.setdefault(
                (stage.name, value.name), torch.full(value.sizes(), float("nan"))
            )
        tensor = self.graph.weights[stage.bind[value.name]]
        if value.role == "table":
            axis = next(axis for axis, size in enumerate(tensor.shape) if size != 1)
            return tensor.narrow(axis, self.first, len(tokens))
        return tensor


def attentions(program: Program) -> list[tuple[Any, ...]]:
    """Scale, cap and window of every attention of a program."""
    return [
        arguments(node)[7:]
        for node in program.module.graph.nodes
        if is_call(node, zo.cached_attention)
    ]


@pytest.mark.parametrize(
    "name",
    [
        "gemma3",
        "bloom",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("llama", "gemma2", "opt", "mpt", "falcon")
        ),
    ],
)
def test_logits_of_pieces_are_those_of_the_whole(name: str) -> None:
    model = tiny(name)
    graph = decoding(model, [1, 8, 32])
    tokens = fixed_tokens(1, 50)[0]
    with torch.no_grad():
        expected = model(tokens[None]).logits[0]
        cached = Cached(graph)
        first = 0
        for count in (32, 1, 8, 8, 1):
            first += count
            found = cached.feed(tokens[first - count : first])
            assert (found - expected[first - 1]).abs().max() <= 1e-4 * expected.abs().max()


def test_layers_with_other_windows_have_other_programs() -> None:
    graph = decoding(tiny("gemma2"), [1])
    seen = {
        stage.name: attentions(graph.programs[f"{stage.forward}@1"]) for stage in graph.stages[1:-1]
    }
    local, far, again = seen.values()
    assert [one[1:] for one in (local[0], far[0])] == [(50.0, 8), (50.0, 0)]
    assert local == again
    rows = [
        {v.shape[1] for v in graph.programs[f"{s.forward}@1"].inputs if v.role == "cache"}
        for s in graph.stages[1:4]
    ]
    assert rows == [{8}, {LENGTH}, {8}]


def test_heads_of_a_group_share_their_cache() -> None:
    graph = decoding(tiny("llama"), [1])
    shapes = [v.shape for v in graph.programs["layer.0@1"].inputs if v.role == "cache"]
    assert shapes == [(2, LENGTH, 16), (2, LENGTH, 16)]


class _Layer(nn.Module):
    def __init__(self, mixed: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.mixed = mixed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mixed(self.linear(x))


class _Output:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


class _Model(nn.Module):
    def __init__(self, mixed: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB_SIZE, 16)
        self.layers = nn.ModuleList([_Layer(mixed), _Layer(mixed)])
        self.head = nn.Linear(16, VOCAB_SIZE)

    def forward(self, input_ids: torch.Tensor, **_: Any) -> _Output:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return _Output(self.head(x))


def _attention(bias: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    def mixed(x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(x.shape[1])
        scores = x @ x.transpose(1, 2) + bias(at[None] - at[:, None])
        return torch.softmax(scores, -1) @ x

    return mixed


def _hidden(where: torch.Tensor) -> torch.Tensor:
    return torch.where(where, -1e9, 0.0)


@pytest.mark.parametrize(
    ("mixed", "part"),
    [
        (lambda x: torch.cumsum(x, 1), "come one after another"),
        (_attention(lambda ahead: _hidden(ahead > 2)), "causal masks"),
        (_attention(lambda ahead: _hidden((ahead > 0) | (ahead % 2 == 1))), "causal masks"),
        (_attention(lambda ahead: _hidden(ahead > 0) + 0.1 * (ahead % 3)), "distance"),
        (lambda x: torch.softmax(torch.exp(x @ x.transpose(1, 2)), -1) @ x, "scaled, capped"),
    ],
    ids=["running sum", "sees ahead", "gaps", "bias", "exponential"],
)
def test_what_is_refused(mixed: Callable[[torch.Tensor], torch.Tensor], part: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(VerifyError, match=part):
        decoding(_Model(mixed).eval(), [1])


@pytest.mark.parametrize("window", [1, 5, 64])
def test_windows_are_found(window: int) -> None:
    torch.manual_seed(0)
    mask = _attention(lambda ahead: _hidden((ahead > 0) | (ahead <= -window)))
    graph = decoding(_Model(mask).eval(), [1])
    assert attentions(graph.programs["layer.0@1"]) == [(1.0, 0.0, window)]


def test_what_reads_nothing_else_stays() -> None:
    """A layer without attention has no cache."""
    torch.manual_seed(0)
    graph = decoding(_Model(torch.tanh).eval(), [1])
    assert json.dumps([v.role for v in graph.programs["layer.0@1"].inputs]) == json.dumps(
        ["activation", "weight", "weight"]
    )
