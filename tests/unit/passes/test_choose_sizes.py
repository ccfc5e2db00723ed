"""choose_sizes: a program for each length, an output head over label rows, and heads that are refused."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.graphs import VOCAB, WIDTH, SmallModel
from tests.support.splits import LENGTH, Layer, small
from tests.support.tiny_models import HIDDEN, fixed, from_config, tiny_config
from zoexport.compiler.graphs import training_graph
from zoexport.compiler.plan import plan
from zoexport.core.errors import VerifyError
from zoexport.core.graph import TrainingGraph
from zoexport.ir.frozen import materialize
from zoexport.ir.graphs import outputs, shape_of
from zoexport.ir.interpret import Stages
from zoexport.models.load import linear_from_conv1d
from zoexport.models.weights import LoadedWeights
from zoexport.passes.choose_sizes import choose_sizes


class _Tabled(Layer):
    """A causal layer with a table over positions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.cumsum(self.linear(x) * torch.arange(x.shape[1])[:, None].cos(), dim=1)


def sized(body: Any = None, **sizes: Any) -> tuple[SmallModel, TrainingGraph]:
    model, graph = small(body or [_Tabled(), _Tabled()], "check_stages")
    wanted = {"rows": 2, "lengths": [4, 11], "label_rows": 5} | sizes
    return model, choose_sizes(graph, **wanted)


def test_every_length_has_its_programs() -> None:
    _, graph = sized()
    shapes = {
        name: (program.family, program.length, program.inputs[0].shape, program.outputs[0].shape)
        for name, program in graph.programs.items()
    }
    assert shapes == {
        "embedding@4": ("embedding", 4, (2, 4), (2, 4, WIDTH)),
        "embedding@11": ("embedding", 11, (2, 11), (2, 11, WIDTH)),
        "layer.0@4": ("layer.0", 4, (2, 4, WIDTH), (2, 4, WIDTH)),
        "layer.0@11": ("layer.0", 11, (2, 11, WIDTH), (2, 11, WIDTH)),
        "head": ("head", None, (5, WIDTH), (5, VOCAB)),
    }
    assert (graph.rows, graph.length, graph.lengths, graph.label_rows) == (2, 11, [4, 11], 5)
    assert graph.max_labels == 22
    for program in graph.programs.values():
        for name, node in outputs(program).items():
            (value,) = (value for value in program.outputs if value.name == name)
            assert shape_of(node) == value.shape


class _Numbered(Layer):
    """A layer whose calls have small primes as arguments, as the turns of an unrolled loop do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        borders = (0, 17, 19, 23, 29, WIDTH)
        parts = [x[..., first:last].tanh() for first, last in itertools.pairwise(borders)]
        return self.linear(torch.cat(parts[::-1], dim=-1))


def test_numbers_of_the_model_are_no_rows() -> None:
    model, graph = sized([_Numbered()], rows=1)
    materialize(graph, LoadedWeights(model))
    tokens = torch.arange(4)[None] % VOCAB
    hidden = Stages(graph, {}, 4).forward(tokens)[-1][0]
    assert torch.equal(hidden, model.body(model.embed(tokens)))


@pytest.mark.parametrize("length", [4, 11])
def test_the_stages_are_the_model_at_each_length(length: int) -> None:
    model, graph = sized()
    tokens = torch.arange(2 * length).view(2, length) % VOCAB
    *_, (hidden,) = Stages(graph, {}, length).forward(tokens)
    expected = model.body(model.embed(tokens))
    torch.testing.assert_close(hidden, expected)
    (logits,) = graph.programs["head"].module(hidden[0, :1].repeat(5, 1), model.head.weight)
    torch.testing.assert_close(logits[4], model.head(expected)[0, 0])


def test_constants_are_bound_whole_and_cut_by_the_program() -> None:
    _, graph = sized()
    (value,) = (value for value in graph.programs["layer.0@4"].inputs if value.name == "shared.0")
    assert value.shape == (LENGTH, 1)


class _Normed(nn.Module):
    """Layers, and what a test puts after them."""

    def __init__(self, after: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer()])
        self.after = after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.layers[0](x))


class _MixesRows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.cumsum(x, dim=1)


class _KnowsPlaces(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.arange(x.shape[1])[:, None].cos()


class _MixesPositions(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dim=1, keepdim=True)


class _SoftmaxOverPositions(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1)


class _ReadsBatches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.transpose(1, 2) @ x


@pytest.mark.parametrize(
    "after", [_MixesRows, _KnowsPlaces, _MixesPositions, _SoftmaxOverPositions, _ReadsBatches]
)
def test_a_head_in_which_rows_see_each_other_is_refused(after: type[nn.Module]) -> None:
    with pytest.raises(VerifyError, match="rows that see each other, or their place"):
        sized(_Normed(after()))


class _Softcap(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 30.0 * torch.tanh(x / 30.0) * torch.softmax(x, dim=-1)


@pytest.mark.parametrize("after", [nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH), _Softcap()])
def test_norms_and_caps_are_no_obstacle(after: nn.Module) -> None:
    model, graph = sized(_Normed(after))
    hidden = torch.sin(torch.arange(5 * WIDTH).float()).view(5, WIDTH)
    head = graph.programs["head"]
    bind = graph.stages[-1].bind
    values = [
        hidden if value.role == "activation" else graph.weights[bind[value.name]]
        for value in head.inputs
    ]
    torch.testing.assert_close(head.module(*values)[0], model.head(after(hidden)))


def test_the_captured_graph_is_not_needed_afterwards() -> None:
    _, graph = sized(lengths=[LENGTH])
    assert [dataclasses.astuple(v)[3] for v in graph.programs["layer.0@13"].outputs] == [
        (2, LENGTH, WIDTH)
    ]


def test_a_width_may_be_a_multiple_of_the_only_length() -> None:
    """As of RoBERTa-large: 1,024 of 512 positions, beyond which no length is free to mark sizes with."""
    model = from_config(tiny_config("gpt2", n_positions=HIDDEN // 2))
    linear_from_conv1d(model)
    settings = {"max_length": str(HIDDEN // 2), "batch_size": "2", "weights": "fp32"}
    graph = training_graph(plan("mebp", "host", settings), model, lambda *_: None)
    head = graph.programs["head"]
    assert not graph.any_length and graph.label_rows == HIDDEN
    materialize(graph, LoadedWeights(model))
    hidden = fixed("hidden", (graph.label_rows, HIDDEN))
    labels = torch.arange(graph.label_rows)
    values = {"activation": hidden, "label_tokens": labels}
    bind = graph.stages[-1].bind
    logprobs, _ = head.module(
        *(
            values[value.role] if value.role in values else graph.weights[bind[value.name]]
            for value in head.inputs
        )
    )
    logits = model.lm_head(model.transformer.ln_f(hidden))
    expected = torch.log_softmax(logits, dim=-1)[labels, labels]
    torch.testing.assert_close(logprobs.flatten(), expected)


class _TabledByRow(Layer):
    """A causal layer with a table over rows and positions, the same for every row (BLOOM's and Falcon's ALiBi)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.ones(x.shape[0], x.shape[1]).cumsum(dim=1).cos()
        # No operation that would take one row of the table for all.
        return x + torch.cat([self.linear(x)[..., 1:], table[..., None]], dim=-1)


@pytest.mark.parametrize("rows", [1, 30])
def test_a_table_with_a_part_for_every_row_has_enough(rows: int) -> None:
    """The rows that mark sizes are as many as run, or more: a table can be cut, but not continued."""
    model, graph = small([_TabledByRow()], "choose_sizes", batch_size=rows)
    layer = next(program for name, program in graph.programs.items() if name.startswith("layer"))
    assert any(value.role == "weight" and len(value.shape) == 3 for value in layer.inputs)
    tokens = torch.arange(rows * LENGTH).view(rows, LENGTH) % VOCAB
    *_, (hidden,) = Stages(graph, {}, LENGTH).forward(tokens)
    torch.testing.assert_close(hidden, model.body(model.embed(tokens)))
